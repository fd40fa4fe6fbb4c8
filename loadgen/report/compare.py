"""A comparison for eyes: what the runs do not share first, then every figure with its verdict."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from loadgen.analysis.about import About, LevelAbout
from loadgen.analysis.bounds import FAIL, WARN
from loadgen.analysis.compare import (
    BETTER,
    COURSE,
    SAME,
    UNKNOWN,
    VARIES,
    WORSE,
    Change,
    Comparison,
    LevelComparison,
    Row,
    Side,
)
from loadgen.analysis.serial import to_plain
from loadgen.analysis.summary import Summary
from loadgen.analysis.table import RunData, read_run
from loadgen.errors import UsageError
from loadgen.record import SCHEMA_VERSION
from loadgen.report.checklist import check_figure
from loadgen.report.curves import comparison_charts
from loadgen.report.grid import Column, Table
from loadgen.report.html import page, pictures
from loadgen.report.markdown import escape, facts_lines, table_lines
from loadgen.report.soundness import course_cell, left_out
from loadgen.report.swept import server_of
from loadgen.report.terminal import DEFAULT_WIDTH, console_of, print_table, text_of, toned
from loadgen.report.text import NONE, Cell, Fact, count, number, percent, plain
from loadgen.report.view import Verdict

_NAMED, _CHECKS = 3, 6
"""How many conditions the first line names, and how many checks of a run are repeated."""

FORMATS = ("terminal", "markdown", "json", "html")

_TONES = {BETTER: "good", WORSE: "bad", SAME: "", UNKNOWN: "quiet"}
_VERDICTS = (
    "Better or worse is said only where the whole 95 % interval of a change lies outside ± the"
    " tolerance; of shares, where it leaves out zero. No significant difference is not equality."
    " A side that failed more is called faster only where that holds with each failure as +∞."
)
_VARIES = (
    "It varies more: the rate scatters within a run by more than it changed; measure for longer."
)
_READING = (
    "Change is candidate / baseline − 1, of the figures that the runs' own reports show; of shares"
    " the difference, in points.",
    _VERDICTS,
    "Where a queue grew as long as the level lasted, times would tell how long that was and are"
    " withheld; that it grew on one side alone is better or worse by itself. Times and rates of an"
    " open load follow its arrivals: where these differ, only 3 rounds or more have a verdict.",
    "Where one side failed more, a time that failures could have made has no verdict: it is better"
    " (or the baseline's was) only among the survivors. Output and requests/s are held against the"
    " tokens of whole answers then.",
    "The interval is the t interval of the rounds' values (Welch) where both sides have 3 or more;"
    " else a block bootstrap of the difference of percentiles, by the same requests where both"
    " sides sent the same plan, or a t interval over batches where neighbours resemble one another"
    " too long; of rates a t interval over slices of time; of accuracy by the questions that both"
    " sides were asked, however often; of other shares Newcombe's.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareView:
    """All that a comparison shows, in its order; an empty table is not shown.

    grounds: what each side's figures are made of, level by level. warnings: its checks that did not
    pass, and what else must be known before the changes are read.
    """

    title: str
    verdict: Verdict
    runs: tuple[Fact, ...]
    mismatches: Table
    grounds: Table
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
            return comparison_page(found, {})
    raise UsageError(f"format: there is no '{format}'; choose one of {', '.join(FORMATS)}")


def comparison_page(found: Comparison, summaries: Mapping[str, Summary]) -> str:
    """Return a comparison as a page, with the curves of its runs, given by name."""
    drawn = pictures(comparison_charts(summaries))
    return page("compare.html.j2", view=compare_view(found), **drawn)


def compare_view(found: Comparison) -> CompareView:
    """Lay out a comparison; of unlike runs that were refused it holds no changes."""
    baseline, *candidates = [plain(run.name) for run in found.runs]
    notes = [f"{level.label}: {note}" for level in found.levels for note in level.notes]
    checks = [line for run in found.runs for line in _check_lines(run)]
    short = [
        f"{run.name} is {run.status}: what it lacks was never measured"
        for run in found.runs
        if run.status != "complete"
    ]
    return CompareView(
        title=f"{', '.join(candidates)} against {baseline}",
        verdict=_first_line(found),
        runs=_about(found),
        mismatches=_mismatch_table(found),
        grounds=_ground_table(found),
        warnings=tuple(plain(text) for text in (*short, *checks, *notes, *_lost_accuracy(found))),
        changes=tuple(_matrix(found, level) for level in found.levels),
    )


def _names(directories: Sequence[Path], runs: Sequence[RunData]) -> list[str]:
    """Name each run shortly: by its server in a sweep, its own name, its directory's, or its path.

    All are different.
    """
    servers = [server_of(path) or "" for path in directories]
    own = [str(run.manifest.get("name") or "") for run in runs]
    for names in (servers, own, [path.resolve().name for path in directories]):
        if len(set(names)) == len(names) and all(names):
            return names
    paths = [str(path) for path in directories]
    return [f"{path} ({i})" if path in paths[:i] else path for i, path in enumerate(paths)]


def _first_line(found: Comparison) -> Verdict:
    before = _unlikeness(found)
    if not found.levels:
        return Verdict(f"{before}nothing is compared", "bad")
    several = len(found.runs) > 2
    told = [
        (f"{plain(run.name)}: " if several else "") + _tally(found, index)
        for index, run in enumerate(found.runs[1:])
    ]
    tone = "bad" if found.count(WORSE) else "warn" if before else "good"
    text = f"{before}{'; '.join(told)} (tolerance {percent(found.tolerance)})"
    return Verdict(text, tone)


def _unlikeness(found: Comparison) -> str:
    """Say that conditions differ that were not meant to, and what follows where several do."""
    names = [plain(one.what) for one in found.mismatches if not one.expected]
    if not names:
        return ""
    shown = ", ".join(names[:_NAMED])
    more = f" and {len(names) - _NAMED:,} more" if names[_NAMED:] else ""
    differ = f"{_n(len(names), 'condition')} differ{'s' if len(names) == 1 else ''} ({shown}{more})"
    if len(_causes(found)) < 2:
        return f"{differ}; "
    about = ", so the verdicts below are not about one cause" if found.levels else ""
    return f"the runs are not alike: {differ}{about}; "


def _causes(found: Comparison) -> list[str]:
    """Name what differs, but contents that must differ since lengths or the seed do."""
    names = [one.what for one in found.mismatches]
    heads = {name.split(".")[0] for name in names if not name.endswith(".contents")}
    return [
        name
        for name in names
        if not (name.endswith(".contents") and heads & {"seed", name.removesuffix(".contents")})
    ]


def _tally(found: Comparison, candidate: int) -> str:
    """Say what became of one candidate: which metrics are worse, and how many of each verdict."""
    changes = [
        (_named(row, candidate), row.changes[candidate])
        for level in found.levels
        for row in level.rows
    ]
    counts = Counter(change.verdict for _, change in changes)
    untold = Counter(change.method for _, change in changes if change.verdict == UNKNOWN)
    reasons = [f"{why} {n:,}" if untold.keys() - {why} else why for why, n in untold.most_common()]
    because = f" ({', '.join(map(plain, reasons))})"
    if not counts[WORSE] and not counts[BETTER] and not counts[SAME]:
        return f"nothing can be told{because}" if untold else "nothing is compared"
    worse = list(dict.fromkeys(word for word, change in changes if change.verdict == WORSE))
    told = [f"{counts[word]:,} {word}" for word in (WORSE, BETTER) if counts[word]]
    if worse:
        told[0] += f" ({', '.join(worse)})"
    if counts[SAME]:
        told.append(f"{counts[SAME]:,} without a significant difference" if told else SAME)
    if untold:
        told.append(f"{counts[UNKNOWN]:,} cannot be told{because}")
    return ", ".join(told)


def _named(row: Row, candidate: int) -> str:
    """Name a metric; of the course what it became, as it has no figure."""
    return f"{row.word}: {row.changes[candidate].note}" if row.word == COURSE else row.word


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
    hint = "Name what is compared with --varies; --strict refuses where anything else differs."
    note = hint if found.unlike else ""
    return Table(title="Conditions that differ", columns=columns, rows=rows, note=note)


def _ground_table(found: Comparison) -> Table:
    """One row for each level of each run: its n, what its window leaves out, how it went."""
    columns = (
        Column(label="level", left=True),
        Column(label="run", left=True),
        Column(label="n", title="requests behind the percentiles"),
        Column(label="window", unit="s"),
        Column(label="left out", left=True, title="before the window, in no figure"),
        Column(label="course", left=True),
        Column(label="checks", left=True),
    )
    pairs = [(level, run) for run in found.runs for level in run.levels]
    labels = list(dict.fromkeys(level.label for level, _ in pairs))
    rows = tuple(
        (
            Cell(plain(level.label)),
            Cell(plain(run.name)),
            Cell(count(level.n), f"of {level.due:,} requests due in measure"),
            Cell(number(level.window_s)),
            Cell(left_out(level.steadiness, warmup=level.warmup_requests)),
            course_cell(level.steadiness),
            _checks_cell(level),
        )
        for level, run in sorted(pairs, key=lambda pair: labels.index(pair[0].label))
    )
    return Table(title="What each side's figures are made of", columns=columns, rows=rows, keys=2)


def _checks_cell(level: LevelAbout) -> Cell:
    counts = {word: sum(check.verdict == word for check in level.checks) for word in (FAIL, WARN)}
    told = [f"{n:,} {word}" for n, word in ((counts[FAIL], "failed"), (counts[WARN], "warn")) if n]
    tone = "bad" if counts[FAIL] else "warn" if told else ""
    return Cell(", ".join(told) or "pass", tone=tone)


def _check_lines(run: About) -> list[str]:
    """Repeat the checks that did not pass, those that failed first; of many, only some."""
    found = [
        (
            check.verdict != FAIL,
            f"{run.name}: {level.label}: {check.verdict}: {check_figure(check)}",
        )
        for level in run.levels
        for check in level.checks
    ]
    lines = [line for _, line in sorted(found, key=lambda one: one[0])]
    more = len(lines) - _CHECKS
    rest = [f"{run.name}: {_n(more, 'more check')} did not pass: loadgen check tells them all"]
    return lines[:_CHECKS] + (rest if more > 0 else [])


def _lost_accuracy(found: Comparison) -> list[str]:
    """A fall of accuracy that is no significant difference is not yet none."""
    return [
        f"{level.label}: the accuracy of {run.name} is lower by {abs(change.change) * 100:.1f}"
        f" points, which {change.n:,} answers{_to_questions(change)} cannot tell from chance: add"
        " questions to the set (a larger share asks the same ones again)"
        for level in found.levels
        for row in level.rows
        if row.word == "accuracy"
        for run, change in zip(found.runs[1:], row.changes, strict=True)
        if change.verdict == SAME and change.change is not None and change.change < 0
    ]


def _to_questions(change: Change) -> str:
    return "" if change.questions is None else f" to {_n(change.questions, 'question')}"


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
    varies = any(change.note == VARIES for row in level.rows for change in row.changes)
    note = _VARIES if varies else ""
    return Table(title=plain(level.label), columns=tuple(columns), rows=rows, note=note)


def _row(row: Row) -> tuple[Cell, ...]:
    word = f"{row.word}, {row.unit}" if row.unit else row.word
    cells = [Cell(word), _value_cell(row.baseline, f"n {count(row.n)}", share=row.share)]
    for change in row.changes:
        n = f"n {count(change.n)}{_to_questions(change)}"
        cells.append(_value_cell(change.value, n, share=row.share))
        cells += _change_cells(change, share=row.share)
    return tuple(cells)


def _value_cell(value: float | None, n: str, *, share: bool) -> Cell:
    return Cell(percent(value) if share else number(value), n)


def _change_cells(change: Change, *, share: bool) -> list[Cell]:
    said = change.note or (change.method if change.verdict == UNKNOWN else "")
    verdict = f"{change.verdict}: {said}" if said else change.verdict
    if change.change is None:
        tone = _TONES[change.verdict]
        return [Cell(NONE, change.method, "quiet"), Cell(verdict, change.method, tone)]
    text = _signed(change.change, share=share)
    if change.low is not None and change.high is not None:
        text += f" ({_bare(change.low)} … {_bare(change.high)})"
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
    print_table(console, view.grounds)
    if view.warnings:
        console.print()
    for warning in view.warnings:
        console.print(toned(f"! {warning}", "warn"))
    for table in view.changes:
        print_table(console, table)
    if view.changes:
        console.print()
        console.print(toned(_VERDICTS, "quiet"))
    return text_of(console)


def _markdown(view: CompareView) -> str:
    parts = [
        f"# {escape(view.title)}",
        f"**{escape(view.verdict.text)}**",
        facts_lines(view.runs),
        table_lines(view.mismatches),
        table_lines(view.grounds),
        "\n".join(f"- mind: {escape(warning)}" for warning in view.warnings),
        *map(table_lines, view.changes),
        "## How to read it",
        "\n\n".join(escape(line) for line in view.reading),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
