import json
from typing import Any

import numpy as np
import pytest
from make import chunks, every, level, make_run, ns, record

from loadgen.analysis.metrics import summarise
from loadgen.analysis.per_request import gaps, measured
from loadgen.analysis.serial import to_json
from loadgen.analysis.summary import Quantile
from loadgen.analysis.table import RunData
from loadgen.record import Record

MS = 1_000_000


def metric(run: RunData, name: str) -> list[float | None]:
    """One metric of each request, in ms where it is a time; None where it is null."""
    requests = measured(run).requests
    column = requests[f"{name}_ns"] / MS if f"{name}_ns" in requests else requests[name]
    return [None if np.isnan(value) else pytest.approx(value) for value in column.to_list()]


def gaps_ms(run: RunData) -> list[float]:
    return (gaps(run)["gap_ns"] / MS).to_list()


def strict(data: bytes) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(data, parse_constant=refuse)


@pytest.mark.parametrize("row", ["B01"])
def test_gaps_lie_between_tokens_and_ttft_is_none_of_them(row: str) -> None:
    run = make_run([record(at=[200, 210, 220])])
    assert gaps_ms(run) == [10, 10]
    assert metric(run, "tpot") == [10]
    assert metric(run, "ttft") == [200]
    assert summarise(run).levels[0].itl.mean == 10


@pytest.mark.parametrize("row", ["B02"])
def test_a_reply_of_one_token_has_no_tpot_and_drags_no_mean(row: str) -> None:
    run = make_run([record(0, at=[50]), record(1, at=every(100, first=50, count=11))])
    assert metric(run, "tpot") == [None, 100]
    found = summarise(run).levels[0].tpot
    assert (found.n, found.mean) == (1, pytest.approx(100))


@pytest.mark.parametrize("row", ["B03"])
def test_chunks_of_several_tokens_give_tpot_per_token_and_gaps_per_chunk(row: str) -> None:
    stream = every(40, first=100, count=25)
    run = make_run([record(at=stream, reported_output=100, token_source="reported")])
    assert metric(run, "tpot") == [pytest.approx(9.70, abs=0.005)]
    assert set(gaps_ms(run)) == {40}
    assert summarise(run).levels[0].tokens_per_chunk == 4.0


def test_a_known_first_chunk_takes_its_tokens_off_tpot() -> None:
    stream = every(40, first=100, count=25)
    run = make_run([record(at=stream, reported_output=100, first_chunk_tokens=4)])
    assert metric(run, "tpot") == [10]


def test_sizes_of_chunks_tell_the_first_chunks_tokens() -> None:
    at = [ns(moment) for moment in (100, 140, 180)]
    run = make_run(
        [record(at=[100, 140, 180], reported_output=12, chunks=chunks(at, tokens=[4, 4, 4]))]
    )
    assert metric(run, "tpot") == [10]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"at": [100], "reported_output": 4}, None),
        ({"at": [100, 200], "reported_output": 1}, None),
        ({"at": [100, 100], "reported_output": 2}, None),
        ({"at": [100, 200], "reported_output": 2, "first_chunk_tokens": 2}, None),
        ({"at": []}, None),
    ],
    ids=["one-chunk-of-four", "no-later-token", "one-burst", "all-in-first", "no-token"],
)
def test_tpot_is_null_where_there_is_no_later_token(
    facts: dict[str, Any], expected: float | None
) -> None:
    run = make_run([record(**facts)])
    assert metric(run, "tpot") == metric(run, "decode_rate") == [expected]


@pytest.mark.parametrize("row", ["B10"])
def test_e2e_ends_with_the_last_token_and_the_stream_with_done(row: str) -> None:
    run = make_run([record(at=[900, 1000], end_ms=1051)])
    assert metric(run, "e2e") == [1000]
    assert metric(run, "stream_end") == [1051]


@pytest.mark.parametrize("row", ["B13"])
def test_time_to_headers_is_not_ttft(row: str) -> None:
    run = make_run([record(at=[300], headers_ms=3)])
    assert metric(run, "ttfb") == [3]
    assert metric(run, "ttft") == [300]
    assert summarise(run).levels[0].ttfb.p50.value == 3


def test_a_role_chunk_is_no_token() -> None:
    run = make_run([record(at=[150], headers_ms=2)])  # the chunk at 2 ms carried only the role
    assert metric(run, "ttft") == [150]


def test_reasoning_counts_for_ttft_and_not_for_ttfo() -> None:
    stream = [*every(100, first=100, count=29), 3000]
    at = [ns(moment) for moment in stream]
    facts = {"first_output_ms": 3000, "chunks": chunks(at, kind="r" * 29 + "c")}
    run = make_run([record(at=stream, **facts)])
    assert metric(run, "ttft") == [100]
    assert metric(run, "ttfo") == [3000]


def test_reasoning_without_an_answer_has_no_ttfo() -> None:
    run = make_run([record(at=[100, 200], first_output_ns=None)])
    assert metric(run, "ttfo") == [None]
    assert metric(run, "ttft") == [100]


def test_a_whole_json_answer_has_an_e2e_and_no_ttft() -> None:
    run = make_run([record(end_ms=800, reported_output=12, flags=["non_stream_response"])])
    assert metric(run, "e2e") == [800]
    assert metric(run, "ttft") == metric(run, "tpot") == [None]
    assert metric(run, "output_tokens") == [12]


@pytest.mark.parametrize(
    ("facts", "connect", "tls", "cold"),
    [
        ({"connection": "new"}, 4, 16, 330),
        ({"connection": "reused"}, None, None, None),
    ],
    ids=["new", "reused"],
)
def test_connecting_is_told_apart_from_ttft(
    facts: dict[str, Any], connect: float | None, tls: float | None, cold: float | None
) -> None:
    times = {"connect_start_ms": 70, "connected_ms": 74, "tls_done_ms": 90}
    run = make_run([record(sent=100, at=[300], **times, **facts)])
    assert metric(run, "connect") == [connect]
    assert metric(run, "tls") == [tls]
    assert metric(run, "ttft_cold") == [cold]
    assert metric(run, "ttft") == [300]


@pytest.mark.parametrize(
    ("facts", "tokens", "streamed"),
    [
        ({"reported_output": 7, "counted_output": 5}, 7, 7),
        ({"reported_output": 0, "counted_output": 5}, 5, 5),
        ({"counted_output": 5}, 5, 5),
        ({}, 3, 3),
        ({"asked_output": 256}, 3, 3),
        ({"reported_output": 9, "reasoning": 6, "flags": ["hidden_reasoning"]}, 9, 3),
        ({"reported_output": 9, "reasoning": 6}, 9, 9),
    ],
    ids=["usage", "usage-of-0", "counted", "chunks", "never-asked", "hidden", "streamed-reasoning"],
)
def test_tokens_are_counted_once_by_the_best_source(
    facts: dict[str, Any], tokens: float, streamed: float
) -> None:
    run = make_run([record(at=[10, 20, 30], **facts)])
    assert metric(run, "output_tokens") == [tokens]
    assert metric(run, "streamed_tokens") == [streamed]


def test_nothing_that_came_is_null_tokens_not_zero() -> None:
    assert metric(make_run([record(outcome="refused")]), "output_tokens") == [None]


def test_gaps_are_taken_within_each_choice() -> None:
    at = [ns(moment) for moment in (100, 105, 120, 135)]
    two = chunks(at, choice=[0, 1, 0, 1])
    run = make_run([record(at=[100, 105, 120, 135], chunks=two, reported_output=4)])
    assert sorted(gaps_ms(run)) == [20, 30]
    assert metric(run, "tpot") == [None]


def test_several_choices_have_a_tpot_where_each_count_is_known() -> None:
    at = [ns(moment) for moment in (100, 105, 120, 135)]
    two = chunks(at, choice=[0, 1, 0, 1], tokens=[1, 1, 2, 3])
    several = record(0, at=[100, 105, 120, 135], chunks=two, reported_output=7)
    run = make_run([several, record(1, at=[10, 30])])
    assert metric(run, "tpot") == [(20 + 30) / (2 + 3), 20]


@pytest.mark.parametrize("row", ["B26"])
def test_a_buffered_answer_is_flagged_and_its_whole_rate_stands_beside(row: str) -> None:
    stream = np.linspace(9900, 10_000, 500).tolist()
    run = make_run([record(at=stream, reported_output=500)])
    found = summarise(run)
    assert found.levels[0].decode_rate.mean == pytest.approx(4990)
    assert found.levels[0].per_request_rate.mean == pytest.approx(50)
    assert found.levels[0].flags == {"buffered": 1}
    assert "one burst" in found.warnings[0]


def test_an_ordinary_answer_is_not_called_buffered() -> None:
    stream = every(10, first=2000, count=5)
    assert summarise(make_run([record(at=stream)])).levels[0].flags == {}


def test_the_prefill_rate_leaves_cached_tokens_out() -> None:
    run = make_run([record(at=[500], reported_input=1200, cached_input=200), record(1, at=[500])])
    assert metric(run, "prefill_rate") == [2000, None]


def test_one_slot_makes_later_arrivals_wait_and_the_client_is_not_to_blame() -> None:
    """10 requests a second, 8 of them, 500 ms each, one slot."""
    waiting = [
        record(number, sent=500 * number, due_ms=100 * number, at=[500]) for number in range(8)
    ]
    found = summarise(make_run(waiting)).levels[0]
    assert found.e2e.mean == 500
    assert (found.e2e_from_due.mean, found.e2e_from_due.max) == (1900, 3300)
    assert found.slot_wait.mean == 1400
    assert (found.lateness.mean, found.send_lag.max) == (1400, 0)


def test_send_lag_is_what_connecting_and_throttling_leave() -> None:
    times = {"connect_start_ms": 112, "connected_ms": 120, "tls_done_ms": 130, "connection": "new"}
    late = record(sent=150, due_ms=100, slot_ms=110, throttled_ms=5, at=[10], **times)
    run = make_run([late])
    assert metric(run, "slot_wait") == [10]
    assert metric(run, "send_lag") == [150 - 110 - 18 - 5]
    assert metric(run, "lateness") == [50]


def test_what_a_request_waited_for_in_earlier_attempts_is_no_send_lag() -> None:
    times = {"connect_start_ms": 112, "connected_ms": 120, "earlier_connects_ms": 500}
    run = make_run([record(sent=630, due_ms=100, slot_ms=105, attempts=2, at=[10], **times)])
    assert metric(run, "send_lag") == [630 - 105 - 8 - 500]


def test_a_connection_made_ahead_takes_nothing_off_the_send_lag() -> None:
    times = {"connect_start_ms": 10, "connected_ms": 30, "connection": "new"}
    run = make_run([record(sent=103, due_ms=100, slot_ms=100, at=[10], **times)])
    assert metric(run, "send_lag") == [3]


def test_a_negative_time_is_counted_and_never_printed() -> None:
    wrong = record(0, sent=100, at=[50, 40], headers_ms=99)
    found = summarise(make_run([wrong, record(1, sent=100, at=[50, 60])])).levels[0]
    assert found.internal_errors == 3  # headers before the request, a gap and a TPOT of -10 ms
    assert (found.itl.n, found.itl.min) == (1, 10)
    assert found.ttfb.n == 0


@pytest.mark.parametrize("row", ["B07"])
def test_failures_carry_no_ttft_into_the_percentiles(row: str) -> None:
    failures = [record(number, outcome="refused", http_status=500) for number in range(6)]
    good = [record(number, at=[100]) for number in range(6, 10)]
    found = summarise(make_run([*failures, *good])).levels[0]
    assert (found.ttft.p50.value, found.ttft.n) == (100, 4)
    assert found.error_rate == 0.6
    assert found.ttft_failures_infinite.p50 == Quantile(value=100, above=True, low=100)


def test_a_stream_that_was_cut_does_not_shorten_e2e() -> None:
    cut = record(0, at=[10, 20], outcome="truncated", end_ms=21)
    found = summarise(make_run([cut, record(1, at=[10, 1000])])).levels[0]
    assert (found.e2e.n, found.e2e.min, found.itl.n) == (1, 1000, 1)


def test_an_unfinished_request_is_a_lower_bound() -> None:
    cut = record(0, at=[30, 40], outcome="unfinished", end_ms=5000)
    silent = record(1, outcome="unfinished", end_ms=7000)
    found = summarise(make_run([cut, silent, record(2, at=[10, 20])])).levels[0]
    assert (found.ttft.n, found.ttft.censored) == (3, 1)
    assert found.ttft.p50 == Quantile(value=30)
    assert found.ttft.p90.above
    assert (found.e2e.censored, found.e2e.p50.value, found.e2e.p50.above) == (2, 5000, True)


def test_a_request_belongs_to_the_window_in_which_it_was_due() -> None:
    inside = record(0, sent=1500, due_ms=990, at=[10])  # sent late: due before the window
    late = record(1, sent=2500, due_ms=1990, at=[10])
    warm = record(2, sent=1200, at=[10], phase="warmup")
    run = make_run([inside, late, warm], [level(window=(1000, 2000))])
    found = summarise(run).levels[0]
    assert (found.arrivals, found.window_s) == (1, 1.0)


def test_arrivals_are_the_sum_over_outcomes() -> None:
    outcomes = ["ok", "refused", "timeout", "broken", "truncated", "dropped", "unfinished",
                "cancelled", "client_fault", "ok"]  # fmt: skip
    run = make_run([record(number, outcome=outcome) for number, outcome in enumerate(outcomes)])
    found = summarise(run).levels[0]
    assert found.arrivals == sum(found.outcomes.values()) == 10
    assert found.outcomes["ok"] == 2
    assert found.error_rate == pytest.approx(4 / 6)


@pytest.mark.parametrize("row", ["F14"])
def test_a_level_without_success_has_empty_cells_and_its_errors(row: str) -> None:
    wrong = [
        record(number, outcome="refused", error_class="overloaded", http_status=503, error="busy")
        for number in range(30)
    ]
    found = summarise(make_run([*wrong, record(30, outcome="timeout", error_class="idle")]))
    only = found.levels[0]
    assert only.ttft.p50.value is only.e2e.mean is only.tokens_per_chunk is None
    assert only.requests_per_s == only.output_tokens_per_s == 0
    assert (only.error_rate, only.objectives[0].verdict) == (1.0, "missed")
    top = only.errors[0]
    assert (top.error_class, top.n, top.http_status, top.sample) == ("overloaded", 30, 503, "busy")
    strict(to_json(found))


def test_a_failure_says_whose_fault_it_is() -> None:
    wrong = [
        record(0, outcome="refused", error_class="context_length"),
        record(1, outcome="broken", error_class="server_error_in_stream"),
        record(2, outcome="client_fault", error_class="client_fd_limit"),
    ]
    found = summarise(make_run(wrong)).levels[0]
    faults = {one.error_class: one.fault for one in found.errors}
    assert faults == {
        "context_length": "request",
        "server_error_in_stream": "server",
        "client_fd_limit": "client",
    }
    assert found.invalid is not None
    assert "client_fd_limit" in found.invalid


def test_rounds_of_a_level_are_pooled() -> None:
    first = [record(number, at=[100]) for number in range(3)]
    second = [record(number, sent=5000, at=[200], round=1) for number in range(3, 6)]
    levels = [level(window=(0, 1000)), level(window=(5000, 7000), round=1)]
    found = summarise(make_run([*first, *second], levels)).levels
    assert len(found) == 1
    assert (found[0].rounds, found[0].window_s, found[0].arrivals) == (2, 3.0, 6)
    assert (found[0].ttft.n, found[0].ttft.p50.value) == (6, 150)
    assert found[0].requests_per_s == 2


def test_classes_of_a_mix_are_summed_up_apart_and_together() -> None:
    short = [record(number, at=[100], class_="short") for number in range(4)]
    long = [record(number, at=[900], class_="long") for number in range(4, 6)]
    found = summarise(make_run([*short, *long]))
    assert found.levels[0].arrivals == 6
    assert [(one.class_, one.arrivals, one.ttft.mean) for one in found.by_class] == [
        ("long", 2, 900),
        ("short", 4, 100),
    ]
    assert summarise(make_run([record()])).by_class == []


def test_a_classs_peak_is_its_own() -> None:
    records = [record(0, at=[10], class_="short"), record(1, at=[10], class_="long")]
    found = summarise(make_run(records, [level(peak_in_flight=2)]))
    assert found.levels[0].in_flight_peak == 2
    assert [one.in_flight_peak for one in found.by_class] == [1, 1]


def test_the_clients_figures_of_several_rounds_are_the_worst_of_each() -> None:
    rounds = [
        level(client={"loop_lag_ms": 3.0, "loop": "uvloop"}),
        level(round=1, client={"loop_lag_ms": 2.0, "loop": "uvloop", "gc": 1}),
    ]
    found = summarise(make_run([], rounds)).levels[0]
    assert found.client == {"loop_lag_ms": 3.0, "loop": "uvloop", "gc": 1}


def test_a_level_that_the_run_called_invalid_stays_so() -> None:
    found = summarise(make_run([record(at=[10])], [level(invalid="a worker was lost")]))
    assert found.levels[0].invalid == "a worker was lost"


def test_an_interrupted_run_is_summed_up_to_where_it_got() -> None:
    cut = level(1, measure_end_ns=None, end_ns=ns(4000), stop_reason="interrupted")
    warming = level(2, measure_start_ns=None, measure_end_ns=None)
    records = [record(0, at=[10]), record(1, level=1, at=[10]), record(2, level=2, phase="warmup")]
    found = summarise(make_run(records, [level(), cut, warming], status="interrupted"))
    assert [one.window_s for one in found.levels] == [60.0, 4.0, None]
    assert [one.arrivals for one in found.levels] == [1, 1, 0]
    assert found.levels[2].requests_per_s is None
    strict(to_json(found))


def test_a_level_that_a_crash_kept_out_of_the_manifest_is_still_there() -> None:
    records = [record(0, at=[10]), record(1, level=1, sent=100, at=[10, 1000])]
    found = summarise(make_run(records, status="running"))
    assert [one.label for one in found.levels] == ["level 0", "level 1"]
    assert (found.levels[1].arrivals, found.levels[1].window_s) == (1, 1.0)


def test_a_run_without_any_request_has_a_summary() -> None:
    found = summarise(make_run([]))
    assert (found.levels[0].arrivals, found.levels[0].error_rate) == (0, None)
    strict(to_json(found))


def test_the_slowest_are_the_unfinished_and_then_the_longest() -> None:
    records = [record(number, at=[10, 100 + number]) for number in range(30)]
    records.append(record(30, at=[50], outcome="unfinished", end_ms=400))
    shown = summarise(make_run(records)).slowest
    assert [one.id for one in shown[:3]] == [30, 29, 28]
    assert (len(shown), shown[0].e2e, shown[0].ttft) == (20, 400, 50)
    assert (shown[1].largest_gap, shown[1].output_tokens) == (119, 2)


def test_lag_and_coalesced_chunks_are_told() -> None:
    at = [ns(moment) for moment in (10, 20, 20, 30)]
    one = record(at=[10, 20, 20, 30], chunks=chunks(at, lag_ns=[4000, 5000, 6000], coalesced=[1]))
    found = summarise(make_run([one]))
    assert found.levels[0].coalesced_share == 0.25
    assert (found.levels[0].user_lag.n, found.levels[0].user_lag.max) == (3, 0.006)
    assert any("25% of chunks" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("records", "plan", "words"),
    [
        ([record(at=[10], sent=1000)], level(concurrency=4), "requests were in flight"),
        ([record(outcome="dropped")], level(), "1 of 1 arrivals found no free slot"),
        ([record(outcome="unfinished", end_ms=9)], level(), "cut when the drain ended"),
        ([record(at=[900])], level(window=(0, 20)), "shorter than one request"),
        ([record(at=[20, 10])], level(), "an error of the measurement itself"),
    ],
    ids=["in-flight", "dropped", "unfinished", "window", "negative"],
)
def test_what_spoils_a_figure_is_a_check(
    records: list[Record], plan: dict[str, Any], words: str
) -> None:
    checks = summarise(make_run(records, [plan])).levels[0].checks
    assert any(words in check.text for check in checks if check.verdict != "pass")


def test_tokens_counted_as_chunks_are_told() -> None:
    found = summarise(make_run([record(at=[10], token_source="chunks")]))
    assert any("counted as chunks" in warning for warning in found.warnings)


def test_a_clean_run_warns_of_nothing() -> None:
    busy = [record(number, sent=100 * number, at=[50, 100]) for number in range(10)]
    plan = level(window=(0, 1000), concurrency=1)
    assert summarise(make_run(busy, [plan])).warnings == []


def test_the_summary_is_strict_json_with_the_words_of_the_project() -> None:
    found = strict(to_json(summarise(make_run([record(at=[10, 20], class_="short")]))))
    assert found["levels"][0]["ttft"]["p50"]["value"] == 10
    assert found["by_class"][0]["class"] == "short"
    assert found["levels"][0]["tls"]["mean"] is None


def test_numbers_that_are_not_finite_are_written_as_null() -> None:
    broken = summarise(make_run([record(at=[10])], target={"x": float("nan"), "y": float("inf")}))
    assert strict(to_json(broken))["target"] == {"x": None, "y": None}
