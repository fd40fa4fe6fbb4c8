"""What servers write: JSON values out of bytes, generated text out of deltas, words out of errors.

Pure readers of untrusted values: nothing here trusts a type, and nothing raises on what it finds.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson

from loadgen.record import CONTENT, REASONING, REFUSAL, TOOL


class NotJSONError(ValueError):
    """These bytes are not JSON, not even leniently."""


def read_json(data: bytes) -> object:
    """Parse JSON as servers write it: broken UTF-8, lone surrogates and NaN are let through.

    A character that is not UTF-8 becomes U+FFFD, as the event stream rules have it.
    """
    try:
        value: object = orjson.loads(data)
        return value
    except orjson.JSONDecodeError:
        pass
    try:
        lenient: object = json.loads(data.decode("utf-8", "replace"))
        return lenient
    except (ValueError, RecursionError) as fault:
        raise NotJSONError(str(fault)) from None


def is_utf8(data: bytes) -> bool:
    """Say whether the bytes are UTF-8 throughout."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_delta(delta: dict[str, Any], pieces: list[str]) -> str:
    """Append the generated text of a delta (or a whole message) to ``pieces``; return its kind.

    The kind is one letter of ``record``, or "" where no token is carried. Visible output wins over
    reasoning when one delta has both: the chunk is the first output then.
    """
    kind = ""
    thought = ""
    for key, value in delta.items():
        if not value or key == "role":
            continue
        if key == "content":
            kind = _read_content(value, pieces) or kind
        elif key in ("reasoning_content", "reasoning"):
            # Two spellings of one field; a server in transition sends the same text under both.
            if isinstance(value, str) and value != thought:
                pieces.append(value)
                thought = value
                kind = kind or REASONING
        elif key in ("tool_calls", "function_call"):
            if _read_tool_calls(value, pieces) and kind in ("", REASONING):
                kind = TOOL
        elif key == "refusal" and isinstance(value, str):
            pieces.append(value)
            if kind in ("", REASONING):
                kind = REFUSAL
    return kind


def _read_content(value: object, pieces: list[str]) -> str:
    """Read ``content``: a text, or a list of parts (some servers put thinking in a part)."""
    if isinstance(value, str):
        pieces.append(value)
        return CONTENT
    kind = ""
    for part in value if isinstance(value, list) else ():
        if not isinstance(part, dict):
            continue
        if isinstance(part.get("text"), str) and part["text"]:
            pieces.append(part["text"])
            kind = CONTENT
        elif isinstance(part.get("thinking"), list):
            thought = _read_content(part["thinking"], pieces)
            kind = kind or (REASONING if thought else "")
    return kind


def _read_tool_calls(value: object, pieces: list[str]) -> bool:
    """Append name and arguments of each call; say whether there was any text."""
    before = len(pieces)
    for call in value if isinstance(value, list) else [value]:
        if not isinstance(call, dict):
            continue
        function = call.get("function", call)
        if not isinstance(function, dict):
            continue
        for key in ("name", "arguments"):
            text = function.get(key)
            if isinstance(text, dict) and text:  # some servers send the arguments as an object
                text = json.dumps(text, ensure_ascii=False)
            if isinstance(text, str) and text:
                pieces.append(text)
    return len(pieces) > before


def count(value: object) -> int | None:
    """Return a token count, or None for anything that is not a whole number of at least 0."""
    return value if type(value) is int and value >= 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerError:
    """An error as the server tells it; any field may be unknown."""

    message: str = ""
    type: str = ""
    code: int | str | None = None
    param: str = ""
    limit: int | None = None  # context length in tokens, where the error has a field for it
    got: int | None = None


def read_error(body: object) -> ServerError | None:
    """Read an error in any known shape; None where the value is not one.

    Nested ``{"error": {...}}``, plain ``{"error": "text"}``, flat ``{"object": "error", ...}``,
    ``{"type": "error", ...}``, and ``{"detail": ...}`` (a text or a list of findings).
    """
    if not isinstance(body, dict):
        return None
    inner = body.get("error")
    if inner:
        return error_fields(inner)
    if body.get("object") == "error" or body.get("type") == "error":
        return error_fields(body)
    if "choices" in body:
        return None
    if body.get("detail"):
        return error_fields(body["detail"])
    if isinstance(body.get("message"), str) and ("code" in body or "type" in body):
        return error_fields(body)
    return None


def error_fields(inner: object) -> ServerError:
    """Read what is known to be an error: its fields, its findings, or its text."""
    if isinstance(inner, list):
        return ServerError(message="; ".join(_findings(inner)))
    if not isinstance(inner, dict):
        return ServerError(message=inner if isinstance(inner, str) else "")
    code = inner.get("code")
    message = inner.get("message") or inner.get("detail") or inner.get("msg")
    return ServerError(
        message=message if isinstance(message, str) else "",
        type=_text(inner.get("type")),
        code=code if isinstance(code, int | str) else None,
        param=_text(inner.get("param")),
        limit=count(inner.get("n_ctx")),
        got=count(inner.get("n_prompt_tokens")),
    )


def _findings(found: list[Any]) -> Iterable[str]:
    """Say each finding of a validation list; its ``input`` is left out: it may hold a prompt."""
    for finding in found:
        if isinstance(finding, dict):
            where = finding.get("loc")
            path = ".".join(map(str, where)) if isinstance(where, list | tuple) else ""
            yield f"{_text(finding.get('msg'))} ({path})" if path else _text(finding.get("msg"))
        else:
            yield _text(finding)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
