from itertools import islice, pairwise

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.scenario.fields import Span
from loadgen.scenario.model import EachLevel, Level
from loadgen.units import NS_PER_S
from loadgen.workload.arrivals import (
    Schedule,
    constant_arrivals,
    deal,
    gamma_arrivals,
    open_schedule,
    poisson_arrivals,
)
from loadgen.workload.seeds import derive


def schedule(rate: float, kind: str = "poisson", *, seed: int = 1, **phases: object) -> Schedule:
    level = Level.model_validate({"rate": rate, "arrivals": kind})
    return open_schedule(level, EachLevel.model_validate(phases), seed=seed)


def in_measure(drawn: Schedule) -> int:
    return int((drawn.due_ns >= drawn.measure_start_ns).sum())


def test_constant_arrivals_are_a_grid_that_does_not_drift() -> None:
    offsets = list(islice(constant_arrivals(3.0), 30_001))
    assert offsets[0] == 0.0
    assert offsets[-1] == 10_000.0
    assert max(later - earlier for earlier, later in pairwise(offsets)) == pytest.approx(1 / 3)


@pytest.mark.parametrize("rate", [0.5, 50.0, 1000.0])
def test_poisson_gaps_are_exponential_of_the_asked_rate(rate: float) -> None:
    offsets = np.fromiter(islice(poisson_arrivals(rate, seed=4), 20_000), dtype=float)
    gaps = np.diff(offsets, prepend=0.0)
    assert len(offsets) / offsets[-1] == pytest.approx(rate, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.03)
    assert np.mean(gaps > gaps.mean()) == pytest.approx(np.exp(-1), abs=0.015)
    assert np.corrcoef(gaps[1:], gaps[:-1])[0, 1] == pytest.approx(0.0, abs=0.03)


def test_c22_two_thousand_arrivals_at_fifty_a_second_are_what_was_asked() -> None:
    drawn = schedule(50, seed=7, warmup="0s", measure="2000 requests")
    gaps = np.diff(drawn.due_ns)
    assert len(drawn.due_ns) / (drawn.due_ns[-1] / NS_PER_S) == pytest.approx(50, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.1)


def test_a_schedule_is_the_generator_written_down() -> None:
    drawn = schedule(200, seed=3, warmup="1s", measure="50s").due_ns
    expected = [round(s * NS_PER_S) for s in islice(poisson_arrivals(200, seed=3), len(drawn))]
    assert drawn.tolist() == expected
    assert drawn.dtype == np.int64


def test_a_gamma_schedule_is_its_generator_written_down() -> None:
    level = Level(rate=200, burstiness=0.25)
    drawn = open_schedule(level, EachLevel.model_validate({"measure": "20s"}), seed=3).due_ns
    offsets = islice(gamma_arrivals(200, 0.25, seed=3), len(drawn))
    assert drawn.tolist() == [round(s * NS_PER_S) for s in offsets]


SEEDS, ARRIVALS, RATE = 200, 2000, 500.0


def estimates_of(gaps_s: np.ndarray) -> tuple[float, float, float]:
    """Return the rate, the coefficient of variation and the lag-1 autocorrelation of gaps."""
    lag = float(np.corrcoef(gaps_s[1:], gaps_s[:-1])[0, 1])
    return 1 / gaps_s.mean(), gaps_s.std(ddof=1) / gaps_s.mean(), lag


@pytest.mark.parametrize(
    ("level", "variation"),
    [
        ({"rate": RATE}, 1.0),
        ({"rate": RATE, "burstiness": 1.0}, 1.0),
        ({"rate": RATE, "burstiness": 0.5}, 2**0.5),
        ({"rate": RATE, "burstiness": 4.0}, 0.5),
    ],
    ids=["poisson", "gamma-1", "gamma-bursts", "gamma-even"],
)
def test_over_200_seeds_rate_variation_and_autocorrelation_are_the_true_ones(
    level: dict[str, float], variation: float
) -> None:
    each = EachLevel.model_validate({"warmup": "0s", "measure": f"{ARRIVALS + 1} requests"})
    drawn = [open_schedule(Level.model_validate(level), each, seed=seed) for seed in range(SEEDS)]
    found = np.array([estimates_of(np.diff(one.due_ns) / NS_PER_S) for one in drawn])
    errors = found.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    # what n gaps are expected to show: these estimators lean by about 1 / n
    lean = 1 / ARRIVALS
    truth = np.array([RATE * (1 + variation**2 * lean), variation, -lean])
    assert (np.abs(found.mean(axis=0) - truth) < 3 * errors + [0, variation * lean, 0]).all()


RAMP = [{"rate": "2/s", "for": "30s"}, {"from": "2/s", "to": "10/s", "for": "1m"},
        {"rate": "0/s", "for": "5s"}, {"rate": "50/s", "for": "5s"}]  # fmt: skip


def segmented(kind: str = "poisson", *, seed: int = 1, warmup: object = "4s") -> Schedule:
    level = Level.model_validate({"segments": RAMP, "arrivals": kind})
    return open_schedule(level, EachLevel.model_validate({"warmup": warmup}), seed=seed)


def by_segment(drawn: Schedule) -> list[int]:
    since = (drawn.due_ns - drawn.measure_start_ns) / NS_PER_S
    return np.histogram(since, [-1e9, 0, 30, 90, 95, 100])[0].tolist()


def test_segments_follow_one_another_and_are_the_whole_of_measure() -> None:
    drawn = segmented("constant")
    assert drawn.measure_end_ns - drawn.measure_start_ns == 100 * NS_PER_S
    # 2/s · 4 s, 2/s · 30 s, (2 + 10)/2 · 60 s, none, 50/s · 5 s
    assert by_segment(drawn) == [8, 60, 360, 0, 250]
    assert (np.diff(drawn.due_ns) > 0).all()


def test_a_ramp_of_even_arrivals_comes_when_its_cumulated_rate_says() -> None:
    level = Level.model_validate({"segments": [{"from": "0/s", "to": "2/s", "for": "10s"}],
                                  "arrivals": "constant"})  # fmt: skip
    drawn = open_schedule(level, EachLevel.model_validate({"warmup": "0s"}), seed=1)
    # Λ(t) = t²/10, so the n-th arrival is due at √(10 n)
    assert drawn.due_ns / NS_PER_S == pytest.approx(np.sqrt(10 * np.arange(10)), abs=1e-8)


def test_over_200_seeds_each_segment_has_as_many_arrivals_as_asked() -> None:
    counts = np.array([by_segment(segmented(seed=seed)) for seed in range(SEEDS)])
    errors = counts.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    assert (np.abs(counts.mean(axis=0) - [8, 60, 360, 0, 250]) <= 3 * errors).all()
    # Poisson: a count's variance is its mean
    assert counts.var(axis=0)[1] == pytest.approx(60, rel=0.3)


def test_segments_begin_where_a_counted_warm_up_ends() -> None:
    drawn = segmented("constant", warmup="10 requests")
    assert by_segment(drawn)[0] == 10
    assert drawn.measure_start_ns == drawn.due_ns[9] + 1


def test_what_comes_before_the_segments_stays_when_they_change() -> None:
    one, other = (
        Level.model_validate({"segments": [{"rate": "2/s", "for": "9s"}, {"rate": last, "for": 9}]})
        for last in ("1/s", "90/s")
    )
    each = EachLevel.model_validate({"warmup": "4s"})
    first, second = (open_schedule(level, each, seed=5).due_ns for level in (one, other))
    known = first[first < 13 * NS_PER_S].tolist()
    assert second[: len(known)].tolist() == known


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_what_is_dealt_to_the_workers_is_the_one_schedule(workers: int) -> None:
    drawn = schedule(50, warmup="1s", measure="4s")
    hands = [deal(drawn, worker, workers) for worker in range(workers)]
    together = np.sort(np.concatenate([drawn.due_ns[hand] for hand in hands]))
    assert together.tolist() == drawn.due_ns.tolist()
    assert max(map(len, hands)) - min(map(len, hands)) <= 1


def test_equal_seeds_draw_equal_schedules_and_others_do_not() -> None:
    first, again, other = (schedule(50, seed=seed, warmup="1s") for seed in (1, 1, 2))
    assert first.due_ns.tolist() == again.due_ns.tolist()
    assert first.due_ns.tolist() != other.due_ns.tolist()


def test_a_longer_measure_keeps_the_earlier_arrivals() -> None:
    short, long = (schedule(50, warmup="1s", measure=time).due_ns for time in ("2s", "20s"))
    assert long[: len(short)].tolist() == short.tolist()


@pytest.mark.parametrize(
    ("phases", "start_s", "end_s", "measured"),
    [
        ({"warmup": "2s", "measure": "10s"}, 2.0, 12.0, 40),
        ({"warmup": "0s", "measure": "10s"}, 0.0, 10.0, 40),
        ({"warmup": "5 requests", "measure": "10 requests"}, 1.0, 3.5, 10),
        ({"warmup": ["2s", "3 requests"], "measure": ["1s", "8 requests"]}, 2.0, 3.75, 8),
        ({"warmup": ["2s", "20 requests"], "measure": ["9s", "8 requests"]}, 4.75, 13.75, 36),
        ({"measure": "10s"}, 0.25, 10.25, 40),
    ],
    ids=["times", "no-warm-up", "counts", "both-count-last", "both-time-last", "default-warm-up"],
)
def test_a_phase_ends_when_time_and_count_are_both_reached(
    phases: dict[str, object], start_s: float, end_s: float, measured: int
) -> None:
    drawn = schedule(4, "constant", **phases)
    assert drawn.measure_start_ns / NS_PER_S == pytest.approx(start_s, abs=1e-8)
    assert drawn.measure_end_ns / NS_PER_S == pytest.approx(end_s, abs=1e-8)
    assert in_measure(drawn) == measured


def test_every_arrival_is_due_before_measure_ends_and_in_order() -> None:
    drawn = schedule(1000, warmup="1s", measure=["3s", "5000 requests"])
    assert in_measure(drawn) == 5000
    assert drawn.due_ns[-1] < drawn.measure_end_ns
    assert (np.diff(drawn.due_ns) >= 0).all()


def test_a_quiet_level_may_have_no_arrival_at_all() -> None:
    assert len(schedule(0.001, seed=1, warmup="0s", measure="1s").due_ns) == 0


def test_an_absurd_number_of_arrivals_is_refused() -> None:
    with pytest.raises(UsageError, match=r"1e\+06/s poisson: more than 20,000,000 arrivals"):
        schedule(1e6, measure="1h")


def test_a_closed_level_has_no_schedule() -> None:
    with pytest.raises(ValueError, match="closed level"):
        open_schedule(Level(concurrency=1), EachLevel(warmup=Span()), seed=1)


def test_named_seeds_share_nothing() -> None:
    states = {
        tuple(derive(seed, name, *parts).generate_state(4))
        for seed in (0, 1)
        for name in ("words", "lengths")
        for parts in ((), (0,), (1,), (0, 1), (1, 0))
    }
    assert len(states) == 2 * 2 * 5
