"""Bodies of the look-ups beside generation: models, tokenize; and the ids of answers. Pure."""

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
    return {"object": "list", "data": [model]}


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
