"""Requests built ahead: how many are ready, in which order, and when there is time to build."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from drive import scenario

from loadgen.client.clock import breathe, now_ns, sleep_s
from loadgen.client.envelope import Envelope
from loadgen.client.limits import Limits
from loadgen.client.transport import WIRE_BYTES, wire_bytes
from loadgen.run.events import Event, Notice
from loadgen.run.level import LevelRun, Session
from loadgen.run.store import RunStore
from loadgen.run.supply import Call, Supply
from loadgen.workload.prompt import Prompt

URL = httpx.URL("http://127.0.0.1:1/v1/chat/completions?x=1")
HEADERS = {"content-type": "application/json", "authorization": "Bearer k"}


def builder(*sizes: int) -> Callable[[int], Call]:
    """Build calls that take so many bytes in memory, in turn."""

    def build(number: int) -> Call:
        request = httpx.Request("POST", URL)
        request.extensions[WIRE_BYTES] = bytes(sizes[number % len(sizes)] // 2)
        return Call(prompt=Prompt(hash=str(number)), request=request)

    return build


def names(*calls: Call) -> list[str]:
    return [call.prompt.hash for call in calls]


async def ready_of(supply: Supply) -> int:
    """Return how many are taken before one has to be built on the spot."""
    taken = 0
    while not supply.misses:
        supply.take()
        taken += 1
    return taken - 1


@pytest.mark.parametrize(
    ("sizes", "ready"),
    [([10], 50), ([1000], 10), ([20_000], 1), ([4000, 100], 5)],
    ids=["short: so many", "long: so many bytes", "longer than all: one", "of unlike lengths"],
)
async def test_what_is_ready_is_bounded_by_number_and_by_bytes(
    sizes: list[int], ready: int
) -> None:
    supply = Supply(builder(*sizes), ahead=50, most=None, ahead_bytes=10_000)
    await supply.fill()
    assert await ready_of(supply) == ready


@pytest.mark.parametrize("size", [10, 1000, 20_000], ids=["short", "long", "longer than all"])
async def test_what_is_gone_is_built_again_before_it_is_missed(size: int) -> None:
    supply = Supply(builder(size), ahead=50, most=None, ahead_bytes=10_000)
    await supply.fill()
    filler = asyncio.create_task(supply.keep_filled())
    taken = []
    for _ in range(200):
        taken.append(supply.take())
        for _ in range(4):
            await breathe()
    filler.cancel()
    assert supply.misses == 0
    assert names(*taken) == [str(number) for number in range(200)]


async def test_no_more_are_built_than_a_level_sends_whoever_takes_the_last() -> None:
    taken: list[Call] = []
    built: list[int] = []

    def build(number: int) -> Call:
        built.append(number)
        return builder(10)(number)

    supply = Supply(build, ahead=4, most=6)

    async def in_a_hurry(_takes_ns: int) -> None:
        if len(taken) < 6:
            taken.append(supply.take())

    await supply.fill(in_a_hurry)
    while len(taken) < 6:
        taken.append(supply.take())
    await supply.fill()
    assert names(*taken) == [str(number) for number in range(6)]
    assert built == list(range(6))


def slow_builder(milliseconds: float) -> Callable[[int], Call]:
    def build(number: int) -> Call:
        until = now_ns() + round(milliseconds * 1e6)
        while now_ns() < until:
            pass
        return builder(10)(number)

    return build


async def test_building_asks_for_the_room_it_takes() -> None:
    asked: list[int] = []

    async def room(takes_ns: int) -> None:
        asked.append(takes_ns)

    await Supply(slow_builder(2), ahead=30, most=None).fill(room)
    assert asked[0] == 0
    assert asked[-1] >= 3_000_000


async def test_a_supply_that_runs_low_no_longer_waits_for_room() -> None:
    supply = Supply(slow_builder(1), ahead=40, most=None)
    await supply.fill()
    asked: dict[int, int] = {}  # by how many were ready
    ready = 40

    async def room(takes_ns: int) -> None:
        asked[ready] = takes_ns
        raise TimeoutError

    while ready:
        supply.take()
        ready -= 1
        with pytest.raises(TimeoutError):
            await supply.fill(room)
    assert all(asked[number] > 1_000_000 for number in range(11, 40))
    assert all(asked[number] == 0 for number in range(11))


# --- a level's

MB = 1 << 20


async def prepared(
    directory: Path, build: Callable[[int], Call], *, worker: int = 0, workers: int = 1
) -> list[Event]:
    """Prepare a worker's share of an open level of 1,000 requests; return what it told."""
    heard: list[Event] = []
    store = RunStore(directory)
    session = Session(
        scenario=scenario(
            "http://127.0.0.1:1",
            levels=[{"rate": 50.0}],
            each_level={"warmup": "0 requests", "measure": "1000 requests"},
            workers=workers,
        ),
        transport=httpx.MockTransport(lambda _: httpx.Response(200)),
        url=URL,
        limits=Limits(),
        build=lambda _level, _round, number: build(number),
        store=store,
        epoch_ns=now_ns(),
        on_event=heard.append,
        worker=worker,
        workers=workers,
    )
    await LevelRun(session, 0, 0, 0).prepare()
    store.close()
    return heard


@pytest.mark.parametrize(("workers", "most"), [(1, 32), (2, 16)])
async def test_an_open_level_of_long_prompts_holds_a_bounded_amount_ready(
    workers: int, most: int, tmp_path: Path
) -> None:
    built: list[int] = []

    def build(number: int) -> Call:
        built.append(number)
        return builder(4 * MB)(number)

    await prepared(tmp_path, build, workers=workers)
    assert len(built) == most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build_s", "worker", "told"),
    [(0.1, 0, ["50/s poisson: preparing requests"]), (0.1, 1, []), (0.0, 0, [])],
    ids=["long", "long, but another tells", "short"],
)
async def test_preparing_for_long_is_told_once(
    build_s: float, worker: int, told: list[str], tmp_path: Path
) -> None:
    def build(number: int) -> Call:
        slow_builder(build_s * 1e3)(number)
        return builder(4 * MB)(number)

    heard = await prepared(tmp_path, build, worker=worker, workers=worker + 1)
    await sleep_s(1.1 if not build_s else 0)  # nothing is told when all is ready
    assert [event.text for event in heard if isinstance(event, Notice)] == told


# --- the request itself


@pytest.mark.parametrize("content", [b"{}", '{"q": "é"}'.encode() * 500])
async def test_an_enveloped_body_is_the_request_httpx_would_make(content: bytes) -> None:
    wanted = httpx.Request("POST", URL, headers=HEADERS, content=content)
    made = Envelope(URL, HEADERS).around(content)
    assert made.extensions[WIRE_BYTES] == wire_bytes(wanted)
    assert made.headers.raw == wanted.headers.raw
    assert (made.method, made.url) == (wanted.method, wanted.url)
    assert [piece async for piece in made.stream] == [content]  # as often as it is sent again
    assert await made.aread() == content
