"""A response ends where its framing says; what a server sends beyond that belongs to nobody."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from drive import measure
from serve import DONE, ROLE, Asked, Out, content, finish, scripted, usage

from loadgen.client.exchange import Exchange
from loadgen.client.limits import Limits
from loadgen.client.transport import StampedTransport
from loadgen.record import Outcome

CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
REFUSAL = b"HTTP/1.1 500 Oops\r\nx-second: 1\r\ncontent-length: 4\r\n\r\noops"
STREAM = ROLE + content("a") + content("b") + finish() + usage(3, 2) + DONE


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def framed(data: bytes, framing: str) -> bytes:
    """Return a whole response, as one write."""
    if framing == "chunked":
        return CHUNKED + chunk(data) + b"0\r\n\r\n"
    return CHUNKED.replace(b"transfer-encoding: chunked", b"content-length: %d" % len(data)) + data


async def observe(transport: httpx.AsyncBaseTransport, url: str) -> dict[str, Any]:
    exchange = Exchange(endpoint="chat", limits=Limits(first_token_s=5, idle_s=5))
    request = httpx.Request("POST", f"{url}/v1/chat/completions", content=b"{}")
    await exchange.run(transport, request)
    return await exchange.settle()


@pytest.mark.parametrize("framing", ["chunked", "content-length"])
@pytest.mark.parametrize(
    "extra",
    [REFUSAL, REFUSAL[:20], CHUNKED + chunk(content("c")), CHUNKED, b"HTTP/1.1 100 Go on\r\n\r\n",
     b"data: more\n\n", b"\0"],
    ids=["a refusal", "the begin of one", "another stream", "another head", "an interim answer",
         "more of the body", "a byte"],
)  # fmt: skip
async def test_bytes_after_a_response_change_nothing_and_cost_the_connection(
    extra: bytes, framing: str
) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.raw(framed(STREAM, framing) + (extra if asked.number == 0 else b""))

    with scripted(script) as server:
        transport = StampedTransport()
        found = [await observe(transport, server.url) for _ in range(3)]
        await transport.aclose()
        assert server.connects == 2
        assert len(server.generations) == 3
    for facts in found:
        assert (facts["outcome"], facts["http_status"]) == (Outcome.OK, 200)
        assert facts["chunks"].kind == "cc"
        assert (facts["reported_output"], facts["reconnects"]) == (2, 0)


async def test_a_line_break_after_a_response_is_no_message() -> None:
    with scripted(lambda asked, out: out.raw(framed(STREAM, "chunked") + b"\r\n")) as server:
        transport = StampedTransport()
        found = [await observe(transport, server.url) for _ in range(2)]
        await transport.aclose()
        assert server.connects == 1
    assert {facts["outcome"] for facts in found} == {Outcome.OK}


async def test_the_httpx_api_gives_the_first_of_two_responses() -> None:
    whole = framed(b"first", "content-length") + REFUSAL
    with scripted(lambda asked, out: out.raw(whole)) as server:
        async with httpx.AsyncClient(transport=StampedTransport()) as client:
            response = await client.post(server.url)
    assert (response.status_code, response.text) == (200, "first")
    assert "x-second" not in response.headers


async def test_a_body_that_does_not_decode_ends_the_exchange_there() -> None:
    async def script(asked: Asked, out: Out) -> None:
        head = CHUNKED.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
        await out.raw(head + chunk(b"not gzip") + chunk(STREAM) + b"0\r\n\r\n")

    with scripted(script) as server:
        transport = StampedTransport()
        found = [await observe(transport, server.url) for _ in range(2)]
        await transport.aclose()
        assert server.connects == 2
    assert {(facts["outcome"], facts["chunks"].kind) for facts in found} == {(Outcome.BROKEN, "")}


def test_a_run_on_a_server_that_says_too_much_sends_each_request_once(tmp_path: Path) -> None:
    with scripted(lambda asked, out: out.raw(framed(STREAM, "chunked") + REFUSAL)) as server:
        _, records = measure(server.url, tmp_path / "run")
        assert len({asked.connection for asked in server.generations}) == len(server.generations)
    assert {row["outcome"] for row in records} == {"ok"}
    assert not any(row.get("reconnects") for row in records)
