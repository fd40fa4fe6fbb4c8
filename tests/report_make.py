"""Makers of summaries for the tests of reports, so that a report has known numbers."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadgen.analysis.summary import (
    Distribution,
    ErrorClass,
    LevelSummary,
    ObjectiveResult,
    Quantile,
    SlowRequest,
    Summary,
)
from loadgen.record import Chunks, Outcome, Phase, Record
from loadgen.report.series import Samples
from loadgen.report.view import View, build_view

MS = 1_000_000
HOSTILE = '<script>alert(1)</script>|`x`\x1b[31mred\x1b[0m\nsecond line </script> & "q" \'\u202egnp'
MANIFEST: dict[str, Any] = {
    "loadgen": "0.1.0",
    "scenario": {
        "prompts": {"source": "synthetic", "input_tokens": 512, "output_tokens": 128},
        "each_level": {"warmup": "20s", "measure": ["60s", "200 requests"], "drain": "1m"},
        "request": {},
        "conditions": {"hardware": "1 × H200", "quantisation": "bf16"},
        "rounds": 1,
        "nonce": "fresh",
    },
    "seeds": {"seed": 7, "nonce": "ab12cd34"},
    "client": {"python": "3.12.3", "cpus": 16, "loop": "uvloop"},
}


def distribution(p50: float, *, n: int = 400, spread: float = 1.6) -> Distribution:
    """A distribution around p50 that prints what n allows."""
    at = {"p50": p50, "p90": p50 * spread * 0.9, "p95": p50 * spread, "p99": p50 * spread * 1.3}
    needed = {"p50": (1, 6), "p90": (1, 36), "p95": (20, 72), "p99": (100, 368)}
    made = {
        name: Quantile(
            value=value if n >= needed[name][0] else None,
            low=value * 0.96 if n >= needed[name][1] else None,
            high=value * 1.05 if n >= needed[name][1] else None,
        )
        for name, value in at.items()
    }
    return Distribution(n=n, mean=p50 * 1.1, min=p50 * 0.5, max=p50 * spread * 1.5, **made)


def level(number: int = 0, *, concurrency: int | None = 8, **changes: object) -> LevelSummary:
    """A sound level; changes replace its fields."""
    c = concurrency or 8
    step = 9.0 + 0.35 * c
    rate = 1000 / step * min(c, 24) * 0.93
    made = LevelSummary(
        level=number,
        label=f"concurrency {concurrency}" if concurrency else "4/s poisson",
        concurrency=concurrency,
        rate=None if concurrency else 4.0,
        window_s=60.0,
        stop_reason="time",
        arrivals=400,
        outcomes={"ok": 400},
        requests_per_s=rate / 128,
        output_tokens_per_s=rate,
        output_tokens_per_s_ok=rate,
        total_tokens_per_s=rate * 5,
        implied_concurrency=c * 0.98,
        in_flight_mean=c * 0.985,
        in_flight_peak=c,
        ttft=distribution(38 + 4.5 * c + (0 if c < 24 else 420)),
        ttfo=distribution(38 + 4.5 * c + (0 if c < 24 else 420)),
        e2e=distribution(60 + step * 128, spread=1.2),
        itl=distribution(step, n=51_000, spread=1.3),
        tpot=distribution(step, spread=1.2),
        decode_rate=distribution(1000 / step, spread=1.2),
        input_tokens=distribution(512 / 1.1, spread=1.1),
        output_tokens=distribution(128 / 1.1, spread=1.1),
        asked_input_mean=512.0,
        asked_output_mean=128.0,
        tokens_per_chunk=1.0,
        token_sources={"reported": 400},
        finish_reasons={"length": 380, "stop": 20},
        error_rate=0.0,
        coalesced_share=0.004,
        lateness=distribution(0.2),
        send_lag=distribution(0.15),
        slot_wait=distribution(0.001),
        connections_new=c,
    )
    return replace(made, **changes)


def failing(number: int = 0, *, n: int = 40, **changes: object) -> LevelSummary:
    """A level on which every request failed: no rate, no time, only errors."""
    return LevelSummary(
        level=number,
        label="concurrency 8",
        concurrency=8,
        stop_reason="time",
        window_s=10.0,
        arrivals=n,
        outcomes={"refused": n},
        requests_per_s=0.0,
        error_rate=1.0,
        errors=[error(n=n)],
        **changes,
    )


def error(**changes: object) -> ErrorClass:
    """A class of failures."""
    made = ErrorClass(
        error_class="server_error",
        outcome="refused",
        fault="server",
        n=3,
        http_status=500,
        sample="internal error: out of memory",
    )
    return replace(made, **changes)


def missed(**changes: object) -> ObjectiveResult:
    """An objective that was missed."""
    made = ObjectiveResult(
        objective="ttft p95 <= 500ms", verdict="missed", value=912.0, n=400, misses=61
    )
    return replace(made, **changes)


def summary(*levels: LevelSummary, **changes: object) -> Summary:
    """A complete run; without levels one at concurrency 1, 8, 16 and 32."""
    made = Summary(
        schema=1,
        name="chat-short",
        status="complete",
        started_at="2026-11-30T06:20:05Z",
        target={"url": "http://localhost:8000/v1", "model": "tiny", "engine": "vllm",
                "engine_version": "0.11.2", "transport": "own"},
        levels=list(levels) or [level(i, concurrency=c) for i, c in enumerate((1, 8, 16, 32))],
        slowest=[SlowRequest(id=311, level=0, label="concurrency 1", outcome="ok", ttft=812.0,
                             e2e=4120.5, largest_gap=233.0, output_tokens=128)],
    )  # fmt: skip
    return replace(made, **changes)


def record(number: int, **changes: object) -> Record:
    """A request that was ok: sent at 10 ms × number, TTFT 100 ms, four tokens 10 ms apart."""
    start = number * 10 * MS
    made = Record(
        id=number,
        level=0,
        phase=Phase.MEASURE,
        due_ns=start,
        slot_ns=start,
        sent_ns=start,
        headers_ns=start + 3 * MS,
        first_ns=start + 100 * MS,
        first_output_ns=start + 100 * MS,
        last_ns=start + 130 * MS,
        end_ns=start + 131 * MS,
        outcome=Outcome.OK,
        finish_reasons=["length"],
        asked_input=16,
        asked_output=4,
        reported_input=24,
        reported_output=4,
        token_source="reported",
        chunks=Chunks(at_ns=[start + 100 * MS, 10 * MS, 10 * MS, 10 * MS], kind="cccc"),
    )
    return replace(made, **changes)


def refused(number: int) -> Record:
    """A request that the server answered with 500."""
    return record(
        number, first_ns=None, first_output_ns=None, last_ns=None, outcome=Outcome.REFUSED,
        error_class="server_error", error="out of memory", http_status=500, finish_reasons=[],
        reported_input=None, reported_output=None, token_source=None, chunks=Chunks(),
    )  # fmt: skip


def write_run(directory: Path, *records: Record, status: str = "complete") -> Path:
    """A run directory of one level holding these records; 30 ok ones unless told."""
    directory.mkdir(parents=True)
    rows = records or tuple(record(i) for i in range(30))
    stop = "time" if status == "complete" else "interrupted"
    one = {"level": 0, "round": 0, "label": "concurrency 8", "concurrency": 8, "start_ns": 0,
           "measure_start_ns": 0, "measure_end_ns": 1000 * MS, "end_ns": 2000 * MS,
           "stop_reason": stop, "arrivals": len(rows), "peak_in_flight": 8}  # fmt: skip
    manifest = {"schema": 1, "status": status, "name": "chat", "levels": [one], "warnings": [],
                "started_at": "2026-11-30T06:20:05Z", "target": {"url": "http://h:1/v1",
                "model": "tiny"}} | MANIFEST  # fmt: skip
    (directory / "manifest.json").write_text(json.dumps(manifest))
    lines = [orjson.dumps(asdict(row)) + b"\n" for row in rows]
    (directory / "requests.jsonl").write_bytes(b"".join(lines))
    return directory


def samples(of: Summary, *, n: int = 400, seed: int = 1) -> dict[int, Samples]:
    """TTFT samples for each level, around its p50."""
    rng = np.random.default_rng(seed)
    return {
        found.level: Samples(values=list(rng.lognormal(np.log(found.ttft.p50.value), 0.3, n)))
        for found in of.levels
        if found.ttft.p50.value is not None
    }


def view(*levels: LevelSummary, **changes: object) -> View:
    """The view of such a run, with its manifest and samples."""
    made = summary(*levels, **changes)
    return build_view(made, manifest=MANIFEST, ttft=samples(made))
