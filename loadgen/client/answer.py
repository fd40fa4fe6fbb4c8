"""One answer as it arrives: token chunks out of bytes, and the facts that add up meanwhile.

A chunk carries a token when a choice has non-empty content, reasoning, refusal, tool-call name or
arguments, or completions text; role-only, empty, finish-only, usage-only, comment and keep-alive
events never do. Fed with any bytes, nothing here raises.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from loadgen.client import wire
from loadgen.client.sse import DONE, NONCONFORMANT_FRAMING, Event, EventDecoder, EventTooLarge
from loadgen.client.usage import UsageLedger
from loadgen.record import CONTENT, REASONING, REFUSAL, TOOL

Endpoint = Literal["chat", "completions"]

FAILING_FINISHES = frozenset({"error", "abort"})
"""Finish reasons by which a server says that it failed, not that the answer is whole."""


class Delta(NamedTuple):
    """One token-carrying chunk: one per event and choice; ``tokens`` where the server says."""

    kind: str
    choice: int
    tokens: int | None


# What nearly all chunks are, made once: building one costs a third of reading it.
_PLAIN = {kind: Delta(kind, 0, None) for kind in (CONTENT, REASONING, TOOL, REFUSAL)}
_ONE_TOKEN = {kind: Delta(kind, 0, 1) for kind in _PLAIN}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamError:
    """What the server said when it failed inside a 200, or why we stopped reading."""

    error_class: str
    code: int | str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFacts:
    """What one answer amounts to; the fields of ``Record`` by the same names, and some counts.

    tokens_known: every chunk's ``Delta.tokens`` is known and consistent with the total.
    counted_output: tokens of the joined text by the tokenizer given; None without one.
    """

    finish_reasons: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    reported_input: int | None = None
    cached_input: int | None = None
    reported_output: int | None = None
    reasoning: int | None = None
    counted_output: int | None = None
    token_source: str | None = None
    first_chunk_tokens: int | None = None
    output_chars: int | None = None
    output_hash: str | None = None
    chunks: int = 0
    choices: int = 0
    tokens_known: bool = False
    done_seen: bool = False
    bad_events: int = 0
    comments: int = 0
    after_done: int = 0


class Answer:
    """Reads one response body.

    complete: [DONE] was seen; the request is over even if the socket stays open.
    error: the server failed inside the stream; the request is over.
    """

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        max_event_bytes: int,
        expects_many: bool = False,
        several_prompts: bool | None = None,
    ) -> None:
        self.complete = False
        self.error: StreamError | None = None
        self.non_stream = False
        self.events = 0
        self.chunks = 0
        self._decoder = EventDecoder(max_event_bytes)
        self._usage = UsageLedger(
            endpoint=endpoint, expects_many=expects_many, several_prompts=several_prompts
        )
        self._pieces: dict[int, list[str]] = {}  # generated text, by choice
        self._finishes: dict[int, str] = {}
        self._unsaid: list[tuple[int, int]] = []  # pieces of choice 0 that are no visible text
        self._kinds: set[str] = set()  # other than content
        self._unsized: set[int] = set()  # choices with a chunk of unknown size
        self._flags: set[str] = set()
        self._bad_events = 0
        self._after_done = 0

    def feed(self, data: bytes) -> list[Delta]:
        """Return the token chunks of all events that these bytes complete."""
        deltas: list[Delta] = []
        if self.error is not None:
            return deltas
        only = None if self.complete else self._decoder.single(data)
        if only is not None:
            self._take(only, None, deltas)
            return deltas
        try:
            events = self._decoder.feed(data)
        except EventTooLarge as fault:
            self._take_all(fault.events, deltas)
            self.error = self.error or StreamError(
                error_class="event_too_large", message=str(fault)
            )
            return deltas
        self._take_all(events, deltas)
        return deltas

    def close(self) -> list[Delta]:
        """Return what the end of the body still completes."""
        deltas: list[Delta] = []
        if self.error is not None:
            return deltas
        bad = self._bad_events
        self._take_all(self._decoder.close(), deltas)
        # An event that was cut in half is part of the cut, not a malformed event of its own.
        self._bad_events = bad
        return deltas

    def take_whole(self, body: bytes) -> None:
        """Take a whole JSON answer, in place of a stream."""
        try:
            value = wire.read_json(body)
        except wire.NotJSONError:
            return
        error = wire.read_error(value)
        if error is not None:
            self._fail(error)
        elif isinstance(value, dict) and isinstance(value.get("choices"), list):
            self.non_stream = True
            self.events = 1
            self._take_body(value, None, [])

    @property
    def finished(self) -> bool:
        """Every choice that was seen has given its finish reason."""
        return bool(self._finishes) and self._pieces.keys() <= self._finishes.keys()

    @property
    def reply(self) -> str:
        """The visible text of the first choice: what a history keeps of it."""
        pieces = list(self._pieces.get(0, []))
        for start, end in self._unsaid:
            pieces[start:end] = [""] * (end - start)
        return "".join(pieces)

    def facts(self, count: Callable[[str], int] | None = None) -> AnswerFacts:
        """Add up what was seen; ``count`` tokenises the joined text of each choice, once.

        Tokens that ``count`` finds in an empty text (a BOS) are no output and are taken off.
        """
        texts = ["".join(self._pieces[choice]) for choice in sorted(self._pieces)]
        counted = None
        if count is not None:
            nothing = count("")
            counted = sum(count(text) - nothing for text in texts if text)
        reported = self._usage.output()
        trusted = self._usage.chunks_agree() and not self.non_stream
        return AnswerFacts(
            finish_reasons=[self._finishes[choice] for choice in sorted(self._finishes)],
            flags=self._all_flags(),
            reported_input=self._usage.input(),
            cached_input=self._usage.cached(),
            reported_output=reported,
            reasoning=self._usage.reasoning(),
            counted_output=counted,
            token_source=self._token_source(reported, counted),
            first_chunk_tokens=self._usage.first_chunk if trusted else None,
            output_chars=sum(map(len, texts)) if self.events else None,
            output_hash=_hash_texts(texts) if any(texts) else None,
            chunks=self.chunks,
            choices=len(self._pieces),
            tokens_known=trusted,
            done_seen=self.complete,
            bad_events=self._bad_events,
            comments=self._decoder.comments,
            after_done=self._after_done,
        )

    def _take_all(self, events: list[Event], deltas: list[Delta]) -> None:
        for event in events:
            if self.error is not None:
                return
            if self.complete:
                self._after_done += 1
            else:
                self._take(event.data, event.name, deltas)

    def _take(self, data: bytes, name: str | None, deltas: list[Delta]) -> None:
        self.events += 1
        try:
            body = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._take_odd(data.strip(), name, deltas)
        else:
            self._take_body(body, name, deltas)

    def _take_odd(self, data: bytes, name: str | None, deltas: list[Delta]) -> None:
        """Take what strict JSON is not: [DONE], an empty keep-alive, broken or glued lines."""
        if data == DONE:
            self.complete = True
        elif data:
            try:
                body = wire.read_json(data)
            except wire.NotJSONError:
                self._take_unreadable(data, name, deltas)
                return
            if not wire.is_utf8(data):
                self._flags.add("invalid_utf8")
            self._take_body(body, name, deltas)

    def _take_unreadable(self, data: bytes, name: str | None, deltas: list[Delta]) -> None:
        if name == "error":
            self._fail(wire.ServerError(message=data.decode("utf-8", "replace")))
            return
        # One LF between events, the first of them broken: any line may be an event of its own.
        lines = [line for line in data.split(b"\n") if _is_json(line)]
        self._bad_events += 1
        if lines:
            self._flags.add(NONCONFORMANT_FRAMING)
            self._take_all([Event(line, name) for line in lines], deltas)

    def _take_body(self, body: object, name: str | None, deltas: list[Delta]) -> None:
        if type(body) is not dict:
            self._take_scalar(body, name)
            return
        choices = body.get("choices")
        if name == "error" or type(choices) is not list or body.get("error"):
            error = wire.read_error(body)
            if error is not None or name == "error":
                self._fail(error or wire.error_fields(body))
                return
            choices = choices if type(choices) is list else ()
        usage = body.get("usage")
        running = self._usage.take(usage, choices) if usage else None
        for choice in choices:
            if type(choice) is dict:
                self._take_choice(choice, running, deltas)

    def _take_scalar(self, body: object, name: str | None) -> None:
        if name == "error":
            self._fail(wire.ServerError(message=body if isinstance(body, str) else ""))
        elif body is not None:  # llama.cpp opens several-prompt streams with "data: null"
            self._bad_events += 1

    def _take_choice(
        self, choice: dict[str, Any], running: int | None, deltas: list[Delta]
    ) -> None:
        index = choice.get("index")
        if type(index) is not int:
            index = 0
        pieces = self._pieces.get(index)
        if pieces is None:
            pieces = self._pieces[index] = []
        delta = choice.get("delta")
        # Nearly every chunk of a chat is {"content": "text"} and nothing else: read it in place.
        if delta and type(delta) is dict and len(delta) == 1 and type(delta.get("content")) is str:
            pieces.append(delta["content"])
            kind = CONTENT if delta["content"] else ""
        else:
            before = len(pieces)
            kind = _read_choice(choice, pieces)
            if kind in (REASONING, TOOL) and index == 0:
                self._unsaid.append((before, len(pieces)))
        ids = choice.get("token_ids")
        if ids:
            self._usage.take_ids(index, ids)
        if kind:
            self.chunks += 1
            if kind is not CONTENT:
                self._kinds.add(kind)
            if running is None and not ids and index in self._unsized:
                deltas.append(Delta(kind, index, None) if index else _PLAIN[kind])
            else:
                deltas.append(self._sized(kind, index, running))
        finish = choice.get("finish_reason")
        if finish:
            self._finish(index, finish)

    def _sized(self, kind: str, index: int, running: int | None) -> Delta:
        tokens = self._usage.chunk_tokens(index, running)
        if tokens == 1 and index == 0:
            return _ONE_TOKEN[kind]
        if tokens is None:
            self._unsized.add(index)
        return Delta(kind, index, tokens)

    def _finish(self, index: int, reason: object) -> None:
        self._finishes[index] = str(reason)[:64]
        if self._finishes[index] in FAILING_FINISHES:
            self._fail(wire.ServerError(message=f"the server ended the answer with '{reason}'"))

    def _fail(self, error: wire.ServerError) -> None:
        self.error = StreamError(
            error_class="server_error_in_stream", code=error.code, message=error.message
        )

    def _token_source(self, reported: int | None, counted: int | None) -> str | None:
        if reported:
            return "reported"
        if counted:
            return "counted"
        return "chunks" if self.chunks and not self.non_stream else None

    def _all_flags(self) -> list[str]:
        flags = self._flags | self._decoder.flags
        tokens = self.chunks > 0
        facts = {
            "non_stream_response": self.non_stream,
            "degraded": self._bad_events > 0 and tokens,
            "after_done": self._after_done > 0,
            "empty": bool(self._finishes) and not tokens,
            "no_done": bool(self._finishes) and not self.complete and not self.non_stream,
            "no_finish_reason": self.complete and tokens and not self._finishes,
            # A chunk holds a token at least, give or take one: such a usage is not a total.
            "usage_below_chunks": 0 < (self._usage.output() or 0) < self.chunks - 1,
            "hidden_reasoning": bool(self._usage.reasoning()) and REASONING not in self._kinds,
        }
        return sorted(flags | {flag for flag, holds in facts.items() if holds})


def read_json_answer(body: bytes, endpoint: Endpoint) -> Answer | None:
    """Read a whole JSON answer to a request that asked for a stream; None for any other body.

    Flagged ``non_stream_response``: its tokens came at once, so its chunks say nothing about time.
    An error object becomes ``error``.
    """
    answer = Answer(endpoint=endpoint, max_event_bytes=max(len(body), 1))
    answer.take_whole(body)
    return answer if answer.events or answer.error else None


def _read_choice(choice: dict[str, Any], pieces: list[str]) -> str:
    """Append what a choice generated; return its kind, "" for none."""
    delta = choice.get("delta")
    if type(delta) is dict:
        return wire.read_delta(delta, pieces)
    text = choice.get("text")
    if text and type(text) is str:
        pieces.append(text)
        return CONTENT
    message = choice.get("message")
    # A whole message after its own deltas would count everything twice.
    if type(message) is dict and not pieces:
        return wire.read_delta(message, pieces)
    return ""


def _is_json(line: bytes) -> bool:
    try:
        wire.read_json(line)
    except wire.NotJSONError:
        return False
    return True


def _hash_texts(texts: list[str]) -> str:
    """Short hash of the answer; several choices are told apart by a NUL between them."""
    joined = "\x00".join(texts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(joined).hexdigest()[:16]
