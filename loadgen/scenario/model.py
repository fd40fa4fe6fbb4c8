"""A scenario: the typed, frozen form of the YAML file. Keys are the words of the file.

Every model refuses unknown keys. Times are seconds here (``_s``); the file writes "30s".
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from loadgen.engines import by_name
from loadgen.errors import UsageError
from loadgen.scenario import url as urls
from loadgen.scenario.fields import (
    Abort,
    Count,
    CountOrZero,
    FreeForm,
    Objective,
    Part,
    Seconds,
    Span,
    Switch,
    Workers,
)
from loadgen.scenario.lengths import Length, ThinkTime
from loadgen.scenario.levels import EachLevel, Level, Segment
from loadgen.scenario.prompts import ConflictsError, Found, MixPart, Prompts
from loadgen.scenario.quality import Quality
from loadgen.scenario.server import Server

__all__ = [
    "EachLevel",
    "Length",
    "Level",
    "Limits",
    "MixPart",
    "Prompts",
    "Quality",
    "Scenario",
    "Segment",
    "Server",
    "Span",
    "Target",
    "ThinkTime",
]

TOKENIZERS = ("cl100k_base", "o200k_base", "p50k_base")
MISSING_PROMPTS = "is missing; say what is sent, like {input_tokens: 512, output_tokens: 128}"
RESERVED_BODY_FIELDS = {
    "stream": "answers are always streamed",
    "model": "set target.model",
    "messages": "the prompts make these",
    "prompt": "the prompts make this",
    "max_tokens": "set prompts.output_tokens",
    "max_completion_tokens": "set prompts.output_tokens",
}
"""Fields of the body that ``request`` may not set, and where each is decided instead."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Target(Part):
    """The server under test and how it is spoken to.

    allow_public: a log may be replayed to an address that is neither loopback nor private.
    tokenizer: counts the tokens that the server does not report: cl100k_base, o200k_base or the
        path of a tokenizer.json.
    """

    url: str
    model: Annotated[str, Field(min_length=1)] | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    engine: str = "auto"
    endpoint: Literal["chat", "completions"] = "chat"
    ca_file: Annotated[str, Field(min_length=1)] | None = None
    insecure: Switch = False
    transport: Literal["own", "stock"] = "own"
    connections: Literal["reuse", "per_request"] = "reuse"
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    allow_public: Switch = False

    @field_validator("url")
    @classmethod
    def _usable_url(cls, value: str) -> str:
        if problem := urls.url_problem(value):
            raise ValueError(problem)
        return value

    @field_validator("tokenizer")
    @classmethod
    def _known_tokenizer(cls, value: str | None) -> str | None:
        if value is None or names_a_file(value) or value in TOKENIZERS:
            return value
        known = ", ".join(TOKENIZERS)
        raise ValueError(
            f"'{value}' is not known; name one of {known}, or a path to tokenizer.json"
        )

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, value: str) -> str:
        if value == "auto":
            return value
        try:
            return by_name(value).name
        except UsageError as error:
            raise ValueError(str(error).removeprefix("engine: ")) from None

    @field_validator("headers")
    @classmethod
    def _usable_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():  # the text itself is private: never in a message
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a header name")
            if not text.isprintable() or not text.isascii():
                raise ValueError(f"the value of {name} holds a line break or a letter not in ASCII")
        return value

    @property
    def base_url(self) -> str:
        """``http://host:port/v1``, without credentials."""
        return urls.base_url(self.url)

    @property
    def root_url(self) -> str:
        """The address below which /health, /metrics and /version lie."""
        return urls.root_url(self.url)

    @property
    def port(self) -> int:
        """The port that the address names, or its scheme's own."""
        return urls.port_of(self.url)

    @property
    def basic_auth(self) -> urls.BasicAuth | None:
        """User and password of the URL, if it carries them."""
        return urls.basic_auth(self.url)

    @property
    def masked_url(self) -> str:
        """The address as given, safe to print."""
        return urls.masked_url(self.url)

    @property
    def masked_base_url(self) -> str:
        """The base URL, safe to print: a query string may carry a key."""
        return urls.masked_url(self.base_url)

    def endpoint_url(self, kind: str | None = None) -> str:
        """Return the address of "chat", "completions" or "models"; None: the target's own."""
        return urls.join_url(self.base_url, urls.ENDPOINT_PATHS[kind or self.endpoint])


class Limits(Part):
    """When one request is given up. Every wait but the total is finite."""

    connect_s: Seconds = Field(default=10.0, validation_alias="connect")
    first_token_s: Seconds = Field(default=300.0, validation_alias="first_token")
    idle_s: Seconds = Field(default=60.0, validation_alias="idle")
    total_s: Seconds | None = Field(default=None, validation_alias="total")
    max_event_mb: Count = 64
    retries: CountOrZero = 0


class Scenario(Part):
    """All that one run does. What is sent stands in ``classes``, whether it is one kind or a mix.

    workers: processes that share the load; "auto": as many as the load and the machine suggest.
    server: what to start before, and to stop after; None: the target runs already.
    """

    name: str
    target: Target
    server: Server | None = None
    one_kind: Prompts | None = Field(default=None, validation_alias="prompts")
    mix: tuple[MixPart, ...] = ()
    levels: Annotated[tuple[Level, ...], Field(min_length=1)]
    each_level: EachLevel = EachLevel()
    rounds: Count = 1
    level_order: Literal["listed", "shuffled"] = "listed"
    objectives: tuple[Objective, ...] = ()
    quality: Quality | None = None
    abort_if: tuple[Abort, ...] = ()
    workers: Workers = 1
    seed: CountOrZero = 0
    nonce: Literal["fresh", "fixed"] = "fresh"
    limits: Limits = Limits()
    request: FreeForm = Field(default_factory=dict)
    conditions: FreeForm = Field(default_factory=dict)

    # path in the file → the text with its ${NAME}, so that what came from the environment is
    # written by its name
    _references: dict[tuple[str | int, ...], Any] = PrivateAttr(default_factory=dict)
    _directory: Path = PrivateAttr(default_factory=Path)

    @field_validator("name")
    @classmethod
    def _usable_as_a_directory(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name):
            slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:64] or "my-scenario"
            raise ValueError(f"names the run's directory; did you mean '{slug}'?")
        return name

    @field_validator("request")
    @classmethod
    def _nothing_reserved(cls, body: dict[str, Any]) -> dict[str, Any]:
        taken = [f"'{key}' cannot be set here: {why}"
                 for key, why in RESERVED_BODY_FIELDS.items() if key in body]  # fmt: skip
        if taken:
            raise ValueError("; ".join(taken))
        return body

    @model_validator(mode="before")
    @classmethod
    def _a_log_is_a_load(cls, value: object) -> object:
        """Follow the log where prompts are one and no levels are given."""
        prompts = value.get("prompts") if isinstance(value, Mapping) else None
        if isinstance(prompts, Mapping) and prompts.get("source") == "replay":
            return {"levels": [{"speed": 1}], **value} if isinstance(value, Mapping) else value
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        raw = {
            "prompts": self.one_kind,
            "mix": [part.name for part in self.mix] if "mix" in self.model_fields_set else None,
        }
        if found := [*what_is_sent_conflicts(raw), *self._conflicts_between_parts()]:
            raise ConflictsError(found)
        return self

    def _conflicts_between_parts(self) -> Iterator[Found]:
        several_turns = any(prompts.conversational for _, prompts in self.classes)
        if several_turns and self.target.endpoint == "completions":
            yield "target.endpoint", "turns need chat; completions have no messages to repeat"
        yield from self._conflicts_with_a_log()
        given = "measure" in self.each_level.model_fields_set
        if given and all(level.segments is not None for level in self.levels):
            yield "each_level.measure", "is as long as the segments of the levels; leave it out"

    def _conflicts_with_a_log(self) -> Iterator[Found]:
        follows = [at for at, level in enumerate(self.levels) if level.speed is not None]
        replays = self.one_kind is not None and self.one_kind.source == "replay"
        if follows and self.quality is not None and self.quality.share is not None:
            yield "quality.share", "would shift a log's requests in time; write pass: true instead"
        if follows and not replays:
            yield f"levels.{follows[0]}.speed", "follows a log; it needs prompts: {source: replay}"
        if follows and self.quality is not None and self.quality.share is not None:
            yield "quality.share", "puts questions between the requests of a log; use pass: true"

    @property
    def replays(self) -> bool:
        """Say that something of a log is sent."""
        return any(prompts.source == "replay" for _, prompts in self.classes)

    @property
    def prompts(self) -> Prompts:
        """The prompts of a scenario without a mix; see ``classes`` for both kinds."""
        if self.one_kind is None:
            raise UsageError(f"{self.name}: a mix has prompts for each class, none for all")
        return self.one_kind

    @property
    def classes(self) -> tuple[tuple[str | None, Prompts], ...]:
        """What is sent: (None, prompts), or the name and prompts of each class of the mix."""
        if self.one_kind is not None:
            return ((None, self.one_kind),)
        return tuple((part.name, part.prompts) for part in self.mix)

    @property
    def conversational(self) -> bool:
        """Say that conversations may have more than one turn."""
        return any(prompts.conversational for _, prompts in self.classes)

    def referring(self, references: Mapping[tuple[str | int, ...], Any]) -> Self:
        """Remember which values came from the environment; returns this scenario."""
        self._references.update(references)
        return self

    def located(self, directory: Path) -> Self:
        """Remember where the scenario file lies; returns this scenario."""
        self._directory = directory
        return self

    def file(self, name: str) -> Path:
        """Return the path of a file that the scenario names: relative to the scenario's own."""
        return self._directory / name

    @property
    def references(self) -> Mapping[tuple[str | int, ...], Any]:
        """What stands in the file where the environment filled in a value."""
        return self._references

    def public_dict(self) -> dict[str, Any]:
        """Return the scenario as resolved, JSON-ready and safe to show (see ``public``)."""
        from loadgen.scenario.public import public_dict

        return public_dict(self)


def what_is_sent_conflicts(given: Mapping[str, Any]) -> Iterator[Found]:
    """Say what is wrong with ``prompts`` beside ``mix``; given: both, a mix as its names."""
    prompts, mix = given.get("prompts"), given.get("mix")
    if prompts is not None and mix is not None:
        yield "", "both prompts and mix are given; keep one"
    elif mix is not None and not mix:
        yield "mix", "has no class; add one, like {name: chat, weight: 70, prompts: {…}}"
    elif prompts is None and mix is None:
        yield "prompts", MISSING_PROMPTS
    twice = [name for name, times in Counter(mix or ()).items() if times > 1]
    if twice:
        yield "mix", f"two classes have the name '{twice[0]}'; give each its own"


def names_a_file(tokenizer: object) -> bool:
    """Say whether a tokenizer is given as a path rather than by its name."""
    return isinstance(tokenizer, str) and ("/" in tokenizer or tokenizer.endswith(".json"))
