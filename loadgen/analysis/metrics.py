"""A run → its summary: every figure of every level, from facts alone.

The metrics of one request stand in ``per_request``, those per second in ``rates``; here they are
gathered for each level. A level's rounds are pooled: percentiles from all their samples, rates
from the sums over all their windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis import rates
from loadgen.analysis.distribution import (
    distribution,
    pooled_gaps_ms,
    with_failures,
    without_intervals,
)
from loadgen.analysis.failures import (
    client_faults,
    counts_of,
    counts_of_lists,
    error_classes,
    error_rate,
    failed,
    outcome_counts,
)
from loadgen.analysis.per_request import legal_gaps, measured
from loadgen.analysis.remarks import remarks
from loadgen.analysis.samples import samples_of
from loadgen.analysis.slo import (
    HIT,
    Objective,
    attainment,
    effective_objectives,
    judged_together,
    verdict,
)
from loadgen.analysis.slowest import slowest
from loadgen.analysis.summary import Distribution, LevelSummary, Summary
from loadgen.analysis.table import RunData, select
from loadgen.analysis.window import LevelPlan, Window, levels_of, placed, windows_of
from loadgen.errors import UsageError
from loadgen.record import SCHEMA_VERSION, Outcome
from loadgen.units import NS_PER_MS

TIMES = (
    "ttft", "ttfo", "e2e", "tpot", "ttfb", "stream_end", "connect", "tls", "ttft_cold",
    "ttft_from_due", "e2e_from_due",
)  # fmt: skip
CLIENT_TIMES = ("lateness", "slot_wait", "send_lag")
SPEEDS = ("decode_rate", "prefill_rate", "per_request_rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """One level's data: everything that touched it, and what was due in its windows.

    class_: where it is one class of a mix alone; None = the whole level.
    """

    plan: LevelPlan
    class_: str | None
    windows: list[Window]
    everything: RunData
    due: RunData
    objectives: tuple[Objective, ...]


def summarise(run: RunData) -> Summary:
    """Compute all figures of a run; also of one cut short, or where nothing succeeded."""
    facts = placed(measured(run))
    plans, objectives = levels_of(facts), _objectives(run)
    levels = [_level_summary(_level(facts, plan, objectives)) for plan in plans]
    manifest = run.manifest
    return Summary(
        schema=SCHEMA_VERSION,
        name=str(manifest.get("name") or ""),
        status=str(manifest.get("status") or "unknown"),
        started_at=str(manifest.get("started_at") or ""),
        target=dict(manifest.get("target") or {}),
        levels=levels,
        by_class=_by_class(facts, plans, objectives),
        objectives=[objective.text for objective in objectives],
        slowest=slowest(facts, {plan.level: plan.label for plan in plans}),
        warnings=[*map(str, manifest.get("warnings") or []), *run.warnings, *remarks(levels)],
    )


def _objectives(run: RunData) -> tuple[Objective, ...]:
    scenario = run.manifest.get("scenario") or {}
    try:
        return effective_objectives(tuple(map(str, scenario.get("objectives") or ())))
    except ValueError as error:
        raise UsageError(f"manifest.json: scenario.objectives: {error}") from error


def _by_class(
    facts: RunData, plans: Sequence[LevelPlan], objectives: tuple[Objective, ...]
) -> list[LevelSummary]:
    """Summarise each class of a mix at each level; nothing where the prompts have no classes."""
    column = facts.requests["class_"]
    return [
        _level_summary(_level(facts, plan, objectives, class_=name))
        for plan in plans
        for name in sorted(set(column.dropna().astype(str)))
    ]


def _level(
    facts: RunData,
    plan: LevelPlan,
    objectives: tuple[Objective, ...],
    *,
    class_: str | None = None,
) -> _Level:
    rows = (facts.requests["level"] == plan.level).to_numpy()
    windows = windows_of(plan, facts.requests[rows])
    if class_ is not None:
        rows = rows & (facts.requests["class_"] == class_).to_numpy()
    everything = select(facts, rows)
    return _Level(
        plan=plan,
        class_=class_,
        windows=windows,
        everything=everything,
        due=select(everything, everything.requests["in_window"].to_numpy()),
        objectives=objectives,
    )


def _level_summary(level: _Level) -> LevelSummary:
    plan, due = level.plan, level.due.requests
    reasons = sorted({str(entry.get("stop_reason") or "") for entry in plan.rounds} - {""})
    figures: dict[str, Any] = {
        **_counts(due),
        **_distributions(level.due),
        **_tokens(level.due),
        **_held_against_objectives(level),
        **_client(level),
    }
    return LevelSummary(
        level=plan.level,
        label=plan.label,
        class_=level.class_,
        concurrency=plan.concurrency,
        rate=plan.rate,
        rounds=len(plan.rounds),
        window_s=rates.window_s(level.windows),
        stop_reason=", ".join(reasons) or None,
        **figures,
        **_rates(level, figures["tpot"].mean),
    )


def _counts(due: pd.DataFrame) -> dict[str, Any]:
    flags = counts_of_lists(due["flags"])
    in_a_burst = int(due["buffered"].sum())
    return {
        "arrivals": len(due),
        "outcomes": outcome_counts(due),
        "flags": {**flags, "buffered": in_a_burst} if in_a_burst else flags,
        "error_rate": error_rate(due),
        "errors": error_classes(due),
        "connections_new": int((due["connection"] == "new").sum()),
        "reconnects": int(due["reconnects"].sum()),
        "internal_errors": int(due["internal_errors"].sum()),
    }


def _rates(level: _Level, mean_tpot_ms: float | None) -> dict[str, Any]:
    everything, windows = level.everything, level.windows
    ok = (everything.requests["outcome"] == Outcome.OK).to_numpy()
    output, fed = rates.output_tokens(everything), rates.input_tokens(everything)
    per_s = rates.per_second(output, windows)
    peaks = [entry.get("peak_in_flight") for entry in level.plan.rounds]
    known = [int(peak) for peak in peaks if peak is not None and level.class_ is None]
    return {
        "requests_per_s": rates.per_second(rates.requests_ended_ok(everything), windows),
        "output_tokens_per_s": per_s,
        "output_tokens_per_s_ok": rates.per_second(rates.output_tokens(everything, of=ok), windows),
        "total_tokens_per_s": None if fed is None else rates.per_second(output + fed, windows),
        "implied_concurrency": rates.implied_concurrency(per_s, mean_tpot_ms),
        "in_flight_mean": rates.mean_in_flight(everything, windows),
        "in_flight_peak": max(known) if known else rates.peak_in_flight(everything),
    }


def _distributions(due: RunData) -> dict[str, Distribution]:
    requests = due.requests
    found = {name: _times(requests, name) for name in TIMES}
    in_order = requests.sort_values("due_ns", kind="stable")
    for name in CLIENT_TIMES:  # whatever became of the request, the client sent it so late
        found[name] = distribution(in_order[f"{name}_ns"].to_numpy() / NS_PER_MS)
    for name in SPEEDS:
        found[name] = distribution(samples_of(requests, name).values)
    failures = int(failed(requests).sum())
    for name in ("ttft", "e2e"):
        samples = samples_of(requests, f"{name}_ns")
        found[f"{name}_failures_infinite"] = with_failures(
            samples.values / NS_PER_MS, at_least=samples.at_least / NS_PER_MS, failures=failures
        )
    seen = requests["outcome"].isin([Outcome.OK, Outcome.UNFINISHED]).to_numpy()
    gaps = legal_gaps(due)
    gaps = gaps[seen[gaps["row"]]]
    found["itl"] = pooled_gaps_ms(gaps["gap_ns"].to_numpy(dtype=np.float64), gaps["row"].to_numpy())
    found["user_lag"] = without_intervals(due.reads["lag_ns"].to_numpy() / NS_PER_MS)
    return found


def _times(requests: pd.DataFrame, name: str) -> Distribution:
    samples = samples_of(requests, f"{name}_ns")
    return distribution(samples.values / NS_PER_MS, at_least=samples.at_least / NS_PER_MS)


def _tokens(due: RunData) -> dict[str, Any]:
    """Lengths and token counts of the requests that ended ok."""
    ok = due.requests[due.requests["outcome"] == Outcome.OK]
    ok = ok.sort_values("due_ns", kind="stable")
    return {
        "input_tokens": distribution(ok["reported_input"].to_numpy()),
        "output_tokens": distribution(ok["output_tokens"].to_numpy()),
        "asked_input_mean": _mean(ok["asked_input"]),
        "asked_output_mean": _mean(ok["asked_output"]),
        "cached_input_share": rates.cached_input_share(ok),
        "tokens_per_chunk": rates.tokens_per_chunk(ok),
        "token_sources": counts_of(ok["token_source"]),
        "finish_reasons": counts_of_lists(ok["finish_reasons"]),
    }


def _held_against_objectives(level: _Level) -> dict[str, Any]:
    together = judged_together(level.due, level.objectives)
    every = judged_together(level.everything, level.objectives)
    good = None
    if every is not None:
        ended = rates.requests_ended_ok(level.everything, of=every == HIT)
        good = rates.per_second(ended, level.windows)
    return {
        "objectives": [verdict(level.due, objective) for objective in level.objectives],
        "attainment": None if together is None else attainment(together),
        "goodput": good,
    }


def _client(level: _Level) -> dict[str, Any]:
    told = [dict(entry.get("client") or {}) for entry in level.plan.rounds]
    return {
        "coalesced_share": rates.coalesced_share(level.due),
        "client": _worst(told),
        "invalid": client_faults(level.everything.requests) or _told_invalid(level.plan),
    }


def _told_invalid(plan: LevelPlan) -> str | None:
    """Return why the run itself called a level invalid, where it did."""
    return next((str(entry["invalid"]) for entry in plan.rounds if entry.get("invalid")), None)


def _worst(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join the client's figures of several rounds: the largest of numbers, the last of the rest."""
    joined: dict[str, Any] = {}
    for figures in rounds:
        for name, value in figures.items():
            before = joined.get(name)
            numbers = isinstance(value, int | float) and isinstance(before, int | float)
            joined[name] = max(before, value) if numbers else value
    return joined


def _mean(column: "pd.Series[Any]") -> float | None:
    return float(column.mean()) if column.notna().any() else None
