"""Events as bytes: what does not change within an answer is rendered once. Pure."""

from dataclasses import replace
from typing import Any

import orjson

from loadgen.simulator.dialects import Counts, Dialect, Head, Piece, azure_opening

_TEXT_MARK = "\ue000"  # private use: stands in no model's name and no word
_USAGE_MARK: dict[str, Any] = {"\ue001": 0}
_TEXT = _TEXT_MARK.encode()
_USAGE = orjson.dumps(_USAGE_MARK)
DONE = b"data: [DONE]\n\n"
GARBAGE = b'data: {"id": "x", "choices": [{"delta"\n\n'
COMMENT = b": keep-alive\n\n"


class ChoiceFrames:
    """The events of one choice.

    Bodies of tokens lack their closing brace: the send stamp is added last (see ``stamped``).
    """

    def __init__(self, dialect: Dialect, head: Head, *, index: int, running: bool) -> None:
        self._dialect = dialect
        self._head = head
        self._index = index
        self._running = running
        self._token = self._parts(Piece(index=index, kind="token", text=_TEXT_MARK))

    def role(self, counts: Counts) -> bytes:
        """Return the event that opens a choice of a chat; none in completions."""
        if not self._head.chat:
            return b""
        named = self._running and self._dialect.running_usage_on_role
        usage = self._dialect.usage(counts) if named else None
        return self._whole(Piece(index=self._index, kind="role"), usage)

    def token(self, text: bytes, counts: Counts | None) -> bytes:
        """Return the body of a token event; ``counts`` where usage runs along."""
        prefix, middle, suffix = self._token
        if counts is None:
            return prefix + text + middle
        return prefix + text + middle + orjson.dumps(self._dialect.usage(counts)) + suffix

    def last(self, text: bytes, *, finish: str, counts: Counts | None) -> bytes:
        """Return the body of a token event that also ends the choice."""
        piece = Piece(index=self._index, kind="last", text=_TEXT_MARK, finish=finish)
        prefix, middle, suffix = self._parts(piece)
        if counts is None:
            return prefix + text + middle
        return prefix + text + middle + orjson.dumps(self._dialect.usage(counts)) + suffix

    def finish(self, finish: str, *, counts: Counts | None) -> bytes:
        """Return the event that ends a choice without a token, with usage where it stands there."""
        usage = None if counts is None else self._dialect.usage(counts)
        return self._whole(Piece(index=self._index, kind="finish", finish=finish), usage)

    def usage(self, counts: Counts) -> bytes:
        """Return the event that carries usage and no choice."""
        return self._whole(None, self._dialect.usage(counts))

    def stamped(self, body: bytes, sent_ns: int) -> bytes:
        """Close the body of a token event with the instant it is sent at."""
        return b'%s,"sent_ns":%d}%s' % (body, sent_ns, self._dialect.event_end)

    def _parts(self, piece: Piece) -> tuple[bytes, bytes, bytes]:
        usage = _USAGE_MARK if self._running else None
        event = self._dialect.event(self._head, piece, usage)
        prefix, _, rest = (b"data: " + orjson.dumps(event)[:-1]).partition(_TEXT)
        middle, _, suffix = rest.partition(_USAGE)
        return prefix, middle, suffix

    def _whole(self, piece: Piece | None, usage: dict[str, Any] | None) -> bytes:
        event = self._dialect.event(self._head, piece, usage)
        return b"data: " + orjson.dumps(event) + self._dialect.event_end


def opening(dialect: Dialect, head: Head, *, prompts: int) -> bytes:
    """Return what precedes the first role event: a quirk of two dialects."""
    if dialect.name == "llamacpp" and prompts > 1:
        return b"data: null\n\n"
    if dialect.name == "azure":
        return b"data: " + orjson.dumps(azure_opening(head)) + dialect.event_end
    return b""


def whole_answer(
    dialect: Dialect, head: Head, *, texts: list[tuple[str, str]], counts: Counts
) -> bytes:
    """Return the JSON body of an answer that is not streamed; ``texts`` are (text, finish)."""
    choices: list[dict[str, Any]] = []
    for index, (text, finish) in enumerate(texts):
        part = {"message": {"role": "assistant", "content": text}} if head.chat else {"text": text}
        choices.append({"index": index} | part | {"logprobs": None, "finish_reason": finish})
    plain = dialect.event(replace(head, asked_usage=False), None, None)
    kind = "chat.completion" if head.chat else "text_completion"
    body = plain | {"object": kind, "choices": choices, "usage": dialect.usage(counts)}
    return orjson.dumps(body)
