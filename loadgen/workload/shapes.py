"""What a row of a dataset says: plain columns, a ShareGPT conversation, a body of OpenAI Batch.

Rows are what others wrote: each may be anything. One that cannot be sent raises BadRow with the
reason; the reason never holds what stands in the row.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from loadgen.scenario.prompts import Columns
from loadgen.workload.prompt import Message, Turn
from loadgen.workload.rows import BadRow

Shape = Literal["columns", "sharegpt", "openai_batch"]

PROMPT_COLUMNS = ("prompt", "text")
OUTPUT_COLUMNS = ("output_tokens", "output_length")

_LIMITS = ("max_tokens", "max_completion_tokens")
_NOT_OURS = frozenset({"model", "messages", "prompt", "stream", "stream_options", *_LIMITS})
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One row, read: messages or a text, and what it says of the answer.

    output_tokens: the length the answer is to have. max_output: the most it may have.
    whole: the messages are one request; else they are a conversation, of which one request is the
        first turn.
    """

    messages: list[Message] | None = None
    text: str | None = None
    output_tokens: int | None = None
    max_output: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = True


def shape_of(row: object, columns: Columns) -> Shape:
    """Tell the shape of rows by one of them."""
    named = columns.prompt or columns.messages
    if isinstance(row, Mapping) and not named:
        if isinstance(_conversation_in(row), list):
            return "sharegpt"
        if isinstance(row.get("body"), Mapping):
            return "openai_batch"
    return "columns"


def read_item(row: object, shape: Shape, columns: Columns) -> Item:
    """Read one row; raises BadRow."""
    if not isinstance(row, Mapping):
        raise BadRow("is not a mapping of names and values")
    match shape:
        case "sharegpt":
            return Item(messages=_said(_conversation_in(row)), whole=False)
        case "openai_batch":
            return _batch(row)
    return _columns(row, columns)


def missing_columns(names: Sequence[str], columns: Columns) -> str | None:
    """Say which column a whole file lacks; None where it has what is needed."""
    wanted = [name for name in (columns.prompt, columns.messages) if name]
    absent = [name for name in (*wanted, columns.output_tokens) if name and name not in names]
    if absent:
        return f"has no column '{absent[0]}'; it has {_shown(names)}"
    if not wanted and not {*PROMPT_COLUMNS, "messages"} & set(names):
        hint = "name yours, like columns: {prompt: question}"
        return f"has no column 'prompt' or 'messages'; it has {_shown(names)}; {hint}"
    return None


def turns_of(messages: Sequence[Message]) -> list[Turn]:
    """Cut messages into turns: what comes before an answer, and all that follows it to the next."""
    turns: list[Turn] = []
    asked: list[Message] = []
    answered: list[Message] = []
    for message in messages:
        asks = message["role"] in ("user", "system", "developer")
        if asks and answered:
            turns.append(Turn(messages=tuple(asked), reply=tuple(answered)))
            asked, answered = [], []
        (asked if asks or not asked else answered).append(message)
    return [*turns, Turn(messages=tuple(asked), reply=tuple(answered) or None)] if asked else turns


def _columns(row: Mapping[str, Any], columns: Columns) -> Item:
    limit = next((row[key] for key in _LIMITS if row.get(key) not in (None, "")), None)
    wanted = _first(row, (columns.output_tokens,) if columns.output_tokens else OUTPUT_COLUMNS)
    lengths: dict[str, Any] = {"output_tokens": _number(wanted), "max_output": _number(limit)}
    messages = None if columns.prompt else row.get(columns.messages or "messages")
    if messages not in (None, ""):
        return Item(messages=_messages(messages), **lengths)
    text = _first(row, (columns.prompt,) if columns.prompt else PROMPT_COLUMNS)
    if not isinstance(text, str) or not text:
        raise BadRow("has no prompt")
    return Item(text=text, **lengths)


def _batch(row: Mapping[str, Any]) -> Item:
    body = row.get("body")
    if not isinstance(body, Mapping):
        raise BadRow("has no body")
    limit = next((body[key] for key in _LIMITS if body.get(key) is not None), None)
    extra = {key: value for key, value in body.items() if key not in _NOT_OURS}
    more: dict[str, Any] = {"max_output": _number(limit), "extra": extra}
    if "messages" in body:
        return Item(messages=_messages(body["messages"]), **more)
    if isinstance(body.get("prompt"), str) and body["prompt"]:
        return Item(text=body["prompt"], **more)
    raise BadRow("has a body without messages or a text as prompt")


def _messages(value: object) -> list[Message]:
    """Check a message list and leave it as it is; in CSV it is JSON text."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            raise BadRow("has messages that are not valid JSON") from None
    if not isinstance(value, list) or not value:
        raise BadRow("has no list of messages")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRow("has a message without a role")
    return value


def _conversation_in(row: Mapping[str, Any]) -> object:
    return row.get("conversations", row.get("conversation"))


def _said(value: object) -> list[Message]:
    """Turn a ShareGPT conversation into messages."""
    if not isinstance(value, list) or not value:
        raise BadRow("has no conversation")
    messages = [_message(said) for said in value]
    asked = [message["role"] for message in messages if message["role"] != "system"]
    if not asked or asked[0] != "user":
        raise BadRow("begins with an answer")
    return messages


def _message(said: object) -> Message:
    if not isinstance(said, Mapping):
        raise BadRow("has a turn that is not a mapping")
    role = _ROLES.get(str(said.get("from", said.get("role"))).lower())
    content = said.get("value", said.get("content"))
    if role is None:
        raise BadRow("has a turn of nobody known")
    if not isinstance(content, str) or not content:
        raise BadRow("has a turn without text")
    return {"role": role, "content": content}


def _first(row: Mapping[str, Any], names: Sequence[str]) -> object:
    return next((row[name] for name in names if row.get(name) not in (None, "")), None)


def _number(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadRow("has an output length that is not a whole number above 0")
    return value


def _shown(names: Sequence[str]) -> str:
    """Name the columns that look like names: without a header they would be private text."""
    plain = [name for name in names if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_ .-]{0,30}", name)]
    return ", ".join(plain[:12]) or "none that looks like a name"
