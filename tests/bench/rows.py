"""The figures of the client and their targets, one function for each group of rows."""

import datetime
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import (
    Skipped,
    child,
    product,
    raw_reader,
    results,
    simulator,
    started_after_s,
    told,
    truth_server,
)

LOADS = ((32, 100), (256, 50), (1024, 20))  # streams, tokens per second of each


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure. met: None where it has no target or could not be measured."""

    figure: str
    target: str
    measured: str
    met: bool | None
    note: str = ""
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What all rows share."""

    programs: dict[str, Path]  # empty: no compiler
    directory: Path
    quick: bool

    @property
    def repeats(self) -> int:
        return 1 if self.quick else 3

    @property
    def seconds(self) -> float:
        return 1.0 if self.quick else 2.0

    def fresh(self) -> Path:
        """Return a new directory for one run."""
        return Path(tempfile.mkdtemp(dir=self.directory))

    def program(self, name: str) -> Path:
        if name not in self.programs:
            raise Skipped("needs Linux and a C compiler")
        return self.programs[name]


def median(values: list[float]) -> float:
    return statistics.median(values)


def at_most(value: float, bound: float) -> bool:
    return value <= bound


# --- stamps


def stamp_rows(bench: Bench) -> Iterator[Row]:
    """Stamp error over http, six cells."""
    with truth_server(bench.program("truth_server")) as port:
        for streams, per_s in LOADS:
            for together in (False, True):
                found = [
                    child(
                        "stamps",
                        base=f"http://127.0.0.1:{port}",
                        streams=streams,
                        per_s=per_s,
                        seconds=bench.seconds,
                        together=together,
                        ca_file=None,
                    )
                    for _ in range(bench.repeats)
                ]
                yield _stamp_row(f"{streams} × {per_s} tok/s", together, found)


def _stamp_row(load: str, together: bool, found: list[dict[str, Any]]) -> Row:
    tail = median([one["p99"] for one in found])
    phase = "all at once" if together else "random phase"
    middle = median([one["p50"] for one in found])
    return Row(
        figure=f"stamp error p99, http, {load}, {phase}",
        target="≤ 20 µs",
        measured=f"{tail:.1f} µs",
        met=at_most(tail, 20),
        note=f"p50 {middle:.1f} µs, {median([one['coalesced'] for one in found]):.1%} coalesced",
        values={"runs": found},
    )


def tls_rows(bench: Bench) -> Iterator[Row]:
    """Stamp error over https, beyond the simulator's own delay between its stamp and the socket."""
    for streams, per_s in LOADS[:1] if bench.quick else LOADS:
        found = [_over_https(bench, streams, per_s) for _ in range(bench.repeats)]
        beyond = median([one["p99"] - one["own_p99"] for one in found])
        tail = median([one["p99"] for one in found])
        yield Row(
            figure=f"the same over https (simulator), {streams} × {per_s} tok/s",
            target="≤ 40 µs beyond its own",
            measured=f"{beyond:.1f} µs",
            met=at_most(beyond, 40),
            note=f"p99 {tail:.1f} µs, of which the simulator took"
            f" {median([one['own_p99'] for one in found]):.1f} to frame and encrypt; its tokens"
            " come step by step, one stream after another",
            values={"runs": found},
        )


def _over_https(bench: Bench, streams: int, per_s: float) -> dict[str, Any]:
    with simulator(bench.fresh(), step_s=1 / per_s, tls=True) as running:
        found = child(
            "stamps",
            base=running.base,
            streams=streams,
            per_s=per_s,
            seconds=bench.seconds,
            together=False,
            ca_file=running.ca_file,
        )
    own = running.delays
    return {**found, "own_p50": own["p50"], "own_p99": own["p99"]}


# --- the client by itself


def cpu_rows(bench: Bench) -> Iterator[Row]:
    """CPU per chunk at 256 × 50, beside the C reader and beside httpx itself."""
    streams, per_s = 256, 50
    load = {"streams": streams, "per_s": per_s, "seconds": bench.seconds}
    ours, raw, bare, lines, pieces = [], [], [], [], []
    with truth_server(bench.program("truth_server")) as port:
        base = f"http://127.0.0.1:{port}"
        query = f"t=1000000&i={1_000_000 // per_s}&n={round(per_s * bench.seconds)}"
        for _ in range(bench.repeats):
            ours.append(child("reading", base=base, **load)["cpu_us"])
            reader = raw_reader(
                bench.program("raw_reader"), port, streams, query, spread_s=1 / per_s
            )
            raw.append(reader["cpu_us"])
            bare.append(child("bare", base=base, **load)["cpu_us"])
        lines.append(child("stock", base=base, lines=True, plain_loop=True, **load)["cpu_us"])
        pieces.append(child("stock", base=base, lines=False, **load)["cpu_us"])
    own, floor = median(ours), median(raw)
    values = {
        "own": ours,
        "raw_reader": raw,
        "bare_python": bare,
        "stock_lines": lines,
        "stock_raw": pieces,
    }
    yield Row(
        figure="CPU per chunk, 256 × 50 tok/s",
        target="≤ 20 µs",
        measured=f"{own:.1f} µs",
        met=at_most(own, 20),
        note=f"sockets, HTTP, chunks decoded; the least in Python is {median(bare):.1f}",
        values=values,
    )
    yield Row(
        figure="the same against the C raw reader",
        target="≤ 1.5 ×",
        measured=f"{own / floor:.2f} ×",
        met=at_most(own / floor, 1.5),
        note=f"the C reader took {floor:.1f} µs, and a bare Python loop of epoll, recvmsg and"
        f" httptools {median(bare):.1f}: that bounds it, one wake for nearly every chunk",
    )
    yield Row(
        figure="chunks/s per core against httpx",
        target="≥ 3 ×",
        measured=f"{median(lines) / own:.1f} ×",
        met=median(lines) / own >= 3,
        note=f"httpx took {median(lines):.0f} µs by lines, {median(pieces):.0f} in raw pieces on"
        " uvloop",
    )


def burst_rows(bench: Bench) -> Iterator[Row]:
    """1024 streams start at once: when the server has their requests."""
    with truth_server(bench.program("truth_server")) as port:
        for cold, bound in ((False, 25), (True, 60)):
            base = f"http://127.0.0.1:{port}"
            found = [child("burst", base=base, streams=1024, cold=cold)
                     for _ in range(bench.repeats)]  # fmt: skip
            middle = median([one["p50"] for one in found])
            kind = "cold" if cold else "pre-connected"
            yield Row(
                figure=f"1024 {kind} streams at once: request at the server after t0, p50",
                target=f"≤ {bound} ms",
                measured=f"{middle:.1f} ms",
                met=at_most(middle, bound),
                note=f"the last after {median([one['max'] for one in found]):.0f} ms",
                values={"runs": found},
            )


def memory_rows(bench: Bench) -> Iterator[Row]:
    """Memory of streams that wait for their first token."""
    with truth_server(bench.program("truth_server")) as port:
        found = child("memory", base=f"http://127.0.0.1:{port}", streams=1024)
    size = found["bytes_per_stream"] / 1000
    yield Row(
        figure="memory per open stream at 1024",
        target="≤ 12 kB",
        measured=f"{size:.1f} kB",
        met=at_most(size, 12),
        note=f"of it {found['bytes_per_connection'] / 1000:.1f} kB the idle connection",
        values=found,
    )


def decode_rows(bench: Bench) -> Iterator[Row]:
    """Decoding one ordinary chunk against parsing its JSON."""
    found = child("decode", chunks=5_000 if bench.quick else 20_000)
    yield Row(
        figure="decoding one ordinary chunk",
        target="≤ 4 × orjson.loads",
        measured=f"{found['ratio']:.2f} ×",
        met=at_most(found["ratio"], 4),
        note=f"{found['chunk_ns'] / 1e3:.2f} µs against {found['orjson_ns'] / 1e3:.2f}",
        values=found,
    )


# --- the whole product


def pacing_rows(bench: Bench) -> Iterator[Row]:
    """Open loop at 1000 requests a second: the client's own delay."""
    with truth_server(bench.program("truth_server"), ttft_ms=5, itl_ms=2) as port:
        for arrivals, bound in (("constant", 250), ("poisson", 500)):
            tails = [_send_lag_us(bench, port, arrivals) for _ in range(bench.repeats)]
            yield Row(
                figure=f"open loop at 1000 req/s, {arrivals}: send lag p99",
                target=f"≤ {bound} µs",
                measured=f"{median(tails):.0f} µs",
                met=at_most(median(tails), bound),
                values={"p99_us": tails},
            )


def _send_lag_us(bench: Bench, port: int, arrivals: str) -> float:
    directory = bench.fresh()
    product(
        directory, "--url", f"http://127.0.0.1:{port}", "--rate", "1000/s", "--arrivals", arrivals,
        "--input-tokens", "16", "--output-tokens", "4", "--warmup", "1s",
        "--duration", f"{2 * bench.seconds:g}s",
    )  # fmt: skip
    return float(results(directory)[1]["send_lag"]["p99"]["value"] * 1000)


def closed_rows(bench: Bench) -> Iterator[Row]:
    """The whole product in a closed loop at 256 and 1024 streams, 64 tokens each."""
    yield from _closed(bench, streams=256, ttft_ms=200, itl_ms=20)
    yield from _closed(bench, streams=1024, ttft_ms=500, itl_ms=50)


def _closed(bench: Bench, *, streams: int, ttft_ms: float, itl_ms: float) -> Iterator[Row]:
    waves = 2 if bench.quick else 3 if streams > 500 else 5
    repeats = 1 if streams > 500 else bench.repeats
    share_bound, ttft_bound = (0.99, 1.0) if streams <= 256 else (0.985, 3.0)
    program = bench.program("truth_server")
    found = []
    for _ in range(repeats):
        with truth_server(program, ttft_ms=ttft_ms, itl_ms=itl_ms) as port:
            cycle_s = (ttft_ms + 63 * itl_ms) / 1000
            found.append(_closed_run(bench, port, streams, waves=waves, cycle_s=cycle_s))

    def middle(name: str) -> float:
        return median([one[name] for one in found])

    name = f"the whole product, closed loop, {streams} streams"
    yield Row(
        figure=f"{name}: share of a perfect loop's tok/s",
        target=f"≥ {share_bound:.1%}",
        measured=f"{middle('share'):.2%}",
        met=middle("share") >= share_bound,
        note=f"{waves} answers of 64 tokens for each stream, the first wave included",
        values={"runs": found},
    )
    yield Row(
        figure=f"{name}: TTFT p99 against the server's own truth",
        target=f"≤ {ttft_bound:g} ms",
        measured=f"{middle('ttft_error_ms'):+.2f} ms",
        met=abs(middle("ttft_error_ms")) <= ttft_bound,
        note=f"requests lay at the server unread for {middle('recv_lag_ms'):.2f} ms (p99), which a"
        " client rightly counts and the server's own TTFT does not",
    )
    yield Row(
        figure=f"{name}: CPU per token",
        target="≤ 30 µs",
        measured=f"{middle('cpu_us'):.1f} µs",
        met=at_most(middle("cpu_us"), 30),
        note=f"of the level; {middle('cpu_us_whole'):.0f} µs with start, statistics and reports",
    )
    if streams == 256:
        yield Row(
            figure="resident memory at 256 streams",
            target="≤ 150 MB",
            measured=f"{middle('rss_mb'):.0f} MB",
            met=at_most(middle("rss_mb"), 150),
            note="the largest while the level ran",
        )


def _closed_run(
    bench: Bench, port: int, streams: int, *, waves: int, cycle_s: float
) -> dict[str, float]:
    directory = bench.fresh()
    cpu_s = product(
        directory, "--url", f"http://127.0.0.1:{port}", "-c", str(streams), "--input-tokens", "16",
        "--output-tokens", "64", "--warmup", f"{streams} requests",
        "--requests", str(streams * (waves - 1)),
    )  # fmt: skip
    entry, level = results(directory)
    truth = told(port, "/stats")
    tokens = streams * waves * 64
    return {
        "share": waves * cycle_s / truth["span_s"],
        "ttft_error_ms": level["ttft"]["p99"]["value"] - truth["ttft"]["p99"],
        "recv_lag_ms": truth["recv_lag_us"]["p99"] / 1000,
        "cpu_us": entry["client"]["cpu_ns"] / tokens / 1e3,
        "cpu_us_whole": cpu_s / tokens * 1e6,
        "rss_mb": entry["client"]["rss_bytes"] / 1e6,
        "loop_lag_max_ms": entry["client"]["loop_lag_max_ns"] / 1e6,
        "user_lag_p99_ms": level["user_lag"]["p99"]["value"],
    }


def flood_rows(bench: Bench) -> Iterator[Row]:
    """32 streams from a server that does not wait: reads coalesce, stamps mean nothing."""
    rates = []
    with truth_server(bench.program("truth_server"), ttft_ms=0, itl_ms=0) as port:
        for _ in range(bench.repeats):
            directory = bench.fresh()
            product(
                directory, "--url", f"http://127.0.0.1:{port}", "-c", "32", "--input-tokens", "16",
                "--output-tokens", "1000", "--duration", f"{bench.seconds:g}s",
            )  # fmt: skip
            level = results(directory)[1]
            rates.append(float(level["output_tokens_per_s"]))
    rate = median(rates)
    coalesced = level["coalesced_share"] or 0
    yield Row(
        figure="no delays, 32 streams, answers of 1000 tokens: tok/s",
        target="≥ 150,000",
        measured=f"{rate:,.0f}",
        met=rate >= 150_000,
        note=f"{coalesced:.0%} of chunks coalesced: their stamps mean nothing",
        values={"tokens_per_s": rates},
    )


def start_rows(bench: Bench) -> Iterator[Row]:
    """From the start of the process to its first request at the server."""
    found = []
    with truth_server(bench.program("truth_server"), ttft_ms=5, itl_ms=2) as port:
        for _ in range(bench.repeats):
            told(port, "/reset")
            found.append(started_after_s(bench.fresh(), port))
    after = median(found)
    yield Row(
        figure="process start to the first request at the server",
        target="≤ 1 s",
        measured=f"{after:.2f} s",
        met=at_most(after, 1.0),
        values={"s": found},
    )


ROWS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "stamps": stamp_rows,
    "tls": tls_rows,
    "cpu": cpu_rows,
    "burst": burst_rows,
    "pacing": pacing_rows,
    "memory": memory_rows,
    "closed": closed_rows,
    "flood": flood_rows,
    "start": start_rows,
    "decode": decode_rows,
}


def measured_now() -> str:
    return f"{datetime.datetime.now(tz=datetime.UTC):%Y-%m-%d %H:%M} UTC"
