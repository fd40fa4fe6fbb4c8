"""A server that begins cold: its waiting is left out of every figure, or the report says it is in.

Sixteen requests wait 5 s for the first step, 84 later ones are answered at once: the shape that a
run of 100 requests at 16 slots records.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from make import level, make_run, record

from loadgen.analysis.metrics import summarise
from loadgen.analysis.stats import Floats, beginning, mser5
from loadgen.analysis.steady import cut_of, fall_of
from loadgen.analysis.summary import LevelSummary
from loadgen.analysis.table import RunData
from loadgen.record import Record
from loadgen.report.soundness import course_table

SLOTS, REQUESTS, COLD_MS, ANSWER_MS = 16, 100, 5000.0, 150.0


def waits(seed: int, *, cold: int = SLOTS, requests: int = REQUESTS) -> Floats:
    """Times to the first token in ms, in order of due."""
    warm = 47 * np.random.default_rng(seed).lognormal(0, 0.3, requests - cold)
    return np.concatenate([np.full(cold, COLD_MS), warm])


def records(ttft_ms: Sequence[float], *, slots: int) -> tuple[list[Record], float]:
    """Each slot sends its next request when the one before ended; when the last was due."""
    free, made = [0.0] * slots, []
    for number, first in enumerate(ttft_ms):
        slot = free.index(min(free))
        made.append(record(number, sent=free[slot], at=[first, first + ANSWER_MS]))
        free[slot] += first + ANSWER_MS
    return made, max(one.due_ns for one in made) / 1e6


def run_of(ttft_ms: Sequence[float], *, slots: int = SLOTS, **facts: object) -> RunData:
    made, end = records(ttft_ms, slots=slots)
    return make_run(made, [level(window=(0, end), concurrency=slots)], **facts)


def only(run: RunData) -> LevelSummary:
    (found,) = summarise(run).levels
    return found


def told(found: LevelSummary) -> dict[str, float]:
    return {one.name: one.value for one in found.checks if one.verdict != "pass"}


def test_mser_5_alone_forgets_a_cold_beginning_where_the_rest_is_noise() -> None:
    """In some short series d* is at m/2, by the noise of what follows: then nothing is cut."""
    unsteady = [seed for seed in range(200) if not mser5(waits(seed)).steady]
    assert unsteady
    assert all(beginning(waits(seed)).cut >= SLOTS for seed in unsteady)


@pytest.mark.parametrize(
    ("cold", "requests"), [(8, 100), (16, 60), (16, 100), (32, 100), (40, 100), (64, 400)], ids=str
)
def test_a_cold_beginning_is_always_cut_and_half_always_stays(cold: int, requests: int) -> None:
    cuts = [beginning(waits(seed, cold=cold, requests=requests)).cut for seed in range(300)]
    assert min(cuts) >= cold - 1  # a fifth of a batch may stay: what was due together goes, too
    assert max(cuts) <= requests // 2


def test_the_time_that_cold_requests_wait_is_cut_with_them() -> None:
    for seed in range(40):
        run = run_of(waits(seed))
        end = int(run.requests["due_ns"].max())
        cut = cut_of(run.requests, start_ns=0, end_ns=end)
        assert cut.at_ns >= (COLD_MS + ANSWER_MS) * 1e6, seed


def test_requests_that_were_due_together_are_cut_together() -> None:
    """15 of 16 cold ones are three batches of 5; the sixteenth was due when they were."""
    times = [COLD_MS] * 15 + [40.0] * 85
    run = run_of(times)
    found = only(run)
    assert found.ttft.n == 84
    assert found.steadiness.cut_requests == 16


def test_a_ramp_has_no_clear_beginning() -> None:
    for size in (100, 1000):
        found = beginning(1000 + 50.0 * np.arange(size))
        assert (found.cut, found.steady) == (0, False)


def test_a_flat_series_loses_no_more_than_mser_5_takes() -> None:
    rng = np.random.default_rng(5)
    flat = [rng.normal(size=100) for _ in range(300)]
    assert np.mean([beginning(one).cut for one in flat]) <= np.mean([mser5(x).cut for x in flat])


@pytest.mark.parametrize(
    ("values", "fall"),
    [
        ([5000.0] * 16 + [50.0] * 84, 0.99),
        ([5000.0] * 64 + [50.0] * 36, 0.99),
        ([100.0] * 50 + [60.0] * 50, 0.4),
        ([50.0] * 50 + [5000.0] * 50, 0.0),
        ([50.0] * 100, 0.0),
        ([5000.0] * 9 + [50.0] * 10, 0.0),
        ([], 0.0),
    ],
    ids=["cold", "mostly cold", "fell", "rose", "flat", "too few", "none"],
)
def test_a_fall_is_the_share_by_which_the_beginning_stood_above_the_rest(
    values: list[float], fall: float
) -> None:
    assert fall_of(np.array(values)) == pytest.approx(fall, abs=0.02)


def test_noise_is_no_fall() -> None:
    rng = np.random.default_rng(6)
    assert [x for x in range(200) if fall_of(100 + 30 * rng.normal(size=100)) > 0.3] == []


@pytest.mark.parametrize(
    ("cold", "requests", "each"),
    [(16, 100, {"truncate": "off"}), (64, 100, {}), (16, 40, {})],
    ids=["truncate: off", "more than half", "too few to cut"],
)
def test_a_window_that_begins_cold_is_said_not_to_be_settled(
    cold: int, requests: int, each: dict[str, str]
) -> None:
    scenario = {"objectives": [], "each_level": each}
    run = run_of(waits(1, cold=cold, requests=requests), slots=cold, scenario=scenario)
    found = only(run)
    assert found.steadiness.verdict == "not settled"
    assert told(found)["TTFT fell by"] == pytest.approx(0.98, abs=0.02)
    course = course_table([found])
    index = [column.label for column in course.columns].index("course")
    assert course.rows[0][index].text.startswith("not settled")


def test_what_is_cut_is_no_longer_unsettled() -> None:
    found = only(run_of(waits(1)))
    assert found.steadiness.verdict == "steady"
    assert "TTFT fell by" not in told(found)
    assert (found.ttft.max or 0) < 500


def test_one_cold_round_of_three_is_told() -> None:
    times, entries, made = [waits(1), waits(2), waits(3)], [], []
    for number, one in enumerate(times):
        rows, end = records(one if number == 0 else one[SLOTS:], slots=SLOTS)
        begin = 20_000.0 * number
        entries.append(level(window=(begin, begin + end), round=number, concurrency=SLOTS))
        made += [
            record(
                1000 * number + row.id,
                round=number,
                sent=begin + row.due_ns / 1e6,
                at=[(row.first_ns - row.due_ns) / 1e6, (row.last_ns - row.due_ns) / 1e6],
            )
            for row in rows
        ]
    scenario = {"objectives": [], "each_level": {"truncate": "off"}}
    assert only(make_run(made, entries, scenario=scenario)).steadiness.verdict == "not settled"
