"""HTTP/1.1 on one connection: bytes in, requests out; answers are written by who made them.

Every ``write`` goes to the socket at once. That holds for the standard event loop, whose
transports try ``send`` inside ``write``; uvloop queues writes to the end of its turn, which would
make a stamp taken before ``write`` early by as long as a whole batch takes to render.
"""

import asyncio
import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol, cast

import httptools

MAX_BODY_BYTES = 64 * 1024 * 1024
_LINGER_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One whole request; instants are CLOCK_MONOTONIC ns of the reads that brought it."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    arrived_ns: int  # the read with its first byte
    read_ns: int  # the read with its last byte
    keep_alive: bool


class Site(Protocol):
    """What a connection serves."""

    def opened(self, connection: "Connection") -> None: ...  # noqa: D102
    def closed(self, connection: "Connection") -> None: ...  # noqa: D102
    def answer(self, connection: "Connection", request: Request) -> None: ...  # noqa: D102


class Connection(asyncio.Protocol):
    """One client connection. At most one request is answered at a time; others wait in line."""

    def __init__(self, site: Site, *, close_after: int | None, idle_close_s: float | None) -> None:
        self._site = site
        self._close_after = close_after
        self._idle_close_s = idle_close_s
        self._idle: asyncio.TimerHandle | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._line: deque[Request] = deque()
        self._current: Request | None = None
        self._served = 0
        self._too_large = False
        self._read_ns = 0
        self.accepted_ns = 0
        self.number = 0
        self.on_lost: Callable[[], None] | None = None  # set while an answer is under way
        self.transport = cast(asyncio.Transport, None)

    # -- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        self.transport = cast(asyncio.Transport, transport)
        self.accepted_ns = time.monotonic_ns()
        self.transport.set_write_buffer_limits(high=2**30)  # a slow reader must not stop others
        self._site.opened(self)
        self._wait_idle()

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._read_ns = time.monotonic_ns()
        self._stop_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.refuse(501)
        except httptools.HttpParserError:
            self.refuse(400)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002, D102
        self._stop_idle()
        self._line.clear()
        self._site.closed(self)
        if self.on_lost:
            self.on_lost()
            self.on_lost = None

    # -- the parser's side

    def on_message_begin(self) -> None:  # noqa: D102
        self._begun_ns = self._read_ns
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._size = 0
        self._too_large = False

    def on_url(self, url: bytes) -> None:  # noqa: D102
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: D102
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:  # noqa: D102
        if self._headers.get("expect", "").lower() == "100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:  # noqa: D102
        self._size += len(body)
        if self._size > MAX_BODY_BYTES:
            self._too_large = True
            self._body.clear()
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:  # noqa: D102
        if self._too_large:
            self.refuse(413)
            return
        target = self._url.decode("latin-1")
        path, _, query = target.partition("?")
        request = Request(
            method=self._parser.get_method().decode("latin-1"),
            path=path,
            query=query,
            headers=self._headers,
            body=b"".join(self._body),
            arrived_ns=self._begun_ns,
            read_ns=self._read_ns,
            keep_alive=self._parser.should_keep_alive(),
        )
        self._line.append(request)
        self._next()

    # -- the answer's side

    def respond(self, status: int, headers: tuple[tuple[str, str], ...], body: bytes) -> None:
        """Write one whole answer and go on to the next request."""
        sized = (*headers, ("content-length", str(len(body))))
        self.transport.write(self.head(status, sized) + body)
        self.done()

    def head(self, status: int, headers: tuple[tuple[str, str], ...]) -> bytes:
        """Return status line and headers, with the date and what becomes of the connection."""
        lines = [f"HTTP/1.1 {status} {_phrase(status)}", f"date: {formatdate(usegmt=True)}"]
        lines += [f"{name}: {value}" for name, value in headers]
        if self._current is not None and not self._current.keep_alive:
            lines.append("connection: close")
        return "\r\n".join((*lines, "", "")).encode("latin-1")

    def done(self) -> None:
        """Tell that the answer under way is complete."""
        request, self._current = self._current, None
        self.on_lost = None
        self._served += 1
        spent = self._close_after is not None and self._served >= self._close_after
        if spent or request is None or not request.keep_alive:
            self.transport.close()
            return
        self._wait_idle()
        if self._line:  # not by recursion: a long pipeline of refusals must not grow the stack
            asyncio.get_running_loop().call_soon(self._next)

    def refuse(self, status: int) -> None:
        """Answer what is no valid request, and close."""
        self._line.clear()
        if self._current is None:  # else an answer is half written: only closing is left
            headers = (("content-length", "0"), ("connection", "close"))
            self.transport.write(self.head(status, headers))
        self.transport.close()

    def reset(self) -> None:
        """End the connection with RST in place of FIN."""
        raw = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
        self.transport.abort()

    def hold(self, seconds: float) -> None:
        """Read nothing for a while."""
        self.transport.pause_reading()
        asyncio.get_running_loop().call_later(seconds, self._release)

    def _release(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _next(self) -> None:
        if self._current is None and self._line and not self.transport.is_closing():
            self._stop_idle()
            self._current = self._line.popleft()
            self._site.answer(self, self._current)

    def _wait_idle(self) -> None:
        if self._idle_close_s is not None:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(self._idle_close_s, self.transport.close)

    def _stop_idle(self) -> None:
        if self._idle:
            self._idle.cancel()
            self._idle = None


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase
