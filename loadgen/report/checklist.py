"""Every check of a run as text: its verdict, its number, its bound, and what to do."""

import textwrap
from collections.abc import Sequence

import click

from loadgen.analysis.bounds import FAIL, PASS, WARN, worst
from loadgen.analysis.summary import Check, LevelSummary, Summary
from loadgen.report.soundness import check_value, in_unit
from loadgen.report.terminal import Look
from loadgen.report.text import plain

_COLOURS = {PASS: "green", WARN: "yellow", FAIL: "red"}
_INDENT = " " * 8


def render_checklist(summary: Summary, *, look: Look) -> str:
    """Return the verdict on the whole run in one line, then each level's checks, worst first."""
    lines = [f"{plain(summary.name) or 'run'}: {verdict_line(summary)}"]
    for level in summary.levels:
        lines += ["", f"{plain(level.label)} (n {level.arrivals:,})"]
        lines += _lines_of(level, look)
    cut_short = [] if summary.status == "complete" else [f"the run is {plain(summary.status)}"]
    for text in (*cut_short, *summary.warnings):
        lines += _wrapped(f"note: {plain(text)}", look)
    return "\n".join(lines) + "\n"


def verdict_of(summary: Summary) -> str:
    """Return the worst verdict of all levels; fail where nothing at all was measured."""
    if not any(level.arrivals for level in summary.levels):
        return FAIL
    return worst(_checks(summary))


def verdict_line(summary: Summary) -> str:
    """Say in one line whether the figures can be trusted."""
    checks = _checks(summary)
    counts = {word: sum(check.verdict == word for check in checks) for word in (FAIL, WARN)}
    of = f"of {len(checks):,} checks"
    match verdict_of(summary):
        case "pass":
            return f"pass: all {len(checks):,} checks"
        case "warn":
            return f"warn: {counts[WARN]:,} {of} warn, none failed"
    if not counts[FAIL]:
        return "fail: nothing was measured, so there is nothing to trust"
    also = f", {counts[WARN]:,} warn" if counts[WARN] else ""
    return f"fail: {counts[FAIL]:,} {of} failed{also}; do not use these figures as they are"


def _checks(summary: Summary) -> list[Check]:
    return [check for level in summary.levels for check in level.checks]


def _lines_of(level: LevelSummary, look: Look) -> list[str]:
    order = {FAIL: 0, WARN: 1, PASS: 2}
    checks = sorted(level.checks, key=lambda check: order[check.verdict])
    lines = []
    for check in checks:
        lines += _check_lines(check, look)
    return lines or [f"{_INDENT}nothing to check"]


def _check_lines(check: Check, look: Look) -> list[str]:
    word = check.verdict.ljust(4)
    shown = click.style(word, fg=_COLOURS[check.verdict]) if look.colour else word
    figures = f"{plain(check.name)} {check_value(check)}"
    bound = f" (bound {in_unit(check.bound, check.unit)})"
    return [f"  {shown}  {figures}{bound}", *_wrapped(plain(check.text), look)]


def _wrapped(text: str, look: Look) -> Sequence[str]:
    width = max(look.width, 40)
    return textwrap.wrap(text, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
