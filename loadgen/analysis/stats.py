"""Estimators and their uncertainty: percentiles, intervals, shares, steadiness.

Pure functions of numbers. scipy.special is imported where it is used: it costs start-up time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

CONFIDENCE = 0.95
LEAST_FOR_TREND = 50
TREND_BATCHES = 10
_LEAST_BATCHES = 10
_LEAST_ROUNDS = 3
_RESAMPLES = 400
_GROUPS = 500
_BINS = 4096
_CLEAR_REST, _CLEAR_BEFORE = 0.01, 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Two bounds of an estimate."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """Positions, counted from 1, of the ordered samples that bound a percentile."""

    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """What MSER-5 says of a series: drop the first ``cut`` samples; ``steady`` or still moving."""

    cut: int
    steady: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """A line through a series: its value at the start, its growth to the end, the slope's t."""

    start: float
    growth: float
    t: float

    @property
    def share(self) -> float | None:
        """Growth as a share of the start; None where the line starts at or below zero."""
        return self.growth / self.start if self.start > 0 else None


def least_n(quantile: float) -> int:
    """Return the samples needed to print a percentile: 1 up to P90, then 1 / (1 - q).

    P95 needs 20 and P99 100: with fewer, the figure is the largest sample by another name.
    """
    return 1 if quantile <= 0.9 else math.ceil(round(1 / (1 - quantile), 6))


def least_clusters(quantile: float) -> int:
    """Return the clusters below which a bootstrap interval is too narrow to be shown.

    20 for P50 and P90, 40 for P95, 100 for P99, 1 / (1 - q) beyond: with these the intervals
    hold the truth in 90 % of seeded draws of strongly clustered values, with fewer they do not.
    """
    tail = 1 / (1 - quantile)
    return math.ceil(round(max(20.0, tail, min(40.0, 2 * tail)), 6))


def percentile(ordered: Floats, quantile: float) -> float:
    """Return the percentile of sorted samples by linear interpolation at q·(n - 1).

    Samples may end in +inf; a percentile that touches one is +inf.
    """
    place = quantile * (len(ordered) - 1)
    below = math.floor(place)
    share = place - below
    if share == 0:
        return float(ordered[below])
    low, high = float(ordered[below]), float(ordered[below + 1])
    return high if math.isinf(high) else low + share * (high - low)


def interval_ranks(n: float, quantile: float, *, of: int | None = None) -> Ranks | None:
    """Return the ranks whose samples hold the percentile with 95 % confidence, or None.

    l = bdtrik(α/2, n, q), u = bdtrik(1 - α/2, n, q) + 1, both rounded up to ranks, valid for any
    distribution; None unless l ≥ 1 and u ≤ n (first possible at n = 6, 36, 72 and 368 for P50,
    P90, P95 and P99). Where ``n`` is an effective number for ``of`` correlated samples, the
    ranks are stretched to those, outwards.
    """
    from scipy.special import bdtrik

    if n < 1:
        return None
    tail = (1 - CONFIDENCE) / 2
    low = math.ceil(bdtrik(tail, n, quantile))
    high = math.ceil(bdtrik(1 - tail, n, quantile)) + 1
    if low < 1 or high > n:
        return None
    stretch = (of or n) / n
    return Ranks(
        low=max(1, math.floor(low * stretch)), high=min(int(of or n), math.ceil(high * stretch))
    )


def effective_n(values: Floats) -> float:
    """Return how many independent samples a series is worth: n·(1 - ρ₁)/(1 + ρ₁), or fewer.

    ρ₁ is the lag-one autocorrelation in the order given. It counts only where it is larger than
    chance makes it (one-sided 95 %: 1.645/√n); otherwise the answer is n. Memory that is weak from
    one sample to the next but long (a queue before several servers) hides from ρ₁: where the means
    of batches of √n samples spread clearly wider than independent samples would, their spread
    decides.
    """
    n = len(values)
    if n < 3 or not np.isfinite(values).all() or values.max() == values.min():
        return float(n)
    centred = values - values.mean()
    worth = n * _worth_of_one(centred)
    size = math.isqrt(n)
    number = n // size
    if number < _LEAST_BATCHES:
        return worth
    means = centred[: number * size].reshape(number, size).mean(axis=1)
    spread = float(means.var(ddof=1))
    if spread == 0:
        return worth
    by_batches = n * float(centred.var(ddof=1)) / (size * spread) * _worth_of_one(means)
    by_chance = 1 + 1.645 * math.sqrt(2 / (number - 1))
    return by_batches if by_batches * by_chance < worth else worth


def _worth_of_one(values: Floats) -> float:
    """Return (1 - ρ₁)/(1 + ρ₁), or 1 where ρ₁ is no larger than chance makes it."""
    centred = values - values.mean()
    spread = float(np.dot(centred, centred))
    if spread == 0:
        return 1.0
    rho = float(np.dot(centred[1:], centred[:-1])) / spread
    return 1.0 if rho <= 1.645 / math.sqrt(len(values)) else (1 - rho) / (1 + rho)


@cache
def least_for_interval(quantile: float) -> int:
    """Return the independent samples from which a percentile has an interval: 6, 36, 72, 368."""
    n = 2
    while interval_ranks(n, quantile) is None:
        n += 1
    return n


def t_interval(values: Floats) -> Interval | None:
    """Return mean ± t·s/√k, 95 %: of a few independent values, one from each round; None under 3.

    t from Student's distribution with k - 1 degrees of freedom.
    """
    k = len(values)
    if k < _LEAST_ROUNDS or not np.isfinite(values).all():
        return None
    half = student_t(k - 1, 1 - (1 - CONFIDENCE) / 2) * float(values.std(ddof=1)) / math.sqrt(k)
    mean = float(values.mean())
    return Interval(low=mean - half, high=mean + half)


def student_t(freedom: float, share: float) -> float:
    """Return the quantile of Student's t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


def trend(at: Floats, values: Floats) -> Trend | None:
    """Fit a line through the means of 10 equal batches; None under 50 samples.

    Batches make neighbours that resemble one another count once; t is the slope over its error,
    with 8 degrees of freedom.
    """
    size = len(values) // TREND_BATCHES
    if len(values) < LEAST_FOR_TREND:
        return None
    kept = size * TREND_BATCHES
    x = at[:kept].reshape(TREND_BATCHES, size).mean(axis=1)
    y = values[:kept].reshape(TREND_BATCHES, size).mean(axis=1)
    x_off, y_off = x - x.mean(), y - y.mean()
    squares = float(np.dot(x_off, x_off))
    if squares == 0:
        return None
    slope = float(np.dot(x_off, y_off)) / squares
    rest = y_off - slope * x_off
    error = math.sqrt(float(np.dot(rest, rest)) / (TREND_BATCHES - 2) / squares)
    level = float(y.mean() + slope * (at[0] - x.mean()))
    t = slope / error if error > 1e-12 * abs(slope) else math.copysign(math.inf, slope)
    return Trend(start=level, growth=slope * float(at[-1] - at[0]), t=0.0 if slope == 0 else t)


def wilson(hits: int, n: int, *, confidence: float = CONFIDENCE) -> Interval | None:
    """Return Wilson's score interval of a share; None without samples."""
    from scipy.special import ndtri

    if n == 0:
        return None
    z = float(ndtri(1 - (1 - confidence) / 2))
    share, weight = hits / n, z * z / n
    centre = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * math.sqrt(share * (1 - share) / n + weight / (4 * n))
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    return Interval(low=low, high=1.0 if hits == n else min(1.0, centre + half))


def mser5(values: Floats) -> Truncation:
    """Find how much of the start of a series is not yet steady, by MSER-5.

    Y are the means of batches of 5; d* is the smallest argmin over d ≤ m/2 of
    Σ_{j>d}(Y_j - Ȳ_d)² / (m - d)². d* at m/2 means that the series never became steady.
    Under 10 samples (2 batches) nothing is cut.
    """
    spread = _spread_after(values)
    if spread is None:
        return Truncation(cut=0, steady=True)
    # A flat series differs from itself by rounding only: that is a tie, and the smallest d wins.
    best = int(np.flatnonzero(spread <= spread.min() + 1e-12 * abs(spread.max()))[0])
    return Truncation(cut=best * 5, steady=best < len(values) // 5 // 2 or best == 0)


def beginning(values: Floats) -> Truncation:
    """Find what to cut by MSER-5, also where only what follows a clear beginning is unsteady.

    Beside 16 requests that waited 5 s, all others are alike; yet d* is the best place among *them*,
    by their noise, and in 4 of 100 short series that is m/2: nothing would be cut. There the
    smallest d that brings 99 % of what d* would is cut, if it is at most 0.4 m (a ramp has no
    such place), and MSER-5 judges the rest by itself. What is not steady even then cuts no more.
    """
    found = mser5(values)
    if found.steady:
        return found
    clear = _clear_beginning(values)
    rest = mser5(values[clear:])
    if clear and rest.steady and clear + rest.cut <= len(values) // 2:
        return Truncation(cut=clear + rest.cut, steady=True)
    return Truncation(cut=clear, steady=False)


def _clear_beginning(values: Floats) -> int:
    spread = _spread_after(values)
    if spread is None:
        return 0
    gain = spread[0] - spread.min()
    first = int(np.flatnonzero(spread <= spread.min() + _CLEAR_REST * gain)[0])
    return first * 5 if first <= _CLEAR_BEFORE * (len(values) // 5) else 0


def _spread_after(values: Floats) -> Floats | None:
    """Return MSER-5's statistic at each d ≤ m/2; None under 2 batches."""
    batches = len(values) // 5
    if batches < 2:
        return None
    means = np.asarray(values[: batches * 5], dtype=np.float64).reshape(batches, 5).mean(axis=1)
    means = means - means.mean()  # the spread is the same; sums of squares keep their digits
    left = batches - np.arange(batches // 2 + 1)
    sums = np.cumsum(means[::-1])[::-1][: len(left)]
    squares = np.cumsum((means**2)[::-1])[::-1][: len(left)]
    return np.asarray((squares - sums**2 / left) / left.astype(np.float64) ** 2)


def cluster_intervals(
    values: Floats, cluster: Ints, quantiles: Sequence[float]
) -> list[Interval | None]:
    """Bootstrap intervals of percentiles of values that come in clusters (gaps of requests).

    Whole clusters are drawn with replacement, 400 times, from a fixed seed. More than 500
    clusters are first dealt at random into 500 groups, and more than 4,096 values are told apart
    only by 4,096 steps, denser in the tail; both keep the cost independent of the run's length.
    None where there are too few clusters for the percentile (``least_clusters``).
    """
    clusters = np.unique(cluster, return_inverse=True)[1]
    number = int(clusters.max()) + 1 if len(clusters) else 0
    if number < least_clusters(0.5):
        return [None for _ in quantiles]
    rng = np.random.default_rng(0)
    groups = min(number, _GROUPS)
    group_of = rng.permutation(number) % groups
    order = np.argsort(values, kind="stable")
    edges = _step_ends(len(values))
    step = np.repeat(np.arange(len(edges)), np.diff(edges, prepend=0))
    table = np.zeros((groups, len(edges)))
    np.add.at(table, (group_of[clusters[order]], step), 1)
    draws = rng.multinomial(groups, np.full(groups, 1 / groups), size=_RESAMPLES)
    reached = np.cumsum(draws.astype(np.float64) @ table, axis=1)
    ends = np.asarray(values, dtype=np.float64)[order][edges - 1]
    return [
        _spread_of(reached, ends, quantile) if number >= least_clusters(quantile) else None
        for quantile in quantiles
    ]


def settled_by(misses: int, *, quantile: float, confidence: float = CONFIDENCE) -> int:
    """Return the requests with which ``misses`` of them still prove an objective met.

    n = h + t, h the smallest with betainc(h, t + 1, p) ≤ 1 - c (MLPerf LoadGen's early stopping).
    """
    low, high = 0, 16
    while not is_met(misses + high, misses, quantile=quantile, confidence=confidence):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        met = is_met(misses + middle, misses, quantile=quantile, confidence=confidence)
        low, high = (low, middle) if met else (middle, high)
    return misses + high


def is_met(n: int, misses: int, *, quantile: float, confidence: float = CONFIDENCE) -> bool:
    """Say whether ``misses`` of ``n`` prove that a share ``quantile`` lies within the bound."""
    from scipy.special import betainc

    hits = n - misses
    return hits > 0 and bool(betainc(hits, misses + 1, quantile) <= 1 - confidence)


def is_missed(n: int, misses: int, *, quantile: float, confidence: float = CONFIDENCE) -> bool:
    """Say whether the exact (Clopper-Pearson) lower bound of the miss rate exceeds 1 - p."""
    from scipy.special import betaincinv

    if misses == 0:
        return False
    return bool(betaincinv(misses, n - misses + 1, 1 - confidence) > 1 - quantile)


def _step_ends(n: int) -> Ints:
    """Return where the steps end that sorted values are counted in: each value, or 4,096."""
    if n <= _BINS:
        return np.arange(1, n + 1)
    even = np.linspace(0, 1, _BINS // 2 + 1)[1:]
    tail = 1 - np.geomspace(0.5, 1e-5, _BINS // 2)
    ends = np.unique(np.ceil(np.concatenate((even, tail)) * n).astype(np.int64))
    return np.clip(ends, 1, n)


def _spread_of(reached: Floats, ends: Floats, quantile: float) -> Interval:
    """Return the middle 95 % of one percentile over all resamples (rows of ``reached``)."""
    wanted = quantile * reached[:, -1]
    places = np.minimum((reached < wanted[:, None]).sum(axis=1), len(ends) - 1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ends[places], [tail, 1 - tail])
    return Interval(low=float(low), high=float(high))
