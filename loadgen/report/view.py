"""A run as sections, tables and series: what every report says, before any markup.

``build_view`` decides words, numbers, order; a renderer (terminal, markdown, html) only lays out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from loadgen.analysis.bounds import CLIENT, FAIL, MEASUREMENT, PASS, WARN, worst
from loadgen.analysis.course import SATURATED
from loadgen.analysis.summary import Check, LevelSummary, Summary
from loadgen.analysis.timelines import Timelines
from loadgen.record import Outcome
from loadgen.report.charts import build_charts
from loadgen.report.conditions import card, conditions, headline_facts
from loadgen.report.grid import Table, failed
from loadgen.report.legend import FORMULAS, READING, Formula
from loadgen.report.percentiles import MAIN_METRICS, MORE_METRICS, percentile_tables
from loadgen.report.quality import quality_table
from loadgen.report.series import Chart, Course, Samples
from loadgen.report.soundness import (
    check_table,
    check_value,
    course_table,
    interval_table,
    round_table,
    uncut_table,
)
from loadgen.report.tables import (
    client_table,
    error_table,
    length_table,
    level_table,
    objective_table,
    outcome_table,
    rate_table,
    slowest_table,
)
from loadgen.report.telemetry import gpu_table, reconciled_table, server_facts, server_table
from loadgen.report.text import Fact, plain
from loadgen.report.timeline import build_course


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first line of a report. tone: good, warn, bad."""

    text: str
    tone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Everything a report shows, in its order; an empty table is not shown."""

    title: str
    verdict: Verdict
    facts: tuple[Fact, ...]
    warnings: tuple[str, ...]
    levels: Table
    by_class: Table
    intervals: Table
    charts: tuple[Chart, ...]
    over_time: Course | None
    server: Table
    gpu: Table
    reconciled: Table
    unlike: Table
    objectives: Table
    errors: Table
    quality: Table
    checks: Table
    course: Table
    rounds: Table
    uncut: Table
    rates: Table
    outcomes: Table
    lengths: Table
    slowest: Table
    client: Table
    percentiles: tuple[Table, ...]
    more_percentiles: tuple[Table, ...]
    card: tuple[Fact, ...]
    conditions: tuple[Fact, ...]
    formulas: tuple[Formula, ...] = FORMULAS
    reading: tuple[str, ...] = READING


def build_view(
    summary: Summary,
    *,
    manifest: Mapping[str, Any] | None = None,
    ttft: Mapping[int, Samples] | None = None,
    over_time: Timelines | None = None,
) -> View:
    """Lay out a run's summary.

    manifest adds the conditions, ttft the samples of its CDF, over_time the course of the run.
    """
    manifest, levels = manifest or {}, summary.levels
    return View(
        title=plain(summary.name) or "run",
        verdict=first_line(summary),
        facts=(
            *headline_facts(summary, manifest),
            *_client_fact(levels),
            *server_facts(summary),
        ),
        warnings=tuple(plain(warning) for warning in summary.warnings),
        levels=level_table(levels),
        by_class=level_table(summary.by_class, title="By class"),
        intervals=interval_table(levels),
        charts=build_charts(levels, ttft or {}),
        over_time=build_course(over_time),
        server=server_table(levels),
        gpu=gpu_table(levels),
        reconciled=reconciled_table(levels),
        unlike=reconciled_table(levels, unlike=True),
        objectives=objective_table([*levels, *summary.by_class]),
        errors=error_table(levels),
        quality=quality_table([*levels, *summary.by_class]),
        checks=check_table(levels),
        course=course_table(levels),
        rounds=round_table(levels),
        uncut=uncut_table(levels),
        rates=rate_table(levels),
        outcomes=outcome_table(levels),
        lengths=length_table(levels),
        slowest=slowest_table(summary),
        client=client_table(levels),
        percentiles=percentile_tables(levels, MAIN_METRICS),
        more_percentiles=percentile_tables(levels, MORE_METRICS),
        card=card(summary, manifest),
        conditions=conditions(summary, manifest),
    )


def first_line(summary: Summary) -> Verdict:
    """Say at once whether these figures may be used, and what is wrong with the run or the server.

    The worst comes first: a run cut short, a level its client spoiled or disturbed, a measurement
    that failed a check, nothing that succeeded, failures, a queue that grew, objectives missed;
    then the first of what only warns, whatever stands before it.
    """
    levels = summary.levels
    told = [
        *_unfinished(summary),
        *_spoiled(levels),
        *_disturbed(levels),
        *_unsound(levels),
        *_failures(levels),
        *_saturated(levels),
        *_missed(levels),
        *_missed(summary.by_class),
    ]
    mind = _mind([*_doubts(levels), *(plain(warning) for warning in summary.warnings)])
    if told:
        tone = "bad" if any(verdict.tone == "bad" for verdict in told) else "warn"
        return Verdict("; ".join(verdict.text for verdict in told) + mind, tone)
    good = f"{_n(len(levels), 'level')}, {_succeeded(levels)}, none failed"
    return Verdict(f"{good}{mind}", "warn") if mind else Verdict(f"all good: {good}", "good")


def _mind(doubts: Sequence[str]) -> str:
    """Name the first of what only warns, and count the rest."""
    rest = f" (and {len(doubts) - 1:,} more)" if doubts[1:] else ""
    return f"; mind: {doubts[0]}{rest}" if doubts else ""


def _succeeded(levels: Sequence[LevelSummary]) -> str:
    """Count what ended ok of what was due in measure, and say why the tables' n may be fewer."""
    ok = sum(level.outcomes.get(Outcome.OK, 0) for level in levels)
    n, asked = sum(level.e2e.n for level in levels), sum(level.questions for level in levels)
    parts = [f"{n:,} in the percentiles"] if n != ok else []
    parts += [_n(asked, "question") + " among them"] if asked else []
    told = f" ({', '.join(parts)})" if parts else ""
    return f"{_n(ok, 'request')} ok in measure{told}"


def _n(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _unfinished(summary: Summary) -> list[Verdict]:
    if summary.status == "complete":
        return []
    whole = sum(
        level.stop_reason not in (None, "interrupted", "failed") for level in summary.levels
    )
    levels = f"{_n(whole, 'level')} measured to the end"
    text = {
        "interrupted": f"interrupted: {levels}; figures cover what was recorded",
        "failed": f"the run failed: {levels}; figures cover what was recorded",
        "running": f"not finished (still running, or killed): {levels}",
    }.get(summary.status, f"status {plain(summary.status)}: {levels}")
    return [Verdict(text, "bad" if summary.status == "failed" else "warn")]


_SAID = ("error rate", "client faults", "queue grew by")
"""Checks of the measurement whose findings the first line has in words of its own."""


def _spoiled(levels: Sequence[LevelSummary]) -> list[Verdict]:
    return [
        Verdict(f"the client spoiled {plain(level.label)}: {plain(level.invalid)}", "bad")
        for level in levels
        if level.invalid
    ]


def _disturbed(levels: Sequence[LevelSummary]) -> list[Verdict]:
    """Name the levels whose client's checks failed or warn, each with the checks that did."""
    told = []
    for level in levels:
        checks = _about(CLIENT, level)
        verdict = worst(checks)
        if verdict == PASS:
            continue
        figures = ", ".join(_figure(check) for check in checks if check.verdict != PASS)
        word, tone = ("spoiled", "bad") if verdict == FAIL else ("disturbed", "warn")
        told.append(Verdict(f"the client {word} {plain(level.label)}: {figures}", tone))
    return told


def _unsound(levels: Sequence[LevelSummary]) -> list[Verdict]:
    """Name the levels that fail a check of the measurement."""
    told = []
    for level in levels:
        failing = [
            _figure(check)
            for check in _about(MEASUREMENT, level)
            if check.verdict == FAIL and check.name not in _SAID
        ]
        if failing:
            text = f"do not use {plain(level.label)}: {', '.join(failing)}"
            told.append(Verdict(text, "bad"))
    return told


def _saturated(levels: Sequence[LevelSummary]) -> list[Verdict]:
    labels = [plain(one.label) for one in levels if one.steadiness.verdict == SATURATED]
    if not labels:
        return []
    return [Verdict(f"saturated at {', '.join(labels)}: the queue grew, times are withheld", "bad")]


def _doubts(levels: Sequence[LevelSummary]) -> list[str]:
    """Name what only warns, level by level; where nothing succeeded no figures are to doubt."""
    return [
        f"{plain(level.label)}: {_figure(check)}{_beside(check)}"
        for level in levels
        if level.outcomes.get(Outcome.OK)
        for check in _about(MEASUREMENT, level)
        if check.verdict == WARN and check.name not in _SAID
    ]


def _about(whose: str, level: LevelSummary) -> list[Check]:
    return [check for check in level.checks if check.about == whose]


def _beside(check: Check) -> str:
    """Say what a number is too small for, where its name does not."""
    return f" (p95 is printed from {check.bound:.0f})" if check.name == "sample size" else ""


def _figure(check: Check) -> str:
    return f"{plain(check.name)} {check_value(check)}"


def _client_fact(levels: Sequence[LevelSummary]) -> list[Fact]:
    """Say in one line that the client was no bottleneck, by its worst figures; else point below.

    Levels with fewer samples use a lower percentile: of one figure the largest stands for all.
    """
    checks = [check for level in levels for check in _about(CLIENT, level)]
    if not checks:
        return []
    verdict = worst(checks)
    if verdict in (WARN, FAIL):
        return [Fact("client", f"{verdict}: see its checks")]
    alike: dict[str, list[Check]] = {}
    for check in checks:
        alike.setdefault(_PERCENTILE.sub("", check.name), []).append(check)
    return [Fact("client", f"fine ({', '.join(starmap(_largest, alike.items()))})")]


_PERCENTILE = re.compile(r" p\d+$")


def _largest(name: str, checks: Sequence[Check]) -> str:
    largest = check_value(max(checks, key=lambda check: check.value))
    names = sorted({check.name for check in checks})
    if len(names) == 1:
        return f"{plain(names[0])} {largest}"
    used = " or ".join(one.removeprefix(f"{name} ") for one in names)
    return f"{plain(name)} {largest} ({used} by n)"


def _missed(levels: Sequence[LevelSummary]) -> list[Verdict]:
    """Name each missed objective with its levels, of a mix with the class."""
    at: dict[str, list[str]] = {}
    for level in levels:
        for result in level.objectives:
            if result.verdict == "missed":
                where = plain(level.label)
                named = f"{where} ({plain(level.class_)})" if level.class_ else where
                at.setdefault(plain(result.objective), []).append(named)
    told = []
    for objective, labels in at.items():
        everywhere = len(labels) == len(levels) > 1 and levels[0].class_ is None
        where = "every level" if everywhere else ", ".join(labels)
        told.append(Verdict(f"objective missed: {objective} at {where}", "bad"))
    return told


def _failures(levels: Sequence[LevelSummary]) -> list[Verdict]:
    ok = sum(level.outcomes.get(Outcome.OK, 0) for level in levels)
    bad = sum(failed(level) for level in levels)
    arrivals = sum(level.arrivals for level in levels)
    if not bad and ok:
        return []
    if not arrivals:
        return [Verdict("nothing was measured: no request was due in a measure phase", "bad")]
    if not bad:
        return [Verdict(f"no request succeeded: none of {arrivals:,} ended ok", "bad")]
    classes: dict[str, int] = {}
    for level in levels:
        for error in level.errors:
            classes[error.error_class] = classes.get(error.error_class, 0) + error.n
    most = max(classes.items(), key=lambda item: item[1], default=None)
    reason = f", most often {plain(most[0])} ({most[1]:,})" if most else ""
    if not ok:
        return [Verdict(f"no request succeeded: {_n(bad, 'request')} failed{reason}", "bad")]
    return [Verdict(f"{bad:,} of {ok + bad:,} requests failed{reason}", "warn")]
