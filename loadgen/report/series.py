"""What a picture is made of: points, axes, hover lines. No markup, no plotting library.

Colours are names here ("first", "second", "ramp 0.5"); the page decides what they look like.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log10

from loadgen.analysis.summary import LevelSummary
from loadgen.report.text import plain

_TICK_GAP = 0.045  # least distance of two ticks, as a share of the axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """One level's values of a metric in ms, and how many requests were cut before having one."""

    values: Sequence[float] = ()
    censored: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis: its title with the unit; ``ticks`` pair a position with its text."""

    title: str
    kind: str = "linear"  # linear, log, category
    ticks: tuple[tuple[float, str], ...] = ()
    low: float | None = None  # in the axis' own unit, on a log axis too
    high: float | None = None
    as_percent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One series. y is None where there is no number; low and high bound its 95 % interval."""

    name: str
    x: tuple[float | str | None, ...]
    y: tuple[float | None, ...]
    hover: tuple[tuple[str, ...], ...] = ()
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    marks: tuple[str, ...] = ()  # per point: "", "above" (the truth is higher), "invalid"
    labels: tuple[str, ...] = ()  # text beside the points
    colour: str = "first"
    draw: str = "line"  # line, step, dots, bar, specks (many faint dots), thread (no markers)
    dashed: bool = False
    unit: str = ""  # of y, where a pointer rests on a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture: what it shows in a title, how to read it in a caption."""

    key: str
    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    caption: str = ""
    legend: str = ""  # what the lines' names are: "concurrency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One strip of a course: what it shows and in which unit, its y axis, its lines."""

    title: str
    y: Axis
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shade:
    """A stretch of the x axis behind all panels; ``strong`` where it is what was measured."""

    low: float
    high: float
    strong: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Several strips over one x axis, so that what happened at once stands one above the other.

    labels: texts above the strips at a place on the x axis.
    """

    key: str
    title: str
    x: Axis
    panels: tuple[Panel, ...]
    shades: tuple[Shade, ...] = ()
    labels: tuple[tuple[float, str], ...] = ()
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The levels in order along one x axis."""

    axis: Axis
    levels: tuple[LevelSummary, ...]
    x: tuple[float | str, ...]


def place_levels(levels: Sequence[LevelSummary]) -> Place:
    """Choose the x axis: concurrency in powers of two, the offered rate, or the levels by name."""
    asked = [level.concurrency for level in levels if level.concurrency is not None]
    rates = [level.rate for level in levels if level.rate is not None]
    if len(set(asked)) == len(levels):
        ordered = sorted(levels, key=lambda level: level.concurrency or 0)
        return Place(axis=_log_axis(sorted(asked)), levels=tuple(ordered), x=tuple(sorted(asked)))
    if len(set(rates)) == len(levels):
        ordered = sorted(levels, key=lambda level: level.rate or 0)
        return Place(axis=_rate_axis(sorted(rates)), levels=tuple(ordered), x=tuple(sorted(rates)))
    return Place(
        axis=Axis(title="level", kind="category"), levels=tuple(levels), x=level_names(levels)
    )


def level_names(levels: Sequence[LevelSummary]) -> tuple[str, ...]:
    """Name the levels; numbered where two would have one name."""
    names = [plain(level.label) for level in levels]
    if len(set(names)) == len(names):
        return tuple(names)
    return tuple(f"{number}: {name}" for number, name in enumerate(names, 1))


def _log_axis(values: Sequence[int]) -> Axis:
    return Axis(
        title="concurrency (requests kept in flight), log scale",
        kind="log",
        ticks=_ticks([log10(value) for value in values], values),
        low=values[0] * 0.78,
        high=values[-1] * 1.28,
    )


def _rate_axis(values: Sequence[float]) -> Axis:
    return Axis(
        title="offered rate, requests/s",
        ticks=_ticks(values, values),
        low=0,
        high=values[-1] * 1.08,
    )


def _ticks(positions: Sequence[float], values: Sequence[float]) -> tuple[tuple[float, str], ...]:
    """Label the levels' own values, leaving out those too near to the one before."""
    least = (positions[-1] - positions[0]) * _TICK_GAP
    kept: list[tuple[float, str]] = []
    last = float("-inf")
    for position, value in zip(positions, values, strict=True):
        if position - last > least:
            kept.append((value, f"{value:g}"))
            last = position
    return tuple(kept)
