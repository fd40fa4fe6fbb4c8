"""Public traces and datasets: one function for each format, from a row to an Entry.

Mooncake, Azure and BurstGPT hold lengths and times; ShareGPT holds what was said, without times;
OpenAI Batch holds whole bodies.
"""

from collections.abc import Iterator

from loadgen.workload.prompt import Message
from loadgen.workload.replay.bodies import fields_of, headers_of, said_in
from loadgen.workload.replay.entry import (
    Entry,
    Reading,
    Row,
    first_of,
    ids_of,
    mapping,
    messages_of,
    named,
    needed,
    whole,
)
from loadgen.workload.replay.instants import moment
from loadgen.workload.rows import BadRow

MOONCAKE_BLOCK = 512
BAILIAN_BLOCK = 16

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "system": "system",
}


def mooncake(row: Row, reading: Reading) -> Entry:
    """Read ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` of 512 tokens.

    Also what others add: ``session_id``, ``messages`` or ``text_input``; and what ``anonymize``
    writes: ``end`` (ms), ``block_size`` and ``failed``.
    """
    if row.get("message_mode") == "delta":
        raise BadRow("holds only what a turn adds (message_mode: delta), which is not read")
    unit = reading.unit or "ms"
    end = moment(row.get("end"), unit)
    text = row.get("text_input")
    return Entry(
        arrival=moment(row.get("timestamp"), unit),
        end_ns=None if end is None else end.ns,
        session=named(row.get("session_id")),
        input_tokens=needed(row.get("input_length"), "an input_length"),
        output_tokens=whole(row.get("output_length"), "an output_length"),
        messages=messages_of(row.get("messages")),
        text=text if isinstance(text, str) and text else None,
        hash_ids=ids_of(row.get("hash_ids")),
        block_size=whole(row.get("block_size"), "a block_size") or MOONCAKE_BLOCK,
        failed=row.get("failed") is True,
    )


def bailian(row: Row, reading: Reading) -> Entry:
    """Read ``timestamp`` (s), ``input_length``, ``output_length``, ``hash_ids`` of 16 tokens.

    Each row is a request of its own: which conversation it belongs to is said by a chain of ids
    that would have to be held in memory.
    """
    return Entry(
        arrival=moment(row.get("timestamp"), reading.unit or "s"),
        input_tokens=needed(row.get("input_length"), "an input_length"),
        output_tokens=whole(row.get("output_length"), "an output_length"),
        hash_ids=ids_of(row.get("hash_ids")),
        block_size=BAILIAN_BLOCK,
    )


def azure(row: Row, reading: Reading) -> Entry:
    """Read ``TIMESTAMP`` (ISO, seven digits, no zone), ``ContextTokens``, ``GeneratedTokens``."""
    return Entry(
        arrival=moment(row.get("TIMESTAMP"), reading.unit or "auto"),
        input_tokens=needed(row.get("ContextTokens"), "ContextTokens"),
        output_tokens=whole(row.get("GeneratedTokens"), "GeneratedTokens"),
    )


def burstgpt(row: Row, reading: Reading) -> Entry:
    """Read ``Timestamp`` (s), ``Request tokens``, ``Response tokens``: 0 of these is a failure."""
    arrival = moment(row.get("Timestamp"), reading.unit or "s")
    elapsed = moment(row.get("Elapsed time"), reading.unit or "s")
    output = needed(row.get("Response tokens"), "Response tokens")
    known = arrival is not None and elapsed is not None
    return Entry(
        arrival=arrival,
        end_ns=arrival.ns + elapsed.ns if known and arrival and elapsed else None,
        session=named(row.get("Session ID")) or None,
        input_tokens=needed(row.get("Request tokens"), "Request tokens"),
        output_tokens=output,
        model=named(row.get("Model")),
        failed=output == 0,
    )


def sharegpt_turns(row: Row) -> Iterator[Row]:
    """Cut one conversation into its requests, each with all that was said before it."""
    said = row.get("conversations", row.get("conversation"))
    if not isinstance(said, list) or not said:
        raise BadRow("has no conversation")
    messages = [_message(one) for one in said]
    asked = [message["role"] for message in messages if message["role"] != "system"]
    if not asked or asked[0] != "user":
        raise BadRow("begins with an answer")
    name = first_of(row, ("id", "conversation_id", "conversation_hash"))
    for at, message in enumerate(messages):
        following = messages[at + 1] if at + 1 < len(messages) else None
        if message["role"] == "user" and (following is None or following["role"] == "assistant"):
            reply = len(following["content"]) if following else None
            yield {"id": name, "messages": messages[: at + 1], "reply_chars": reply}


def sharegpt(row: Row, reading: Reading) -> Entry:  # noqa: ARG001 - all adapters are called alike
    """Read one request that ``sharegpt_turns`` cut out; there are no times."""
    return Entry(session=named(row["id"]), messages=row["messages"], reply_chars=row["reply_chars"])


def openai_batch(row: Row, reading: Reading) -> Entry:  # noqa: ARG001
    """Read ``body``, a whole request; there are no times."""
    if "body" not in row and "response" in row:
        raise BadRow("is an answer of a batch; name the batch's input file")
    body = mapping(row.get("body"))
    params, limit, overridden = fields_of(body)
    return Entry(
        **said_in(body),
        model=named(body.get("model")),
        params=params,
        max_output=limit,
        overridden=overridden,
        headers=headers_of(row),
    )


def _message(said: object) -> Message:
    if not isinstance(said, dict):
        raise BadRow("has a turn that is not a mapping")
    role = _ROLES.get(str(said.get("from", said.get("role"))).lower())
    content = said.get("value", said.get("content"))
    if role is None:
        raise BadRow("has a turn of nobody known")
    if not isinstance(content, str) or not content:
        raise BadRow("has a turn without text")
    return {"role": role, "content": content}
