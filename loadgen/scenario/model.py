"""A scenario: the typed, frozen form of the YAML file. Keys are the words of the file.

Every model refuses unknown keys. Times are seconds here (``_s``); the file writes "30s".
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, field_validator, model_validator

from loadgen.errors import UsageError
from loadgen.scenario.fields import (
    Abort,
    Count,
    CountOrZero,
    FreeForm,
    Objective,
    Part,
    Seconds,
    Span,
    Workers,
)
from loadgen.scenario.lengths import Length, ThinkTime
from loadgen.scenario.levels import EachLevel, Level, Segment
from loadgen.scenario.prompts import ConflictsError, Found, MixPart, Prompts
from loadgen.scenario.quality import Quality
from loadgen.scenario.server import Server
from loadgen.scenario.servers import LAID, laid, name_problems, project_of, twins
from loadgen.scenario.target import Body, Target, Variant
from loadgen.scenario.telemetry import Telemetry

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
    "Telemetry",
    "ThinkTime",
    "Variant",
]

MISSING_PROMPTS = "is missing; say what is sent, like {input_tokens: 512, output_tokens: 128}"


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
    servers: measured one after another in place of the target alone; see ``variants``.
    """

    name: str
    target: Target
    server: Server | None = None
    servers: dict[str, Variant] = Field(default_factory=dict)
    one_kind: Prompts | None = Field(default=None, validation_alias="prompts")
    mix: tuple[MixPart, ...] = ()
    levels: Annotated[tuple[Level, ...], Field(min_length=1)]
    each_level: EachLevel = EachLevel()
    rounds: Count = 1
    level_order: Literal["listed", "shuffled"] = "listed"
    objectives: tuple[Objective, ...] = ()
    quality: Quality | None = None
    telemetry: Telemetry = Telemetry()
    abort_if: tuple[Abort, ...] = ()
    workers: Workers = 1
    seed: CountOrZero = 0
    nonce: Literal["fresh", "fixed"] = "fresh"
    limits: Limits = Limits()
    request: Body = Field(default_factory=dict)
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

    @field_validator("servers")
    @classmethod
    def _named_servers(cls, servers: dict[str, Variant]) -> dict[str, Variant]:
        if problems := list(name_problems(servers)):
            raise ValueError("; ".join(problems))
        return servers

    @model_validator(mode="before")
    @classmethod
    def _each_server_whole(cls, value: object) -> object:
        return laid(value) if isinstance(value, Mapping) and "servers" in value else value

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
        found = [*what_is_sent_conflicts(raw), *self._conflicts_between_parts()]
        if found := [*found, *self._conflicts_between_servers(found)]:
            raise ConflictsError(found)
        return self

    def _conflicts_between_servers(self, own: list[Found]) -> Iterator[Found]:
        for name, made in self.variants():
            found = (one for one in made._conflicts_between_parts() if one not in own)
            yield from ((f"servers.{name}.{where}", text) for where, text in found)
        yield from twins({name: self._parts(name) for name in self.servers})

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
        once = [at for at, level in enumerate(self.levels) if level.once]
        if once and not replays:
            yield f"levels.{once[0]}.once", "is of a log; it needs prompts: {source: replay}"
        if once and "measure" in self.each_level.model_fields_set:
            yield "each_level.measure", "is as long as a log that is sent once; leave it out"
        if once and self.quality is not None and self.quality.share is not None:
            yield "quality.share", "takes the place of a log's requests; write pass: true instead"

    def variants(self) -> Iterator[tuple[str, Self]]:
        """Yield each of the servers: its name, and the scenario that measures it alone."""
        for name in self.servers:
            yield name, self.variant(name)

    def variant(self, name: str) -> Self:
        """Return the scenario that measures one of the servers alone, named after both.

        A command is started under the server's name: those of all may begin with the same word.
        """
        parts = self._parts(name)
        server = parts["server"]
        if server is not None and server.command is not None and server.project is None:
            parts["server"] = server.model_copy(update={"project": project_of(name)})
        made = self.model_copy(update={**parts, "name": f"{self.name}-{name}", "servers": {}})
        own = {"servers", *self.servers[name].model_fields_set}
        kept = {path: text for path, text in self._references.items() if path[0] not in own}
        of_it = {path[2:]: text for path, text in self._references.items()
                 if path[:2] == ("servers", name)}  # fmt: skip
        made._references = kept | of_it
        return made

    def _parts(self, name: str) -> dict[str, Any]:
        """Return the parts that are laid over, as one of the servers has them."""
        variant = self.servers[name]
        given = {
            part: getattr(variant, part)
            for part in variant.model_fields_set
            if part == "server" or getattr(variant, part) is not None  # none: it runs already
        }
        return {part: given[part] if part in given else getattr(self, part) for part in LAID}

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
