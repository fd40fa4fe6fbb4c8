"""Facts about inference engines, as data: dialect, metrics, health, recognition.

Sources: the captured answers in tests/wire (llama.cpp b11434, vLLM 0.32, transformers 5.24,
SGLang 0.5.23); TensorRT-LLM's and OpenAI's published request models for those that cannot run
without a GPU or an account. An engine is recognised only by what it says of itself; where two
signs disagree (a gateway before it) or none is known, it is ``unknown``, whose dialect every
server of the interface takes.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import orjson

from loadgen.errors import UsageError

Feature = Literal["include_usage", "continuous_usage", "ignore_eos", "min_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A path beside /v1 and what it speaks."""

    path: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Where an engine's metrics page says one thing.

    Several series of a name (ranks, replicas, reasons) add up; of a share (kv_usage) their mean.

    names: of the page, newest first: the first that the page has stands; of a histogram the name
        without _bucket, _sum and _count.
    plus: further names, added to it where the page has them.
    scale: what a value is multiplied by for the unit of its key (tokens, seconds, a share of 1).
    per_step: a histogram observed once per step of the engine, however many tokens it made.
    """

    names: tuple[str, ...]
    kind: Literal["gauge", "counter", "histogram"]
    plus: tuple[str, ...] = ()
    scale: float = 1.0
    per_step: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What an engine says of itself; any one suffices, none may point elsewhere.

    server: start of the Server header. owned_by: ``data[].owned_by`` of /v1/models.
    metrics: start of its metric names.
    """

    server: tuple[str, ...] = ()
    owned_by: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine's dialect.

    accepts: request features it is known to take; none other is sent unasked.
    rejects_unknown_fields: an unknown request field is an error (4xx), not ignored.
    sends_done: a stream ends with [DONE]; without, the finish reason is the end.
    generating_health: its health path runs a generation: never poll it during a measurement.
    usage_per_choice: with several choices, each sends a usage of its own; they add up.
    chat_limit: the field that limits output tokens of a chat.
    thread_per_connection: each open connection holds a thread, an idle one for seconds:
        connections made ahead would starve those that carry a request.
    metrics: its metrics page.
    drained: a page that is asked only where the user names it: reading it takes away what is read,
        and holds the server up.
    signals: what of its page is kept, by our word for it (``SIGNALS``).
    without_metrics: why the page is not there, where it is not.
    without_figures: what to look at where the page is there, with none of its own metrics.
    """

    name: str
    label: str
    accepts: frozenset[Feature] = frozenset({"include_usage"})
    chat_limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    rejects_unknown_fields: bool = False
    sends_done: bool = True
    generating_health: bool = False
    health_path: str | None = None
    version_path: str | None = None
    metrics: Endpoint | None = None
    drained: Endpoint | None = None
    signals: Mapping[str, Signal] = field(default_factory=dict)
    without_metrics: str | None = None
    without_figures: str | None = None
    tokenize: Endpoint | None = None
    usage_per_choice: bool = False
    thread_per_connection: bool = False
    signs: Signs = field(default_factory=Signs)

    def token_limit_field(self, endpoint: Literal["chat", "completions"]) -> str:
        """Return the output limit's field name; /v1/completions has only ever had max_tokens."""
        return self.chat_limit if endpoint == "chat" else "max_tokens"


CLEARS_ON_READ = frozenset({"trtllm_json"})
"""Kinds of metrics pages whose reading takes away what is read: from others, too."""

STARTED = "process_start_time_seconds"
"""Kept of every page that has it: where it falls, another server answers than before."""

SIGNALS = (
    "running", "waiting", "kv_usage", "preemptions", "requests_done",
    "prompt_tokens", "generation_tokens", "cached_tokens", "prefix_queries", "prefix_hits",
    "spec_drafted", "spec_accepted", "spec_length", "spec_rate",
    "ttft", "itl", "tpot", "queue_time", "prefill_time", "decode_time", "e2e",
)  # fmt: skip
"""Our words for what engines say: requests, a share of 1, counts, tokens; histograms in seconds.

spec_rate: the share of drafted tokens that were accepted, spec_length: tokens per step of the
target model, 0 without a draft; of an engine that counts neither drafted nor accepted ones.
"""


def _gauge(*names: str) -> Signal:
    return Signal(names=names, kind="gauge")


def _counter(*names: str, plus: tuple[str, ...] = ()) -> Signal:
    return Signal(names=names, kind="counter", plus=plus)


def _histogram(*names: str, per_step: bool = False) -> Signal:
    return Signal(names=names, kind="histogram", per_step=per_step)


# A captured page of 0.32; the older names from the 0.6 to 0.11 pages, where the histogram of
# time_per_output_token held the gaps between tokens. One gap is noted for each output of the
# engine (vllm/v1/metrics/stats.py), which holds several tokens where drafted ones were accepted.
_VLLM_SIGNALS = {
    "running": _gauge("vllm:num_requests_running"),
    "waiting": _gauge("vllm:num_requests_waiting"),
    "kv_usage": _gauge("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "preemptions": _counter("vllm:num_preemptions_total"),
    "requests_done": _counter("vllm:request_success_total"),
    "prompt_tokens": _counter("vllm:prompt_tokens_total"),
    "generation_tokens": _counter("vllm:generation_tokens_total"),
    "cached_tokens": _counter("vllm:prompt_tokens_cached_total"),
    "prefix_queries": _counter(
        "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"
    ),
    "prefix_hits": _counter("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "spec_drafted": _counter("vllm:spec_decode_num_draft_tokens_total"),
    "spec_accepted": _counter("vllm:spec_decode_num_accepted_tokens_total"),
    "ttft": _histogram("vllm:time_to_first_token_seconds"),
    "itl": _histogram(
        "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds", per_step=True
    ),
    "tpot": _histogram("vllm:request_time_per_output_token_seconds"),
    "queue_time": _histogram("vllm:request_queue_time_seconds"),
    "prefill_time": _histogram("vllm:request_prefill_time_seconds"),
    "decode_time": _histogram("vllm:request_decode_time_seconds"),
    "e2e": _histogram("vllm:e2e_request_latency_seconds"),
}

# A captured page of 0.5.23, and what its source names beside. prompt_tokens counts cached ones,
# too: its uncached histogram and cached_tokens add up to it. Of its drafts it tells gauges alone; a
# gap that brought several tokens is noted for each of them, divided by their number.
_SGLANG_SIGNALS = {
    "running": _gauge("sglang:num_running_reqs"),
    "waiting": _gauge("sglang:num_queue_reqs"),
    "kv_usage": _gauge("sglang:token_usage"),
    "preemptions": _counter("sglang:num_retracted_requests_total"),  # there from the first one on
    "requests_done": _counter("sglang:num_requests_total"),
    "prompt_tokens": _counter("sglang:prompt_tokens_total"),
    "generation_tokens": _counter("sglang:generation_tokens_total"),
    "cached_tokens": _counter("sglang:cached_tokens_total"),
    "prefix_queries": _counter("sglang:prompt_tokens_total"),
    "prefix_hits": _counter("sglang:cached_tokens_total"),
    "spec_length": _gauge("sglang:spec_accept_length"),
    "spec_rate": _gauge("sglang:spec_accept_rate"),
    "ttft": _histogram("sglang:time_to_first_token_seconds"),
    "itl": _histogram("sglang:inter_token_latency_seconds"),
    "tpot": _histogram(
        "sglang:request_time_per_output_token_seconds", "sglang:time_per_output_token_seconds"
    ),
    "queue_time": _histogram("sglang:queue_time_seconds"),
    "e2e": _histogram("sglang:e2e_request_latency_seconds"),
}

# A captured page of b11434, whose prompt_tokens leave cached ones out; the ratio of older builds.
_LLAMACPP_SIGNALS = {
    "running": _gauge("llamacpp:requests_processing"),
    "waiting": _gauge("llamacpp:requests_deferred"),
    "kv_usage": _gauge("llamacpp:kv_cache_usage_ratio"),
    "prompt_tokens": _counter(
        "llamacpp:prompt_tokens_total", plus=("llamacpp:prompt_tokens_cached_total",)
    ),
    "generation_tokens": _counter("llamacpp:tokens_predicted_total"),
    "cached_tokens": _counter("llamacpp:prompt_tokens_cached_total"),
    "prefix_queries": _counter(
        "llamacpp:prompt_tokens_total", plus=("llamacpp:prompt_tokens_cached_total",)
    ),
    "prefix_hits": _counter("llamacpp:prompt_tokens_cached_total"),
    "spec_drafted": _counter("llamacpp:spec_decode_num_draft_tokens_total"),
    "spec_accepted": _counter("llamacpp:spec_decode_num_accepted_tokens_total"),
}

# Prometheus names (trtllm_*): tensorrt_llm/metrics/collector.py of its repository (2026), and the
# two gauges under their earlier names. JSON fields (trtllm:*): IterationStats, KvCacheStats and
# SpecDecodingStats of executor/types.h, as its documentation lists them; blocks that were reused
# and missed count up, so their share is that of prefix hits. Counts per iteration are added up as
# they are read.
_TRTLLM_SIGNALS = {
    "running": _gauge(
        "trtllm_num_requests_running", "trtllm_num_active_requests", "trtllm:numActiveRequests"
    ),
    "waiting": _gauge(
        "trtllm_num_requests_waiting", "trtllm_server_queue_length", "trtllm:numQueuedRequests"
    ),
    "kv_usage": _gauge(
        "trtllm_kv_cache_utilization", "trtllm:kvCacheStats.usedNumBlocks/maxNumBlocks"
    ),
    "requests_done": _counter(
        "trtllm_request_success_total",
        "trtllm_num_requests_completed_total",
        "trtllm:numCompletedRequests",
    ),
    "prompt_tokens": _counter("trtllm_prompt_tokens_total"),
    "generation_tokens": _counter("trtllm_generation_tokens_total"),
    "cached_tokens": _counter("trtllm_prompt_cached_tokens_total"),
    "prefix_queries": _counter(
        "trtllm_prompt_tokens_total",
        "trtllm:kvCacheStats.reusedBlocks",
        plus=("trtllm:kvCacheStats.missedBlocks",),
    ),
    "prefix_hits": _counter(
        "trtllm_prompt_cached_tokens_total", "trtllm:kvCacheStats.reusedBlocks"
    ),
    "spec_drafted": _counter(
        "trtllm_spec_decode_num_draft_tokens_total",
        "trtllm_spec_decode_drafted_tokens_total",
        "trtllm:specDecodingStats.numDraftTokens",
    ),
    "spec_accepted": _counter(
        "trtllm_spec_decode_num_accepted_tokens_total",
        "trtllm_spec_decode_accepted_tokens_total",
        "trtllm:specDecodingStats.numAcceptedTokens",
    ),
    "ttft": _histogram("trtllm_time_to_first_token_seconds"),
    "tpot": _histogram("trtllm_time_per_output_token_seconds"),
    "queue_time": _histogram("trtllm_request_queue_time_seconds"),
    "prefill_time": _histogram("trtllm_request_prefill_time_seconds"),
    "decode_time": _histogram("trtllm_request_decode_time_seconds"),
    "e2e": _histogram("trtllm_e2e_request_latency_seconds"),
}

_FULL: frozenset[Feature] = frozenset(
    {"include_usage", "continuous_usage", "ignore_eos", "min_tokens"}
)

_TRTLLM_OPTIONS = (
    "start it with return_perf_metrics: true and enable_iter_perf_stats: true among its options"
)

VLLM = Engine(
    name="vllm",
    label="vLLM",
    accepts=_FULL,
    health_path="/health",
    version_path="/version",
    metrics=Endpoint(path="/metrics", kind="prometheus"),
    signals=_VLLM_SIGNALS,
    without_figures="was it started with --disable-log-stats?",
    tokenize=Endpoint(path="/tokenize", kind="vllm"),
    signs=Signs(owned_by=("vllm",), metrics=("vllm:",)),
)

TRTLLM = Engine(
    name="trtllm",
    label="TensorRT-LLM",
    accepts=_FULL,
    rejects_unknown_fields=True,
    health_path="/health",  # /health_generate is the one that generates
    version_path="/version",
    # Prometheus is there with return_perf_metrics; its requests running and waiting and its KV
    # cache come with enable_iter_perf_stats. The JSON page is drained by each read, and answers
    # once it has waited 2 s for one more iteration, in which its event loop may stand still.
    metrics=Endpoint(path="/prometheus/metrics", kind="prometheus"),
    drained=Endpoint(path="/metrics", kind="trtllm_json"),
    signals=_TRTLLM_SIGNALS,
    without_metrics=f"TensorRT-LLM has no /prometheus/metrics; {_TRTLLM_OPTIONS}; its JSON "
    "/metrics is read only where telemetry.server names it: each read takes it 2 s",
    without_figures=_TRTLLM_OPTIONS,
    signs=Signs(owned_by=("tensorrt_llm",), metrics=("trtllm_",)),
)

SGLANG = Engine(
    name="sglang",
    label="SGLang",
    accepts=_FULL,
    generating_health=True,
    health_path="/health",
    metrics=Endpoint(path="/metrics", kind="prometheus"),
    signals=_SGLANG_SIGNALS,
    without_metrics="SGLang was started without --enable-metrics",
    tokenize=Endpoint(path="/tokenize", kind="vllm"),
    signs=Signs(owned_by=("sglang",), metrics=("sglang:",)),
)

LLAMACPP = Engine(
    name="llamacpp",
    label="llama.cpp",
    accepts=frozenset({"include_usage", "ignore_eos"}),
    health_path="/health",
    metrics=Endpoint(path="/metrics", kind="prometheus"),
    signals=_LLAMACPP_SIGNALS,
    without_metrics="llama-server was started without --metrics",
    tokenize=Endpoint(path="/tokenize", kind="llamacpp"),
    usage_per_choice=True,
    thread_per_connection=True,
    signs=Signs(server=("llama.cpp",), owned_by=("llamacpp",), metrics=("llamacpp:",)),
)

TRANSFORMERS = Engine(
    name="transformers",
    label="transformers serve",
    rejects_unknown_fields=True,  # stream_options is known to it, and ignored: usage always comes
    sends_done=False,
    health_path="/health",
)

AZURE = Engine(name="azure", label="Azure OpenAI", chat_limit="max_completion_tokens",
               rejects_unknown_fields=True)  # fmt: skip

OPENAI = Engine(
    name="openai",
    label="OpenAI",
    chat_limit="max_completion_tokens",
    rejects_unknown_fields=True,
    signs=Signs(owned_by=("openai", "openai-internal", "system")),
)

UNKNOWN = Engine(name="unknown", label="unknown engine")

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (VLLM, TRTLLM, SGLANG, LLAMACPP, TRANSFORMERS, AZURE, OPENAI, UNKNOWN)
}

_ALIASES = {
    "llama.cpp": "llamacpp",
    "llama-cpp": "llamacpp",
    "llama-server": "llamacpp",
    "tensorrt-llm": "trtllm",
    "trt-llm": "trtllm",
    "tensorrt_llm": "trtllm",
    "hf": "transformers",
}


def by_name(name: str) -> Engine:
    """Return the engine that ``--engine`` names; raise UsageError with the nearest name."""
    key = name.strip().lower()
    key = _ALIASES.get(key, key)
    if key in ENGINES:
        return ENGINES[key]
    near = difflib.get_close_matches(key, [*ENGINES, *_ALIASES], n=1)
    meant = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(ENGINES)}"
    raise UsageError(f"engine: '{name}' is not known; {meant}")


def recognise(
    *,
    server_header: str | None = None,
    version_body: bytes | None = None,
    models_body: bytes | None = None,
    metrics_head: bytes | None = None,
) -> Engine:
    """Return the engine that all signs name, or ``UNKNOWN`` where they are none or disagree."""
    found = {
        engine.name
        for engine in ENGINES.values()
        for sign in (
            _starts(server_header, engine.signs.server),
            _owns(models_body, engine.signs.owned_by),
            _measures(metrics_head, engine.signs.metrics),
        )
        if sign
    }
    if not found and version_body is None and _is_transformers(models_body):
        found = {"transformers"}
    return ENGINES[found.pop()] if len(found) == 1 else UNKNOWN


def engine_version(version_body: bytes | None) -> str | None:
    """Return the version of a /version body; None where there is none."""
    version = _json_object(version_body).get("version")
    return version if isinstance(version, str) else None


def model_names(models_body: bytes | None) -> list[str]:
    """Return the model ids that a /v1/models body lists."""
    names = [model.get("id") for model in _models(models_body)]
    return [name for name in names if isinstance(name, str)]


def _starts(header: str | None, starts: tuple[str, ...]) -> bool:
    return bool(starts) and (header or "").strip().lower().startswith(starts)


def _owns(models_body: bytes | None, owners: tuple[str, ...]) -> bool:
    return any(model.get("owned_by") in owners for model in _models(models_body))


def _measures(metrics_head: bytes | None, starts: tuple[str, ...]) -> bool:
    """Look for a metric of the engine's own; each page begins with those of the runtime."""
    lines = (metrics_head or b"").decode("utf-8", "replace").splitlines()
    names = [line.removeprefix("# HELP ").removeprefix("# TYPE ") for line in lines]
    return bool(starts) and any(name.startswith(starts) for name in names)


def _is_transformers(models_body: bytes | None) -> bool:
    """Recognise ``transformers serve``: owner "local" and a load status, as no other lists them."""
    models = _models(models_body)
    return bool(models) and all(
        model.get("owned_by") == "local" and isinstance(model.get("status"), dict)
        for model in models
    )


def _models(models_body: bytes | None) -> list[dict[str, object]]:
    data = _json_object(models_body).get("data")
    return [model for model in data if isinstance(model, dict)] if isinstance(data, list) else []


def _json_object(body: bytes | None) -> dict[str, object]:
    try:
        value = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
