"""How far two samples differ: intervals by hand, and what widens them."""

import numpy as np
import pytest

from loadgen.analysis import differ
from loadgen.analysis.differ import Sample


def test_the_t_interval_of_rounds_by_hand() -> None:
    """Variances 1 and 4, three rounds each: Welch's degrees of freedom are 50/17."""
    found = differ.by_rounds(np.array([99.0, 100.0, 101.0]), np.array([98.0, 100.0, 102.0]))
    assert found.high == pytest.approx(3.217 * (5 / 3) ** 0.5 / 100, rel=1e-2)
    assert found.low == -found.high
    assert differ.by_rounds(np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0])) is None


def test_the_interval_of_two_shares_by_hand() -> None:
    """Newcombe (1998), method 10: 56/70 against 48/80 is 0.0524 to 0.3339."""
    found = differ.of_shares((48, 80), (56, 70))
    assert (found.low, found.high) == (pytest.approx(0.0524, abs=1e-4), pytest.approx(0.3339, 1e-3))


def test_neighbours_that_resemble_one_another_widen_the_interval() -> None:
    rng = np.random.default_rng(4)
    spells = np.repeat(rng.normal(100, 10, 40), 25)
    mixed = rng.permutation(spells)
    places = np.arange(1000)
    other = Sample(values=rng.permutation(mixed), place=places)
    wide, close = (
        differ.of_percentile(Sample(values=one, place=places), other, 0.5, paired=False)
        or differ.by_batches(Sample(values=one, place=places), other, 0.5)
        for one in (spells, mixed)
    )
    assert wide.high - wide.low > 2 * (close.high - close.low)


# --- two runs with the same arrivals

CHANGES = np.array([-0.02, 0.03, 0.00, -0.01, 0.02, -0.03, 0.01, 0.02, -0.02, 0.00])


def stretched(changes_of: np.ndarray, *, each: int = 100) -> tuple[Sample, Sample]:
    """Two sides of 10 stretches; all values of one stretch of the other side changed alike."""
    rng = np.random.default_rng(6)
    values = rng.uniform(100, 200, each * len(changes_of))
    places = np.arange(len(values))
    other = values * np.exp(np.repeat(changes_of, each))
    return Sample(values=values, place=places), Sample(values=other, place=places)


def half_by_hand(first: Sample, other: Sample, stretches: int, t: float) -> float:
    stretch = np.arange(1000) // (1000 // stretches)
    rests = [
        np.log(np.quantile(other.values[stretch != j], 0.5))
        - np.log(np.quantile(first.values[stretch != j], 0.5))
        for j in range(stretches)
    ]
    squares = np.sum((rests - np.mean(rests)) ** 2)
    return t * np.sqrt((stretches - 1) / stretches * squares)


def test_the_jackknife_over_stretches_by_hand() -> None:
    """Student's t at 97.5 %: 2.776 of 4 and 2.262 of 9 degrees of freedom."""
    first, other = stretched(CHANGES)
    half = max(half_by_hand(first, other, 5, 2.776), half_by_hand(first, other, 10, 2.262))
    ratio = np.quantile(other.values, 0.5) / np.quantile(first.values, 0.5)
    found = differ.by_stretches(first, other, 0.5, together=True)
    assert found.high == pytest.approx(ratio * np.expm1(half), rel=1e-3)
    assert found.low == pytest.approx(ratio * np.expm1(-half), rel=1e-3)


def test_what_arrivals_do_to_both_sides_widens_nothing() -> None:
    """Spells of 1, 2 or 3 times the usual, the same ones on both sides, which differ by 5 %."""
    spells = np.repeat(np.random.default_rng(7).integers(1, 4, 40), 25) * 100.0
    places = np.arange(1000)
    noisy = [spells * np.random.default_rng(seed).normal(1, 0.01, 1000) for seed in (8, 9)]
    sides = [Sample(values=one, place=places) for one in (noisy[0], 1.05 * noisy[1])]
    found = differ.by_stretches(*sides, 0.5, together=True)
    assert found.high - found.low < 0.05


@pytest.mark.parametrize(
    ("n", "quantile", "known"), [(19, 0.5, False), (60, 0.5, True), (39, 0.95, False)]
)
def test_too_few_requests_of_a_schedule_have_no_interval(
    n: int, quantile: float, known: bool
) -> None:
    rng = np.random.default_rng(10)
    sides = [Sample(values=rng.normal(100, 5, n), place=np.arange(n)) for _ in range(2)]
    assert (differ.by_stretches(*sides, quantile, together=True, waits=True) is not None) == known


def test_a_queue_that_remembers_all_along_has_no_interval() -> None:
    walk = [np.exp(np.cumsum(np.random.default_rng(i).normal(0, 0.1, 400))) for i in (1, 2)]
    sides = [Sample(values=one, place=np.arange(400)) for one in walk]
    assert differ.by_stretches(*sides, 0.95, together=True, waits=True) is None
    assert differ.by_stretches(*sides, 0.95, together=True) is not None
