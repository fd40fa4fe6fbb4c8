"""The measurement's own checks: what spoils a run is found, named, numbered; a clean run passes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from make import level, make_run, record, write_run
from report_make import error
from report_make import level as summed
from report_make import summary as run_of
from virtual import closed_run

from loadgen.analysis.checks import with_checks
from loadgen.analysis.metrics import summarise
from loadgen.analysis.soundness import measurement_checks
from loadgen.analysis.summary import (
    Check,
    Distribution,
    LevelSummary,
    ObjectiveResult,
    RoundFigures,
    Steadiness,
)
from loadgen.cli.check import command
from loadgen.record import Record
from loadgen.report.checklist import render_checklist, verdict_line
from loadgen.report.terminal import Look
from loadgen.report.view import first_line
from loadgen.simulator.engine import EngineSpec


def told(made: LevelSummary) -> dict[str, Check]:
    return {one.name: one for one in measurement_checks(made) if one.verdict != "pass"}


def lengths(mean: float) -> Distribution:
    return Distribution(n=400, mean=mean, min=mean, max=mean)


def rounds(*rates: float) -> list[RoundFigures]:
    return [RoundFigures(round=i, output_tokens_per_s=rate) for i, rate in enumerate(rates)]


UNCLEAR = ObjectiveResult(
    objective="ttft p95 <= 1s", verdict="unclear", n=100, misses=5, needed=208
)
GREW = Steadiness(verdict="saturated", in_system_growth=180.4)
FILLING = Steadiness(verdict="still filling", takes_s=11.2, filling_s=10.0)
FAR = Steadiness(verdict="drift", drifting=["TPOT"], tpot_change=13.0, tpot_ends=[50.0, 700.0])
FALLS = Steadiness(verdict="drift", drifting=["output tok/s"], thirds_change=-0.132)


@pytest.mark.parametrize(
    ("spoilt", "name", "value", "verdict"),
    [
        ({"arrivals_told": 400, "records": 397}, "arrivals without a record", 3, "fail"),
        ({"internal_errors": 2}, "negative durations", 2, "fail"),
        ({"invalid": "no ports left"}, "client faults", 0, "fail"),
        ({"outcomes": {"ok": 380, "dropped": 20}}, "dropped", 0.05, "warn"),
        ({"outcomes": {"ok": 360, "dropped": 40}}, "dropped", 0.1, "fail"),
        ({"outcomes": {"ok": 399, "unfinished": 1}}, "unfinished", 0.0025, "warn"),
        ({"in_flight_mean": 7.0}, "in flight, off by", 0.125, "warn"),
        ({"error_rate": 0.02, "errors": [error(n=8)]}, "error rate", 0.02, "warn"),
        ({"error_rate": 0.6, "errors": [error(n=240)]}, "error rate", 0.6, "fail"),
        ({"window_s": 0.5}, "window", 0.5, "warn"),
        ({"ttft": Distribution(n=10), "e2e": Distribution(n=10)}, "sample size", 10, "warn"),
        ({"objectives": [UNCLEAR]}, "requests for ttft p95 <= 1s", 100, "warn"),
        ({"input_tokens": lengths(665.6)}, "input length, off by", 0.3, "warn"),
        ({"output_tokens": lengths(64.0)}, "answers stop early by", 0.5, "warn"),
        ({"output_tokens": lengths(192.0)}, "answers too long by", 0.5, "warn"),
        ({"cached_input_share": 0.9}, "prefix-cache hits", 0.9, "warn"),
        ({"cached_input_share_server": 0.5}, "prefix-cache hits, by the server's counters", 0.5,
         "warn"),
        ({"repeated_prompts": 0.95}, "repeated prompts", 0.95, "warn"),
        ({"steadiness": GREW}, "queue grew by", 180, "warn"),
        ({"steadiness": FILLING}, "still filling for", 10.0, "warn"),
        ({"steadiness": FAR}, "TPOT rose from 50 ms to", 700, "warn"),
        ({"steadiness": FALLS}, "output tok/s fell by", 0.132, "warn"),
        ({"by_round": rounds(100, 130)}, "rounds apart by", 0.184, "warn"),
        ({"roofline_share": 1.2}, "share of the decode roofline", 1.2, "warn"),
    ],
    ids=["record lost", "negative", "client fault", "some dropped", "many dropped", "unfinished",
         "in flight", "some errors", "most failed", "short window", "F01 few samples", "unclear",
         "F06 input", "F08 early stop", "longer", "F04 cached", "server's counters", "F04 repeated",
         "saturated", "filling", "rose far", "F12 fell", "F13 rounds", "roofline"],
)  # fmt: skip
def test_what_spoils_a_level_is_found_named_and_numbered(
    spoilt: dict[str, Any], name: str, value: float, verdict: str
) -> None:
    found = told(summed(**spoilt))
    assert list(found) == [name]
    assert found[name].value == pytest.approx(value, abs=0.0006)
    assert found[name].verdict == verdict
    assert found[name].text
    assert found[name].about == "measurement"


@pytest.mark.parametrize(
    "harmless",
    [
        {},
        {"unasked_tokens": 8.0, "input_tokens": lengths(520.0)},
        {"asked_cached_share": 0.5, "cached_input_share": 0.5},
        {"cached_input_share": 0.03},
        {"asked_output_mean": None},
        {"by_round": rounds(100, 102, 99)},
        {"concurrency": None, "in_flight_mean": 3.0},
        {"sessions": 12, "in_flight_mean": 3.0},
        {"arrivals_told": 432, "records": 432},
    ],
    ids=["sound", "F07 template", "prefix asked for", "nonce and block", "no length asked",
         "like rounds", "open loop", "think time", "all recorded"],
)  # fmt: skip
def test_a_sound_level_passes(harmless: dict[str, Any]) -> None:
    assert told(summed(**harmless)) == {}


def test_needed_requests_are_said() -> None:
    few = Distribution(n=10)
    found = told(summed(ttft=few, e2e=few, objectives=[UNCLEAR]))
    assert "from 20 requests and has an interval from 72" in found["sample size"].text
    assert "208 requests would prove it met" in found["requests for ttft p95 <= 1s"].text


def test_one_prompt_sent_again_and_again_is_a_repeat() -> None:
    same = [record(n, sent=100.0 * n, at=[50, 90], prompt_hash="aa") for n in range(20)]
    unlike = [record(n, sent=100.0 * n, at=[50, 90], prompt_hash=f"{n}") for n in range(20)]
    assert summarise(make_run(same)).levels[0].repeated_prompts == 0.95
    assert summarise(make_run(unlike)).levels[0].repeated_prompts == 0
    assert summarise(make_run([record(at=[10])])).levels[0].repeated_prompts is None


def test_a_prompt_met_in_the_warm_up_counts_as_a_repeat() -> None:
    warm = record(0, at=[5], prompt_hash="aa", phase="warmup")
    again = record(1, sent=10, at=[5], prompt_hash="aa")
    assert summarise(make_run([warm, again])).levels[0].repeated_prompts == 1.0


def test_the_probe_tells_the_templates_tokens() -> None:
    facts = {"asked_input": 128, "reported_input": 140}
    records = [record(n, sent=20.0 * n, at=[5], **facts) for n in range(30)]
    plain = summarise(make_run(records)).levels[0]
    probed = summarise(make_run(records, preflight={"reported_input": 13})).levels[0]
    assert "input length, off by" in told(plain)
    assert (probed.prompt_overhead, "input length, off by" in told(probed)) == (12.0, False)


def test_a_calibrated_length_includes_the_template() -> None:
    facts = {"asked_input": 128, "reported_input": 128}
    records = [record(n, sent=20.0 * n, at=[5], **facts) for n in range(30)]
    exact = {"calibration": "linear", "probes": [[8, 20], [64, 76]]}
    found = summarise(make_run(records, prompts=exact, preflight={"reported_input": 13})).levels[0]
    assert (found.prompt_overhead, found.unasked_tokens) == (12.0, 0.0)
    assert "input length, off by" not in told(found)


@pytest.mark.parametrize(
    ("scenario", "share"),
    [
        ({"prompts": {"shared_prefix_tokens": 50}}, 0.5),
        ({"prompts": {"cache_hit_share": 0.3}}, 0.3),
        ({}, 0.0),
    ],
    ids=["prefix", "wanted share", "none"],
)
def test_the_cache_is_expected_to_meet_what_was_asked_to_be_shared(
    scenario: dict, share: float
) -> None:
    run = make_run([record(at=[5], reported_input=100)], scenario=scenario)
    assert summarise(run).levels[0].asked_cached_share == pytest.approx(share)


def test_of_a_mix_what_is_shared_counts_by_the_tokens_of_each_class() -> None:
    mix = [
        {"name": "short", "weight": 3, "prompts": {}},
        {"name": "long", "weight": 1, "prompts": {"cache_hit_share": 0.4}},
    ]
    sent = [("short", None), ("short", 80), ("short", 120), ("long", 900)]
    records = [
        record(n, at=[5], class_=name, asked_input=100, reported_input=tokens)
        for n, (name, tokens) in enumerate(sent)
    ]
    found = summarise(make_run(records, scenario={"mix": mix}))
    shares = [one.asked_cached_share for one in (*found.levels, *found.by_class)]
    assert shares == pytest.approx([0.4 * 900 / 1200, 0.4, 0.0])
    assert not told(replace(found.levels[0], cached_input_share=0.3)).keys() & {"prefix-cache hits"}


def test_later_turns_repeat_what_was_said_before() -> None:
    turns = [record(n, at=[5], turn=n, conversation="a") for n in range(2)]
    assert summarise(make_run(turns)).levels[0].asked_cached_share == 1.0


def test_arrivals_are_conserved() -> None:
    records = [record(n, sent=10.0 * n, at=[5]) for n in range(8)]
    whole = summarise(make_run(records, [level(arrivals=8)])).levels[0]
    lost = summarise(make_run(records, [level(arrivals=9)])).levels[0]
    assert "arrivals without a record" not in told(whole)
    assert told(lost)["arrivals without a record"].value == 1


def test_the_first_line_warns_of_the_first_doubt_and_counts_the_rest() -> None:
    made = with_checks(run_of(summed(in_flight_mean=7.0, repeated_prompts=0.5)))
    text = first_line(made).text
    assert "mind: concurrency 8: in flight, off by 12.5 % (and 1 more)" in text
    assert "\n" not in text


def test_a_failed_check_of_the_measurement_leads_the_first_line() -> None:
    made = with_checks(run_of(summed(arrivals_told=400, records=390)))
    found = first_line(made)
    assert found.text == "do not use concurrency 8: arrivals without a record 10 requests"
    assert found.tone == "bad"


# --- the verb


def check(*arguments: object) -> Result:
    return CliRunner().invoke(command, list(map(str, arguments)))


def busy(n: int = 100, **facts: object) -> list[Record]:
    """One slot, always busy: each answer takes 100 ms."""
    return [
        record(i, sent=100.0 * i, at=[50, 100], **{"prompt_hash": f"{i}", **facts})
        for i in range(n)
    ]


def one_slot(n: int = 100) -> dict[str, Any]:
    return level(window=(0, 100.0 * n), concurrency=1, arrivals=n)


@pytest.mark.parametrize(
    ("records", "plan", "lax", "strict", "words"),
    [
        (busy(), one_slot(), 0, 0, "pass: all"),
        (busy(10), one_slot(10), 0, 1, "sample size 10 requests (at least 20 requests)"),
        (busy(prompt_hash="aa"), one_slot(), 0, 1, "repeated prompts 99 % (at most 1 %)"),
        (busy(99), one_slot(), 1, 1, "arrivals without a record 1 request (at most 0 requests)"),
        ([], level(), 1, 1, "fail: nothing was measured"),
    ],
    ids=["clean", "F01 few", "F04 repeated", "record lost", "nothing measured"],
)
def test_check_fails_on_a_failed_check_and_under_strict_on_a_warning(
    tmp_path: Path, records: list[Record], plan: dict, lax: int, strict: int, words: str
) -> None:
    run = write_run(tmp_path / "run", records, [plan])
    done = check(run)
    assert (done.exit_code, check(run, "--strict").exit_code) == (lax, strict)
    assert words in done.stdout


def test_check_tells_each_checks_number_and_what_to_do(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", busy(10), [one_slot(10)])
    lines = check(run).stdout.splitlines()
    assert lines[0].startswith("made: warn: 1 of ")
    assert lines[2] == "level 0 (n 10)"
    assert lines[3] == "  warn  sample size 10 requests (at least 20 requests)"
    assert lines[4].strip().startswith("p95 is printed from 20 requests")


def test_check_only_counts_what_passed_unless_all_is_asked_for(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", busy(10), [one_slot(10)])
    short, whole = (check(run, *flags).stdout for flags in ((), ("--all",)))
    passed = whole.count("\n  pass  ")
    assert "  pass  " not in short
    assert short.endswith(f"\n{passed} checks passed (--all lists them)\n")
    assert "--all" not in whole


def test_a_clean_run_is_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", busy(), [one_slot()])
    passed = check(run, "--all").stdout.count("\n  pass  ")
    assert check(run).stdout == f"made: pass: all {passed} checks (--all lists them)\n"


def test_a_level_that_passes_is_not_listed_beside_one_that_does_not() -> None:
    made = with_checks(run_of(summed(), summed(in_flight_mean=7.0, label="other")))
    text = render_checklist(made, look=Look(width=300, colour=False))
    assert "\nother (n " in text
    assert "\nconcurrency 8" not in text


def test_too_small_a_sample_says_what_for() -> None:
    few = Distribution(n=5)
    text = first_line(with_checks(run_of(summed(ttft=few, e2e=few)))).text
    assert "sample size 5 requests (p95 is printed from 20)" in text


def test_questions_among_the_load_are_counted() -> None:
    asked = [record(n, sent=10.0 * n, at=[5], canary={"id": "q"} if n < 3 else None)
             for n in range(9)]  # fmt: skip
    assert summarise(make_run(asked)).levels[0].questions == 3


def test_check_notes_what_the_run_warned_of(tmp_path: Path) -> None:
    facts = {"warnings": ["10.0.0.2 does not answer"]}
    run = write_run(tmp_path / "run", busy(), [one_slot()], **facts)
    notes = [line.strip() for line in check(run).stdout.splitlines() if "note: " in line]
    assert notes == ["note: 10.0.0.2 does not answer"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("interrupted", "the run was interrupted"),
        ("running", "the run has not finished (still running, or killed)"),
        ("failed", "the run failed"),
    ],
)
@pytest.mark.parametrize(("ended", "whole"), [("count", "1 level"), ("interrupted", "0 levels")])
def test_a_run_cut_short_warns_and_fails_under_strict_alone(
    tmp_path: Path, status: str, said: str, ended: str, whole: str
) -> None:
    plan = {**one_slot(), "stop_reason": ended}
    run = write_run(tmp_path / "run", busy(), [plan], status=status)
    done = check(run)
    assert (done.exit_code, check(run, "--strict").exit_code) == (0, 1)
    assert done.stdout.startswith("made: warn: 1 of ")
    assert f"\n  warn  {said}: {whole} measured to the end\n" in done.stdout


def test_what_several_checks_advise_alike_is_said_once() -> None:
    drift = Steadiness(verdict="drift", drifting=["TTFT", "TPOT"], ttft_change=0.2, tpot_change=0.1)
    made = with_checks(run_of(summed(steadiness=drift)))
    text = render_checklist(made, look=Look(width=300, colour=False))
    assert "  warn  TTFT rose by 20 % (at most 5 %)\n  warn  TPOT rose by 10 %" in text
    assert text.count("measure again") == 1


def test_check_tells_n_and_how_many_were_due(tmp_path: Path) -> None:
    cold = [record(0, at=[20_000, 20_100], prompt_hash="x")]
    later = [record(i, sent=20_000 + 100.0 * i, at=[50, 100], prompt_hash=f"{i}")
             for i in range(1, 100)]  # fmt: skip
    plan = level(window=(0, 30_000), concurrency=1, arrivals=100)
    shown = check(write_run(tmp_path / "run", cold + later, [plan]), "--all").stdout
    assert "\nlevel 0 (n 95 in the window, of 100 requests due in measure)\n" in shown


def test_check_of_no_run_is_a_users_mistake(tmp_path: Path) -> None:
    from loadgen.errors import UsageError

    done = check(tmp_path)
    assert isinstance(done.exception, UsageError)
    assert "manifest.json is missing" in str(done.exception)


def test_a_clean_run_of_the_engine_passes_and_a_slow_one_trips_no_check_of_the_client() -> None:
    fast = summarise(closed_run(EngineSpec(noise=0.02), slots=8, requests=200, warmup=8))
    slow = summarise(closed_run(EngineSpec(speed=0.1), slots=8, requests=200, warmup=8))
    assert verdict_line(fast).startswith("pass")
    assert [one for one in slow.levels[0].checks if one.about == "client" and one.text] == []
