"""Runs held against a baseline: unlike conditions first, and no difference without evidence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from compare_make import changes, compared, noise, side, simulated, timed
from drive import strict_json
from make import level, make_run, record, write_run

from loadgen.analysis.alike import mismatches, misnamed, same_plan
from loadgen.analysis.compare import BETTER, SAME, UNKNOWN, WORSE, verdict_of
from loadgen.analysis.stats import Interval
from loadgen.analysis.table import RunData
from loadgen.cli.compare import command
from loadgen.errors import UsageError
from loadgen.report.compare import FORMATS, compare_view, render_comparison
from loadgen.simulator.engine import EngineSpec

pytestmark = pytest.mark.slow  # whole runs: seconds each

PROMPTS = {"source": "synthetic", "input_tokens": 64, "output_tokens": 4}


def told(**facts: Any) -> RunData:
    """A small run whose manifest says this."""
    return timed([100.0, 101.0], **facts)


@pytest.mark.parametrize("row", ["F17"])
def test_every_unlike_condition_is_named_before_any_figure(row: str) -> None:
    first = told(
        conditions={"gpu": "1 × H100"},
        scenario={"prompts": PROMPTS, "request": {"temperature": 0}, "seed": 1},
        prompts={"hash": "aa"},
    )
    other = told(
        conditions={"gpu": "1 × H200"},
        scenario={"prompts": {**PROMPTS, "input_tokens": 512}, "request": {}, "seed": 1},
        prompts={"hash": "bb"},
    )
    found = compared(first, other)
    values = {one.what: one.values for one in found.mismatches}
    assert values == {
        "conditions.gpu": ["1 × H100", "1 × H200"],
        "prompts.input_tokens": ["64", "512"],
        "prompts.contents": ["aa", "bb"],
        "request.temperature": ["0", "not told"],
    }
    for form in ("terminal", "markdown", "html"):
        text = render_comparison(found, form)
        assert text.index("H200") < text.index("TTFT p50")
        assert "4 conditions differ" in text[: text.index("H200")]


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"target": {"model": "other"}}, "target.model"),
        ({"target": {"model": "tiny", "engine_version": "2"}}, "target.engine_version"),
        ({"client": {"cpus": 4}}, "client.cpus"),
        ({"loadgen": "9.9"}, "loadgen"),
        ({"scenario": {"objectives": [], "each_level": {"drain": "5s"}}}, "each_level.drain"),
        ({"scenario": {"objectives": [], "quality": {"set": "a"}}}, "quality.set"),
        ({"prompts": {"golden": {"hash": "ab"}}}, "quality.contents"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_condition_that_differs_is_named(facts: dict[str, Any], named: str) -> None:
    assert [one.what for one in mismatches([told(), told(**facts)])] == [named]


def test_where_the_server_listens_is_no_condition() -> None:
    urls = [told(target={"model": "tiny", "url": f"http://h{i}"}) for i in (1, 2)]
    assert mismatches(urls) == []


def connecting(*, preflight_ms: float | None, request_ms: float | None = None) -> RunData:
    """A run that took so long to connect; request_ms: as did a request that opened a connection."""
    opened = {} if request_ms is None else {"connect_start_ms": 0, "connected_ms": request_ms}
    facts = {} if preflight_ms is None else {"preflight": {"connect_ns": preflight_ms * 1e6}}
    return make_run([record(0, sent=0, at=[900], **opened)], **facts)


@pytest.mark.parametrize(
    ("first", "other", "told"),
    [
        ({"preflight_ms": 0.2}, {"preflight_ms": 45}, ["0.2 ms to connect", "45 ms to connect"]),
        ({"preflight_ms": 12}, {"preflight_ms": 0.5}, ["12 ms to connect", "0.5 ms to connect"]),
        ({"preflight_ms": 0.1}, {"preflight_ms": 9.9}, None),
        ({"preflight_ms": 45}, {"preflight_ms": 80}, None),
        ({"preflight_ms": 0.2}, {"preflight_ms": 30, "request_ms": 0.2}, None),
        ({"preflight_ms": 0.2}, {"preflight_ms": None}, None),
        ({"preflight_ms": None, "request_ms": 0.2}, {"preflight_ms": 45},
         ["0.2 ms to connect", "45 ms to connect"]),
        ({"preflight_ms": None}, {"preflight_ms": None}, None),
    ],
    ids=["far", "near", "a busy host", "both far", "one slow connect", "not told", "of a request",
         "neither told"],
)  # fmt: skip
def test_how_far_the_server_was_is_a_condition(
    first: dict[str, float], other: dict[str, float], told: list[str] | None
) -> None:
    found = compared(connecting(**first), connecting(**other))
    assert [one.values for one in found.mismatches] == ([told] if told else [])
    assert found.unlike == bool(told)
    assert not compared(connecting(**first), connecting(**other), varies=["client"]).unlike


def test_what_is_meant_to_differ_makes_runs_unlike_no_longer() -> None:
    runs = [told(conditions={"quantisation": word, "gpu": "x"}) for word in ("fp16", "int4")]
    assert compared(*runs).unlike
    assert not compared(*runs, varies=["conditions.quantisation"]).unlike
    assert not compared(*runs, varies=["conditions"]).unlike
    assert compared(*runs, varies=["cond"]).unlike


@pytest.mark.parametrize(
    "word",
    ["conditions", "conditions.gpu", "conditions.rack", "conditions.weights", "target", "client",
     "client.distance", "levels", "limits.total", "prompts.input_tokens.mean", "quality.share",
     "concurrency 1: at_cap"],
)  # fmt: skip
def test_a_condition_that_happens_not_to_differ_may_be_meant_to(word: str) -> None:
    rack = timed([100.0] * 3, conditions={"gpu": "x", "rack": 4})
    assert not misnamed([word], [rack, rack])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("gpu", "did you mean conditions.gpu?"),
        ("weights", "did you mean conditions.weights?"),
        ("Conditions.GPU", "did you mean conditions.gpu?"),
        ("condition", "did you mean conditions?"),
        ("prompts.content", "did you mean prompts.contents?"),
        ("conditions.foo", "known are conditions.gpu"),
        ("foo", "known are "),
    ],
)
def test_what_is_no_condition_is_said_with_the_one_that_is_meant(word: str, said: str) -> None:
    (line,) = misnamed([word, "target"], [told(conditions={"gpu": "x"})])
    assert line.startswith(f"{word}: no such condition; {said}")


def test_levels_are_matched_by_label_and_those_of_one_run_alone_are_named() -> None:
    def run(*labels: str) -> RunData:
        made = [level(i, label=label) for i, label in enumerate(labels)]
        return make_run([record(i, level=i, at=[50]) for i in range(len(labels))], made)

    found = compared(run("a", "b", "b"), run("b", "a"))
    assert [one.label for one in found.levels] == ["a", "b"]
    assert found.mismatches[0].values == ["a, b, b", "b, a"]


def test_a_candidate_without_a_level_has_no_change_there() -> None:
    def run(*labels: str) -> RunData:
        made = [level(i, label=label) for i, label in enumerate(labels)]
        return make_run([record(i, level=i, at=[50]) for i in range(len(labels))], made)

    found = compared(run("a", "b"), run("a"), run("a", "b"))
    at_b = found.levels[1]
    assert at_b.rows[0].changes[0].method == "no such level"
    assert at_b.notes == ["candidate 1 has no such level"]


@pytest.mark.parametrize(
    ("low", "high", "lower_is_better", "higher_is_better"),
    [
        (0.021, 0.05, WORSE, BETTER),
        (-0.05, -0.021, BETTER, WORSE),
        (0.019, 0.05, SAME, SAME),
        (-0.05, -0.019, SAME, SAME),
        (-0.5, 0.5, SAME, SAME),
    ],
    ids=["above", "below", "touches above", "touches below", "wide"],
)
def test_a_difference_is_said_only_where_the_whole_interval_is_beyond_the_tolerance(
    low: float, high: float, lower_is_better: str, higher_is_better: str
) -> None:
    between = Interval(low=low, high=high)
    assert verdict_of(between, tolerance=0.02, higher_is_better=False) == lower_is_better
    assert verdict_of(between, tolerance=0.02, higher_is_better=True) == higher_is_better


def test_the_change_is_that_of_the_reported_figures() -> None:
    first, other = timed(noise(200, seed=1)), timed(noise(200, seed=2, mean=110))
    change = changes(compared(first, other))["TTFT p50"]
    before = side(first).summary.levels[0].ttft.p50.value
    after = side(other).summary.levels[0].ttft.p50.value
    assert (change.value, change.change) == (after, pytest.approx(after / before - 1))
    assert change.low < change.change < change.high


def test_a_slower_run_is_worse_and_a_like_one_is_not() -> None:
    base, like, slow = (
        timed(noise(300, seed=i, mean=m)) for i, m in ((1, 100), (2, 100), (3, 110))
    )
    found = compared(base, like, slow)
    assert changes(found)["TTFT p50"].verdict == SAME
    assert changes(found, candidate=1)["TTFT p50"].verdict == WORSE
    assert changes(found, candidate=1)["TPOT p50"].verdict == SAME
    assert changes(compared(slow, base))["TTFT p50"].verdict == BETTER


def test_a_wider_tolerance_calls_less_a_difference() -> None:
    base, slow = timed(noise(300, seed=1)), timed(noise(300, seed=2, mean=106))
    assert changes(compared(base, slow))["TTFT p50"].verdict == WORSE
    assert changes(compared(base, slow, tolerance=0.1))["TTFT p50"].verdict == SAME


def test_too_few_requests_are_said_to_be_too_few() -> None:
    found = changes(compared(timed([100, 101, 102]), timed([200, 201, 202])))
    change = found["TTFT p50"]
    assert (change.verdict, change.low, change.method) == (UNKNOWN, None, "too few requests")
    assert "TTFT p95" not in found  # neither run has one


def test_unfinished_requests_leave_their_percentiles_open() -> None:
    cut = [record(i, sent=10.0 * i, outcome="unfinished", end_ms=10.0 * i + 500) for i in range(60)]
    ended = [record(i, sent=10.0 * i, at=[50, 60]) for i in range(60)]
    found = changes(compared(make_run(ended), make_run(cut)))
    assert found["TTFT p50"].method == "falls among unfinished requests"
    assert found["TTFT p50"].verdict == UNKNOWN


SEEDED = {"prompts": PROMPTS, "seed": 7}


def test_the_same_plan_pairs_requests_and_narrows_the_interval() -> None:
    """Lengths differ between requests far more than the two servers do."""
    lengths = np.random.default_rng(5).uniform(50, 500, 300)
    servers = [lengths * factor + noise(300, seed=i, mean=0, spread=1) for i, factor in
               ((1, 1.0), (2, 1.05))]  # fmt: skip
    paired = [timed(one, scenario=SEEDED) for one in servers]
    apart = [timed(one, scenario={**SEEDED, "seed": i}) for i, one in enumerate(servers)]
    close, wide = (changes(compared(*runs))["E2E p50"] for runs in (paired, apart))
    assert (close.method, wide.method) == ("paired by request", "over requests")
    assert (close.high - close.low) < (wide.high - wide.low) / 4
    assert (close.verdict, wide.verdict) == (WORSE, SAME)


@pytest.mark.parametrize(
    "change",
    [{"seed": 8}, {"prompts": {**PROMPTS, "output_tokens": 9}}, {"mix": []}, {"prompts": None}],
    ids=["seed", "prompts", "mix", "unknown"],
)
def test_only_one_and_the_same_plan_is_paired(change: dict[str, Any]) -> None:
    assert same_plan(told(scenario=SEEDED), told(scenario=SEEDED))
    assert not same_plan(told(scenario=SEEDED), told(scenario={**SEEDED, **change}))


def test_three_rounds_on_both_sides_are_compared_by_rounds() -> None:
    runs = [simulated(EngineSpec(noise=0.05), seed=seed, requests=40) for seed in (1, 2)]
    methods = {word: change.method for word, change in changes(compared(*runs)).items()}
    assert {methods[word] for word in methods if word not in ("errors", "broken answers")} == {
        "by rounds"
    }


def test_lost_accuracy_and_broken_answers_stand_beside_speed() -> None:
    def run(passed: int, garbled: int) -> RunData:
        asked = [
            record(n, sent=10.0 * n, at=[5, 6], canary={"id": f"q{n}", "passed": n < passed},
                   flags=["garbled"] if n < garbled else [])
            for n in range(400)
        ]  # fmt: skip
        return make_run(asked, [level(window=(0, 4000))])

    found = changes(compared(run(398, 0), run(360, 12)))
    assert (found["accuracy"].verdict, found["broken answers"].verdict) == (WORSE, WORSE)
    assert found["accuracy"].change == pytest.approx(-0.095)
    assert found["broken answers"].change == pytest.approx(0.03)
    assert found["errors"].verdict == SAME


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_shows_one_matrix_of_several_runs(form: str) -> None:
    base, *others = (timed(noise(100, seed=i, mean=m)) for i, m in ((1, 100), (2, 90), (3, 130)))
    text = render_comparison(compared(base, *others), form, width=200)
    assert "candidate 1" in text
    assert "candidate 2" in text
    assert "better" in text
    assert "worse" in text


def test_the_json_is_strict_and_holds_the_numbers() -> None:
    found = compared(timed(noise(100, seed=1)), timed(noise(100, seed=2)))
    made = strict_json(render_comparison(found, "json"))
    row = made["levels"][0]["rows"][2]
    assert (row["word"], row["changes"][0]["verdict"]) == ("TTFT p50", SAME)
    assert [run["name"] for run in made["runs"]] == ["baseline", "candidate 1"]


def test_hostile_names_reach_no_report_unescaped() -> None:
    hostile = "<script>alert(1)</script>|\x1b[31m"
    found = compared(told(conditions={"gpu": hostile}), told(conditions={"gpu": "x"}))
    named = replace(found, runs=[replace(run, name=hostile) for run in found.runs])
    assert "<script>alert" not in render_comparison(named, "html")
    assert "\x1b" not in render_comparison(named, "terminal")
    assert "\n|\x1b" not in render_comparison(named, "markdown")


def test_a_spoiled_side_is_said_beside_the_figures() -> None:
    fault = record(1, at=[], outcome="client_fault", error_class="client_fd_limit")
    spoiled = make_run([record(0, at=[50, 60]), fault], [level(label="concurrency 1")])
    seen = compare_view(compared(timed([100.0] * 5), spoiled))
    assert any("the client itself failed" in warning for warning in seen.warnings)
    assert any("client faults" in warning for warning in seen.warnings)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(command, [str(one) for one in arguments])


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A baseline, a like run, and one that is slower and ran on another GPU."""

    def write(name: str, mean: float, seed: int, gpu: str) -> Path:
        at = noise(300, seed=seed, mean=mean)
        rows = [record(i, sent=200.0 * i, at=[one, one + 10]) for i, one in enumerate(at)]
        made = level(window=(0, 60_000), label="concurrency 1", arrivals=300)
        return write_run(tmp_path / name, rows, [made], name=name, conditions={"gpu": gpu})

    return write("base", 100, 1, "a"), write("like", 100, 2, "a"), write("slow", 120, 3, "b")


@pytest.mark.parametrize(
    ("candidate", "flags", "code"),
    [
        (1, [], 0),
        (1, ["--strict"], 0),
        (1, ["--fail-on", "regression"], 0),
        (2, [], 0),
        (2, ["--fail-on", "regression"], 1),
        (2, ["--fail-on", "regression", "--tolerance", "30%"], 0),
        (2, ["--strict"], 1),
        (2, ["--strict", "--varies", "conditions.gpu"], 0),
        (2, ["--tolerance", "x"], 2),
    ],
    ids=["like", "like, strict", "like, fail on", "slower", "slower, fail on", "within tolerance",
         "unlike, strict", "unlike as meant", "no share"],
)  # fmt: skip
def test_the_exit_code_says_what_was_asked(
    runs: tuple[Path, ...], candidate: int, flags: list[str], code: int
) -> None:
    assert invoke(runs[0], runs[candidate], *flags).exit_code == code


def test_what_is_meant_to_differ_must_be_a_condition(runs: tuple[Path, ...]) -> None:
    result = invoke(runs[0], runs[2], "--varies", "gpu", "--varies", "conditions")
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == "--varies gpu: no such condition; did you mean conditions.gpu?"


@pytest.mark.parametrize(
    ("candidates", "code"),
    [(["apart"], 1), (["like", "apart"], 1), (["like"], 0)],
    ids=["none", "one of two", "all"],
)
def test_no_regression_is_ruled_out_where_nothing_is_compared(
    runs: tuple[Path, ...], tmp_path: Path, candidates: list[str], code: int
) -> None:
    apart = level(label="concurrency 2", concurrency=2)
    write_run(tmp_path / "apart", [record(0, at=[50])], [apart], name="apart")
    sides = [tmp_path / name for name in ("base", *candidates)]
    assert invoke(*sides).exit_code == 0
    result = invoke(*sides, "--fail-on", "regression")
    assert result.exit_code == code
    line = f"--fail-on regression: nothing of {candidates[-1]} is compared: no level with figures"
    assert (line in result.output) == bool(code)


def test_strict_refuses_unlike_runs_and_shows_only_what_differs(runs: tuple[Path, ...]) -> None:
    shown = invoke(runs[0], runs[2], "--strict").output
    assert "conditions.gpu" in shown
    assert "TTFT" not in shown
    assert "refused" in shown


def test_runs_are_named_by_their_own_names_else_by_their_directories(
    runs: tuple[Path, ...], tmp_path: Path
) -> None:
    assert "\nbaseline base · " in invoke(*runs).output
    twins = [write_run(tmp_path / name, [record(0, at=[5])]) for name in ("one", "two")]
    assert "candidate two" in invoke(*twins).output
    assert invoke(twins[0], twins[0]).exit_code == 0


def test_a_comparison_is_written_where_it_is_asked_to(
    runs: tuple[Path, ...], tmp_path: Path
) -> None:
    out = tmp_path / "compare.html"
    result = invoke(runs[0], runs[1], "--format", "html", "--out", out)
    assert result.output == f"{out}\n"
    assert out.read_text().startswith("<!doctype html>")


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    result = invoke(tmp_path / "none", tmp_path)
    assert "no such directory" in str(result.exception)
