"""A server that fails looks worse, never faster: what failures could have made is no verdict."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
from compare_make import changes, compared, noise, timed
from make import level, make_run, record

from loadgen.analysis.compare import BETTER, SAME, UNKNOWN, WORSE
from loadgen.analysis.survivors import percentile_with_failures
from loadgen.analysis.table import RunData
from loadgen.report.compare import compare_view, render_comparison
from loadgen.report.servers import change_tables

pytestmark = pytest.mark.slow  # whole runs: seconds each

LATENCIES = ("TTFT p50", "TTFT p95", "E2E p50", "E2E p95")


def failing(ttft_ms: Sequence[float], *, every: int) -> RunData:
    """As ``timed``, but each ``every``-th answer breaks after two of its four tokens."""
    records, now = [], 0.0
    for number, first in enumerate(ttft_ms):
        at = [first + 10 * token for token in range(4)]
        if number % every == 0:
            broken = {"outcome": "broken", "error_class": "cut_off", "end_ms": now + at[1]}
            records.append(record(number, sent=now, at=at[:2], **broken))
            now += at[1]
        else:
            records.append(record(number, sent=now, at=at, reported_output=4))
            now += at[-1]
    made = level(window=(0, now), concurrency=1, label="concurrency 1", arrivals=len(records))
    return make_run(records, [made])


def sound(mean: float, *, seed: int = 1) -> RunData:
    return timed(noise(300, seed=seed, mean=mean))


@pytest.mark.parametrize(
    ("values", "quantile", "failed", "expected"),
    [
        ([1, 2, 3, 4, 5], 0.5, 0.0, 3),
        ([1, 2, 3, 4, 5], 0.5, 1 / 3, 4),
        ([1, 2, 3, 4, 5], 0.5, 0.5, np.inf),
        ([1, 2, 3, 4, 5], 0.95, 0.05, np.inf),
        ([], 0.5, 1.0, np.inf),
    ],
    ids=["none failed", "a third: p75", "half", "p95 of 5 %", "all"],
)
def test_a_percentile_moves_up_by_the_share_that_failed(
    values: list[float], quantile: float, failed: float, expected: float
) -> None:
    found = percentile_with_failures(np.array(values, dtype=float), quantile, failed=failed)
    assert found == pytest.approx(expected)


def test_the_survivors_of_a_failing_server_are_not_called_faster() -> None:
    found = changes(compared(sound(100), failing(noise(300, seed=2, mean=57), every=2)))
    assert found["errors"].verdict == WORSE
    for word in LATENCIES:
        assert (found[word].verdict, found[word].method) == (UNKNOWN, "failures")
        assert found[word].note == "50 % failed; these are the survivors'"
        assert found[word].change < -0.25  # what was measured is still shown
    assert BETTER not in {one.verdict for one in found.values()}


def test_tokens_of_answers_that_broke_make_no_output_better() -> None:
    found = changes(compared(sound(100), failing(noise(300, seed=2, mean=57), every=2)))["output"]
    assert (found.verdict, found.change > 0.1) == (UNKNOWN, True)
    assert found.note == "50 % failed; not of whole answers"


def of_two_lengths(*, refused: bool, pace: float = 1.0) -> RunData:
    """Every second answer has 20 tokens in place of 2; ``refused``: those are turned away at once.

    pace: what each time is multiplied by.
    """
    records, now = [], 0.0
    for number, first in enumerate(noise(300, seed=3, mean=20)):
        long = bool(number % 2)
        at = [pace * (first + 10 * token) for token in range(20 if long else 2)]
        if long and refused:
            records.append(record(number, sent=now, outcome="refused", end_ms=now + 1))
            now += 1
        else:
            records.append(record(number, sent=now, at=at, reported_output=len(at)))
            now += at[-1]
    made = level(window=(0, now), concurrency=1, label="concurrency 1", arrivals=len(records))
    return make_run(records, [made])


def test_a_server_that_turns_long_answers_away_serves_no_more_requests() -> None:
    found = changes(compared(of_two_lengths(refused=False), of_two_lengths(refused=True)))
    assert found["requests"].change > 0.5
    assert (found["requests"].verdict, found["requests"].method) == (UNKNOWN, "failures")
    assert found["requests"].note == "50 % failed; not of whole answers"
    back = changes(compared(of_two_lengths(refused=True), of_two_lengths(refused=False)))
    assert (back["requests"].verdict, back["output"].verdict) == (UNKNOWN, BETTER)


def test_more_requests_whose_answers_are_more_tokens_too_are_better_beside_failures() -> None:
    fast = of_two_lengths(refused=True, pace=0.1)
    found = changes(compared(of_two_lengths(refused=False), fast))["requests"]
    assert (found.verdict, found.note) == (BETTER, "of whole answers, too")


def test_a_few_failures_take_back_only_what_they_could_have_made() -> None:
    """Of 300 requests 12 failed: the median is the 52nd percentile of the others, P95 the 99th."""
    found = changes(compared(sound(100), failing(noise(300, seed=2, mean=57), every=25)))
    assert found["TTFT p50"].verdict == BETTER
    assert found["TTFT p50"].note == "with failures as +∞, too (4 % failed)"
    shown = render_comparison(
        compared(sound(100), failing(noise(300, seed=2, mean=57), every=25)), "terminal"
    )
    assert "better: with failures as +∞, too (4 % failed)" in " ".join(shown.split())


def test_a_real_worsening_stays_worse_however_many_failed() -> None:
    found = changes(compared(sound(100), failing(noise(300, seed=2, mean=130), every=2)))
    assert {found[word].verdict for word in LATENCIES} == {WORSE}


def test_a_candidate_that_fails_less_is_not_called_slower_for_it() -> None:
    found = changes(compared(failing(noise(300, seed=2, mean=57), every=2), sound(100)))
    assert found["errors"].verdict == BETTER
    assert found["TTFT p50"].verdict == UNKNOWN
    assert found["TTFT p50"].note == "50 % of the baseline's failed; these are the survivors'"


def test_failures_alike_on_both_sides_hide_no_regression() -> None:
    sides = [failing(noise(300, seed=i, mean=m), every=10) for i, m in ((1, 100), (2, 130))]
    found = changes(compared(*sides))
    assert {found[word].verdict for word in LATENCIES} == {WORSE}
    back = changes(compared(*reversed(sides)))
    assert {back[word].verdict for word in LATENCIES} == {BETTER}


def test_where_nothing_succeeded_that_is_the_reason() -> None:
    refused = [record(i, sent=10.0 * i, outcome="refused", end_ms=10.0 * i + 1) for i in range(99)]
    lost = make_run(refused, [level(window=(0, 1000), label="concurrency 1", arrivals=99)])
    found = changes(compared(sound(100), lost))["TTFT p50"]
    assert (found.verdict, found.method) == (UNKNOWN, "failures")
    assert found.note == "all 99 requests failed"


def test_a_rate_that_changed_within_its_scatter_says_so_under_the_table() -> None:
    first, other = (noise(300, seed=seed, spread=40) for seed in (1, 2))
    found = compared(timed(first), failing(other, every=25))
    rate = changes(found)["output"]
    assert (rate.change < -0.02, rate.verdict, rate.note) == (True, SAME, "it varies more")
    shown = render_comparison(found, "terminal")
    assert "no significant difference: it varies more\n" in shown
    assert "\nIt varies more: the rate scatters within a run" in shown
    assert changes(compared(sound(100), sound(100, seed=3)))["output"].note == ""


def test_beside_several_candidates_every_verdict_has_a_sign() -> None:
    flaky = failing(noise(300, seed=2, mean=57), every=2)
    (table,) = change_tables(compared(sound(100), flaky, sound(100, seed=3)))
    signs = {cell.text.split()[-1] for row in table.rows for cell in (row[3], row[5])}
    assert signs <= {"better", "worse", "n.s.", "?"}
    assert {"n.s.", "?"} <= signs
    assert "n.s.: no significant difference. ?: cannot tell" in table.note


def test_the_first_line_sums_to_all_that_was_compared() -> None:
    found = compared(sound(100), failing(noise(300, seed=2, mean=57), every=2))
    text = compare_view(found).verdict.text
    rows = found.levels[0].rows
    assert "5 cannot be told (failures)" in text
    told = re.findall(r"(\d+) (?:worse|better|without|cannot)", text)
    assert sum(map(int, told)) == len(rows)


def test_the_first_line_counts_the_reasons_why_it_cannot_tell() -> None:
    few = compared(timed(noise(300, seed=1)), timed(noise(8, seed=2)))
    assert "cannot be told (too few requests)" in compare_view(few).verdict.text
