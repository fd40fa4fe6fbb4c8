"""How far two samples differ, and how sure that is: relative changes with 95 % intervals.

Every interval stands around the change of the figures that the reports show; what is estimated
here is how far that change would scatter if both runs were measured again.
"""

import math
from dataclasses import dataclass

import numpy as np

from loadgen.analysis.stats import (
    CONFIDENCE,
    Floats,
    Interval,
    Ints,
    effective_n,
    least_clusters,
    least_n,
    percentile,
    student_t,
    wilson,
)

_TAIL = (1 - CONFIDENCE) / 2
_RESAMPLES = 400
_MOST_BLOCKS = 250
_BINS = 2048
_BATCHES, _LEAST_BATCHES = 10, 5
_CORRELATION_LENGTHS = 3
"""Blocks last so many times as long as neighbours resemble one another."""
_STRETCHES, _FEWER_STRETCHES = (5, 10), (3, 5, 10)
_FEW, _MUCH_TOO_FEW = 12.0, 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Values of one side, each with the place of the request it belongs to.

    place: numbers that grow with time; the values of one request (its gaps) share one. Where both
    sides sent the same requests, equal places are the same request.
    """

    values: Floats
    place: Ints


def by_rounds(baseline: Floats, candidate: Floats) -> Interval | None:
    """Return a t interval (Welch) of the relative change, from the values of the rounds.

    Around 0: the half width is t · √(s_c²/k_c + (c/b)² s_b²/k_b) / b. None under 3 rounds.
    """
    if min(len(baseline), len(candidate)) < 3 or baseline.mean() <= 0:
        return None
    b, c = float(baseline.mean()), float(candidate.mean())
    half = _half_width(baseline * (c / b**2), candidate / b)
    return Interval(low=-half, high=half)


def is_more(less: Floats, more: Floats) -> bool:
    """Say whether the mean of ``more`` is the higher one: all of the t interval (Welch) is."""
    if min(len(less), len(more)) < 2:
        return False
    return float(more.mean() - less.mean()) > _half_width(less, more)


def of_percentile(
    baseline: Sample, candidate: Sample, quantile: float, *, paired: bool
) -> Interval | None:
    """Return a block bootstrap interval of the relative change of a percentile, around 0.

    Blocks of neighbouring requests are drawn with replacement, 400 times, from a fixed seed; of
    paired sides the same blocks of both. A block is one request where neighbours do not resemble
    one another, else three times as long as they do. None where there are too few blocks for the
    percentile (``least_clusters``).
    """
    if not (len(baseline.values) and len(candidate.values)):
        return None
    sides = [baseline, candidate]
    length = max(_block_length(side) for side in sides)
    blocks = [_blocks(side, length) for side in sides]
    if paired:
        together = np.unique(np.concatenate([side.place for side in sides]))
        blocks = [_blocks_of(side, together, length) for side in sides]
    rng = np.random.default_rng(0)
    draws: list[Floats] = []
    for index, block in enumerate(blocks):
        number = int(block.max()) + 1
        if number < least_clusters(quantile):
            return None
        if paired and index:
            draws.append(draws[0])
        else:
            drawn = rng.multinomial(number, np.full(number, 1 / number), size=_RESAMPLES)
            draws.append(drawn.astype(np.float64))
    below, above = (
        _percentiles(side.values, block, quantile, draws=drawn)
        for side, block, drawn in zip(sides, blocks, draws, strict=True)
    )
    if not (below > 0).all():
        return None
    changes = above / below
    low, middle, high = np.nanquantile(changes, [_TAIL, 0.5, 1 - _TAIL])
    return Interval(low=float(low - middle), high=float(high - middle))


def by_batches(baseline: Sample, candidate: Sample, quantile: float) -> Interval | None:
    """Return a t interval of the relative change of a percentile, around 0, from batches in time.

    Each side is cut into up to 10 batches of neighbouring requests, each with its own percentile;
    neighbours that resemble one another then count once. None under 5 batches.
    """
    batches = [_batch_percentiles(side, quantile) for side in (baseline, candidate)]
    if min(map(len, batches)) < _LEAST_BATCHES:
        return None
    return by_rounds(*batches)


def by_stretches(
    baseline: Sample, candidate: Sample, quantile: float, *, together: bool, waits: bool = False
) -> Interval | None:
    """Return a jackknife interval of the relative change of a percentile, around 0.

    Stretches of time are left out in turn; the error of the change's logarithm is √((k - 1)/k ·
    Σ(θ_j - θ̄)²) with k - 1 degrees of freedom, the larger one of 5 and 10 stretches. None where
    either side has fewer requests than ``least_clusters``.

    together: both had the same scheduled arrivals. Then the same stretch is left out of both, so
    that what the arrivals do to both is in neither's favour.

    waits: the values hold waits in a queue, which remembers. Where the requests' own changes are
    worth fewer than 2 / (1 - q) independent ones (or 12), 3 stretches count too; under an eighth of
    that, None.
    """
    if min(len(np.unique(one.place)) for one in (baseline, candidate)) < least_clusters(quantile):
        return None
    enough = max(_FEW, 2 / (1 - quantile))
    worth = _worth_of_changes(baseline, candidate) if waits else enough
    if worth < _MUCH_TOO_FEW * enough:
        return None
    numbers = _STRETCHES if worth >= enough else _FEWER_STRETCHES
    sides = (baseline, candidate)
    half = max(_jackknifed(sides, quantile, number, together=together) for number in numbers)
    before, after = (percentile(np.sort(side.values), quantile) for side in sides)
    if not (math.isfinite(half) and before > 0):
        return None
    ratio = after / before
    return Interval(low=ratio * math.expm1(-half), high=ratio * math.expm1(half))


def of_shares(baseline: tuple[int, int], candidate: tuple[int, int]) -> Interval | None:
    """Return the interval of a difference of two shares, each given as (hits, n).

    Newcombe's: the Wilson intervals of both, joined; not around 0, but around the difference.
    """
    first, second = wilson(*baseline), wilson(*candidate)
    if first is None or second is None:
        return None
    p, q = baseline[0] / baseline[1], candidate[0] / candidate[1]
    return Interval(
        low=q - p - math.hypot(q - second.low, first.high - p),
        high=q - p + math.hypot(second.high - q, p - first.low),
    )


def _half_width(first: Floats, second: Floats) -> float:
    """Return t · √(s₁²/k₁ + s₂²/k₂), of two values or more each."""
    errors = [float(one.var(ddof=1)) / len(one) for one in (first, second)]
    both = sum(errors)
    if both == 0:
        return 0.0
    parts = [e**2 / (len(one) - 1) for e, one in zip(errors, (first, second), strict=True)]
    return student_t(both**2 / sum(parts), 1 - _TAIL) * math.sqrt(both)


def _jackknifed(
    sides: tuple[Sample, Sample], quantile: float, stretches: int, *, together: bool
) -> float:
    """Return t times the error of the logarithm of a ratio of percentiles; inf where one is 0."""
    places = [np.unique(side.place) for side in sides]
    if together:
        places = [np.union1d(*places)] * 2
    parts = []
    for side, of in zip(sides, places, strict=True):
        order = np.argsort(side.values, kind="stable")
        stretch = _blocks_of(side, of, max(len(of) // stretches, 1))[order]
        rests = [side.values[order][stretch != one] for one in range(stretches)]
        if not all(len(rest) and percentile(rest, quantile) > 0 for rest in rests):
            return math.inf
        parts.append(np.log([percentile(rest, quantile) for rest in rests]))
    if together:
        parts = [parts[1] - parts[0]]
    squares = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    error = math.sqrt((stretches - 1) / stretches * squares)
    return student_t(stretches - 1, 1 - _TAIL) * error


def _worth_of_changes(baseline: Sample, candidate: Sample) -> float:
    """Return how many independent changes those of the requests that both sides have are worth."""
    common = np.intersect1d(baseline.place, candidate.place)
    before, after = (
        _of_requests(side)[np.isin(np.unique(side.place), common)] for side in (baseline, candidate)
    )
    if not len(common) or min(before.min(), after.min()) <= 0:
        return 0.0
    return min(effective_n(after - before), effective_n(np.log(after) - np.log(before)))


def _of_requests(side: Sample) -> Floats:
    """Return the mean of each request's values, in the order of places."""
    starts = np.flatnonzero(np.diff(side.place, prepend=side.place[0] - 1))
    return np.asarray(np.add.reduceat(side.values, starts) / np.diff([*starts, len(side.values)]))


def _block_length(side: Sample) -> int:
    """Return how many requests a block needs, by how much neighbours resemble one another."""
    of_request = _of_requests(side)
    n = len(of_request)
    worth = effective_n(of_request)
    natural = 1 if worth >= n else math.ceil(_CORRELATION_LENGTHS * n / worth)
    return max(natural, math.ceil(n / _MOST_BLOCKS))


def _batch_percentiles(side: Sample, quantile: float) -> Floats:
    places = np.unique(side.place)
    number = min(_BATCHES, len(places) // least_n(quantile))
    if not number:
        return np.empty(0)
    batch = _blocks_of(side, places, len(places) // number)
    parts = [np.sort(side.values[batch == one]) for one in range(number)]
    return np.array([percentile(part, quantile) for part in parts if len(part)])


def _blocks(side: Sample, length: int) -> Ints:
    return _blocks_of(side, np.unique(side.place), length)


def _blocks_of(side: Sample, places: Ints, length: int) -> Ints:
    """Return the block of each value; what is left over at the end joins the last block."""
    block = np.searchsorted(places, side.place) // length
    return np.asarray(np.minimum(block, max(len(places) // length - 1, 0)))


def _percentiles(values: Floats, block: Ints, quantile: float, *, draws: Floats) -> Floats:
    """Return the percentile in each resample; a row of ``draws`` says how often each block came."""
    order = np.argsort(values, kind="stable")
    steps = min(len(values), _BINS)
    ends = np.unique(np.ceil(np.linspace(0, 1, steps + 1)[1:] * len(values)).astype(np.int64))
    step = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    table = np.zeros((draws.shape[1], len(ends)))
    np.add.at(table, (block[order], step), 1)
    reached = np.cumsum(draws @ table, axis=1)
    wanted = quantile * reached[:, -1:]
    places = np.minimum((reached < wanted).sum(axis=1), len(ends) - 1)
    return np.asarray(values[order][ends - 1][places])
