"""Several servers for eyes: one row each, then every figure with the change against the first.

A terminal gets two columns for each candidate, its figure and the change; the files get the whole
comparison with its intervals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import orjson

from loadgen.analysis.bounds import PASS
from loadgen.analysis.compare import Comparison, Side, compare
from loadgen.analysis.serial import to_plain
from loadgen.analysis.summary import Summary
from loadgen.analysis.sweep import (
    FAILED,
    INTERRUPTED,
    MEASURED,
    Matrix,
    ServerResult,
    ServerRow,
    matrix_of,
    meant_to_differ,
    shared_prompts,
)
from loadgen.analysis.table import read_run
from loadgen.record import SCHEMA_VERSION
from loadgen.report.compare import CompareView, compare_view
from loadgen.report.curves import comparison_charts
from loadgen.report.grid import Table
from loadgen.report.html import page, pictures
from loadgen.report.markdown import escape, facts_lines, table_lines
from loadgen.report.series import Chart
from loadgen.report.servers import change_tables, output_table, server_table
from loadgen.report.swept import Swept, read_sweep
from loadgen.report.terminal import Look, console_of, print_table, text_of, toned
from loadgen.report.text import plain
from loadgen.report.view import Verdict
from loadgen.report.write import write_text
from loadgen.scenario.model import Scenario

_READING = (
    "A row's figures are those at the highest load; the change of each figure at each level, with"
    " its interval and what that is from, stands below.",
)
_STARTED = "Each server was started for its turn and stopped after it."
_SAME_PROMPTS = "Request k had the same prompt for every server ({n:,} requests that they share)."
_OTHER_PROMPTS = (
    "The servers' prompts are drawn alike but are not the same text: of {n:,} requests that two of"
    " them share, {same:,} had equal prompts. {why}"
)
_OTHER_NONCE = (
    "A server that ran before its turn may still hold the prompts of the one before, so that each"
    " turn opens its prompts in a way of its own (the nonce)."
)
_OTHER_LENGTHS = (
    "Lengths in tokens are equal: where a template or tokenizer takes more of them, fewer words are"
    " sent."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepView:
    """All that a sweep shows, in its order.

    changes: of each level, for a terminal; compared: the whole comparison, None where fewer than
    two servers were measured.
    """

    title: str
    verdict: Verdict
    servers: Table
    output: Table
    charts: tuple[Chart, ...] = ()
    changes: tuple[Table, ...] = ()
    compared: CompareView | None = None
    reading: tuple[str, ...] = _READING


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """A sweep as each format writes it: the terminal's text, and the files' by their names.

    unlike: a condition differs that was not meant to. sound: each check of each run passes.
    """

    directory: Path
    terminal: str
    texts: dict[str, str]
    unlike: bool
    sound: bool

    def write(self) -> list[Path]:
        """Write the files beside the runs."""
        return [write_text(self.directory / name, text) for name, text in self.texts.items()]


def report_sweep(
    scenario: Scenario, directory: Path, results: Sequence[ServerResult], *, look: Look
) -> SweepReport:
    """Compare the runs of a sweep with the first of them."""
    varies = meant_to_differ(scenario)
    swept = Swept(name=scenario.name, directory=directory, results=list(results), varies=varies)
    return _reported(swept, look)


def report_again(directory: Path, *, look: Look) -> SweepReport:
    """Compare the runs of a sweep's directory; UsageError where it cannot be read."""
    return _reported(read_sweep(directory), look)


def _reported(swept: Swept, look: Look) -> SweepReport:
    sides = {result.name: side for result in swept.results if (side := _side(swept, result))}
    comparison = None
    if len(sides) > 1:
        first, *others = sides.values()
        comparison = compare(first, others, varies=swept.varies)
    matrix = matrix_of(swept.results, sides, comparison)
    summaries = [side.summary for side in sides.values()]
    view = replace(
        sweep_view(swept.name, matrix, comparison),
        reading=(*_READING, *_about_prompts(list(sides.values()), swept.results)),
        servers=server_table(matrix, _links(swept)),
        charts=comparison_charts(dict(zip(sides, summaries, strict=True))),
    )
    return SweepReport(
        directory=swept.directory,
        terminal=sweep_text(view, look),
        texts={
            "comparison.html": page("sweep.html.j2", view=view, **pictures(view.charts)),
            "comparison.md": _markdown(view),
            "comparison.json": _json(matrix, comparison),
        },
        unlike=comparison is not None and comparison.unlike,
        sound=all(map(_sound, summaries)),
    )


def _about_prompts(sides: Sequence[Side], results: Sequence[ServerResult]) -> Iterator[str]:
    """Say whether the servers got the same requests, as their records have it."""
    if len(sides) > 1:
        n, same = shared_prompts(sides)
        nonces = {(side.run.manifest.get("seeds") or {}).get("nonce") for side in sides}
        why = _OTHER_NONCE if len(nonces) > 1 else _OTHER_LENGTHS
        if n:
            said = _SAME_PROMPTS if n == same else _OTHER_PROMPTS
            yield said.format(n=n, same=same, why=why)
    measured = [result for result in results if result.status == MEASURED]
    if measured and all(result.ready_s is not None for result in measured):
        yield _STARTED


def _sound(summary: Summary) -> bool:
    return all(check.verdict == PASS for level in summary.levels for check in level.checks)


def _side(swept: Swept, result: ServerResult) -> Side | None:
    """Read the run of a server that was measured, if only in part; None where nothing was."""
    if result.status not in (MEASURED, INTERRUPTED) or result.name not in swept.runs:
        return None
    side = Side(result.name, read_run(swept.runs[result.name]))
    return side if any(level.arrivals for level in side.summary.levels) else None


def _links(swept: Swept) -> dict[str, str]:
    """Return where the servers' own reports lie, seen from the comparison; only those there are."""
    return {
        name: quote(f"{run.name}/report.html")
        for name, run in swept.runs.items()
        if (run / "report.html").exists()
    }


def sweep_view(name: str, matrix: Matrix, comparison: Comparison | None) -> SweepView:
    """Lay out a sweep; it has no charts yet."""
    compared = None if comparison is None else compare_view(comparison)
    changes: Sequence[Table] = ()
    if comparison is not None and compared is not None:
        one_candidate = len(comparison.runs) == 2  # there is room for its intervals
        changes = compared.changes if one_candidate else change_tables(comparison)
    return SweepView(
        title=plain(f"{name}: {', '.join(row.result.name for row in matrix.rows)}"),
        verdict=_verdict(matrix, comparison),
        servers=server_table(matrix),
        output=output_table(matrix),
        changes=tuple(changes),
        compared=compared,
    )


def _findings(row: ServerRow) -> list[str]:
    """Say what speaks against using a server, or its figures, beside an objective it missed."""
    told = [f"worse in {', '.join(row.worse_answers)}"] if row.worse_answers else []
    if row.failed_checks:
        told.append(f"failed {', '.join(row.failed_checks)} (loadgen check says more)")
    return told


def _verdict(matrix: Matrix, comparison: Comparison | None) -> Verdict:
    results = [row.result for row in matrix.rows]
    measured = sum(result.status == MEASURED for result in results)
    total = len(results)
    told = [f"{measured if measured < total else 'all'} of {total} servers measured"]
    for status in (FAILED, INTERRUPTED):
        names = [result.name for result in results if result.status == status]
        told += [f"{', '.join(names)} {status}"] if names else []
    if matrix.baseline is None:
        told.append("nothing was measured, so nothing is compared")
    missed = [row.result.name for row in matrix.rows if row.missed]
    told += [f"an objective missed by {', '.join(missed)}"] if missed else []
    for row in matrix.rows:
        told += [f"{row.result.name}: {found}" for found in _findings(row)]
    unlike = 0 if comparison is None else sum(not one.expected for one in comparison.mismatches)
    if unlike:
        told.append(f"{unlike} condition{'' if unlike == 1 else 's'} not alike")
    bad = measured < total or missed or any(row.failed_checks for row in matrix.rows)
    warn = unlike or any(row.worse_answers for row in matrix.rows)
    return Verdict(plain("; ".join(told)), "bad" if bad else "warn" if warn else "good")


def sweep_text(view: SweepView, look: Look) -> str:
    """Return a sweep as a terminal shows it; the rows of servers stay in one part."""
    console = console_of(width=look.width, colour=look.colour)
    console.print(toned(view.verdict.text, view.verdict.tone))
    print_table(console, view.servers, whole=True)
    print_table(console, view.output)
    if view.compared is not None:
        print_table(console, view.compared.mismatches)
    for table in view.changes:
        print_table(console, table)
    for warning in () if view.compared is None else view.compared.warnings:
        console.print(toned(f"! {warning}", "warn"))
    return text_of(console)


def _markdown(view: SweepView) -> str:
    parts = [
        f"# {escape(view.title)}",
        f"**{escape(view.verdict.text)}**",
        table_lines(view.servers),
        table_lines(view.output),
    ]
    reading = list(view.reading)
    if (compared := view.compared) is not None:
        parts += [
            facts_lines(compared.runs),
            table_lines(compared.mismatches),
            "\n".join(f"- mind: {escape(warning)}" for warning in compared.warnings),
            *map(table_lines, compared.changes),
        ]
        reading += compared.reading
    parts += ["## How to read it", "\n\n".join(escape(line) for line in reading)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _json(matrix: Matrix, comparison: Comparison | None) -> str:
    """Return what ``loadgen compare`` writes, with the matrix before it."""
    compared = {} if comparison is None else to_plain(comparison)
    told = {"schema": SCHEMA_VERSION, "matrix": to_plain(matrix), **compared}
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps(told, option=options).decode()
