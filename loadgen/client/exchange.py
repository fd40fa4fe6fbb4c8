"""Send one request and observe what comes of it.

Law of this file: until the first token the stream is decoded as it arrives; after that the read
callback only keeps (stamp, bytes) and looks for bytes that could end the stream. Everything else,
JSON included, waits for ``settle`` after the end. A failure of the server is an outcome here, never
an exception; every limit is finite unless the scenario says otherwise.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx

from loadgen.client import facts, failures
from loadgen.client.answer import Answer, Endpoint, read_json_answer
from loadgen.client.clock import breathe, now_ns
from loadgen.client.limits import NEVER, Due, Limits
from loadgen.client.outcome import (
    EndedBy,
    Verdict,
    length_flags,
    of_status,
    of_stream,
    read_retry_after,
)
from loadgen.client.stamps import Stamps
from loadgen.client.stock import httpcore_hook, pieces_of
from loadgen.client.trace import TRACE, Trace
from loadgen.record import Outcome

_SETTLE_SLICE = 64  # pieces decoded between two looks at the sockets
_PENDING_LIMIT = 1 << 18  # bytes kept undecoded before a look inside
_ERROR_BODY_LIMIT = 1 << 20
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_LONGEST_WAIT_S = 60.0
_DONE_EVENT = b"data: [DONE]\n\n"
_LIMIT_SAID = {
    "first_token": "no token within the limit",
    "idle": "the stream fell silent",
    "total": "the answer took longer than the limit",
}
_TIMER_SLACK_NS = 1_000_000  # loop timers round to milliseconds
_DONE_GRACE_S = 0.005  # for the end of the framing after [DONE], so that the connection is kept


class Exchange:
    """One request on the wire, from send to end; also the sink of its response.

    Call ``run`` once; then ``settle`` decodes what is left and gives the record's fields.
    ``on_piece`` is called for each piece of body after the first token (a live counter); ``on_end``
    when a stream is over as it should be, inside the read that ends it: the next request may go
    out from there.
    """

    __slots__ = (
        "_asked_output",
        "_body",
        "_collecting",
        "_eager",
        "_ended_how",
        "_finished",
        "_handle",
        "_interrupted",
        "_limits",
        "_on_piece",
        "_pending",
        "_pending_bytes",
        "_progress_ns",
        "_said_done",
        "_stamps",
        "_started_ns",
        "_task",
        "_whole",
        "answer",
        "attempts",
        "earlier_connects_ns",
        "end_ns",
        "endpoint",
        "on_end",
        "throttled_ns",
        "trace",
        "verdict",
    )

    def __init__(
        self,
        *,
        endpoint: Endpoint,
        limits: Limits,
        expects_many: bool = False,
        several_prompts: bool | None = None,
        asked_output: int | None = None,
        on_piece: Callable[[], None] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.trace = Trace(self)
        self.answer = Answer(
            endpoint=endpoint,
            max_event_bytes=limits.max_event_bytes,
            expects_many=expects_many,
            several_prompts=several_prompts,
        )
        self.verdict: Verdict | None = None
        self.attempts = 0
        self.earlier_connects_ns: int | None = None
        self.throttled_ns: int | None = None
        self.end_ns: int | None = None
        self.on_end: Callable[[], None] | None = None
        self._limits = limits
        self._asked_output = asked_output
        self._on_piece = on_piece
        self._stamps = Stamps()
        self._eager = True
        self._collecting = False
        self._pending: list[Any] = []  # stamp, bytes, stamp, bytes, ...
        self._pending_bytes = 0
        self._whole = True
        self._said_done = False
        self._body = bytearray()
        self._ended_how: str | None = None
        self._finished: asyncio.Future[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._interrupted: Verdict | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._started_ns = 0
        self._progress_ns = 0

    # --- driving

    def launch(self, transport: httpx.AsyncBaseTransport, request: httpx.Request) -> None:
        """Send at once, where the transport can; ``run`` must follow and takes it from there."""
        self._begin(transport, request)
        send_now = getattr(transport, "send_now", None)
        if send_now is not None:
            send_now(request)

    async def run(self, transport: httpx.AsyncBaseTransport, request: httpx.Request) -> None:
        """Send ``request`` and return when its exchange is over, however that comes.

        The request's extensions are set here. A cancellation from outside is passed on unless it
        came through ``interrupt``.
        """
        self._task = asyncio.current_task()
        if self._finished is None:
            self._begin(transport, request)
        self._watch()
        try:
            await self._converse(transport, request)
        except asyncio.CancelledError:
            if self._interrupted is None or self._task is None:
                raise
            self._task.uncancel()
        except (httpx.HTTPError, OSError) as error:
            self._fail(error)
        finally:
            if self._handle:
                self._handle.cancel()
            if self.end_ns is None:
                self.end_ns = now_ns()
            self._task = None

    def interrupt(
        self, outcome: Outcome, error_class: str | None = None, error: str | None = None
    ) -> None:
        """End the exchange now with this outcome; nothing happens where it is over already."""
        if self._task is None or self._interrupted or self._task.done():
            return
        if self._finished and self._finished.done():
            return
        self._interrupted = Verdict(outcome=outcome, error_class=error_class, error=error)
        self._task.cancel()

    def set_aside(self, outcome: Outcome) -> None:
        """Give an exchange that is never sent its outcome."""
        self._interrupted = Verdict(outcome=outcome)

    def follow(self, earlier: "Exchange") -> "Exchange":
        """Count as a further attempt of ``earlier``: timed from its first send. Returns self."""
        self.attempts = earlier.attempts
        self.earlier_connects_ns = (earlier.earlier_connects_ns or 0) + earlier._unsent_ns
        self.trace.sent_ns = earlier.trace.sent_ns
        self.trace.reconnects = earlier.trace.reconnects
        return self

    @property
    def first_ns(self) -> int | None:
        """When the first token arrived; None before."""
        return self._stamps.at_ns[0] if self._stamps.at_ns else None

    @property
    def reply(self) -> str:
        """The visible text of the answer; whole once ``settle`` is through."""
        return self.answer.reply

    @property
    def may_be_retried(self) -> bool:
        """Whether the exchange failed before any token, in a way that another try may mend."""
        if self._interrupted or self._stamps.at_ns:
            return False
        return self.trace.status in _RETRIED or (self.verdict is not None)

    @property
    def retry_after_s(self) -> float:
        """How long the server asks to wait before the next try, at most a minute; else 0."""
        return min(read_retry_after(self.trace.headers) or 0.0, _LONGEST_WAIT_S)

    @property
    def begun(self) -> bool:
        """Whether an attempt to send was made."""
        return self._finished is not None

    async def settle(
        self,
        count: Callable[[str], int] | None = None,
        *,
        secrets: Sequence[str] = (),
        room: Callable[[], Awaitable[None]] = breathe,
    ) -> dict[str, Any]:
        """Decode what the hot path kept, in slices; return the record's fields (absolute ns).

        count: tokens of a text, asked where the server reports none. secrets: what a server's
        message must not carry into the record. room: awaited between slices.
        """
        self._decode_pending(_SETTLE_SLICE)
        while self._pending:
            await room()
            self._decode_pending(_SETTLE_SLICE)
        if not self._collecting and self.answer.error is None:
            self._stamps.note(self.answer.close(), self._stamps.last_read_ns)
        found = self._facts(self._judge(secrets), count)
        self.trace.sink = None  # nothing comes any more; a cycle would keep all of this alive
        return found

    # --- the sink: called inside the read callback

    def body(self, stamp_ns: int, lag_ns: int, data: bytes) -> None:
        """Take a piece of the response's body."""
        self._stamps.read(stamp_ns, lag_ns)
        if self._eager:
            self._body_before_first_token(stamp_ns, data)
            return
        pending = self._pending
        pending.append(stamp_ns)
        pending.append(data)
        self._pending_bytes += len(data)
        if data[0] != 58 or b"data" in data:  # a comment alone (":...") proves no progress
            self._progress_ns = stamp_ns
        if self._on_piece:
            self._on_piece()
        # Cheap signs that this piece may end the stream, or that an event is cut in two (so that
        # such a sign may be, too): then look inside.
        whole = data[-2:] == b"\n\n" or data[-4:] == b"\r\n\r\n"
        if whole and self._whole and data.endswith(_DONE_EVENT) and _alone(data):
            self._said_done = True  # plainly so; what came before is decoded in ``settle``
            self._finish(stamp_ns)
        elif (
            not (whole and self._whole)
            or b"[DONE]" in data
            or b"error" in data
            or self._pending_bytes > _PENDING_LIMIT
        ):
            self._decode_pending()
            self._look_for_end(stamp_ns)
        self._whole = whole

    def ended(self, stamp_ns: int, how: str) -> None:
        """Learn that the body is over."""
        if self._ended_how is None:
            self._ended_how = how
            self._finish(stamp_ns)
            if self.on_end and how == "end" and self.trace.status == 200 and not self._interrupted:
                self.on_end()

    # --- inside

    @property
    def _unsent_ns(self) -> int:
        """How long this attempt's connecting kept the first send waiting, up to now."""
        if self.trace.sent_ns is None:  # it failed before: all of it, and the pause that follows
            return now_ns() - self._started_ns
        return facts.connecting_ns(self.trace)

    def _begin(self, transport: httpx.AsyncBaseTransport, request: httpx.Request) -> None:
        self._finished = asyncio.get_running_loop().create_future()
        self.attempts += 1
        self._started_ns = self._progress_ns = now_ns()
        request.extensions[TRACE] = self.trace
        request.extensions["timeout"] = {"connect": self._limits.connect_s}
        if not getattr(transport, "stamps", False):
            request.extensions["trace"] = httpcore_hook(self.trace)

    async def _converse(self, transport: httpx.AsyncBaseTransport, request: httpx.Request) -> None:
        assert self._finished is not None
        response = await transport.handle_async_request(request)
        if TRACE not in response.extensions:  # a transport that knows no sinks
            await self._pull(response)
            return
        try:
            await self._finished
            if self._ended_how is None and self._is_done:
                await self._wait_for_framing()
        finally:
            if self._ended_how is None:
                linger = getattr(response.stream, "linger", None)
                if linger and self._is_done:
                    linger()
                else:
                    await response.aclose()

    @property
    def _is_done(self) -> bool:
        return self._said_done or self.answer.complete

    async def _wait_for_framing(self) -> None:
        loop = asyncio.get_running_loop()
        self._finished = loop.create_future()
        handle = loop.call_later(_DONE_GRACE_S, _resolve, self._finished)
        try:
            await self._finished
        finally:
            handle.cancel()

    async def _pull(self, response: httpx.Response) -> None:
        """Read the body of a foreign transport: stamps are user-space, taken piece by piece."""
        trace = self.trace
        if trace.sent_ns is None:  # a transport that says nothing of when it sent
            trace.sent_ns = self._started_ns
        if trace.headers_ns is None:
            trace.headers_ns = now_ns()
        trace.status = response.status_code
        trace.headers = {name.lower(): value for name, value in response.headers.items()}
        try:
            async for piece in pieces_of(response):
                if piece:
                    self.body(now_ns(), 0, piece)
                if self._finished is None or self._finished.done():
                    break
            else:
                self.ended(now_ns(), "end")
        finally:
            await response.aclose()

    def _body_before_first_token(self, stamp_ns: int, data: bytes) -> None:
        if self._collecting:
            self._collect(data)
            return
        if not self._stamps.at_ns and not self._body and self._must_collect(data):
            self._collecting = True
            self._collect(data)
            self._watch()
            return
        self._stamps.note(self.answer.feed(data), stamp_ns)
        if self._stamps.at_ns:
            self._eager = False
            self._whole = data[-2:] == b"\n\n"
            self._progress_ns = stamp_ns
            self._watch()  # another limit holds from here on, and it may come sooner
        self._look_for_end(stamp_ns)

    def _must_collect(self, data: bytes) -> bool:
        status = self.trace.status
        if status is not None and status >= 300:
            return True
        if "event-stream" in self.trace.headers.get("content-type", ""):
            return False
        # What calls itself something else may be a stream nevertheless; the first bytes tell.
        start = data.lstrip(b"\xef\xbb\xbf \r\n")
        return not start.startswith((b"data:", b"event:", b":", b"id:", b"retry:"))

    def _collect(self, data: bytes) -> None:
        status = self.trace.status
        limit = self._limits.max_event_bytes if status == 200 else _ERROR_BODY_LIMIT
        if len(self._body) < limit:
            self._body += data
        self._progress_ns = now_ns()

    def _decode_pending(self, most: int | None = None) -> None:
        pending = self._pending
        upto = len(pending) if most is None else min(2 * most, len(pending))
        feed, note = self.answer.feed, self._stamps.note
        for index in range(0, upto, 2):
            note(feed(pending[index + 1]), pending[index])
        if upto == len(pending):
            self._pending = []
            self._pending_bytes = 0
        else:
            del pending[:upto]

    def _look_for_end(self, stamp_ns: int) -> None:
        if self.answer.complete or self.answer.error is not None:
            self._finish(stamp_ns)

    def _finish(self, stamp_ns: int) -> None:
        if self.end_ns is None:
            self.end_ns = stamp_ns
        if self._finished:
            _resolve(self._finished)

    # --- limits: one timer, set anew when it fires and at the first token

    def _watch(self) -> None:
        if self._handle:
            self._handle.cancel()
        due = self._next_limit()
        if due is not NEVER:
            delay_s = max(due.at_ns - now_ns(), 0) / 1e9
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._check_limits)

    def _next_limit(self) -> Due:
        awaited: int | None = None
        if not (self._stamps.at_ns or self._collecting):
            # While connecting, which has its own limit, look again later.
            awaited = self.trace.sent_ns if self.trace.sent_ns is not None else now_ns()
        return self._limits.next_ns(
            started_ns=self._started_ns, token_from_ns=awaited, progress_ns=self._progress_ns
        )

    def _check_limits(self) -> None:
        due = self._next_limit()
        if due.at_ns <= now_ns() + _TIMER_SLACK_NS:
            chunks = len(self._stamps.at_ns)
            self.interrupt(
                Outcome.TIMEOUT, due.name, f"{_LIMIT_SAID[due.name]} (chunks so far: {chunks})"
            )
            return
        self._watch()

    # --- judging

    def _fail(self, error: Exception) -> None:
        found = failures.verdict_of(error)
        if self._stamps.at_ns or self._ended_how:  # the stream had begun: judged with what it said
            if self._ended_how is None and found.error_class == "connection_reset":
                self._ended_how = "reset"  # a foreign transport raises it in place of telling us
            return
        self.verdict = found

    def _judge(self, secrets: Sequence[str]) -> Verdict:
        refused = self.trace.status is not None and self.trace.status >= 300
        if self._interrupted and not self.answer.complete and not refused:
            return self._interrupted
        if self.verdict:
            return self.verdict
        trace = self.trace
        if trace.status is None:
            return Verdict(outcome=Outcome.BROKEN, error_class="no_response")
        if trace.status >= 300:
            return of_status(trace.status, trace.headers, bytes(self._body), secrets=secrets)
        content_type = trace.headers.get("content-type")
        if self._collecting and self._ended_how == "end":
            whole = read_json_answer(bytes(self._body), self.endpoint)
            if whole is not None:
                self.answer = whole
        how: EndedBy = "eof"
        if self.answer.complete:
            how = "done"
        elif self._ended_how == "reset":
            how = "reset"
        elif self._ended_how == "protocol_error":
            how = "protocol_error"
        return of_stream(
            self.answer,
            ended=how,
            content_type=content_type,
            body_head=bytes(self._body[:2000]),
            secrets=secrets,
        )

    def _facts(self, verdict: Verdict, count: Callable[[str], int] | None) -> dict[str, Any]:
        said, stamps = self.answer.facts(count), self._stamps
        flags = [*said.flags, *length_flags(said, self._asked_output)]
        if stamps.buffered:
            flags.append("buffered")
        return {
            **facts.on_the_wire(self.trace),
            **facts.of_chunks(stamps, tokens_known=said.tokens_known),
            **facts.of_answer(said),
            **facts.of_verdict(verdict),
            "earlier_connects_ns": self.earlier_connects_ns,
            "throttled_ns": self.throttled_ns,
            "end_ns": self.end_ns,
            "attempts": self.attempts,
            "flags": flags,
        }


def _alone(data: bytes) -> bool:
    """Whether the [DONE] that ends ``data`` is an event of its own, not the end of a longer one."""
    return (
        len(data) == len(_DONE_EVENT) or data[-len(_DONE_EVENT) - 2 : -len(_DONE_EVENT)] == b"\n\n"
    )


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
