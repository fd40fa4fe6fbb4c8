"""One run of a comparison: its levels by name, and the figures of each with what is behind them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadgen.analysis.alike import names_of
from loadgen.analysis.course import SATURATED
from loadgen.analysis.differ import Sample
from loadgen.analysis.metrics import summarise
from loadgen.analysis.per_request import legal_gaps, measured
from loadgen.analysis.quality import without_passes
from loadgen.analysis.rates import ended_in_slices, output_in_slices
from loadgen.analysis.samples import of_load
from loadgen.analysis.stats import Floats, Ints
from loadgen.analysis.steady import in_system_at
from loadgen.analysis.summary import Distribution, LevelSummary, Quantile, Summary
from loadgen.analysis.table import RunData, select
from loadgen.analysis.window import LevelPlan, asked_level, levels_of, placed, windows_of
from loadgen.record import FAILED_OUTCOMES, Outcome, Phase

SLICES = 15
_GROWTH_SLICES = 20  # of each round, as in ``steady.growth_of``
_SCHEDULED = ("rate", "segments", "speed")
"""What a level of the scenario says where a schedule decides when requests are due."""
_ALIKE = 0.8
"""The least share of each side's arrivals that the other side has at the same moment."""


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

    def level(self, name: str) -> "At | None":
        """Return one level by its name; None where this run has none of it."""
        names = names_of(self.plans)
        if name not in names:
            return None
        plan = self.plans[names.index(name)]
        summary = next((one for one in self.summary.levels if one.level == plan.level), None)
        return None if summary is None else At(self, plan, summary)


@dataclass(frozen=True)
class At:
    """One level of one side."""

    side: Side
    plan: LevelPlan
    summary: LevelSummary

    @cached_property
    def everything(self) -> RunData:
        """Every request of the level, all phases."""
        facts = self.side.facts
        return select(facts, (facts.requests["level"] == self.plan.level).to_numpy())

    @cached_property
    def counted(self) -> RunData:
        """The requests behind its percentiles: of the load, due in W, ok or unfinished."""
        requests = self.everything.requests
        seen = requests["outcome"].isin([Outcome.OK, Outcome.UNFINISHED]).to_numpy()
        return select(self.everything, requests["in_window"].to_numpy() & seen & of_load(requests))

    @property
    def saturated(self) -> bool:
        """Whether its queue grew as long as it lasted."""
        return self.summary.steadiness.verdict == SATURATED

    @cached_property
    def arrivals_ns(self) -> Ints | None:
        """When the arrivals of ``measure`` were due, from the first of their round; None if closed.

        Of a conversation the first turn alone: when the others are due is the server's doing.
        """
        asked = asked_level(self.side.run.manifest, self.plan.level)
        if self.plan.rate is None and all(asked.get(key) is None for key in _SCHEDULED):
            return None
        requests = self.everything.requests
        first_turn = ~(requests["turn"].to_numpy(dtype=np.float64) > 0)
        scheduled = requests[first_turn & (requests["phase"] == Phase.MEASURE).to_numpy()]
        since = scheduled["due_ns"] - scheduled.groupby("round")["due_ns"].transform("min")
        rounds = scheduled["round"].to_numpy(dtype=np.int64) << 48  # 2^48 ns are three days
        return np.asarray(rounds + since.to_numpy(dtype=np.int64))

    @cached_property
    def growth(self) -> Floats:
        """By how many requests what is in the system grew, in each slice of its rounds."""
        ends = [(one.measure_ns, one.end_ns) for one in windows_of(self.plan, self.everything)]
        moments = [np.linspace(start, end, _GROWTH_SLICES + 1) for start, end in ends]
        inside = [np.diff(in_system_at(self.everything.requests, one)) for one in moments]
        return np.concatenate(inside) if inside else np.empty(0)


def value_of(level: At, metric: Metric) -> float | None:
    """Return a figure exactly as the report of its run has it."""
    if metric.share:
        hits, n = share_of(level, metric)
        return hits / n if n else None
    found = getattr(level.summary, metric.field)
    if metric.quantile is None:
        return None if found is None else float(found)
    value: float | None = _quantile(level, metric).value
    return value


def _quantile(level: At, metric: Metric) -> Quantile:
    found: Quantile = getattr(getattr(level.summary, metric.field), metric.quantile or "p50")
    return found


def n_of(level: At, metric: Metric) -> int:
    """Return how many requests, gaps or answers a figure is of."""
    if metric.share:
        return share_of(level, metric)[1]
    found = getattr(level.summary, metric.field)
    return found.n if isinstance(found, Distribution) else level.summary.arrivals


def share_of(level: At, metric: Metric) -> tuple[int, int]:
    """Return hits and n of a share."""
    quality = level.summary.quality
    match metric.field:
        case "accuracy":
            return quality.passed, quality.answered
        case "broken":
            return quality.broken, quality.outputs
    return failed_of(level)


def failed_of(level: At) -> tuple[int, int]:
    """Return how many requests failed, and how many failed or ended ok."""
    outcomes = level.summary.outcomes
    failed = sum(outcomes.get(outcome, 0) for outcome in FAILED_OUTCOMES)
    return failed, failed + outcomes.get(Outcome.OK, 0)


def is_censored(level: At, metric: Metric) -> bool:
    """Say whether a percentile falls among unfinished requests."""
    return metric.quantile is not None and _quantile(level, metric).above


def is_withheld(level: At, metric: Metric) -> bool:
    """Say whether a percentile is left out since the queue grew."""
    found = getattr(level.summary, metric.field, None)
    return isinstance(found, Distribution) and found.withheld


def same_arrivals(first: At, other: At) -> bool:
    """Say whether requests came at the same moments, as one seed makes them; or no schedule did it.

    Judged by what happened: a constant rate, or a log, has the same arrivals whatever the seed.
    """
    if first.arrivals_ns is None or other.arrivals_ns is None:
        return True
    sides = (first.arrivals_ns, other.arrivals_ns)
    shared = [np.isin(one, that) for one, that in (sides, sides[::-1])]
    return all(float(one.mean()) >= _ALIKE for one in shared if len(one))


def round_values(level: At, metric: Metric) -> Floats:
    """Return a figure of each round that has it; empty where there is one round alone."""
    values = [getattr(one, metric.by_round or "") for one in level.summary.by_round]
    return np.array([value for value in values if value is not None], dtype=np.float64)


def sample_of(level: At, metric: Metric) -> Sample:
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


SLICED: Mapping[str, Callable[[At], Floats]] = {
    "output_tokens_per_s": lambda level: output_in_slices(level.everything, SLICES),
    "requests_per_s": lambda level: ended_in_slices(level.everything, SLICES),
}
