"""Several servers for eyes: one row each, then every figure with the change against the first.

A terminal gets two columns for each candidate, its figure and the change; the files get the whole
comparison with its intervals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from loadgen.analysis.compare import Comparison, Side, compare
from loadgen.analysis.serial import to_plain
from loadgen.analysis.sweep import (
    FAILED,
    INTERRUPTED,
    MEASURED,
    Matrix,
    ServerResult,
    matrix_of,
    meant_to_differ,
)
from loadgen.analysis.table import read_run
from loadgen.record import SCHEMA_VERSION
from loadgen.report.compare import CompareView, compare_view
from loadgen.report.grid import Table
from loadgen.report.html import page
from loadgen.report.markdown import escape, facts_lines, table_lines
from loadgen.report.servers import change_tables, output_table, server_table
from loadgen.report.terminal import Look, console_of, print_table, text_of, toned
from loadgen.report.text import plain
from loadgen.report.view import Verdict
from loadgen.report.write import write_text
from loadgen.scenario.model import Scenario

_READING = (
    "A row's figures are those at the highest load; the change of each figure at each level, with"
    " its interval and what that is from, stands below.",
    "All servers got the same requests: the same seed and nonce, each server started for its turn.",
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
    changes: tuple[Table, ...] = ()
    compared: CompareView | None = None
    reading: tuple[str, ...] = _READING


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """A sweep reported once: the terminal's text, the files written.

    unlike: a condition differs that was not meant to.
    """

    terminal: str
    paths: list[Path]
    unlike: bool


def report_sweep(
    scenario: Scenario, directory: Path, results: Sequence[ServerResult], *, look: Look
) -> SweepReport:
    """Compare the runs of a sweep with the first of them, and write the files beside them."""
    sides = {result.name: side for result in results if (side := _side(directory, result))}
    comparison = None
    if len(sides) > 1:
        first, *others = sides.values()
        comparison = compare(first, others, varies=meant_to_differ(scenario))
    matrix = matrix_of(results, sides, comparison)
    view = sweep_view(scenario.name, matrix, comparison)
    texts = {
        "comparison.html": page("sweep.html.j2", view=view),
        "comparison.md": _markdown(view),
        "comparison.json": _json(matrix, comparison),
    }
    return SweepReport(
        terminal=sweep_text(view, look),
        paths=[write_text(directory / name, text) for name, text in texts.items()],
        unlike=comparison is not None and comparison.unlike,
    )


def _side(directory: Path, result: ServerResult) -> Side | None:
    """Read the run of a server that was measured, if only in part; None where nothing was."""
    if result.status not in (MEASURED, INTERRUPTED) or result.directory is None:
        return None
    run = read_run(directory / result.directory)
    return Side(result.name, run) if run.manifest.get("levels") else None


def sweep_view(name: str, matrix: Matrix, comparison: Comparison | None) -> SweepView:
    """Lay out a sweep."""
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


def _verdict(matrix: Matrix, comparison: Comparison | None) -> Verdict:
    results = [row.result for row in matrix.rows]
    measured = sum(result.status == MEASURED for result in results)
    total = len(results)
    told = [f"{measured if measured < total else 'all'} of {total} servers measured"]
    for status in (FAILED, INTERRUPTED):
        names = [result.name for result in results if result.status == status]
        told += [f"{', '.join(names)} {status}"] if names else []
    missed = [row.result.name for row in matrix.rows if row.missed]
    told += [f"an objective missed by {', '.join(missed)}"] if missed else []
    unlike = 0 if comparison is None else sum(not one.expected for one in comparison.mismatches)
    if unlike:
        told.append(f"{unlike} condition{'' if unlike == 1 else 's'} not alike")
    bad = measured < total or missed
    return Verdict(plain("; ".join(told)), "bad" if bad else "warn" if unlike else "good")


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
