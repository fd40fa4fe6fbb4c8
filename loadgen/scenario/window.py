"""A part of a log by its times: ``10m..20m`` from its beginning, or ``10:00..10:30`` of the day."""

import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator

from loadgen.units import parse_duration_s

_EXAMPLE = "write it like 10m..20m, or 10:00..10:30 of the day"
_CLOCK = re.compile(r"([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """From one time up to, and without, another.

    clock: times of the day (UTC), else since the log's beginning.
    """

    from_s: float
    to_s: float
    clock: bool = False


def parse_window(text: str) -> Window:
    """Read a window; ValueError says what is wrong with it."""
    first, dots, last = (part.strip() for part in text.partition(".."))
    if not dots or not first or not last:
        raise ValueError(f"'{text}' is no window; {_EXAMPLE}")
    clocks = _CLOCK.fullmatch(first), _CLOCK.fullmatch(last)
    if clocks[0] and clocks[1]:
        return Window(from_s=_seconds(clocks[0]), to_s=_seconds(clocks[1]), clock=True)
    try:
        found = Window(from_s=parse_duration_s(first), to_s=parse_duration_s(last))
    except ValueError:
        raise ValueError(f"'{text}' is no window; {_EXAMPLE}") from None
    if found.from_s >= found.to_s:
        raise ValueError(f"'{text}' ends before it begins; {_EXAMPLE}")
    return found


def _checked(text: str) -> str:
    parse_window(text)
    return text


WindowText = Annotated[str, AfterValidator(_checked)]


def _seconds(clock: re.Match[str]) -> float:
    hours, minutes, seconds = (int(part or 0) for part in clock.groups())
    return float((hours * 60 + minutes) * 60 + seconds)
