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
_FIRST_BATCHES = 3
_LEAST_BATCHES = 10
_LEAST_ROUNDS = 3
_BY_CHANCE = 0.01
_TIME_BATCHES = (5, 10)
"""Long ones, so that what lasts (a batch that is full for a while) hardly reaches from one to the
next; of two lengths, since either alone is at times too small by chance."""
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
    """A line through a series: its growth from start to end, the slope's t.

    first: what the series begins with, the median of its first three batches. A line through what
    rises late begins lower, even below zero.
    """

    first: float
    growth: float
    t: float

    @property
    def share(self) -> float | None:
        """Growth as a share of what the series begins with; None where that is nothing."""
        return self.growth / self.first if self.first > 0 else None


def least_n(quantile: float) -> int:
    """Return the samples needed to print a percentile: 1 up to P90, then 1 / (1 - q).

    P95 needs 20 and P99 100: with fewer, the figure is the largest sample by another name.
    """
    return 1 if quantile <= 0.9 else math.ceil(round(1 / (1 - quantile), 6))


def least_clusters(quantile: float) -> int:
    """Return the clusters below which an interval of clustered values is too narrow to be shown.

    20 for P50 and P90, 40 for P95, 100 for P99, 1 / (1 - q) beyond: with these bootstrap intervals
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


def error_of_median(values: Floats) -> float | None:
    """Return √(π/2)·s/√n_eff, as of a normal sample, in the order given; None under 2 samples."""
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    return math.sqrt(math.pi / 2) * float(values.std(ddof=1)) / math.sqrt(effective_n(values))


def spread_by_chance(errors: Floats) -> float:
    """Return the spread s that k equal means, of such standard errors, exceed once in 100 times.

    s² = χ²(0.99, k - 1) / (k - 1) times the mean squared error.
    """
    from scipy.special import chdtri

    freedom = len(errors) - 1
    return math.sqrt(float(chdtri(freedom, _BY_CHANCE)) / freedom * float(np.mean(errors**2)))


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
    first = float(np.median(y[:_FIRST_BATCHES]))
    t = slope / error if error > 1e-12 * abs(slope) else math.copysign(math.inf, slope)
    return Trend(first=first, growth=slope * float(at[-1] - at[0]), t=0.0 if slope == 0 else t)


def wilson(hits: float, n: float, *, confidence: float = CONFIDENCE) -> Interval | None:
    """Return Wilson's score interval of a share; None without samples.

    Neither need be whole: n may be what samples that resemble one another are worth.
    """
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


def worth_in_clusters(
    values: Floats, quantiles: Sequence[float], *, cluster: Ints, at: Ints
) -> list[float]:
    """Return how many independent samples values that come in clusters are worth, per percentile.

    q(1 - q) / V, V the variance of the share of values below the percentile: the largest of three,
    over the clusters (the requests whose gaps they are) and over 5 and 10 batches in time. Streams
    served in one batch share each of its steps, so that gaps of unlike requests are alike where
    they end ``at`` one time. 0 where there are too few clusters (``least_clusters``).
    """
    number = int(np.count_nonzero(np.bincount(cluster)))
    groupings = [(cluster, number), *((_batch_in_time(at, n), n) for n in _TIME_BATCHES)]
    worth = []
    for quantile in quantiles:
        if number < least_clusters(quantile):
            worth.append(0.0)
            continue
        off = _below(values, quantile)
        most = max(_variance_of_mean(off, group, of=n) for group, n in groupings)
        independent = quantile * (1 - quantile)
        n = len(values)
        worth.append(n if most * n <= independent else independent / most)
    return worth


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


def _below(values: Floats, quantile: float) -> Floats:
    """Return 1 for each value below a percentile, 0 above, a share where equal; less their mean."""
    at = np.quantile(values, quantile)
    below, equal = (values < at).astype(np.float64), values == at
    number = int(np.count_nonzero(equal))
    if number:
        # Which of equal values count as below must not depend on when they came.
        below[equal] = min(1.0, max(0.0, (quantile * len(values) - below.sum()) / number))
    return np.asarray(below - below.mean())


def _batch_in_time(at: Ints, batches: int) -> Ints:
    """Return the batch of each moment; as many in each, but for those of one moment together."""
    places = np.arange(1, batches) * len(at) // batches
    return np.searchsorted(np.partition(at, places)[places], at, side="right")


def _variance_of_mean(off: Floats, group: Ints, *, of: int) -> float:
    """Return the variance of the mean of values, all less it, whose groups are independent.

    Few groups tell it badly: it is widened as Student's t is wider than the normal distribution.
    """
    from scipy.special import ndtri

    share = 1 - (1 - CONFIDENCE) / 2
    wider = (student_t(of - 1, share) / float(ndtri(share))) ** 2
    sums = np.bincount(group, weights=off) / len(off)
    return wider * of / (of - 1) * float(np.dot(sums, sums))
