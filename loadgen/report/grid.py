"""Tables of cells, and how a level is named in its row; no markup."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.analysis.summary import LevelSummary
from loadgen.record import FAILED_OUTCOMES
from loadgen.report.text import Cell, count, plain

PER_CHUNK = 1.05
"""Tokens per chunk above which a gap is no longer a token's (metrics: gaps)."""

GAP_TITLE = "gap between token chunks of one choice, pooled over requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column's label, its unit below it, and the words a pointer resting on it shows."""

    label: str
    unit: str = ""
    title: str = ""
    left: bool = False  # text reads from the left, numbers line up on the right


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells under columns; ``note`` stands below.

    keys: how many of the first columns name a row; they stand in each part of a table too wide.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    keys: int = 1


def failed(level: LevelSummary) -> int:
    """Count the requests of the error rate's numerator."""
    return sum(level.outcomes.get(outcome, 0) for outcome in FAILED_OUTCOMES)


def gaps_are_per_chunk(levels: Sequence[LevelSummary]) -> bool:
    """Say whether a chunk carries more than one token somewhere, so that a gap is not a token's."""
    return any((level.tokens_per_chunk or 0) > PER_CHUNK for level in levels)


def itl_word(levels: Sequence[LevelSummary]) -> str:
    """Say "ITL", or "ITL per chunk" where a gap is not one token's."""
    return "ITL per chunk" if gaps_are_per_chunk(levels) else "ITL"


def load_column(levels: Sequence[LevelSummary]) -> Column:
    """Head the first column: the levels' load."""
    if levels and all(level.concurrency is not None for level in levels):
        return Column(label="concurrency", title="requests kept in flight", left=False)
    return Column(label="level", left=True)


def load_cell(level: LevelSummary, column: Column) -> Cell:
    """Name a level in its row; an invalid one is marked there."""
    text = count(level.concurrency) if column.label == "concurrency" else plain(level.label)
    if level.invalid:
        return Cell(f"{text} (invalid)", f"do not use: {plain(level.invalid)}", "bad")
    return Cell(text, plain(level.label))
