"""Several servers in turn: one that fails is a row with its reason, and the others have theirs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from compare_make import noise, timed
from make import level, make_run, record, write_run
from scenario_make import make_scenario

from loadgen.analysis.compare import SAME, Side, compare
from loadgen.analysis.sweep import (
    FAILED,
    INTERRUPTED,
    MEASURED,
    NOT_RUN,
    Matrix,
    ServerResult,
    ServerRow,
    Tally,
    matrix_of,
    meant_to_differ,
)
from loadgen.analysis.table import RunData
from loadgen.errors import Interrupted, ServerNotReady, UsageError
from loadgen.report.sweep import SweepView, report_sweep, sweep_text, sweep_view
from loadgen.report.terminal import Look
from loadgen.run.sweep import Measured, Sweep, nonce_for, run_sweep
from loadgen.scenario.model import Scenario

Do = Callable[[], Measured]


def quietly(_: str) -> None:
    """Nobody listens."""


def three(**of_b: Any) -> Scenario:
    servers = {name: {"server": {"command": f"serve {name}"}} for name in "abc"}
    servers["b"] |= of_b
    return make_scenario(servers=servers)


def swept(directory: Path, scenario: Scenario, **does: Do) -> tuple[Sweep, list[tuple[str, Any]]]:
    """Run a sweep whose servers do what is given, or are measured; also what was asked for."""
    asked: list[tuple[str, Any]] = []

    def measure(made: Scenario, out: Path, nonce: str | None) -> Measured:
        asked.append((made.name, nonce))
        assert out.parent == directory
        return does.get(out.name, lambda: Measured(ready_s=0.5))()

    return run_sweep(scenario, out=directory, measure=measure, say=quietly), asked


def raising(error: BaseException) -> Do:
    def do() -> Measured:
        raise error

    return do


def told(directory: Path) -> Any:
    return orjson.loads((directory / "sweep.json").read_bytes())


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (raising(ServerNotReady("b: ended with exit code 1: no memory\nmore")),
         "ended with exit code 1: no memory"),
        (lambda: Measured(failure="aborted: errors > 50% over 10s"),
         "aborted: errors > 50% over 10s"),
    ],
    ids=["not-ready", "aborted"],
)  # fmt: skip
def test_a_server_that_fails_is_told_of_and_the_next_one_has_its_turn(
    does: Do, reason: str, tmp_path: Path
) -> None:
    sweep, asked = swept(tmp_path, three(), b=does)
    assert [one.status for one in sweep.results] == [MEASURED, FAILED, MEASURED]
    assert sweep.results[1].reason == reason
    assert [name for name, _ in asked] == ["tiny-a", "tiny-b", "tiny-c"]
    facts = {"name": "b", "status": "failed", "reason": reason, "directory": None, "ready_s": None}
    assert told(tmp_path)["servers"][1] == facts
    assert (told(tmp_path)["status"], told(tmp_path)["baseline"]) == ("complete", "a")


@pytest.mark.parametrize(
    "does",
    [lambda: Measured(interrupted=True), raising(Interrupted("x")), raising(KeyboardInterrupt())],
    ids=["measuring", "starting", "between"],
)
def test_after_an_interruption_no_further_server_is_started(does: Do, tmp_path: Path) -> None:
    sweep, asked = swept(tmp_path, three(), b=does)
    assert [one.status for one in sweep.results] == [MEASURED, INTERRUPTED, NOT_RUN]
    assert len(asked) == 2
    assert sweep.interrupted
    assert told(tmp_path)["status"] == "interrupted"


def test_a_signal_that_comes_with_the_line_of_a_turn_is_one_of_that_turn(tmp_path: Path) -> None:
    def say(line: str) -> None:
        if line.startswith("b:"):
            raise KeyboardInterrupt

    done = run_sweep(three(), out=tmp_path, measure=lambda *_: Measured(ready_s=0.5), say=say)
    assert [one.status for one in done.results] == [MEASURED, INTERRUPTED, NOT_RUN]
    assert told(tmp_path)["status"] == "interrupted"


def test_all_servers_share_one_nonce(tmp_path: Path) -> None:
    _, asked = swept(tmp_path, three())
    (nonce,) = {nonce for _, nonce in asked}
    assert told(tmp_path)["seeds"] == {"seed": 0, "nonce": nonce}
    assert len(nonce) == 16


def test_one_place_that_runs_already_never_meets_a_nonce_twice() -> None:
    again = {"a": {"target": {"model": "x"}}, "b": {"target": {"model": "y"}}}
    assert nonce_for(make_scenario(servers=again)) is None
    apart = {"a": {"target": {"url": "http://h"}}, "b": {"target": {"url": "http://i"}}}
    assert nonce_for(make_scenario(servers=apart)) is not None
    assert nonce_for(make_scenario(servers=apart, nonce="fixed")) is None


def test_a_server_that_would_not_make_way_is_refused_before_any_starts(tmp_path: Path) -> None:
    scenario = three(server={"command": "x", "keep": True})
    with pytest.raises(UsageError, match=r"servers\.b\.server\.keep: each has to make way"):
        swept(tmp_path / "new", scenario)
    assert not (tmp_path / "new").exists()


def test_an_earlier_sweep_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    with pytest.raises(UsageError, match="is not empty"):
        swept(tmp_path, three())


# --- what is meant to differ


@pytest.mark.parametrize(
    ("servers", "varies"),
    [
        ({"a": {"conditions": {"w": 1}, "request": {"x": 1}}, "b": {"conditions": {"w": 2}}},
         ["conditions.w", "request.x"]),
        ({"a": {"target": {"model": "x"}}, "b": {"target": {"model": "y"}}}, ["target.model"]),
    ],
)  # fmt: skip
def test_what_a_server_names_is_meant_to_differ(servers: dict[str, Any], varies: list[str]) -> None:
    assert meant_to_differ(make_scenario(servers=servers)) == varies


def test_another_start_is_meant_to_give_another_model_and_other_weights_and_no_other_gpu() -> None:
    found = meant_to_differ(three())
    assert {"target.model", "target.engine", "conditions.quantisation"} <= set(found)
    assert not {"conditions", "target", "conditions.gpu"} & set(found)


# --- the matrix


def matrix(*results: ServerResult, **runs: Any) -> tuple[Matrix, Any]:
    sides = {name: Side(name, run) for name, run in runs.items()}
    comparison = None
    if len(sides) > 1:
        first, *others = sides.values()
        comparison = compare(first, others, varies=["conditions"])
    return matrix_of(results, sides, comparison), comparison


def measured(name: str) -> ServerResult:
    return ServerResult(name=name, status=MEASURED, ready_s=1.5)


def test_a_row_has_the_figures_of_the_run_s_own_report() -> None:
    slow, fast = timed(noise(40, seed=1)), timed(noise(40, seed=2, mean=50.0), gap_ms=5.0)
    made, comparison = matrix(measured("a"), measured("b"), a=slow, b=fast)
    side = Side("b", fast)
    assert (made.levels, made.level, made.baseline) == (["concurrency 1"], "concurrency 1", "a")
    assert made.rows[1].ttft == side.summary.levels[0].ttft
    assert made.rows[1].output == [side.summary.levels[0].output_tokens_per_s]
    tally = made.rows[1].tally
    assert tally is not None
    assert (tally.better, tally.worse) == (comparison.count("better"), 0)
    assert made.rows[0].tally is None


def test_the_rows_are_of_the_highest_load_however_levels_are_ordered() -> None:
    made = [level(0, concurrency=8, label="concurrency 8"),
            level(1, concurrency=1, label="concurrency 1")]  # fmt: skip
    run = make_run([record(i, level=i, at=[50]) for i in range(2)], made)
    found, _ = matrix(measured("a"), a=run)
    assert (found.levels, found.level) == (["concurrency 8", "concurrency 1"], "concurrency 8")


def test_reasons_stand_in_the_rows_within_100_columns() -> None:
    reason = "ended with exit code 1 after 12 s: no memory is left for the KV cache; lower CONTEXT"
    runs = {name: timed(noise(30, seed=i)) for i, name in enumerate(("fp16", "int8", "fp8"))}
    made, comparison = matrix(
        measured("fp16"), measured("int8"), measured("fp8"),
        ServerResult(name="int4", status=FAILED, reason=reason), ServerResult(name="int3"), **runs,
    )  # fmt: skip
    view = sweep_view("q", made, comparison)
    rows = {row[0].text: row[-1] for row in view.servers.rows}
    assert (rows["int4"].text, rows["int4"].tone) == (f"failed: {reason}", "bad")
    assert (rows["fp16"].text, rows["int3"].text) == ("baseline", "not run")
    assert view.verdict.text.startswith("3 of 5 servers measured; int4 failed")


@pytest.mark.parametrize("candidates", [1, 2, 3])
def test_the_text_fits_100_columns_for_up_to_four_servers(candidates: int) -> None:
    names = ["fp16", "int8", "fp8", "int4"][: candidates + 1]
    runs = {name: timed(noise(30, seed=i)) for i, name in enumerate(names)}
    made, comparison = matrix(*(measured(name) for name in names), **runs)
    text = sweep_text(sweep_view("q", made, comparison), Look(width=100))
    assert max(map(len, text.splitlines())) <= 100
    of_a_level = text.split("\nconcurrency 1\n")
    assert len(of_a_level) == 2
    assert of_a_level[1].count("\nmetric") == 0  # never in parts


def test_nothing_measured_is_told_too_and_has_no_matrix(tmp_path: Path) -> None:
    results = [ServerResult(name=name, status=FAILED, reason="no GPU") for name in "ab"]
    made = report_sweep(three(), tmp_path, results, look=Look())
    assert made.terminal.startswith("0 of 2 servers measured; a, b failed; nothing was measured")
    assert made.terminal.count("failed: no GPU") == 2
    assert "TTFT" not in made.terminal
    assert "against" not in made.terminal
    assert {path.name for path in made.write()} == {
        "comparison.html", "comparison.md", "comparison.json"}  # fmt: skip


# --- what a row and the headline say


def row(name: str, **facts: Any) -> ServerRow:
    facts = {"output": [100.0], **facts}
    return ServerRow(result=ServerResult(name=name, status=MEASURED), **facts)


def shown_rows(*rows: ServerRow) -> SweepView:
    made = Matrix(levels=["c"], level="c", baseline=rows[0].result.name, rows=list(rows))
    return sweep_view("q", made, None)


@pytest.mark.parametrize(
    ("facts", "said", "tone"),
    [
        ({"tally": Tally(better=15, worse=1, same=10, unknown=7, worse_words=["broken answers"]),
          "worse_answers": ["broken answers"]},
         "15 better, 1 worse (broken answers), 10 not significant, 7 cannot be told", "bad"),
        ({"tally": Tally(better=15, same=10)}, "15 better, 10 not significant", ""),
        ({"tally": Tally(same=10), "worse_answers": ["broken answers"]},
         "10 not significant, worse over all levels (broken answers)", "bad"),
        ({"tally": Tally(better=5, only=["c 1"])}, "5 better (of c 1 only)", ""),
        ({"tally": Tally(same=1), "failed_checks": ["drift"]},
         "1 not significant; failed checks: drift", "bad"),
    ],
    ids=["all counts", "nothing worse", "over all levels", "a part", "checks"],
)  # fmt: skip
def test_a_row_tells_what_is_better_worse_alike_and_not_told(
    facts: dict[str, Any], said: str, tone: str
) -> None:
    shown = shown_rows(row("a"), row("b", **facts)).servers.rows[1][-1]
    assert (shown.text, shown.tone) == (said, tone)


@pytest.mark.parametrize(
    ("facts", "said", "tone"),
    [
        ({}, "all of 2 servers measured", "good"),
        ({"worse_answers": ["accuracy", "broken answers"]},
         "all of 2 servers measured; b: worse in accuracy, broken answers", "warn"),
        ({"failed_checks": ["error rate"]},
         "all of 2 servers measured; b: failed error rate (loadgen check says more)", "bad"),
    ],
    ids=["sound", "answers", "checks"],
)  # fmt: skip
def test_the_headline_names_a_server_with_worse_answers_or_failed_checks(
    facts: dict[str, Any], said: str, tone: str
) -> None:
    shown = shown_rows(row("a"), row("b", **facts)).verdict
    assert (shown.text, shown.tone) == (said, tone)


def garbling(*garbled: int, of: int = 60) -> RunData:
    """Several levels; at each, so many answers of 60 are garbled."""
    records = [
        record(of * place + n, level=place, sent=100 * n, at=[50, 60], reported_output=2,
               output_hash="x", flags=["garbled"] if n < count else [])
        for place, count in enumerate(garbled)
        for n in range(of)
    ]  # fmt: skip
    levels = [
        level(i, concurrency=i + 1, label=f"concurrency {i + 1}") for i in range(len(garbled))
    ]
    return make_run(records, levels)


def test_what_no_level_alone_can_tell_of_broken_answers_all_together_can() -> None:
    made, comparison = matrix(
        measured("a"), measured("b"), a=garbling(0, 0, 0), b=garbling(2, 3, 2)
    )
    assert all(
        row.changes[0].verdict == SAME
        for level in comparison.levels
        for row in level.rows
        if row.word == "broken answers"
    )
    assert made.rows[1].worse_answers == ["broken answers"]
    assert (
        matrix(measured("a"), measured("b"), a=garbling(1, 1), b=garbling(1, 2))[0]
        .rows[1]
        .worse_answers
        == []
    )


def test_an_interruption_is_no_condition_and_its_tally_names_the_levels_it_is_of() -> None:
    cut = garbling(0)
    cut.manifest["status"] = "interrupted"
    interrupted = ServerResult(name="b", status=INTERRUPTED)
    made, comparison = matrix(measured("a"), interrupted, a=garbling(0, 0), b=cut)
    assert comparison.mismatches == []
    tally = made.rows[1].tally
    assert tally is not None
    assert tally.only == ["concurrency 1"]
    assert tally.better + tally.worse + tally.same + tally.unknown == len(comparison.levels[0].rows)
    last = sweep_view("q", made, comparison).servers.rows[1][-1].text
    assert last.endswith("(of concurrency 1 only); interrupted")


def test_levels_that_a_whole_run_lacks_are_a_condition() -> None:
    _, comparison = matrix(measured("a"), measured("b"), a=garbling(0, 0), b=garbling(0))
    assert [one.what for one in comparison.mismatches] == ["levels"]


# --- the page


def written(directory: Path, **runs: RunData) -> list[ServerResult]:
    """Give each server a run directory, whose report exists for all but the last."""
    for name, run in runs.items():
        records = [
            record(int(n), level=int(at), sent=100.0 * n, at=[50, 60], reported_output=2)
            for n, at in run.requests[["id", "level"]].to_numpy()
        ]
        write_run(directory / name, records, run.manifest["levels"])
        (directory / name / "report.html").touch()
    (directory / list(runs)[-1] / "report.html").unlink()
    return [ServerResult(name=name, status=MEASURED, directory=name, ready_s=0.5) for name in runs]


def test_the_page_has_a_line_for_each_server_and_leads_to_the_reports_there_are(
    tmp_path: Path,
) -> None:
    results = written(tmp_path, a=garbling(0, 0), b=garbling(0, 0))
    page = report_sweep(three(), tmp_path, results, look=Look()).texts["comparison.html"]
    assert '<a href="a/report.html">a</a>' in page
    assert "b/report.html" not in page
    keys = re.findall(r'id="chart-([\w-]+)"', page)
    assert keys == ["output", "ttft-p50", "ttft-p95", "itl-p95"]
    assert "Plotly" in page


def test_a_sweep_of_one_level_draws_nothing(tmp_path: Path) -> None:
    results = written(tmp_path, a=garbling(0), b=garbling(0))
    page = report_sweep(three(), tmp_path, results, look=Look()).texts["comparison.html"]
    assert "chart-" not in page
    assert "Plotly" not in page
