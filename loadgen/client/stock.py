"""httpx's own transport, for comparison and behind a proxy: what it can tell, in our terms.

Its stamps are user-space ones, taken when the loop gets round to a piece of the body; its pool
costs time in proportion to its size. A report says which transport measured.
"""

import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from loadgen.client.clock import now_ns
from loadgen.client.trace import Trace
from loadgen.errors import UsageError
from loadgen.scenario.url import url_problem

_LOOPBACK = ("localhost", "127.", "::1", "[::1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """The way to a server that the environment prescribes; ``url`` may carry a password."""

    url: str = field(repr=False)
    variable: str

    @property
    def masked(self) -> str:
        """The proxy's address without user and password."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2].rstrip('/')}"

    def __str__(self) -> str:
        return f"{self.masked} ({self.variable})"


class StockTransport(httpx.AsyncHTTPTransport):
    """httpx's transport, and the proxy it goes through."""

    proxy: Proxy | None = None


def stock_transport(
    *, context: ssl.SSLContext | None, proxy: Proxy | None = None, reuse: bool = True
) -> StockTransport:
    """Return httpx's transport without its default limits (100 connections would cap a level)."""
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=None if reuse else 0, keepalive_expiry=60
    )
    transport = StockTransport(
        verify=context if context is not None else True,
        trust_env=False,
        limits=limits,
        proxy=proxy.url if proxy else None,
    )
    transport.proxy = proxy
    return transport


def proxy_for(url: str) -> Proxy | None:
    """Return the proxy the environment names for this URL; loopback never goes through one.

    Raises UsageError where what it names is no HTTP proxy.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host.startswith(_LOOPBACK) or proxy_bypass(host):
        return None
    proxies = getproxies()
    for kind in (parts.scheme, "all"):
        if named := proxies.get(kind):
            proxy = Proxy(
                url=named if "://" in named else f"http://{named}",  # curl takes it, too
                variable=_variable_of(f"{kind}_proxy"),
            )
            _check(proxy, host)
            return proxy
    return None


def without_proxy(host: str) -> str:
    """Say how to reach a host directly."""
    return f"to reach it without a proxy, list {host} in NO_PROXY"


def _variable_of(name: str) -> str:
    """Return the variable that ``getproxies`` read, as the user wrote it: small letters win."""
    found = [each for each in os.environ if each.lower() == name and os.environ[each]]
    if not found:
        return "the system's settings"
    return name if name in found else found[-1]


def _check(proxy: Proxy, host: str) -> None:
    if problem := url_problem(proxy.url):
        said = problem.replace("http://localhost:8000", "http://proxy:3128")
        raise UsageError(f"{proxy.variable}: {said}; {without_proxy(host)}")


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
