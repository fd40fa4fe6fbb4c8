"""One TCP connection, plain or TLS: bytes out, stamped bytes in, one exchange at a time.

Each read takes the kernel's receive stamp (SO_TIMESTAMPNS, exact for the last byte of the read)
where the system has it, else the clock right after the read. Under TLS the ciphertext is read the
same way and decrypted from memory, so that the stamp is the arrival, not the decryption.
"""

import asyncio
import errno
import os
import socket
import ssl
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from loadgen.client.clock import LONG_LAG_NS, RealtimeMap, now_ns

if TYPE_CHECKING:
    from loadgen.client.reply import Reply

_SO_TIMESTAMPNS = 35  # Linux; the ``socket`` module does not name it
_READ_SIZE = 65536
_USUAL_SIZE = 8192  # of a read while tokens trickle in: a large buffer costs a microsecond each
_ANCILLARY_SIZE = 64
_TIMESPEC = struct.Struct("qq").unpack_from
_WAIT = (BlockingIOError, InterruptedError)


class Connection:
    """A connected socket on the running loop. ``closed`` tells that nothing more can be sent."""

    __slots__ = (
        "_ends_watch_on_error",
        "_loop",
        "_map",
        "_on_idle_close",
        "_read_size",
        "_stamped",
        "_tls",
        "_unsent",
        "closed",
        "exchanges",
        "fd",
        "peer",
        "reply",
        "sock",
    )

    def __init__(
        self, sock: socket.socket, *, peer: str, realtime: RealtimeMap, tls: "TlsStream | None"
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ends_watch_on_error = type(self._loop).__module__.startswith("uvloop")
        self._map = realtime
        self._tls = tls
        self._unsent: memoryview | None = None
        self._on_idle_close: Callable[[Connection], None] | None = None
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.reply: Reply | None = None
        self.exchanges = 0
        self.closed = False
        self._read_size = _USUAL_SIZE
        self._stamped = stamp_arrivals(sock)
        self._loop.add_reader(self.fd, self._readable)

    def send(self, data: bytes, reply: "Reply") -> None:
        """Hand a whole request to the kernel; what it does not take now follows when it can.

        Stamps ``sent`` and ``written`` into the trace. Raises OSError when the peer is gone.
        """
        self.reply = reply
        self.exchanges += 1
        if self._tls:
            data = self._tls.encrypt(data)
        trace = reply.trace
        start = now_ns()
        if trace.sent_ns is None:  # a retry on a fresh connection keeps the first instant
            trace.sent_ns = start
        sent = self._send_some(data)
        if sent == len(data):
            trace.written_ns = now_ns()
            return
        self._unsent = memoryview(data)[sent:]
        self._loop.add_writer(self.fd, self._writable)

    @property
    def idle_ready(self) -> bool:
        """Whether another request may be sent: open, and the last one went out whole."""
        return not self.closed and self._unsent is None

    def lose(self, error: OSError) -> None:
        """Close, and tell the running exchange that the connection is lost."""
        self._lost("reset", now_ns(), error)

    def still_open(self) -> bool:
        """Look whether the peer has closed an idle connection, before the loop says so.

        Some servers announce keep-alive and close after each stream: the end comes within
        microseconds of the last byte, and a request sent into it would be lost.
        """
        if self.closed:
            return False
        try:
            gone = not self.sock.recv(1, socket.MSG_PEEK)
        except _WAIT:
            return True
        except OSError:
            gone = True
        if gone:
            self.close()
        return not gone

    def release(self) -> None:
        """Forget the finished exchange; the connection is idle now and watches for its end."""
        self.reply = None

    def on_idle_close(self, tell: Callable[["Connection"], None]) -> None:
        """Call ``tell`` when the peer closes while no exchange is running."""
        self._on_idle_close = tell

    def close(self) -> None:
        """Close the socket; the running exchange, if any, is not told."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self.fd)
        if self._unsent is not None:
            self._loop.remove_writer(self.fd)
            self._unsent = None
        self.sock.close()
        self.reply = None

    def _send_some(self, data: bytes | memoryview) -> int:
        try:
            return self.sock.send(data)
        except _WAIT:
            return 0

    def _writable(self) -> None:
        unsent = self._unsent
        if unsent is None:
            return
        try:
            sent = self._send_some(unsent)
        except OSError as error:
            self._lost("reset", now_ns(), error)
            return
        if sent < len(unsent):
            self._unsent = unsent[sent:]
            return
        self._unsent = None
        self._loop.remove_writer(self.fd)
        if self.reply:
            self.reply.trace.written_ns = now_ns()

    def _readable(self) -> None:
        # The hot path: one system call, the stamp, the parser (which calls the sink).
        try:
            if self._stamped:
                data, ancillary, _, _ = self.sock.recvmsg(self._read_size, _ANCILLARY_SIZE)
            else:
                data, ancillary = self.sock.recv(self._read_size), []
        except _WAIT:
            return
        except OSError as error:
            self._lost("reset", now_ns(), error)
            return
        user_ns = now_ns()
        stamp_ns = user_ns
        if ancillary:
            seconds, nanos = _TIMESPEC(ancillary[0][2])
            stamp_ns = seconds * 1_000_000_000 + nanos - self._map.offset_ns
            if not 0 <= user_ns - stamp_ns < LONG_LAG_NS:
                stamp_ns = self._map.monotonic_of(seconds * 1_000_000_000 + nanos, user_ns)
        if not data:
            self._lost("eof", user_ns, None)
            return
        if self._tls:
            self._readable_tls(data, stamp_ns, user_ns)
        elif self.reply is None:
            self._lost("eof", user_ns, None)  # bytes nobody asked for: not a usable connection
        else:
            self.reply.feed(stamp_ns, user_ns - stamp_ns, data)
        if len(data) == self._read_size:  # there is more than tokens come in: take more at once
            self._read_size = _READ_SIZE

    def look_for_reset(self) -> None:
        """Learn of a reset that came together with data, where the loop would not tell of it.

        libuv ends its watch of a socket at the first error and tells once: told while data is
        still to be read, the reader would never be called again.
        """
        if self.closed or not self._ends_watch_on_error:
            return
        number = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not number:
            return
        while not self.closed:
            try:
                rest = self.sock.recv(_READ_SIZE)
            except OSError:
                break
            if not rest or self.reply is None or self._tls:
                break
            self.reply.feed(now_ns(), 0, rest)
        if not self.closed:
            self._lost("reset", now_ns(), OSError(number, os.strerror(number)))

    def _readable_tls(self, data: bytes, stamp_ns: int, user_ns: int) -> None:
        assert self._tls is not None
        try:
            pieces, over = self._tls.decrypt(data)
            if answer := self._tls.pending():  # key updates and the like
                self._send_some(answer)
        except (ssl.SSLError, OSError) as error:
            self._lost("reset", user_ns, error)
            return
        reply = self.reply
        for piece in pieces:
            if reply is None or reply is not self.reply:  # bytes nobody asked for
                self._lost("eof", user_ns, None)
                return
            reply.feed(stamp_ns, user_ns - stamp_ns, piece)
        if over:
            self._lost("eof", user_ns, None)

    def _lost(self, how: str, at_ns: int, error: Exception | None) -> None:
        reply = self.reply
        self.close()
        if reply is not None:
            reply.lost(how, at_ns, error)
        elif self._on_idle_close:
            self._on_idle_close(self)


class TlsStream:
    """TLS over memory: ciphertext in and out as bytes, no socket of its own."""

    __slots__ = ("_incoming", "_object", "_outgoing")

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)

    async def handshake(self, sock: socket.socket) -> None:
        """Shake hands over a connected non-blocking socket; raises ssl.SSLError or OSError."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(sock, self._outgoing.read())
                data = await loop.sock_recv(sock, _READ_SIZE)
                if not data:
                    raise ConnectionResetError(
                        errno.ECONNRESET, "connection closed during the TLS handshake"
                    ) from None
                self._incoming.write(data)
                continue
            except ssl.SSLError:
                # tell the peer why before giving up (an alert waits in the buffer)
                if alert := self._outgoing.read():
                    await loop.sock_sendall(sock, alert)
                raise
            await loop.sock_sendall(sock, self._outgoing.read())
            return

    def encrypt(self, data: bytes) -> bytes:
        """Return the records that carry ``data``."""
        self._object.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> tuple[list[bytes], bool]:
        """Return the plain text that became whole with ``data``, and whether the peer is done."""
        self._incoming.write(data)
        pieces: list[bytes] = []
        while True:
            try:
                piece = self._object.read(_READ_SIZE)
            except ssl.SSLWantReadError:
                return pieces, False
            except ssl.SSLZeroReturnError:
                return pieces, True
            if not piece:
                return pieces, True
            pieces.append(piece)

    def pending(self) -> bytes:
        """Return records that must go out although nothing was sent."""
        return self._outgoing.read()


def stamp_arrivals(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what arrives; False where it cannot (user-space stamps serve)."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True
