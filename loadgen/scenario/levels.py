"""How much load: levels, the segments of a changing rate, and the phases that every level has."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from loadgen.scenario.fields import (
    Count,
    Part,
    Positive,
    Rate,
    RateOrZero,
    Seconds,
    SecondsOrZero,
    Span,
    Switch,
    write_duration,
    write_rate,
)

RATE_ONLY_KEYS = ("arrivals", "burstiness", "max_in_flight", "at_cap")
LOADS = ("concurrency", "rate", "segments", "sessions", "speed")


class Segment(Part):
    """A part of ``measure``: a rate that holds, or one that changes evenly from one to another."""

    rate: RateOrZero | None = None
    from_rate: RateOrZero | None = Field(default=None, validation_alias="from")
    to_rate: RateOrZero | None = Field(default=None, validation_alias="to")
    for_s: Seconds = Field(validation_alias="for")

    @model_validator(mode="after")
    def _holds_or_changes(self) -> Self:
        ends = (self.from_rate, self.to_rate)
        if (self.rate is None) == (ends == (None, None)):
            raise ValueError("give a rate, or from and to, like {from: 2/s, to: 10/s, for: 1m}")
        if self.rate is None and None in ends:
            raise ValueError("from and to go together, like {from: 2/s, to: 10/s, for: 1m}")
        return self

    @property
    def first(self) -> float:
        """Arrivals per second at its beginning."""
        return self.rate if self.rate is not None else self.from_rate or 0.0

    @property
    def last(self) -> float:
        """Arrivals per second at its end."""
        return self.rate if self.rate is not None else self.to_rate or 0.0

    @property
    def plain(self) -> dict[str, str]:
        """As the file writes it."""
        lasts = {"for": write_duration(self.for_s)}
        if self.rate is not None:
            return {"rate": write_rate(self.rate), **lasts}
        return {"from": write_rate(self.first), "to": write_rate(self.last), **lasts}


class Level(Part):
    """One load setting: requests or conversations in flight, or arrivals at a rate.

    burstiness: the shape of gamma gaps: 1 is Poisson, below 1 comes in bursts, above 1 is evener.
    sessions: conversations under way at once; ``concurrency`` beside it caps requests in flight.
    speed: arrivals are those of the log that is replayed, so many times as fast. max_gap: longer
    gaps of the log are cut to this. jitter: times that lie on a grid are spread within it.
    once: a closed level is over when each conversation of its part of the log was sent.
    """

    concurrency: Count | None = None
    sessions: Count | None = None
    rate: Rate | None = None
    segments: tuple[Segment, ...] | None = None
    speed: Positive | None = None
    max_gap_s: Seconds | None = Field(default=None, validation_alias="max_gap")
    jitter: Switch = False
    once: Switch = False
    arrivals: Literal["constant", "poisson", "gamma"] = "poisson"
    burstiness: Positive | None = None
    max_in_flight: Count = 1024
    at_cap: Literal["wait", "drop"] = "wait"
    max_starts_per_s: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _gamma_by_burstiness(cls, value: object) -> object:
        if isinstance(value, Mapping) and value.get("burstiness") is not None:
            return {"arrivals": "gamma", **value}
        return value

    @field_validator("segments")
    @classmethod
    def _some_arrivals(cls, segments: tuple[Segment, ...] | None) -> tuple[Segment, ...] | None:
        if segments is not None and not any(part.first or part.last for part in segments):
            raise ValueError("no arrivals at all; give one a rate, like {rate: 4/s, for: 30s}")
        return segments

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = {key: getattr(self, key) for key in self.model_fields_set}
        if conflicts := list(level_conflicts(given)):
            raise ValueError("; ".join(conflicts))
        return self

    @property
    def closed(self) -> bool:
        """Say that requests are sent when earlier ones end, not by a schedule."""
        return self.rate is None and self.segments is None and self.speed is None

    @property
    def lasts_as_the_log(self) -> bool:
        """Say that a log's end is the level's, unless a measure is told."""
        return self.speed is not None or self.once

    @property
    def slots(self) -> int:
        """How many requests may be in flight at once."""
        if not self.closed:
            return self.max_in_flight
        return self.concurrency or self.sessions or 1

    @property
    def conversations_at_once(self) -> int | None:
        """How many conversations are under way at once; None: as the arrivals have it."""
        return (self.sessions or self.concurrency) if self.closed else None

    @property
    def first_rate(self) -> float:
        """Arrivals per second in warm-up: the first above zero; 0 where the level is closed."""
        if self.rate is not None:
            return self.rate
        ends = (rate for part in self.segments or () for rate in (part.first, part.last))
        return next((rate for rate in ends if rate), 0.0)

    @property
    def peak_rate(self) -> float:
        """The most arrivals per second."""
        ends = [rate for part in self.segments or () for rate in (part.first, part.last)]
        return max([self.rate or 0.0, *ends])

    @property
    def segments_s(self) -> float:
        """How long the segments take together, in seconds."""
        return math.fsum(part.for_s for part in self.segments or ())

    @property
    def label(self) -> str:
        """Return "concurrency 8", "12 sessions, concurrency 4", "4/s poisson", "log at speed 2"."""
        if self.closed:
            inside = f"concurrency {self.concurrency}"
            if self.sessions is None:
                return inside
            return f"{self.sessions} sessions" + (f", {inside}" if self.concurrency else "")
        if self.speed is not None:
            return f"log at speed {self.speed:g}"
        return f"{self._rates}/s {self._spacing}"

    @property
    def _rates(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g}"
        rates = [rate for part in self.segments or () for rate in (part.first, part.last)]
        changes = [f"{rate:g}" for i, rate in enumerate(rates) if i == 0 or rate != rates[i - 1]]
        return "→".join(changes if len(changes) <= 6 else [*changes[:3], "…", *changes[-2:]])

    @property
    def _spacing(self) -> str:
        return f"gamma {self.burstiness:g}" if self.arrivals == "gamma" else self.arrivals


def level_conflicts(given: Mapping[str, Any]) -> Iterator[str]:
    """Say which keys of one level, checked or as the file has them, do not go together."""
    keys = {key for key, value in given.items() if value is not None}
    loads = [key for key in LOADS if key in keys]
    if not loads:
        yield "neither concurrency nor rate is given; add one, like concurrency: 8 or rate: 4/s"
        return
    if len(loads) > 1 and loads != ["concurrency", "sessions"]:
        yield f"both {' and '.join(loads)} are given; keep one"
        return
    if loads[0] in ("concurrency", "sessions"):
        for key in RATE_ONLY_KEYS:
            if key in keys and not (key == "arrivals" and "burstiness" in keys):
                yield f"{key} goes with a rate, not with {loads[0]}; leave it out"
        yield from _unreachable_cap(given)
        yield from _without_log(keys, loads[0])
        return
    if given.get("once") not in (None, False):
        yield "once goes with concurrency or sessions; leave it out"
    if loads[0] == "speed":
        for key in ("arrivals", "burstiness"):
            if key in keys:
                yield f"{key} goes with a rate; a log has its own arrivals"
        return
    yield from _without_log(keys, "a rate")
    gamma = given.get("arrivals") == "gamma"
    if gamma and "burstiness" not in keys:
        yield "arrivals: gamma needs burstiness, like burstiness: 0.5; 1 is poisson"
    if "burstiness" in keys and "arrivals" in keys and not gamma:
        yield "burstiness goes with arrivals: gamma; leave it out"


def _without_log(keys: set[str], load: str) -> Iterator[str]:
    for key, name in (("max_gap_s", "max_gap"), ("max_gap", "max_gap"), ("jitter", "jitter")):
        if key in keys:
            yield f"{name} goes with speed, which follows a log, not with {load}; leave it out"


def _unreachable_cap(given: Mapping[str, Any]) -> Iterator[str]:
    concurrency, sessions = given.get("concurrency"), given.get("sessions")
    if isinstance(concurrency, int) and isinstance(sessions, int) and concurrency > sessions:
        yield (
            f"concurrency ({concurrency}) is never reached by {sessions} sessions, which send one "
            "request each at a time; leave it out"
        )


class EachLevel(Part):
    """The phases of every level. A warm-up of Span() means one request per slot, at least 2.

    truncate: off keeps what MSER-5 would cut off the beginning of ``measure``. cooldown: a rest
    between one level and the next.
    """

    warmup: Span = Span()
    measure: Span = Span(seconds=30.0)
    drain_s: SecondsOrZero = Field(default=60.0, validation_alias="drain")
    truncate: Literal["mser-5", "off"] = "mser-5"
    cooldown_s: SecondsOrZero = Field(default=0.0, validation_alias="cooldown")

    @field_validator("measure")
    @classmethod
    def _something_to_measure(cls, span: Span) -> Span:
        if not span.plain or 0 in (span.seconds, span.requests):
            raise ValueError("must be longer than nothing; write it like 30s or 200 requests")
        return span

    def warmup_of(self, level: Level) -> Span:
        """Return the warm-up of one level, with the default spelled out."""
        if self.warmup.seconds is None and self.warmup.requests is None:
            if level.lasts_as_the_log:  # it begins as it begins
                return Span(requests=0)
            return Span(requests=max(2, level.concurrency or level.sessions or 0))
        return self.warmup

    def measure_of(self, level: Level) -> Span:
        """Return the measure phase of one level: that of segments is as long as they are.

        A level that lasts as long as a log is measured to its end, unless told: Span().
        """
        if level.lasts_as_the_log and "measure" not in self.model_fields_set:
            return Span()
        return self.measure if level.segments is None else Span(seconds=level.segments_s)
