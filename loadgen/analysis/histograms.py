"""A server's histograms over a stretch of time: how much each bucket rose, and what that says.

A histogram's buckets count all observations up to their bound (``le``); each is a counter. What
rose between two readings is the histogram of what was observed between them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.analysis.readings import label_of
from loadgen.analysis.server_side import ServerTime
from loadgen.analysis.stats import least_n
from loadgen.analysis.tracks import Floats, Span, Track, risen

_MS_PER_S = 1000.0
_P50, _P95 = 0.5, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The rising tracks of one histogram, those of all label sets (engines) together.

    buckets: by upper bound in seconds, +inf among them.
    """

    buckets: Mapping[float, Sequence[Track]]
    sums: Sequence[Track]
    counts: Sequence[Track]


def histogram_of(
    buckets: Sequence[Track], *, sums: Sequence[Track], counts: Sequence[Track]
) -> Histogram:
    """Sort the buckets by their bound; one without a readable bound is left out."""
    by_bound: dict[float, list[Track]] = {}
    for track in buckets:
        try:
            bound = float(label_of(track.labels, "le") or "")
        except ValueError:
            continue
        by_bound.setdefault(bound, []).append(track)
    ordered = {bound: by_bound[bound] for bound in sorted(by_bound)}
    return Histogram(buckets=ordered, sums=sums, counts=counts)


def time_over(histogram: Histogram, spans: Sequence[Span]) -> ServerTime | None:
    """Return what was observed in spans, in ms; None where nothing was."""
    total, count = risen(histogram.sums, spans), risen(histogram.counts, spans)
    if total is None or count is None or round(count) < 1:
        return None
    bounds = np.array(list(histogram.buckets))
    below = np.array([risen(tracks, spans) or 0.0 for tracks in histogram.buckets.values()])
    n = round(count)
    found = {
        name: quantile_s(bounds, below, quantile) if n >= least_n(quantile) else None
        for name, quantile in (("p50", _P50), ("p95", _P95))
    }
    in_ms = {name: None if at_s is None else at_s * _MS_PER_S for name, at_s in found.items()}
    return ServerTime(n=n, mean=total / count * _MS_PER_S, **in_ms)


def quantile_s(bounds: Floats, below: Floats, quantile: float) -> float | None:
    """Return a quantile, straight between the bounds of its bucket.

    below: observations up to each bound. None where it falls above the last finite bound, or
    into the lowest bucket: vLLM's queue times begin with one of 300 ms, whose middle is no more
    than a guess where the mean is 0.03 ms.
    """
    if not len(below) or below[-1] <= 0:
        return None
    rank = float(quantile * below[-1])
    place = int(np.searchsorted(below, rank))
    high = float(bounds[place])
    if np.isinf(high) or not place:
        return None
    low, before = float(bounds[place - 1]), float(below[place - 1])
    inside = float(below[place]) - before
    return low + (high - low) * ((rank - before) / inside if inside else 1.0)
