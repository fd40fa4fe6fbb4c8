import numpy as np
import pytest
from make import chunks, every, level, make_run, ns, record

from loadgen.analysis import rates
from loadgen.analysis.metrics import summarise
from loadgen.analysis.per_request import measured
from loadgen.analysis.summary import LevelSummary
from loadgen.analysis.table import RunData
from loadgen.analysis.window import placed
from loadgen.record import Record
from loadgen.report.tables import rate_table


def only(run: RunData) -> LevelSummary:
    (found,) = summarise(run).levels
    return found


@pytest.mark.parametrize("row", ["B05"])
def test_a_system_rate_is_a_ratio_of_sums(row: str) -> None:
    slow = record(0, sent=0, at=np.linspace(10, 1000, 100))
    fast = record(1, sent=1000, at=np.linspace(2, 2000, 1000))
    found = only(make_run([slow, fast], [level(window=(0, 3000))]))
    assert found.output_tokens_per_s == pytest.approx(366.7, abs=0.05)
    assert found.per_request_rate.mean == 300


@pytest.mark.parametrize("row", ["B06"])
def test_a_systems_rate_and_a_users_rate_are_two_figures(row: str) -> None:
    users = [record(number, at=np.linspace(50, 5030, 113)) for number in range(32)]
    found = only(make_run(users, [level(window=(0, 5030))]))
    assert found.output_tokens_per_s == pytest.approx(718.9, abs=0.05)
    assert found.per_request_rate.mean == pytest.approx(22.47, abs=0.005)


@pytest.mark.parametrize("row", ["B08"])
def test_fast_failures_change_neither_latency_nor_the_rate_of_what_succeeded(row: str) -> None:
    records, now = [], 0.0
    for number in range(100):
        good = number % 10 == 9
        facts = {"at": [100, 2000]} if good else {"outcome": "refused", "end_ms": now + 5}
        records.append(record(number, sent=now, **facts))
        now += 2000 if good else 5
    assert now == 20_450
    found = only(make_run(records, [level(window=(0, now))]))
    assert (found.e2e.p50.value, found.e2e.n, found.error_rate) == (2000, 10, 0.9)
    assert found.requests_per_s == pytest.approx(0.489, abs=0.0005)


@pytest.mark.parametrize("row", ["B21"])
def test_implied_concurrency_reconciles_the_systems_rate_with_tpot(row: str) -> None:
    assert rates.implied_concurrency(529, 108) == pytest.approx(57.1, abs=0.05)
    assert rates.implied_concurrency(None, 108) is None


def test_implied_concurrency_of_steady_decoders_is_their_number() -> None:
    users = [record(number, at=every(10, first=10, count=100)) for number in range(8)]
    found = only(make_run(users, [level(window=(0, 1000))]))
    assert found.implied_concurrency == pytest.approx(8)


@pytest.mark.parametrize("row", ["B27"])
def test_each_request_has_its_own_span_and_the_system_one_window(row: str) -> None:
    first = record(0, at=every(10, first=767, count=50))
    others = [record(number, at=every(10, first=1530, count=50)) for number in range(1, 4)]
    found = only(make_run([first, *others], [level(window=(0, 2020))]))
    assert (found.tpot.min, found.tpot.max) == (pytest.approx(10), pytest.approx(10))
    assert found.output_tokens_per_s == pytest.approx(200 / 2.02)


def test_tokens_of_requests_that_are_cut_are_counted_beside_those_that_ended() -> None:
    whole = record(0, at=every(100, first=100, count=80))
    cut = record(1, at=every(100, first=100, count=20), outcome="unfinished", end_ms=10_000)
    found = only(make_run([whole, cut], [level(window=(0, 10_000))]))
    assert (found.output_tokens_per_s, found.output_tokens_per_s_ok) == (10.0, 8.0)


def test_a_request_that_straddles_an_edge_counts_by_its_share() -> None:
    before = record(0, sent=500, at=every(100, first=100, count=10), phase="warmup")
    after = record(1, sent=1500, at=every(100, first=100, count=10))
    found = only(make_run([before, after], [level(window=(1000, 2000))]))
    assert found.output_tokens_per_s == 5 + 5
    assert found.requests_per_s == 1  # the first ended inside, the second outside


def test_a_chunk_of_unknown_size_counts_its_share_of_the_tokens() -> None:
    run = make_run([record(at=[500, 1500], reported_output=10)], [level(window=(0, 1000))])
    assert only(run).output_tokens_per_s == 5


def test_a_chunk_of_known_size_counts_its_tokens() -> None:
    sized = chunks([ns(500), ns(1500)], tokens=[2, 8])
    run = make_run([record(at=[500, 1500], chunks=sized)], [level(window=(0, 1000))])
    assert only(run).output_tokens_per_s == 2


def test_hidden_reasoning_never_arrived() -> None:
    hidden = record(at=[100, 200], reported_output=50, reasoning=48, flags=["hidden_reasoning"])
    assert only(make_run([hidden], [level(window=(0, 1000))])).output_tokens_per_s == 2


@pytest.mark.parametrize(
    ("end", "tokens"), [(800, 12.0), (1800, 0.0)], ids=["in-window", "after-window"]
)
def test_a_whole_json_answer_arrives_at_its_end(end: float, tokens: float) -> None:
    whole = record(end_ms=end, reported_output=12, flags=["non_stream_response"])
    assert only(make_run([whole], [level(window=(0, 1000))])).output_tokens_per_s == tokens


def test_prompts_count_when_their_prefill_is_over() -> None:
    done = record(0, at=[400, 500], reported_input=100)
    cut = record(1, at=[600], asked_input=90, outcome="unfinished", end_ms=1000)
    later = record(2, at=[1400], reported_input=100)
    run = make_run([done, cut, later], [level(window=(0, 1000))])
    assert only(run).total_tokens_per_s == (100 + 90) + (2 + 1)


def test_without_any_usage_there_is_no_total_rate() -> None:
    assert only(make_run([record(at=[10])])).total_tokens_per_s is None


def test_mean_in_flight_is_a_time_average() -> None:
    half = record(0, sent=0, at=[500])
    straddling = record(1, sent=900, at=[50, 700])
    waiting = record(2, sent=None, due_ms=100, slot_ms=200, end_ms=600, outcome="broken")
    found = only(make_run([half, straddling, waiting], [level(window=(0, 1000))]))
    assert found.in_flight_mean == pytest.approx(0.5 + 0.1 + 0.4)
    assert found.in_flight_peak == 2


def test_the_peak_that_the_run_saw_stands() -> None:
    found = only(make_run([record(at=[10])], [level(peak_in_flight=7)]))
    assert found.in_flight_peak == 7


def test_a_slot_handed_on_is_one_request_in_flight() -> None:
    run = placed(measured(make_run([record(0, at=[100]), record(1, sent=100, at=[100])])))
    assert rates.peak_in_flight(run) == 1


def test_an_event_at_the_end_of_the_window_is_in_it_and_one_at_its_start_is_not() -> None:
    run = make_run([record(at=[1000, 2000, 2001])], [level(window=(1000, 2000))])
    assert only(run).output_tokens_per_s == 1


def test_a_window_without_length_has_no_rates() -> None:
    found = only(make_run([record(at=[10])], [level(window=(0, 0))]))
    assert (found.arrivals, found.requests_per_s, found.goodput) == (1, None, None)


def test_the_cached_share_is_of_the_prompts_whose_cache_is_told() -> None:
    told = record(0, at=[10], reported_input=100, cached_input=60)
    silent = record(1, at=[10], reported_input=100)
    assert only(make_run([told, silent])).cached_input_share == 0.6
    assert only(make_run([silent])).cached_input_share is None


@pytest.mark.parametrize("row", ["B09"])
def test_a_request_cut_at_the_end_still_counts_the_tokens_it_gave(row: str) -> None:
    whole = record(0, at=every(100, first=100, count=80), reported_output=80)
    cut = record(1, at=every(400, first=400, count=20), outcome="unfinished", end_ms=10_000)
    found = only(make_run([whole, cut], [level(window=(0, 10_000))]))
    assert (found.output_tokens_per_s_ok, found.output_tokens_per_s) == (8.0, 10.0)
    assert (found.outcomes, found.error_rate) == ({"ok": 1, "unfinished": 1}, 0.0)
    assert (found.e2e.n, found.e2e.censored, found.e2e.min) == (2, 1, 8000)


@pytest.mark.parametrize("row", ["B19"])
def test_a_rate_is_divided_by_the_measured_time_alone(row: str) -> None:
    def at_once(number: int, start: float, phase: str) -> Record:
        return record(number, sent=start, at=[1, 2], phase=phase)

    warm = [at_once(number, 10 * number, "warmup") for number in range(6000)]
    counted = [at_once(6000 + i, 60_000 + 10 * i, "measure") for i in range(18_000)]
    plan = level(window=(60_000, 240_000), end_ns=ns(340_000))
    assert only(make_run([*warm, *counted], [plan])).requests_per_s == pytest.approx(100)


@pytest.mark.parametrize("row", ["B20"])
def test_the_whole_windows_rate_and_the_rate_between_ends_are_two_labelled_figures(
    row: str,
) -> None:
    records = [record(number, at=[9000 + 1000 * (number + 1)]) for number in range(5)]
    run = make_run(records, [level(window=(0, 14_000))])
    found = only(run)
    assert found.requests_per_s == pytest.approx(0.357, abs=0.0005)
    assert found.requests_per_s_between_ends == 1.0
    labels = [column.label for column in rate_table([found]).columns]
    assert {"requests", "first end to last"} <= set(labels)


def waves(*starts_ms: float, apart_ms: float = 10, of: int = 4) -> list[Record]:
    """Ends of clients in step: so many at each start, one after another."""
    ends = [start + apart_ms * number for start in starts_ms for number in range(of)]
    return [record(number, at=[end]) for number, end in enumerate(ends)]


def test_of_clients_in_step_only_the_ends_after_the_first_wave_count() -> None:
    """8 ends from 1030 to 3030 ms; all but the first would be 11 in 2.03 s, 5.42/s."""
    found = only(make_run(waves(1000, 2000, 3000), [level(window=(0, 4000))]))
    assert found.requests_per_s_between_ends == pytest.approx(4.0)


def test_a_stall_does_not_make_one_wave_of_all_ends_before_it() -> None:
    ends = np.array([1, 2, 3, 4, 5, 9, 10, 11, 12, 13], dtype=float)
    assert rates.first_wave(ends) == 1
    pairs = np.array([0, 0.01, 1, 1.01, 2, 2.01, 3, 3.01, 8, 8.01, 9, 9.01, 10, 10.01, 11, 11.01])
    assert rates.first_wave(pairs) == 2


def test_independent_ends_come_one_by_one() -> None:
    rng = np.random.default_rng(7)
    found = [rates.first_wave(np.cumsum(rng.exponential(size=60))) for _ in range(200)]
    assert found.count(1) == 200
    assert rates.first_wave(np.array([5.0])) == rates.first_wave(np.array([5.0, 5.0])) == 1


def test_waves_whose_ends_scatter_over_a_fifth_of_their_time_are_still_waves() -> None:
    rng = np.random.default_rng(3)
    ends = np.sort(np.repeat(np.arange(12.0), 16) + rng.uniform(0, 0.2, 192))
    assert rates.first_wave(ends) == 16


def test_tokens_by_slices_add_up_to_the_windows_tokens() -> None:
    run = make_run([record(at=every(10, first=10, count=100))], [level(window=(0, 1000))])
    facts = placed(measured(run))
    slices = rates.output_in_slices(facts, 4)
    assert slices.tolist() == [100, 100, 100, 100]
    assert slices.mean() == rates.output_tokens(facts)


def test_requests_that_end_in_waves_are_served_evenly() -> None:
    """Four at a time, each wave takes 100 ms; a slice of 40 ms sees one wave end, or none."""
    waves = [
        record(4 * wave + slot, sent=100.0 * wave, at=[99, 100])
        for wave in range(4)
        for slot in range(4)
    ]
    run = make_run(waves, [level(window=(0, 400), concurrency=4)])
    facts = placed(measured(run))
    assert rates.served_in_slices(facts, 10) == pytest.approx([40.0] * 10)
    assert rates.ended_in_slices(facts, 10).max() > 2 * 40
