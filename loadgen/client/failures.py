"""Errors of connections → outcomes: whose fault it was that bytes did not flow.

EMFILE, ENFILE             client_fault  client_fd_limit
EADDRNOTAVAIL              client_fault  client_no_ports
ECONNREFUSED               broken        connection_refused
ECONNRESET, EPIPE          broken        connection_reset
certificate not trusted    broken        tls_verify
other TLS                  broken        tls
name not known             broken        dns
no connection in time      timeout       connect
"""

import errno
import socket
import ssl
from collections.abc import Iterator

import httpx

from loadgen.client.outcome import Verdict, scrub
from loadgen.record import Outcome

_BY_ERRNO = {
    errno.EMFILE: (Outcome.CLIENT_FAULT, "client_fd_limit"),
    errno.ENFILE: (Outcome.CLIENT_FAULT, "client_fd_limit"),
    errno.EADDRNOTAVAIL: (Outcome.CLIENT_FAULT, "client_no_ports"),
    errno.ENOBUFS: (Outcome.CLIENT_FAULT, "client_no_buffers"),
    errno.ENOMEM: (Outcome.CLIENT_FAULT, "client_no_memory"),
    errno.ECONNREFUSED: (Outcome.BROKEN, "connection_refused"),
    errno.ECONNRESET: (Outcome.BROKEN, "connection_reset"),
    errno.EPIPE: (Outcome.BROKEN, "connection_reset"),
    errno.ETIMEDOUT: (Outcome.TIMEOUT, "connect"),
}


def verdict_of(error: BaseException) -> Verdict:
    """Say what a transport's error means for the request it befell."""
    outcome, error_class = _classify(error)
    return Verdict(outcome=outcome, error_class=error_class, error=scrub(_words(error)))


def is_certificate_error(error: BaseException) -> bool:
    """Tell whether a certificate that does not verify is behind this error."""
    return any(isinstance(link, ssl.SSLCertVerificationError) for link in _chain(error))


def _words(error: BaseException) -> str:
    """Return the first words that an error or its causes have."""
    return next((str(link) for link in _chain(error) if str(link)), type(error).__name__)


def _classify(error: BaseException) -> tuple[Outcome, str]:
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        return Outcome.TIMEOUT, "connect"
    for link in _chain(error):
        if isinstance(link, ssl.SSLCertVerificationError):
            return Outcome.BROKEN, "tls_verify"
        if isinstance(link, ssl.SSLError):
            return Outcome.BROKEN, "tls"
        if isinstance(link, socket.gaierror):
            return Outcome.BROKEN, "dns"
        if isinstance(link, OSError) and link.errno in _BY_ERRNO:
            return _BY_ERRNO[link.errno]
    match error:
        case httpx.ConnectError():
            return Outcome.BROKEN, "connect"
        case httpx.TimeoutException():
            return Outcome.TIMEOUT, "idle"
        case httpx.RemoteProtocolError() if "closed" in str(error) or "disconnected" in str(error):
            return Outcome.BROKEN, "connection_closed"
        case httpx.ProtocolError() | httpx.DecodingError():
            return Outcome.BROKEN, "protocol_error"
    return Outcome.BROKEN, "connection_lost"


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__
