"""A server that says what a captured one said: the same bytes, in the same reads, sooner.

It runs on the loop of the client that it serves. Between two of its writes the loop looks at the
sockets, so that what was read apart when captured is read apart again, however short the pause.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
from wire_cases import Capture, load

from loadgen.client.clock import now_ns

LONGEST_MS = 30.0  # what a captured answer is compressed to
_NAME = "x-capture"  # tells the server which answer is meant


@dataclass
class Replayed:
    """One answer as it was served: when each read's bytes went out."""

    capture: Capture
    wrote_ns: list[int] = field(default_factory=list)

    def wrote_at(self, recorded_ms: float) -> int:
        """When the read went out that had arrived at this time."""
        times = [at_ms for at_ms, _ in self.capture.arrivals]
        return self.wrote_ns[times.index(recorded_ms)]


@dataclass
class Replays:
    """A listening server and what it has served, by the capture's name."""

    url: str
    served: dict[str, Replayed] = field(default_factory=dict)

    def request(self, name: str) -> httpx.Request:
        """Return the request that the capture answers."""
        capture = load(name)
        method, path = capture.request.split(" ")
        content = b"" if method == "GET" else json.dumps(capture.asked).encode()
        headers = {_NAME: name, "content-type": "application/json", "accept-encoding": "identity"}
        return httpx.Request(method, self.url + path, headers=headers, content=content)


@asynccontextmanager
async def replaying() -> AsyncIterator[Replays]:
    """Serve any capture to a request from ``Replays.request``."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = httpx.Headers(_pairs(await reader.readuntil(b"\r\n\r\n")))
            await reader.readexactly(int(head.get("content-length", "0")))
            replayed = replays.served[head[_NAME]] = Replayed(load(head[_NAME]))
            await _replay(replayed, writer)
        except ConnectionError:  # the client had heard enough
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    replays = Replays(f"http://{host}:{port}")
    async with server:
        yield replays


async def _replay(replayed: Replayed, writer: asyncio.StreamWriter) -> None:
    capture, offset, before_ms = replayed.capture, 0, 0.0
    scale = min(1.0, LONGEST_MS / max(capture.arrivals[-1][0], LONGEST_MS))
    for at_ms, size in capture.arrivals:
        await asyncio.sleep((at_ms - before_ms) * scale / 1e3)  # noqa: TID251 - the server's pace
        replayed.wrote_ns.append(now_ns())
        writer.write(capture.raw[offset : offset + size])
        offset, before_ms = offset + size, at_ms


def _pairs(head: bytes) -> list[tuple[str, str]]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)
            if name]  # fmt: skip
