"""The transport that stamps: an ``httpx.AsyncBaseTransport`` over sockets of our own.

Differences from httpx's own, all for the sake of the measurement: kernel receive stamps; the body
reaches a sink inside the read callback; a pool whose cost does not depend on its size; names
resolved once; connections made ahead. HTTP/1.1 only. A reused connection that dies before any byte
of the answer is replaced once, and counted: servers close kept-alive connections when they like.
"""

import asyncio
import math
import resource
import ssl
from collections import OrderedDict
from collections.abc import AsyncIterator

import httpx

from loadgen.client.clock import RealtimeMap
from loadgen.client.connection import Connection
from loadgen.client.origin import Origin
from loadgen.client.reply import Reply
from loadgen.client.trace import TRACE, Trace

WIRE_BYTES = "loadgen.bytes"
SPARE_DESCRIPTORS = 64  # for what is no connection: files, pipes, timers and the loop's own
_STARTED = "loadgen.started"
_LINGER_S = 1.0
_LOOK_S = 0.01
_LOOKS = 25  # in which every connection is looked at once


class StampedTransport(httpx.AsyncBaseTransport):
    """Sends requests over stamped connections of the running loop.

    reuse: keep connections for the next request; False opens one for each (a cold client).
    """

    stamps = True  # takes a Trace and feeds its sink

    def __init__(self, *, context: ssl.SSLContext | None = None, reuse: bool = True) -> None:
        self.realtime = RealtimeMap()
        self._context = context
        self._reuse = reuse
        self._origins: dict[tuple[str, str, int | None], Origin] = {}
        self._busy: set[Connection] = set()
        self._opening = 0
        self._lingering: OrderedDict[Connection, _ReplyStream] = OrderedDict()  # of the busy ones
        self._resets = _ResetWatch(self._busy)

    def origin(self, url: httpx.URL) -> Origin:
        """Return the server that ``url`` names, the same object each time."""
        key = (url.scheme, url.host, url.port)
        if key not in self._origins:
            context = self._context
            if context is None and url.scheme == "https":
                context = self._context = ssl_context()
            self._origins[key] = Origin(url, realtime=self.realtime, context=context)
        return self._origins[key]

    def send_now(self, request: httpx.Request) -> bool:
        """Send over an idle connection at once, not waiting for the loop; False if none is idle.

        ``handle_async_request`` with the same request then awaits the answer. The request must
        carry its trace and its bytes (``TRACE``, ``WIRE_BYTES``).
        """
        origin = self.origin(request.url)
        connection = origin.take() if self._reuse else None
        if connection is None:
            return False
        trace: Trace = request.extensions[TRACE]
        trace.connection = "reused"
        trace.peer = connection.peer
        reply = Reply(trace, _Done(self, origin, connection))
        self._send(connection, request.extensions[WIRE_BYTES], reply)
        request.extensions[_STARTED] = (connection, reply)
        return True

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; returns when the response's head is in.

        The connect limit is ``request.extensions["timeout"]["connect"]`` (s), as everywhere in
        httpx; other limits are the caller's (cancel, or close the response).
        """
        trace: Trace = request.extensions.get(TRACE) or Trace()
        data: bytes | None = request.extensions.get(WIRE_BYTES)
        if data is None:
            await request.aread()
            data = wire_bytes(request)
        limit_s: float | None = request.extensions.get("timeout", {}).get("connect")
        origin = self.origin(request.url)
        started: tuple[Connection, Reply] | None = request.extensions.pop(_STARTED, None)
        connection = origin.take() if self._reuse and not started else None
        while True:
            reused = started is not None or connection is not None
            if started is not None:
                connection, reply = started
                started = None
            else:
                if connection is None:
                    connection = await self._open(origin, trace, limit_s)
                trace.connection = "reused" if reused else "new"
                trace.peer = connection.peer
                reply = Reply(trace, _Done(self, origin, connection))
                self._send(connection, data, reply)
            try:
                await self._head_of(reply, connection)
            except (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                if not reused or reply.any_bytes:
                    raise
                trace.reconnects += 1
                connection = None
                continue
            return httpx.Response(
                reply.status,
                headers=reply.header_list,
                stream=_ReplyStream(self, reply, connection),
                extensions={"http_version": reply.http_version, TRACE: trace},
                request=request,
            )

    async def aclose(self) -> None:
        """Close every connection, idle or not."""
        self._resets.close()
        for connection in list(self._busy):
            connection.close()
        self._busy.clear()
        for origin in self._origins.values():
            origin.close()

    async def _open(self, origin: Origin, trace: Trace, limit_s: float | None) -> Connection:
        """Open a connection; where descriptors are short, what lingers longest leaves it its own.

        So those that linger, several for each slot where answers are short, cost no request.
        """
        self._opening += 1
        try:
            in_use = len(self._busy) + self._opening + origin.idle
            if self._lingering and in_use > _most_connections():
                self._lingering.popitem(last=False)[1].give_up()
            return await origin.open(trace, limit_s)
        finally:
            self._opening -= 1

    def _send(self, connection: Connection, data: bytes, reply: Reply) -> None:
        self._busy.add(connection)
        self._resets.begin()
        try:
            connection.send(data, reply)
        except OSError as error:
            connection.lose(error)

    async def _head_of(self, reply: Reply, connection: Connection) -> None:
        try:
            await reply.headers_done
        except BaseException:
            connection.close()
            self._busy.discard(connection)
            raise

    def lingers(self, connection: Connection, stream: "_ReplyStream") -> None:
        """Learn that a connection waits for nothing but the end of its framing."""
        self._lingering[connection] = stream

    def finished(self, origin: Origin, connection: Connection, keep: bool) -> None:
        """Take a connection back whose exchange is over."""
        self._busy.discard(connection)
        self._lingering.pop(connection, None)
        if keep and self._reuse and connection.idle_ready:
            origin.give(connection)
        else:
            connection.close()


class _ResetWatch:
    """Asks each busy connection every quarter of a second whether it was reset, a few at a time.

    The loop tells of nearly all resets at once (see ``Connection.look_for_reset``); asking at each
    read would cost a system call per token.
    """

    def __init__(self, busy: set[Connection]) -> None:
        self._busy = busy
        self._round: list[Connection] = []
        self._handle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Watch from now on, while there are busy connections."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def close(self) -> None:
        """Watch no longer."""
        if self._handle:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        self._handle = None
        if not self._round:
            self._round = list(self._busy)
        for _ in range(min(len(self._round), 1 + len(self._busy) // _LOOKS)):
            self._round.pop().look_for_reset()
        if self._busy:
            self.begin()


class _Done:
    """What a reply calls when it is over."""

    __slots__ = ("_connection", "_origin", "_transport")

    def __init__(self, transport: StampedTransport, origin: Origin, connection: Connection) -> None:
        self._transport = transport
        self._origin = origin
        self._connection = connection

    def __call__(self, reply: Reply) -> None:
        self._transport.finished(self._origin, self._connection, reply.keep_alive)


class _ReplyStream(httpx.AsyncByteStream):
    """The body for the httpx API; closing it early closes the connection, or lets it linger."""

    def __init__(self, transport: StampedTransport, reply: Reply, connection: Connection) -> None:
        self._transport = transport
        self._reply = reply
        self._connection = connection

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._reply.aiter():
            yield piece

    async def aclose(self) -> None:
        """End the exchange now, at the price of the connection where the body is not over."""
        if not self._reply.complete:
            self._connection.close()
            self._reply.on_done(self._reply)

    def linger(self) -> None:
        """Let the last bytes of a body come (the end of chunked framing after [DONE]).

        The connection returns to the pool when they have, and is closed when they have not within
        a second, or its descriptor is needed before.
        """
        self._transport.lingers(self._connection, self)
        asyncio.get_running_loop().call_later(_LINGER_S, self.give_up)

    def give_up(self) -> None:
        """Linger no longer; nothing happens where the body is over."""
        if not self._reply.complete and self._connection.reply is self._reply:
            self._connection.close()
            self._reply.on_done(self._reply)


def _most_connections() -> float:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if soft == resource.RLIM_INFINITY else soft - SPARE_DESCRIPTORS


def wire_bytes(request: httpx.Request) -> bytes:
    """Return a request, whose body is read, as HTTP/1.1 bytes."""
    lines = [request.method.encode("ascii") + b" " + request.url.raw_path + b" HTTP/1.1"]
    lines += [name + b": " + value for name, value in request.headers.raw]
    return b"\r\n".join(lines) + b"\r\n\r\n" + request.content


def ssl_context(*, ca_file: str | None = None, insecure: bool = False) -> ssl.SSLContext:
    """Return the context all connections share (building one costs 16 ms).

    Raises OSError or ssl.SSLError where ``ca_file`` cannot be used.
    """
    context = ssl.create_default_context(cafile=ca_file)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1"])
    return context
