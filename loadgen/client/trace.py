"""The seam between a transport and who measures: instants of one request, and a sink for its body.

A request carries a ``Trace`` in ``request.extensions["loadgen.trace"]``; the transport writes the
instants into it as they happen (ns of CLOCK_MONOTONIC) and hands the body to ``trace.sink`` inside
the read callback. Without a trace the transport behaves like any httpx transport.
"""

from collections.abc import Mapping
from typing import Protocol

TRACE = "loadgen.trace"


class Sink(Protocol):
    """Takes the body of a response as it arrives. Neither method may raise or block."""

    def body(self, stamp_ns: int, lag_ns: int, data: bytes) -> None:
        """Take bytes that arrived at ``stamp_ns``; pieces of one read share their stamp.

        lag_ns: how long after the stamp user space had the bytes; 0 where stamps are user-space.
        """

    def ended(self, stamp_ns: int, how: str) -> None:
        """Learn that the body is over: "end" (complete), "eof", "reset" or "protocol_error"."""


class Trace:
    """What a transport notes of one request; None = did not happen."""

    __slots__ = (
        "connect_start_ns",
        "connected_ns",
        "connection",
        "headers",
        "headers_ns",
        "peer",
        "reconnects",
        "sent_ns",
        "sink",
        "status",
        "tls_done_ns",
        "written_ns",
    )

    def __init__(self, sink: Sink | None = None) -> None:
        self.sink = sink
        self.connect_start_ns: int | None = None
        self.connected_ns: int | None = None
        self.tls_done_ns: int | None = None
        self.sent_ns: int | None = None
        self.written_ns: int | None = None
        self.headers_ns: int | None = None
        self.connection: str | None = None
        self.peer: str | None = None
        self.reconnects = 0
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
