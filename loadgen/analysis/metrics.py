"""A run → its summary: every figure of every level, from facts alone.

The metrics of one request stand in ``per_request``, those per second in ``rates``; here they are
gathered for each level. A level's rounds are pooled: percentiles from all their samples, rates
from the sums over all their windows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from loadgen.analysis import rates
from loadgen.analysis.beside import Beside, heard, stretch_of, with_server
from loadgen.analysis.checks import with_checks
from loadgen.analysis.conditions import answers
from loadgen.analysis.course import (
    SATURATED,
    by_round,
    steadiness,
    warmup_s,
    warmup_ttft_max_ms,
)
from loadgen.analysis.distribution import distribution
from loadgen.analysis.failures import (
    client_faults,
    counts_of,
    counts_of_lists,
    error_classes,
    error_rate,
    outcome_counts,
)
from loadgen.analysis.per_request import measured
from loadgen.analysis.prompts import (
    asked_cached_share,
    repeats,
    template_tokens,
    unasked_tokens,
)
from loadgen.analysis.quality import quality_of, without_passes
from loadgen.analysis.remarks import not_heard, remarks
from loadgen.analysis.roofline import Batch, facts_of, most_tokens_per_s
from loadgen.analysis.samples import of_load
from loadgen.analysis.slo import (
    HIT,
    Objectives,
    attainment,
    judged_by_class,
    objectives_of,
    unsettled,
    verdict,
)
from loadgen.analysis.slowest import slowest
from loadgen.analysis.summary import Distribution, LevelSummary, Steadiness, Summary, Uncut
from loadgen.analysis.table import RunData, select
from loadgen.analysis.telemetry import telemetry_of
from loadgen.analysis.times import distributions, times, widened_by_rounds, withheld
from loadgen.analysis.window import (
    LevelPlan,
    Window,
    asked_level,
    levels_of,
    placed,
    windows_of,
    without_cut,
)
from loadgen.record import SCHEMA_VERSION, Outcome, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """One level's data: everything that touched it, and what was due in its windows.

    measured: what was due in all of ``measure``. What failed there failed, whether or not the
    window's truncation leaves it out of the percentiles.
    class_: where it is one class of a mix alone; None = the whole level.
    """

    plan: LevelPlan
    class_: str | None
    windows: list[Window]
    everything: RunData
    due: RunData
    measured: RunData
    objectives: Objectives
    steadiness: Steadiness


def summarise(run: RunData) -> Summary:
    """Compute all figures of a run; also of one cut short, or where nothing succeeded."""
    load, passes = without_passes(run)
    facts = placed(measured(load))
    facts = facts.with_requests(facts.requests.assign(repeated=repeats(facts.requests)))
    plans, objectives = levels_of(facts), objectives_of(run.manifest)
    parts = [_level(facts, plan, objectives) for plan in plans]
    told = heard(facts)
    levels = [
        _with_server(_with_quality(_level_summary(part), part, passes), part, told)
        for part in parts
    ]
    manifest = run.manifest
    summary = Summary(
        schema=SCHEMA_VERSION,
        name=str(manifest.get("name") or ""),
        status=str(manifest.get("status") or "unknown"),
        started_at=str(manifest.get("started_at") or ""),
        target=dict(manifest.get("target") or {}),
        levels=levels,
        by_class=[
            _with_quality(_level_summary(of_class), of_class, passes[:0])
            for part in parts
            for of_class in _classes(part)
        ],
        objectives=[objective.text for objective in objectives.common],
        slowest=slowest(facts, {plan.level: plan.label for plan in plans}),
        conditions=answers(levels, manifest),
        telemetry=telemetry_of(manifest, facts.samples, several=told.several),
        warnings=[
            *map(str, manifest.get("warnings") or []),
            *run.warnings,
            *not_heard(manifest, levels, several=told.several),
            *remarks(levels),
        ],
    )
    return with_checks(summary)


def _with_quality(summary: LevelSummary, level: _Level, passes: pd.DataFrame) -> LevelSummary:
    """Add what the answers were worth: among the load, and in the level's pass of its own."""
    asked = passes[passes["level"] == level.plan.level]
    return replace(summary, quality=quality_of(level.measured.requests, asked))


def _with_server(summary: LevelSummary, level: _Level, told: Beside) -> LevelSummary:
    stretch = stretch_of(level.plan, level.windows, level.everything.manifest)
    return with_server(summary, told, everything=level.everything, stretch=stretch)


def _level(facts: RunData, plan: LevelPlan, objectives: Objectives) -> _Level:
    everything = select(facts, (facts.requests["level"] == plan.level).to_numpy())
    windows = windows_of(plan, everything)
    return _Level(
        plan=plan,
        class_=None,
        windows=windows,
        everything=everything,
        due=_due(everything),
        measured=_measured(everything, windows),
        objectives=objectives,
        steadiness=steadiness(plan, windows, everything),
    )


def _classes(level: _Level) -> Iterator[_Level]:
    """Yield each class of a mix by itself, in the level's windows; none without classes."""
    column = level.everything.requests["class_"]
    for name in sorted(set(column.dropna().astype(str))):
        mine = select(level.everything, (column == name).to_numpy())
        yield replace(
            level,
            class_=name,
            everything=mine,
            due=_due(mine),
            measured=_measured(mine, level.windows),
        )


def _due(everything: RunData) -> RunData:
    return select(everything, everything.requests["in_window"].to_numpy())


def _measured(everything: RunData, windows: Sequence[Window]) -> RunData:
    return _due(everything.with_requests(without_cut(everything, windows)))


def _level_summary(level: _Level) -> LevelSummary:
    plan = level.plan
    reasons = sorted({str(entry.get("stop_reason") or "") for entry in plan.rounds} - {""})
    figures: dict[str, Any] = {
        **_counts(level.measured.requests),
        **_distributions(level),
        **_tokens(level.due),
        **_prompts(level),
        **_held_against_objectives(level),
        **_client(level),
    }
    rated = _rates(level)
    return LevelSummary(
        level=plan.level,
        label=plan.label,
        class_=level.class_,
        concurrency=plan.concurrency,
        rate=plan.rate,
        sessions=asked_level(level.due.manifest, plan.level).get("sessions"),
        rounds=len(plan.rounds),
        window_s=rates.window_s(level.windows),
        stop_reason=", ".join(reasons) or None,
        warmup_requests=int((level.everything.requests["phase"] == Phase.WARMUP).sum()),
        warmup_s=warmup_s(plan),
        warmup_ttft_max=warmup_ttft_max_ms(level.everything),
        records=len(level.everything.requests),
        arrivals_told=_arrivals_told(level),
        steadiness=level.steadiness,
        uncut=_uncut(level),
        by_round=by_round(plan, level.everything),
        roofline_share=_roofline_share(level, rated),
        **figures,
        **rated,
    )


def _distributions(level: _Level) -> dict[str, Distribution]:
    found = distributions(level.due)
    if level.steadiness.verdict == SATURATED:
        return withheld(found)
    rounds = level.due.requests["round"]
    numbers = [entry.get("round", 0) for entry in level.plan.rounds]
    parts = [select(level.due, (rounds == number).to_numpy()) for number in numbers]
    return widened_by_rounds(found, parts)


def _arrivals_told(level: _Level) -> int | None:
    """Return how many arrivals the run itself counted; None for a class, or where it says not."""
    told = [entry.get("arrivals") for entry in level.plan.rounds]
    if level.class_ is not None or not all(isinstance(number, int) for number in told):
        return None
    return sum(int(number or 0) for number in told)


def _uncut(level: _Level) -> Uncut | None:
    """Return the main figures over all of ``measure``, where W is not all of it."""
    if not any(window.cut_ns for window in level.windows):
        return None
    windows = [replace(window, start_ns=window.measure_ns) for window in level.windows]
    everything = level.everything.with_requests(without_cut(level.everything, level.windows))
    due = level.measured
    found = {name: times(due.requests, name) for name in ("ttft", "tpot", "e2e")}
    if level.steadiness.verdict == SATURATED:
        found = withheld(found)
    return Uncut(
        window_s=rates.window_s(windows),
        arrivals=len(due.requests),
        requests_per_s=rates.per_second(rates.requests_ended_ok(everything), windows),
        output_tokens_per_s=rates.per_second(rates.output_tokens(everything), windows),
        **found,
    )


def _counts(due: pd.DataFrame) -> dict[str, Any]:
    flags = counts_of_lists(due["flags"])
    in_a_burst = int(due["buffered"].sum())
    return {
        "arrivals": len(due),
        "outcomes": outcome_counts(due),
        "questions": int((~of_load(due)).sum()),
        "flags": {**flags, "buffered": in_a_burst} if in_a_burst else flags,
        "error_rate": error_rate(due),
        "errors": error_classes(due),
        "connections_new": int((due["connection"] == "new").sum()),
        "reconnects": int(due["reconnects"].sum()),
        "internal_errors": int(due["internal_errors"].sum()),
    }


def _rates(level: _Level) -> dict[str, Any]:
    everything, windows = level.everything, level.windows
    ok = (everything.requests["outcome"] == Outcome.OK).to_numpy()
    output, fed = rates.output_tokens(everything), rates.input_tokens(everything)
    per_s = rates.per_second(output, windows)
    peaks = [entry.get("peak_in_flight") for entry in level.plan.rounds]
    known = [int(peak) for peak in peaks if peak is not None and level.class_ is None]
    return {
        "requests_per_s": rates.per_second(rates.requests_ended_ok(everything), windows),
        "requests_per_s_between_ends": rates.requests_between_ends(everything),
        "output_tokens_per_s": per_s,
        "output_tokens_per_s_ok": rates.per_second(rates.output_tokens(everything, of=ok), windows),
        "total_tokens_per_s": None if fed is None else rates.per_second(output + fed, windows),
        "implied_concurrency": rates.implied_concurrency(
            per_s, times(level.due.requests, "tpot").mean
        ),
        "in_flight_mean": rates.mean_in_flight(everything, windows),
        "in_flight_peak": max(known) if known else rates.peak_in_flight(everything),
    }


def _tokens(due: RunData) -> dict[str, Any]:
    """Lengths and token counts of the load's requests that ended ok."""
    ok = due.requests[(due.requests["outcome"] == Outcome.OK) & of_load(due.requests)]
    ok = ok.sort_values("due_ns", kind="stable")
    return {
        "input_tokens": distribution(ok["reported_input"].to_numpy()),
        "output_tokens": distribution(ok["output_tokens"].to_numpy()),
        **_held_against_asked(ok, "input", told="reported_input"),
        **_held_against_asked(ok, "output", told="output_tokens"),
        "cached_input_share": rates.cached_input_share(ok),
        "tokens_per_chunk": rates.tokens_per_chunk(ok),
        "token_sources": counts_of(ok["token_source"]),
        "finish_reasons": counts_of_lists(ok["finish_reasons"]),
    }


def _held_against_asked(ok: pd.DataFrame, side: str, *, told: str) -> dict[str, float | None]:
    """Return mean lengths asked for and counted, both of the requests that have both.

    A mix may ask for lengths of some classes alone: the others' have nothing to be held against.
    """
    asked, counted = ok[f"asked_{side}"], ok[told]
    both = asked.notna() & counted.notna()
    return {
        f"asked_{side}_mean": _mean(asked[both] if both.any() else asked),
        f"asked_{side}_told": _mean(counted[both]),
    }


def _prompts(level: _Level) -> dict[str, Any]:
    requests = level.due.requests[of_load(level.due.requests)]
    manifest = level.due.manifest
    hashed = requests[requests["prompt_hash"].notna()]
    return {
        "prompt_overhead": template_tokens(manifest),
        **_exactness(requests, unasked=unasked_tokens(manifest)),
        "conversations_cut": sum(
            int(entry.get("conversations_cut") or 0) for entry in level.plan.rounds
        ),
        "unasked_tokens": unasked_tokens(manifest),
        "asked_cached_share": asked_cached_share(manifest, requests),
        "repeated_prompts": float(hashed["repeated"].mean()) if len(hashed) else None,
    }


def _exactness(requests: pd.DataFrame, *, unasked: float) -> dict[str, float | None]:
    """Return how many lengths were as asked, and the largest miss of a prompt, in tokens."""
    ok = requests[requests["outcome"] == Outcome.OK]
    missed = (ok["reported_input"] - ok["asked_input"] - unasked).abs().dropna()
    answered = (ok["output_tokens"] - ok["asked_output"]).abs().dropna()
    return {
        "exact_input_share": float((missed == 0).mean()) if len(missed) else None,
        "largest_input_miss": float(missed.max()) if len(missed) else None,
        "exact_output_share": float((answered == 0).mean()) if len(answered) else None,
    }


def _roofline_share(level: _Level, figures: dict[str, Any]) -> float | None:
    """Return output tok/s over the roofline's; None where model and GPU are not known."""
    facts = facts_of(level.due.manifest)
    measured_rate, flying = figures["output_tokens_per_s"], figures["in_flight_mean"]
    if facts is None or measured_rate is None or not flying or level.class_ is not None:
        return None
    ok = level.due.requests
    context = ok["reported_input"].fillna(ok["asked_input"]) + ok["output_tokens"] / 2
    if not context.notna().any():
        return None
    batch = Batch(sequences=flying, context_tokens=float(context.mean()))
    return float(measured_rate / most_tokens_per_s(facts, batch))


def _held_against_objectives(level: _Level) -> dict[str, Any]:
    together = judged_by_class(level.due, level.objectives)
    every = judged_by_class(level.everything, level.objectives)
    good = None
    if every is not None:
        ended = rates.requests_ended_ok(level.everything, of=every == HIT)
        good = rates.per_second(ended, level.windows)
    mine = level.objectives.of(level.class_)
    results = [
        verdict(level.measured if objective.metric == "errors" else level.due, objective)
        for objective in mine
    ]
    if level.steadiness.verdict == SATURATED:
        results = [unsettled(result) for result in results]
    return {
        "objectives": results,
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
