import numpy as np
import pytest
from pydantic import ValidationError

from loadgen.scenario.lengths import Length, ThinkTime
from loadgen.workload.lengths import draw_length

WAYS = [
    512,
    2,
    {"mean": 2.5, "spread": 0},
    {"mean": 512, "spread": 128},
    {"mean": 20, "spread": 30, "min": 5, "max": 40},
    {"distribution": "lognormal", "median": 300, "sigma": 1.1},
    {"distribution": "lognormal", "median": 300, "sigma": 1.1, "min": 16, "max": 4096},
    {"distribution": "uniform", "min": 100, "max": 2000},
    "natural",
]


@pytest.mark.parametrize("plain", WAYS, ids=str)
def test_a_length_is_written_as_it_is_read(plain: object) -> None:
    length = Length.model_validate(plain)
    assert length.plain == plain
    assert Length.model_validate(length.plain) == length


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({"mean": 512}, 512),
        ({"mean": 512, "spread": 0}, 512),
        ({"distribution": "fixed", "mean": 512}, 512),
        ({"distribution": "normal", "mean": 512, "spread": 0}, 512),
        ({"distribution": "normal", "mean": 5, "spread": 2}, {"mean": 5, "spread": 2}),
        ({"distribution": "natural"}, " Natural "),
    ],
    ids=str,
)
def test_what_means_the_same_is_the_same(given: object, same: object) -> None:
    assert Length.model_validate(given) == Length.model_validate(same)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (True, "must be a number of tokens"),
        ("many", "must be a number of tokens"),
        ({"mean": 0.5}, "greater than or equal to 1"),
        ({"mean": float("nan")}, "finite number"),
        ({"spread": 3}, "normal needs mean, like"),
        ({}, "fixed needs mean, like"),
        ({"distribution": "lognormal", "median": 5}, "lognormal needs sigma, like"),
        ({"distribution": "uniform", "min": 5}, "uniform needs max, like"),
        ({"distribution": "uniform", "min": 5, "max": 4}, r"min \(5\) must not be above max"),
        ({"mean": 5, "median": 5}, "median cannot go with distribution: fixed"),
        ({"distribution": "uniform", "mean": 5, "min": 1, "max": 9}, "mean cannot go with"),
        ({"distribution": "natural", "max": 9}, "max cannot go with distribution: natural"),
    ],
    ids=str,
)
def test_a_length_that_says_too_much_or_too_little_is_refused(given: object, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Length.model_validate(given)


@pytest.mark.parametrize("plain", [way for way in WAYS if way != "natural"], ids=str)
def test_the_expected_length_is_the_mean_of_what_is_drawn(plain: object) -> None:
    length = Length.model_validate(plain)
    rng = np.random.default_rng(5)
    drawn = np.array([draw_length(length, rng) for _ in range(20_000)])
    error = drawn.std() / np.sqrt(len(drawn))
    assert drawn.mean() == pytest.approx(length.expected, abs=3 * error + 0.01)
    assert drawn.min() >= (length.min or 1)
    assert length.max is None or drawn.max() <= length.max


def test_a_lognormal_has_the_asked_median_and_sigma() -> None:
    length = Length(distribution="lognormal", median=300, sigma=0.8)
    rng = np.random.default_rng(6)
    logs = np.log([draw_length(length, rng) for _ in range(20_000)])
    assert np.exp(np.median(logs)) == pytest.approx(300, rel=0.03)
    assert logs.std() == pytest.approx(0.8, rel=0.03)


def test_a_uniform_length_reaches_both_of_its_ends() -> None:
    length, rng = Length(distribution="uniform", min=3, max=6), np.random.default_rng(7)
    assert {draw_length(length, rng) for _ in range(200)} == {3, 4, 5, 6}


@pytest.mark.parametrize(
    ("plain", "one"),
    [(1, True), (2, False), ({"mean": 1.4}, True), ({"mean": 9, "max": 1}, True),
     ({"mean": 1, "spread": 1}, False)],
    ids=str,
)  # fmt: skip
def test_always_one_is_known_beforehand(plain: object, one: bool) -> None:
    assert Length.model_validate(plain).always_one is one


@pytest.mark.parametrize(
    ("plain", "mean_s", "spread_s"),
    [("2s", 2.0, 0.0), ({"mean": "1m30s", "spread": "500ms"}, 90.0, 0.5), ("0ms", 0.0, 0.0)],
    ids=str,
)
def test_a_think_time_is_written_as_it_is_read(
    plain: object, mean_s: float, spread_s: float
) -> None:
    think = ThinkTime.model_validate(plain)
    assert (think.mean_s, think.spread_s) == (mean_s, spread_s)
    assert think.plain == plain


def test_the_expected_think_time_counts_what_is_cut_off_at_zero() -> None:
    # E[max(X, 0)] of a standard normal X is 1/√(2π)
    assert ThinkTime(mean_s=0.0, spread_s=1.0).expected_s == pytest.approx(0.39894, abs=1e-5)
