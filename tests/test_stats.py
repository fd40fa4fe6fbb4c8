import numpy as np
import pytest

from loadgen.analysis.distribution import distribution, pooled_gaps_ms, with_failures
from loadgen.analysis.stats import (
    Floats,
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
    worth_in_clusters,
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
    assert (found.first, found.growth) == (pytest.approx(10.725), pytest.approx(4.95))
    assert found.share == pytest.approx(4.95 / 10.725)  # of the second of ten batches
    assert found.t > 100
    assert trend(at[:49], noise[:49]) is None


def test_a_late_rise_is_a_share_of_the_beginning_although_the_line_begins_below_zero() -> None:
    found = trend(np.arange(100.0), np.array([50.0] * 70 + [700.0] * 30))
    assert found.first == 50
    assert found.share > 10


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
    none = np.array([], dtype=np.int64)
    assert pooled_gaps_ms(np.array([]), request=none, at_ns=none).p50.value is None


QUANTILES = [0.5, 0.95, 0.99]


def test_gaps_of_requests_that_differ_are_worth_their_requests() -> None:
    rng = np.random.default_rng(1)
    gaps = np.repeat(rng.normal(50, 10, size=40), 100) + rng.normal(size=4000)
    requests, at = np.repeat(np.arange(40), 100), rng.permutation(4000)
    (worth,) = worth_in_clusters(gaps, [0.5], cluster=requests, at=at)
    assert 20 < worth < 60


def test_gaps_that_share_their_steps_are_worth_the_steps_however_many_streams_there_are() -> None:
    steps, streams = np.random.default_rng(2).normal(50, 10, size=1000), 64
    gaps, at = np.tile(steps, streams), np.tile(np.arange(1000), streams)
    requests = np.repeat(np.arange(streams * 20), 50)
    for quantile, worth in zip(
        QUANTILES, worth_in_clusters(gaps, QUANTILES, cluster=requests, at=at), strict=True
    ):
        assert 100 < worth < 2000, quantile


def test_gaps_that_are_slow_for_a_while_are_worth_little() -> None:
    gaps = np.concatenate((np.full(3000, 10.0), np.full(3000, 20.0))) + np.tile([0, 1], 3000)
    requests, at = np.repeat(np.arange(600), 10), np.arange(6000)
    assert worth_in_clusters(gaps, [0.5], cluster=requests, at=at)[0] < 6
    shuffled = np.random.default_rng(3).permutation(6000)
    alike = worth_in_clusters(gaps[shuffled], [0.5], cluster=requests, at=at)
    assert alike[0] > 600


def test_equal_gaps_are_worth_all_of_them_and_gaps_of_few_requests_nothing() -> None:
    requests, at = np.repeat(np.arange(600), 10), np.arange(6000)
    assert worth_in_clusters(np.full(6000, 9.0), QUANTILES, cluster=requests, at=at) == [6000] * 3
    few = [np.arange(190.0), requests[:190], at[:190]]
    assert worth_in_clusters(few[0], [0.5], cluster=few[1], at=few[2]) == [0]
    found = worth_in_clusters(np.arange(200.0), [0.5, 0.99], cluster=requests[:200], at=at[:200])
    assert found[1] == 0


def test_pooled_gaps_tell_their_requests_and_what_they_are_worth_at_least() -> None:
    rng = np.random.default_rng(4)
    requests, at = np.repeat(np.arange(600), 10), np.arange(6000)
    gaps = rng.normal(50e6, 1e6, size=6000)
    found = pooled_gaps_ms(gaps, request=requests, at_ns=at)
    worth = worth_in_clusters(gaps, [0.5, 0.9, 0.95, 0.99], cluster=requests, at=at)
    assert (found.requests, found.effective_n) == (600, pytest.approx(min(worth)))
    assert found.p50.low < found.p50.value < found.p50.high


@pytest.mark.slow
def test_intervals_of_gaps_hold_the_truth_in_nine_draws_of_ten_where_requests_differ() -> None:
    rng = np.random.default_rng(9)
    truth = np.quantile(rng.normal(size=400_000) * np.sqrt(2), [0.5, 0.95])
    held = np.zeros(2)
    requests, at = np.repeat(np.arange(200), 20), np.arange(4000)
    for _ in range(150):
        gaps = (20 + np.repeat(rng.normal(size=200), 20) + rng.normal(size=4000)) * 1e6
        one = pooled_gaps_ms(gaps, request=requests, at_ns=at)
        held += [
            found.low <= 20 + true <= found.high
            for found, true in zip((one.p50, one.p95), truth, strict=True)
        ]
    assert (held / 150 >= 0.90).all()
