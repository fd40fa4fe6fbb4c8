"""One measurement of the client, in a process of its own: client.py NAME '{"arguments": ...}'.

Prints one JSON object. The servers state their send times in the chunks: the truth server as
"t" (and "r", the request's arrival) + 1e17, the simulator as "sent_ns"; all CLOCK_MONOTONIC ns.
"""

import asyncio
import gc
import json
import re
import resource
import select
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httptools
import httpx
import numpy as np
import orjson
import uvloop

from loadgen.client.answer import Answer
from loadgen.client.clock import breathe, now_ns, sleep_s
from loadgen.client.connection import stamp_arrivals
from loadgen.client.exchange import Exchange
from loadgen.client.limits import Limits
from loadgen.client.transport import WIRE_BYTES, StampedTransport, ssl_context, wire_bytes

STAMP = re.compile(rb'"(?:t|sent_ns)":(\d+)')
ARRIVAL = re.compile(rb'"r":(\d+)')
BASE = 10**17
LEAD_S = 1.0
"""From the first send to the first token: all requests are out before anything comes back."""


class Witness:
    """Keeps what arrives, and passes it on to the exchange."""

    def __init__(self, exchange: Exchange) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.lags: list[int] = []
        self._exchange = exchange
        exchange.trace.sink = self

    def body(self, stamp_ns: int, lag_ns: int, data: bytes) -> None:
        self.pieces.append((stamp_ns, data))
        self.lags.append(lag_ns)
        self._exchange.body(stamp_ns, lag_ns, data)

    def ended(self, stamp_ns: int, how: str) -> None:
        self._exchange.ended(stamp_ns, how)


class Streams:
    """Many exchanges with one server, all in flight at once."""

    def __init__(self, base: str, ca_file: str | None = None) -> None:
        context = ssl_context(ca_file=ca_file) if ca_file else None
        self.transport = StampedTransport(context=context)
        self.url = f"{base}/v1/chat/completions"
        self.exchanges: list[Exchange] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self, streams: int) -> None:
        await self.transport.origin(httpx.URL(self.url)).preconnect(streams, 10)
        gc.collect()
        gc.freeze()
        gc.disable()

    def start(self, request: httpx.Request) -> Exchange:
        exchange = Exchange(endpoint="chat", limits=Limits())
        self.exchanges.append(exchange)
        self._tasks.append(asyncio.create_task(exchange.run(self.transport, request)))
        return exchange

    async def end(self) -> None:
        await asyncio.gather(*self._tasks)
        outcomes = {exchange.trace.status for exchange in self.exchanges}
        if outcomes != {200}:
            raise RuntimeError(f"not every stream was answered: {outcomes}")


def request_to(url: str, *, tokens: int, query: str = "") -> httpx.Request:
    body = {
        "model": "sim",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": tokens,
        "stream": True,
    }
    headers = {"content-type": "application/json"}
    request = httpx.Request("POST", url + query, headers=headers, content=orjson.dumps(body))
    request.extensions[WIRE_BYTES] = wire_bytes(request)
    return request


def timed_query(*, first_s: float, itl_s: float, tokens: int) -> str:
    """What the truth server is to do for one request."""
    return f"?t={round(first_s * 1e6)}&i={round(itl_s * 1e6)}&n={tokens}"


async def start_load(
    load: Streams, *, streams: int, per_s: float, tokens: int, together: bool, begin_ns: int
) -> list[Witness]:
    """Send all requests; their tokens come at random phases, or all at the same instants."""
    rng = np.random.default_rng(1)
    witnesses = []
    for _ in range(streams):
        gone_s = (now_ns() - begin_ns) / 1e9
        first_s = LEAD_S - gone_s if together else LEAD_S + rng.uniform(0, 1 / per_s)
        query = timed_query(first_s=first_s, itl_s=1 / per_s, tokens=tokens)
        exchange = load.start(request_to(load.url, tokens=tokens, query=query))
        witnesses.append(Witness(exchange))
        await breathe()
        await breathe()  # one turn starts the task, the next lets the server's core take it
    return witnesses


async def stamps(
    base: str, streams: int, per_s: float, seconds: float, together: bool, ca_file: str | None
) -> dict[str, Any]:
    """Stamp error of chunks that were the last of their read."""
    load = Streams(base, ca_file)
    await load.connect(streams)
    tokens = max(round(seconds * per_s), 2)
    witnesses = await start_load(
        load, streams=streams, per_s=per_s, tokens=tokens, together=together, begin_ns=now_ns()
    )
    await load.end()
    errors, chunks = _errors_us(witnesses)
    lags = np.concatenate([np.array(one.lags) for one in witnesses]) / 1e3
    return {
        "n": len(errors),
        "p50": float(np.percentile(errors, 50)),
        "p99": float(np.percentile(errors, 99)),
        "max": float(errors.max()),
        "coalesced": 1 - len(errors) / chunks,
        "user_lag_p99": float(np.percentile(lags, 99)),
    }


def _errors_us(witnesses: list[Witness]) -> tuple[np.ndarray, int]:
    errors, chunks = [], 0
    for witness in witnesses:
        last: dict[int, bytes] = {}  # the last piece of each read
        for stamp_ns, data in witness.pieces:
            last[stamp_ns] = data
            chunks += len(STAMP.findall(data))
        for stamp_ns, data in last.items():
            found = STAMP.findall(data)
            # A read that ends with [DONE] carries the stamp of that, not of the token before it.
            if found and b"[DONE]" not in data:
                errors.append(stamp_ns - int(found[-1]) % BASE)
    return np.array(errors) / 1e3, chunks


async def reading(base: str, streams: int, per_s: float, seconds: float) -> dict[str, Any]:
    """CPU per chunk of the client as it runs in a level: no witness, collector off."""
    load = Streams(base)
    await load.connect(streams)
    tokens = round(seconds * per_s)
    rng = np.random.default_rng(1)
    for _ in range(streams):
        first_s = LEAD_S + rng.uniform(0, 1 / per_s)
        query = timed_query(first_s=first_s, itl_s=1 / per_s, tokens=tokens)
        load.start(request_to(load.url, tokens=tokens, query=query))
        await breathe()
    before = time.process_time()
    await load.end()
    streamed = time.process_time() - before
    chunks = 0
    for exchange in load.exchanges:
        facts = await exchange.settle()
        chunks += len(facts["chunks"].at_ns)
    settled = time.process_time() - before
    return {
        "chunks": chunks,
        "cpu_us": streamed / chunks * 1e6,
        "cpu_us_settled": settled / chunks * 1e6,
    }


async def bare(base: str, streams: int, per_s: float, seconds: float) -> dict[str, Any]:
    """The least that Python can do: its own epoll loop, ``recvmsg``, the stamp, httptools."""
    url = httpx.URL(f"{base}/v1/chat/completions")
    tokens = round(per_s * seconds)
    query = timed_query(first_s=LEAD_S, itl_s=1 / per_s, tokens=tokens)
    data = wire_bytes(request_to(str(url), tokens=tokens, query=query))
    poll = select.epoll()
    readers: dict[int, tuple[socket.socket, httptools.HttpResponseParser, _Bare]] = {}
    for _ in range(streams):
        sock = socket.create_connection((url.host, url.port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stamp_arrivals(sock)
        sock.setblocking(False)
        reply = _Bare()
        readers[sock.fileno()] = (sock, httptools.HttpResponseParser(reply), reply)
        poll.register(sock.fileno(), select.EPOLLIN)
    due_ns = now_ns()
    for sock, _, _ in readers.values():  # spread over one interval, as a random phase would
        while now_ns() < due_ns:
            pass
        sock.send(data)
        due_ns += round(1e9 / per_s / streams)
    before, reads = time.process_time(), 0
    while readers:
        for fd, _ in poll.poll():
            sock, parser, reply = readers[fd]
            piece, ancillary, _, _ = sock.recvmsg(65536, 64)
            if ancillary:
                struct.unpack_from("qq", ancillary[0][2])
            parser.feed_data(piece)
            reads += 1
            if reply.complete:
                poll.unregister(fd)
                readers.pop(fd)[0].close()
    return {"cpu_us": (time.process_time() - before) / reads * 1e6, "reads": reads}


class _Bare:
    complete = False

    def on_body(self, data: bytes) -> None:
        pass

    def on_message_complete(self) -> None:
        self.complete = True


async def stock(
    base: str, streams: int, per_s: float, seconds: float, lines: bool
) -> dict[str, Any]:
    """CPU per chunk of plain httpx, read by lines or in raw pieces."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    tokens = round(seconds * per_s)
    query = timed_query(first_s=2 * LEAD_S, itl_s=1 / per_s, tokens=tokens)
    counts: list[int] = []

    async def one(client: httpx.AsyncClient) -> None:
        url = f"{base}/v1/chat/completions{query}"
        async with client.stream("POST", url, json={"stream": True, "messages": []}) as answer:
            if lines:
                found = [line.startswith("data: {") async for line in answer.aiter_lines()]
                counts.append(sum(found))
            else:
                counts.append(sum([piece.count(b"data: {") async for piece in answer.aiter_raw()]))

    async with httpx.AsyncClient(limits=limits, timeout=None, trust_env=False) as client:
        tasks = [asyncio.create_task(one(client)) for _ in range(streams)]
        await sleep_s(2 * LEAD_S - 0.2)  # connected and sent: from here on it only reads
        before = time.process_time()
        await asyncio.gather(*tasks)
        spent = time.process_time() - before
    return {"chunks": sum(counts), "cpu_us": spent / sum(counts) * 1e6}


async def burst(base: str, streams: int, cold: bool) -> dict[str, Any]:
    """All streams start at once: how long after that the server has each request, whole."""
    load = Streams(base)
    await load.connect(0 if cold else streams)
    query = timed_query(first_s=0.5, itl_s=0.01, tokens=2)
    requests = [request_to(load.url, tokens=2, query=query) for _ in range(streams)]
    begin_ns = now_ns()
    witnesses = [Witness(load.start(request)) for request in requests]
    await load.end()
    arrivals = [
        int(found[1]) % BASE - begin_ns
        for witness in witnesses
        if (found := ARRIVAL.search(b"".join(data for _, data in witness.pieces)))
    ]
    if len(arrivals) != streams:
        raise RuntimeError(f"{len(arrivals)} of {streams} requests arrived")
    ms = np.array(arrivals) / 1e6
    return {"p50": float(np.percentile(ms, 50)), "max": float(ms.max())}


async def memory(base: str, streams: int) -> dict[str, Any]:
    """Growth of the process for open streams that wait for their first token."""
    load = Streams(base)
    first = timed_query(first_s=0.01, itl_s=0.001, tokens=4)
    load.start(request_to(load.url, tokens=4, query=first))  # everything used once
    await load.end()
    query = timed_query(first_s=2.5, itl_s=0.001, tokens=2)
    requests = [request_to(load.url, tokens=2, query=query) for _ in range(streams)]
    gc.collect()
    before = _resident_bytes()
    await load.connect(streams)
    connected = _resident_bytes()
    for request in requests:
        load.start(request)
        await breathe()
    await sleep_s(1.0)
    opened = _resident_bytes()
    await load.end()
    return {
        "bytes_per_stream": (opened - before) / streams,
        "bytes_per_connection": (connected - before) / streams,
    }


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def decode(chunks: int) -> dict[str, Any]:
    """Cost of taking one ordinary chunk, against orjson.loads of the same bytes."""
    event = {
        "id": "chatcmpl-3f2a9c0e5d6b4f1e8a7b6c5d4e3f2a1b",
        "object": "chat.completion.chunk",
        "created": 1764480000,
        "model": "mock",
        "choices": [
            {"index": 0, "delta": {"content": " the"}, "logprobs": None, "finish_reason": None}
        ],
    }
    payload = json.dumps(event, separators=(",", ":")).encode()
    data = b"data: " + payload + b"\n\n"
    plain, ours = [], []
    for _ in range(9):
        answer = Answer(endpoint="chat", max_event_bytes=1 << 20)
        ours.append(_time_ns(lambda feed=answer.feed: feed(data), chunks))
        plain.append(_time_ns(lambda: orjson.loads(payload), chunks))
    answer_ns, json_ns = statistics.median(ours), statistics.median(plain)
    return {"ratio": answer_ns / json_ns, "chunk_ns": answer_ns, "orjson_ns": json_ns}


def _time_ns(work: Callable[[], object], times: int) -> float:
    before = time.perf_counter_ns()
    for _ in range(times):
        work()
    return (time.perf_counter_ns() - before) / times


MEASUREMENTS: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
    "stamps": stamps,
    "reading": reading,
    "bare": bare,
    "stock": stock,
    "burst": burst,
    "memory": memory,
    "decode": decode,
}


def main() -> None:
    name, arguments = sys.argv[1], json.loads(sys.argv[2])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    plain_loop = arguments.pop("plain_loop", False)
    loop = asyncio.new_event_loop if plain_loop else uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop) as runner:
        print(json.dumps(runner.run(MEASUREMENTS[name](**arguments))))


if __name__ == "__main__":
    main()
