"""The simulator's process: listen, serve, stop cleanly.

It is meant to have a process of its own, so that it never waits for the client it is measured by.
"""

import asyncio
import gc
import os
import resource
import signal
import ssl
from collections.abc import Callable

from loadgen.errors import EnvironmentFault, UsageError
from loadgen.simulator.http import Connection
from loadgen.simulator.site import Simulator
from loadgen.simulator.spec import SimulatorSpec


async def serve(
    spec: SimulatorSpec,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT; ``on_ready`` gets the URL once connections are accepted.

    Raises EnvironmentFault where the port cannot be had, UsageError for a bad certificate.
    """
    context = _tls_context(spec)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _raise_descriptor_limit()
    site = Simulator(spec, loop)

    def connection() -> Connection:
        return Connection(site, close_after=spec.close_after, idle_close_s=spec.idle_close_s)

    try:
        server = await loop.create_server(connection, host, port, ssl=context, backlog=4096)
    except UnicodeError:
        raise UsageError(
            f"--host {host}: is not the name of a host; write it like 127.0.0.1"
        ) from None
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
        raise EnvironmentFault(
            f"simulate: cannot listen on {host}:{port}: {reason}; "
            "take another --port, or 0 for any free one"
        ) from None
    bound = server.sockets[0].getsockname()[1]
    named = f"[{host}]" if ":" in host else host
    gc.freeze()  # what lives from here on is short-lived or flat
    gc.set_threshold(50_000, 50, 100)
    on_ready(f"{'https' if context else 'http'}://{named}:{bound}")
    try:
        await stop.wait()
    finally:
        server.close()
        site.close()


def _tls_context(spec: SimulatorSpec) -> ssl.SSLContext | None:
    if spec.tls is None:
        return None
    certificate, key = spec.tls
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password="")  # never ask at the terminal
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"--tls {certificate} {key}: {error.strerror or error}; "
            "a PEM certificate and its private key are needed"
        ) from None
    return context


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
