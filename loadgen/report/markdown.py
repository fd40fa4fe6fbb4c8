"""A view as GitHub markdown: the tables and words of the other reports, formulas at the end."""

import re
from collections.abc import Iterable

from loadgen.report.grid import Column, Table
from loadgen.report.text import Cell, Fact
from loadgen.report.view import View

_SPECIAL = re.compile(r"([\\`*{}\[\]<>|#~!&$@]|(?<!\w)_|_(?!\w))")  # an inner _ is only itself
_AUTOLINK = re.compile(r"(?i)\b(https?|ftp)(:)(?=//)|\b(www)(\.)")


def render_markdown(view: View) -> str:
    """Return the report as one markdown document."""
    parts = [
        f"# {escape(view.title)}",
        f"**{escape(view.verdict.text)}**",
        facts_lines(view.facts),
        _warnings(view.warnings),
        *(table_lines(table) for table in _tables(view)),
        "## Conditions",
        facts_lines(view.card),
        facts_lines(view.conditions),
        "## What each number means",
        "\n".join(_formula_lines(view)),
        "## How to read it",
        "\n\n".join(escape(line) for line in view.reading),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escape(text: str) -> str:
    """Escape everything that markdown or inline HTML would act on, links it makes itself too."""
    escaped = _SPECIAL.sub(r"\\\1", text)
    return _AUTOLINK.sub(lambda m: f"{m[1] or m[3]}\\{m[2] or m[4]}", escaped)


def _tables(view: View) -> Iterable[Table]:
    yield from (view.levels, view.by_class, view.checks, view.objectives, view.errors)
    yield from (view.quality, view.server, view.gpu, view.reconciled, view.course)
    yield from (view.uncut, view.rounds, view.rates, view.outcomes, view.lengths, *view.percentiles)
    yield from (*view.more_percentiles, view.slowest, view.client)


def facts_lines(facts: Iterable[Fact]) -> str:
    """Return one line for each fact."""
    return "\n".join(f"- {escape(fact.label)}: {escape(fact.text)}" for fact in facts)


def _warnings(warnings: Iterable[str]) -> str:
    return "\n".join(f"- mind: {escape(warning)}" for warning in warnings)


def table_lines(table: Table) -> str:
    """Return a table under its title; nothing without rows."""
    if not table.rows:
        return ""
    lines = [
        f"## {escape(table.title)}",
        "",
        _line(_heading(column) for column in table.columns),
        _line(":--" if column.left else "--:" for column in table.columns),
        *(_line(_cell(cell) for cell in row) for row in table.rows),
        *(["", escape(table.note)] if table.note else []),
    ]
    return "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    return escape(f"{cell.text} ({cell.small})" if cell.small else cell.text)


def _heading(column: Column) -> str:
    return escape(f"{column.label}, {column.unit}" if column.unit else column.label)


def _formula_lines(view: View) -> Iterable[str]:
    for formula in view.formulas:
        missing = f" (none where: {formula.missing})" if formula.missing else ""
        yield f"- **{escape(formula.word)}**: {escape(formula.formula + missing)}"
