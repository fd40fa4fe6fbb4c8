"""What a comparison says before any figure: how unlike its sides are, and what each stands on."""

from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from compare_make import compared, side, timed
from drive import strict_json
from make import level, make_run, record, write_run

from loadgen.analysis.about import About, LevelAbout, about
from loadgen.analysis.alike import Mismatch
from loadgen.analysis.bounds import FAIL, WARN
from loadgen.analysis.compare import SAME, Change, Comparison, LevelComparison, Row
from loadgen.analysis.summary import Check, Steadiness
from loadgen.cli.compare import command
from loadgen.report.compare import compare_view, render_comparison

LATE = Check(name="send lag p95", verdict=FAIL, value=40, bound=5, unit="ms", text="do")
FEW = Check(
    name="sample size", verdict=WARN, value=12, bound=20, unit="requests", least=True, text="do"
)
CUT = Steadiness(truncation="mser-5", cut_s=5.2, cut_requests=20, verdict="steady")


def run(name: str, *checks: Check, **facts: Any) -> About:
    made = LevelAbout(
        label="concurrency 16", n=80, due=100, window_s=1.02, warmup_requests=0, steadiness=CUT,
        checks=list(checks),
    )  # fmt: skip
    known = {"status": "complete", "started_at": "", "target": {}, "levels": [made], **facts}
    return About(name=name, **known)


def comparison(*runs: About, differ: tuple[str, ...] = (), meant: tuple[str, ...] = ()) -> Any:
    mismatches = [
        Mismatch(what=what, values=["a", "b"], expected=what in meant) for what in (*differ, *meant)
    ]
    same = Change(value=0.9, n=60, change=-0.067, low=-0.16, high=0.006, verdict=SAME, method="")
    accuracy = Row(word="accuracy", unit="", share=True, baseline=0.967, n=60, changes=[same])
    return Comparison(
        tolerance=0.02,
        runs=list(runs or (run("one"), run("two"))),
        mismatches=mismatches,
        levels=[LevelComparison(label="concurrency 16", rows=[accuracy])],
    )


@pytest.mark.parametrize(
    ("differ", "meant", "begins"),
    [
        ((), (), "no significant difference"),
        ((), ("target.model",), "no significant difference"),
        (("target.model",), (), "1 condition differs (target.model); no significant"),
        (("target.model",), ("conditions.weights",),
         "the runs are not alike: 1 condition differs (target.model), so the verdicts below are"
         " not about one cause; "),
        (("target.model", "prompts.input_tokens", "seed", "rounds", "nonce"), (),
         "the runs are not alike: 5 conditions differ (target.model, prompts.input_tokens, seed"
         " and 2 more), so the verdicts below are not about one cause; "),
        (("prompts.input_tokens", "prompts.contents"), (),
         "2 conditions differ (prompts.input_tokens, prompts.contents); no significant"),
        (("seed", "prompts.contents"), (), "2 conditions differ (seed, prompts.contents); "),
        (("target.model", "prompts.contents"), (), "the runs are not alike: 2 conditions differ"),
    ],
    ids=["alike", "as meant", "one", "one more than meant", "many", "contents follow lengths",
         "contents follow the seed", "contents of their own"],
)  # fmt: skip
def test_the_first_line_says_how_unlike_the_runs_are(
    differ: tuple[str, ...], meant: tuple[str, ...], begins: str
) -> None:
    found = comparison(differ=differ, meant=meant)
    for form in ("terminal", "markdown"):
        text = render_comparison(found, form, width=400).removeprefix("# two against one\n\n**")
        assert text.replace("\\", "").startswith(begins)


def test_what_was_refused_has_no_verdicts_to_speak_of() -> None:
    found = replace(comparison(differ=("target.model", "seed")), levels=[])
    assert compare_view(found).verdict.text == (
        "the runs are not alike: 2 conditions differ (target.model, seed); nothing is compared"
    )


@pytest.mark.parametrize("form", ["terminal", "markdown", "html"])
def test_checks_and_what_each_window_leaves_out_stand_before_the_changes(form: str) -> None:
    found = comparison(run("one"), run("two", FEW, LATE))
    text = render_comparison(found, form, width=400).replace("\\", "")
    before = text[: text.index("accuracy, ") if "accuracy, " in text else text.rindex("accuracy")]
    assert "no warm-up; cut: 5.20 s, 20 requests" in before
    assert "1 failed, 1 warn" in before
    assert before.index("two: concurrency 16: fail: send lag p95 40.0 ms (at most 5.00 ms)") < (
        before.index("two: concurrency 16: warn: sample size 12 requests (at least 20 requests)")
    )


def test_each_part_of_a_table_too_wide_names_level_and_run() -> None:
    found = comparison(run("one"), run("two"))
    lines = render_comparison(found, "terminal", width=60).splitlines()
    grounds = lines[lines.index("What each side's figures are made of") :]
    (checks,) = [at for at, line in enumerate(grounds) if line.endswith("checks")]
    assert [line.split()[:3] for line in grounds[checks + 2 : checks + 4]] == [
        ["concurrency", "16", name] for name in ("one", "two")
    ]


def test_the_json_holds_what_each_side_stands_on() -> None:
    made = strict_json(render_comparison(comparison(run("one"), run("two", LATE)), "json"))
    (told,) = made["runs"][1]["levels"]
    assert (told["n"], told["due"], told["steadiness"]["cut_requests"]) == (80, 100, 20)
    assert [check["name"] for check in told["checks"]] == ["send lag p95"]


def test_of_many_checks_only_some_are_repeated() -> None:
    warnings = compare_view(comparison(run("one"), run("two", *[FEW] * 9))).warnings
    assert sum("sample size" in line for line in warnings) == 6
    assert "two: 3 more checks did not pass: loadgen check tells them all" in warnings


def test_accuracy_lost_within_chance_is_not_passed_over() -> None:
    (line,) = compare_view(comparison()).warnings
    assert line.startswith("concurrency 16: the accuracy of two is lower by 6.7 points, which 60")


def test_an_interrupted_side_is_said_to_be_one() -> None:
    cut = run("two", status="interrupted")
    assert compare_view(comparison(run("one"), cut)).warnings[0].startswith("two is interrupted")


def test_a_side_is_told_from_its_own_summary() -> None:
    told = about("a", side(timed([100.0] * 12)).summary)
    assert [(one.label, one.n, one.due) for one in told.levels] == [("concurrency 1", 12, 12)]
    assert [check.name for check in told.levels[0].checks] == ["sample size"]
    assert not told.failed


def test_strict_says_why_it_refuses() -> None:
    lost = make_run([record(0, at=[50])], [level(arrivals=2)])
    found = compared(make_run([record(0, at=[50])], target={"model": "other"}), lost)
    assert found.refusals == [
        "--varies does not name target.model",
        "a check of candidate 1 failed",
    ]


def test_the_command_says_why_nothing_is_compared(tmp_path: Any) -> None:
    sides = [
        str(write_run(tmp_path / name, [record(0, at=[50])], name=name, conditions={"gpu": name}))
        for name in ("one", "two")
    ]
    result = CliRunner().invoke(command, [*sides, "--strict"])
    assert result.exit_code == 1
    assert "refused under --strict: --varies does not name conditions.gpu" in result.output
