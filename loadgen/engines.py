"""Facts about inference engines, as data: dialect, metrics, health, recognition.

Sources: the captured answers in tests/wire (llama.cpp b11434, vLLM 0.32, transformers 5.24,
SGLang 0.5.23); TensorRT-LLM's and OpenAI's published request models for those that cannot run
without a GPU or an account. An engine is recognised only by what it says of itself; where two
signs disagree (a gateway before it) or none is known, it is ``unknown``, whose dialect every
server of the interface takes.
"""

import difflib
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
    tokenize: Endpoint | None = None
    usage_per_choice: bool = False
    thread_per_connection: bool = False
    signs: Signs = field(default_factory=Signs)

    def token_limit_field(self, endpoint: Literal["chat", "completions"]) -> str:
        """Return the output limit's field name; /v1/completions has only ever had max_tokens."""
        return self.chat_limit if endpoint == "chat" else "max_tokens"


_FULL: frozenset[Feature] = frozenset(
    {"include_usage", "continuous_usage", "ignore_eos", "min_tokens"}
)

VLLM = Engine(
    name="vllm",
    label="vLLM",
    accepts=_FULL,
    health_path="/health",
    version_path="/version",
    metrics=Endpoint(path="/metrics", kind="prometheus"),
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
    # JSON iteration statistics, drained by each read; Prometheus is /prometheus/metrics, where on.
    metrics=Endpoint(path="/metrics", kind="trtllm_json"),
    signs=Signs(owned_by=("tensorrt_llm",), metrics=("trtllm_",)),
)

SGLANG = Engine(
    name="sglang",
    label="SGLang",
    accepts=_FULL,
    generating_health=True,
    health_path="/health",
    metrics=Endpoint(path="/metrics", kind="prometheus"),
    tokenize=Endpoint(path="/tokenize", kind="vllm"),
    signs=Signs(owned_by=("sglang",), metrics=("sglang:",)),
)

LLAMACPP = Engine(
    name="llamacpp",
    label="llama.cpp",
    accepts=frozenset({"include_usage", "ignore_eos"}),
    health_path="/health",
    metrics=Endpoint(path="/metrics", kind="prometheus"),  # only with --metrics
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
