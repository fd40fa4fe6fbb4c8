"""Makers for tests of the simulator: sequences, virtual-time drivers, a bare HTTP client."""

import http.client
import json
import re
import socket
import ssl
from dataclasses import dataclass
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from loadgen.simulator.ask import Rules
from loadgen.simulator.dialects import DIALECTS
from loadgen.simulator.engine import Engine, EngineSpec, Sequence

MS = 1_000_000
_keys = count()

PLAIN = EngineSpec(
    prefill_tokens_per_s=10_000,
    step_base_s=0.010,
    step_per_sequence_s=0.001,
    step_per_context_token_s=0,
)


def sequence(prompt: int = 100, output: int = 4, *, blocks: tuple[int, ...] = ()) -> Sequence:
    return Sequence(key=next(_keys), prompt_tokens=prompt, output_tokens=output, blocks=blocks)


def run_out(engine: Engine) -> dict[int, list[float]]:
    """Run until idle; milliseconds of each sequence's tokens."""
    times: dict[int, list[float]] = {}
    while (at_ns := engine.next_event_ns()) is not None:
        step = engine.step(at_ns)
        assert step is not None
        for emission in step.emissions:
            times.setdefault(emission.key, []).append(step.end_ns / MS)
    return times


@dataclass(frozen=True)
class Load:
    """What a closed loop in virtual time saw."""

    tokens_per_s: float
    ttft_ms: float


def closed_loop(spec: EngineSpec, slots: int, *, requests: int = 200) -> Load:
    """Keep ``slots`` sequences of 64 + 32 tokens in flight; throughput and mean TTFT."""
    engine, sent, ttfts, tokens = Engine(spec), 0, [], 0
    started: dict[int, int] = {}

    def start(now_ns: int) -> None:
        one = sequence(64, 32)
        started[one.key] = now_ns
        engine.submit(one, now_ns=now_ns)

    for _ in range(slots):
        start(0)
        sent += 1
    end_ns = 0
    while (at_ns := engine.next_event_ns()) is not None:
        step = engine.step(at_ns)
        assert step is not None
        end_ns = step.end_ns
        for emission in step.emissions:
            tokens += 1
            if emission.number == 0:
                ttfts.append((end_ns - started[emission.key]) / MS)
            if emission.last and sent < requests:
                start(end_ns)
                sent += 1
    later = ttfts[slots:] or ttfts  # the first wave meets an empty engine
    return Load(tokens / (end_ns / 1e9), sum(later) / len(later))


def rules(dialect: str = "vllm", *, context: int = 100) -> Rules:
    return Rules(dialect=DIALECTS[dialect], model="sim", context=context, template_tokens=8)


def chat_body(*, words: int = 3, **fields: object) -> dict[str, Any]:
    text = " ".join(f"w{number}" for number in range(words))
    body: dict[str, object] = {"model": "sim"}
    body |= {"messages": [{"role": "user", "content": text}], "max_tokens": 5}
    return {name: value for name, value in (body | fields).items() if value is not None}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def raw_events(self) -> list[str]:
        """Data of each event, without ``data: ``; comments as they stand."""
        events = re.split(r" ?\n\n", self.body.decode())
        return [event.removeprefix("data: ") for event in events if event]

    @property
    def events(self) -> list[Any]:
        """The events that are whole JSON objects."""
        return [json.loads(one) for one in self.raw_events if one.endswith("}")]

    @property
    def stamps(self) -> list[int]:
        return [event["sent_ns"] for event in self.events if "sent_ns" in event]

    @property
    def text(self) -> str:
        return "".join(
            choice.get("text") or choice.get("delta", {}).get("content") or ""
            for event in self.events
            for choice in event.get("choices", [])
        )


def call(
    url: str,
    path: str = "/v1/chat/completions",
    body: object = None,
    *,
    headers: dict[str, str] | None = None,
    method: str | None = None,
    context: ssl.SSLContext | None = None,
) -> Reply:
    """Send one request on a connection of its own."""
    where = urlsplit(url)
    assert where.hostname
    if context:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            where.hostname, where.port, timeout=10, context=context
        )
    else:
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=10)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        verb = method or ("GET" if data is None else "POST")
        connection.request(verb, path, data, headers or {})
        reply = connection.getresponse()
        return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
    finally:
        connection.close()


def stream(url: str, *, words: int = 3, **fields: object) -> Reply:
    return call(url, body=chat_body(words=words, stream=True, **fields))


def stats(url: str) -> dict[str, Any]:
    found: dict[str, Any] = call(url, "/sim/stats?chunks=1").json
    return found


def request_bytes(body: dict[str, Any], path: str = "/v1/chat/completions") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: sim\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def open_socket(url: str) -> socket.socket:
    where = urlsplit(url)
    return socket.create_connection((where.hostname, where.port), timeout=10)


def read_to_end(one: socket.socket) -> bytes:
    """Read one chunked answer to its end, or until the connection ends."""
    received = b""
    while not received.endswith(b"0\r\n\r\n") and (data := one.recv(65536)):
        received += data
    return received
