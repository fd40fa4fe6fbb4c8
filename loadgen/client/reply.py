"""One response being received: HTTP/1.1 parsed as it arrives, the body passed on inside the read.

With a sink in the trace, body bytes go to it in the read callback. Without one they queue for
``aiter``, the way any httpx stream does.
"""

import asyncio
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import httptools
import httpx

from loadgen.client.clock import now_ns
from loadgen.client.trace import Trace


class _Inflater(Protocol):
    def decompress(self, data: bytes, /) -> bytes: ...


class Reply:
    """The receiving half of one exchange; its methods are called by the connection and the parser.

    headers_done: resolves when the head is in, or raises the httpx error that came instead.
    """

    __slots__ = (
        "_body",
        "_error",
        "_header_list",
        "_inflater",
        "_lag_ns",
        "_over",
        "_parser",
        "_stamp_ns",
        "_waiter",
        "_whole",
        "any_bytes",
        "complete",
        "headers_done",
        "http_version",
        "keep_alive",
        "on_done",
        "status",
        "trace",
    )

    def __init__(self, trace: Trace, on_done: Callable[["Reply"], None]) -> None:
        self.trace = trace
        self.on_done = on_done  # told once, when the exchange holds the connection no longer
        self.headers_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0  # once the head is in
        self.http_version = b"HTTP/1.1"
        self.complete = False
        self.keep_alive = False
        self.any_bytes = False
        self._over = False
        self._whole = False  # the message is; told when its last read is parsed to the end
        self._parser: Any = None  # made when the first bytes come: a burst of sends is not held up
        self._header_list: list[tuple[bytes, bytes]] = []
        self._body: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: httpx.RequestError | None = None
        self._inflater: _Inflater | None = None
        self._stamp_ns = 0
        self._lag_ns = 0

    def forget_parser(self) -> None:
        """Let go of the parser, which holds this reply and would keep both alive."""
        self._parser = None
        self._over = True

    @property
    def header_list(self) -> list[tuple[bytes, bytes]]:
        """The response headers as received."""
        return self._header_list

    # --- from the connection

    def feed(self, stamp_ns: int, lag_ns: int, data: bytes) -> None:
        """Parse one read."""
        parser = self._parser
        if parser is None:
            if self._over:
                return
            parser = self._parser = httptools.HttpResponseParser(self)
            self.any_bytes = True
        self._stamp_ns = stamp_ns
        self._lag_ns = lag_ns
        try:
            parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._finish("protocol_error", httpx.RemoteProtocolError("unexpected upgrade"))
        except httptools.HttpParserError as error:
            if self._whole:  # bytes nobody asked for: no other request may go this way
                self.keep_alive = False
            else:
                text = f"the response is not valid HTTP/1.1: {error}"
                self._finish("protocol_error", httpx.RemoteProtocolError(text))
        if self._whole:
            self._finish("end", None)

    def lost(self, how: str, at_ns: int, error: Exception | None) -> None:
        """Learn that the connection is gone ("eof" or "reset")."""
        if self.complete:
            return
        self._stamp_ns = at_ns
        if how == "eof" and self._ends_with_connection():
            self._finish("end", None)
            return
        if how == "eof":
            failure: httpx.TransportError = httpx.RemoteProtocolError(
                "the server closed the connection before the response was complete"
            )
        else:
            failure = httpx.ReadError(f"connection lost: {error}")
        failure.__cause__ = error
        self._finish(how, failure)

    # --- from the parser; what is raised here ends its work on this read

    def on_message_begin(self) -> None:
        """Stop at a second message: nothing was asked that it could answer."""
        if self._whole:
            raise httpx.RemoteProtocolError("bytes after the response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header."""
        self._header_list.append((name, value))

    def on_headers_complete(self) -> None:
        """Publish the head; an interim 1xx answer is forgotten and waited past."""
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._header_list = []
            return
        trace = self.trace
        trace.status = self.status = status
        self.http_version = b"HTTP/" + self._parser.get_http_version().encode()
        trace.headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in self._header_list
        }
        trace.headers_ns = self._stamp_ns
        if trace.sink:
            self._inflater = inflater(trace.headers.get("content-encoding", ""))
        if not self.headers_done.done():
            self.headers_done.set_result(None)

    def on_body(self, data: bytes) -> None:
        """Pass body bytes on."""
        sink = self.trace.sink
        if sink is None:
            self._body.append(data)
            self._wake()
            return
        if self._inflater:
            try:
                data = self._inflater.decompress(data)
            except zlib.error as error:
                text = f"the body is not what content-encoding says: {error}"
                self._finish("protocol_error", httpx.DecodingError(text))
                raise
            if not data:
                return
        sink.body(self._stamp_ns, self._lag_ns, data)

    def on_message_complete(self) -> None:
        """Learn that the whole response is in."""
        if not self.status and not self.headers_done.done():
            return  # an interim answer; the same parser goes on with the real one
        self.keep_alive = self._parser.should_keep_alive()
        self._whole = True

    # --- for the httpx API

    async def aiter(self) -> AsyncIterator[bytes]:
        """Yield body pieces as they come; nothing where a sink takes them."""
        while True:
            while self._body:
                yield self._body.popleft()
            if self._error:
                raise self._error
            if self.complete:
                return
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    # --- inside

    def _ends_with_connection(self) -> bool:
        headers = self.trace.headers
        return (
            self.headers_done.done()
            and "content-length" not in headers
            and "chunked" not in headers.get("transfer-encoding", "").lower()
        )

    def _finish(self, how: str, error: httpx.RequestError | None) -> None:
        if self.complete:
            return
        self.complete = True
        self._error = error
        self.keep_alive = self.keep_alive and error is None
        # not now: this is called from inside the parser
        self.headers_done.get_loop().call_soon(self.forget_parser)
        self.on_done(self)  # first of all: who learns of the end may send the next request at once
        if not self.headers_done.done():
            self.headers_done.set_exception(
                error or httpx.RemoteProtocolError("the response has no head")
            )
        elif self.trace.sink:
            self.trace.sink.ended(self._stamp_ns or now_ns(), how)
        self._wake()

    def _wake(self) -> None:
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)


def inflater(encoding: str) -> _Inflater | None:
    """Return a progressive decoder for gzip and deflate; None where the body is plain."""
    match encoding.strip().lower():
        case "gzip" | "x-gzip":
            return zlib.decompressobj(16 + zlib.MAX_WBITS)
        case "deflate":
            return zlib.decompressobj()
    return None
