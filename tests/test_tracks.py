"""Gauges and counters over a stretch of time, by hand."""

from collections.abc import Mapping

import numpy as np
import pytest
from telemetry_make import S, span, track

from loadgen.analysis.tracks import (
    Span,
    covered,
    mean_over,
    most_over,
    restarts,
    risen,
    rising,
    together,
)


@pytest.mark.parametrize(
    ("values", "spans", "mean"),
    [
        pytest.param({0: 4, 10: 4}, [span(2, 8)], 4, id="level"),
        pytest.param({0: 0, 10: 10}, [span(0, 10)], 5, id="straight between readings"),
        pytest.param({0: 0, 10: 10}, [span(4, 6)], 5, id="between two readings"),
        pytest.param({0: 0, 1: 8, 5: 8}, [span(0, 5)], 7.2, id="weighted by time: (4 + 32) / 5"),
        pytest.param({0: 2, 4: 2, 10: 8, 20: 8}, [span(0, 4), span(10, 14)], 5, id="two rounds"),
        pytest.param({2: 6, 4: 6}, [span(0, 10)], 6, id="only where there are readings"),
        pytest.param({0: 6, 1: 6}, [span(2, 4)], None, id="none of it"),
    ],
)
def test_a_gauges_mean_is_weighted_by_time(
    values: Mapping[float, float], spans: list[Span], mean: float | None
) -> None:
    assert mean_over(track(values), spans) == (mean if mean is None else pytest.approx(mean))


def test_the_largest_value_is_one_of_the_stretch() -> None:
    readings = {0: 9, 1: 1, 2: 5, 3: 1, 4: 9}
    assert most_over(track(readings), [span(1, 3)]) == 5
    assert most_over(track(readings), [span(5, 6)]) is None


def test_series_of_one_name_add_up_or_are_averaged() -> None:
    two = [track({0: 3, 1: 5}), track({0: 1, 1: 1})]
    assert together(two).values.tolist() == [4, 6]
    assert together(two, mean=True).values.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("values", "over", "rise"),
    [
        pytest.param({0: 100, 10: 200}, span(0, 10), 100, id="its difference"),
        pytest.param({0: 100, 10: 200}, span(2.5, 5), 25, id="straight between readings"),
        pytest.param({0: 100, 1: 130, 2: 20, 3: 50}, span(0, 3), 80,
                     id="a restart: 30, then 20 from zero, then 30"),
        pytest.param({0: 5, 1: 5}, span(0, 1), 0, id="at rest"),
    ],
)  # fmt: skip
def test_a_counters_rise(values: Mapping[float, float], over: Span, rise: float) -> None:
    assert risen([rising(track(values))], [over]) == pytest.approx(rise)


def test_a_series_that_appears_later_had_counted_nothing_before() -> None:
    sweeps = np.array([0.0, 1, 2, 3]) * S
    late = rising(track({2: 7, 3: 9}), sweeps=sweeps)
    assert risen([late], [span(1, 3)]) == 9
    assert risen([late], [span(0, 1)]) == 0


def test_the_rise_of_several_rounds_is_their_sum() -> None:
    counter = rising(track({0: 0, 10: 100, 20: 100, 30: 400}))
    assert risen([counter], [span(0, 10), span(20, 30)]) == 400
    assert risen([counter], [span(40, 50)]) is None


def test_counters_that_fall_together_are_one_restart() -> None:
    two = [track({0: 9, 1: 2, 2: 3}), track({0: 50, 1: 1, 2: 0})]
    assert restarts(two, span(0, 1)) == 1
    assert restarts(two, span(0, 2)) == 2
    assert restarts(two, span(1, 1.5)) == 0


def test_the_share_of_a_stretch_between_readings() -> None:
    assert covered(track({0: 1, 8: 1}), [span(0, 10)]) == 0.8
    assert covered(track({20: 1, 21: 1}), [span(0, 10)]) == 0
