"""Runs held against a baseline: unlike conditions first, then each figure with a verdict.

A figure is "better" or "worse" only where the whole 95 % interval of its change lies outside ± the
tolerance; a share (errors, accuracy, broken answers), only where its interval, in points, leaves
out zero. With 3 rounds or more on both sides the interval is the t interval of the rounds' values,
else a block bootstrap over requests (paired, where both sides sent the same ones), or a t interval
over batches of them where neighbours resemble one another too long; for rates it is a t interval
over slices of time.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from loadgen.analysis import differ
from loadgen.analysis.about import About, about
from loadgen.analysis.alike import Mismatch, mismatches, names_of, same_plan
from loadgen.analysis.differ import Sample
from loadgen.analysis.metrics import summarise
from loadgen.analysis.per_request import legal_gaps, measured
from loadgen.analysis.quality import without_passes
from loadgen.analysis.rates import ended_in_slices, output_in_slices
from loadgen.analysis.samples import of_load
from loadgen.analysis.stats import Floats, Interval
from loadgen.analysis.summary import Distribution, LevelSummary, Quantile, Summary
from loadgen.analysis.table import RunData, select
from loadgen.analysis.window import LevelPlan, levels_of, placed
from loadgen.record import FAILED_OUTCOMES, Outcome

TOLERANCE = 0.02
SLICES = 15

BETTER, WORSE, SAME, UNKNOWN = "better", "worse", "no significant difference", "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure that is compared.

    field: of the level's summary; quantile: "p50", where it is a percentile of a distribution;
    by_round: its field in ``RoundFigures``. share: a share of 1, compared in points.
    """

    word: str
    field: str
    unit: str
    quantile: str | None = None
    by_round: str | None = None
    higher_is_better: bool = False
    share: bool = False


METRICS = (
    Metric(word="output", field="output_tokens_per_s", unit="tok/s",
           by_round="output_tokens_per_s", higher_is_better=True),
    Metric(word="requests", field="requests_per_s", unit="/s", by_round="requests_per_s",
           higher_is_better=True),
    Metric(word="TTFT p50", field="ttft", unit="ms", quantile="p50", by_round="ttft_p50"),
    Metric(word="TTFT p95", field="ttft", unit="ms", quantile="p95", by_round="ttft_p95"),
    Metric(word="TPOT p50", field="tpot", unit="ms", quantile="p50", by_round="tpot_p50"),
    Metric(word="ITL p95", field="itl", unit="ms", quantile="p95", by_round="itl_p95"),
    Metric(word="E2E p50", field="e2e", unit="ms", quantile="p50", by_round="e2e_p50"),
    Metric(word="E2E p95", field="e2e", unit="ms", quantile="p95", by_round="e2e_p95"),
    Metric(word="errors", field="error_rate", unit="", share=True),
    Metric(word="accuracy", field="accuracy", unit="", share=True, higher_is_better=True),
    Metric(word="broken answers", field="broken", unit="", share=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A candidate's figure beside the baseline's.

    change: relative, or for a share the difference (0.03 = 3 points); low, high: its 95 % interval.
    method: what the interval is from, or why there is none.
    """

    value: float | None
    n: int
    change: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = UNKNOWN
    method: str = ""


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

    def count(self, verdict: str) -> int:
        """Count the changes with a verdict."""
        return sum(
            change.verdict == verdict
            for level in self.levels
            for row in level.rows
            for change in row.changes
        )


class Side:
    """One run, with what a comparison needs of it, computed once and when it is asked for."""

    def __init__(self, name: str, run: RunData) -> None:
        self.name = name
        self.run = run
        self.summary: Summary = summarise(run)
        self.plans: list[LevelPlan] = levels_of(without_passes(run)[0])

    @cached_property
    def facts(self) -> RunData:
        """Every request of the load with its metrics, its window and its place in the plan."""
        facts = placed(measured(without_passes(self.run)[0]))
        requests = facts.requests
        first = requests.groupby(["level", "round"])["id"].transform("min")
        place = (requests["round"].to_numpy() << 40) + (requests["id"] - first).to_numpy()
        return facts.with_requests(requests.assign(place=place))

    def level(self, name: str) -> "_At | None":
        """Return one level by its name; None where this run has none of it."""
        names = names_of(self.plans)
        if name not in names:
            return None
        plan = self.plans[names.index(name)]
        summary = next((one for one in self.summary.levels if one.level == plan.level), None)
        return None if summary is None else _At(self, plan, summary)


@dataclass(frozen=True)
class _At:
    """One level of one side."""

    side: Side
    plan: LevelPlan
    summary: LevelSummary

    @cached_property
    def everything(self) -> RunData:
        facts = self.side.facts
        return select(facts, (facts.requests["level"] == self.plan.level).to_numpy())

    @cached_property
    def counted(self) -> RunData:
        requests = self.everything.requests
        seen = requests["outcome"].isin([Outcome.OK, Outcome.UNFINISHED]).to_numpy()
        return select(self.everything, requests["in_window"].to_numpy() & seen & of_load(requests))


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
            baseline=_value(first, metric),
            n=_n(first, metric),
            changes=[_change(first, other, metric, tolerance=tolerance) for other in others],
        )
        for metric in METRICS
    ]
    known = [row for row in rows if _known(row)]
    return LevelComparison(label=name, rows=known, notes=list(_notes(sides, [first, *others])))


def _known(row: Row) -> bool:
    return row.baseline is not None or any(change.value is not None for change in row.changes)


def _notes(sides: Sequence[Side], levels: Sequence[_At | None]) -> Iterator[str]:
    for side, level in zip(sides, levels, strict=True):
        if level is None:
            yield f"{side.name} has no such level"
        elif level.summary.invalid:
            yield f"{side.name}: {level.summary.invalid}"


def _value(level: _At, metric: Metric) -> float | None:
    """Return a figure exactly as the report of its run has it."""
    if metric.share:
        hits, n = _share(level, metric)
        return hits / n if n else None
    found = getattr(level.summary, metric.field)
    if metric.quantile is None:
        return None if found is None else float(found)
    value: float | None = _quantile(level, metric).value
    return value


def _quantile(level: _At, metric: Metric) -> Quantile:
    found: Quantile = getattr(getattr(level.summary, metric.field), metric.quantile or "p50")
    return found


def _n(level: _At, metric: Metric) -> int:
    if metric.share:
        return _share(level, metric)[1]
    found = getattr(level.summary, metric.field)
    return found.n if isinstance(found, Distribution) else level.summary.arrivals


def _share(level: _At, metric: Metric) -> tuple[int, int]:
    """Return hits and n of a share."""
    summary, quality = level.summary, level.summary.quality
    match metric.field:
        case "accuracy":
            return quality.passed, quality.answered
        case "broken":
            return quality.broken, quality.outputs
    failed = sum(summary.outcomes.get(outcome, 0) for outcome in FAILED_OUTCOMES)
    return failed, failed + summary.outcomes.get(Outcome.OK, 0)


def _change(first: _At, other: _At | None, metric: Metric, *, tolerance: float) -> Change:
    if other is None:
        return Change(value=None, n=0, method="no such level")
    value, before = _value(other, metric), _value(first, metric)
    n = _n(other, metric)
    if value is None or before is None:
        return Change(value=value, n=n, method="too few, or none at all")
    if metric.share:
        return _share_change(first, other, metric)
    if before == 0:
        return Change(value=value, n=n, method="the baseline is 0")
    change = value / before - 1
    if _censored(first, metric) or _censored(other, metric):
        return Change(value=value, n=n, change=change, method="falls among unfinished requests")
    if first.summary.invalid or other.summary.invalid:
        return Change(value=value, n=n, change=change, method="a level must not be used")
    around, method = _interval(first, other, metric)
    if around is None:
        return Change(value=value, n=n, change=change, method=method)
    between = Interval(low=change + around.low, high=change + around.high)
    verdict = verdict_of(between, tolerance=tolerance, higher_is_better=metric.higher_is_better)
    return Change(
        value=value, n=n, change=change, low=between.low, high=between.high, verdict=verdict,
        method=method,
    )  # fmt: skip


def verdict_of(between: Interval, *, tolerance: float, higher_is_better: bool) -> str:
    """Return better or worse where the whole interval lies outside ± the tolerance."""
    if between.low > tolerance:
        return BETTER if higher_is_better else WORSE
    if between.high < -tolerance:
        return WORSE if higher_is_better else BETTER
    return SAME


def _share_change(first: _At, other: _At, metric: Metric) -> Change:
    before, after = _share(first, metric), _share(other, metric)
    between = differ.of_shares(before, after)
    assert between is not None  # both have an n, or there would be no value
    return Change(
        value=after[0] / after[1],
        n=after[1],
        change=after[0] / after[1] - before[0] / before[1],
        low=between.low,
        high=between.high,
        verdict=verdict_of(between, tolerance=0.0, higher_is_better=metric.higher_is_better),
        method="of two shares",
    )


def _censored(level: _At, metric: Metric) -> bool:
    return metric.quantile is not None and _quantile(level, metric).above


def _interval(first: _At, other: _At, metric: Metric) -> tuple[Interval | None, str]:
    """Return the interval of a change around 0, and what it is from."""
    rounds = [_round_values(level, metric) for level in (first, other)]
    if min(map(len, rounds)) >= 3:
        return differ.by_rounds(*rounds), "by rounds"
    if metric.quantile is None:
        slices = _SLICED[metric.field]
        return differ.by_rounds(slices(first), slices(other)), "by slices of time"
    paired = first.plan.level == other.plan.level and same_plan(first.side.run, other.side.run)
    samples = [_sample(level, metric) for level in (first, other)]
    if paired:
        common = np.intersect1d(samples[0].place, samples[1].place)
        least = min(len(np.unique(sample.place)) for sample in samples)
        paired = len(common) >= _ENOUGH_PAIRS * least > 0
        if paired:
            samples = [_kept(sample, common) for sample in samples]
    quantile = float(metric.quantile.removeprefix("p")) / 100
    found = differ.of_percentile(samples[0], samples[1], quantile, paired=paired)
    if found is not None:
        return found, "paired by request" if paired else "over requests"
    found = differ.by_batches(samples[0], samples[1], quantile)
    return found, "by batches of requests" if found else "too few requests"


_ENOUGH_PAIRS = 0.8
"""Of the requests of the shorter side: with fewer in common, pairs would tell of a part."""


def _kept(sample: Sample, places: "np.ndarray[Any, np.dtype[np.int64]]") -> Sample:
    kept = np.isin(sample.place, places)
    return Sample(values=sample.values[kept], place=sample.place[kept])


def _round_values(level: _At, metric: Metric) -> Floats:
    values = [getattr(one, metric.by_round or "") for one in level.summary.by_round]
    return np.array([value for value in values if value is not None], dtype=np.float64)


def _sample(level: _At, metric: Metric) -> Sample:
    """Return the samples behind a percentile, in order of the requests they belong to."""
    counted = level.counted
    place = counted.requests["place"].to_numpy(dtype=np.int64)
    if metric.field == "itl":
        gaps = legal_gaps(counted)
        place = place[gaps["row"].to_numpy()]
        values = gaps["gap_ns"].to_numpy(dtype=np.float64)
    else:
        values = counted.requests[f"{metric.field}_ns"].to_numpy(dtype=np.float64)
        ok = (counted.requests["outcome"] == Outcome.OK).to_numpy()
        known = ~np.isnan(values) & (ok | (metric.field != "e2e"))
        values, place = values[known], place[known]
    order = np.argsort(place, kind="stable")
    return Sample(values=values[order], place=place[order])


_SLICED: Mapping[str, Callable[[_At], Floats]] = {
    "output_tokens_per_s": lambda level: output_in_slices(level.everything, SLICES),
    "requests_per_s": lambda level: ended_in_slices(level.everything, SLICES),
}
