"""A ceiling on starts: never exceeded, nearly reached, and no obstacle to the end of a level."""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from drive import measure
from scenario_make import make_scenario
from serve import Asked, Out, scripted
from test_follow import Told, call

from loadgen.client.clock import now_ns, sleep_s
from loadgen.client.limits import Limits
from loadgen.record import Outcome
from loadgen.run.carrier import Way
from loadgen.run.ceiling import Ceiling
from loadgen.run.dispatch import Dispatch, Load
from loadgen.run.phases import Phases
from loadgen.run.supply import Supply
from loadgen.scenario.model import Span
from loadgen.units import NS_PER_S


async def starts_under(starts_per_s: float, *, waiting: int, seconds: float) -> np.ndarray:
    """Have so many wait for a start again and again; return the instants of starts (s)."""
    ceiling, starts, over = Ceiling(starts_per_s), list[int](), asyncio.Event()

    async def start_again_and_again() -> None:
        while True:
            await ceiling.room()
            if over.is_set():
                return
            starts.append(now_ns())

    async with asyncio.TaskGroup() as group:
        for _ in range(waiting):
            group.create_task(start_again_and_again())
        await sleep_s(seconds)
        over.set()
        ceiling.lift()
    ceiling.close()
    return np.array(starts) / NS_PER_S


@pytest.mark.slow
@pytest.mark.parametrize("starts_per_s", [20, 200, 1000])
async def test_a_ceiling_is_nearly_reached_and_in_no_second_exceeded(starts_per_s: int) -> None:
    at = await starts_under(starts_per_s, waiting=64, seconds=3)
    in_a_second = np.searchsorted(at, at + 1.0) - np.arange(len(at))
    assert max(in_a_second) <= starts_per_s
    assert len(at) >= 0.9 * 3 * starts_per_s  # 0.98, where nothing else keeps the machine busy


@pytest.mark.slow
async def test_a_stall_is_not_made_up_for_in_a_burst() -> None:
    async def stall() -> None:
        await sleep_s(0.5)
        until_ns = now_ns() + NS_PER_S // 2
        while now_ns() < until_ns:
            pass

    stalled = asyncio.create_task(stall())
    at = await starts_under(500, waiting=64, seconds=1.5)
    await stalled
    in_a_tenth = np.searchsorted(at, at + 0.1) - np.arange(len(at))
    assert max(in_a_tenth) <= 70  # 50, and what a stall may leave behind


async def test_starts_come_in_the_order_in_which_they_were_asked_for() -> None:
    ceiling, order = Ceiling(1000), list[int]()

    async def start(number: int) -> None:
        await ceiling.room()
        order.append(number)

    await asyncio.gather(*(start(number) for number in range(20)))
    ceiling.close()
    assert order == list(range(20))


@pytest.mark.slow
async def test_many_that_wait_cost_no_more_than_one() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    await starts_under(20, waiting=500, seconds=2)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


class Silent(httpx.AsyncBaseTransport):
    """Takes requests and never answers."""

    async def handle_async_request(self, _: httpx.Request) -> httpx.Response:
        return await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def waiting_level(told: Told, *, drain_s: float) -> AsyncIterator[Dispatch]:
    """A closed level of 50 slots that may start one request in ten seconds."""
    load = Load(
        level=make_scenario(levels=[{"concurrency": 50}]).levels[0],
        phases=Phases(warmup=Span(requests=0), measure=Span(seconds=600), start_ns=now_ns()),
        supply=Supply(call, ahead=0, most=None),
        drain_s=drain_s,
        slots=tuple(range(50)),
    )
    way = Way(transport=Silent(), limits=Limits(), endpoint="chat", epoch_ns=0, level=0, round=0,
              max_starts_per_s=0.1)  # fmt: skip
    dispatch = Dispatch(load, way, told, first_id=0)
    async with asyncio.timeout(8), asyncio.TaskGroup() as group:
        group.create_task(dispatch.run())
        await sleep_s(0.05)
        yield dispatch


async def test_the_end_of_the_drain_does_not_wait_for_those_that_wait_to_start() -> None:
    told = Told()
    async with waiting_level(told, drain_s=0.1) as dispatch:
        dispatch.stop("time")
    assert [record.outcome for record in told.records] == 50 * [Outcome.UNFINISHED]
    assert sum(record.sent_ns is None for record in told.records) >= 49


async def test_what_the_user_cut_is_cancelled_whatever_the_drain_says_later() -> None:
    told = Told()
    async with waiting_level(told, drain_s=0.0) as dispatch:
        dispatch.cut(Outcome.CANCELLED)
        dispatch.stop("interrupted")
    assert [record.outcome for record in told.records] == 50 * [Outcome.CANCELLED]


@pytest.mark.slow
def test_a_retry_is_a_start_too(tmp_path: Path) -> None:
    async def script(asked: Asked, out: Out) -> None:
        if asked.json["max_tokens"] == 1:  # the preflight's
            await out.stream("a")
        else:
            await out.whole(429, {"error": {"message": "busy"}})

    with scripted(script) as server:
        _, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"concurrency": 4, "max_starts_per_s": 20.0}],
            each_level={"warmup": "0 requests", "measure": "4 requests"},
            limits={"retries": 2},
        )
    assert [row["attempts"] for row in records] == 4 * [3]
    took_ns = max(row["end_ns"] for row in records) - min(row["sent_ns"] for row in records)
    assert took_ns > 0.9 * 11 / 20 * NS_PER_S
