"""What is cut off a level's beginning, and whether it stayed steady."""

from dataclasses import replace

import numpy as np
import pytest
from make import level, make_run, record
from virtual import as_load, closed_run, open_run, poisson, queue_run, scenario_of

from loadgen.analysis.metrics import summarise
from loadgen.analysis.summary import Check, LevelSummary
from loadgen.analysis.table import RunData
from loadgen.report.write import view_of
from loadgen.simulator.engine import EngineSpec

pytestmark = pytest.mark.slow  # seconds in all

COLD = EngineSpec(cold_start_s=5.0)
RAMP = {"segments": [{"from": "1/s", "to": "9/s", "for": "60s"}]}
LOG = {"speed": 2.0}


def only(run: RunData) -> LevelSummary:
    (found,) = summarise(run).levels
    return found


def check(found: LevelSummary, start: str) -> Check:
    return next(one for one in found.checks if one.name.startswith(start))


def left_out(run: RunData) -> str:
    course = view_of(run, summarise(run)).course
    index = [column.label for column in course.columns].index("left out")
    return course.rows[0][index].text


def waves(durations_ms: list[float], *, warmup: int = 0) -> RunData:
    """One slot: each request begins when the one before it ended."""
    records, now = [], 0.0
    for number, took in enumerate(durations_ms):
        phase = "warmup" if number < warmup else "measure"
        records.append(record(number, sent=now, at=[took / 2, took], phase=phase))
        now += took
    begun = sum(durations_ms[:warmup])
    return make_run(records, [level(window=(begun, now), concurrency=1)])


COLD_WAVE = [50_000.0] * 10 + [900.0] * 90


@pytest.mark.parametrize("row", ["F02"])
def test_a_cold_wave_is_in_the_figures_only_where_nothing_takes_it_out(row: str) -> None:
    cold, warm = waves(COLD_WAVE), waves(COLD_WAVE, warmup=10)
    off = scenario_of(cold, truncate="off")
    assert only(off).e2e.p95.value == pytest.approx(50_000)
    assert only(cold).e2e.p95.value == only(warm).e2e.p95.value == 900
    assert left_out(warm).startswith("warm-up: 10 requests; nothing cut")
    assert left_out(cold) == "no warm-up; cut: 500 s, 10 requests"
    assert left_out(off) == "no warm-up; nothing cut (truncate: off)"


def test_the_figures_without_the_cut_stand_beside() -> None:
    run = waves(COLD_WAVE)
    uncut = only(run).uncut
    assert uncut is not None
    assert (uncut.arrivals, uncut.e2e.p95.value) == (100, pytest.approx(50_000))
    rows = view_of(run, summarise(run)).uncut.rows
    assert [row[1].text for row in rows] == ["of the window", "of all of measure"]
    assert [row[-1].text for row in rows] == ["900", "50,000"]


def test_where_nothing_was_cut_no_second_set_stands_beside() -> None:
    assert only(scenario_of(waves(COLD_WAVE), truncate="off")).uncut is None
    assert only(waves([900.0] * 100)).uncut is None


def test_under_fifty_requests_nothing_is_cut_and_the_report_says_so() -> None:
    run = waves([50_000.0] * 5 + [900.0] * 44)
    assert only(run).arrivals == 49
    assert only(run).steadiness.truncation == "too few"
    assert left_out(run) == "no warm-up; nothing cut (under 50 requests)"


@pytest.mark.parametrize("told", ["off", False], ids=["a word", "as older YAML reads it"])
def test_truncate_off_keeps_all(told: object) -> None:
    assert only(scenario_of(waves(COLD_WAVE), truncate=told)).arrivals == 100


def test_a_load_that_varies_by_itself_is_not_cut_and_not_judged() -> None:
    due = np.cumsum(np.linspace(1, 0.3, 200))
    run = as_load(queue_run(due, np.full(200, 0.2)), **RAMP)
    assert left_out(run) == "no warm-up; nothing cut (the load itself varies)"
    assert only(run).steadiness.verdict == "unknown"


@pytest.mark.parametrize("asked", [RAMP, LOG], ids=["segments", "a log"])
def test_a_load_that_varies_saturates_as_well_and_its_times_are_withheld(
    asked: dict[str, object],
) -> None:
    run = as_load(queue_run(np.arange(480) / 8, np.full(480, 0.2)), **asked)
    found = only(run)
    assert (found.steadiness.verdict, found.ttft.withheld) == ("saturated", True)
    assert found.steadiness.drifting == []
    told = check(found, "queue grew by")
    assert told.value == pytest.approx(180, abs=3)
    assert told.text.endswith("withheld; send less (segments, speed)")


@pytest.mark.parametrize(
    ("asked", "verdict"),
    [({"rate": "8/s"}, "saturated"), ({"sessions": 512}, "drift"), ({"concurrency": 512}, "drift")],
    ids=["open", "sessions", "closed"],
)
def test_where_the_manifest_says_little_of_a_level_its_kind_is_as_asked(
    asked: dict[str, object], verdict: str
) -> None:
    run = as_load(queue_run(np.arange(480) / 8, np.full(480, 0.2)), **asked)
    assert only(run).steadiness.verdict == verdict


@pytest.mark.parametrize("asked", [RAMP, LOG], ids=["segments", "a log"])
def test_a_server_is_not_blamed_for_arrivals_that_become_fewer(asked: dict[str, object]) -> None:
    due = np.cumsum(np.linspace(0.1, 0.4, 600))
    found = only(as_load(queue_run(due, np.full(600, 0.2), servers=8), **asked))
    assert found.steadiness.thirds_change < -0.4
    assert found.steadiness.drifting == []
    assert {one.name for one in found.checks if one.verdict != "pass"} == set()


@pytest.mark.parametrize("asked", [RAMP, LOG], ids=["segments", "a log"])
def test_a_queue_that_came_and_went_is_told_and_does_not_saturate(asked: dict[str, object]) -> None:
    """5 requests/s are served; 2 come, 20 for 10 s of 120, then 2 again."""
    calm, spike = np.arange(100) / 2, 50 + np.arange(200) / 20
    due = np.concatenate([calm, spike, 60 + np.arange(120) / 2])
    run = as_load(queue_run(due, np.full(420, 0.2)), **asked)
    found = summarise(run)
    steady = found.levels[0].steadiness
    assert (steady.verdict, steady.queue_peak) == ("unknown", pytest.approx(150, abs=3))
    assert not found.levels[0].ttft.withheld
    (told,) = [text for text in found.warnings if "a queue came and went" in text]
    assert "requests waited for a first token, and TTFT from due was 2" in told


def test_a_queue_that_stays_short_is_no_finding() -> None:
    due = poisson(3.5, 800, seed=4)
    service = np.random.default_rng(5).exponential(0.2, 800)
    run = as_load(queue_run(due, service, servers=4), **LOG)
    assert only(run).steadiness.queue_peak is None
    assert summarise(run).warnings == []


def test_a_series_that_never_settles_cuts_nothing_and_is_told() -> None:
    run = waves([1000.0 + 50 * number for number in range(100)])
    found = only(run).steadiness
    assert (found.settled, found.cut_requests) == (False, 0)
    assert left_out(run).endswith("no steady beginning was found")


def test_a_cut_never_takes_half_of_the_requests() -> None:
    records = [record(number, at=[100, 200]) for number in range(60)]  # all at once, then nothing
    assert only(make_run(records)).arrivals == 60


def test_rates_and_requests_belong_to_what_is_left() -> None:
    found = only(waves(COLD_WAVE))
    assert (found.e2e.n, found.arrivals, found.window_s) == (90, 100, pytest.approx(81))
    assert found.requests_per_s == pytest.approx(90 / 81, rel=0.02)


def test_a_cold_start_spoils_a_run_without_warm_up_unless_it_is_cut() -> None:
    cold = closed_run(COLD, slots=16, requests=100)
    warm = closed_run(COLD, slots=16, requests=100, warmup=16)
    off = scenario_of(cold, truncate="off")
    assert only(off).ttft.p95.value > 5000
    assert only(cold).ttft.p95.value < 200
    assert only(warm).ttft.p95.value < 200
    assert "cut: 5" in left_out(cold)
    assert left_out(warm).startswith("warm-up: 16 requests")
    assert left_out(off) == "no warm-up; nothing cut (truncate: off)"


@pytest.mark.parametrize("row", ["E17"])
def test_what_a_cold_first_wave_took_is_told_beside_figures_that_leave_it_out(row: str) -> None:
    run = closed_run(COLD, slots=16, requests=100, warmup=16)
    found = only(run)
    assert found.ttft.max < 200
    assert found.warmup_ttft_max == pytest.approx(5_080, abs=80)
    assert found.warmup_s == pytest.approx(5.6, abs=0.4)  # until the first of the wave ended
    course = view_of(run, summarise(run)).course
    index = [column.label for column in course.columns].index("warm-up")
    assert course.rows[0][index].text == f"{found.warmup_s:.2f} / {found.warmup_ttft_max:,.0f}"


@pytest.mark.parametrize("row", ["E17"])
def test_an_open_level_that_outruns_its_warm_up_is_cut_until_it_is_warm(row: str) -> None:
    noisy = replace(COLD, noise=0.05)
    found = only(open_run(noisy, due_s=poisson(20, 400, seed=3), warmup=2, rate=20.0))
    assert found.warmup_s < 0.5
    assert found.warmup_ttft_max > 5000
    assert found.steadiness.cut_s > 5
    assert found.ttft.max < 200


def test_warm_ups_of_all_rounds_count_and_a_level_without_one_took_none() -> None:
    facts = {"start_ns": 0, "concurrency": 1}
    rounds = [level(window=(500, 900), **facts), level(window=(300, 900), round=1, **facts)]
    warm = [record(n, at=[ttft], phase="warmup", round=n) for n, ttft in enumerate((400.0, 90.0))]
    found = only(make_run([*warm, record(2, sent=600, at=[50])], rounds))
    assert (found.warmup_s, found.warmup_ttft_max) == (pytest.approx(0.8), 400.0)
    assert only(make_run([record(at=[50])])).warmup_ttft_max is None


@pytest.mark.parametrize("row", ["F12"])
def test_a_rate_that_falls_by_thirds_is_flagged(row: str) -> None:
    records, now = [], 0.0
    for third, rate in enumerate((1425.0, 1331.0, 1237.0)):
        while now < 20_000 * (third + 1):
            took = 100 / rate * 1000  # 100 tokens each, one after the other
            at = np.linspace(took / 100, took, 100)
            records.append(record(len(records), sent=now, at=at, reported_output=100))
            now += took
    found = only(make_run(records, [level(window=(0, 60_000), concurrency=1)]))
    assert found.steadiness.thirds == pytest.approx([1425, 1331, 1237], rel=0.005)
    assert found.steadiness.thirds_change == pytest.approx(-0.132, abs=0.003)
    told = check(found, "output tok/s fell by")
    assert (told.verdict, round(told.value, 3)) == ("warn", pytest.approx(0.132, abs=0.003))


def test_a_thermal_slope_is_found_named_and_numbered() -> None:
    spec = EngineSpec(drift_per_min=0.12, noise=0.02)
    found = only(closed_run(spec, slots=8, requests=1400, warmup=8))
    assert found.window_s == pytest.approx(60, rel=0.2)
    told = check(found, "TPOT rose by")
    assert (told.verdict, told.value) == ("warn", pytest.approx(0.12, abs=0.025))
    assert check(found, "output tok/s fell by").verdict == "warn"


def test_a_steady_engine_does_not_drift() -> None:
    found = only(closed_run(EngineSpec(noise=0.02), slots=8, requests=600, warmup=8))
    assert (found.steadiness.verdict, found.steadiness.drifting) == ("steady", [])


@pytest.mark.parametrize("row", ["G01"])
def test_an_offer_above_what_is_served_is_saturated_and_meets_no_objective(row: str) -> None:
    """5 requests/s are served, 8 offered, for 60 s."""
    run = queue_run(np.arange(480) / 8, np.full(480, 0.2))
    run = replace(run, manifest={**run.manifest, "scenario": {"objectives": ["ttft p50 <= 1h"]}})
    found = only(run)
    assert found.steadiness.verdict == "saturated"
    assert found.steadiness.in_system_growth == pytest.approx(180, abs=3)
    assert [result.verdict for result in found.objectives if "ttft" in result.objective] == [
        "unclear"
    ]
    text = view_of(run, summarise(run)).verdict.text
    assert text.startswith("saturated at made: the queue grew")


def test_percentiles_of_a_saturated_level_are_withheld_and_its_rates_are_not() -> None:
    run = queue_run(np.arange(480) / 8, np.full(480, 0.2))
    found = only(run)
    assert found.ttft.withheld
    assert (found.ttft.p50.value, found.e2e.p95.value) == (None, None)
    assert found.requests_per_s == pytest.approx(5, rel=0.03)
    shown = view_of(run, summarise(run)).levels
    index = [column.label for column in shown.columns].index("TTFT p50")
    assert shown.rows[0][index].text == "withheld"
    assert "ttft-cdf" not in {chart.key for chart in view_of(run, summarise(run)).charts}


def test_a_queue_below_its_capacity_is_not_saturated() -> None:
    due = poisson(3.5, 800, seed=4)
    service = np.random.default_rng(5).exponential(0.2, 800)
    found = only(queue_run(due, service, warmup=200))
    assert found.steadiness.verdict == "steady"
    assert not found.ttft.withheld


def test_a_level_that_fills_up_is_not_saturated() -> None:
    """10 requests/s of 4 s each, servers enough for all: 40 in flight after 4 s of 30."""
    found = only(queue_run(np.arange(300) / 10, np.full(300, 4.0), servers=100))
    assert found.steadiness.in_system_growth > 30
    assert found.steadiness.verdict == "steady"


def test_a_level_that_ends_before_it_is_full_is_still_filling_and_not_saturated() -> None:
    """10 requests/s of 11 s each for 10 s: none of them has ended by then."""
    found = only(queue_run(np.arange(100) / 10, np.full(100, 11.0), servers=256, warmup=2))
    assert (found.steadiness.verdict, found.ttft.withheld) == ("still filling", False)
    told = check(found, "still filling for")
    assert (told.verdict, told.value) == ("warn", pytest.approx(9.7, abs=0.1))
    assert told.text.startswith("requests take 11 s (p95) and the level measured 9.7 s")
    assert "warm up for 11 s or more (each_level.warmup)" in told.text


def test_a_warm_up_as_long_as_a_request_fills_a_level() -> None:
    found = only(queue_run(np.arange(300) / 10, np.full(300, 11.0), servers=256, warmup=115))
    assert found.steadiness.verdict == "steady"


def test_times_that_rise_while_a_level_fills_up_are_no_drift() -> None:
    """TTFT and TPOT follow what is in flight, for as long as a request takes: 17 of 80 s."""
    spec = EngineSpec(max_running=256, kv_tokens=10**7, step_base_s=0.02, step_per_sequence_s=2e-4)
    due = np.arange(320) / 4
    found = only(open_run(spec, due_s=due, warmup=2, rate=4.0, output=500))
    assert (found.steadiness.verdict, found.steadiness.drifting) == ("steady", [])


@pytest.mark.parametrize("late", [0.3, 0.2, 0.1], ids=str)
@pytest.mark.parametrize("ms", [200.0, 700.0], ids=str)
def test_a_rise_that_comes_late_is_drift_and_told_as_from_what_to_what(
    late: float, ms: float
) -> None:
    rng = np.random.default_rng(0)
    later = np.arange(600) >= 600 * (1 - late)
    first = np.where(later, ms, 50.0) * rng.lognormal(0, 0.1, 600)
    records = [record(n, sent=2000.0 * n, at=[one, one + 500]) for n, one in enumerate(first)]
    found = only(make_run(records, [level(window=(0, 1_200_000), concurrency=1)]))
    assert (found.steadiness.verdict, found.steadiness.drifting) == ("drift", ["TTFT"])
    told = check(found, "TTFT rose from 50")
    assert (told.verdict, told.unit) == ("warn", "ms")
    assert told.value == pytest.approx(ms, rel=0.05)
    times = float(told.text.split(" times as much, from the first")[0])
    assert times == pytest.approx(ms / 50, rel=0.05)


def test_a_slow_rise_of_ttft_without_a_growing_queue_is_drift() -> None:
    due, service = np.arange(600) / 2, np.linspace(0.2, 0.26, 600)  # 52 % busy at most
    found = only(queue_run(due, service))
    assert (found.steadiness.verdict, found.steadiness.drifting[0]) == ("drift", "TTFT")
    assert check(found, "TTFT rose by").value == pytest.approx(0.3, abs=0.02)


def test_a_closed_level_is_never_saturated() -> None:
    found = only(closed_run(EngineSpec(drift_per_min=3.0), slots=64, requests=300))
    assert found.steadiness.verdict != "saturated"


def test_the_engine_below_and_above_its_capacity() -> None:
    spec = EngineSpec(noise=0.05)
    below = open_run(spec, due_s=poisson(25, 600, seed=1), warmup=60, rate=25)
    above = open_run(spec, due_s=poisson(60, 600, seed=1), warmup=60, rate=60)
    assert only(below).steadiness.verdict == "steady"
    assert only(above).steadiness.verdict == "saturated"


def test_what_failed_early_is_counted_although_the_window_leaves_it_out() -> None:
    waves_ok = waves(COLD_WAVE)
    early = waves_ok.requests["id"] < 10
    outcome = waves_ok.requests["outcome"].mask(early, "refused")
    error_class = waves_ok.requests["error_class"].mask(early, "server_error")
    run = waves_ok.with_requests(waves_ok.requests.assign(outcome=outcome, error_class=error_class))
    found = only(run)
    assert found.outcomes == {"ok": 90, "refused": 10}
    assert [(error.error_class, error.n) for error in found.errors] == [("server_error", 10)]
    assert [result.verdict for result in found.objectives] == ["missed"]
    assert found.error_rate == pytest.approx(0.1)
