from typing import Any

import numpy as np
import pytest
from make import every, level, make_run, record

from loadgen.analysis.metrics import summarise
from loadgen.analysis.per_request import measured
from loadgen.analysis.slo import HIT, MISS, OUT, judged, judged_together, verdict
from loadgen.analysis.summary import LevelSummary, ObjectiveResult
from loadgen.analysis.table import RunData
from loadgen.analysis.window import placed
from loadgen.record import Record
from loadgen.report.write import view_of
from loadgen.scenario.objective import parse_objective

TTFT = "ttft p95 <= 500ms"


def verdict_on(records: list[Record], objective: str) -> ObjectiveResult:
    return verdict(measured(make_run(records)), parse_objective(objective))


def judgement(one: Record, objective: str) -> int:
    return int(judged(measured(make_run([one])), parse_objective(objective))[0])


def fast(n: int, *, start: int = 0) -> list[Record]:
    return [record(number, at=[100, 110]) for number in range(start, start + n)]


def slow(n: int, *, start: int) -> list[Record]:
    return [record(number, at=[900, 910]) for number in range(start, start + n)]


def summed(run: RunData) -> LevelSummary:
    (found,) = summarise(run).levels
    return found


@pytest.mark.parametrize(
    ("hits", "misses", "word", "needed"),
    [
        (59, 0, "met", None),
        (58, 0, "unclear", 59),
        (203, 5, "met", None),
        (202, 5, "unclear", 208),
        (90, 10, "missed", None),
        (95, 8, "unclear", None),
        (0, 0, "unclear", 59),
    ],
    ids=["59-of-59", "58-of-58", "5-of-208", "5-of-207", "10-of-100", "8-of-103", "none"],
)
def test_a_verdict_waits_until_the_requests_suffice(
    hits: int, misses: int, word: str, needed: int | None
) -> None:
    found = verdict_on(fast(hits) + slow(misses, start=hits), TTFT)
    assert (found.verdict, found.n, found.misses) == (word, hits + misses, misses)
    if word != "unclear":
        assert found.needed is None
    elif needed is not None:
        assert found.needed == needed
    else:
        assert found.needed > hits + misses


def test_the_value_beside_a_verdict_is_the_levels_own_percentile() -> None:
    run = make_run(fast(50) + slow(50, start=50), objectives=[TTFT, "e2e p50 <= 1s"])
    found = summed(run)
    assert found.objectives[0].value == found.ttft.p95.value == 900
    assert found.objectives[1].value == found.e2e.p50.value


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"at": [500]}, HIT),
        ({"at": [501]}, MISS),
        ({"flags": ["empty"]}, OUT),
        ({"at": [10], "outcome": "truncated"}, MISS),
        ({"outcome": "refused"}, MISS),
        ({"outcome": "dropped", "sent": None}, MISS),
        ({"outcome": "unfinished", "end_ms": 400}, OUT),
        ({"outcome": "unfinished", "end_ms": 501}, MISS),
        ({"outcome": "unfinished", "at": [100], "end_ms": 9000}, HIT),
        ({"outcome": "cancelled", "end_ms": 9000}, OUT),
        ({"outcome": "client_fault"}, OUT),
    ],
    ids=["at-bound", "above", "no-token", "cut", "refused", "dropped", "young", "overdue",
         "observed", "cancelled", "client-fault"],
)  # fmt: skip
def test_each_request_is_a_hit_a_miss_or_says_nothing(facts: dict[str, Any], expected: int) -> None:
    assert judgement(record(**facts), TTFT) == expected


@pytest.mark.parametrize(
    ("facts", "objective", "expected"),
    [
        ({"at": [100, 300], "end_ms": 900}, "e2e p95 <= 500ms", MISS),
        ({"at": [100, 300], "end_ms": 400}, "e2e p95 <= 500ms", OUT),
        ({"at": [100, 300], "end_ms": 900}, "tpot p95 <= 50ms", OUT),
        ({"at": [100, 300], "end_ms": 900}, "itl p95 <= 50ms", OUT),
    ],
    ids=["e2e-overdue", "e2e-young", "tpot", "itl"],
)
def test_an_unfinished_request_misses_only_what_it_can_no_longer_meet(
    facts: dict[str, Any], objective: str, expected: int
) -> None:
    assert judgement(record(outcome="unfinished", **facts), objective) == expected


def test_below_means_below() -> None:
    assert judgement(record(at=[500]), "ttft p95 < 500ms") == MISS


def test_a_requests_own_quantile_of_gaps_decides_for_attainment() -> None:
    stream = np.cumsum([100, *[10] * 8, 90, 90])
    assert judgement(record(at=stream), "itl p50 <= 20ms") == HIT
    assert judgement(record(at=stream), "itl p90 <= 20ms") == MISS
    assert judgement(record(at=[100]), "itl p90 <= 20ms") == OUT


@pytest.mark.parametrize("row", ["G05"])
def test_attainment_counts_errors_against_and_leaves_the_cancelled_out(row: str) -> None:
    good = fast(70) + slow(15, start=70)
    errors = [record(number, outcome="refused") for number in range(85, 95)]
    stopped = [record(number, outcome="cancelled") for number in range(95, 100)]
    run = make_run([*good, *errors, *stopped], [level(window=(0, 10_000))], objectives=[TTFT])
    found = summed(run)
    assert found.attainment == 70 / 95
    assert round(found.attainment, 3) == 0.737
    assert found.goodput == 7.0


def test_meeting_all_objectives_means_all() -> None:
    run = make_run(
        [record(0, at=[100, 110]), record(1, at=[100, 900]), record(2, at=[900, 910])],
        objectives=[TTFT, "e2e p95 <= 800ms"],
    )
    assert summed(run).attainment == pytest.approx(1 / 3)


def test_an_unfinished_request_has_met_nothing_yet() -> None:
    cut = record(0, at=[100], outcome="unfinished", end_ms=9000)
    run = measured(make_run([cut, record(1, at=[100])]))
    together = judged_together(run, [parse_objective(TTFT), parse_objective("errors <= 1%")])
    assert together.tolist() == [OUT, HIT]
    assert judged_together(run, [parse_objective("errors <= 1%")]) is None


def test_without_objectives_on_times_there_is_neither_attainment_nor_goodput() -> None:
    found = summed(make_run(fast(5)))
    assert (found.attainment, found.goodput) == (None, None)


def test_goodput_counts_what_ended_in_the_window_by_whichever_phase() -> None:
    warm = record(0, sent=900, at=[50, 200], phase="warmup")
    late = record(1, sent=1900, at=[50, 200])
    run = make_run([warm, late], [level(window=(1000, 2000))], objectives=[TTFT])
    assert (summed(run).goodput, summed(run).requests_per_s) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("ok", "bad", "word", "rate"),
    [(99, 1, "met", 0.01), (98, 2, "missed", 0.02), (0, 0, "unclear", None)],
    ids=["at-bound", "above", "nothing-ended"],
)
def test_errors_are_a_plain_ratio(ok: int, bad: int, word: str, rate: float | None) -> None:
    wrong = [record(number, outcome="timeout") for number in range(ok, ok + bad)]
    found = verdict_on(fast(ok) + wrong, "errors <= 1%")
    assert (found.verdict, found.value, found.n) == (word, rate, ok + bad)


def test_errors_are_an_objective_unless_another_on_errors_is_given() -> None:
    assert summarise(make_run(fast(1), objectives=[TTFT])).objectives == [TTFT, "errors <= 1%"]
    lenient = summarise(make_run(fast(1), objectives=["errors <= 5%"]))
    assert lenient.objectives == ["errors <= 5%"]


@pytest.mark.parametrize(
    ("bound", "requests", "word"),
    [("20ms", 60, "met"), ("5ms", 60, "missed"), ("10ms", 60, "unclear"), ("20ms", 10, "unclear")],
    ids=["below", "above", "within", "too-few"],
)
def test_gaps_are_judged_by_the_interval_of_their_pooled_quantile(
    bound: str, requests: int, word: str
) -> None:
    rng = np.random.default_rng(6)
    steps = rng.normal(10, 0.5, size=requests)
    records = [record(n, at=every(step, first=50, count=30)) for n, step in enumerate(steps)]
    found = verdict_on(records, f"itl p50 <= {bound}")
    assert (found.verdict, found.n, found.misses) == (word, requests * 29, None)
    assert found.value == pytest.approx(10, abs=0.5)


def test_failed_requests_lend_no_gaps_to_a_verdict() -> None:
    cut = [record(number, at=every(1, first=1, count=50), outcome="broken") for number in range(40)]
    found = verdict_on(cut, "itl p50 <= 20ms")
    assert (found.verdict, found.n, found.value) == ("unclear", 0, None)


def test_a_p999_needs_a_thousand_requests_to_be_printed() -> None:
    assert verdict_on(fast(999), "ttft p99.9 <= 500ms").value is None
    assert verdict_on(fast(1000), "ttft p99.9 <= 500ms").value == 100


def test_only_requests_due_in_the_window_are_judged() -> None:
    outside = record(0, sent=5000, at=[900])
    run = make_run([outside, record(1, at=[100])], [level(window=(0, 1000))], objectives=[TTFT])
    assert (summed(run).attainment, summed(run).objectives[0].n) == (1.0, 1)
    assert placed(run).requests["in_window"].tolist() == [False, True]


def of_two_classes(**scenario: object) -> RunData:
    """100 quick requests of "chat" and 100 of 900 ms of "long"."""
    chat = [record(number, at=[100], class_="chat") for number in range(100)]
    long = [record(number, at=[900], class_="long") for number in range(100, 200)]
    return make_run([*chat, *long], scenario=scenario)


MIX = [
    {"name": "chat", "objectives": ["ttft p95 <= 200ms"]},
    {"name": "long", "objectives": ["ttft p95 <= 1s"]},
]


def test_each_class_of_a_mix_is_held_to_its_own_objectives() -> None:
    found = summarise(of_two_classes(mix=MIX))
    told = {
        one.class_: [(r.objective, r.verdict) for r in one.objectives] for one in found.by_class
    }
    assert told["chat"] == [("ttft p95 <= 200ms", "met"), ("errors <= 1%", "met")]
    assert told["long"] == [("ttft p95 <= 1s", "met"), ("errors <= 1%", "met")]
    assert [result.objective for result in found.levels[0].objectives] == ["errors <= 1%"]


def test_goodput_holds_each_request_to_its_own_class() -> None:
    assert summarise(of_two_classes(mix=MIX)).levels[0].attainment == 1.0
    assert summarise(of_two_classes(objectives=["ttft p95 <= 200ms"])).levels[0].attainment == 0.5


def test_a_classs_objective_replaces_the_common_one_on_its_metric_alone() -> None:
    common = ["ttft p95 <= 200ms", "e2e p50 <= 2s"]
    found = summarise(of_two_classes(mix=MIX[1:], objectives=common))
    told = {one.class_: [result.objective for result in one.objectives] for one in found.by_class}
    assert told["long"] == ["ttft p95 <= 1s", "e2e p50 <= 2s", "errors <= 1%"]
    assert told["chat"] == [*common, "errors <= 1%"]


def test_a_class_that_misses_its_objective_is_in_the_first_line_and_the_table() -> None:
    strict = [{"name": "long", "objectives": ["ttft p95 <= 500ms"]}]
    run = of_two_classes(mix=strict)
    shown = view_of(run, summarise(run))
    assert "objective missed: ttft p95 <= 500ms at level 0 (long)" in shown.verdict.text
    rows = [[cell.text for cell in row[:4]] for row in shown.objectives.rows]
    assert ["level 0", "long", "ttft p95 <= 500ms", "missed"] in rows
