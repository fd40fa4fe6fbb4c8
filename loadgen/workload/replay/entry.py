"""What one row of a log says, whatever its format; and how the fields of a row are read.

Rows are what others wrote: each may be anything. One that cannot be used raises BadRow with the
reason; the reason never holds what stands in the row.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from loadgen.scenario.prompts import Columns
from loadgen.workload.prompt import Message
from loadgen.workload.replay.instants import Moment, Unit
from loadgen.workload.rows import BadRow

Row = Mapping[str, Any]

_WHOLE = re.compile(r"[0-9]{1,12}(?:\.0*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request of a log.

    input_tokens, output_tokens: as the log counts them. messages or text: what was said; neither
        where the log holds lengths only. reply_chars: the length of the recorded answer.
    hash_ids: prefix blocks, each of ``block_size`` tokens; equal ids, equal beginnings.
    params: further fields of the body. max_output: the limit that the body set.
    overridden: fields of the logged body that are not sent as they were. headers: the names of
        logged headers, none of which is sent. failed: the log says that it came to nothing.
    """

    arrival: Moment | None = None
    end_ns: int | None = None
    session: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    messages: list[Message] | None = None
    text: str | None = None
    reply_chars: int | None = None
    hash_ids: tuple[int, ...] = ()
    block_size: int = 0
    model: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    max_output: int | None = None
    overridden: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    failed: bool = False

    @property
    def has_text(self) -> bool:
        """Say that the log holds what was said."""
        return self.messages is not None or self.text is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the rows of one log are to be read: columns by the user's names, and the unit of times.

    unit: None: as the format has it.
    """

    columns: Columns = field(default_factory=Columns)
    unit: Unit | None = None


def mapping(value: object) -> Row:
    """Return a mapping, read from JSON text where it is text; BadRow for anything else."""
    value = unpacked(value)
    if not isinstance(value, Mapping):
        raise BadRow("is not a mapping of names and values")
    return value


def unpacked(value: object) -> object:
    """Return what JSON text says; any other value, and text that is no JSON list or mapping, as is.

    Tables exported as CSV, and some tracing tools, hold structures as text.
    """
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            inner: object = orjson.loads(value)
            return inner
        except orjson.JSONDecodeError:
            return value
    return value


def first_of(row: Row, names: Sequence[str]) -> Any:  # noqa: ANN401 - whatever the row holds
    """Return the first of these fields that holds something."""
    for name in names:
        value = row.get(name)
        if value is not None and value != "":
            return value
    return None


def whole(value: object, what: str) -> int | None:
    """Read a count of 0 or more; None where there is none."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value.strip().partition(".")[0])
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise BadRow(f"has {what} that is not a whole number of 0 or more")
    return value


def needed(value: object, what: str) -> int:
    """Read a count that a row of this format must have."""
    found = whole(value, what)
    if found is None:
        raise BadRow(f"has not {what}")
    return found


def ids_of(value: object) -> tuple[int, ...]:
    """Read the ids of prefix blocks: a list of whole numbers, or JSON text of one."""
    value = unpacked(value)
    if value is None or value == "":
        return ()
    if not isinstance(value, list) or not all(type(one) is int for one in value):
        raise BadRow("has hash_ids that are not a list of whole numbers")
    if value and not (min(value) >= -(2**63) and max(value) < 2**63):
        raise BadRow("has hash_ids beyond 64 bits")
    return tuple(value)


def named(value: object) -> str | None:
    """Read a name (of a session, of a model); numbers are names, too."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value) or None


def messages_of(value: object) -> list[Message] | None:
    """Check a list of messages and leave it as it is; None where there is none."""
    value = unpacked(value)
    if value is None or value == "" or value == [] or value == {}:
        return None
    if not isinstance(value, list):
        raise BadRow("has messages that are not a list")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRow("has a message without a role")
    return value


def chars_of(messages: Sequence[Message] | None, text: str | None) -> int:
    """Count the characters of what is said."""
    if messages is None:
        return len(text or "")
    return sum(_chars(message.get("content")) for message in messages)


def _chars(content: object) -> int:
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list):
        return 0
    return sum(
        len(part["text"])
        for part in content
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    )
