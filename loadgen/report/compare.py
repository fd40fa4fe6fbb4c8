"""A comparison for eyes: what the runs do not share first, then every figure with its verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from loadgen.analysis.compare import (
    BETTER,
    SAME,
    UNKNOWN,
    WORSE,
    Change,
    Comparison,
    LevelComparison,
    Row,
    Side,
)
from loadgen.analysis.serial import to_plain
from loadgen.analysis.table import RunData, read_run
from loadgen.errors import UsageError
from loadgen.record import SCHEMA_VERSION
from loadgen.report.grid import Column, Table
from loadgen.report.html import page
from loadgen.report.markdown import escape, facts_lines, table_lines
from loadgen.report.terminal import DEFAULT_WIDTH, console_of, print_table, text_of, toned
from loadgen.report.text import NONE, Cell, Fact, count, number, percent, plain
from loadgen.report.view import Verdict

FORMATS = ("terminal", "markdown", "json", "html")

_TONES = {BETTER: "good", WORSE: "bad", SAME: "", UNKNOWN: "quiet"}
_READING = (
    "Change is candidate / baseline − 1, of the figures that the runs' own reports show; of shares"
    " the difference, in points.",
    "Better or worse is said only where the whole 95 % interval of a change lies outside ± the"
    " tolerance; of shares, where it leaves out zero.",
    "The interval is the t interval of the rounds' values (Welch) where both sides have 3 or more;"
    " else a block bootstrap of the difference of percentiles, by the same requests where both"
    " sides sent the same plan, or a t interval over batches where neighbours resemble one another"
    " too long; of rates a t interval over slices of time; of shares Newcombe's.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareView:
    """All that a comparison shows, in its order; an empty table is not shown."""

    title: str
    verdict: Verdict
    runs: tuple[Fact, ...]
    mismatches: Table
    warnings: tuple[str, ...]
    changes: tuple[Table, ...]
    reading: tuple[str, ...] = _READING


def read_sides(directories: Sequence[Path]) -> list[Side]:
    """Read the runs of a comparison; UsageError where a directory is no run."""
    runs = [read_run(directory) for directory in directories]
    return [Side(name, run) for name, run in zip(_names(directories, runs), runs, strict=True)]


def render_comparison(
    found: Comparison, format: str, *, width: int = DEFAULT_WIDTH, colour: bool = False
) -> str:
    """Return a comparison as text; ``format`` is one of FORMATS."""
    match format:
        case "json":
            plain_form = {"schema": SCHEMA_VERSION, **to_plain(found)}
            options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
            return orjson.dumps(plain_form, option=options).decode()
        case "terminal":
            return _terminal(compare_view(found), width=width, colour=colour)
        case "markdown":
            return _markdown(compare_view(found))
        case "html":
            return page("compare.html.j2", view=compare_view(found))
    raise UsageError(f"format: there is no '{format}'; choose one of {', '.join(FORMATS)}")


def compare_view(found: Comparison) -> CompareView:
    """Lay out a comparison; of unlike runs that were refused it holds no changes."""
    baseline, *candidates = [plain(run.name) for run in found.runs]
    notes = [f"{level.label}: {note}" for level in found.levels for note in level.notes]
    checks = [
        f"{run.name}: the check '{check}' failed"
        for run in found.runs
        for check in run.failed_checks
    ]
    short = [f"{run.name} is {run.status}" for run in found.runs if run.status != "complete"]
    return CompareView(
        title=f"{', '.join(candidates)} against {baseline}",
        verdict=_first_line(found),
        runs=_about(found),
        mismatches=_mismatch_table(found),
        warnings=tuple(plain(text) for text in (*short, *checks, *notes)),
        changes=tuple(_matrix(found, level) for level in found.levels),
    )


def _names(directories: Sequence[Path], runs: Sequence[RunData]) -> list[str]:
    """Name each run shortly: by its own name, its directory's, or its path; all different."""
    own = [str(run.manifest.get("name") or "") for run in runs]
    for names in (own, [path.resolve().name for path in directories]):
        if len(set(names)) == len(names) and all(names):
            return names
    paths = [str(path) for path in directories]
    return [f"{path} ({i})" if path in paths[:i] else path for i, path in enumerate(paths)]


def _first_line(found: Comparison) -> Verdict:
    unlike = sum(not one.expected for one in found.mismatches)
    before = f"{_n(unlike, 'condition')} differ{'s' if unlike == 1 else ''}; " if unlike else ""
    if not found.levels:
        return Verdict(f"{before}nothing is compared", "bad")
    several = len(found.runs) > 2
    told = [
        (f"{plain(run.name)}: " if several else "") + _tally(found, index)
        for index, run in enumerate(found.runs[1:])
    ]
    tone = "bad" if found.count(WORSE) else "warn" if unlike else "good"
    text = f"{before}{'; '.join(told)} (tolerance {percent(found.tolerance)})"
    return Verdict(text, tone)


def _tally(found: Comparison, candidate: int) -> str:
    """Say what became of one candidate: which metrics are worse, and how many are better."""
    changes = [(row.word, row.changes[candidate]) for level in found.levels for row in level.rows]
    counts = {
        word: sum(change.verdict == word for _, change in changes) for word in (WORSE, BETTER, SAME)
    }
    if not counts[WORSE] and not counts[BETTER]:
        return SAME if counts[SAME] else "too few requests to tell"
    worse = list(dict.fromkeys(word for word, change in changes if change.verdict == WORSE))
    told = [f"{counts[word]:,} {word}" for word in (WORSE, BETTER) if counts[word]]
    if worse:
        told[0] += f" ({', '.join(worse)})"
    return ", ".join([*told, *([f"{counts[SAME]:,} without a significant difference"]
                               if counts[SAME] else [])])  # fmt: skip


def _n(number_of: int, word: str) -> str:
    return f"{number_of:,} {word}{'' if number_of == 1 else 's'}"


def _about(found: Comparison) -> tuple[Fact, ...]:
    facts = []
    for index, run in enumerate(found.runs):
        target = run.target
        parts = [run.name, target.get("url"), target.get("model"), target.get("engine"),
                 target.get("engine_version"), run.started_at]  # fmt: skip
        role = "baseline" if index == 0 else "candidate"
        facts.append(Fact(role, " · ".join(plain(part) for part in parts if part)))
    return tuple(facts)


def _mismatch_table(found: Comparison) -> Table:
    columns = (
        Column(label="condition", left=True),
        *(Column(label=plain(run.name), left=True) for run in found.runs),
        Column(label="meant to differ", left=True),
    )
    ordered = sorted(found.mismatches, key=lambda one: one.expected)
    rows = tuple(
        (
            Cell(plain(one.what), tone="" if one.expected else "warn"),
            *(Cell(plain(value)) for value in one.values),
            Cell("yes" if one.expected else "no", tone="quiet" if one.expected else ""),
        )
        for one in ordered
    )
    return Table(title="Conditions that differ", columns=columns, rows=rows)


def _matrix(found: Comparison, level: LevelComparison) -> Table:
    """One row for each metric of a level; three columns for each candidate."""
    baseline, *candidates = [plain(run.name) for run in found.runs]
    columns = [Column(label="metric", left=True), Column(label=baseline, unit="baseline")]
    for index, name in enumerate(candidates, start=1):
        about = f"of candidate {index}" if len(candidates) > 1 else ""
        columns.append(Column(label=name, unit=f"candidate {index}" if about else "candidate"))
        columns.append(Column(label="change", unit=about or "95 % interval"))
        columns.append(Column(label="verdict", unit=about, left=True))
    rows = tuple(_row(row) for row in level.rows)
    return Table(title=plain(level.label), columns=tuple(columns), rows=rows)


def _row(row: Row) -> tuple[Cell, ...]:
    word = f"{row.word}, {row.unit}" if row.unit else row.word
    cells = [Cell(word), _value_cell(row.baseline, row.n, share=row.share)]
    for change in row.changes:
        cells.append(_value_cell(change.value, change.n, share=row.share))
        cells += _change_cells(change, share=row.share)
    return tuple(cells)


def _value_cell(value: float | None, n: int, *, share: bool) -> Cell:
    return Cell(percent(value) if share else number(value), f"n {count(n)}")


def _change_cells(change: Change, *, share: bool) -> list[Cell]:
    if change.change is None:
        return [Cell(NONE, change.method, "quiet"), Cell(change.verdict, change.method, "quiet")]
    text = _signed(change.change, share=share)
    if change.low is not None and change.high is not None:
        text += f" ({_bare(change.low)} … {_bare(change.high)})"
    verdict = change.verdict if change.verdict != UNKNOWN else f"{UNKNOWN}: {change.method}"
    return [Cell(text, change.method), Cell(verdict, change.method, _TONES[change.verdict])]


def _signed(change: float, *, share: bool) -> str:
    """Write a relative change as "+4.9 %", a difference of shares as "-3.1 points"."""
    return f"{_bare(change)}{' points' if share else ' %'}"


def _bare(change: float) -> str:
    size = abs(change * 100)
    text = f"{size:.0f}" if size >= 100 else f"{size:.1f}"
    return f"{'' if float(text) == 0 else '-' if change < 0 else '+'}{text}"


def _terminal(view: CompareView, *, width: int, colour: bool) -> str:
    console = console_of(width=width, colour=colour)
    console.print(toned(view.verdict.text, view.verdict.tone))
    for fact in view.runs:
        console.print(toned(f"{fact.label} {fact.text}", "quiet"))
    print_table(console, view.mismatches)
    for table in view.changes:
        print_table(console, table)
    if view.warnings:
        console.print()
    for warning in view.warnings:
        console.print(toned(f"! {warning}", "warn"))
    return text_of(console)


def _markdown(view: CompareView) -> str:
    parts = [
        f"# {escape(view.title)}",
        f"**{escape(view.verdict.text)}**",
        facts_lines(view.runs),
        table_lines(view.mismatches),
        "\n".join(f"- mind: {escape(warning)}" for warning in view.warnings),
        *map(table_lines, view.changes),
        "## How to read it",
        "\n\n".join(escape(line) for line in view.reading),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
