"""A slot's next request leaves inside the read that ends a stream; work that can wait, waits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from drive import scenario

from loadgen.client.clock import breathe, now_ns, sleep_s
from loadgen.client.limits import Limits
from loadgen.client.trace import TRACE
from loadgen.record import Outcome, Phase, Record
from loadgen.run.calm import Calm
from loadgen.run.carrier import Way
from loadgen.run.dispatch import Dispatch, Load
from loadgen.run.phases import Phases
from loadgen.run.supply import Call, Supply
from loadgen.scenario.model import Span
from loadgen.workload.prompt import Prompt

STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


class Held(httpx.AsyncBaseTransport):
    """Keeps what is sent, and answers when told to, inside a call as a read would."""

    stamps = True

    def __init__(self) -> None:
        self.sent: list[httpx.Request] = []
        self._heads: list[asyncio.Future[None]] = []

    def send_now(self, request: httpx.Request) -> bool:
        self.sent.append(request)
        self._heads.append(asyncio.get_running_loop().create_future())
        request.extensions[TRACE].sent_ns = now_ns()
        return True

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if not any(request is one for one in self.sent):
            self.send_now(request)
        await self._heads[[id(one) for one in self.sent].index(id(request))]
        trace = request.extensions[TRACE]
        return httpx.Response(trace.status, extensions={TRACE: trace}, request=request)

    def answer(self, number: int, *, status: int = 200, reconnects: int = 0) -> None:
        trace = self.sent[number].extensions[TRACE]
        trace.status, trace.headers = status, {"content-type": "text/event-stream"}
        trace.reconnects = reconnects
        self._heads[number].set_result(None)
        trace.sink.body(now_ns(), 0, STREAM)
        trace.sink.ended(now_ns(), "end")


class Told:
    def __init__(self) -> None:
        self.records: list[Record] = []

    def record(self, record: Record) -> None:
        self.records.append(record)

    def phase(self, phase: Phase) -> None:
        pass


def call(number: int) -> Call:
    prompt = Prompt(messages=[], hash=str(number))
    return Call(prompt=prompt, request=httpx.Request("POST", "http://127.0.0.1:1/v1/x"))


@asynccontextmanager
async def one_slot(
    requests: int, *, persist: bool = True, **way: Any
) -> AsyncIterator[tuple[Held, Dispatch, Told]]:
    """A closed level of one slot, its first request on the wire; over when the block is."""
    held, told = Held(), Told()
    phases = Phases(warmup=Span(requests=0), measure=Span(requests=requests), start_ns=now_ns())
    load = Load(
        level=scenario("http://127.0.0.1:1", levels=[{"concurrency": 1}]).levels[0],
        phases=phases,
        supply=Supply(call, ahead=0, most=None),
        drain_s=5.0,
        slots=(0,),
        ends_persist=persist,
    )
    common = {"limits": Limits(), "endpoint": "chat", "epoch_ns": 0, "level": 0, "round": 0}
    dispatch = Dispatch(load, Way(transport=held, **common, **way), told, first_id=0)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(dispatch.run())
        await until_sent(held, 1)
        yield held, dispatch, told


async def until_sent(held: Held, number: int) -> None:
    while len(held.sent) < number:
        await sleep_s(0.001)


async def test_the_next_request_leaves_inside_the_read_that_ends_a_stream() -> None:
    async with one_slot(2) as (held, _, told):
        held.answer(0)
        assert len(held.sent) == 2  # no turn of the loop in between
        await breathe()
        held.answer(1)
        assert len(held.sent) == 2  # arrivals are over
    assert [record.outcome for record in told.records] == [Outcome.OK, Outcome.OK]
    assert told.records[1].due_ns <= (told.records[1].sent_ns or 0)


@pytest.mark.parametrize(
    ("how", "answer"),
    [({"persist": False}, {}), ({"max_starts_per_s": 1000.0}, {}), ({}, {"status": 500})],
    ids=["the server keeps no connections", "a ceiling on starts", "a refusal"],
)
async def test_otherwise_it_leaves_from_the_slot(
    how: dict[str, Any], answer: dict[str, int]
) -> None:
    async with one_slot(2, **how) as (held, _, told):
        held.answer(0, **answer)
        assert len(held.sent) == 1
        await until_sent(held, 2)
        held.answer(1)
    assert len(told.records) == 2


async def test_a_server_that_closes_what_it_promised_to_keep_is_given_time() -> None:
    async with one_slot(3, max_starts_per_s=None) as (held, dispatch, _):
        held.answer(0, reconnects=1)
        await until_sent(held, 2)
        await breathe()
        held.answer(1)
        assert len(held.sent) == 2
        await until_sent(held, 3)
        held.answer(2)
    assert dispatch.arrivals == 3


async def test_a_cut_reaches_a_request_that_left_a_moment_before() -> None:
    async with one_slot(9) as (held, dispatch, told):
        held.answer(0)
        dispatch.stop("interrupted")
        dispatch.cut(Outcome.CANCELLED)
    assert [record.outcome for record in told.records] == [Outcome.OK, Outcome.CANCELLED]
    assert len(held.sent) == len(told.records)


async def test_work_waits_for_a_send_that_is_near() -> None:
    calm, done = Calm(), []

    async def work() -> None:
        await calm.room()
        done.append(now_ns())

    calm.expect(now_ns() + 200_000)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(work())
        for _ in range(3):
            await breathe()
        assert not done
        calm.expect(now_ns() + 1_000_000_000)
    assert len(done) == 1


async def test_work_waits_for_no_send_that_is_far_and_never_for_ever() -> None:
    calm = Calm()
    async with asyncio.timeout(5):
        await calm.room()
        calm.expect(now_ns() + 1_000_000_000)
        await calm.room()
        calm.expect(now_ns())
        rushed = asyncio.create_task(calm.room())
        while not rushed.done():
            calm.expect(now_ns())  # one send after another, without a gap
            await sleep_s(0.001)


async def test_a_long_piece_of_work_waits_for_a_long_gap() -> None:
    calm, done = Calm(), []

    async def work() -> None:
        await calm.room(500_000_000)
        done.append(now_ns())

    calm.expect(now_ns() + 300_000_000)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(work())
        await breathe()
        await calm.room()  # which a short one need not
        assert not done
        calm.expect(now_ns() + 2_000_000_000)
    assert len(done) == 1
