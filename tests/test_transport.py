"""The stamping transport is an httpx transport like any other, and others fit in its place."""

import asyncio
from typing import Any

import httpx
import pytest
import respx
from serve import DONE, ROLE, Asked, Out, content, finish, scripted

from loadgen.client.exchange import Exchange
from loadgen.client.limits import Limits
from loadgen.client.stock import proxy_for, stock_transport
from loadgen.client.transport import StampedTransport
from loadgen.record import Outcome

STREAM = ROLE + content("a") + content("b") + finish() + DONE


async def observe(transport: httpx.AsyncBaseTransport, url: str) -> dict[str, Any]:
    exchange = Exchange(endpoint="chat", limits=Limits())
    await exchange.run(transport, httpx.Request("POST", url, content=b"{}"))
    return await exchange.settle()


async def test_the_httpx_api_stays_whole_on_top() -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.stream("a", "b", every_s=0.02)

    with scripted(script) as server:
        async with httpx.AsyncClient(transport=StampedTransport(), base_url=server.url) as client:
            listed = await client.get("/v1/models")
            async with client.stream("POST", "/v1/chat/completions", json={"x": 1}) as response:
                pieces = [piece async for piece in response.aiter_raw()]
                assert response.http_version == "HTTP/1.1"
    assert listed.json()["data"][0]["id"] == "mock"
    assert response.headers["content-type"] == "text/event-stream"
    assert len(pieces) > 2
    assert b"".join(pieces).endswith(DONE)
    assert server.generations[0].json == {"x": 1}


async def test_a_response_left_unread_does_not_poison_the_pool() -> None:
    with scripted(lambda asked, out: out.stream(*"abcdef", every_s=0.05)) as server:
        async with httpx.AsyncClient(transport=StampedTransport(), base_url=server.url) as client:
            for _ in range(2):
                async with client.stream("POST", "/", json={}) as response:
                    assert response.status_code == 200
        assert server.connects == 2


async def test_errors_are_httpx_errors() -> None:
    async with httpx.AsyncClient(transport=StampedTransport()) as client:
        with pytest.raises(httpx.ConnectError, match="refused"):
            await client.get("http://127.0.0.1:9/")
        with pytest.raises(httpx.ConnectError, match=r"nowhere\.invalid"):
            await client.get("http://nowhere.invalid/")
        for no_name in ("a..b", "a" * 64):
            with pytest.raises(httpx.ConnectError, match=no_name):
                await client.get(f"http://{no_name}/")
    with scripted(lambda asked, out: out.raw(b"this is not HTTP\r\n\r\n")) as server:
        async with httpx.AsyncClient(transport=StampedTransport()) as client:
            with pytest.raises(httpx.RemoteProtocolError, match="not valid HTTP"):
                await client.post(server.url, json={})


def test_the_name_looked_up_is_the_one_that_the_url_means() -> None:
    origin = StampedTransport().origin(httpx.URL("http://straße.example:8000"))
    assert origin.host == "xn--strae-oqa.example"  # not strasse.example, which is another host
    assert origin.host.encode("idna").decode() == origin.host


async def test_a_body_without_length_ends_with_its_connection() -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head(connection="close")
        await out.send(STREAM)
        out.close()

    with scripted(script) as server:
        transport = StampedTransport()
        facts = await observe(transport, server.url)
        await transport.aclose()
    assert facts["outcome"] is Outcome.OK
    assert facts["chunks"].kind == "cc"


async def test_connections_are_reused_or_made_for_each_request_as_asked() -> None:
    for reuse, connects in ((True, 1), (False, 5)):
        transport = StampedTransport(reuse=reuse)
        with scripted(lambda asked, out: out.stream("a")) as server:
            found = [await observe(transport, server.url) for _ in range(5)]
            assert server.connects == connects
        await transport.aclose()
        assert found[-1]["connection"] == ("reused" if reuse else "new")
        assert (found[-1]["connected_ns"] is None) == reuse


async def test_connections_made_ahead_are_used_and_trimmed() -> None:
    transport = StampedTransport()
    with scripted(lambda asked, out: out.stream("a", every_s=0.1)) as server:
        origin = transport.origin(httpx.URL(server.url))
        await origin.preconnect(20, 5)
        found = await asyncio.gather(*(observe(transport, server.url) for _ in range(20)))
        assert server.connects == 20
        assert {facts["connection"] for facts in found} == {"reused"}
        await origin.preconnect(3, 5)
        assert origin.idle == 3
    await transport.aclose()


async def test_an_address_that_refuses_is_found_out_before_the_run() -> None:
    transport = StampedTransport()
    with scripted(lambda asked, out: out.stream("a")) as server:
        origin = transport.origin(httpx.URL(f"http://localhost:{server.port}"))
        found = len(await origin.resolve())
        unreachable = await origin.drop_unreachable(2)
        assert [address.peer for address in origin.addresses] == [f"127.0.0.1:{server.port}"]
        assert len(unreachable) == found - 1
    await transport.aclose()


@pytest.mark.parametrize("kind", ["mock", "respx", "stock"])
async def test_other_transports_plug_in(kind: str) -> None:
    headers = {"content-type": "text/event-stream"}
    if kind == "mock":
        mock = httpx.MockTransport(
            lambda request: httpx.Response(200, headers=headers, content=STREAM)
        )
        facts = await observe(mock, "http://mock/v1/chat/completions")
    elif kind == "respx":
        with respx.mock(base_url="http://mock") as router:
            route = router.post("/v1/chat/completions")
            route.mock(return_value=httpx.Response(200, headers=headers, content=STREAM))
            facts = await observe(httpx.AsyncHTTPTransport(), "http://mock/v1/chat/completions")
    else:
        with scripted(lambda asked, out: out.stream("a", "b", every_s=0.02)) as server:
            transport = stock_transport(context=None)
            facts = await observe(transport, f"{server.url}/v1/chat/completions")
            await transport.aclose()
        assert facts["connection"] == "new"
        assert facts["sent_ns"] < facts["headers_ns"] <= facts["first_ns"] < facts["last_ns"]
        assert facts["peer"] == f"127.0.0.1:{server.port}"
    assert facts["outcome"] is Outcome.OK
    assert facts["chunks"].kind == "cc"


@pytest.mark.parametrize("id_", ["C10"])
def test_loopback_never_goes_through_a_proxy(monkeypatch: pytest.MonkeyPatch, id_: str) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://user:secret@127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert proxy_for("http://127.0.0.1:8000/v1") is None
    assert proxy_for("http://localhost:8000/v1") is None
    proxy = proxy_for("http://staging.example/v1")
    assert proxy is not None
    assert proxy.url == "http://user:secret@127.0.0.1:9"
