"""The tables of several servers: a row for each, and the change of each figure beside the next."""

from dataclasses import replace

from loadgen.analysis.compare import BETTER, UNKNOWN, WORSE, Change, Comparison, LevelComparison
from loadgen.analysis.compare import Row as MetricRow
from loadgen.analysis.sweep import FAILED, INTERRUPTED, MEASURED, Matrix, ServerRow, Tally
from loadgen.report.grid import PER_CHUNK, Column, Table
from loadgen.report.text import NONE, Cell, number, percent, plain, quantile_cell

_KEY = (
    "better, worse: the whole 95 % interval of the change lies outside ± {}; of shares,"
    " whose change is in points (pt), it leaves out zero. Neither: no significant difference. ?:"
    " cannot tell."
)


def server_table(matrix: Matrix) -> Table:
    """One row for each server: its figures at the highest load, or why it has none."""
    rows = matrix.rows
    asked = any(row.quality.answered for row in rows)
    errors = any(row.error_rate for row in rows)
    per_chunk = any((row.tokens_per_chunk or 0) > PER_CHUNK for row in rows)
    columns = (
        Column(label="server", left=True),
        Column(label="output", unit="tok/s"),
        Column(label="TTFT p95", unit="ms"),
        Column(label="ITL p95", unit="ms per chunk" if per_chunk else "ms"),
        *((Column(label="accuracy", unit="95 % interval"),) if asked else ()),
        Column(label="broken", unit="answers"),
        *((Column(label="errors"),) if errors else ()),
        Column(label="ready", unit="s", title="from its start to its first token"),
        Column(label=f"against {plain(matrix.baseline or 'none')}", left=True),
    )
    level = "" if matrix.level is None else f", at {matrix.level}"
    place = None if matrix.level is None else matrix.levels.index(matrix.level)
    return Table(
        title=plain(f"Servers{level}"),
        columns=columns,
        rows=tuple(
            (
                Cell(plain(row.result.name)),
                Cell(NONE if place is None else number(row.output[place])),
                quantile_cell(row.ttft, "p95", unit="ms"),
                quantile_cell(row.itl, "p95", unit="ms"),
                *((_accuracy_cell(row),) if asked else ()),
                _broken_cell(row),
                *((Cell(percent(row.error_rate), tone="bad" if row.error_rate else ""),)
                  if errors else ()),
                Cell(number(row.result.ready_s)),
                _outcome_cell(row, baseline=row.result.name == matrix.baseline),
            )
            for row in rows
        ),
    )  # fmt: skip


def _accuracy_cell(row: ServerRow) -> Cell:
    quality = row.quality
    if quality.accuracy is None or quality.low is None or quality.high is None:
        return Cell(NONE, "no question was answered", "quiet")
    between = f"{quality.low * 100:.0f} … {quality.high * 100:.0f}"
    title = f"{quality.passed:,} of {quality.answered:,} answers passed"
    return Cell(f"{percent(quality.accuracy)} ({between})", title)


def _broken_cell(row: ServerRow) -> Cell:
    quality = row.quality
    if not quality.outputs:
        return Cell(NONE, "no answer was looked at", "quiet")
    title = f"{quality.broken:,} of {quality.outputs:,}: garbled, empty, looping or cut off"
    return Cell(percent(quality.broken / quality.outputs), title)


def _outcome_cell(row: ServerRow, *, baseline: bool) -> Cell:
    """Say what became of a server: why it has no figures, or how they compare."""
    result = row.result
    if result.status == FAILED:
        return Cell(plain(f"failed: {result.reason}"), tone="bad")
    if result.status != MEASURED and not baseline and row.tally is None:
        return Cell(plain(result.status), tone="warn")
    told = ["baseline"] if baseline else [_tally(row.tally)] if row.tally else []
    told += ["interrupted"] if result.status == INTERRUPTED else []
    told += [f"missed: {', '.join(row.missed)}"] if row.missed else []
    worse = row.missed or (row.tally is not None and row.tally.worse)
    return Cell(plain("; ".join(told)), tone="bad" if worse else "")


def _tally(tally: Tally) -> str:
    if not tally.better and not tally.worse:
        return "no significant difference" if tally.same else "too few requests to tell"
    told = [f"{tally.better:,} better"] if tally.better else []
    if tally.worse:
        told.append(f"{tally.worse:,} worse ({', '.join(tally.worse_words)})")
    return ", ".join(told)


def output_table(matrix: Matrix) -> Table:
    """Write the output of each server at each level, and how many times the baseline's it is."""
    base = next((row for row in matrix.rows if row.result.name == matrix.baseline), None)
    columns = (
        Column(label="server", left=True),
        *(Column(label=plain(name)) for name in matrix.levels),
    )
    rows = tuple(
        (Cell(plain(row.result.name)), *(_output_cells(row, base) if base else ()))
        for row in matrix.rows
        if any(value is not None for value in row.output)
    )
    shown = rows if len(matrix.levels) > 1 else ()
    return Table(title="Output, tok/s (× the baseline's)", columns=columns, rows=shown)


def _output_cells(row: ServerRow, base: ServerRow) -> list[Cell]:
    cells = []
    for value, before in zip(row.output, base.output, strict=True):
        known = value is not None and before and row is not base
        times = f" (×{value / before:.2f})" if known and value and before else ""
        cells.append(Cell(f"{number(value)}{times}"))
    return cells


def change_tables(comparison: Comparison) -> list[Table]:
    """One row for each metric of a level; two columns for each candidate, no intervals."""
    baseline, *candidates = [plain(run.name) for run in comparison.runs]
    columns = [Column(label="metric", left=True), Column(label=baseline)]
    for name in candidates:
        columns += [Column(label=name), Column(label="change", left=True)]
    tables = [_change_table(level, tuple(columns)) for level in comparison.levels]
    note = _KEY.format(percent(comparison.tolerance))
    return [*tables[:-1], *(replace(table, note=note) for table in tables[-1:])]


def _change_table(level: LevelComparison, columns: tuple[Column, ...]) -> Table:
    rows = tuple(
        (
            Cell(f"{row.word}, {row.unit}" if row.unit else row.word),
            _figure(row.baseline, row),
            *(cell for change in row.changes for cell in _change_cells(change, row)),
        )
        for row in level.rows
    )
    return Table(title=plain(level.label), columns=columns, rows=rows)


def _figure(value: float | None, row: MetricRow) -> Cell:
    return Cell(percent(value) if row.share else number(value))


def _change_cells(change: Change, row: MetricRow) -> list[Cell]:
    if change.change is None:
        return [_figure(change.value, row), Cell("?", change.method, "quiet")]
    points = round(change.change * 100, 1)
    size = f"{points:+.0f}" if abs(points) >= 100 else f"{points:+.1f}" if points else "0.0"
    said = {BETTER: " better", WORSE: " worse", UNKNOWN: " ?"}.get(change.verdict, "")
    tone = {BETTER: "good", WORSE: "bad"}.get(change.verdict, "quiet")
    unit = "pt" if row.share else "%"
    return [_figure(change.value, row), Cell(f"{size} {unit}{said}", change.method, tone)]
