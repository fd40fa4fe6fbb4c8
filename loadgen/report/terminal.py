"""A view as text for a terminal, a pipe or a log file; it returns text, the command line prints it.

No word is ever cut: a table wider than the terminal becomes several, each with the columns that
name a row.
"""

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from loadgen.report.grid import Column, Table
from loadgen.report.text import Cell
from loadgen.report.view import View

DEFAULT_WIDTH = 120
_GAP = 2  # blanks between two columns: one of padding, one of the rule between them
_MOST_MESSAGE = 60  # columns a server's message may take before it wraps
_STYLES = {"good": "green", "warn": "yellow", "bad": "bold red", "quiet": "dim"}


@dataclass(frozen=True, slots=True)
class Look:
    """What a stream can show: its columns, and whether it takes colours."""

    width: int = DEFAULT_WIDTH
    colour: bool = False


def look_of(stream: TextIO) -> Look:
    """Ask a stream what it can show; a pipe or a file gets 120 columns without colours.

    NO_COLOR and TERM=dumb switch colours off (no-color.org).
    """
    if not stream.isatty():
        return Look()
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except OSError:
        columns = 0
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Look(width=columns or DEFAULT_WIDTH, colour=not plain)


def render_terminal(view: View, *, width: int = DEFAULT_WIDTH, colour: bool = False) -> str:
    """Return the report, at most ``width`` columns wide; escape codes only with ``colour``."""
    console = console_of(width=width, colour=colour)
    console.print(Text(view.verdict.text, style=_STYLES.get(view.verdict.tone, "")))
    facts = " · ".join(f"{fact.label} {fact.text}" for fact in view.facts)
    console.print(Text(f"{view.title} · {facts}" if facts else view.title, style="dim"))
    for table in (view.levels, view.by_class, view.intervals, view.course, view.uncut):
        print_table(console, table)
    for table in (view.server, view.gpu, view.unlike):
        print_table(console, table)
    for table in (view.rounds, view.checks, view.errors, view.objectives, view.quality):
        print_table(console, table)
    _print_card(console, view)
    if view.warnings:
        console.print()
    for warning in view.warnings:
        console.print(Text(f"! {warning}", style=_STYLES["warn"]))
    return text_of(console)


def console_of(*, width: int, colour: bool) -> Console:
    """Return a console that writes to memory; ``text_of`` returns what was written."""
    return Console(
        file=io.StringIO(),
        width=max(width, 40),
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
    )


def text_of(console: Console) -> str:
    """Return what a console of ``console_of`` wrote, without blanks at the ends of lines."""
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def toned(text: str, tone: str) -> Text:
    """Return a text in the colour of its tone: good, warn, bad, quiet."""
    return Text(text, style=_STYLES.get(tone, ""))


def print_table(console: Console, table: Table, *, whole: bool = False) -> None:
    """Write a table, in several parts where it is wider than the console; nothing without rows.

    whole: in one part, whose longest texts wrap.
    """
    if not table.rows:
        return
    console.print()
    console.print(Text(table.title, style="bold"))
    parts = [list(range(len(table.columns)))] if whole else _fit(table, console.width)
    for part, columns in enumerate(parts):
        if part:
            console.print()
        console.print(_rich_table(table, columns))
    if table.note:
        console.print(Text(table.note, style=_STYLES["quiet"]))


def _print_card(console: Console, view: View) -> None:
    """Print the questions of the card with their answers."""
    console.print()
    console.print(Text("Under which conditions", style="bold"))
    for fact in view.card:
        console.print(Text.assemble((f"{fact.label} ", "dim"), fact.text))


def _fit(table: Table, width: int) -> list[list[int]]:
    """Deal the columns to tables of at most ``width``, those that name a row standing in each."""
    needed = [_column_width(table, index) + _GAP for index in range(len(table.columns))]
    keys = list(range(table.keys))
    groups = [[*keys]]
    for index in range(len(keys), len(needed)):
        used = sum(needed[i] for i in groups[-1])
        if len(groups[-1]) > len(keys) and used + needed[index] - _GAP > width:
            groups.append([*keys])
        groups[-1].append(index)
    return groups


def _column_width(table: Table, index: int) -> int:
    column = table.columns[index]
    texts = [column.label, column.unit, *(row[index].text for row in table.rows)]
    longest = max(Text(text).cell_len for text in texts)
    return min(longest, _MOST_MESSAGE) if column.left else longest


def _rich_table(table: Table, indices: Sequence[int]) -> RichTable:
    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    drawn.show_edge = False
    for index in indices:
        column = table.columns[index]
        drawn.add_column(
            _heading(column, two_lines=any(table.columns[i].unit for i in indices)),
            justify="left" if column.left else "right",
            overflow="fold",
            max_width=_MOST_MESSAGE if column.left else None,
        )
    for row in table.rows:
        drawn.add_row(*(_text(row[index]) for index in indices))
    return drawn


def _heading(column: Column, *, two_lines: bool) -> Text:
    return Text(f"{column.label}\n{column.unit}" if two_lines else column.label)


def _text(cell: Cell) -> Text:
    return Text(cell.text, style=_STYLES.get(cell.tone, ""))
