"""The curves of several runs: a line for each, over the levels of all."""

import pytest
from report_make import level, summary

from loadgen.analysis.summary import LevelSummary, Summary
from loadgen.report.curves import comparison_charts
from loadgen.report.html import pictures
from loadgen.report.series import Chart


def run(*asked: int, **changes: object) -> Summary:
    return summary(*(level(i, concurrency=c, **changes) for i, c in enumerate(asked)))


def charts(**runs: Summary) -> dict[str, Chart]:
    return {chart.key: chart for chart in comparison_charts(runs)}


def test_each_run_is_a_line_of_its_own_colour_over_the_levels() -> None:
    made = charts(fp16=run(1, 8), int4=run(1, 8))
    assert list(made) == ["output", "ttft-p50", "ttft-p95", "itl-p95"]
    for chart in made.values():
        assert [(line.name, line.colour) for line in chart.lines] == [
            ("fp16", "first"), ("int4", "second")]  # fmt: skip
        assert all(line.x == (1, 8) for line in chart.lines)
        assert chart.x.kind == "log"


def test_a_line_has_the_figures_of_the_runs_own_report_with_their_intervals() -> None:
    run_of = run(1, 8)
    line = charts(a=run_of, b=run(1, 8))["ttft-p95"].lines[0]
    of_levels = [one.ttft.p95 for one in run_of.levels]
    assert line.y == tuple(one.value for one in of_levels)
    assert (line.low, line.high) == (
        tuple(one.low for one in of_levels), tuple(one.high for one in of_levels)
    )  # fmt: skip


def test_a_level_that_one_run_lacks_is_a_gap_in_its_line() -> None:
    made = charts(a=run(1, 8), b=run(16, 8))["output"]
    assert [line.x for line in made.lines] == [(1, 8, 16)] * 2
    assert [[y is None for y in line.y] for line in made.lines] == [
        [False, False, True], [True, False, False]]  # fmt: skip


def test_a_level_that_must_not_be_used_is_marked() -> None:
    made = charts(a=run(1, 8), b=run(1, 8, invalid="the client fell behind"))
    assert made["output"].lines[1].marks == ("invalid", "invalid")
    assert made["output"].lines[0].marks == ("", "")


def test_levels_that_come_again_are_told_apart() -> None:
    spike = [level(i, concurrency=c) for i, c in enumerate((8, 64, 8))]
    made = charts(a=summary(*spike), b=summary(*spike))["output"]
    assert made.x.kind == "category"
    assert [len(line.y) for line in made.lines] == [3, 3]


def test_the_seventh_run_has_the_first_colour_again_and_dashes() -> None:
    lines = charts(**{f"s{i}": run(1, 8) for i in range(7)})["output"].lines
    assert (lines[0].colour, lines[0].dashed) == ("first", False)
    assert (lines[6].colour, lines[6].dashed) == ("first", True)


@pytest.mark.parametrize(
    "runs",
    [{"a": run(1, 8)}, {"a": run(8), "b": run(8)}, {}],
    ids=["one run", "one level", "none"],
)
def test_a_single_dot_or_line_is_not_drawn(runs: dict[str, Summary]) -> None:
    assert comparison_charts(runs) == ()
    assert pictures(())["plotly"] == ""


def test_what_no_run_has_a_number_of_is_left_out() -> None:
    bare = [LevelSummary(level=i, label=f"c {i}", output_tokens_per_s=1.0) for i in range(2)]
    assert list(charts(a=summary(*bare), b=summary(*bare))) == ["output"]


def test_texts_beside_two_near_points_stand_apart() -> None:
    from report_make import view

    from loadgen.report.html import figure

    made = next(c for c in view(level(), level(1, concurrency=16)).charts if c.key == "trade")
    assert figure(made)["data"][0]["textposition"] == ["top right", "bottom left"]
