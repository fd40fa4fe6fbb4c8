"""One exchange against a real socket: what is stamped, and how each ending is called."""

import asyncio
import gzip
import ssl
from typing import Any

import httpx
import pytest
import trustme
from serve import DONE, ROLE, Asked, Out, content, event, finish, scripted, usage

from loadgen.client.clock import now_ns
from loadgen.client.exchange import Exchange
from loadgen.client.limits import Limits
from loadgen.client.transport import StampedTransport, ssl_context
from loadgen.record import Outcome

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)  # noqa: TID251 - the server's own pace


async def observe(
    url: str,
    *,
    transport: httpx.AsyncBaseTransport | None = None,
    body: bytes = b"{}",
    **limits: Any,
) -> dict[str, Any]:
    used = transport or StampedTransport()
    exchange = Exchange(endpoint="chat", limits=Limits(**limits))
    request = httpx.Request("POST", f"{url}/v1/chat/completions", content=body)
    await exchange.run(used, request)
    facts = await exchange.settle()
    if transport is None:
        await used.aclose()
    return facts


def ms(facts: dict[str, Any], later: str, earlier: str = "sent_ns") -> float:
    return (facts[later] - facts[earlier]) / 1e6


async def test_role_is_no_token_and_each_instant_is_its_own() -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head()
        await out.send(ROLE)
        await pause(0.08)
        await out.send(content("a"))
        await pause(0.04)
        await out.send(content("b"))
        await out.send(finish())
        await pause(0.03)
        await out.send(usage(3, 2) + DONE)
        await out.end()

    with scripted(script) as server:
        facts = await observe(server.url)
    assert facts["outcome"] is Outcome.OK
    assert 80 <= ms(facts, "first_ns") < 110
    assert 40 <= ms(facts, "last_ns", "first_ns") < 60
    assert 30 <= ms(facts, "end_ns", "last_ns") < 50
    assert (facts["reported_input"], facts["reported_output"]) == (3, 2)
    assert facts["chunks"].kind == "cc"


@pytest.mark.parametrize("size", [1, 2, 3, 7], ids=lambda size: f"{size}-byte-pieces")
async def test_done_is_seen_however_the_stream_is_cut(size: int) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head()
        whole = ROLE + content("a") + content("b") + finish() + usage(3, 2) + DONE
        for start in range(0, len(whole), size):
            await out.send(whole[start : start + size])
        await pause(5)  # the socket stays open: only [DONE] ends the request

    with scripted(script) as server:
        facts = await observe(server.url)
    assert facts["outcome"] is Outcome.OK
    assert facts["chunks"].kind == "cc"
    assert ms(facts, "end_ns") < 2000


@pytest.mark.parametrize("id_", ["A32"])
async def test_done_ends_the_request_although_the_socket_stays_open(id_: str) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head()
        await pause(0.1)
        await out.send(content("a") + finish() + DONE)
        await pause(60)

    with scripted(script) as server:
        before = now_ns()
        facts = await observe(server.url)
        took_ms = (now_ns() - before) / 1e6
    assert facts["outcome"] is Outcome.OK
    assert 100 <= ms(facts, "end_ns") < 125
    assert took_ms < 160


@pytest.mark.parametrize("id_", ["C05"])
async def test_a_long_stream_has_no_hidden_total_limit(id_: str) -> None:
    with scripted(lambda asked, out: out.stream(*"abcdef", every_s=0.25)) as server:
        facts = await observe(server.url, idle_s=0.6)
    assert facts["outcome"] is Outcome.OK
    assert len(facts["chunks"].at_ns) == 6


@pytest.mark.parametrize("id_", ["C06"])
async def test_a_silent_stream_ends_as_an_idle_timeout_with_its_tokens(id_: str) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head()
        for text in "abcde":
            await out.send(content(text))
        await pause(30)

    with scripted(script) as server:
        facts = await observe(server.url, idle_s=0.3)
    assert (facts["outcome"], facts["error_class"]) == (Outcome.TIMEOUT, "idle")
    assert len(facts["chunks"].at_ns) == 5
    assert 300 <= ms(facts, "end_ns", "last_ns") < 800


async def test_comments_feed_neither_the_first_token_limit_nor_the_idle_limit() -> None:
    async def before_first(asked: Asked, out: Out) -> None:
        await out.head()
        while True:
            await out.send(b": keep-alive\n\n")
            await pause(0.05)

    async def after_first(asked: Asked, out: Out) -> None:
        await out.head()
        await out.send(content("a"))
        while True:
            await out.send(b": keep-alive\n\n")
            await pause(0.05)

    with scripted(before_first) as server:
        facts = await observe(server.url, first_token_s=0.3)
    assert (facts["outcome"], facts["error_class"]) == (Outcome.TIMEOUT, "first_token")
    with scripted(after_first) as server:
        facts = await observe(server.url, idle_s=0.3)
    assert (facts["outcome"], facts["error_class"]) == (Outcome.TIMEOUT, "idle")


async def test_a_total_limit_ends_a_stream_that_goes_on() -> None:
    with scripted(lambda asked, out: out.stream(*"abcdefghij", every_s=0.1)) as server:
        facts = await observe(server.url, total_s=0.35)
    assert (facts["outcome"], facts["error_class"]) == (Outcome.TIMEOUT, "total")
    assert facts["chunks"].kind in ("cc", "ccc")


async def test_an_error_after_tokens_fails_the_request_and_keeps_them() -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head()
        await out.send(content("a"))
        await out.send(content("b"))
        await out.send(b'data: {"error":{"message":"engine died","code":500}}\n\n')
        await pause(10)

    with scripted(script) as server:
        facts = await observe(server.url)
    assert (facts["outcome"], facts["error_class"]) == (Outcome.BROKEN, "server_error_in_stream")
    assert facts["error"] == "engine died"
    assert facts["chunks"].kind == "cc"


@pytest.mark.parametrize(
    ("ending", "outcome", "error_class"),
    [
        ("close", Outcome.TRUNCATED, "truncated"),
        ("reset", Outcome.BROKEN, "connection_reset"),
    ],
)
async def test_a_stream_cut_after_tokens(ending: str, outcome: Outcome, error_class: str) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head()
        await out.send(content("a"))
        await pause(0.05)
        out.close() if ending == "close" else out.reset()

    with scripted(script) as server:
        facts = await observe(server.url)
    assert (facts["outcome"], facts["error_class"]) == (outcome, error_class)
    assert facts["chunks"].kind == "c"


async def test_a_connection_closed_without_an_answer_is_broken() -> None:
    async def script(asked: Asked, out: Out) -> None:
        out.close()

    with scripted(script) as server:
        facts = await observe(server.url)
        assert len(server.generations) == 1  # a fresh connection is not tried again
    assert (facts["outcome"], facts["error_class"]) == (Outcome.BROKEN, "connection_closed")
    assert facts["first_ns"] is None


async def test_nobody_listening_is_broken_and_a_black_hole_times_out() -> None:
    facts = await observe("http://127.0.0.1:9")
    assert (facts["outcome"], facts["error_class"]) == (Outcome.BROKEN, "connection_refused")
    with scripted(lambda asked, out: pause(30)) as server:
        facts = await observe(server.url, first_token_s=0.2)
    assert (facts["outcome"], facts["error_class"]) == (Outcome.TIMEOUT, "first_token")


@pytest.mark.parametrize("id_", ["C04"])
async def test_a_connection_closed_while_idle_is_replaced_once_and_counted(id_: str) -> None:
    transport = StampedTransport()
    with scripted(lambda asked, out: out.stream("a"), idle_close_s=0.2) as server:
        first = await observe(server.url, transport=transport)
        await pause(0.4)
        second = await observe(server.url, transport=transport)
    assert (first["outcome"], second["outcome"]) == (Outcome.OK, Outcome.OK)
    assert second["connection"] == "new"  # the close was seen before the send
    await transport.aclose()


@pytest.mark.parametrize("id_", ["C04"])
async def test_a_reused_connection_that_dies_before_any_byte_is_retried_once(id_: str) -> None:
    async def script(asked: Asked, out: Out) -> None:
        if asked.number and asked.connection == 1:
            out.close()
            return
        await out.stream("a")

    transport = StampedTransport()
    with scripted(script) as server:
        await observe(server.url, transport=transport)
        facts = await observe(server.url, transport=transport)
        assert server.connects == 2
    assert (facts["outcome"], facts["reconnects"], facts["attempts"]) == (Outcome.OK, 1, 1)
    assert facts["sent_ns"] < facts["connect_start_ns"] < facts["connected_ns"]
    await transport.aclose()


async def test_a_stream_that_died_after_its_first_bytes_is_not_sent_again() -> None:
    async def script(asked: Asked, out: Out) -> None:
        if asked.number == 0:
            await out.stream("a")
            return
        await out.head()
        out.close()

    transport = StampedTransport()
    with scripted(script) as server:
        await observe(server.url, transport=transport)
        facts = await observe(server.url, transport=transport)
        assert len(server.generations) == 2
    assert facts["outcome"] is Outcome.BROKEN
    assert facts["reconnects"] == 0
    await transport.aclose()


async def test_five_chunks_in_one_read_share_a_stamp_and_are_counted_as_coalesced() -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head()
        await out.send(content("a"))
        await pause(0.05)
        await out.send(b"".join(content(text) for text in "bcdef"))
        await out.send(finish() + DONE)
        await out.end()

    with scripted(script) as server:
        facts = await observe(server.url)
    chunks = facts["chunks"]
    assert chunks.kind == "cccccc"
    assert chunks.coalesced == [1, 2, 3, 4]
    assert len(set(chunks.at_ns[1:])) == 1


async def test_sends_taken_by_one_late_read_bear_the_stamp_of_the_last() -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head()
        await out.send(content("a"))
        await pause(0.1)
        for text in "bcdef":
            await out.send(content(text))
            await pause(0.01)
        await out.send(finish() + DONE)
        await out.end()

    with scripted(script) as server:
        transport = StampedTransport()
        exchange = Exchange(endpoint="chat", limits=Limits())
        request = httpx.Request("POST", f"{server.url}/v1/chat/completions", content=b"{}")
        task = asyncio.create_task(exchange.run(transport, request))
        while exchange.first_ns is None:
            await pause(0.001)
        blocked_until = now_ns() + 300_000_000
        while now_ns() < blocked_until:
            pass
        await task
        facts = await exchange.settle()
        await transport.aclose()
    chunks = facts["chunks"]
    # the loop slept through all of it: the stamp is the last send's, not the wake-up's
    assert 100 <= (chunks.at_ns[-1] - chunks.at_ns[0]) / 1e6 < 280
    assert max(chunks.lag_ns) > 20e6
    assert chunks.coalesced


async def test_a_gzip_body_sent_unasked_is_decoded_as_it_comes() -> None:
    async def script(asked: Asked, out: Out) -> None:
        assert "gzip" not in asked.headers.get("accept-encoding", "")
        await out.head(content_encoding="gzip")
        await out.send(gzip.compress(content("a") + content("b") + finish() + DONE))
        await out.end()

    with scripted(script) as server:
        transport = StampedTransport()
        exchange = Exchange(endpoint="chat", limits=Limits())
        headers = {"accept-encoding": "identity"}
        url = f"{server.url}/v1/chat/completions"
        await exchange.run(transport, httpx.Request("POST", url, content=b"{}", headers=headers))
        facts = await exchange.settle()
        await transport.aclose()
    assert facts["outcome"] is Outcome.OK
    assert facts["chunks"].kind == "cc"


async def test_a_prompt_of_a_megabyte_goes_out_whole_in_partial_writes() -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.stream(str(len(asked.body)))

    body = b'{"prompt":"' + b"x" * 4_000_000 + b'"}'
    with scripted(script) as server:
        facts = await observe(server.url, body=body)
        assert server.generations[0].body == body
    assert facts["outcome"] is Outcome.OK
    assert facts["sent_ns"] < facts["written_ns"]


async def test_a_json_answer_to_a_streamed_request_is_ok_without_ttft() -> None:
    message = {"role": "assistant", "content": "hello there"}
    answer = {
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 12},
    }
    with scripted(lambda asked, out: out.whole(200, answer)) as server:
        facts = await observe(server.url)
    assert facts["outcome"] is Outcome.OK
    assert "non_stream_response" in facts["flags"]
    assert facts["first_ns"] is None
    assert facts["reported_output"] == 12


async def test_a_refusal_keeps_status_message_and_retry_after() -> None:
    refusal = {"error": {"message": "slow down", "code": 429}}
    with scripted(lambda asked, out: out.whole(429, refusal, retry_after="7")) as server:
        facts = await observe(server.url)
    assert (facts["outcome"], facts["error_class"]) == (Outcome.REFUSED, "rate_limited")
    assert (facts["http_status"], facts["retry_after_s"]) == (429, 7.0)
    assert facts["error"] == "slow down"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"retry_after": "1.5"}, 1.5),
        ({"retry_after_ms": "250"}, 0.25),
        ({"retry_after": "Mon, 01 Jan 2024 00:00:09 GMT", "date": "Mon, 01 Jan 2024 00:00:00 GMT"},
         9.0),
        ({"retry_after": "86400"}, 60.0),
        ({"retry_after": "soon"}, 0.0),
        ({}, 0.0),
    ],
    ids=["seconds", "a fraction", "milliseconds", "a date", "a day", "words", "none"],
)  # fmt: skip
async def test_a_retry_waits_as_long_as_the_record_says_but_no_day(
    headers: dict[str, str], seconds: float
) -> None:
    with scripted(lambda asked, out: out.whole(429, {}, **headers)) as server:
        exchange = Exchange(endpoint="chat", limits=Limits())
        transport = StampedTransport()
        await exchange.run(transport, httpx.Request("POST", server.url, content=b"{}"))
        facts = await exchange.settle()
        await transport.aclose()
    assert exchange.retry_after_s == seconds
    assert min(facts["retry_after_s"] or 0.0, 60.0) == seconds


async def test_an_interrupted_exchange_leaves_its_outcome_and_closes_its_socket() -> None:
    with scripted(lambda asked, out: out.stream(*"abcdefgh", every_s=0.1)) as server:
        transport = StampedTransport()
        exchange = Exchange(endpoint="chat", limits=Limits())
        request = httpx.Request("POST", f"{server.url}/v1/chat/completions", content=b"{}")
        task = asyncio.create_task(exchange.run(transport, request))
        await pause(0.25)
        exchange.interrupt(Outcome.UNFINISHED)
        await task
        facts = await exchange.settle()
        assert transport.origin(request.url).idle == 0
        await transport.aclose()
    assert facts["outcome"] is Outcome.UNFINISHED
    assert facts["chunks"].kind in ("c", "cc")


async def test_a_cancellation_from_outside_is_passed_on() -> None:
    with scripted(lambda asked, out: pause(30)) as server:
        transport = StampedTransport()
        exchange = Exchange(endpoint="chat", limits=Limits())
        request = httpx.Request("POST", f"{server.url}/v1/chat/completions", content=b"{}")
        task = asyncio.create_task(exchange.run(transport, request))
        await pause(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await transport.aclose()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@pytest.mark.parametrize("id_", ["C11"])
async def test_a_certificate_is_checked_unless_told_otherwise(
    authority: trustme.CA, server_context: ssl.SSLContext, id_: str, tmp_path: Any
) -> None:
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    contexts = {
        "default": ssl_context(),
        "ca_file": ssl_context(ca_file=str(ca_file)),
        "insecure": ssl_context(insecure=True),
    }
    found = {}
    with scripted(lambda asked, out: out.stream("a", "b"), tls=server_context) as server:
        for name, context in contexts.items():
            transport = StampedTransport(context=context)
            found[name] = await observe(server.url, transport=transport)
            await transport.aclose()
    assert found["default"]["error_class"] == "tls_verify"
    assert "certificate" in found["default"]["error"]
    assert found["ca_file"]["outcome"] is Outcome.OK
    assert found["insecure"]["outcome"] is Outcome.OK
    assert found["ca_file"]["connected_ns"] < found["ca_file"]["tls_done_ns"]
    assert found["ca_file"]["chunks"].kind == "cc"


async def test_tls_reads_bear_the_stamp_of_the_ciphertext(
    server_context: ssl.SSLContext,
) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.stream(*"abcdef", every_s=0.05)

    with scripted(script, tls=server_context) as server:
        transport = StampedTransport(context=ssl_context(insecure=True))
        facts = await observe(server.url, transport=transport)
        again = await observe(server.url, transport=transport)
        await transport.aclose()
    assert 240 <= ms(facts, "last_ns", "first_ns") < 400
    assert all(lag >= 0 for lag in facts["chunks"].lag_ns)
    assert any(lag > 0 for lag in facts["chunks"].lag_ns)
    assert again["connection"] == "reused"


async def test_an_unknown_event_between_tokens_is_tolerated() -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head()
        await out.send(content("a"))
        await out.send(b'data: {"error_free": true, "choices": []}\n\n')
        await out.send(event({"content": "an error is a word, too"}))
        await out.send(finish() + DONE)
        await out.end()

    with scripted(script) as server:
        facts = await observe(server.url)
    assert facts["outcome"] is Outcome.OK
    assert facts["chunks"].kind == "cc"
