"""What gateways and tracing tools log of chats: LiteLLM, Langfuse, and spans of OpenTelemetry.

One function for each format, from a row to an Entry. Names that changed over the years are taken in
their old and new form.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from loadgen.workload.prompt import Message
from loadgen.workload.replay.bodies import Fields, fields_of, headers_of, sampling_of
from loadgen.workload.replay.entry import (
    Entry,
    Reading,
    Row,
    first_of,
    messages_of,
    named,
    unpacked,
    whole,
)
from loadgen.workload.replay.instants import moment
from loadgen.workload.rows import BadRow

_CHATS = ("chat", "text_completion", "generate_content", "completion")
_LITELLM_CALLS = (None, "", "completion", "acompletion", "text_completion", "atext_completion")
_REDACTED = "redacted-by-litellm"  # stands for every text where LiteLLM was told to log none


def litellm_chats(row: Row) -> Iterator[Row]:
    """Keep chats and completions; embeddings, images and speech are other requests."""
    if row.get("call_type") in _LITELLM_CALLS:
        yield row


def litellm(row: Row, reading: Reading) -> Entry:
    """Read a StandardLoggingPayload: times are epoch seconds, ``model_parameters`` the body."""
    return _litellm(row, reading, sampling_of(row.get("model_parameters")))


def litellm_spend(row: Row, reading: Reading) -> Entry:
    """Read a row of LiteLLM_SpendLogs: ISO times; text only where the proxy stores prompts."""
    request = unpacked(row.get("proxy_server_request"))
    body = request.get("body", request) if isinstance(request, Mapping) else {}
    sent = unpacked(body)
    if not isinstance(sent, Mapping):
        sent = {}
    noted = sampling_of(sent)
    messages = unpacked(row.get("messages")) or sent.get("messages")
    return _litellm({**row, "messages": messages}, reading, noted)


def langfuse_generations(row: Row) -> Iterator[Row]:
    """Keep generations; spans and events are no requests."""
    if str(row.get("type", "GENERATION")).upper() == "GENERATION":
        yield row


def langfuse(row: Row, reading: Reading) -> Entry:
    """Read an observation, of the blob export or of the API; ``input`` may be JSON text."""
    usage = unpacked(first_of(row, ("usage_details", "usageDetails", "usage")))
    counts: Row = usage if isinstance(usage, Mapping) else {}
    unit = reading.unit or "auto"
    end = moment(first_of(row, ("end_time", "endTime")), unit)
    noted = sampling_of(first_of(row, ("model_parameters", "modelParameters")))
    messages, text, tools = _langfuse_input(row.get("input"))
    counted = whole(first_of(counts, ("input", "promptTokens", "prompt_tokens")), "input tokens")
    _something_said(messages, text, counted)
    output = first_of(counts, ("output", "completionTokens", "completion_tokens"))
    return Entry(
        arrival=moment(first_of(row, ("start_time", "startTime")), unit),
        end_ns=None if end is None else end.ns,
        session=named(first_of(row, ("session_id", "sessionId"))),
        messages=messages,
        text=text,
        input_tokens=counted,
        output_tokens=whole(output, "output tokens"),
        model=named(first_of(row, ("provided_model_name", "providedModelName", "model"))),
        params={**tools, **noted.params},
        max_output=noted.max_output,
        overridden=noted.overridden,
        headers=headers_of(row),
        failed=str(row.get("level")).upper() == "ERROR",
    )


def spans_of(row: Row) -> Iterator[Row]:
    """Find the generations among the spans of one line, attributes as one plain mapping.

    Takes OTLP-JSON (``resourceSpans``), and the flat ``{trace_id, spans}`` of some exporters.
    """
    flat: list[Any] = row.get("spans", []) if isinstance(row.get("spans"), list) else []
    for resource in _list(row, "resourceSpans"):
        for scope in _list(resource, "scopeSpans"):
            flat += _list(scope, "spans")
    for span in flat:
        if not isinstance(span, Mapping):
            raise BadRow("has a span that is not a mapping")
        told = _attributes(span.get("attributes"))
        operation = told.get("gen_ai.operation.name")
        names_model = "gen_ai.request.model" in told
        if operation in _CHATS or (operation is None and names_model):
            yield {"span": span, "told": told}


def otel(row: Row, reading: Reading) -> Entry:
    """Read one span that ``spans_of`` found: nanoseconds since the epoch, ``gen_ai.`` attributes.

    Messages are there only where their capture was switched on.
    """
    span, told = row["span"], row["told"]
    unit = reading.unit or "auto"
    start = first_of(span, ("startTimeUnixNano", "start_time"))
    end = moment(first_of(span, ("endTimeUnixNano", "end_time")), unit)
    messages = _otel_messages(told)
    counted = whole(_usage(told, "input_tokens", "prompt_tokens"), "input tokens")
    _something_said(messages, None, counted)
    prefix = "gen_ai.request."
    asked = {key[len(prefix) :]: value for key, value in told.items() if key.startswith(prefix)}
    names = {"stop_sequences": "stop", "choice.count": "n"}
    noted = sampling_of({names.get(key, key): value for key, value in asked.items()})
    tools = unpacked(told.get("gen_ai.tool.definitions"))
    return Entry(
        arrival=moment(start, unit),
        end_ns=None if end is None else end.ns,
        session=named(told.get("gen_ai.conversation.id")),
        messages=messages,
        input_tokens=counted,
        output_tokens=whole(_usage(told, "output_tokens", "completion_tokens"), "output tokens"),
        model=named(told.get("gen_ai.request.model")),
        params={**({"tools": tools} if isinstance(tools, list) else {}), **noted.params},
        max_output=noted.max_output,
        overridden=noted.overridden,
        headers=tuple(key for key in told if key.startswith("http.request.header.")),
        failed="error.type" in told,
    )


def _litellm(row: Row, reading: Reading, noted: Fields) -> Entry:
    unit = reading.unit or "auto"
    end = moment(row.get("endTime"), unit)
    said = unpacked(row.get("messages"))
    text = said if isinstance(said, str) and said and said != _REDACTED else None
    messages = None if isinstance(said, str) else messages_of(said)
    if messages and all(one.get("content") == _REDACTED for one in messages):
        messages = None
    counted = whole(row.get("prompt_tokens"), "prompt_tokens")
    _something_said(messages, text, counted)
    stream = row.get("stream")
    unstreamed = ("stream",) if stream in (False, "false") else ()
    return Entry(
        arrival=moment(row.get("startTime"), unit),
        end_ns=None if end is None else end.ns,
        session=named(row.get("session_id")),
        messages=messages,
        text=text,
        input_tokens=counted,
        output_tokens=whole(row.get("completion_tokens"), "completion_tokens"),
        model=named(first_of(row, ("model_group", "model"))),
        params=noted.params,
        max_output=noted.max_output,
        overridden=tuple(dict.fromkeys((*noted.overridden, *unstreamed))),
        headers=headers_of(row),
        failed=str(row.get("status")) == "failure",
    )


def _langfuse_input(value: object) -> tuple[list[Message] | None, str | None, dict[str, Any]]:
    """Return messages or a text, and the tools where the input was a whole body."""
    said = unpacked(value)
    if isinstance(said, Mapping):
        fields = fields_of(said)
        tools = {"tools": fields.params["tools"]} if "tools" in fields.params else {}
        return messages_of(said.get("messages")), None, tools
    if isinstance(said, str):
        return None, said or None, {}
    return messages_of(said), None, {}


def _something_said(messages: object, text: str | None, counted: int | None) -> None:
    if messages is None and text is None and not counted:
        raise BadRow("has neither messages nor a number of input tokens")


def _list(outer: object, key: str) -> list[Any]:
    inner = outer.get(key) if isinstance(outer, Mapping) else None
    return inner if isinstance(inner, list) else []


def _attributes(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if not isinstance(value, list):
        return {}
    pairs = [one for one in value if isinstance(one, Mapping)]
    return {str(one.get("key")): _plain(one.get("value")) for one in pairs}


def _plain(value: object) -> Any:  # noqa: ANN401 - any value of an attribute
    """Unwrap OTLP's typed value; whole numbers come as text there."""
    if not isinstance(value, Mapping):
        return value
    for kind, inner in value.items():
        match kind:
            case "intValue":
                return int(inner) if str(inner).lstrip("-").isdecimal() else None
            case "arrayValue":
                return [_plain(one) for one in _list(inner, "values")]
            case "kvlistValue":
                return _attributes(_list(inner, "values"))
        return inner
    return None


def _usage(told: Row, new: str, old: str) -> object:
    return first_of(told, (f"gen_ai.usage.{new}", f"gen_ai.usage.{old}"))


def _otel_messages(told: Row) -> list[Message] | None:
    said = unpacked(first_of(told, ("gen_ai.input.messages", "gen_ai.prompt")))
    if not isinstance(said, list):
        return None
    messages: list[Message] = []
    system = unpacked(told.get("gen_ai.system_instructions"))
    if isinstance(system, list):
        messages.append({"role": "system", "content": _text_in(system)})
    for one in said:
        if not isinstance(one, Mapping) or not isinstance(one.get("role"), str):
            raise BadRow("has a message without a role")
        messages += _from_parts(dict(one))
    return messages or None


def _from_parts(message: dict[str, Any]) -> list[Message]:
    """Turn one message of parts into messages with content; others stay as they are."""
    parts = message.get("parts")
    if not isinstance(parts, list):
        return [message]
    known = [part for part in parts if isinstance(part, Mapping)]
    answers = [part for part in known if part.get("type") == "tool_call_response"]
    if answers:
        return [_tool_answer(part) for part in answers]
    made: Message = {"role": message["role"], "content": _text_in(known)}
    if calls := [_tool_call(part) for part in known if part.get("type") == "tool_call"]:
        made["tool_calls"] = calls
    return [made]


def _text_in(parts: list[Any]) -> str:
    texts = [part.get("content") for part in parts if isinstance(part, Mapping)]
    return "".join(text for text in texts if isinstance(text, str))


def _tool_call(part: Row) -> dict[str, Any]:
    function = {"name": part.get("name"), "arguments": _as_text(part.get("arguments"))}
    return {"id": part.get("id"), "type": "function", "function": function}


def _tool_answer(part: Row) -> Message:
    said = first_of(part, ("response", "result"))
    return {"role": "tool", "tool_call_id": part.get("id"), "content": _as_text(said)}


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
