"""A run's summary as tables of cells; no markup."""

from collections.abc import Sequence

from loadgen.analysis.summary import Distribution, LevelSummary, ObjectiveResult, Summary
from loadgen.record import FAILED_OUTCOMES, Outcome
from loadgen.report.grid import (
    GAP_TITLE,
    Column,
    Table,
    failed,
    gaps_are_per_chunk,
    load_cell,
    load_column,
)
from loadgen.report.text import (
    NONE,
    Cell,
    count,
    number,
    percent,
    plain,
    quantile_cell,
    shares,
)
from loadgen.units import NS_PER_MS

_CLIENT_FIGURES = 8  # columns of the client's own figures; a table wider than that is not read
_UNITS = {"_ns": ("ms", NS_PER_MS), "_bytes": ("MiB", 2**20), "_share": ("%", 0.01)}


def level_table(levels: Sequence[LevelSummary], *, title: str = "Levels") -> Table:
    """One row per level: rates, TTFT, ITL, decode rate, E2E, errors."""
    load = load_column(levels)
    gap_unit = "ms/chunk" if gaps_are_per_chunk(levels) else "ms"
    classes = any(level.class_ for level in levels)
    columns = [load, *([Column(label="class", left=True)] if classes else [])]
    columns += [
        Column(label="requests", unit="/s", title="ok requests that ended in the window"),
        Column(label="output", unit="tok/s", title="tokens that arrived in the window"),
        Column(label="TTFT p50", unit="ms"),
        Column(label="TTFT p95", unit="ms"),
        Column(label="ITL p50", unit=gap_unit, title=GAP_TITLE),
        Column(label="ITL p95", unit=gap_unit, title=GAP_TITLE),
        Column(label="decode p50", unit="tok/s/user", title="one user's rate: 1 / TPOT"),
        Column(label="E2E p50", unit="ms"),
        Column(label="E2E p95", unit="ms"),
        Column(label="errors", unit="share (n)", title="failed / (ok + failed)"),
        Column(label="n", title="requests in the percentiles: ok or unfinished, of the window"),
    ]
    rows = tuple(_level_row(level, load, classes=classes) for level in levels)
    return Table(title=title, columns=tuple(columns), rows=rows)


def _level_row(level: LevelSummary, load: Column, *, classes: bool) -> tuple[Cell, ...]:
    per_chunk = level.tokens_per_chunk
    gaps = f", {number(per_chunk)} tokens per chunk" if per_chunk is not None else ""
    ok_only = f"of ok requests: {number(level.output_tokens_per_s_ok)} tok/s"
    return (
        load_cell(level, load),
        *((Cell(plain(level.class_ or "all")),) if classes else ()),
        Cell(number(level.requests_per_s)),
        Cell(number(level.output_tokens_per_s), ok_only),
        quantile_cell(level.ttft, "p50", unit="ms"),
        quantile_cell(level.ttft, "p95", unit="ms"),
        quantile_cell(level.itl, "p50", unit=f"ms{gaps}"),
        quantile_cell(level.itl, "p95", unit=f"ms{gaps}"),
        quantile_cell(level.decode_rate, "p50", unit="tok/s"),
        quantile_cell(level.e2e, "p50", unit="ms"),
        quantile_cell(level.e2e, "p95", unit="ms"),
        _error_cell(level),
        Cell(count(level.e2e.n)),
    )


def _error_cell(level: LevelSummary) -> Cell:
    n = failed(level)
    if not n:
        return Cell(percent(level.error_rate), "no request failed")
    tone = "bad" if (level.error_rate or 0) > 0.01 else "warn"
    return Cell(f"{percent(level.error_rate)} ({n:,})", f"{n:,} failed", tone)


def rate_table(levels: Sequence[LevelSummary]) -> Table:
    """The rates of each level, side by side with what reconciles them."""
    load = load_column(levels)
    columns = (
        load,
        Column(label="output", unit="tok/s"),
        Column(label="output, ok only", unit="tok/s"),
        Column(label="input + output", unit="tok/s"),
        Column(label="requests", unit="/s", title="ended ok in the window / its length"),
        Column(label="first end to last", unit="requests/s", title="(n − k) / (last − kth end)"),
        Column(label="goodput", unit="/s", title="requests that met all objectives"),
        Column(label="attainment", title="share of requests that met all objectives"),
        Column(label="implied concurrency", title="output tok/s × mean TPOT"),
    )
    rows = tuple(
        (
            load_cell(level, load),
            Cell(number(level.output_tokens_per_s)),
            Cell(number(level.output_tokens_per_s_ok)),
            Cell(number(level.total_tokens_per_s)),
            Cell(number(level.requests_per_s)),
            Cell(number(level.requests_per_s_between_ends)),
            Cell(number(level.goodput)),
            Cell(percent(level.attainment)),
            Cell(number(level.implied_concurrency)),
        )
        for level in levels
    )
    return Table(title="Rates", columns=columns, rows=rows)


def error_table(levels: Sequence[LevelSummary]) -> Table:
    """Failures by class, the most frequent of each level first, with one message each."""
    load = load_column(levels)
    columns = (
        load,
        Column(label="class", left=True),
        Column(label="n"),
        Column(label="outcome", left=True),
        Column(label="HTTP"),
        Column(label="fault", left=True, title="whose: server, request or client"),
        Column(label="one message", left=True),
    )
    rows = tuple(
        (
            load_cell(level, load),
            Cell(plain(error.error_class)),
            Cell(count(error.n)),
            Cell(plain(error.outcome)),
            Cell(str(error.http_status) if error.http_status is not None else NONE),
            Cell(plain(error.fault)),
            Cell(plain(error.sample) if error.sample else NONE),
        )
        for level in levels
        for error in sorted(level.errors, key=lambda error: (-error.n, error.error_class))
    )
    return Table(title="Errors by class", columns=columns, rows=rows)


def objective_table(levels: Sequence[LevelSummary]) -> Table:
    """Each objective against each level, with its verdict and what would settle an unclear one."""
    load = load_column(levels)
    columns = (
        load,
        Column(label="objective", left=True),
        Column(label="verdict", left=True),
        Column(label="value"),
        Column(label="n"),
        Column(label="misses"),
        Column(label="n needed", title="requests that would settle it at today's misses"),
    )
    classes = any(level.class_ for level in levels)
    rows = tuple(
        (
            load_cell(level, load),
            *((Cell(plain(level.class_ or "all")),) if classes else ()),
            *_objective_cells(result),
        )
        for level in levels
        for result in level.objectives
    )
    named = (Column(label="class", left=True),) if classes else ()
    return Table(title="Objectives", columns=(columns[0], *named, *columns[1:]), rows=rows)


def _objective_cells(result: ObjectiveResult) -> tuple[Cell, ...]:
    tone = {"met": "good", "missed": "bad", "unclear": "warn"}.get(result.verdict, "")
    is_share = result.objective.split()[:1] in (["errors"], ["attainment"])
    value = percent(result.value) if is_share else number(result.value)
    unit = "" if is_share or result.value is None else " ms"
    return (
        Cell(plain(result.objective)),
        Cell(plain(result.verdict), tone=tone),
        Cell(value + unit),
        Cell(count(result.n)),
        Cell(count(result.misses)),
        Cell(count(result.needed)),
    )


def outcome_table(levels: Sequence[LevelSummary]) -> Table:
    """What came of every arrival; a row sums to its arrivals."""
    load = load_column(levels)
    seen = [o.value for o in Outcome if any(level.outcomes.get(o.value) for level in levels)]
    flags = sorted({flag for level in levels for flag in level.flags})
    columns = [load, Column(label="arrivals", title="requests due in the measure phase")]
    columns += [Column(label=outcome) for outcome in seen]
    columns += [Column(label="flags", left=True)] if flags else []
    rows = []
    for level in levels:
        cells = [load_cell(level, load), Cell(count(level.arrivals))]
        cells += [_outcome_cell(outcome, level.outcomes.get(outcome, 0)) for outcome in seen]
        noted = ", ".join(f"{plain(flag)} {n:,}" for flag, n in sorted(level.flags.items()))
        cells += [Cell(noted or NONE)] if flags else []
        rows.append(tuple(cells))
    return Table(title="Outcomes", columns=tuple(columns), rows=tuple(rows))


def _outcome_cell(outcome: str, n: int) -> Cell:
    bad = n and outcome in FAILED_OUTCOMES | {Outcome.CLIENT_FAULT}
    return Cell(count(n), tone="bad" if bad else "" if n else "quiet")


def length_table(levels: Sequence[LevelSummary]) -> Table:
    """Lengths asked for against lengths the server reported."""
    load = load_column(levels)
    columns = (
        load,
        Column(label="input asked", unit="tokens, mean"),
        Column(label="input reported", unit="mean (min … max)"),
        Column(label="off", unit="tokens, mean", title="reported − asked, of those asked"),
        Column(label="exact", unit="share (largest miss)", title="prompts as long as asked"),
        Column(label="template", unit="tokens", title="what the server adds, by a probe"),
        Column(label="cached input", unit="share"),
        Column(label="output asked", unit="tokens, mean"),
        Column(label="output tokens", unit="mean (min … max)"),
        Column(label="exact", unit="share", title="answers as long as asked"),
        Column(label="finish reasons", left=True),
    )
    rows = tuple(
        (
            load_cell(level, load),
            Cell(count(level.asked_input_mean)),
            Cell(_spread(level.input_tokens)),
            Cell(count(_difference(level.input_told, level.asked_input_mean))),
            Cell(_exact(level)),
            Cell(count(level.prompt_overhead)),
            Cell(percent(level.cached_input_share)),
            Cell(count(level.asked_output_mean)),
            Cell(_spread(level.output_tokens)),
            Cell(percent(level.exact_output_share)),
            Cell(shares(level.finish_reasons)),
        )
        for level in levels
    )
    return Table(title="Lengths asked and reported", columns=columns, rows=rows)


def _exact(level: LevelSummary) -> str:
    if level.exact_input_share is None:
        return NONE
    return f"{percent(level.exact_input_share)} ({count(level.largest_input_miss)})"


def _difference(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def _spread(tokens: Distribution) -> str:
    if tokens.mean is None:
        return NONE
    return f"{count(tokens.mean)} ({count(tokens.min)} … {count(tokens.max)})"


def slowest_table(summary: Summary) -> Table:
    """The slowest requests of the run, to look up in requests.jsonl by their id."""
    columns = (
        Column(label="request"),
        Column(label="level", left=True),
        Column(label="outcome", left=True),
        Column(label="TTFT", unit="ms"),
        Column(label="E2E", unit="ms"),
        Column(label="largest gap", unit="ms"),
        Column(label="output", unit="tokens"),
    )
    rows = tuple(
        (
            Cell(str(request.id)),
            Cell(plain(request.label)),
            Cell(plain(request.outcome), tone="" if request.outcome == Outcome.OK else "warn"),
            Cell(number(request.ttft)),
            Cell(number(request.e2e)),
            Cell(number(request.largest_gap)),
            Cell(count(request.output_tokens)),
        )
        for request in summary.slowest
    )
    return Table(title="Slowest requests", columns=columns, rows=rows)


def client_table(levels: Sequence[LevelSummary]) -> Table:
    """The measurement, measured: the client's own delays, connections, and figures it kept."""
    load = load_column(levels)
    kept = sorted({key for level in levels for key in level.client if _scalar(level, key)})
    columns = [
        load,
        Column(
            label="slot wait p95", unit="ms", title="held back by the cap on requests in flight"
        ),
        Column(label="send lag p95", unit="ms", title="the client's own delay before a send"),
        Column(label="read lag p95", unit="ms", title="user-space stamp − kernel stamp"),
        Column(label="coalesced", unit="chunks"),
        Column(label="new", unit="connections"),
        Column(label="reconnects"),
        Column(label="withheld", title="negative durations found: internal errors, never printed"),
        *(_figure_column(key) for key in kept[:_CLIENT_FIGURES]),
    ]
    rows = tuple(
        (
            load_cell(level, load),
            quantile_cell(level.slot_wait, "p95", unit="ms"),
            quantile_cell(level.send_lag, "p95", unit="ms"),
            quantile_cell(level.user_lag, "p95", unit="ms", intervals=False),
            Cell(percent(level.coalesced_share)),
            Cell(count(level.connections_new)),
            Cell(count(level.reconnects)),
            Cell(count(level.internal_errors), tone="bad" if level.internal_errors else ""),
            *(Cell(_figure(key, level.client.get(key))) for key in kept[:_CLIENT_FIGURES]),
        )
        for level in levels
    )
    return Table(title="The client's own part", columns=tuple(columns), rows=rows)


def _scalar(level: LevelSummary, key: str) -> bool:
    return isinstance(level.client[key], int | float | str | bool)


def _figure_column(key: str) -> Column:
    """Head a figure the client kept: the unit at the end of its name goes below its label."""
    for ending, (unit, _) in _UNITS.items():
        if key.endswith(ending):
            return Column(label=plain(key.removesuffix(ending).replace("_", " ")), unit=unit)
    return Column(label=plain(key.replace("_", " ")))


def _figure(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return plain(value) if isinstance(value, str) else NONE
    for ending, (_, scale) in _UNITS.items():
        if key.endswith(ending):
            return number(value / scale)
    return count(value) if isinstance(value, int) else number(value)
