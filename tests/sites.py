"""Simulators on real sockets in a thread of this process: many of them, none slow to start."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loadgen.simulator.http import Connection
from loadgen.simulator.site import Simulator
from loadgen.simulator.spec import SimulatorSpec

Open = Callable[[SimulatorSpec], str]


@contextmanager
def sites() -> Iterator[Open]:
    """Give a function that starts a simulator and returns its URL; all end together."""
    loop = asyncio.new_event_loop()
    running: list[tuple[asyncio.Server, Simulator]] = []

    async def start(spec: SimulatorSpec) -> str:
        site = Simulator(spec, loop)

        def connection() -> Connection:
            return Connection(site, close_after=spec.close_after, idle_close_s=spec.idle_close_s)

        server = await loop.create_server(connection, "127.0.0.1", 0, backlog=1024)
        running.append((server, site))
        host, port = server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    async def stop() -> None:
        for server, site in running:
            server.close()
            site.close()
        await asyncio.sleep(0)  # noqa: TID251 - one turn, in which the connections learn of it

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield lambda spec: asyncio.run_coroutine_threadsafe(start(spec), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
