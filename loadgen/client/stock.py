"""httpx's own transport, for comparison and behind a proxy: what it can tell, in our terms.

Its stamps are user-space ones, taken when the loop gets round to a piece of the body; its pool
costs time in proportion to its size. A report says which transport measured.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from loadgen.client.clock import now_ns
from loadgen.client.trace import Trace

_LOOPBACK = ("localhost", "127.", "::1", "[::1]")


def stock_transport(
    *, context: ssl.SSLContext | None, proxy: str | None = None, reuse: bool = True
) -> httpx.AsyncHTTPTransport:
    """Return httpx's transport without its default limits (100 connections would cap a level)."""
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=None if reuse else 0, keepalive_expiry=60
    )
    return httpx.AsyncHTTPTransport(
        verify=context if context is not None else True,
        trust_env=False,
        limits=limits,
        proxy=proxy,
    )


def proxy_for(url: str) -> str | None:
    """Return the proxy the environment names for this URL; loopback never goes through one."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host.startswith(_LOOPBACK) or proxy_bypass(host):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def httpcore_hook(trace: Trace) -> Callable[[str, Mapping[str, Any]], Awaitable[None]]:
    """Return a ``trace`` extension for httpcore that notes its instants in our trace."""

    async def hook(event: str, info: Mapping[str, Any]) -> None:
        now = now_ns()
        match event:
            case "connection.connect_tcp.started":
                trace.connection = "new"
                trace.connect_start_ns = now
            case "connection.connect_tcp.complete":
                trace.connected_ns = now
                trace.peer = _peer(info.get("return_value"))
            case "connection.start_tls.complete":
                trace.tls_done_ns = now
            case "http11.send_request_headers.started" if trace.sent_ns is None:
                trace.sent_ns = now
                trace.connection = trace.connection or "reused"
            case "http11.send_request_body.complete":
                trace.written_ns = now
            case "http11.receive_response_headers.complete":
                trace.headers_ns = now

    return hook


def pieces_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """Yield a foreign response's body as it comes, decoded where it was compressed."""
    if response.is_stream_consumed:  # a mock's, there from the start
        return response.aiter_bytes()
    plain = "content-encoding" not in response.headers
    return response.aiter_raw() if plain else response.aiter_bytes()


def _peer(stream: Any) -> str | None:  # noqa: ANN401 - httpcore's network stream
    address = stream.get_extra_info("server_addr") if stream is not None else None
    return f"{address[0]}:{address[1]}" if address else None
