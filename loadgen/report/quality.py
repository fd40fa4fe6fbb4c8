"""What the answers of each level were worth, beside what they took."""

from collections.abc import Sequence

from loadgen.analysis.summary import LevelSummary, Quality
from loadgen.report.grid import Column, Table, load_cell, load_column
from loadgen.report.text import NONE, Cell, count, percent, plain

_MOST_FAILING = 3


def quality_table(levels: Sequence[LevelSummary]) -> Table:
    """Accuracy on the golden set, and broken answers; empty where there is neither."""
    shown = any(level.quality.questions or level.quality.broken for level in levels)
    load, classes = load_column(levels), any(level.class_ for level in levels)
    columns = (
        load,
        *((Column(label="class", left=True),) if classes else ()),
        Column(label="accuracy", unit="share", title="questions passed / questions answered"),
        Column(label="95 % interval", unit="Wilson"),
        Column(label="passed", unit="of answered"),
        Column(label="asked", unit="questions"),
        Column(label="broken", unit="share (n)", title="garbled, empty, looping or truncated"),
        Column(label="garbled"),
        Column(label="empty"),
        Column(label="looping"),
        Column(label="truncated"),
        Column(label="answers", unit="looked at"),
        Column(label="failing most often", left=True, title="by the question's id"),
    )
    rows = tuple(
        (
            load_cell(level, load),
            *((Cell(plain(level.class_ or "all")),) if classes else ()),
            *_cells(level.quality),
        )
        for level in levels
        if level.quality.questions or level.quality.outputs
    )
    return Table(title="Quality of the answers", columns=columns, rows=rows if shown else ())


def _cells(found: Quality) -> tuple[Cell, ...]:
    between = f"{percent(found.low)} … {percent(found.high)}" if found.answered else NONE
    share = found.broken / found.outputs if found.outputs else None
    broken = f"{percent(share)} ({found.broken:,})" if found.broken else percent(share)
    failing = list(found.failing.items())[:_MOST_FAILING]
    return (
        Cell(percent(found.accuracy)),
        Cell(between),
        Cell(f"{found.passed:,} of {found.answered:,}" if found.questions else NONE),
        Cell(count(found.questions)),
        Cell(broken, tone="bad" if found.broken else ""),
        *(Cell(count(n)) for n in (found.garbled, found.empty, found.looping, found.truncated)),
        Cell(count(found.outputs)),
        Cell(", ".join(f"{plain(name)} {n:,}" for name, n in failing) or NONE),
    )
