"""Objectives held against a level: verdicts, attainment, and who met them all.

An objective on TTFT, TTFO, E2E or TPOT at p reads "a share p of requests within the bound" and is
judged by counting requests, after MLPerf LoadGen's early stopping; one on ``itl`` is the pooled
quantile against its interval; ``errors`` is the plain ratio over the level.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.distribution import quantile_of, quantile_of_gaps
from loadgen.analysis.failures import error_rate, failed
from loadgen.analysis.per_request import gap_quantile_ns, legal_gaps
from loadgen.analysis.samples import of_load, samples_of
from loadgen.analysis.stats import is_met, is_missed, settled_by
from loadgen.analysis.summary import ObjectiveResult
from loadgen.analysis.table import RunData
from loadgen.errors import UsageError
from loadgen.record import Outcome
from loadgen.scenario.objective import Objective, effective_objectives, parse_objective
from loadgen.units import NS_PER_MS

__all__ = ["Objective", "attainment", "effective_objectives", "judged", "parse_objective"]

Judgements = np.ndarray[Any, np.dtype[np.int8]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

HIT, OUT, MISS = 1, 0, -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What a run is held to: by all of its requests, and by each class of a mix."""

    common: tuple[Objective, ...]
    by_class: Mapping[str, tuple[Objective, ...]] = field(default_factory=dict)

    def of(self, class_: str | None) -> tuple[Objective, ...]:
        """Return those of one class, None = the whole.

        A class's own replace the common ones on the same metric; the others hold for it, too.
        """
        own = self.by_class.get(class_ or "", ())
        taken = {objective.metric for objective in own}
        return (*own, *(one for one in self.common if one.metric not in taken))


def objectives_of(manifest: Mapping[str, Any]) -> Objectives:
    """Read the objectives of a run and of its classes; UsageError where one cannot be read."""
    scenario = manifest.get("scenario") or {}
    try:
        common = effective_objectives(tuple(map(str, scenario.get("objectives") or ())))
        mix = scenario.get("mix") or []
        by_class = {
            str(part["name"]): tuple(map(parse_objective, part.get("objectives") or ()))
            for part in mix
            if isinstance(part, Mapping) and part.get("name")
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"manifest.json: scenario.objectives: {error}") from error
    return Objectives(common=common, by_class=by_class)


def judged_by_class(level: RunData, objectives: Objectives) -> Judgements | None:
    """Hold each request against all objectives of its own class; None where there is none."""
    classes = level.requests["class_"].to_numpy()
    found = judged_together(level, objectives.common)
    for name, own in objectives.by_class.items():
        mine = judged_together(level, objectives.of(name)) if own else None
        if mine is not None:
            others = np.zeros(len(classes), dtype=np.int8) if found is None else found
            found = np.where(classes == name, mine, others).astype(np.int8)
    return found


def judged(level: RunData, objective: Objective) -> Judgements:
    """Hold each request against an objective: HIT, MISS, or OUT where it says nothing.

    ok: by its value; OUT where the metric is null. Failed and dropped: MISS. Unfinished: by its
    TTFT or TTFO where observed, else a MISS once its age exceeds the bound and OUT before; its
    TPOT and gaps could still have changed: OUT. Cancelled, client faults and questions of a golden
    set: OUT.
    """
    requests = level.requests
    outcome = requests["outcome"]
    value = pd.Series(_values_ms(level, objective), index=requests.index)
    verdicts = np.where(_within(value, objective), HIT, MISS)
    verdicts = np.where(value.isna(), OUT, verdicts)
    age = (requests["end_ns"] - requests["sent_ns"]) / NS_PER_MS
    overdue = np.where(age.isna() | _within(age, objective), OUT, MISS)
    if objective.metric not in ("ttft", "ttfo", "e2e"):
        overdue = np.zeros(len(requests), dtype=np.int8)
    observed = value.notna() & (objective.metric in ("ttft", "ttfo"))
    overdue = np.where(observed, verdicts, overdue)
    judgement = np.select(
        [outcome == Outcome.OK, outcome == Outcome.UNFINISHED, outcome == Outcome.DROPPED],
        [verdicts, overdue, np.full(len(requests), MISS)],
        default=OUT,
    )
    judgement = np.where(failed(requests), MISS, judgement)
    return np.where(of_load(requests), judgement, OUT).astype(np.int8)


def judged_together(level: RunData, objectives: Sequence[Objective]) -> Judgements | None:
    """Hold each request against all objectives on times; None where there is none.

    A MISS of one is a MISS; a HIT needs one HIT and no MISS; an unfinished request without a MISS
    is OUT: it has not met what it had not ended to meet.
    """
    timed = [objective for objective in objectives if objective.metric != "errors"]
    if not timed:
        return None
    each = np.stack([judged(level, objective) for objective in timed])
    together = np.where((each == MISS).any(axis=0), MISS, each.max(axis=0))
    unfinished = (level.requests["outcome"] == Outcome.UNFINISHED).to_numpy()
    return np.where(unfinished & (together == HIT), OUT, together).astype(np.int8)


def attainment(judgements: Judgements) -> float | None:
    """Attainment = met all / (ok + failed + dropped + unfinished that already missed)."""
    counted = int((judgements != OUT).sum())
    return int((judgements == HIT).sum()) / counted if counted else None


def verdict(level: RunData, objective: Objective) -> ObjectiveResult:
    """Hold one level (its requests due in W) against one objective."""
    match objective.metric:
        case "errors":
            return _verdict_on_errors(level.requests, objective)
        case "itl":
            return _verdict_on_gaps(level, objective)
        case _:
            return _verdict_on_requests(level, objective)


def unsettled(result: ObjectiveResult) -> ObjectiveResult:
    """Return the verdict on a saturated level: no time is met while the queue grows.

    A longer level would have missed it; the value would tell only how long this one was.
    """
    if result.objective.split()[:1] == ["errors"]:
        return result
    word = "unclear" if result.verdict == "met" else result.verdict
    return replace(result, verdict=word, value=None, needed=None)


def _verdict_on_errors(requests: pd.DataFrame, objective: Objective) -> ObjectiveResult:
    rate = error_rate(requests)
    failures = int(failed(requests).sum())
    answered = failures + int((requests["outcome"] == Outcome.OK).sum())
    word = "unclear" if rate is None else "met" if _within(rate, objective) else "missed"
    return ObjectiveResult(
        objective=objective.text, verdict=word, value=rate, n=answered, misses=failures
    )


def _verdict_on_gaps(level: RunData, objective: Objective) -> ObjectiveResult:
    """Met where the whole interval keeps the bound, missed where none of it does."""
    seen = level.requests["outcome"].isin([Outcome.OK, Outcome.UNFINISHED]).to_numpy()
    seen = seen & of_load(level.requests)
    gaps = legal_gaps(level)
    gaps = gaps[seen[gaps["row"]]]
    found = quantile_of_gaps(
        gaps["gap_ns"].to_numpy() / NS_PER_MS,
        _quantile(objective),
        request=gaps["row"].to_numpy(),
        at_ns=gaps["at_ns"].to_numpy(),
    )
    word = "unclear"
    if found.high is not None and _within(found.high, objective):
        word = "met"
    elif found.low is not None and not _within(found.low, objective):
        word = "missed"
    return ObjectiveResult(objective=objective.text, verdict=word, value=found.value, n=len(gaps))


def _verdict_on_requests(level: RunData, objective: Objective) -> ObjectiveResult:
    judgements = judged(level, objective)
    n, misses = int((judgements != OUT).sum()), int((judgements == MISS).sum())
    share = _quantile(objective)
    word = "unclear"
    if is_met(n, misses, quantile=share):
        word = "met"
    elif is_missed(n, misses, quantile=share):
        word = "missed"
    return ObjectiveResult(
        objective=objective.text,
        verdict=word,
        value=_value_at(level, objective),
        n=n,
        misses=misses,
        needed=settled_by(misses, quantile=share) if word == "unclear" else None,
    )


def _value_at(level: RunData, objective: Objective) -> float | None:
    """Return the metric at the objective's percentile, as the level's table has it."""
    samples = samples_of(level.requests, f"{objective.metric}_ns")
    value = quantile_of(samples.values, samples.at_least, _quantile(objective)).value
    return None if value is None else value / NS_PER_MS


def _values_ms(level: RunData, objective: Objective) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return each request's value of an objective's metric, for ``itl`` its own gap quantile."""
    if objective.metric == "itl":
        return gap_quantile_ns(level, _quantile(objective)) / NS_PER_MS
    return level.requests[f"{objective.metric}_ns"].to_numpy() / NS_PER_MS


def _within(value: Any, objective: Objective) -> Any:  # noqa: ANN401 - a number or a column
    return value < objective.bound if objective.op == "<" else value <= objective.bound


def _quantile(objective: Objective) -> float:
    """Return the objective's percentile; only ``errors`` has none."""
    if objective.quantile is None:
        raise ValueError(f"'{objective.text}' names no percentile")
    return objective.quantile
