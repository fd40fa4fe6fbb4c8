"""The server's own view as tables: what its page told, its GPUs, and both sides' counts."""

from collections.abc import Sequence

from loadgen.analysis.bottleneck import out_of_date, queue_bound, throttled
from loadgen.analysis.server_side import GpuFigures, Reconciled, ServerFigures, ServerTime
from loadgen.analysis.summary import LevelSummary, Summary
from loadgen.report.grid import Column, Table, load_cell, load_column
from loadgen.report.text import NONE, Cell, Fact, number, percent, plain

_GIB = 2**30
_MHZ = 1e6
_TOO_FEW = "too few"
_NO_REASONS = (
    "what lowered the clock was not told; a DCGM exporter tells it with"
    " DCGM_FI_DEV_CLOCKS_EVENT_REASONS among its counters"
)
_APART = (
    "A server may note queue and prefill when a request ends (vLLM does) and its TTFT at its first"
    " token: over one window these are not quite the same requests, and need not add up."
)


def server_table(levels: Sequence[LevelSummary]) -> Table:
    """What the server said of itself in each level's window; nothing where it said nothing."""
    load = load_column(levels)
    columns = (
        load,
        Column(label="running", unit="mean / max", title="requests in its batch"),
        Column(label="waiting", unit="mean / max", title="requests in its queue"),
        Column(label="KV cache", unit="mean / max", title="share of the KV cache in use"),
        Column(label="preempted", unit="requests", title="taken out of the batch for want of KV"),
        Column(label="prefix hits", unit="of tokens", title="prompt tokens found in its cache"),
        Column(label="drafts taken", unit="of tokens", title="speculative tokens accepted"),
        Column(label="TTFT", unit="ms, mean", title="by the server's own clock and histogram"),
        Column(label="in queue", unit="ms, mean", title="of each request, before its prefill"),
        Column(label="prefill", unit="ms, mean"),
        Column(label="ITL", unit="ms, mean", title="between tokens, by the server's histogram"),
        Column(label="TPOT", unit="ms, mean"),
        Column(label="readings", title="of its page in the window: what the means stand on"),
    )
    told = [level for level in levels if level.server is not None]
    rows = [
        (load_cell(level, load), *_server_cells(level.server)) for level in told if level.server
    ]
    apart = any(one.server and one.server.ttft_ms and one.server.queue_ms for one in told)
    return _without_empty(
        Table(
            title="The server's own view",
            columns=columns,
            rows=tuple(rows),
            note=_APART if apart else "",
        )
    )


def _server_cells(server: ServerFigures) -> tuple[Cell, ...]:
    bound = queue_bound(server)
    waiting = _both(server.waiting_mean, server.waiting_max)
    return (
        Cell(_both(server.running_mean, server.running_max)),
        Cell(waiting, plain(bound or ""), "warn" if bound else ""),
        Cell(_both_shares(server.kv_usage_mean, server.kv_usage_max)),
        Cell(_whole(server.preemptions), tone="warn" if round(server.preemptions or 0) else ""),
        Cell(percent(server.prefix_hit_share)),
        Cell(percent(server.spec_acceptance)),
        _time_cell(server.ttft_ms),
        _time_cell(server.queue_ms),
        _time_cell(server.prefill_ms),
        _time_cell(server.itl_ms),
        _time_cell(server.tpot_ms if server.itl_ms is None else None),
        Cell(f"{server.samples:,}"),
    )


def gpu_table(levels: Sequence[LevelSummary]) -> Table:
    """What the GPUs said of themselves in each level's window."""
    load = load_column(levels)
    columns = (
        load,
        Column(label="utilisation", unit="mean"),
        Column(label="memory", unit="GiB, most"),
        Column(label="power", unit="W, mean"),
        Column(label="temperature", unit="°C, most"),
        Column(label="SM clock", unit="MHz, mean (least)"),
        Column(label="energy", unit="J / output token", title="of W / tokens that arrived in it"),
        Column(label="clock lowered by", left=True, title="share of the readings, by reason"),
    )
    known = [(level, level.gpu) for level in levels if level.gpu and not out_of_date(level.gpu)]
    rows = tuple((load_cell(level, load), *_gpu_cells(gpu)) for level, gpu in known)
    several = max((gpu.gpus for _, gpu in known), default=0)
    notes = [f"of all {several} GPUs that were seen, together"] if several > 1 else []
    notes += [_NO_REASONS] if any(gpu.throttle is None for _, gpu in known) else []
    return _without_empty(Table(title="GPU", columns=columns, rows=rows, note="; ".join(notes)))


def _gpu_cells(gpu: GpuFigures) -> tuple[Cell, ...]:
    of = f" of {number(gpu.memory_total_bytes / _GIB)}" if gpu.memory_total_bytes else ""
    used = gpu.memory_used_max_bytes
    return (
        Cell(percent(gpu.utilization_mean), _read(gpu.samples)),
        Cell(NONE if used is None else number(used / _GIB) + of),
        Cell(number(gpu.power_mean_w)),
        Cell(number(gpu.temperature_max_c)),
        Cell(_clock(gpu)),
        Cell(number(gpu.energy_per_token_j), f"{number(gpu.energy_j)} J in the window"),
        Cell(_reasons(gpu), tone="warn" if throttled(gpu) else ""),
    )


def _reasons(gpu: GpuFigures) -> str:
    """Tell a clock that nothing lowered from one of which nobody said anything."""
    if gpu.throttle is None:
        return "not told"
    told = [f"{plain(word)} {percent(share)}" for word, share in gpu.throttle.items()]
    return ", ".join(told) or "none"


def _clock(gpu: GpuFigures) -> str:
    mean, least = gpu.sm_clock_mean_hz, gpu.sm_clock_min_hz
    if mean is None:
        return NONE
    return f"{mean / _MHZ:,.0f}" + (f" ({least / _MHZ:,.0f})" if least is not None else "")


def reconciled_table(levels: Sequence[LevelSummary], *, unlike: bool = False) -> Table:
    """What client and server both know, side by side; with ``unlike`` only where they differ."""
    load = load_column(levels)
    columns = (
        load,
        Column(label="what", left=True),
        Column(label="client"),
        Column(label="server"),
        Column(label="difference", title="client − server"),
        Column(label="agrees", left=True),
        Column(label="why", left=True),
    )
    rows = tuple(
        (load_cell(level, load), *_reconciled_cells(one))
        for level in levels
        for one in level.reconciled
        if not (unlike and one.agrees)
    )
    title = "Client and server, where they differ" if unlike else "Client and server, side by side"
    note = (
        "Tokens and requests: of the whole level, warm-up and drain included. Times: of the first"
        " tokens and gaps between whole readings in the window."
    )
    return Table(title=title, columns=columns, rows=rows, note="" if unlike or not rows else note)


def _reconciled_cells(one: Reconciled) -> tuple[Cell, ...]:
    unit = " ms" if one.unit == "ms" else ""
    write = number if one.unit == "ms" else _whole
    agrees = Cell("yes", tone="good") if one.agrees else Cell("no", tone="warn")
    return (
        Cell(plain(one.what)),
        Cell(write(one.client) + unit),
        Cell(write(one.server) + unit),
        Cell(write(one.gap) + unit if abs(one.gap) >= 0.001 else "0"),
        agrees,
        Cell(plain(one.text)),
    )


def server_facts(summary: Summary) -> tuple[Fact, ...]:
    """Say in one line that both sides agree, or why the server was not listened to."""
    told = summary.telemetry
    pairs = [one for level in summary.levels for one in level.reconciled]
    if pairs:
        unlike = sum(not one.agrees for one in pairs)
        same = "agrees with the client's counts and times"
        text = same if not unlike else f"differs from the client's in {unlike} of {len(pairs)}"
        return (Fact("server's own view", text),)
    if told is None or any(level.server for level in summary.levels):
        return ()
    why = told.why_not or ("every reading failed" if told.failed else "nothing was read")
    if any(why in warning for warning in summary.warnings):
        return ()  # asked for by name: said there
    return (Fact("server's own view", f"none: {plain(why)}"),)


def _read(samples: int) -> str:
    return f"{samples:,} readings in the window"


def _both(mean: float | None, most: float | None) -> str:
    if mean is None:
        return NONE if most is None else _TOO_FEW
    return f"{number(mean)} / {_whole(most)}"


def _both_shares(mean: float | None, most: float | None) -> str:
    if mean is None:
        return NONE if most is None else _TOO_FEW
    return f"{percent(mean)} / {percent(most)}"


def _whole(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}".replace("-0", "0")


def _time_cell(time: ServerTime | None) -> Cell:
    if time is None:
        return Cell(NONE)
    within = ", ".join(
        f"{name} {number(value)} ms"
        for name, value in (("p50", time.p50), ("p95", time.p95))
        if value is not None
    )
    return Cell(number(time.mean), f"n {time.n:,}" + (f", {within} (by bucket)" if within else ""))


def _without_empty(table: Table) -> Table:
    """Leave out the columns in which no row has anything to say."""
    kept = [
        index
        for index in range(len(table.columns))
        if not index or any(row[index].text != NONE for row in table.rows)
    ]
    return Table(
        title=table.title,
        columns=tuple(table.columns[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in table.rows),
        note=table.note,
    )
