import numpy as np
import pytest

from loadgen.analysis.distribution import distribution, pooled_gaps_ms, with_failures
from loadgen.analysis.stats import (
    Floats,
    Interval,
    cluster_intervals,
    effective_n,
    interval_ranks,
    is_met,
    is_missed,
    least_for_interval,
    least_n,
    mser5,
    percentile,
    settled_by,
    student_t,
    trend,
    wilson,
)

ONE_TO_TEN = np.arange(1.0, 11.0)


def shuffled(n: int) -> Floats:
    """1..n in an order without autocorrelation."""
    return np.random.default_rng(0).permutation(np.arange(1.0, n + 1))


@pytest.mark.parametrize(
    ("quantile", "expected"),
    [(0.5, 5.5), (0.95, 9.55), (0.0, 1.0), (1.0, 10.0)],
    ids=["B24-p50", "B24-p95-is-linear-not-nearest-rank", "B24-least", "B24-largest"],
)
def test_a_percentile_is_interpolated_linearly(quantile: float, expected: float) -> None:
    assert percentile(ONE_TO_TEN, quantile) == pytest.approx(expected)


def test_a_percentile_agrees_with_the_linear_method_of_numpy() -> None:
    values = np.sort(np.random.default_rng(3).lognormal(size=57))
    for quantile in (0.1, 0.5, 0.9, 0.99):
        assert percentile(values, quantile) == pytest.approx(np.quantile(values, quantile))


@pytest.mark.parametrize(
    ("quantile", "least"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368)], ids=str
)
def test_an_interval_needs_the_stated_number_of_samples(quantile: float, least: int) -> None:
    assert interval_ranks(least - 1, quantile) is None
    ranks = interval_ranks(least, quantile)
    assert ranks is not None
    assert 1 <= ranks.low < ranks.high <= least


@pytest.mark.parametrize(
    ("quantile", "least"), [(0.5, 1), (0.9, 1), (0.95, 20), (0.99, 100), (0.999, 1000)], ids=str
)
def test_a_percentile_needs_the_stated_number_of_samples(quantile: float, least: int) -> None:
    assert least_n(quantile) == least


def test_percentiles_without_enough_samples_are_not_printed() -> None:
    nineteen, twenty = distribution(np.ones(19)), distribution(np.ones(20))
    assert nineteen.p95.value is None
    assert nineteen.p90.value == 1
    assert twenty.p95.value == 1
    assert twenty.p99.value is None
    assert (distribution(np.ones(5)).p50.low, distribution(np.ones(6)).p50.low) == (None, 1)


@pytest.mark.parametrize(
    ("quantile", "n"), [(0.5, 40), (0.9, 150), (0.99, 500)], ids=["p50", "p90", "p99"]
)
def test_order_statistic_intervals_hold_the_truth_as_often_as_they_say(
    quantile: float, n: int
) -> None:
    rng, truth, ranks = (
        np.random.default_rng(11),
        -np.log(1 - quantile),
        interval_ranks(n, quantile),
    )
    draws = np.sort(rng.exponential(size=(2000, n)), axis=1)
    held = (draws[:, ranks.low - 1] <= truth) & (truth <= draws[:, ranks.high - 1])
    assert 0.93 <= held.mean() <= 0.995


def test_correlated_samples_are_worth_fewer() -> None:
    rng = np.random.default_rng(5)
    noise = rng.normal(size=20_000)
    series = np.zeros_like(noise)
    for index in range(1, len(noise)):
        series[index] = 0.5 * series[index - 1] + noise[index]
    assert effective_n(series) / len(series) == pytest.approx(0.5 / 1.5, rel=0.1)
    assert effective_n(rng.permutation(series)[:100]) == 100
    assert effective_n(np.full(50, 0.1)) == 50


def test_memory_that_is_weak_but_long_makes_samples_worth_fewer() -> None:
    rng = np.random.default_rng(6)
    spells = np.repeat(rng.normal(size=50), 100)
    series = spells + rng.normal(0, 2, size=5000)  # neighbours resemble each other by 0.2 only
    assert effective_n(series) < 1000
    assert effective_n(rng.permutation(series)) == 5000


def test_a_trend_by_hand() -> None:
    at, noise = np.arange(100.0), np.tile([1.0, -1.0], 50)
    found = trend(at, 10 + 0.05 * at + noise)
    assert found is not None
    assert (found.start, found.growth) == (pytest.approx(10), pytest.approx(4.95))
    assert found.share == pytest.approx(0.495)
    assert found.t > 100
    assert trend(at[:49], noise[:49]) is None


@pytest.mark.parametrize(
    ("values", "rises"),
    [(np.full(100, 5.0), False), (np.tile([4.0, 6.0], 50), False), (np.arange(100.0), True)],
    ids=["flat", "swinging", "rising"],
)
def test_a_trend_is_one_only_beyond_its_scatter(values: Floats, rises: bool) -> None:
    found = trend(np.arange(100.0), values)
    assert (found.t > student_t(8, 0.99)) is rises


@pytest.mark.parametrize(
    ("quantile", "least"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368)], ids=str
)
def test_the_samples_an_interval_needs_are_known(quantile: float, least: int) -> None:
    assert least_for_interval(quantile) == least


def test_correlation_widens_the_interval() -> None:
    steps = np.repeat(np.random.default_rng(2).normal(size=40), 20)
    shuffled = np.random.default_rng(4).permutation(steps)
    correlated, independent = distribution(steps).p50, distribution(shuffled).p50
    assert correlated.value == independent.value
    assert correlated.low < independent.low
    assert independent.high < correlated.high


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (5, 10, 0.2366, 0.7634),
        (81, 263, 0.2553, 0.3662),
    ],
    ids=["none", "all", "half", "published"],
)
def test_wilson_intervals_agree_with_published_ones(
    hits: int, n: int, low: float, high: float
) -> None:
    found = wilson(hits, n)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_a_share_of_nothing_has_no_interval() -> None:
    assert wilson(0, 0) is None


@pytest.mark.parametrize(
    ("misses", "share", "confidence", "needed"),
    [(0, 0.99, 0.99, 459), (1, 0.99, 0.99, 662), (0, 0.95, 0.95, 59), (5, 0.95, 0.95, 208)],
    ids=["p99-none", "p99-one", "p95-none", "p95-five"],
)
def test_early_stopping_needs_the_published_number_of_requests(
    misses: int, share: float, confidence: float, needed: int
) -> None:
    assert settled_by(misses, quantile=share, confidence=confidence) == needed
    assert is_met(needed, misses, quantile=share, confidence=confidence)
    assert not is_met(needed - 1, misses, quantile=share, confidence=confidence)


def test_an_objective_is_missed_only_when_the_lower_bound_of_misses_exceeds_the_allowance() -> None:
    assert is_missed(3, 2, quantile=0.95)  # two of three at 5 %: chance is 0.7 %
    assert not is_missed(100, 8, quantile=0.95)  # P(8 or more of 100 at 5 %) is 12.8 %
    assert is_missed(100, 10, quantile=0.95)  # P(10 or more of 100 at 5 %) is 2.8 %
    assert not is_missed(10, 0, quantile=0.95)


def test_mser5_finds_a_step_and_leaves_a_flat_series() -> None:
    rng = np.random.default_rng(7)
    cuts, flat = [], []
    for _ in range(100):
        series = rng.normal(size=1000)
        flat.append(mser5(series).cut)
        series[:300] += 1
        cuts.append(mser5(series).cut)
    assert np.mean([abs(cut - 300) <= 30 for cut in cuts]) >= 0.9
    assert np.mean([cut > 100 for cut in flat]) <= 0.06


@pytest.mark.parametrize(
    ("series", "cut", "steady"),
    [
        (np.full(100, 0.1), 0, True),
        (np.concatenate((np.full(10, 9.0), np.full(40, 1.0))), 10, True),
        (np.arange(100.0), 50, False),
        (np.arange(9.0), 0, True),
    ],
    ids=["flat", "two-batches-of-start", "never-steady", "too-short"],
)
def test_mser5_by_hand(series: Floats, cut: int, steady: bool) -> None:
    assert (mser5(series).cut, mser5(series).steady) == (cut, steady)


def test_a_percentile_among_unfinished_requests_is_a_lower_bound() -> None:
    found = distribution(shuffled(90), at_least=np.full(10, 60.0))
    assert (found.n, found.censored) == (100, 10)
    assert found.p50.value == pytest.approx(50.5)
    assert not found.p50.above
    assert found.p90.above
    assert found.p90.value < 90
    assert found.p90.low is not None
    assert found.p90.high is None


def test_the_interval_of_a_known_percentile_may_be_open_above() -> None:
    found = distribution(shuffled(40), at_least=np.full(20, 40.5))
    assert (found.p50.above, found.p50.value) == (False, pytest.approx(30.5))
    assert (found.p50.low, found.p50.high) == (22, 39)
    assert (found.p90.above, found.p90.value, found.p90.high) == (True, 40.5, None)


@pytest.mark.parametrize(
    ("failures", "value", "above"),
    [(0, 5.0, False), (4, 7.0, False), (30, 9.0, True)],
    ids=["none", "few", "most"],
)
def test_failures_counted_as_infinite_only_worsen_a_percentile(
    failures: int, value: float, above: bool
) -> None:
    values = np.arange(1.0, 10.0)
    found = with_failures(values, at_least=np.array([]), failures=failures)
    assert (found.n, found.p50.value, found.p50.above) == (9 + failures, value, above)


def test_with_nothing_but_failures_a_percentile_is_above_everything() -> None:
    found = with_failures(np.array([]), at_least=np.array([]), failures=5)
    assert (found.n, found.p50.value, found.p50.above, found.mean) == (5, None, True, None)


def test_no_samples_give_an_empty_distribution() -> None:
    assert distribution(np.array([np.nan])).n == 0
    assert pooled_gaps_ms(np.array([]), np.array([], dtype=np.int64)).p50.value is None


def test_the_interval_of_pooled_gaps_counts_requests_not_gaps() -> None:
    rng = np.random.default_rng(1)
    gaps = np.repeat(rng.normal(50, 10, size=40), 100) + rng.normal(size=4000)
    requests = np.repeat(np.arange(40), 100)
    clustered = cluster_intervals(gaps, requests, [0.5])[0]
    ranks = interval_ranks(4000, 0.5)
    ordered = np.sort(gaps)
    naive = ordered[ranks.high - 1] - ordered[ranks.low - 1]
    assert clustered.high - clustered.low > 3 * naive


def test_a_clustered_interval_is_the_same_each_time_and_absent_for_few_requests() -> None:
    gaps, requests = np.arange(6000.0), np.repeat(np.arange(600), 10)
    first = cluster_intervals(gaps, requests, [0.5, 0.99])
    assert first == cluster_intervals(gaps, requests, [0.5, 0.99])
    assert all(isinstance(interval, Interval) for interval in first)
    assert cluster_intervals(gaps[:190], requests[:190], [0.5]) == [None]
    assert cluster_intervals(gaps[:200], requests[:200], [0.5, 0.99])[1] is None


@pytest.mark.slow
def test_clustered_intervals_hold_the_truth_in_nine_draws_of_ten() -> None:
    rng = np.random.default_rng(9)
    truth = np.quantile(rng.normal(size=400_000) * np.sqrt(2), [0.5, 0.95])
    held = np.zeros(2)
    for _ in range(150):
        gaps = np.repeat(rng.normal(size=60), 20) + rng.normal(size=1200)
        found = cluster_intervals(gaps, np.repeat(np.arange(60), 20), [0.5, 0.95])
        held += [one.low <= true <= one.high for one, true in zip(found, truth, strict=True)]
    assert (held / 150 >= 0.88).all()
