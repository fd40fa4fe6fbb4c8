"""What a run tells while it goes on; the terminal renders these, tests read them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The preflight passed; levels follow."""

    directory: str
    model: str
    engine: str
    levels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged:
    """A level entered warmup, measure or drain."""

    level: int
    label: str
    phase: str
    planned_s: float | None  # how long it should last, where a time bounds it
    planned_requests: int | None
    scheduled_s: float | None = None  # how long drawn arrivals make it, where no time alone does


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Live figures of the running level, about twice a second."""

    level: int
    label: str
    phase: str
    elapsed_s: float  # in this phase
    in_flight: int
    done: int  # records of this phase
    failed: int
    output_tokens_per_s: float  # since the last tick


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelEnded:
    """All of a level's records are on disk."""

    level: int
    label: str
    stop_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One line the user should read now. ``stops``: the level stops by itself, for this reason."""

    text: str
    stops: str | None = None


Event = RunStarted | PhaseChanged | Tick | LevelEnded | Notice
