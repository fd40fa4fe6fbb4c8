"""Which format a log is in, told by the names in its rows; and the adapter of each.

A generic log is read by its columns: the usual names are known, others are named by the user.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from loadgen.scenario.prompts import Columns
from loadgen.workload.replay import adapters, gateways
from loadgen.workload.replay.bodies import fields_of, headers_of, said_in, sampling_of
from loadgen.workload.replay.entry import (
    Entry,
    Reading,
    Row,
    first_of,
    ids_of,
    mapping,
    messages_of,
    named,
    whole,
)
from loadgen.workload.replay.instants import Unit, moment
from loadgen.workload.rows import BadRow

TIMES = ("timestamp", "time", "ts", "start_time", "startTime", "request_created_at", "created_at",
         "arrived_at", "timestamp_ms", "time_ms", "ts_ms", "timestamp_us",
         "timestamp_ns")  # fmt: skip
_ENDS = ("end_time", "endTime", "end", "ended_at")
_SESSIONS = ("session_id", "sessionId", "conversation_id", "conversation", "session")
_INPUTS = ("input_tokens", "prompt_tokens", "input_length", "prompt_length")
_OUTPUTS = ("output_tokens", "completion_tokens", "output_length", "response_length")
_BODIES = ("body", "request_body", "request", "payload")
_PROMPTS = ("prompt", "text", "text_input")
_MODELS = ("model", "request_model")
_SUFFIXES: Mapping[str, Unit] = {"_ms": "ms", "_us": "us", "_ns": "ns", "_s": "s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format: the adapter of a request, and the requests in a row where these are not one.

    unit: of its times, in words.
    """

    read: Callable[[Row, Reading], Entry]
    parts: Callable[[Row], Iterable[Row]] | None = None
    unit: str = "as written"

    def entries(self, row: object, reading: Reading) -> list[Entry]:
        """Read the requests of one row; raises BadRow."""
        if not isinstance(row, Mapping):
            raise BadRow("is not a mapping of names and values")
        if self.parts is None:
            return [self.read(row, reading)]
        return [self.read(part, reading) for part in self.parts(row)]


def columns(row: Row, reading: Reading) -> Entry:
    """Read a row of any log by the names of its columns."""
    asked = reading.columns
    body = _body_in(row, asked)
    # a row may be a body itself: what is known as a field of one is sent
    beside = {key: value for key, value in row.items() if value not in (None, "")}
    params, limit, overridden = fields_of(body) if body is not None else sampling_of(beside)
    said = said_in(body) if body is not None else _said(row, asked)
    counted = whole(_column(row, asked.input_tokens, _INPUTS), "input tokens")
    if not said and not counted:
        raise BadRow("has neither a prompt nor input tokens")
    unit = reading.unit
    end = moment(_column(row, asked.end, _ENDS), unit or _unit_of(asked.end, row, _ENDS))
    return Entry(
        arrival=moment(_column(row, asked.time, TIMES), unit or _unit_of(asked.time, row, TIMES)),
        end_ns=None if end is None else end.ns,
        session=named(_column(row, asked.session, _SESSIONS)),
        input_tokens=counted,
        output_tokens=whole(_column(row, asked.output_tokens, _OUTPUTS), "output tokens"),
        **said,
        hash_ids=ids_of(_column(row, asked.hash_ids, ("hash_ids",))),
        block_size=whole(row.get("block_size"), "a block_size") or adapters.MOONCAKE_BLOCK,
        model=named((body or {}).get("model") or _column(row, asked.model, _MODELS)),
        params=params,
        max_output=limit,
        overridden=overridden,
        headers=headers_of(row),
    )


FORMATS: Mapping[str, Format] = {
    "mooncake": Format(read=adapters.mooncake, unit="ms"),
    "bailian": Format(read=adapters.bailian, unit="s"),
    "azure": Format(read=adapters.azure, unit="date"),
    "burstgpt": Format(read=adapters.burstgpt, unit="s"),
    "sharegpt": Format(read=adapters.sharegpt, parts=adapters.sharegpt_turns, unit="none"),
    "openai_batch": Format(read=adapters.openai_batch, unit="none"),
    "litellm": Format(read=gateways.litellm, parts=gateways.litellm_chats, unit="date"),
    "litellm_spend": Format(read=gateways.litellm_spend, parts=gateways.litellm_chats, unit="date"),
    "langfuse": Format(read=gateways.langfuse, parts=gateways.langfuse_generations, unit="date"),
    "otel": Format(read=gateways.otel, parts=gateways.spans_of, unit="date"),
    "columns": Format(read=columns, unit="date"),
}

_BY_NAMES: tuple[tuple[str, frozenset[str]], ...] = tuple(
    (name, frozenset(names))
    for name, names in (
        ("bailian", ("chat_id", "timestamp", "input_length", "output_length")),
        ("mooncake", ("timestamp", "input_length", "output_length")),
        ("azure", ("TIMESTAMP", "ContextTokens", "GeneratedTokens")),
        ("burstgpt", ("Timestamp", "Request tokens", "Response tokens")),
        ("otel", ("resourceSpans",)),
        ("otel", ("trace_id", "spans")),
        ("litellm_spend", ("request_id", "spend", "startTime")),
        ("litellm", ("startTime", "call_type")),
        ("litellm", ("startTime", "litellm_call_id")),
        ("langfuse", ("type", "start_time", "usage_details")),
        ("langfuse", ("type", "startTime", "usageDetails")),
        ("langfuse", ("type", "start_time", "provided_model_name")),
        ("openai_batch", ("custom_id", "body")),
        ("openai_batch", ("custom_id", "response")),
    )
)


def format_of(row: object, asked: Columns) -> str:
    """Name the format of a log by one of its rows; columns that the user named make it generic."""
    if not isinstance(row, Mapping):
        raise BadRow("is not a mapping of names and values")
    if asked != Columns():
        return "columns"
    for name, names in _BY_NAMES:
        if names <= row.keys():
            return name
    if isinstance(row.get("conversations", row.get("conversation")), list):
        return "sharegpt"
    return "columns"


def readable(row: Row, asked: Columns) -> bool:
    """Say whether a row of the generic format has a column that says what was asked."""
    usual = (*_INPUTS, *_BODIES, *_PROMPTS, "messages")
    given = (asked.prompt, asked.messages, asked.body, asked.input_tokens)
    return bool(set(usual) & row.keys()) or any(name in row for name in given if name)


def _column(row: Row, name: str | None, usual: tuple[str, ...]) -> object:
    return row.get(name) if name else first_of(row, usual)


def _unit_of(name: str | None, row: Row, usual: tuple[str, ...]) -> Unit:
    """Tell the unit by the end of the column's name; else by the size of the number."""
    used = name or next((one for one in usual if row.get(one) not in (None, "")), "")
    return next((unit for end, unit in _SUFFIXES.items() if used.endswith(end)), "auto")


def _body_in(row: Row, asked: Columns) -> Row | None:
    found = _column(row, asked.body, _BODIES)
    if found is None or (asked.prompt or asked.messages):
        return None
    return mapping(found)


def _said(row: Row, asked: Columns) -> dict[str, object]:
    messages = None if asked.prompt else messages_of(row.get(asked.messages or "messages"))
    if messages is not None:
        return {"messages": messages}
    text = _column(row, asked.prompt, _PROMPTS)
    return {"text": text} if isinstance(text, str) and text else {}
