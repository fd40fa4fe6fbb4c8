"""Samples → the percentiles of a report, with what is not known said so."""

from typing import Any

import numpy as np

from loadgen.analysis.stats import (
    Floats,
    Interval,
    Ints,
    effective_n,
    interval_ranks,
    least_n,
    percentile,
    worth_in_clusters,
)
from loadgen.analysis.summary import Distribution, Quantile
from loadgen.units import NS_PER_MS

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def distribution(values: Floats, *, at_least: Floats | None = None) -> Distribution:
    """Summarise samples given in order of due; NaN are left out.

    at_least: further samples known only to be longer than this (the ages of unfinished requests).
    Mean, min and max of censored samples are lower bounds, too.
    """
    known, bounds = _known(values), _known(at_least)
    low, high = _orders(known, bounds)
    if not len(low):
        return Distribution()
    worth = _worth(known, len(low))
    return Distribution(
        n=len(low),
        mean=float(low.mean()),
        min=float(low[0]),
        max=float(low[-1]),
        censored=len(bounds),
        effective_n=worth,
        **_percentiles(low, high, worth),
    )


def with_failures(values: Floats, *, at_least: Floats, failures: int) -> Distribution:
    """Summarise samples with each failure counted as +∞: a percentile among them is "> x"."""
    known, bounds = _known(values), _known(at_least)
    if not failures:
        return distribution(known, at_least=bounds)
    endless = np.full(failures, np.inf)
    low, high = (np.concatenate((order, endless)) for order in _orders(known, bounds))
    worth = _worth(known, len(low))
    return Distribution(
        n=len(low),
        min=_finite(low[0]),
        censored=len(bounds) + failures,
        effective_n=worth,
        **_percentiles(low, high, worth),
    )


def quantile_of(values: Floats, at_least: Floats, quantile: float) -> Quantile:
    """Return any one percentile of samples; empty where there are too few to print it."""
    known, bounds = _known(values), _known(at_least)
    low, high = _orders(known, bounds)
    return quantile_between(low, high, quantile, worth=_worth(known, len(low)))


def quantile_between(low: Floats, high: Floats, quantile: float, *, worth: float) -> Quantile:
    """Return one percentile of sorted samples, some of them known only from below.

    low: every sample, censored ones at their bound; high: the same with these at +∞. The truth
    lies between the two percentiles: where they agree it is known, else the figure is "> low".
    The interval's lower end comes from ``low``, its upper end from ``high`` (None = open above).
    worth: the effective number of samples.
    """
    n = len(low)
    if n < least_n(quantile):
        return Quantile()
    value = percentile(low, quantile)
    above = value != percentile(high, quantile) or np.isinf(value)
    if np.isinf(value):
        finite = low[np.isfinite(low)]
        value = float(finite[-1]) if len(finite) else np.nan
    ranks = interval_ranks(worth, quantile, of=n)
    interval = (
        Interval(low=float(low[ranks.low - 1]), high=float(high[ranks.high - 1]))
        if ranks is not None
        else None
    )
    return Quantile(value=_finite(value), above=bool(above), **_ends(interval))


def pooled_gaps_ms(gap_ns: Floats, *, request: Ints, at_ns: Ints) -> Distribution:
    """Summarise gaps pooled over requests, each with the moment it ended.

    effective_n: what they are worth for the percentile for which it is least.
    """
    gaps = gap_ns / NS_PER_MS
    if not len(gaps):
        return Distribution()
    ordered = np.sort(gaps)
    worth = worth_in_clusters(gaps, list(QUANTILES.values()), cluster=request, at=at_ns)
    quantiles: dict[str, Any] = {
        name: quantile_between(ordered, ordered, q, worth=each)
        for (name, q), each in zip(QUANTILES.items(), worth, strict=True)
    }
    return Distribution(
        n=len(gaps),
        requests=len(np.unique(request)),
        effective_n=min((each for each in worth if each), default=None),
        mean=float(gaps.mean()),
        min=float(ordered[0]),
        max=float(ordered[-1]),
        **quantiles,
    )


def quantile_of_gaps(gaps_ms: Floats, quantile: float, *, request: Ints, at_ns: Ints) -> Quantile:
    """Return any one percentile of gaps pooled over requests; empty where there are too few."""
    if not len(gaps_ms):
        return Quantile()
    (worth,) = worth_in_clusters(gaps_ms, [quantile], cluster=request, at=at_ns)
    ordered = np.sort(gaps_ms)
    return quantile_between(ordered, ordered, quantile, worth=worth)


def without_intervals(values: Floats) -> Distribution:
    """Summarise many samples that come in clusters and need no interval (the lag of each read)."""
    known = np.sort(_known(values))
    if not len(known):
        return Distribution()
    quantiles: dict[str, Any] = {
        name: Quantile(value=percentile(known, q))
        for name, q in QUANTILES.items()
        if len(known) >= least_n(q)
    }
    return Distribution(
        n=len(known),
        mean=float(known.mean()),
        min=float(known[0]),
        max=float(known[-1]),
        **quantiles,
    )


def _percentiles(low: Floats, high: Floats, worth: float) -> dict[str, Any]:
    return {name: quantile_between(low, high, q, worth=worth) for name, q in QUANTILES.items()}


def _worth(known: Floats, n: int) -> float:
    """Return the effective number of n samples, judged by those that are known exactly."""
    return effective_n(known) * n / len(known) if len(known) else float(n)


def _known(values: Floats | None) -> Floats:
    numbers = np.asarray([] if values is None else values, dtype=np.float64)
    return numbers[~np.isnan(numbers)]


def _orders(known: Floats, bounds: Floats) -> tuple[Floats, Floats]:
    """Sort the samples twice: with lower bounds as they are, and with them at +∞."""
    low = np.sort(np.concatenate((known, bounds)))
    return low, np.sort(np.concatenate((known, np.full(len(bounds), np.inf))))


def _ends(interval: Interval | None) -> dict[str, Any]:
    if interval is None:
        return {}
    return {"low": _finite(interval.low), "high": _finite(interval.high)}


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
