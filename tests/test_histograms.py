"""A server's histograms by hand: what rose between two readings."""

from collections.abc import Sequence

import numpy as np
import pytest
from telemetry_make import histogram, lines_of, span

from loadgen.analysis.histograms import quantile_s, time_over
from loadgen.analysis.readings import readings_of
from loadgen.analysis.server_side import ServerTime
from loadgen.analysis.telemetry import server_of

NAME = "vllm:time_to_first_token_seconds"
BOUNDS = (0.1, 0.2, 0.4)


def ttft(before: Sequence[float], after: Sequence[float], engines: int = 1) -> ServerTime | None:
    """The histogram over 10 s that had seen ``before`` and saw ``after`` in them."""
    parts = [
        histogram(NAME, at, seen, bounds=BOUNDS, engine=str(number))
        for number in range(engines)
        for at, seen in ((0, before), (10, [*before, *after]))
    ]
    server = server_of(readings_of(lines_of(*parts))[0], engine="vllm")
    assert server is not None
    return time_over(server.histograms["ttft"], [span(0, 10)])


@pytest.mark.parametrize(
    ("quantile", "value"),
    [
        pytest.param(0.125, None, id="somewhere in the first bucket"),
        pytest.param(0.5, 0.15, id="half way through the second"),
        pytest.param(0.75, 0.2, id="its end"),
        pytest.param(0.9, None, id="above the last bound"),
    ],
)
def test_a_quantile_is_straight_within_its_bucket(quantile: float, value: float | None) -> None:
    bounds, below = np.array([0.1, 0.2, 0.4, np.inf]), np.array([2.0, 6.0, 6.0, 8.0])
    assert quantile_s(bounds, below, quantile) == (value if value is None else pytest.approx(value))


def test_nothing_observed_has_no_quantile() -> None:
    assert quantile_s(np.array([1.0, np.inf]), np.zeros(2), 0.5) is None
    assert ttft([0.3], []) is None


def test_only_what_rose_counts() -> None:
    found = ttft([5.0] * 30, [0.15, 0.15, 0.3, 0.3])
    assert found == ServerTime(n=4, mean=pytest.approx(225), p50=pytest.approx(200))


def test_the_p95_needs_twenty() -> None:
    found = ttft([], [0.15] * 20)
    assert found is not None
    assert found.p95 == pytest.approx(195)


def test_engines_are_pooled() -> None:
    found = ttft([], [0.1, 0.3], engines=2)
    assert found is not None
    assert (found.n, found.mean) == (4, pytest.approx(200))
