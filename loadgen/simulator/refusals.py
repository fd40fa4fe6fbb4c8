"""Error bodies, as each dialect shapes and words them. Pure."""

from typing import Any

import orjson

from loadgen.simulator.ask import Refused
from loadgen.simulator.dialects import Dialect

_JSON = "application/json"
_TYPES = {
    401: "AuthenticationError",
    404: "NotFoundError",
    413: "RequestTooLarge",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
_INJECTED = {
    429: "Rate limit reached, simulated. Please retry after 1 second.",
    500: "Internal server error, simulated.",
    503: "The server is overloaded, simulated.",
}


def injected(status: int) -> Refused:
    """Return a refusal the simulator was told to give."""
    return Refused("injected", _INJECTED[status], status=status)


def refusal_body(refused: Refused, dialect: Dialect) -> tuple[int, str, bytes]:
    """Return status, content type and body of an error answer."""
    match dialect.name, refused.kind:
        case "vllm" | "sglang" | "trtllm", "unauthorized":
            return 401, _JSON, b'{"error":"Unauthorized"}'
        case "vllm" | "sglang" | "trtllm" | "transformers" | "azure", "not_found":
            return 404, _JSON, b'{"detail":"Not Found"}'
        case "vllm" | "sglang" | "trtllm" | "transformers" | "azure", "wrong_method":
            return 405, _JSON, b'{"detail":"Method Not Allowed"}'
        case "transformers", "missing" | "empty_messages" | "wrong_type" | "wrong_value":
            return 500, "text/plain; charset=utf-8", b"Internal Server Error"
        case "transformers", _:
            status = {"malformed": 422, "unknown_model": 400}.get(refused.kind, refused.status)
            return status, _JSON, orjson.dumps({"detail": _message(refused, dialect)})
        case "llamacpp", "wrong_method":
            return _shaped(Refused("not_found", "File Not Found", status=404), dialect)
    return _shaped(refused, dialect)


def stream_error(dialect: Dialect) -> bytes | None:
    """Return the event for an error after the stream began; None where the stream just breaks."""
    text = "The engine died while generating, simulated."
    if dialect.name == "trtllm":
        return None
    if dialect.name == "transformers":
        return b'data: {"error": "%s"}\n\n' % text.encode()
    body = _shaped(Refused("injected", text, status=500), dialect)[2]
    if dialect.name == "sglang":
        body = b'{"error":%s}' % body
    return b"data: %s\n\n" % body


def refused_in_stream(refused: Refused) -> bytes | None:
    """Return the event of a refusal that comes after a 200; None where it is a status."""
    if refused.kind != "negative_max":
        return None
    text = f"`max_new_tokens` must be greater than 0, but is {refused.facts['value']}."
    return b"data: %s\n\n" % orjson.dumps({"error": text})


def _shaped(refused: Refused, dialect: Dialect) -> tuple[int, str, bytes]:
    message, status = _message(refused, dialect), refused.status
    kind = _TYPES.get(status, "BadRequestError")
    if refused.kind in ("malformed", "missing", "wrong_type"):
        kind = "Bad Request"
    field = refused.facts.get("field")
    error: dict[str, Any]
    match dialect.name:
        case "sglang" | "trtllm":
            error = {"object": "error", "message": message, "type": kind}
            return status, _JSON, orjson.dumps(error | {"param": None, "code": status})
        case "llamacpp":
            error = {"code": status, "message": message, "type": _llamacpp_type(refused)}
            if refused.kind == "prompt_too_long":
                prompt, context = refused.facts["prompt"], refused.facts["context"]
                error |= {"n_prompt_tokens": prompt, "n_ctx": context}
            return status, _JSON + "; charset=utf-8", orjson.dumps({"error": error})
        case "azure":
            error = {"message": message, "type": "invalid_request_error"}
            error |= {"param": field, "code": _azure_code(refused)}
            return status, _JSON, orjson.dumps({"error": error})
        case _:
            error = {"message": message, "type": kind, "param": field, "code": status}
            return status, _JSON, orjson.dumps({"error": error})


def _llamacpp_type(refused: Refused) -> str:
    if refused.kind == "prompt_too_long":
        return "exceed_context_size_error"
    named = {401: "authentication_error", 404: "not_found_error", 503: "unavailable_error"}
    otherwise = "server_error" if refused.status >= 500 else "invalid_request_error"
    return named.get(refused.status, otherwise)


def _azure_code(refused: Refused) -> str | None:
    if refused.kind in ("prompt_too_long", "max_too_large", "total_too_long"):
        return "context_length_exceeded"
    if refused.kind == "unknown_model":
        return "DeploymentNotFound"
    return str(refused.status) if refused.status in (401, 429, 500, 503) else None


def _message(refused: Refused, dialect: Dialect) -> str:
    facts = refused.facts
    match refused.kind:
        case "unknown_model" if dialect.name == "azure":
            return "The API deployment for this resource does not exist."
        case "unknown_model" if dialect.name == "transformers":
            return f"Server is pinned to '{facts['served']}'; requested '{facts['asked']}'."
        case "unknown_model":
            return f"The model `{facts['asked']}` does not exist. Valid aliases: {facts['served']}."
        case "unknown_fields" if dialect.name == "trtllm":
            lines = [f"body.{name}: Extra inputs are not permitted" for name in facts["names"]]
            return f"{len(lines)} validation errors: " + "; ".join(lines)
        case "unknown_fields":
            names = "{" + ", ".join(repr(name) for name in facts["names"]) + "}"
            return f"Unexpected fields in the request: {names}"
        case "prompt_too_long" | "max_too_large" | "total_too_long":
            return _context_message(refused, dialect)
        case "negative_max":
            return f"{facts['field']} must be at least 1, got {facts['value']}."
        case "empty_messages":
            return "Messages cannot be empty."
        case "missing" | "wrong_type":
            return f"1 validation error: body.{facts['field']}: {refused.message}"
    return refused.message or refused.kind


def _context_message(refused: Refused, dialect: Dialect) -> str:
    facts = refused.facts
    prompt, context, maximum = facts["prompt"], facts["context"], facts["maximum"]
    if dialect.name == "llamacpp":
        return f"request ({prompt} tokens) exceeds the available context size ({context} tokens)"
    if refused.kind == "prompt_too_long" and dialect.name == "sglang":
        return (
            f"The input ({prompt} tokens) is longer than the model's context length "
            f"({context} tokens)."
        )
    if refused.kind == "max_too_large" and dialect.name == "vllm":
        return f"max_tokens={maximum} cannot be greater than max_model_len={context}."
    return (
        f"This model's maximum context length is {context} tokens. However, {prompt} tokens of "
        f"input and {maximum or 1} of output were asked for."
    )
