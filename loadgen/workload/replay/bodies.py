"""Request bodies as they were logged: what of them is sent again, and what never is.

Always ours: the model (unless it is kept), that the answer streams, and one choice. Never sent:
headers, keys and addresses, whatever the log holds of them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from loadgen.workload.replay.entry import Row, messages_of, unpacked, whole
from loadgen.workload.rows import BadRow

LIMITS = ("max_tokens", "max_completion_tokens")

_CONTENT = frozenset({"messages", "prompt", "model", "stream", "stream_options", "n", "min_tokens"})
_PRIVATE = frozenset(
    {"api_key", "api_base", "base_url", "api_version", "headers", "extra_headers",
     "default_headers", "organization", "extra_query", "user", "metadata", "proxy_server_request",
     "litellm_params", "litellm_metadata", "litellm_call_id", "litellm_trace_id", "timeout"}
)  # fmt: skip
SAMPLING = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "top_a", "typical_p", "frequency_penalty",
     "presence_penalty", "repetition_penalty", "length_penalty", "stop", "stop_token_ids", "seed",
     "logprobs", "top_logprobs", "logit_bias", "response_format", "tools", "tool_choice",
     "parallel_tool_calls", "functions", "function_call", "reasoning_effort", "ignore_eos",
     "chat_template_kwargs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
     "structured_outputs", *LIMITS}
)  # fmt: skip
"""What a tracing tool's parameters may hold of a body; all else there is its own bookkeeping."""


_TEXTS = frozenset({"stop", "reasoning_effort", "guided_regex", "guided_grammar"})
"""Parameters that are text themselves, though it may look like a number."""


class Fields(NamedTuple):
    """The further fields of a body: those that are sent, the limit, and those that are not."""

    params: dict[str, Any]
    max_output: int | None
    overridden: tuple[str, ...]


def fields_of(body: Row) -> Fields:
    """Sort the fields of a whole logged body, messages and prompt apart."""
    params = {
        key: value
        for key, value in body.items()
        if key not in _CONTENT and key not in _PRIVATE and key not in LIMITS and value is not None
    }
    return Fields(params, _limit(body), _overridden(body))


def sampling_of(value: object) -> Fields:
    """Sort the parameters that a tracing tool noted; they may be JSON text, also one by one."""
    noted = _loaded(value)
    if not isinstance(noted, Mapping):
        return Fields({}, None, ())
    known = {
        key: unpacked(noted[key]) if key in _TEXTS else _loaded(noted[key])
        for key in noted
        if key in SAMPLING
    }
    asked = {key: _loaded(noted[key]) for key in ("stream", "n") if key in noted}
    return fields_of({**known, **asked})


def headers_of(row: Row) -> tuple[str, ...]:
    """Name the headers that a row holds, wherever gateways put them; their values are left."""
    places: list[object] = [row]
    for name in ("body", "request", "metadata", "proxy_server_request", "request_metadata"):
        inner = row.get(name)
        places.append(_loaded(inner) if name != "body" else inner)
    found = [
        str(header).lower()
        for place in places
        if isinstance(place, Mapping)
        for name in ("headers", "request_headers", "requester_custom_headers", "extra_headers")
        if isinstance(headers := _loaded(place.get(name)), Mapping)
        for header in headers
    ]
    return tuple(found)


def said_in(body: Row) -> dict[str, Any]:
    """Read what a body says: the keywords ``messages`` or ``text`` of an Entry."""
    if body.get("messages"):
        return {"messages": messages_of(body["messages"])}
    text = body.get("prompt")
    if isinstance(text, str) and text:
        return {"text": text}
    raise BadRow("has a body without messages or a text as prompt")


def _limit(body: Row) -> int | None:
    found = next((body[key] for key in LIMITS if body.get(key) not in (None, "")), None)
    return whole(found, "an output limit") or None


def _overridden(body: Row) -> tuple[str, ...]:
    """Name what the log asked for in another way than we do."""
    found = []
    if "stream" in body and body["stream"] is not True:
        found.append("stream")
    if body.get("n") not in (None, 1):
        found.append("n")
    return tuple(found)


def _loaded(value: object) -> object:
    """Return what JSON text says, single numbers too; any other value as it is."""
    if not isinstance(value, str):
        return value
    try:
        inner: object = orjson.loads(value)
        return inner
    except orjson.JSONDecodeError:
        return value
