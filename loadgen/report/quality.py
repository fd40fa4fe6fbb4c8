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
    short = any(level.quality.unseen or level.quality.cut for level in levels)
    columns = (
        load,
        *((Column(label="class", left=True),) if classes else ()),
        Column(label="accuracy", unit="share", title="answers to questions that passed"),
        Column(label="95 % interval", unit="by question", title="Wilson's; repeats add nothing"),
        Column(label="passed", unit="of answers"),
        Column(label="questions", unit="answered", title="different ones"),
        Column(label="asked", unit="times"),
        *(_SHORT if short else ()),
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
            *_cells(level.quality, short=short),
        )
        for level in levels
        if level.quality.questions or level.quality.outputs
    )
    return Table(title="Quality of the answers", columns=columns, rows=rows if shown else ())


_SHORT = (
    Column(label="unseen", unit="failed", title="failed without any visible output"),
    Column(label="cut", unit="failed", title="failed, unbroken, and cut at max_tokens"),
)


def _cells(found: Quality, *, short: bool) -> tuple[Cell, ...]:
    between = f"{percent(found.low)} … {percent(found.high)}" if found.answered else NONE
    share = found.broken / found.outputs if found.outputs else None
    broken = f"{percent(share)} ({found.broken:,})" if found.broken else percent(share)
    failing = list(found.failing.items())[:_MOST_FAILING]
    for_want = [Cell(count(n), tone="warn" if n else "") for n in (found.unseen, found.cut)]
    return (
        Cell(percent(found.accuracy)),
        Cell(between),
        Cell(f"{found.passed:,} of {found.answered:,}" if found.questions else NONE),
        Cell(count(len(found.by_question))),
        Cell(count(found.questions)),
        *(for_want if short else ()),
        Cell(broken, tone="bad" if found.broken else ""),
        *(Cell(count(n)) for n in (found.garbled, found.empty, found.looping, found.truncated)),
        Cell(count(found.outputs)),
        Cell(", ".join(f"{plain(name)} {n:,}" for name, n in failing) or NONE),
    )
