"""Bodies of the look-ups beside generation: models, tokenize, the set-up; ids of answers. Pure.

Whatever dialect it speaks, the simulator says ``simulated`` of itself: its numbers are no engine's.
"""

from typing import Any
from uuid import UUID

import orjson

from loadgen.simulator.ask import Ask, Refused
from loadgen.simulator.dialects import Dialect
from loadgen.simulator.spec import SimulatorSpec
from loadgen.simulator.words import digest


def models_body(spec: SimulatorSpec, dialect: Dialect, *, created: int) -> dict[str, Any]:
    """Return what /v1/models says."""
    model: dict[str, Any] = {"id": spec.model, "object": "model", "created": created}
    model["owned_by"] = dialect.owned_by
    if dialect.name in ("vllm", "sglang"):
        model |= {"root": spec.model, "parent": None, "max_model_len": spec.context_limit}
    if dialect.name == "llamacpp":
        model["meta"] = {"n_ctx": spec.context_limit}
    if dialect.name == "transformers":
        model["status"] = {"value": "loaded"}
    return {"object": "list", "data": [model | {"simulated": True}]}


SETUP_PATHS = {"vllm": "/server_info", "sglang": "/server_info", "llamacpp": "/props"}
"""Where a dialect tells how its engine is set up; the others have no such page."""


def setup_body(spec: SimulatorSpec, dialect: Dialect) -> dict[str, Any]:
    """Return how the engine is set up, as the page of its dialect words it.

    Of types, quantisation and GPUs there are none, so nothing is said of them.
    """
    engine, caches = spec.engine, spec.engine.prefix_cache_tokens > 0
    if dialect.name == "vllm":
        config = {
            "model_config": {"model": spec.model, "max_model_len": spec.context_limit},
            "cache_config": {
                "kv_cache_size_tokens": engine.kv_tokens,
                "enable_prefix_caching": caches,
            },
            "scheduler_config": {"max_num_seqs": engine.max_running},
            "speculative_config": None,
        }
        return {"vllm_config": config, "simulated": True}
    if dialect.name == "llamacpp":
        return {
            "default_generation_settings": {"n_ctx": spec.context_limit},
            "total_slots": engine.max_running,
            "model_path": spec.model,
            "build_info": "simulated",
            "simulated": True,
        }
    return {
        "model_path": spec.model,
        "context_length": spec.context_limit,
        "max_total_num_tokens": engine.kv_tokens,
        "max_running_requests": engine.max_running,
        "disable_radix_cache": not caches,
        "speculative_algorithm": None,
        "version": "simulated",
        "simulated": True,
    }


def tokenize_body(body: bytes, spec: SimulatorSpec, dialect: Dialect) -> dict[str, Any]:
    """Return what /tokenize says: one id for each word, zeros for the template. Raises Refused."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise Refused("malformed", "JSON decode error") from None
    field = "content" if dialect.name == "llamacpp" else "prompt"
    asked = fields if isinstance(fields, dict) else {}
    text, extra = asked.get(field), 0
    if isinstance(asked.get("messages"), list):
        contents = [one.get("content") for one in asked["messages"] if isinstance(one, dict)]
        text = "\n".join(one for one in contents if isinstance(one, str))
        extra = spec.template_tokens
    if not isinstance(text, str):
        raise Refused("missing", "Field required", facts={"field": field})
    tokens = [0] * extra + [digest(word) % 50_000 for word in text.split()]
    if dialect.name == "llamacpp":
        return {"tokens": tokens}
    return {"count": len(tokens), "max_model_len": spec.context_limit, "tokens": tokens}


def identity(style: str, number: int, *, choice: int, ask: Ask) -> str:
    """Return the id of an answer, or of one choice where a dialect gives each its own."""
    prompt = ask.prompts[0].digest
    mixed = (number * 0x9E37_79B9_7F4A_7C15 + choice * 0xC2B2_AE3D) & (2**64 - 1)
    prefix = "chatcmpl" if ask.chat or style == "llamacpp" else "cmpl"
    match style:
        case "number":
            return f"{prefix}-{number}"
        case "hex":
            return f"{mixed:016x}{prompt:016x}"
        case "uuid":
            return str(UUID(int=(mixed << 64) | prompt))
        case _:
            return f"{prefix}-{mixed:016x}"
