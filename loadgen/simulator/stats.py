"""What the simulator knows about what it did: the truth for /sim/stats and /metrics."""

from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from loadgen.simulator.engine import Sequence

KEPT = 100_000  # the latest requests that /sim/stats can list

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
         10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0)  # fmt: skip
_E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0,
        240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Served:
    """One generation request as the server saw it; CLOCK_MONOTONIC ns."""

    id: str
    connection: int  # its number
    accepted_ns: int  # when that was accepted
    arrived_ns: int  # the read with the request's first byte
    read_ns: int  # the read with its last byte
    request_id: str | None = None
    status: int = 200
    fault: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    ended_ns: int | None = None
    end: str | None = None  # complete, refused, fault, aborted
    late_writes: int = 0  # chunks stamped while the socket could not take them
    sent_ns: "array[int]" = field(default_factory=lambda: array("q"))

    def as_dict(self, *, with_chunks: bool) -> dict[str, Any]:
        """Return the facts for JSON."""
        names = [name for name in self.__slots__ if name != "sent_ns"]
        facts: dict[str, Any] = {name: getattr(self, name) for name in names}
        facts["first_ns"] = self.sent_ns[0] if self.sent_ns else None
        facts["last_ns"] = self.sent_ns[-1] if self.sent_ns else None
        facts["chunks"] = len(self.sent_ns)
        if with_chunks:
            facts["sent_ns"] = self.sent_ns.tolist()
        return facts


class Histogram:
    """Counts of observations in seconds by upper bound, as Prometheus keeps them."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """Yield the sample lines."""
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(total)}'
        yield f"{name}_count{{{labels}}} {float(total)}"
        yield f"{name}_sum{{{labels}}} {self._sum}"


@dataclass(slots=True, kw_only=True)
class Stats:
    """All counts since the start or the last reset."""

    requests: deque[Served] = field(default_factory=lambda: deque(maxlen=KEPT))
    arrivals: int = 0
    connections: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    chunks: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    steps: int = 0
    finished: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    ttft: Histogram = field(default_factory=lambda: Histogram(_TTFT))
    itl: Histogram = field(default_factory=lambda: Histogram(_ITL))
    e2e: Histogram = field(default_factory=lambda: Histogram(_E2E))
    queue: Histogram = field(default_factory=lambda: Histogram(_E2E))
    prefill: Histogram = field(default_factory=lambda: Histogram(_E2E))
    decode: Histogram = field(default_factory=lambda: Histogram(_E2E))
    tpot: Histogram = field(default_factory=lambda: Histogram(_ITL))

    def begin(self, served: Served) -> None:
        """Count an arrival."""
        self.requests.append(served)
        self.arrivals += 1
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)

    def end(self, served: Served, *, how: str, now_ns: int) -> None:
        """Note how a request ended; the first word on it stands."""
        if served.end is None:
            served.end, served.ended_ns = how, now_ns
            self.in_flight -= 1
            if how == "complete":
                self.e2e.observe((now_ns - served.read_ns) / 1e9)

    def finish(self, sequence: Sequence, *, first_ns: int, last_ns: int) -> None:
        """Count the times of a sequence that gave its last token: waiting, prefill, decoding."""
        self.queue.observe((sequence.admitted_ns - sequence.arrived_ns) / 1e9)
        self.prefill.observe((first_ns - sequence.admitted_ns) / 1e9)
        self.decode.observe((last_ns - first_ns) / 1e9)
        if sequence.output_tokens > 1:
            self.tpot.observe((last_ns - first_ns) / (sequence.output_tokens - 1) / 1e9)

    def as_dict(self, *, with_chunks: bool) -> dict[str, Any]:
        """Return everything for /sim/stats."""
        names = ("arrivals", "connections", "in_flight", "peak_in_flight", "chunks", "steps")
        facts: dict[str, Any] = {name: getattr(self, name) for name in names}
        facts |= {"prompt_tokens": self.prompt_tokens, "faults": dict(self.faults)}
        facts["generation_tokens"] = self.generation_tokens
        facts["requests"] = [one.as_dict(with_chunks=with_chunks) for one in self.requests]
        return facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The engine's state at this moment."""

    model: str
    running: int
    waiting: int
    kv_usage: float  # reserved share
    kv_tokens: int
    prefix_queries: int
    prefix_hits: int


def metrics_text(style: str, stats: Stats, gauges: Gauges) -> str:
    """Write the counts in Prometheus' text format under the names of an engine."""
    match style:
        case "vllm":
            lines = list(_vllm_lines(stats, gauges))
        case "sglang":
            lines = list(_sglang_lines(stats, gauges))
        case _:
            lines = list(_llamacpp_lines(stats, gauges))
    return "\n".join((*lines, ""))


def _sample(name: str, kind: str, value: float, labels: str) -> tuple[str, str]:
    braces = f"{{{labels}}}" if labels else ""
    return f"# TYPE {name} {kind}", f"{name}{braces} {float(value)}"


def _vllm_lines(stats: Stats, gauges: Gauges) -> Iterable[str]:
    labels = f'engine="0",model_name="{_escape(gauges.model)}"'
    for name, kind, value in (
        ("num_requests_running", "gauge", gauges.running),
        ("num_requests_waiting", "gauge", gauges.waiting),
        ("kv_cache_usage_perc", "gauge", gauges.kv_usage),
        ("prefix_cache_queries_total", "counter", gauges.prefix_queries),
        ("prefix_cache_hits_total", "counter", gauges.prefix_hits),
        ("num_preemptions_total", "counter", 0),
        ("prompt_tokens_total", "counter", stats.prompt_tokens),
        ("generation_tokens_total", "counter", stats.generation_tokens),
    ):
        yield from _sample(f"vllm:{name}", kind, value, labels)
    yield "# TYPE vllm:request_success_total counter"
    for reason in ("stop", "length", "abort"):
        value = float(stats.finished[reason])
        yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {value}'
    for name, histogram in (
        ("time_to_first_token_seconds", stats.ttft),
        ("inter_token_latency_seconds", stats.itl),
        ("request_time_per_output_token_seconds", stats.tpot),
        ("e2e_request_latency_seconds", stats.e2e),
        ("request_queue_time_seconds", stats.queue),
        ("request_prefill_time_seconds", stats.prefill),
        ("request_decode_time_seconds", stats.decode),
    ):
        yield f"# TYPE vllm:{name} histogram"
        yield from histogram.lines(f"vllm:{name}", labels)
    yield "# TYPE vllm:cache_config_info gauge"
    blocks = gauges.kv_tokens // 16
    yield (
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",'
        f'num_gpu_blocks="{blocks}"}} 1.0'
    )


def _sglang_lines(stats: Stats, gauges: Gauges) -> Iterable[str]:
    labels = f'model_name="{_escape(gauges.model)}"'
    hits = gauges.prefix_hits / gauges.prefix_queries if gauges.prefix_queries else 0.0
    for name, kind, value in (
        ("num_running_reqs", "gauge", gauges.running),
        ("num_queue_reqs", "gauge", gauges.waiting),
        ("token_usage", "gauge", gauges.kv_usage),
        ("cache_hit_rate", "gauge", hits),
        ("prompt_tokens_total", "counter", stats.prompt_tokens),
        ("generation_tokens_total", "counter", stats.generation_tokens),
        ("cached_tokens_total", "counter", gauges.prefix_hits),
        ("num_requests_total", "counter", stats.finished["stop"] + stats.finished["length"]),
    ):
        yield from _sample(f"sglang:{name}", kind, value, labels)
    for name, histogram in (
        ("time_to_first_token_seconds", stats.ttft),
        ("inter_token_latency_seconds", stats.itl),
        ("request_time_per_output_token_seconds", stats.tpot),
        ("e2e_request_latency_seconds", stats.e2e),
        ("queue_time_seconds", stats.queue),
    ):
        yield f"# TYPE sglang:{name} histogram"
        yield from histogram.lines(f"sglang:{name}", labels)


def _llamacpp_lines(stats: Stats, gauges: Gauges) -> Iterable[str]:
    for name, kind, value in (
        ("prompt_tokens_total", "counter", stats.prompt_tokens),
        ("prompt_tokens_cached_total", "counter", gauges.prefix_hits),
        ("tokens_predicted_total", "counter", stats.generation_tokens),
        ("n_decode_total", "counter", stats.steps),
        ("requests_processing", "gauge", gauges.running),
        ("requests_deferred", "gauge", gauges.waiting),
    ):
        yield from _sample(f"llamacpp:{name}", kind, value, "")


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
