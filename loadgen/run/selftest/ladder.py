"""The ladder: the product's own levels against a simulator, one after another, each judged."""

import asyncio
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson

from loadgen.analysis.checks import checks_of
from loadgen.analysis.metrics import summarise
from loadgen.analysis.summary import Distribution, LevelSummary
from loadgen.analysis.table import RunData, read_run
from loadgen.client.clock import now_ns
from loadgen.client.limits import Limits
from loadgen.client.transport import WIRE_BYTES, StampedTransport, wire_bytes
from loadgen.record import SCHEMA_VERSION
from loadgen.run.descriptors import provide_descriptors
from loadgen.run.events import Event, Tick
from loadgen.run.level import LevelRun, Session
from loadgen.run.selftest.findings import Findings, Rung, findings
from loadgen.run.selftest.truth import (
    Instants,
    Shares,
    forget,
    resident_bytes,
    shares_between,
    stamp_errors_us,
    true_send_times,
    usage_of,
)
from loadgen.run.store import RunStore
from loadgen.run.supply import Call
from loadgen.scenario.model import Scenario
from loadgen.workload.prompt import Prompt

STEP_S = 0.02
"""The simulator emits one token of every stream at each step, as a batched engine does."""

_TOKENS = (25, 75)  # answers of unlike lengths, so that they do not all end in one step
_SPREAD = 37  # a step through those lengths that visits them all, in no order
_WARMUP_S = 0.6
_DRAIN_S = 4.0
_GIVE_UP = 0.6  # below this share of the load asked for, higher rungs tell nothing new
_STREAMS_OF_MEMORY = 128  # fewer more of them do not show in the size of the process


def simulator_flags(streams: Sequence[int]) -> tuple[str, ...]:
    """Return what makes a simulator of the ladder: a step of fixed length, and no queue."""
    places = 2 * max(streams)  # a stream that was cut may keep its own for a moment
    return (
        f"--step-base={STEP_S}s", "--step-per-sequence=0s", "--step-per-context-token=0s",
        "--prefill-rate=1000000000/s", "--step-tokens=1000000",
        f"--max-running={places}",
        "--kv-tokens=10000000", "--prefix-cache-tokens=0",
    )  # fmt: skip


def climb(
    url: str, pid: int, *, seconds: float, tell: Callable[[str], None], streams: Sequence[int]
) -> Findings:
    """Measure each rung for ``seconds`` against the simulator at ``url``, process ``pid``.

    Raises EnvironmentFault where the machine allows too few descriptors.
    """
    provide_descriptors(max(streams))
    with tempfile.TemporaryDirectory(prefix="loadgen-selftest-") as directory:
        stores = [RunStore(_made(Path(directory) / str(number))) for number in streams]
        ladder = _Ladder(url, pid, _scenario(url, seconds=seconds, streams=streams))
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            held = runner.run(ladder.climb(stores, tell))
        rungs = [_judged(one, least=held[0]) for one in held]
    return findings(rungs, machine=_machine())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """One rung as it was held, before any figure is computed (that would cost memory and time)."""

    directory: Path
    streams: int
    epoch_ns: int
    truth: dict[str, Instants]
    client: Shares
    simulator: Shares
    rss_peak: int  # bytes; 0 where unknown


class _Ladder:
    """The rungs share one client and one simulator."""

    def __init__(self, url: str, pid: int, scenario: Scenario) -> None:
        self._url = url
        self._pid = pid
        self._scenario = scenario
        self._rss_peak = 0

    async def climb(self, stores: Sequence[RunStore], tell: Callable[[str], None]) -> list[_Held]:
        transport = StampedTransport()
        held: list[_Held] = []
        try:
            for number, store in enumerate(stores):
                held.append(await self._hold(number, store, transport))
                tell(f"{held[-1].streams} streams")
                if not _worth_going_on(held[-1]):
                    break
        finally:
            await transport.aclose()
            for store in stores:
                store.close()
        return held

    async def _hold(self, number: int, store: RunStore, transport: StampedTransport) -> _Held:
        forget(self._url)
        session = self._session(transport, store)
        client, simulator = usage_of(os.getpid()), usage_of(self._pid)
        self._rss_peak = 0
        entry = await LevelRun(session, number, 0, 0).run()
        client_shares = shares_between(client, usage_of(os.getpid()))
        simulator_shares = shares_between(simulator, usage_of(self._pid))
        store.write_manifest(_manifest(entry))
        return _Held(
            directory=store.directory,
            streams=self._scenario.levels[number].concurrency or 0,
            epoch_ns=session.epoch_ns,
            truth=true_send_times(self._url),
            client=client_shares,
            simulator=simulator_shares,
            rss_peak=self._rss_peak,
        )

    def _session(self, transport: StampedTransport, store: RunStore) -> Session:
        url = httpx.URL(self._scenario.target.endpoint_url())
        return Session(
            scenario=self._scenario,
            transport=transport,
            url=url,
            limits=Limits(first_token_s=10, idle_s=10),
            build=lambda level, round_, number: _call(url, f"{level}-{round_}-{number}", number),
            store=store,
            epoch_ns=now_ns(),
            on_event=self._heard,
        )

    def _heard(self, event: Event) -> None:
        if isinstance(event, Tick):
            self._rss_peak = max(self._rss_peak, resident_bytes() or 0)


def _worth_going_on(held: _Held) -> bool:
    """Say whether the simulator sent nearly what was asked of it; else more tells nothing."""
    sent = np.concatenate([*held.truth.values(), np.empty(0, dtype=np.int64)])
    asked = held.streams / STEP_S
    if len(sent) < 2:
        return False
    seconds = float(sent.max() - sent.min()) / 1e9
    return len(sent) >= _GIVE_UP * asked * seconds


def _judged(held: _Held, *, least: _Held) -> Rung:
    """Compute a rung's figures; ``least`` is the lowest rung, from which memory is counted."""
    run = read_run(held.directory)
    level = summarise(run).levels[0]
    errors = stamp_errors_us(run, held.truth, epoch_ns=held.epoch_ns)
    middle, tail, most = _quantiles(errors)
    return Rung(
        streams=held.streams,
        asked_chunks_per_s=held.streams / STEP_S,
        chunks_per_s=level.output_tokens_per_s or 0.0,
        stamps=len(errors),
        error_p50_us=middle,
        error_p99_us=tail,
        error_max_us=most,
        user_lag_p99_ms=_p99(level.user_lag),
        send_lag_p99_ms=_p99(level.send_lag),
        coalesced_share=level.coalesced_share,
        cpu_us_per_chunk=_cpu_us_per_chunk(level, run),
        cpu_share=level.client["cpu_share"],
        waited_share=held.client.waited,
        simulator_cpu_share=held.simulator.cpu,
        simulator_waited_share=held.simulator.waited,
        bytes_per_stream=_bytes_per_stream(held, least),
        checks=list(checks_of(level)),
    )


def _bytes_per_stream(held: _Held, least: _Held) -> int | None:
    """What a further stream takes: growth since the lowest rung over the streams since then."""
    more = held.streams - least.streams
    if not least.rss_peak or not held.rss_peak or more < _STREAMS_OF_MEMORY:
        return None
    return max(held.rss_peak - least.rss_peak, 0) // more


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _scenario(url: str, *, seconds: float, streams: Sequence[int]) -> Scenario:
    return Scenario.model_validate(
        {
            "name": "selftest",
            "target": {"url": url},
            "prompts": {"source": "synthetic", "input_tokens": 1, "output_tokens": sum(_TOKENS)},
            "levels": [{"concurrency": number} for number in streams],
            "each_level": {
                "warmup": f"{_WARMUP_S}s",
                "measure": f"{seconds:g}s",
                "drain": f"{_DRAIN_S}s",
            },
        }
    )


def _call(url: httpx.URL, name: str, number: int) -> Call:
    """Return a request that the simulator will know by ``name``, as its record's prompt hash."""
    least, most = _TOKENS
    tokens = least + number * _SPREAD % (most - least + 1)
    body = {
        "model": "sim",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"content-type": "application/json", "x-request-id": name}
    request = httpx.Request("POST", url, headers=headers, content=orjson.dumps(body))
    request.extensions[WIRE_BYTES] = wire_bytes(request)
    return Call(prompt=Prompt(hash=name, asked_output=tokens), request=request)


def _manifest(entry: dict[str, Any]) -> dict[str, Any]:
    return {"schema": SCHEMA_VERSION, "name": "selftest", "status": "complete", "levels": [entry]}


def _quantiles(
    values: "np.ndarray[Any, np.dtype[np.float64]]",
) -> tuple[float | None, float | None, float | None]:
    """Return p50, p99 and the largest; None each where there is nothing."""
    if not len(values):
        return None, None, None
    middle, tail = np.percentile(values, [50, 99])
    return float(middle), float(tail), float(values.max())


def _p99(distribution: Distribution) -> float | None:
    """Return p99, or the largest value where there are too few for it."""
    return distribution.p99.value if distribution.p99.value is not None else distribution.max


def _cpu_us_per_chunk(level: LevelSummary, run: RunData) -> float | None:
    """CPU of the whole level (warm-up, drain, decoding, writing down) / its chunks."""
    return level.client["cpu_ns"] / 1e3 / len(run.chunks) if len(run.chunks) else None


def _machine() -> dict[str, Any]:
    return {
        "cpus": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "loop": "uvloop" if _loop_factory() is not asyncio.new_event_loop else "asyncio",
        "stamps": "kernel" if platform.system() == "Linux" else "user",
    }


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop
