"""What a report says, before any markup: its first line, its tables, its series."""

from dataclasses import fields, replace

import pytest
from report_make import (
    MANIFEST,
    distribution,
    error,
    failing,
    level,
    missed,
    samples,
    summary,
    view,
)

from loadgen.analysis.summary import (
    Check,
    Distribution,
    LevelSummary,
    Quantile,
    Steadiness,
    Summary,
)
from loadgen.report.grid import Table
from loadgen.report.legend import FORMULAS
from loadgen.report.percentiles import MAIN_METRICS, MORE_METRICS
from loadgen.report.text import Cell, number, quantile
from loadgen.report.view import build_view, first_line


def cell(table: Table, label: str, row: int = 0) -> Cell:
    index = [column.label for column in table.columns].index(label)
    return table.rows[row][index]


SPOILED = level(3, invalid="12 requests lost to too few descriptors")


@pytest.mark.parametrize(
    ("made", "tone", "start"),
    [
        pytest.param(summary(level()), "good", "all good: 1 level, 400 requests ok", id="sound"),
        pytest.param(summary(level(), warnings=["no figures of a GPU: no connection"]), "warn",
                     "1 level, 400 requests ok in measure, none failed; mind: no figures of a GPU",
                     id="asked for in vain"),
        pytest.param(summary(level(), warnings=["x is off"]), "warn", "1 level", id="warning"),
        pytest.param(summary(SPOILED), "bad", "the client spoiled concurrency 8", id="spoiled"),
        pytest.param(summary(level(objectives=[missed()])), "bad", "objective missed: ttft p95",
                     id="objective"),
        pytest.param(summary(level(), status="interrupted"), "warn", "interrupted: 1 level",
                     id="interrupted"),
        pytest.param(summary(level(), status="running"), "warn", "not finished", id="killed"),
        pytest.param(summary(level(), status="failed"), "bad", "the run failed", id="failed"),
        pytest.param(summary(level(outcomes={"ok": 397, "refused": 3}, errors=[error()])), "warn",
                     "3 of 400 requests failed, most often server_error (3)", id="failures"),
        pytest.param(summary(failing(n=40)), "bad",
                     "no request succeeded: 40 requests failed, most often server_error (40)",
                     id="F14 nothing succeeded"),
        pytest.param(Summary(schema=1, name="x", status="complete", started_at="", target={},
                             levels=[]), "bad", "nothing was measured", id="no level"),
    ],
)  # fmt: skip
def test_the_first_line_says_whether_the_figures_may_be_used(
    made: Summary, tone: str, start: str
) -> None:
    verdict = first_line(made)
    assert verdict.tone == tone
    assert verdict.text.startswith(start)


def test_an_objective_missed_everywhere_is_told_once() -> None:
    made = [level(i, concurrency=c, objectives=[missed()]) for i, c in enumerate((1, 8))]
    assert first_line(summary(*made)).text == "objective missed: ttft p95 <= 500ms at every level"


REPEATED = Check(name="repeated prompts", verdict="warn", value=1.0, bound=0.1, unit="",
                 text="use more", about="measurement")  # fmt: skip
LAGGED = Check(name="send lag p95", verdict="warn", value=9.0, bound=5.0, unit="ms", text="do")


@pytest.mark.parametrize(
    ("made", "status", "begins"),
    [
        (level(outcomes={"ok": 399, "refused": 1}, errors=[error()]), "complete", "1 of 400"),
        (level(objectives=[missed()]), "complete", "objective missed"),
        (level(steadiness=Steadiness(verdict="saturated")), "complete", "saturated at"),
        (level(invalid="no ports left"), "complete", "the client spoiled"),
        (level(checks=[LAGGED]), "complete", "the client disturbed"),
        (level(), "interrupted", "interrupted: 1 level"),
        (level(), "complete", "1 level, 400 requests ok"),
    ],
    ids=["a failure", "an objective", "a queue", "spoiled", "disturbed", "cut short", "nothing"],
)
def test_what_warns_is_told_whatever_stands_before_it(
    made: LevelSummary, status: str, begins: str
) -> None:
    doubtful = replace(made, checks=[*made.checks, REPEATED])
    text = first_line(summary(doubtful, status=status, warnings=["x is off"])).text
    assert text.startswith(begins)
    assert text.endswith("; mind: concurrency 8: repeated prompts 100 % (and 1 more)")


def test_what_the_first_line_says_in_its_own_words_is_no_further_warning() -> None:
    known = [replace(REPEATED, name=name) for name in ("error rate", "queue grew by")]
    made = level(outcomes={"ok": 399, "refused": 1}, errors=[error()], checks=known)
    assert "mind" not in first_line(summary(made)).text
    lost = replace(failing(n=40), checks=[replace(REPEATED, name="sample size")])
    assert "mind" not in first_line(summary(lost)).text  # no figures that could be doubted


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (level(), "1 level, 400 requests ok in measure, none failed"),
        (level(e2e=distribution(900, n=340)),
         "1 level, 400 requests ok in measure (340 in the percentiles), none failed"),
        (level(e2e=distribution(900, n=340), questions=60),
         "(340 in the percentiles, 60 questions among them), none failed"),
        (level(outcomes={"ok": 1}, e2e=Distribution(), questions=1), "1 question among them"),
    ],
    ids=["all", "cut", "questions", "one"],
)  # fmt: skip
def test_the_first_line_says_what_its_requests_are(made: LevelSummary, said: str) -> None:
    assert said in first_line(summary(made)).text


@pytest.mark.parametrize(
    ("n", "course"),
    [("too few", "unknown (under 50 requests)"), ("off", "unknown")],
)
def test_a_course_that_is_not_known_says_why(n: str, course: str) -> None:
    found = Steadiness(truncation=n, verdict="unknown")
    assert cell(view(level(steadiness=found)).course, "course").text == course


def test_what_an_interval_needs_is_explained_under_the_table() -> None:
    few = view(level(ttft=distribution(80, n=30)))
    assert cell(few.intervals, "TTFT p95").text == "needs 72"
    assert few.intervals.note.startswith("needs N: about so many requests")
    assert view(level()).intervals.note == ""


def test_gaps_of_few_requests_need_more_requests_not_more_gaps() -> None:
    gaps = Distribution(n=5_000, mean=9, min=8, max=20, p95=Quantile(value=12))
    shown = view(level(itl=gaps))
    assert cell(shown.intervals, "ITL p95").text == "needs 40"
    table = next(one for one in shown.percentiles if one.title.startswith("ITL"))
    assert cell(table, "p95").small == "n too small, 40 requests needed"
    assert "N needed: about so many requests" in table.note


def test_gaps_that_share_their_steps_need_as_many_requests_as_give_enough_steps() -> None:
    few = Distribution(n=10_000, requests=320, effective_n=41.0, p95=Quantile(value=12))
    shown = view(level(itl=few))
    assert cell(shown.intervals, "ITL p95").text == "needs 570"  # 320 · 72 / 41, in two digits
    table = next(one for one in shown.percentiles if one.title.startswith("ITL"))
    assert cell(table, "p95").small == "n too small, 570 requests needed"
    assert cell(table, "n").small == "worth 41"


def test_what_samples_are_worth_is_explained_under_the_table() -> None:
    alike = replace(distribution(80), effective_n=14.2)
    table = view(level(ttft=alike)).percentiles[0]
    assert cell(table, "n").small == "worth 14"
    assert table.note.startswith("worth N: ")
    assert view(level()).percentiles[0].note == ""


def test_the_first_line_tells_an_interruption_before_the_failures() -> None:
    text = first_line(summary(failing(), status="interrupted")).text
    assert text.index("interrupted") < text.index("no request succeeded")


def test_the_table_of_levels_holds_the_summarys_figures() -> None:
    made = level(requests_per_s=4.25, output_tokens_per_s=718.9, error_rate=0.0)
    table = view(made).levels
    assert cell(table, "requests").text == "4.25"
    assert cell(table, "output").text == "719"
    assert cell(table, "TTFT p95").text == quantile(made.ttft, "p95")
    assert cell(table, "decode p50").text == quantile(made.decode_rate, "p50")
    assert cell(table, "errors").text == "0 %"
    assert cell(table, "n").text == "400"


@pytest.mark.parametrize("metric", MAIN_METRICS + MORE_METRICS, ids=lambda metric: metric.field)
def test_every_distribution_is_shown_with_its_own_figures(metric: object) -> None:
    field = metric.field
    made = level(**{field: distribution(123.0)}, outcomes={"ok": 399, "broken": 1})
    shown = view(made)
    tables = {t.title: t for t in shown.percentiles + shown.more_percentiles}
    table = tables[f"{metric.word}, {metric.unit}"]
    assert cell(table, "p50").text == "123"
    assert cell(table, "p99").text == number(123.0 * 1.6 * 1.3)


def test_every_distribution_of_a_level_has_a_table() -> None:
    held = {f.name for f in fields(LevelSummary) if "Distribution" in str(f.type)}
    shown = {metric.field for metric in MAIN_METRICS + MORE_METRICS}
    assert held - shown == {"input_tokens", "output_tokens"}  # these stand with the lengths


@pytest.mark.parametrize(
    ("per_chunk", "unit", "word"),
    [(1.0, "ms", "ITL, ms"), (1.05, "ms", "ITL, ms"), (4.0, "ms/chunk", "ITL per chunk, ms")],
    ids=["one token", "at the limit", "B03 four tokens"],
)
def test_gaps_are_labelled_per_chunk_where_a_chunk_holds_more_than_a_token(
    per_chunk: float, unit: str, word: str
) -> None:
    shown = view(level(tokens_per_chunk=per_chunk))
    assert [c.unit for c in shown.levels.columns if c.label == "ITL p50"] == [unit]
    assert word in [table.title for table in shown.percentiles]


def test_the_outcomes_of_a_row_sum_to_its_arrivals() -> None:
    table = view(level(outcomes={"ok": 380, "refused": 12, "timeout": 5, "unfinished": 3})).outcomes
    arrivals, *outcomes = [int(c.text) for c in table.rows[0][1:]]
    assert sum(outcomes) == arrivals == 400


def test_an_invalid_level_is_marked_in_every_table_and_in_the_curves() -> None:
    shown = view(level(0, concurrency=1), level(1, invalid="the client fell behind"))
    assert cell(shown.levels, "concurrency", 1).text == "8 (invalid)"
    assert all(chart.lines[0].marks[1] == "invalid" for chart in shown.charts[:5])


def test_a_level_of_an_open_loop_is_named_by_its_rate() -> None:
    shown = view(level(concurrency=None), level(1, concurrency=None, rate=8.0))
    assert cell(shown.levels, "level").text == "4/s poisson"
    assert shown.charts[0].x.title == "offered rate, requests/s"


def test_an_open_loop_shows_the_offered_rate_beside_the_served_one() -> None:
    shown = view(level(concurrency=None), level(1, concurrency=None, rate=8.0))
    chart = next(c for c in shown.charts if c.key == "requests")
    assert chart.lines[0].y == (4.0, 8.0)
    assert [line.name for line in chart.lines] == ["offered", "ok"]


def test_levels_of_both_kinds_share_an_axis_of_names() -> None:
    shown = view(level(0), level(1, concurrency=None))
    assert shown.charts[0].x.kind == "category"
    assert shown.charts[0].lines[0].x == ("concurrency 8", "4/s poisson")


def test_curves_run_along_concurrency_whatever_the_order_of_levels() -> None:
    made = [level(i, concurrency=c) for i, c in enumerate((32, 1, 8))]
    line = view(*made).charts[0].lines[0]
    assert line.x == (1, 8, 32)
    assert line.y == tuple(made[i].output_tokens_per_s for i in (1, 2, 0))


def test_the_curve_of_ttft_holds_the_percentiles_and_their_intervals() -> None:
    made = level()
    other = level(1, concurrency=16)
    chart = next(c for c in view(made, other).charts if c.key == "ttft")
    p50, p95 = chart.lines
    of_both = [one.ttft.p50 for one in (made, other)]
    assert p50.y == tuple(one.value for one in of_both)
    assert p50.low == tuple(one.low for one in of_both)
    assert p50.high == tuple(one.high for one in of_both)
    assert p95.y == (made.ttft.p95.value, other.ttft.p95.value)


def test_of_one_level_no_curve_of_a_single_dot_is_drawn() -> None:
    assert [chart.key for chart in view(level()).charts] == ["ttft-cdf"]
    assert len(view(level(), level(1, concurrency=16)).charts) >= 8


def test_a_cdf_stops_short_of_one_by_the_requests_cut_while_waiting() -> None:
    from loadgen.report.series import Samples

    made = summary(level())
    shown = build_view(made, ttft={0: Samples(values=[10.0, 20.0, 30.0], censored=1)})
    line = next(c for c in shown.charts if c.key == "ttft-cdf").lines[0]
    assert line.x == (10.0, 10.0, 20.0, 30.0)
    assert line.y == (0.0, 0.25, 0.5, 0.75)


def test_a_cdf_of_many_samples_keeps_both_ends_and_few_points() -> None:
    made = summary(level())
    shown = build_view(made, ttft=samples(made, n=50_000))
    line = next(c for c in shown.charts if c.key == "ttft-cdf").lines[0]
    assert len(line.x) <= 301
    assert line.x[0] == min(samples(made, n=50_000)[0].values)
    assert line.y[-1] == 1.0


def test_a_run_without_one_success_has_no_curve_of_times_and_no_false_zero() -> None:
    shown = view(failing(n=40))
    assert not {"ttft", "itl", "e2e", "ttft-cdf"} & {chart.key for chart in shown.charts}
    assert cell(shown.levels, "TTFT p50").text == "–"
    assert cell(shown.levels, "errors").text == "100 % (40)"
    assert cell(shown.errors, "one message").text == "internal error: out of memory"


def test_lengths_show_how_far_off_they_were_and_what_the_template_adds() -> None:
    made = level(
        asked_input_mean=128.0,
        input_tokens=distribution(140.0 / 1.1),
        exact_input_share=0.25,
        largest_input_miss=13.0,
        prompt_overhead=8.0,
    )
    lengths = view(made).lengths
    assert cell(lengths, "off").text == "12"
    assert cell(lengths, "exact").text == "25 % (13)"
    assert cell(lengths, "template").text == "8"


def test_a_mean_over_censored_samples_is_a_lower_bound() -> None:
    from dataclasses import replace

    cut = replace(distribution(100.0), censored=7, p99=Quantile(value=400.0, above=True))
    table = view(level(ttft=cut)).percentiles[0]
    assert cell(table, "mean").text == "> 110"
    assert cell(table, "n").small == "7 known as > x"
    assert cell(table, "p99").text == "> 400"


@pytest.mark.parametrize(
    ("key", "value", "label", "unit", "text"),
    [
        ("loop_lag_p99_ns", 1_902_043, "loop lag p99", "ms", "1.90"),
        ("rss_bytes", 67_108_864, "rss", "MiB", "64.0"),
        ("cpu_share", 0.048, "cpu", "%", "4.80"),
        ("requests_built_late", 12, "requests built late", "", "12"),
        ("behind", True, "behind", "", "yes"),
    ],
    ids=["ns", "bytes", "share", "count", "flag"],
)
def test_a_figure_the_client_kept_is_shown_in_its_unit(
    key: str, value: object, label: str, unit: str, text: str
) -> None:
    table = view(level(client={key: value, "nested": {"x": 1}})).client
    column, shown = table.columns[-1], table.rows[0][-1]
    assert (column.label, column.unit, shown.text) == (label, unit, text)


def test_what_nobody_said_is_unknown_not_left_out() -> None:
    shown = build_view(summary(level()))
    answers = {fact.label: fact.text for fact in shown.card}
    assert answers["which hardware?"] == "unknown"
    assert answers["quantisation, weights and KV?"] == "unknown"
    assert len(answers) == 7


def test_declared_conditions_and_the_sampling_default_are_told() -> None:
    shown = build_view(summary(level()), manifest=MANIFEST)
    assert ("which hardware?", "1 × H200 (declared)") in [(f.label, f.text) for f in shown.card]
    assert "warm-up: 20s;" in shown.card[-1].text
    assert ("sampling", "server default") in [(f.label, f.text) for f in shown.conditions]


@pytest.mark.parametrize("word", ["TTFT", "TTFO", "E2E", "ITL", "TPOT", "decode rate", "errors"])
def test_every_report_carries_the_formula_of(word: str) -> None:
    assert word in [formula.word for formula in FORMULAS]
