"""Every captured answer of a real server, served again over a real socket and read by the client.

The table is that of ``test_captures``: what the decoder finds in the bytes alone, an exchange must
find when they come through a socket, in their HTTP framing, cut where they were cut.
"""

import asyncio
import json
from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple

import httpx
import pytest
from replay import LONGEST_MS, Replayed, Replays, replaying
from wire_cases import WIRE, body_reads, load, names

from loadgen import engines
from loadgen.client.exchange import Exchange
from loadgen.client.limits import Limits
from loadgen.client.requests import expects_many
from loadgen.client.stock import stock_transport
from loadgen.client.transport import StampedTransport

TABLE: Mapping[str, Mapping[str, Any]] = json.loads((WIRE / "expected.json").read_text())
KINDS = ("streams", "whole", "refused")  # answers to a prompt; the rest ("other") are look-ups
EXCHANGED = [name for kind in KINDS for name in TABLE[kind]]
TIMED = [name for name, row in TABLE["streams"].items() if row["first_ms"] is not None]
AT_ONCE = 16
CLOCKS_NS = 50_000  # what the mapping of the kernel's clock onto ours may err by, and more
OWN_WRITE_NS = 2_000_000


class Heard(NamedTuple):
    """One capture as the client heard it, beside what the server did."""

    facts: dict[str, Any]
    served: Replayed


async def exchange(
    replays: Replays, name: str, transport: httpx.AsyncBaseTransport
) -> dict[str, Any]:
    capture = load(name)
    exchange = Exchange(
        endpoint=capture.endpoint,
        limits=Limits(),
        expects_many=expects_many(capture.asked),
        asked_output=capture.asked.get("max_tokens"),
    )
    await exchange.run(transport, replays.request(name))
    return await exchange.settle()


async def hear_all(transport: httpx.AsyncBaseTransport) -> dict[str, Heard]:
    turn, heard = asyncio.Semaphore(AT_ONCE), {}

    async def hear(name: str) -> None:
        async with turn:
            facts = await exchange(replays, name, transport)
        heard[name] = Heard(facts, replays.served[name])

    async with transport, replaying() as replays, asyncio.TaskGroup() as group:
        for name in EXCHANGED:
            group.create_task(hear(name))
    return heard


@pytest.fixture(scope="module")
def own() -> dict[str, Heard]:
    return asyncio.run(hear_all(StampedTransport()))


@pytest.fixture(scope="module")
def stock() -> dict[str, Heard]:
    return asyncio.run(hear_all(stock_transport(context=None)))


@pytest.fixture(params=["own", "stock"])
def heard(request: pytest.FixtureRequest) -> dict[str, Heard]:
    """All answers, through each of the two transports."""
    found: dict[str, Heard] = request.getfixturevalue(request.param)
    return found


def in_words(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What a record holds, by the names of a row of streams; "buffered" is of the reads."""
    chunks = facts["chunks"]
    return {
        "outcome": facts["outcome"],
        "hash": facts["output_hash"],
        "chars": facts["output_chars"],
        "chunks": len(chunks.at_ns),
        "kinds": "".join(f"{len(list(run))}{kind}" for kind, run in groupby(chunks.kind)),
        "finish": facts["finish_reasons"],
        "output": facts["reported_output"],
        "input": facts["reported_input"],
        "cached": facts["cached_input"],
        "flags": [flag for flag in facts["flags"] if flag != "buffered"],
    }


def test_every_capture_is_served_as_an_exchange_or_as_a_look_up() -> None:
    assert sorted([*EXCHANGED, *TABLE["other"]]) == names()


@pytest.mark.parametrize("name", TABLE["streams"])
def test_a_served_stream_is_heard_as_the_table_says(heard: dict[str, Heard], name: str) -> None:
    row, facts = TABLE["streams"][name], heard[name].facts
    seen = in_words(facts)
    assert seen == {key: row[key] for key in seen}
    assert (facts["http_status"], facts["token_source"] == "reported") == (
        200,
        row["output"] is not None,
    )


@pytest.mark.parametrize(
    ("name", "error_class", "says"),
    [
        ("llama-server-disconnect", "truncated", "closed after"),
        ("llamacpp-disconnect", "truncated", "closed after 33 chunks"),
        ("sglang-disconnect", "truncated", "closed after"),
        ("vllm-disconnect", "truncated", "closed after"),
        ("transformers-err-negative-max-tokens", "server_error_in_stream", "`max_new_tokens` must"),
    ],
)
def test_a_served_stream_that_fails_says_how(
    heard: dict[str, Heard], name: str, error_class: str, says: str
) -> None:
    facts = heard[name].facts
    assert facts["error_class"] == error_class
    assert facts["error"].startswith(says)


@pytest.mark.parametrize("name", TABLE["whole"])
def test_a_served_whole_answer_is_ok_and_has_no_first_token(
    heard: dict[str, Heard], name: str
) -> None:
    facts, row = heard[name].facts, TABLE["whole"][name]
    assert (facts["outcome"], facts["flags"]) == ("ok", ["non_stream_response"])
    assert (facts["output_hash"], facts["finish_reasons"]) == (row["hash"], row["finish"])
    assert (facts["reported_input"], facts["reported_output"]) == (row["input"], row["output"])
    assert (facts["first_ns"], facts["last_ns"], facts["chunks"].at_ns) == (None, None, [])
    assert facts["sent_ns"] < facts["headers_ns"] <= facts["end_ns"]


@pytest.mark.parametrize("name", TABLE["refused"])
def test_a_served_refusal_keeps_its_class_and_the_servers_words(
    heard: dict[str, Heard], name: str
) -> None:
    facts, row = heard[name].facts, TABLE["refused"][name]
    assert (facts["outcome"], facts["error_class"]) == ("refused", row["class"])
    assert (facts["http_status"], facts["error"]) == (row["status"], row["error"])
    assert (facts["first_ns"], facts["flags"]) == (None, [])


@pytest.mark.parametrize("name", TABLE["other"])
async def test_a_served_look_up_arrives_whole_and_names_its_engine_or_none(name: str) -> None:
    async with replaying() as replays, httpx.AsyncClient(transport=StampedTransport()) as client:
        answer = await client.send(replays.request(name))
    capture, kind = load(name), load(name).request.rsplit("/", 1)[1]
    assert answer.status_code == 200
    assert answer.content == b"".join(read.data for read in body_reads(capture))
    found = engines.recognise(
        server_header=answer.headers["server"],
        version_body=answer.content if kind == "version" else None,
        models_body=answer.content if kind == "models" else None,
        metrics_head=answer.content if kind == "metrics" else None,
    )
    assert found.name == TABLE["other"][name]["engine"]


@pytest.mark.parametrize("name", TIMED)
def test_no_instant_comes_before_what_it_is_the_instant_of(
    own: dict[str, Heard], name: str
) -> None:
    (facts, served), row = own[name], TABLE["streams"][name]
    order = ("connect_start_ns", "connected_ns", "sent_ns", "written_ns", "headers_ns")
    instants = [facts[key] for key in (*order, "first_ns", "last_ns", "end_ns")]
    assert instants == sorted(instants)
    assert facts["headers_ns"] >= served.wrote_ns[0] - CLOCKS_NS
    assert facts["first_ns"] >= served.wrote_at(row["first_ms"]) - CLOCKS_NS
    assert facts["last_ns"] >= served.wrote_at(row["last_ms"]) - CLOCKS_NS
    assert facts["chunks"].at_ns == sorted(facts["chunks"].at_ns)


@pytest.mark.parametrize("name", TIMED)
def test_an_answer_is_buffered_when_its_tokens_came_in_one_read(
    own: dict[str, Heard], name: str
) -> None:
    (facts, served), row = own[name], TABLE["streams"][name]
    buffered = "buffered" in facts["flags"]
    if row["first_ms"] == row["last_ms"]:
        assert buffered == (row["chunks"] > 1)
    elif served.wrote_at(row["last_ms"]) - served.wrote_at(row["first_ms"]) > OWN_WRITE_NS:
        assert not buffered


@pytest.mark.parametrize(("key", "recorded"), [("first_ns", "first_ms"), ("last_ns", "last_ms")])
def test_a_chunk_bears_the_time_of_its_own_write(
    own: dict[str, Heard], key: str, recorded: str
) -> None:
    late_ns = [
        own[name].facts[key] - own[name].served.wrote_at(TABLE["streams"][name][recorded])
        for name in TIMED
    ]
    # A machine with other work may hold up a few; a stamp of another read would hold up most.
    near = [late for late in late_ns if late < OWN_WRITE_NS]
    assert len(near) >= 0.8 * len(late_ns)


def test_what_is_served_is_compressed_in_time_and_not_in_order(own: dict[str, Heard]) -> None:
    for heard in own.values():
        wrote, reads = heard.served.wrote_ns, heard.served.capture.arrivals
        assert len(wrote) == len(reads)
        assert wrote == sorted(wrote)
    spans = [heard.served.wrote_ns[-1] - heard.served.wrote_ns[0] for heard in own.values()]
    assert sorted(spans)[len(spans) // 2] < 2 * LONGEST_MS * 1e6
