"""The tables of several servers: a row for each, and the change of each figure beside the next."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from loadgen.analysis.compare import (
    BETTER,
    SAME,
    UNKNOWN,
    WORSE,
    Change,
    Comparison,
    LevelComparison,
)
from loadgen.analysis.compare import Row as MetricRow
from loadgen.analysis.sweep import FAILED, INTERRUPTED, MEASURED, Matrix, ServerRow, Tally
from loadgen.report.grid import PER_CHUNK, Column, Table
from loadgen.report.text import NONE, Cell, number, percent, plain, quantile_cell

_KEY = (
    "better, worse: the whole 95 % interval of the change lies outside ± {}; of shares,"
    " whose change is in points (pt), it leaves out zero. n.s.: no significant difference. ?:"
    " cannot tell (too few requests, or more failures)."
)


def server_table(matrix: Matrix, links: Mapping[str, str] | None = None) -> Table:
    """One row for each server: its figures at the highest load, or why it has none.

    links: to the servers' own reports, by their names. Where nothing was measured there are no
    columns of figures.
    """
    columns = list(_columns(matrix))
    title = "Servers" if matrix.level is None else f"Servers, at {matrix.level}"
    return Table(
        title=plain(title),
        columns=tuple(column for column, _ in columns),
        rows=tuple(
            (
                Cell(plain(row.result.name), link=(links or {}).get(row.result.name, "")),
                *(cell_of(row) for _, cell_of in columns[1:]),
            )
            for row in matrix.rows
        ),
    )


def _columns(matrix: Matrix) -> Iterator[tuple[Column, Callable[[ServerRow], Cell]]]:
    """Yield each column with what makes its cells; the first one's are made elsewhere."""
    rows, level = matrix.rows, matrix.level
    yield Column(label="server", left=True), lambda row: Cell(plain(row.result.name))
    if matrix.baseline is None or level is None:
        yield Column(label="what became of it", left=True), _fate_cell
        return
    place = matrix.levels.index(level)
    yield Column(label="output", unit="tok/s"), lambda row: Cell(number(row.output[place]))
    yield Column(label="TTFT p95", unit="ms"), lambda row: quantile_cell(row.ttft, "p95", unit="ms")
    per_chunk = any((row.tokens_per_chunk or 0) > PER_CHUNK for row in rows)
    unit = "ms per chunk" if per_chunk else "ms"
    yield Column(label="ITL p95", unit=unit), lambda row: quantile_cell(row.itl, "p95", unit="ms")
    if any(row.quality.answered for row in rows):
        yield Column(label="accuracy", unit="95 % interval"), _accuracy_cell
    yield Column(label="broken", unit="answers"), _broken_cell
    if any(row.error_rate for row in rows):
        yield Column(label="errors"), _error_cell
    ready = Column(label="ready", unit="s", title="from its start to its first token")
    yield ready, lambda row: Cell(number(row.result.ready_s))
    against = Column(label=f"against {plain(matrix.baseline)}", left=True)
    yield against, lambda row: _outcome_cell(row, baseline=row.result.name == matrix.baseline)


def _error_cell(row: ServerRow) -> Cell:
    return Cell(percent(row.error_rate), tone="bad" if row.error_rate else "")


def _accuracy_cell(row: ServerRow) -> Cell:
    quality = row.quality
    if quality.accuracy is None or quality.low is None or quality.high is None:
        return Cell(NONE, "no question was answered", "quiet")
    between = f"{quality.low * 100:.0f} … {quality.high * 100:.0f}"
    title = (
        f"{quality.passed:,} of {quality.answered:,} answers to {len(quality.by_question):,}"
        " questions passed"
    )
    return Cell(f"{percent(quality.accuracy)} ({between})", title)


def _broken_cell(row: ServerRow) -> Cell:
    quality = row.quality
    if not quality.outputs:
        return Cell(NONE, "no answer was looked at", "quiet")
    title = f"{quality.broken:,} of {quality.outputs:,}: garbled, empty, looping or cut off"
    return Cell(percent(quality.broken / quality.outputs), title)


def _fate_cell(row: ServerRow) -> Cell:
    """Say why a server has no figures."""
    result = row.result
    if result.status == FAILED:
        return Cell(plain(f"failed: {result.reason}"), tone="bad")
    return Cell(plain(result.status), tone="" if result.status == MEASURED else "warn")


def _outcome_cell(row: ServerRow, *, baseline: bool) -> Cell:
    """Say what became of a server: why it has no figures, or how they compare."""
    result = row.result
    if result.status == FAILED or (
        result.status != MEASURED and not baseline and row.tally is None
    ):
        return _fate_cell(row)
    told = ["baseline"] if baseline else [_tally(row)] if row.tally else []
    told += ["interrupted"] if result.status == INTERRUPTED else []
    told += [f"missed: {', '.join(row.missed)}"] if row.missed else []
    told += [f"failed checks: {', '.join(row.failed_checks)}"] if row.failed_checks else []
    worse = row.missed or row.failed_checks or row.worse_answers or (row.tally and row.tally.worse)
    return Cell(plain("; ".join(told)), tone="bad" if worse else "")


def _tally(row: ServerRow) -> str:
    """Write "15 better, 1 worse (broken answers), 10 not significant, 7 cannot be told"."""
    tally = row.tally or Tally()
    counted = (
        (tally.better, "better"),
        (tally.worse, f"worse ({', '.join(tally.worse_words)})"),
        (tally.same, "not significant"),
        (tally.unknown, "cannot be told"),
    )
    told = [f"{number_of:,} {word}" for number_of, word in counted if number_of]
    over_all = [word for word in row.worse_answers if word not in tally.worse_words]
    told += [f"worse over all levels ({', '.join(over_all)})"] if over_all else []
    only = f" (of {', '.join(tally.only)} only)" if tally.only else ""
    return f"{', '.join(told) or 'nothing to compare'}{only}"


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
    said = {BETTER: " better", WORSE: " worse", SAME: " n.s.", UNKNOWN: " ?"}[change.verdict]
    tone = {BETTER: "good", WORSE: "bad"}.get(change.verdict, "quiet")
    if change.change is None:
        return [_figure(change.value, row), Cell(said.strip(), change.note or change.method, tone)]
    points = round(change.change * 100, 1)
    size = f"{points:+.0f}" if abs(points) >= 100 else f"{points:+.1f}" if points else "0.0"
    unit = "pt" if row.share else "%"
    return [_figure(change.value, row), Cell(f"{size} {unit}{said}", change.method, tone)]
