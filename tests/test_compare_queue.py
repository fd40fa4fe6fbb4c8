"""A queue that grew has no times to compare, and is worse than none; times follow arrivals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from compare_make import changes, compared
from make import level, make_run, record, write_run
from virtual import as_load, poisson

from loadgen.analysis.compare import BETTER, COURSE, SAME, UNKNOWN, WORSE
from loadgen.analysis.differ import is_more
from loadgen.analysis.table import RunData
from loadgen.cli.compare import command
from loadgen.record import Record
from loadgen.report.compare import compare_view, render_comparison
from loadgen.report.servers import change_tables

pytestmark = pytest.mark.slow  # whole runs: seconds each

EVERY_MS, N = 50.0, 400
TIMES = ("TTFT p50", "TTFT p95", "TPOT p50", "ITL p95", "E2E p50", "E2E p95")
RATES = ("output", "requests")


def served(
    busy: float, *, due_ms: "np.ndarray[Any, Any] | None" = None, refused: int = 0
) -> list[Record]:
    """One server, so busy that a request takes this share of the time between two.

    refused: of a hundred requests so many are turned away at once.
    """
    due_ms = EVERY_MS * np.arange(N) if due_ms is None else due_ms
    records, free = [], 0.0
    for number, due in enumerate(due_ms.tolist()):
        if number % 100 < refused:
            records.append(record(number, sent=due, outcome="refused", end_ms=due + 1))
            continue
        start = max(due, free)
        free = start + busy * EVERY_MS * (0.9 + 0.2 * (number % 7) / 6)
        at = [start - due + 5, (start + free) / 2 - due + 5, free - due + 5]
        records.append(record(number, sent=due, at=at, reported_output=3))
    return records


def at_rate(records: list[Record], **facts: Any) -> RunData:
    return make_run(records, [the_level(records)], **facts)


def the_level(records: list[Record]) -> dict[str, Any]:
    end_ms = records[-1].due_ns / 1e6 + 1
    return level(window=(0, end_ms), rate=20.0, label="20/s", arrivals=len(records))


def by_chance(seed: int, n: int = N) -> "np.ndarray[Any, Any]":
    """When the requests of a Poisson load are due, ms."""
    return 1000 * poisson(1000 / EVERY_MS, n, seed=seed)


def open_run(busy: float, **facts: Any) -> RunData:
    return at_rate(served(busy, **facts))


@pytest.mark.parametrize("busy", [1.08, 1.2, 2.0])
@pytest.mark.parametrize("before", [0.3, 0.8])
def test_a_queue_that_grew_beside_one_that_did_not_is_worse(before: float, busy: float) -> None:
    found = compared(open_run(before), open_run(busy))
    course = changes(found)[COURSE]
    assert (course.verdict, course.note) == (WORSE, "steady → saturated")
    assert {changes(found)[word].method for word in TIMES} == {"withheld: the queue grew"}
    assert found.count(WORSE) >= 1
    back = changes(compared(open_run(busy), open_run(before)))
    assert (back[COURSE].verdict, back[COURSE].note) == (BETTER, "saturated → steady")
    assert {back[word].method for word in TIMES} == {"withheld: the baseline's queue grew"}


def test_of_two_queues_that_grew_the_rates_decide() -> None:
    found = changes(compared(open_run(1.2), open_run(1.8)))
    assert (found[COURSE].verdict, found[COURSE].note) == (SAME, "saturated on both sides")
    assert {found[word].verdict for word in RATES} == {WORSE}
    assert {found[word].method for word in TIMES} == {"withheld: the queue grew on both sides"}


def test_where_no_queue_grew_nothing_is_said_of_it() -> None:
    assert COURSE not in changes(compared(open_run(0.5), open_run(0.5)))
    assert COURSE not in changes(compared(open_run(0.5), open_run(0.9)))


def test_beside_several_candidates_each_has_its_course() -> None:
    found = compared(open_run(0.5), open_run(0.5), open_run(1.5))
    assert [one.verdict for one in found.levels[0].rows[0].changes] == [SAME, WORSE]
    (table,) = change_tables(found)
    assert [cell.text for cell in table.rows[0]] == ["course", "–", "–", "n.s.", "–", "worse"]


def test_a_server_without_a_queue_since_it_turns_requests_away_is_not_better() -> None:
    shedding = open_run(1.2, refused=30)
    found = changes(compared(open_run(1.2), shedding))[COURSE]
    assert (found.verdict, found.method) == (UNKNOWN, "failures")
    assert found.note == "saturated → steady, but 30 % failed"
    back = changes(compared(shedding, open_run(1.2)))
    assert back[COURSE].note == "steady → saturated, but 30 % of the baseline's failed"
    assert (back[COURSE].verdict, back["errors"].verdict) == (UNKNOWN, BETTER)


def test_one_failure_excuses_no_queue() -> None:
    assert changes(compared(open_run(0.5, refused=1), open_run(1.5)))[COURSE].verdict == WORSE


def test_few_requests_do_not_show_that_no_queue_grew() -> None:
    short = open_run(0.5, due_ms=EVERY_MS * np.arange(30.0))
    found = changes(compared(open_run(1.5), short))[COURSE]
    assert (found.verdict, found.method) == (UNKNOWN, "too few requests")


@pytest.mark.parametrize(
    ("busy", "seed", "verdict"),
    [(1.0, 1, UNKNOWN), (1.0, 2, WORSE), (1.5, 1, WORSE)],
    ids=["by chance", "of the same arrivals", "far beyond"],
)
def test_of_other_arrivals_a_queue_must_have_grown_by_more_than_theirs(
    busy: float, seed: int, verdict: str
) -> None:
    first, other = open_run(0.7, due_ms=by_chance(seed)), open_run(busy, due_ms=by_chance(2))
    found = changes(compared(first, other))[COURSE]
    assert (found.verdict, "steady → saturated" in found.note) == (verdict, True)


def test_a_saturated_candidate_is_a_regression_and_leads_the_first_line(tmp_path: Path) -> None:
    sides = []
    for name, busy in (("base", 0.5), ("slow", 1.2)):
        records = served(busy)
        sides.append(str(write_run(tmp_path / name, records, [the_level(records)], name=name)))
    result = CliRunner().invoke(command, [*sides, "--fail-on", "regression"])
    assert result.exit_code == 1
    assert "(course: steady → saturated" in result.output.splitlines()[0]
    assert "cannot be told (withheld: the queue grew)" in " ".join(result.output.split())
    assert CliRunner().invoke(command, [*sides[::-1], "--fail-on", "regression"]).exit_code == 0


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_every_format_says_that_the_queue_grew(form: str) -> None:
    text = render_comparison(compared(open_run(0.5), open_run(1.2)), form, width=200)
    assert "worse: steady → saturated" in text
    assert "withheld: the queue grew" in text
    assert "too few requests" not in text


# --- arrivals


def test_times_of_single_runs_with_other_arrivals_have_no_verdict() -> None:
    found = compared(open_run(0.5, due_ms=by_chance(1)), open_run(0.8, due_ms=by_chance(2)))
    told = changes(found)
    assert {(told[word].verdict, told[word].method) for word in TIMES} == {
        (UNKNOWN, "arrivals differ")
    }
    assert all(told[word].change is not None for word in TIMES)  # what was measured is still shown
    view = compare_view(found)
    assert "cannot be told (arrivals differ)" in view.verdict.text
    (hint,) = (one for one in view.warnings if "other moments" in one)
    assert hint.endswith("give both the same seed and length, or 3 rounds")


@pytest.mark.parametrize(
    "due_ms",
    [by_chance(1), EVERY_MS * np.arange(N)],
    ids=["one seed", "a constant rate, whatever the seed"],
)
def test_the_same_arrivals_are_compared(due_ms: Any) -> None:
    sides = [
        at_rate(served(busy, due_ms=due_ms), scenario={"seed": seed, "objectives": []})
        for seed, busy in enumerate((0.3, 0.6))
    ]
    found = compared(*sides)
    assert changes(found)["E2E p50"].verdict == WORSE
    assert not [one for one in compare_view(found).warnings if "other moments" in one]


def test_a_run_half_as_long_had_other_arrivals() -> None:
    half = open_run(0.3, due_ms=by_chance(1, N // 2))
    whole = open_run(0.3, due_ms=by_chance(1))
    assert changes(compared(whole, half))["TTFT p50"].method == "arrivals differ"


@pytest.mark.parametrize("load", [{"segments": []}, {"speed": 2.0}], ids=["segments", "a log"])
def test_any_schedule_makes_arrivals(load: dict[str, Any]) -> None:
    first, other = (as_load(open_run(0.3, due_ms=by_chance(seed)), **load) for seed in (1, 2))
    assert changes(compared(first, other))["TTFT p50"].method == "arrivals differ"
    assert changes(compared(first, first))["TTFT p50"].method != "arrivals differ"


def test_a_closed_load_has_no_arrivals_to_differ() -> None:
    first, other = (as_load(open_run(0.3, due_ms=by_chance(seed))) for seed in (1, 2))
    assert changes(compared(first, other))["TTFT p50"].method != "arrivals differ"


def test_when_later_turns_are_due_is_the_servers_doing() -> None:
    def talk(think_ms: float) -> RunData:
        records = []
        for number, due in enumerate(by_chance(1).tolist()):
            facts = {"conversation": str(number)}
            records.append(record(2 * number, sent=due, at=[5, 10], turn=0, **facts))
            later = due + 10 + think_ms
            records.append(record(2 * number + 1, sent=later, at=[5, 10], turn=1, **facts))
        return at_rate(records)

    assert changes(compared(talk(1.0), talk(9.0)))["TTFT p50"].method != "arrivals differ"


def test_a_mean_is_higher_where_its_whole_interval_is() -> None:
    low, high = np.array([0.0, 1.0, 2.0]), np.array([10.0, 11.0, 12.0])
    assert is_more(low, high)
    assert not is_more(high, low)
    assert not is_more(low, low + 1)
    assert not is_more(low, high[:1])
