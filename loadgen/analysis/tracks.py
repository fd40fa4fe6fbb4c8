"""Readings of one series in order of time, and what can be said of it over a stretch of time.

A gauge is taken to run straight from one reading to the next. A counter only rises; where it is
smaller than before, the server was restarted, and it has counted from zero since. A series that
is absent from the first readings of its page had counted nothing by then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.readings import FAILED

Floats = np.ndarray[Any, np.dtype[np.float64]]

GONE = 2.0
"""Times the usual distance of two readings: a server that was restarted was gone for longer."""

FASTER = 3.0
"""Times its own fastest: what a counter cannot have risen by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time, ns from the run's epoch."""

    start_ns: float
    end_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """The readings of one series; of a counter as it was read, or risen from 0 (``rising``)."""

    labels: str
    at_ns: Floats
    values: Floats


def sweeps_of(samples: pd.DataFrame, source: str) -> Floats:
    """Return the instants at which a source was read."""
    mine = samples[(samples["source"] == source) & (samples["name"] != FAILED)]
    return np.unique(mine["at_ns"].to_numpy(dtype=np.float64))


def tracks_of(samples: pd.DataFrame, source: str) -> dict[str, list[Track]]:
    """Return every series of a source by its name."""
    mine = samples[(samples["source"] == source) & (samples["name"] != FAILED)]
    found: dict[str, list[Track]] = {}
    for (name, labels), rows in mine.groupby(["name", "labels"], observed=True, sort=False):
        track = Track(
            labels=str(labels),
            at_ns=rows["at_ns"].to_numpy(dtype=np.float64),
            values=rows["value"].to_numpy(),
        )
        found.setdefault(str(name), []).append(track)
    return found


def together(tracks: Sequence[Track], *, mean: bool = False) -> Track:
    """Add up gauges reading by reading, or take their mean."""
    at_ns = np.unique(np.concatenate([track.at_ns for track in tracks]))
    total, seen = np.zeros(len(at_ns)), np.zeros(len(at_ns))
    for track in tracks:
        place = np.searchsorted(at_ns, track.at_ns)
        total[place] += track.values
        seen[place] += 1
    return Track(labels="", at_ns=at_ns, values=total / seen if mean else total)


def rising(track: Track, *, sweeps: Floats | None = None) -> Track:
    """Return how much a counter had risen since it was first seen, over its restarts too.

    sweeps: when its page was read; one that the page shows only later had counted nothing by then.
    """
    at_ns, values = track.at_ns, track.values
    if sweeps is not None:
        before = sweeps[sweeps < at_ns[0]]
        at_ns = np.concatenate((before, at_ns))
        values = np.concatenate((np.zeros(len(before)), values))
    steps = np.diff(values)
    steps = np.where(steps < 0, values[1:], steps)
    risen_by = np.concatenate(([0.0], np.cumsum(steps)))
    return Track(labels=track.labels, at_ns=at_ns, values=risen_by)


def restarts(tracks: Sequence[Track], span: Span) -> int:
    """Count the readings in a span at which some counter was smaller than before."""
    fell = [track.at_ns[1:][np.diff(track.values) < 0] for track in tracks]
    moments = np.unique(np.concatenate(fell)) if fell else np.zeros(0)
    return int(((moments > span.start_ns) & (moments <= span.end_ns)).sum())


def take_turns(tracks: Sequence[Track]) -> bool:
    """Say whether counters fall as no restart makes them: several servers answer at one address.

    One that was restarted counts from zero, after it was gone for a while, and comes back to where
    it was step by step. Where servers take turns a counter falls to what another one has counted,
    and jumps back.
    """
    return any(_jumped_back(track) > 1 or _fell_short_of_zero(track) for track in tracks)


def _jumped_back(track: Track) -> int:
    """Count the falls between two readings in a row that one step made good, by half or more."""
    steps, apart = np.diff(track.values), np.diff(track.at_ns)
    if not (steps < 0).any():
        return 0
    falls = np.flatnonzero((steps < 0) & (apart <= GONE * np.median(apart)))
    ends = [*falls[1:], len(steps)][: len(falls)]
    highest = [steps[fall:end].max() for fall, end in zip(falls, ends, strict=True)]
    return int((np.array(highest) >= -steps[falls] / 2).sum())


def _fell_short_of_zero(track: Track) -> bool:
    """Say whether it fell to more than it can have counted since the reading before."""
    steps, apart = np.diff(track.values), np.diff(track.at_ns)
    if not (steps < 0).any():
        return False
    possible = FASTER * (steps / apart).max() * apart
    return bool(((steps < 0) & (track.values[1:] > possible)).any())


def risen(tracks: Sequence[Track], spans: Sequence[Span]) -> float | None:
    """Return by how much rising tracks rose over spans, straight between readings.

    None where no reading lies on either side of any span.
    """
    known = [track for track in tracks if any(overlap(track, span) > 0 for span in spans)]
    if not known:
        return None
    return sum(_at(track, span.end_ns) - _at(track, span.start_ns)
               for track in known for span in spans)  # fmt: skip


def overlap(track: Track, span: Span) -> float:
    """Return how much of a span, in ns, lies between readings; below zero where none does."""
    return float(min(span.end_ns, track.at_ns[-1]) - max(span.start_ns, track.at_ns[0]))


def covered(track: Track, spans: Sequence[Span]) -> float:
    """Return the share of spans that lies between readings."""
    length = sum(span.end_ns - span.start_ns for span in spans)
    inside = sum(max(0.0, overlap(track, span)) for span in spans)
    return inside / length if length else 0.0


def mean_over(track: Track, spans: Sequence[Span]) -> float | None:
    """Return a gauge's mean over spans, weighted by time; None where nothing covers them."""
    area, length = 0.0, 0.0
    for span in spans:
        if overlap(track, span) > 0:
            cut = _cut(track, span)
            middles = (cut.values[1:] + cut.values[:-1]) / 2
            area += float((middles * np.diff(cut.at_ns)).sum())
            length += float(cut.at_ns[-1] - cut.at_ns[0])
    return area / length if length else None


def values_over(track: Track, spans: Sequence[Span]) -> Floats:
    """Return a gauge's readings in spans, with its values on their edges."""
    parts = [_cut(track, span).values for span in spans if overlap(track, span) > 0]
    return np.concatenate(parts) if parts else np.zeros(0)


def most_over(track: Track, spans: Sequence[Span]) -> float | None:
    """Return the largest value of a gauge in spans; None where nothing covers them."""
    values = values_over(track, spans)
    return float(values.max()) if len(values) else None


def readings_in(sweeps: Floats, spans: Sequence[Span]) -> int:
    """Count the readings in spans, on their edges too."""
    inside = [(sweeps >= span.start_ns) & (sweeps <= span.end_ns) for span in spans]
    return sum(int(found.sum()) for found in inside)


def aligned(windows: Sequence[Span], sweeps: Floats) -> list[Span]:
    """Narrow W to whole readings; a window with fewer than two holds none.

    What happened between a reading before it and one inside may have happened before it.
    """
    found = []
    for window in windows:
        inside = sweeps[(sweeps >= window.start_ns) & (sweeps <= window.end_ns)]
        if len(inside) > 1 and inside[-1] > inside[0]:
            found.append(Span(start_ns=float(inside[0]), end_ns=float(inside[-1])))
    return found


@dataclass(frozen=True, slots=True)
class _Cut:
    at_ns: Floats
    values: Floats


def _cut(track: Track, span: Span) -> _Cut:
    low, high = max(span.start_ns, track.at_ns[0]), min(span.end_ns, track.at_ns[-1])
    inside = (track.at_ns > low) & (track.at_ns < high)
    at_ns = np.concatenate(([low], track.at_ns[inside], [high]))
    return _Cut(at_ns, np.interp(at_ns, track.at_ns, track.values))


def _at(track: Track, moment_ns: float) -> float:
    return float(np.interp(moment_ns, track.at_ns, track.values))
