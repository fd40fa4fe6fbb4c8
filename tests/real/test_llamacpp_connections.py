"""llama.cpp's server ends connections when it likes: after a stream, 100 requests, 5 s idle."""

import threading
from typing import Any

import httpx
import orjson
import pytest
from servers import Serve, Server

from loadgen.client.exchange import Exchange
from loadgen.client.limits import Limits
from loadgen.client.transport import StampedTransport
from loadgen.record import Outcome

pytestmark = pytest.mark.real

ONE_TOKEN = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}


async def ask(transport: StampedTransport, server: Server, **fields: Any) -> dict[str, Any]:
    exchange = Exchange(endpoint="chat", limits=Limits())
    content = orjson.dumps({"model": server.model, **ONE_TOKEN, **fields})
    url = f"{server.url}/v1/chat/completions"
    headers = {"content-type": "application/json"}
    await exchange.run(transport, httpx.Request("POST", url, content=content, headers=headers))
    return await exchange.settle()


async def test_a_connection_closed_after_a_hundred_requests_is_no_error(
    serve_llamacpp: Serve,
) -> None:
    transport = StampedTransport()
    with serve_llamacpp("tiny") as server:
        answers = [await ask(transport, server) for _ in range(205)]
        await transport.aclose()
    assert {answer["outcome"] for answer in answers} == {Outcome.OK}
    assert [answer["connection"] for answer in answers].count("new") == 3
    assert {tuple(answer["flags"]) for answer in answers} == {("non_stream_response",)}
    assert {answer["first_ns"] for answer in answers} == {None}  # a whole answer has no TTFT


async def test_a_connection_closed_for_idleness_is_no_error(serve_llamacpp: Serve) -> None:
    transport = StampedTransport()
    with serve_llamacpp("tiny") as server:
        before = await ask(transport, server)
        threading.Event().wait(5.5)  # the loop stands still too: it cannot see the close coming
        after = await ask(transport, server)
        await transport.aclose()
    assert (before["outcome"], after["outcome"]) == (Outcome.OK, Outcome.OK)
    # seen before the send, although the loop had no chance to say so: nothing was lost
    assert (after["connection"], after["reconnects"]) == ("new", 0)


async def test_a_connection_closed_after_each_stream_is_no_error(serve_llamacpp: Serve) -> None:
    transport = StampedTransport()
    with serve_llamacpp("tiny") as server:
        answers = [await ask(transport, server, stream=True) for _ in range(20)]
        await transport.aclose()
    assert {answer["outcome"] for answer in answers} == {Outcome.OK}
    assert {answer["chunks"].kind for answer in answers} == {"c"}
