"""Runs held against a baseline: unlike conditions first, then each figure with a verdict.

A figure is "better" or "worse" only where the whole 95 % interval of its change lies outside ± the
tolerance; a share (errors, accuracy, broken answers), only where its interval, in points, leaves
out zero; and never where failures could have made it (``survivors``). Where an interval is from,
``between`` says.

Where a queue grew there are no times; that it did, on one side alone, is a verdict by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from loadgen.analysis import differ
from loadgen.analysis.about import About, about
from loadgen.analysis.accuracy import change_of_accuracy
from loadgen.analysis.alike import Mismatch, mismatches, names_of
from loadgen.analysis.between import ARRIVALS_DIFFER, TOO_FEW, interval_of
from loadgen.analysis.sides import (
    METRICS,
    At,
    Metric,
    Side,
    failed_of,
    is_censored,
    is_withheld,
    n_of,
    same_arrivals,
    sample_of,
    share_of,
    value_of,
)
from loadgen.analysis.stats import LEAST_FOR_TREND, Interval
from loadgen.analysis.survivors import Failures, percentile_with_failures

__all__ = [
    "BETTER",
    "COURSE",
    "SAME",
    "TOLERANCE",
    "UNKNOWN",
    "VARIES",
    "WORSE",
    "Change",
    "Comparison",
    "LevelComparison",
    "Row",
    "Side",
    "compare",
    "verdict_of",
]

TOLERANCE = 0.02

BETTER, WORSE, SAME, UNKNOWN = "better", "worse", "no significant difference", "cannot tell"
VARIES = "it varies more"
"""Said beside a rate that changed by more than the tolerance, though not significantly."""

COURSE = "course"
"""The row that says on which side the queue grew; it is there where it did on one at least."""
_NOT_USED = "a level must not be used"
_NO_SUCH_LEVEL = "no such level"
_WITHHELD = {
    (False, True): "withheld: the queue grew",
    (True, False): "withheld: the baseline's queue grew",
    (True, True): "withheld: the queue grew on both sides",
}
"""Why a time is not there, by whether it is withheld of the baseline and of the candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A candidate's figure beside the baseline's.

    change: relative, or for a share the difference (0.03 = 3 points); low, high: its 95 % interval.
    questions: how many different ones an accuracy is of. method: what the interval is from, or in a
    word or two why there is no verdict; note: what must be said beside the verdict.
    """

    value: float | None
    n: int
    questions: int | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = UNKNOWN
    method: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One metric at one level: the baseline's figure, then a change for each candidate."""

    word: str
    unit: str
    share: bool
    baseline: float | None
    n: int
    changes: list[Change]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelComparison:
    """One load, as all runs had it; notes: what is missing of a side, or must not be used."""

    label: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A baseline and its candidates, in this order."""

    tolerance: float
    runs: list[About]
    mismatches: list[Mismatch]
    levels: list[LevelComparison]

    @property
    def unlike(self) -> bool:
        """Whether a condition differs that was not meant to."""
        return any(not one.expected for one in self.mismatches)

    @property
    def refusals(self) -> list[str]:
        """Why a strict comparison is not made; empty where nothing speaks against it."""
        names = [one.what for one in self.mismatches if not one.expected]
        unlike = [f"--varies does not name {', '.join(names)}"] if names else []
        return unlike + [f"a check of {run.name} failed" for run in self.runs if run.failed]

    @property
    def uncompared(self) -> list[About]:
        """The candidates of which no figure is held against the baseline: they share no level."""
        rows = [row for level in self.levels for row in level.rows]
        return [
            run
            for index, run in enumerate(self.runs[1:])
            if all(row.changes[index].method == _NO_SUCH_LEVEL for row in rows)
        ]

    def count(self, verdict: str) -> int:
        """Count the changes with a verdict."""
        return sum(
            change.verdict == verdict
            for level in self.levels
            for row in level.rows
            for change in row.changes
        )


def compare(
    baseline: Side,
    candidates: Sequence[Side],
    *,
    tolerance: float = TOLERANCE,
    varies: Sequence[str] = (),
) -> Comparison:
    """Hold candidates against a baseline, level by level; see the head of this file."""
    sides = [baseline, *candidates]
    names = [
        name
        for name in names_of(baseline.plans)
        if any(side.level(name) is not None for side in candidates)
    ]
    return Comparison(
        tolerance=tolerance,
        runs=[about(side.name, side.summary) for side in sides],
        mismatches=mismatches([side.run for side in sides], varies=varies),
        levels=[_compared(name, sides, tolerance) for name in names],
    )


def _compared(name: str, sides: Sequence[Side], tolerance: float) -> LevelComparison:
    first, *others = [side.level(name) for side in sides]
    assert first is not None
    rows = [
        Row(
            word=metric.word,
            unit=metric.unit,
            share=metric.share,
            baseline=value_of(first, metric),
            n=n_of(first, metric),
            changes=[_change(first, other, metric, tolerance=tolerance) for other in others],
        )
        for metric in METRICS
    ]
    known = [*_course_rows(first, others), *(row for row in rows if _known(row))]
    notes = [*_notes(sides, [first, *others]), *_notes_on_arrivals(sides, known)]
    return LevelComparison(label=name, rows=known, notes=notes)


def _known(row: Row) -> bool:
    reasons = _WITHHELD.values()
    told = (one.value is not None or one.method in reasons for one in row.changes)
    return row.baseline is not None or any(told)


def _notes(sides: Sequence[Side], levels: Sequence[At | None]) -> Iterator[str]:
    for side, level in zip(sides, levels, strict=True):
        if level is None:
            yield f"{side.name} has no such level"
        elif level.summary.invalid:
            yield f"{side.name}: {level.summary.invalid}"


def _notes_on_arrivals(sides: Sequence[Side], rows: Sequence[Row]) -> Iterator[str]:
    for index, side in enumerate(sides[1:]):
        if any(row.changes[index].method == ARRIVALS_DIFFER for row in rows):
            yield (
                f"the requests of {sides[0].name} and {side.name} came at other moments, which"
                " times and rates follow: give both the same seed and length, or 3 rounds"
            )


def _course_rows(first: At, others: Sequence[At | None]) -> Iterator[Row]:
    if any(level is not None and level.saturated for level in (first, *others)):
        changes = [_change_of_course(first, other) for other in others]
        n = first.summary.arrivals
        yield Row(word=COURSE, unit="", share=False, baseline=None, n=n, changes=changes)


def _change_of_course(first: At, other: At | None) -> Change:
    """Hold a queue that grew against one that did not; a server that fails more has less of one."""
    if other is None:
        return Change(value=None, n=0, method=_NO_SUCH_LEVEL)
    found = Change(value=None, n=other.summary.arrivals, method="of the queue")
    if first.saturated == other.saturated:
        note = "saturated on both sides" if first.saturated else ""
        return replace(found, verdict=SAME, note=note)
    if first.summary.invalid or other.summary.invalid:
        return replace(found, method=_NOT_USED)
    better = first.saturated
    if (other if better else first).summary.ttft.n < LEAST_FOR_TREND:
        return replace(found, method=TOO_FEW)  # none whose queue could have been seen to grow
    courses = " → ".join(level.summary.steadiness.verdict for level in (first, other))
    failures = Failures(baseline=failed_of(first), candidate=failed_of(other))
    if failures.clearly_flatter(better=better):
        note = f"{courses}, but {failures.named(better=better)}"
        return replace(found, method="failures", note=note)
    if not _grew_apart(first, other):
        note = f"{courses}, but {ARRIVALS_DIFFER}"
        return replace(found, method=ARRIVALS_DIFFER, note=note)
    return replace(found, verdict=BETTER if better else WORSE, note=courses)


def _grew_apart(first: At, other: At) -> bool:
    """Say that it is the servers' doing that one queue grew: arrivals of their own may make one."""
    several = min(len(level.summary.by_round) for level in (first, other)) >= 3
    if several or same_arrivals(first, other):
        return True
    short, long = (first, other) if other.saturated else (other, first)
    return differ.is_more(short.growth, long.growth)


def _change(first: At, other: At | None, metric: Metric, *, tolerance: float) -> Change:
    if other is None:
        return Change(value=None, n=0, method=_NO_SUCH_LEVEL)
    value, before = value_of(other, metric), value_of(first, metric)
    n = n_of(other, metric)
    if value is None or before is None:
        return _without_figure(first, other, metric, found=Change(value=value, n=n))
    if metric.share:
        return _share_change(first, other, metric)
    if before == 0:
        return Change(value=value, n=n, method="the baseline is 0")
    change = value / before - 1
    if is_censored(first, metric) or is_censored(other, metric):
        return Change(value=value, n=n, change=change, method="falls among unfinished requests")
    if first.summary.invalid or other.summary.invalid:
        return Change(value=value, n=n, change=change, method=_NOT_USED)
    around, method = interval_of(first, other, metric)
    if around is None:
        return Change(value=value, n=n, change=change, method=method)
    between = Interval(low=change + around.low, high=change + around.high)
    verdict = verdict_of(between, tolerance=tolerance, higher_is_better=metric.higher_is_better)
    varies = metric.quantile is None and abs(change) > tolerance and between.low < 0 < between.high
    found = Change(
        value=value, n=n, change=change, low=between.low, high=between.high, verdict=verdict,
        method=method, note=VARIES if varies else "",
    )  # fmt: skip
    return _unflattered(first, other, metric, found=found, tolerance=tolerance)


def _without_figure(first: At, other: At, metric: Metric, *, found: Change) -> Change:
    """Say why a figure is missing: nothing succeeded, the queue grew, or too few succeeded."""
    for level, whose in ((other, ""), (first, " of the baseline")):
        failed, ended = failed_of(level)
        if failed and failed == ended:
            return replace(found, method="failures", note=f"all {failed:,} requests{whose} failed")
    withheld = (is_withheld(first, metric), is_withheld(other, metric))
    if withheld in _WITHHELD:
        return replace(found, method=_WITHHELD[withheld])
    return replace(found, method=TOO_FEW, note="too few requests, or none with it")


def _unflattered(
    first: At, other: At, metric: Metric, *, found: Change, tolerance: float
) -> Change:
    """Take a verdict back that failures could have made; see ``survivors``."""
    failures = Failures(baseline=failed_of(first), candidate=failed_of(other))
    better = found.verdict == BETTER
    decided = better or found.verdict == WORSE
    if not decided or not failures.flatter(better=better):
        return found
    if metric.quantile is None:  # short answers go faster: of requests, too, their tokens decide
        moved = _change_of_whole_answers(first, other)
        excuse = f"{failures.named(better=better)}; not of whole answers"
        kept = "of whole answers, too"
    else:
        moved = _change_with_failures(first, other, metric, failures=failures, better=better)
        excuse = f"{failures.named(better=better)}; these are the survivors'"
        kept = f"with failures as +∞, too ({failures.named(better=better)})"
    if moved is not None and found.change is not None:
        by = moved - found.change
        between = Interval(low=(found.low or 0) + by, high=(found.high or 0) + by)
        higher = metric.higher_is_better
        if verdict_of(between, tolerance=tolerance, higher_is_better=higher) == found.verdict:
            return replace(found, note=kept)
    return replace(found, verdict=UNKNOWN, method="failures", note=excuse)


def _change_of_whole_answers(first: At, other: At) -> float | None:
    before, after = (level.summary.output_tokens_per_s_ok for level in (first, other))
    return None if after is None or not before else after / before - 1


def _change_with_failures(
    first: At, other: At, metric: Metric, *, failures: Failures, better: bool
) -> float | None:
    """Return the change of a percentile with failures as +∞; None where it falls among them."""
    endless = failures.endless(better=better)
    before = _with_endless(first, metric, failed=endless.baseline)
    after = _with_endless(other, metric, failed=endless.candidate)
    return after / before - 1 if before and np.isfinite([before, after]).all() else None


def _with_endless(level: At, metric: Metric, *, failed: float) -> float:
    """Return the reported percentile, moved up to where it stands with failures as +∞."""
    quantile = float((metric.quantile or "p50").removeprefix("p")) / 100
    values = sample_of(level, metric).values
    reported = percentile_with_failures(values, quantile, failed=0.0)
    moved = percentile_with_failures(values, quantile, failed=failed)
    return (value_of(level, metric) or 0.0) * moved / reported if reported else moved


def verdict_of(between: Interval, *, tolerance: float, higher_is_better: bool) -> str:
    """Return better or worse where the whole interval lies outside ± the tolerance."""
    if between.low > tolerance:
        return BETTER if higher_is_better else WORSE
    if between.high < -tolerance:
        return WORSE if higher_is_better else BETTER
    return SAME


def _share_change(first: At, other: At, metric: Metric) -> Change:
    before, after = share_of(first, metric), share_of(other, metric)
    asked = [level.summary.quality.by_question for level in (first, other)]
    of_questions = metric.field == "accuracy"
    between = change_of_accuracy(*asked) if of_questions else differ.of_shares(before, after)
    assert between is not None  # both have an n, or there would be no value
    return Change(
        value=after[0] / after[1],
        n=after[1],
        questions=len(asked[1]) if of_questions else None,
        change=after[0] / after[1] - before[0] / before[1],
        low=between.low,
        high=between.high,
        verdict=verdict_of(between, tolerance=0.0, higher_is_better=metric.higher_is_better),
        method="by question" if of_questions else "of two shares",
    )
