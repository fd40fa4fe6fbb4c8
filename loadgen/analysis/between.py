"""How sure the change of a time or a rate between two runs is, by what the two have in common.

With 3 rounds or more on both sides the interval is the t interval of the rounds' values, else a
block bootstrap over requests (paired, where both sides sent the same ones), or a t interval over
batches of them where neighbours resemble one another too long. Where a schedule sent them it is a
jackknife over stretches of it, and so it is for TTFT elsewhere where that is wider; for rates, a t
interval over slices of time. Single runs whose scheduled arrivals differ have none on either: rates
are then those of the arrivals, and a few of their bursts make the times.
"""

from typing import Any

import numpy as np

from loadgen.analysis import differ
from loadgen.analysis.alike import same_plan
from loadgen.analysis.differ import Sample
from loadgen.analysis.rates import served_in_slices
from loadgen.analysis.sides import (
    SLICED,
    SLICES,
    At,
    Metric,
    round_values,
    same_arrivals,
    sample_of,
)
from loadgen.analysis.stats import Interval

ARRIVALS_DIFFER, TOO_FEW = "arrivals differ", "too few requests"
"""Why there is no interval."""

_WITH_WAITS = ("ttft", "e2e")
"""Times that hold a wait in the server's queue."""

_ENOUGH_PAIRS = 0.8
"""Of the requests of the shorter side: with fewer in common, pairs would tell of a part."""


def interval_of(first: At, other: At, metric: Metric) -> tuple[Interval | None, str]:
    """Return the interval of a change around 0, and what it is from."""
    rounds = [round_values(level, metric) for level in (first, other)]
    if min(map(len, rounds)) >= 3:
        return differ.by_rounds(*rounds), "by rounds"
    if not same_arrivals(first, other) and not _beyond_arrivals(first, other, metric):
        return None, ARRIVALS_DIFFER
    if metric.quantile is None:
        if metric.field == "requests_per_s" and first.plan.concurrency and other.plan.concurrency:
            return _of_waves(first, other), "by slices of time"
        slices = SLICED[metric.field]
        return differ.by_rounds(slices(first), slices(other)), "by slices of time"
    baseline, candidate = sample_of(first, metric), sample_of(other, metric)
    quantile = float(metric.quantile.removeprefix("p")) / 100
    if first.arrivals_ns is not None and other.arrivals_ns is not None:
        found = differ.by_stretches(
            baseline, candidate, quantile, together=True, waits=metric.field in _WITH_WAITS
        )
        return found, "by stretches of time" if found else TOO_FEW
    paired = first.plan.level == other.plan.level and same_plan(first.side.run, other.side.run)
    if paired:
        common = np.intersect1d(baseline.place, candidate.place)
        least = min(len(np.unique(sample.place)) for sample in (baseline, candidate))
        paired = len(common) >= _ENOUGH_PAIRS * least > 0
        if paired:
            baseline, candidate = _kept(baseline, common), _kept(candidate, common)
    found = differ.of_percentile(baseline, candidate, quantile, paired=paired)
    method = "paired by request" if paired else "over requests"
    if found is None:
        found = differ.by_batches(baseline, candidate, quantile)
        method = "by batches of requests"
    if found is None:
        return None, TOO_FEW
    if metric.field == "ttft":  # what is admitted in one step waits alike, and later ones for it
        wider = differ.by_stretches(baseline, candidate, quantile, together=paired)
        if wider is not None and wider.high - wider.low > found.high - found.low:
            return wider, "by stretches of time"
    return found, method


def _of_waves(first: At, other: At) -> Interval | None:
    """Return the interval of requests/s of closed levels, whose requests may end in waves.

    How fast they were served varies little from slice to slice; to it comes, on each side and in
    each round, the one wave that ends just inside of W or just outside.
    """
    served = [served_in_slices(level.everything, SLICES) for level in (first, other)]
    found = differ.by_rounds(*served)
    ended = [
        (level.summary.requests_per_s or 0.0) * (level.summary.window_s or 0.0)
        for level in (first, other)
    ]
    if found is None or min(ended) <= 0:
        return None
    slots = [(level.plan.concurrency or 0) * level.summary.rounds for level in (first, other)]
    ratio = (other.summary.requests_per_s or 0.0) / (first.summary.requests_per_s or 1.0)
    wave = ratio * sum(one / of for one, of in zip(slots, ended, strict=True))
    return Interval(low=found.low - wave, high=found.high + wave)


def _beyond_arrivals(first: At, other: At, metric: Metric) -> bool:
    """Say that a figure is the server's own: a rate, where a server had more than it could do."""
    return metric.quantile is None and (first.saturated or other.saturated)


def _kept(sample: Sample, places: "np.ndarray[Any, np.dtype[np.int64]]") -> Sample:
    kept = np.isin(sample.place, places)
    return Sample(values=sample.values[kept], place=sample.place[kept])
