"""Every check of a run as text: its verdict, its number, its bound, and what to do."""

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

import click

from loadgen.analysis.bounds import FAIL, PASS, WARN, worst
from loadgen.analysis.summary import Check, LevelSummary, Summary
from loadgen.report.soundness import check_value, in_unit
from loadgen.report.terminal import Look
from loadgen.report.text import plain

_COLOURS = {PASS: "green", WARN: "yellow", FAIL: "red"}
_LISTED = "--all lists them"
_INDENT = " " * 8
_STATUS = {
    "interrupted": "was interrupted",
    "failed": "failed",
    "running": "has not finished (still running, or killed)",
}
_CUT_SHORT = {"interrupted", "failed", "not recorded"}


def render_checklist(summary: Summary, *, look: Look, everything: bool = False) -> str:
    """Return the verdict on the whole run in one line, then each level's checks, worst first.

    Those that passed are only counted, unless ``everything`` is asked for.
    """
    lines = [f"{plain(summary.name) or 'run'}: {verdict_line(summary)}"]
    passed = 0 if everything else sum(check.verdict == PASS for check in _checks(summary))
    if passed and verdict_of(summary) == PASS:
        lines[0] += f" ({_LISTED})"
    if not _ended(summary):
        lines += ["", *_cut_short(summary, look)]
    for level in summary.levels:
        if everything or worst(level.checks) != PASS or not level.checks:
            lines += ["", f"{plain(level.label)} ({counted(level)})"]
            lines += _lines_of(level, look, everything=everything)
    if passed and verdict_of(summary) != PASS:
        lines += ["", f"{passed:,} check{'' if passed == 1 else 's'} passed ({_LISTED})"]
    lines += [""] if summary.warnings else []
    for text in summary.warnings:
        lines += _wrapped(f"note: {plain(text)}", look)
    return "\n".join(lines) + "\n"


def counted(level: LevelSummary) -> str:
    """Say how many requests the percentiles are of, and of how many where that is not all."""
    n = max(level.ttft.n, level.e2e.n)
    if n == level.arrivals:
        return f"n {n:,}"
    return f"n {n:,} in the window, of {level.arrivals:,} requests due in measure"


def verdict_of(summary: Summary) -> str:
    """Return the worst verdict: of the levels, and of the run, which warns where it was cut short.

    fail where nothing at all was measured.
    """
    if not any(level.arrivals for level in summary.levels):
        return FAIL
    found = worst(_checks(summary))
    return WARN if found == PASS and not _ended(summary) else found


def verdict_line(summary: Summary) -> str:
    """Say in one line whether the figures can be trusted."""
    checks = _checks(summary)
    short = not _ended(summary)
    counts = {word: sum(check.verdict == word for check in checks) for word in (FAIL, WARN)}
    counts[WARN] += short
    of = f"of {len(checks) + short:,} checks"
    match verdict_of(summary):
        case "pass":
            return f"pass: all {len(checks):,} checks"
        case "warn":
            return f"warn: {counts[WARN]:,} {of} warn, none failed"
    if not counts[FAIL]:
        return "fail: nothing was measured, so there is nothing to trust"
    also = f", {counts[WARN]:,} warn" if counts[WARN] else ""
    return f"fail: {counts[FAIL]:,} {of} failed{also}; do not use these figures as they are"


def _ended(summary: Summary) -> bool:
    return summary.status == "complete"


def _cut_short(summary: Summary, look: Look) -> list[str]:
    whole = sum(_CUT_SHORT.isdisjoint(_reasons(level)) for level in summary.levels)
    levels = f"{whole:,} level{'' if whole == 1 else 's'} measured to the end"
    told = _STATUS.get(summary.status, f"is {plain(summary.status)}")
    text = (
        "figures cover what was recorded until then, and levels that had not begun are missing:"
        " run it again before you compare it or quote it"
    )
    return [
        f"  {_verdict_word(WARN, look)}  the run {told}: {levels}",
        *_wrapped(text, look),
    ]


def _reasons(level: LevelSummary) -> set[str]:
    return set((level.stop_reason or "not recorded").split(", "))


def _checks(summary: Summary) -> list[Check]:
    return [check for level in summary.levels for check in level.checks]


def _lines_of(level: LevelSummary, look: Look, *, everything: bool) -> list[str]:
    order = {FAIL: 0, WARN: 1, PASS: 2}
    shown = [check for check in level.checks if everything or check.verdict != PASS]
    checks = sorted(shown, key=lambda check: order[check.verdict])
    lines: list[str] = []
    for check, after in zip_longest(checks, checks[1:]):
        same = after is not None and after.text == check.text  # then it stands below the last one
        lines.append(f"  {_verdict_word(check.verdict, look)}  {check_figure(check)}")
        lines += [] if same else _wrapped(plain(check.text), look)
    return lines or [f"{_INDENT}nothing to check"]


def check_figure(check: Check) -> str:
    """Write a check's name, its number and its bound: "CPU 72 % (at most 70 %)".

    All of a whole is no bound, as nothing can lie beyond it: then the number stands alone.
    """
    if not check.unit and check.bound == 1 >= check.value:
        return f"{plain(check.name)} {check_value(check)}"
    bound = f"{'at least' if check.least else 'at most'} {in_unit(check.bound, check.unit)}"
    return f"{plain(check.name)} {check_value(check)} ({bound})"


def _verdict_word(verdict: str, look: Look) -> str:
    word = verdict.ljust(4)
    return click.style(word, fg=_COLOURS[verdict]) if look.colour else word


def _wrapped(text: str, look: Look) -> Sequence[str]:
    width = max(look.width, 40)
    return textwrap.wrap(text, width, initial_indent=_INDENT, subsequent_indent=_INDENT)
