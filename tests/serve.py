"""A scripted HTTP server on a real socket, in a thread of its own: says exactly what a test wants.

with scripted(lambda asked, out: out.stream("a", "b")) as server:
    ... server.url, server.asked, server.connects, server.peak ...
"""

import asyncio
import json
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

DONE = b"data: [DONE]\n\n"
_COMPLETION = {"id": "c", "object": "chat.completion.chunk", "model": "mock"}


def event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({**_COMPLETION, "choices": [choice], **more}).encode() + b"\n\n"


def content(text: str) -> bytes:
    return event({"content": text})


def finish(reason: str = "stop") -> bytes:
    return event({}, reason)


def usage(prompt: int, completion: int) -> bytes:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return (
        b"data: " + json.dumps({**_COMPLETION, "choices": [], "usage": counts}).encode() + b"\n\n"
    )


ROLE = event({"role": "assistant", "content": ""})


@dataclass
class Asked:
    """One request as the server read it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    number: int = 0  # of all requests, in the order of their last bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


class Out:
    """The writing half of one exchange."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.chunked = False

    async def head(
        self, status: int = 200, kind: str = "text/event-stream", **headers: str
    ) -> None:
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.chunked = "content_length" not in headers and headers.get("connection") != "close"
        if self.chunked:
            lines.append("transfer-encoding: chunked")
        await self.raw("\r\n".join(lines).encode() + b"\r\n\r\n")

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def send(self, data: bytes) -> None:
        """Send one piece of body in one write."""
        await self.raw(b"%x\r\n%s\r\n" % (len(data), data) if self.chunked else data)

    async def end(self) -> None:
        if self.chunked:
            await self.raw(b"0\r\n\r\n")

    async def whole(self, status: int, body: bytes | dict[str, Any], **headers: str) -> None:
        """Answer with a body of known length."""
        kind = headers.pop("kind", "application/json")
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.head(status, kind, content_length=str(len(data)), **headers)
        await self.raw(data)

    async def stream(self, *texts: str, every_s: float = 0.0) -> None:
        """Answer with a proper stream of these texts."""
        await self.head()
        await self.send(ROLE)
        for text in texts:
            if every_s:
                await asyncio.sleep(every_s)  # noqa: TID251 - the server's own pace
            await self.send(content(text))
        await self.send(finish("length"))
        await self.send(usage(5, len(texts)))
        await self.send(DONE)
        await self.end()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Close with RST: what is in flight is lost."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Script = Callable[[Asked, Out], Awaitable[None]]


@dataclass
class Server:
    """What the server saw."""

    port: int = 0
    scheme: str = "http"
    asked: list[Asked] = field(default_factory=list)
    connects: int = 0
    in_flight: int = 0
    peak: int = 0

    @property
    def url(self) -> str:
        host = "localhost" if self.scheme == "https" else "127.0.0.1"
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def generations(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "POST"]


@contextmanager
def scripted(
    script: Script,
    *,
    models: tuple[str, ...] = ("mock",),
    tls: ssl.SSLContext | None = None,
    idle_close_s: float | None = None,
    gets: Script | None = None,
) -> Iterator[Server]:
    """Serve ``script`` for POSTs; GET /v1/models lists ``models``, others are ``gets``, or 404."""
    server = Server(scheme="https" if tls else "http")
    loop = asyncio.new_event_loop()
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        writers.append(writer)
        server.connects += 1
        number = server.connects
        try:
            while (asked := await _read(reader, number, idle_close_s)) is not None:
                asked.number = len(server.asked)
                server.asked.append(asked)
                await _answer(asked, Out(writer))
                if writer.is_closing():
                    break
        except (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    async def _answer(asked: Asked, out: Out) -> None:
        if asked.method != "POST":
            listed = {"data": [{"id": name, "object": "model"} for name in models]}
            found = asked.path.endswith("/models")
            if gets is not None and not found:
                await gets(asked, out)
                return
            await out.whole(200 if found else 404, listed if found else {"detail": "Not Found"})
            return
        server.in_flight += 1
        server.peak = max(server.peak, server.in_flight)
        try:
            await script(asked, out)
        finally:
            server.in_flight -= 1

    async def start() -> asyncio.Server:
        return await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls, backlog=4096)

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    listening = asyncio.run_coroutine_threadsafe(start(), loop).result(5)
    server.port = listening.sockets[0].getsockname()[1]

    async def stop() -> None:
        listening.close()
        await asyncio.sleep(0.01)  # noqa: TID251 - what was just accepted gets its task
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        closing = [asyncio.ensure_future(writer.wait_closed()) for writer in writers]
        if closing:
            await asyncio.wait(closing, timeout=2)
        for done in closing:
            done.cancelled() or (done.done() and done.exception())
        await asyncio.sleep(0.01)  # noqa: TID251 - the transports say that they are closed

    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


async def _read(
    reader: asyncio.StreamReader, connection: int, limit_s: float | None
) -> Asked | None:
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), limit_s)
    except (asyncio.IncompleteReadError, TimeoutError):
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(_pair(line) for line in lines if line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    method, path, _ = first.split(" ")
    return Asked(method, path, headers, body, connection)


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.lower(), value.strip()


async def answer(asked: Asked, out: Out) -> None:
    """A script: two pieces at once."""
    await out.stream("a", "b")


def slow(seconds: float, *texts: str) -> Any:
    """A script: the pieces so far apart; the preflight's at once."""

    async def script(asked: Asked, out: Out) -> None:
        if asked.json.get("max_tokens") == 1:  # the preflight
            await out.stream("a")
        else:
            await out.stream(*(texts or ("a",)), every_s=seconds)

    return script
