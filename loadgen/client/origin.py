"""One server as connections see it: its addresses, and the connections that are idle.

A name is resolved once; new connections take its addresses in turn. Taking and giving back an
idle connection costs the same whatever their number, the most recently used goes first (it is the
least likely to be closed by the server's idle limit).
"""

import asyncio
import errno
import os
import socket
import ssl
from collections import OrderedDict
from dataclasses import dataclass

import httpx

from loadgen.client.clock import RealtimeMap, now_ns
from loadgen.client.connection import Connection, TlsStream
from loadgen.client.trace import Trace

_CONNECTS_AT_ONCE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One address of the server, as ``getaddrinfo`` gave it."""

    family: int
    sockaddr: tuple[str, int] | tuple[str, int, int, int]

    @property
    def peer(self) -> str:
        """The address as people write it: 127.0.0.1:8000, [::1]:8000."""
        host, port = self.sockaddr[0], self.sockaddr[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Origin:
    """Scheme, host and port, with the pool of idle connections to it."""

    def __init__(
        self, url: httpx.URL, *, realtime: RealtimeMap, context: ssl.SSLContext | None
    ) -> None:
        # as it is looked up: Python's own codec would make another name of some IDNA hosts
        self.host = url.raw_host.decode("ascii")
        self.port = url.port or (443 if url.scheme == "https" else 80)
        self.addresses: list[Address] = []
        self.connect_ns: int | None = None  # the quickest connect seen: how far the server is
        self._context = context if url.scheme == "https" else None
        self._realtime = realtime
        self._next = 0
        self._idle: OrderedDict[Connection, None] = OrderedDict()

    @property
    def idle(self) -> int:
        """How many connections wait for a request."""
        return len(self._idle)

    async def resolve(self) -> list[Address]:
        """Look the name up, once; raises httpx.ConnectError where it has no address."""
        if self.addresses:
            return self.addresses
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # UnicodeError: no name, as IDNA has it
            why = getattr(error, "strerror", None) or error
            raise httpx.ConnectError(f"{self.host}: {why}") from error
        addresses = [Address(family=row[0], sockaddr=row[4]) for row in found]  # type: ignore[arg-type]
        self.addresses = list(dict.fromkeys(addresses))
        return self.addresses

    async def drop_unreachable(self, limit_s: float | None) -> dict[str, str]:
        """Try every address once; keep those that answer. Returns peer → why not, for the others.

        ``localhost`` often has two addresses of which a server listens on one. Once a run has
        begun, an address that refuses is the server's failure and no longer passed over.
        Raises the last httpx.TransportError where none answers.
        """
        unreachable: dict[str, str] = {}
        reachable: list[Address] = []
        failure: httpx.TransportError | None = None
        for address in await self.resolve():
            trace = Trace()
            try:
                self.give(await self._open(address, trace, limit_s))
                reachable.append(address)
                took_ns = (trace.connected_ns or 0) - (trace.connect_start_ns or 0)
                self.connect_ns = min(took_ns, self.connect_ns or took_ns)
            except httpx.TransportError as error:
                unreachable[address.peer] = str(error)
                failure = error
        if failure and not reachable:
            raise failure
        self.addresses = reachable
        return unreachable

    def take(self) -> Connection | None:
        """Return the most recently used idle connection, if there is one."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.exchanges == 0 or connection.still_open():
                return connection
        return None

    def give(self, connection: Connection) -> None:
        """Put a connection back for the next request."""
        if not connection.closed:
            connection.release()
            connection.on_idle_close(self._forget)
            self._idle[connection] = None

    async def open(self, trace: Trace, limit_s: float | None) -> Connection:
        """Connect to the next address in turn; raises httpx.ConnectError or ConnectTimeout."""
        addresses = await self.resolve()
        address = addresses[self._next % len(addresses)]
        self._next += 1
        return await self._open(address, trace, limit_s)

    async def preconnect(self, wanted: int, limit_s: float | None) -> None:
        """Have exactly ``wanted`` idle connections; raises the first httpx.TransportError."""
        while len(self._idle) > wanted:
            self._idle.popitem(last=False)[0].close()
        gate = asyncio.Semaphore(_CONNECTS_AT_ONCE)

        async def one() -> None:
            async with gate:
                self.give(await self.open(Trace(), limit_s))

        missing = wanted - len(self._idle)
        results = await asyncio.gather(*(one() for _ in range(missing)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def close(self) -> None:
        """Close every idle connection."""
        while self._idle:
            self._idle.popitem()[0].close()

    def _forget(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

    async def _open(self, address: Address, trace: Trace, limit_s: float | None) -> Connection:
        loop = asyncio.get_running_loop()
        trace.peer = address.peer
        trace.connect_start_ns = now_ns()
        trace.connected_ns = trace.tls_done_ns = None
        sock: socket.socket | None = None
        try:
            sock = socket.socket(address.family, socket.SOCK_STREAM)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls: TlsStream | None = None
            async with asyncio.timeout(limit_s):
                if not _connected_at_once(sock, address):
                    await loop.sock_connect(sock, address.sockaddr)
                trace.connected_ns = now_ns()
                if self._context:
                    tls = TlsStream(self._context, self.host)
                    await tls.handshake(sock)
                    trace.tls_done_ns = now_ns()
            return Connection(sock, peer=address.peer, realtime=self._realtime, tls=tls)
        except TimeoutError as error:
            _close(sock)
            text = f"{address.peer}: no connection within {limit_s:g} s"
            raise httpx.ConnectTimeout(text) from error
        except (OSError, ssl.SSLError) as error:
            _close(sock)
            raise httpx.ConnectError(f"{address.peer}: {_reason(error)}") from error
        except BaseException:
            _close(sock)
            raise


def _connected_at_once(sock: socket.socket, address: Address) -> bool:
    """Try to connect without waiting: on loopback the second call finds the handshake done.

    A burst of connects then goes one after another, each ready to send, where waiting for the loop
    would begin them all before the first is ready.
    """
    if sock.connect_ex(address.sockaddr) == 0:
        return True
    return sock.connect_ex(address.sockaddr) in (0, errno.EISCONN)


def _reason(error: OSError) -> str:
    """Return the system's words for a failed connection, or TLS's for a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError) or not error.errno:
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno)


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()
