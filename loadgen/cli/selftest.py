"""``loadgen selftest``: what this machine can measure, found out against a simulator."""

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from loadgen.run.selftest.findings import Findings, Rung

_HEADINGS = (
    ("streams", ""), ("asked", "chunks/s"), ("reached", "chunks/s"), ("stamp error", "p50 µs"),
    ("", "p99 µs"), ("", "max µs"), ("user lag", "p99 ms"), ("send lag", "p99 ms"),
    ("coalesced", ""), ("CPU", "µs/chunk"), ("CPU", "client"), ("CPU", "simulator"),
    ("memory", "kB/stream"), ("", ""),
)  # fmt: skip

_ABOUT_MEMORY = (
    "memory: growth of the whole client for each further stream: beside the open stream, the next"
    " requests\nprepared for its slot, its chunks before they are decoded, and its records before"
    " they are written"
)


def _streams(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    numbers = tuple(int(part) if part.strip().isdecimal() else 0 for part in value.split(","))
    if not all(0 < small < large for small, large in pairwise((*numbers, 2**31))):
        text = "give numbers of streams, each larger than the one before: 32,256,1024"
        raise click.BadParameter(text, ctx=ctx, param=param)
    return numbers


@click.command("selftest")
@click.option("--json", "as_json", is_flag=True, help="Write JSON in place of the table.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.5, max=600),
    default=2.0,
    show_default=True,
    metavar="N",
    help="How long each of the loads is measured.",
)
@click.option(
    "--streams",
    default="32,128,256,512,1024",
    show_default=True,
    metavar="N,N…",
    callback=_streams,
    help="The loads: streams at once, 50 chunks/s each.",
)
def command(as_json: bool, seconds: float, streams: tuple[int, ...]) -> None:
    """Say what this machine can measure: stamps, lags and CPU on a ladder of loads.

    A simulator runs in a process of its own and states when it sent each chunk; the client
    measures it as it would any server. Takes under half a minute; nothing is kept.
    """
    from loadgen.run.selftest.ladder import climb, simulator_flags
    from loadgen.simulator.process import simulator_process

    with simulator_process(*simulator_flags(streams)) as simulator:

        def tell(text: str) -> None:
            click.echo(f"measured {text}", err=True)

        found = climb(simulator.url, simulator.pid, seconds=seconds, tell=tell, streams=streams)
    click.echo(_json(found) if as_json else _table(found))


def _json(found: "Findings") -> str:
    from loadgen.analysis.serial import to_plain

    plain: dict[str, Any] = to_plain(found)
    for row, rung in zip(plain["rungs"], found.rungs, strict=True):
        row["sound"] = rung.sound
    return json.dumps(plain, indent=2, allow_nan=False, ensure_ascii=False)


def _table(found: "Findings") -> str:
    rows = [list(column) for column in zip(*_HEADINGS, strict=True)]
    rows += [_cells(rung) for rung in found.rungs]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines.insert(2, "─" * max(map(len, lines)))
    machine = ", ".join(
        f"{found.machine[key]} {word}".strip()
        for key, word in (("cpus_usable", "cores"), ("loop", ""), ("stamps", "stamps"))
    )
    known = any(rung.bytes_per_stream is not None for rung in found.rungs)
    about = [_ABOUT_MEMORY] if known else []
    return "\n".join([*lines, *about, "", f"this machine ({machine}): {found.verdict}"])


def _cells(rung: "Rung") -> list[str]:
    memory = None if rung.bytes_per_stream is None else rung.bytes_per_stream / 1000
    return [
        f"{rung.streams:,}",
        f"{rung.asked_chunks_per_s:,.0f}",
        f"{rung.chunks_per_s:,.0f}",
        *(_figure(us, 0) for us in (rung.error_p50_us, rung.error_p99_us, rung.error_max_us)),
        _figure(rung.user_lag_p99_ms, 2),
        _figure(rung.send_lag_p99_ms, 2),
        _percent(rung.coalesced_share),
        _figure(rung.cpu_us_per_chunk, 1),
        _percent(rung.cpu_share),
        _percent(rung.simulator_cpu_share),
        _figure(memory, 1),
        "" if rung.sound else "not sound",
    ]


def _figure(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
