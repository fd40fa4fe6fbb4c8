"""Fetch one page, within a time and a size, or say in one short clause why not.

Each fetch is a connection of its own: one kept idle would hold a thread of some servers. Redirects
are not followed, since the headers may carry a key.
"""

import functools
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from loadgen.run.telemetry.source import SWEEP_TIMEOUT_S
from loadgen.units import NS_PER_S

LARGEST_PAGE_BYTES = 16 << 20


class FetchError(OSError):
    """There is no page; the text is one short clause."""


class FetchTimeoutError(FetchError):
    """There was no page in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a server is reached; ``headers`` may carry a key, ``proxy`` a password."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: str | None = None
    insecure: bool = False
    proxy: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What came back; ``at_ns`` is midway between the asking and the end of the answer."""

    status: int
    body: bytes
    at_ns: int


def fetch(url: str, access: Access, *, within_s: float = SWEEP_TIMEOUT_S) -> Page:
    """Return the page at ``url``; FetchError where none came.

    Each wait is at most ``within_s``, and none begins after that, so that a page that trickles
    takes less than twice as long.
    """
    began_ns = time.monotonic_ns()
    end_ns = began_ns + int(within_s * NS_PER_S)
    try:
        with (
            httpx.Client(
                verify=_verify(url, access),
                trust_env=False,  # the proxy is told; loopback never goes through one
                proxy=access.proxy,
                timeout=within_s,
                limits=httpx.Limits(max_keepalive_connections=0),
            ) as client,
            client.stream("GET", url, headers=dict(access.headers)) as response,
        ):
            body = bytearray()
            for part in response.iter_bytes():
                body += part
                if len(body) > LARGEST_PAGE_BYTES:
                    raise FetchError(f"is larger than {LARGEST_PAGE_BYTES >> 20} MiB")
                if time.monotonic_ns() > end_ns:
                    raise FetchTimeoutError(f"took longer than {within_s:g} s")
            at_ns = (began_ns + time.monotonic_ns()) // 2
            return Page(status=response.status_code, body=bytes(body), at_ns=at_ns)
    except httpx.TimeoutException as error:
        raise FetchTimeoutError(f"no answer within {within_s:g} s") from error
    except httpx.HTTPError as error:
        raise FetchError(f"no connection ({_brief(error)})") from error
    except (ssl.SSLError, httpx.InvalidURL, ValueError) as error:
        raise FetchError(_brief(error)) from error


def _verify(url: str, access: Access) -> ssl.SSLContext | bool:
    if not url.startswith("https") or access.insecure:
        return False
    return _authorities(access.ca_file)


@functools.cache
def _authorities(ca_file: str | None) -> ssl.SSLContext:
    """Load the authorities once: that takes longer than a page."""
    return ssl.create_default_context(cafile=ca_file)


def _brief(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:120]
