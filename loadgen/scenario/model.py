"""A scenario: the typed, frozen form of the YAML file. Keys are the words of the file.

Every model refuses unknown keys. Times are seconds here (``_s``); the file writes "30s".
"""

import re
from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from loadgen.engines import by_name
from loadgen.errors import UsageError
from loadgen.scenario import url as urls
from loadgen.scenario.fields import (
    Count,
    CountOrZero,
    FreeForm,
    Length,
    Objective,
    Part,
    Positive,
    Rate,
    Seconds,
    SecondsOrZero,
    Span,
    Switch,
)

__all__ = ["EachLevel", "Length", "Level", "Limits", "Prompts", "Scenario", "Span", "Target"]

RATE_ONLY_KEYS = ("arrivals", "max_in_flight", "at_cap")
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
    """The server under test and how it is spoken to."""

    url: str
    model: Annotated[str, Field(min_length=1)] | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    engine: str = "auto"
    endpoint: Literal["chat", "completions"] = "chat"
    ca_file: Annotated[str, Field(min_length=1)] | None = None
    insecure: Switch = False
    transport: Literal["own", "stock"] = "own"
    connections: Literal["reuse", "per_request"] = "reuse"

    @field_validator("url")
    @classmethod
    def _usable_url(cls, value: str) -> str:
        if problem := urls.url_problem(value):
            raise ValueError(problem)
        return value

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


class Prompts(Part):
    """What the requests say."""

    source: Literal["synthetic"] = "synthetic"
    input_tokens: Length
    output_tokens: Length
    shared_prefix_tokens: CountOrZero = 0

    @model_validator(mode="after")
    def _prefix_fits(self) -> Self:
        if self.shared_prefix_tokens and self.shared_prefix_tokens >= self.input_tokens.mean:
            raise ValueError(
                f"shared_prefix_tokens ({self.shared_prefix_tokens}) must be below input_tokens "
                f"({self.input_tokens.mean:g}): something must differ"
            )
        return self


class Level(Part):
    """One load setting: N requests in flight, or a rate of arrivals."""

    concurrency: Count | None = None
    rate: Rate | None = None
    arrivals: Literal["constant", "poisson"] = "poisson"
    max_in_flight: Count = 1024
    at_cap: Literal["wait", "drop"] = "wait"
    max_starts_per_s: Positive | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = {key for key in self.model_fields_set if getattr(self, key) is not None}
        if conflicts := level_conflicts(given):
            raise ValueError("; ".join(conflicts))
        return self

    @property
    def label(self) -> str:
        """Return "concurrency 8" or "4/s poisson"."""
        if self.concurrency is not None:
            return f"concurrency {self.concurrency}"
        return f"{self.rate:g}/s {self.arrivals}"


def level_conflicts(keys: Collection[str]) -> list[str]:
    """Say which keys of one level do not go together."""
    if "concurrency" in keys and "rate" in keys:
        return ["both concurrency and rate are given; keep one"]
    if "concurrency" not in keys and "rate" not in keys:
        return ["neither concurrency nor rate is given; add one, like concurrency: 8 or rate: 4/s"]
    if "concurrency" in keys:
        return [f"{key} goes with a rate, not with concurrency; leave it out"
                for key in RATE_ONLY_KEYS if key in keys]  # fmt: skip
    return []


class EachLevel(Part):
    """The phases of every level. A warm-up of Span() means one request per slot, at least 2."""

    warmup: Span = Span()
    measure: Span = Span(seconds=30.0)
    drain_s: SecondsOrZero = Field(default=60.0, validation_alias="drain")

    @field_validator("measure")
    @classmethod
    def _something_to_measure(cls, span: Span) -> Span:
        if not span.plain or 0 in (span.seconds, span.requests):
            raise ValueError("must be longer than nothing; write it like 30s or 200 requests")
        return span

    def warmup_of(self, level: Level) -> Span:
        """Return the warm-up of one level, with the default spelled out."""
        if self.warmup.seconds is None and self.warmup.requests is None:
            return Span(requests=max(2, level.concurrency or 0))
        return self.warmup


class Limits(Part):
    """When one request is given up. Every wait but the total is finite."""

    connect_s: Seconds = Field(default=10.0, validation_alias="connect")
    first_token_s: Seconds = Field(default=300.0, validation_alias="first_token")
    idle_s: Seconds = Field(default=60.0, validation_alias="idle")
    total_s: Seconds | None = Field(default=None, validation_alias="total")
    max_event_mb: Count = 64
    retries: CountOrZero = 0


class Scenario(Part):
    """All that one run does."""

    name: str
    target: Target
    prompts: Prompts
    levels: Annotated[tuple[Level, ...], Field(min_length=1)]
    each_level: EachLevel = EachLevel()
    rounds: Count = 1
    objectives: tuple[Objective, ...] = ()
    seed: CountOrZero = 0
    nonce: Literal["fresh", "fixed"] = "fresh"
    limits: Limits = Limits()
    request: FreeForm = Field(default_factory=dict)
    conditions: FreeForm = Field(default_factory=dict)

    # path in the file → the text with its ${NAME}, so that what came from the environment is
    # written by its name
    _references: dict[tuple[str | int, ...], Any] = PrivateAttr(default_factory=dict)

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

    def referring(self, references: Mapping[tuple[str | int, ...], Any]) -> Self:
        """Remember which values came from the environment; returns this scenario."""
        self._references.update(references)
        return self

    @property
    def references(self) -> Mapping[tuple[str | int, ...], Any]:
        """What stands in the file where the environment filled in a value."""
        return self._references

    def public_dict(self) -> dict[str, Any]:
        """Return the scenario as resolved, JSON-ready and safe to show (see ``public``)."""
        from loadgen.scenario.public import public_dict

        return public_dict(self)
