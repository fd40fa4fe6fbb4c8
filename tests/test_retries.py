"""A request that is tried again: what its earlier attempts waited for is no lag of the client."""

import asyncio

import httpx
import pytest
from make import make_run

from loadgen.analysis.per_request import measured
from loadgen.client.clock import now_ns, sleep_s
from loadgen.client.limits import Limits
from loadgen.client.trace import TRACE
from loadgen.record import Outcome, Phase, Record
from loadgen.run.carrier import Arrival, Carrier, Way
from loadgen.run.supply import Call
from loadgen.workload.prompt import Prompt

CONNECT_MS = 250
STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)


class SlowToConnect(httpx.AsyncBaseTransport):
    """Takes its time to connect for each attempt, then fails ("stalls") or answers a status."""

    stamps = True

    def __init__(self, *steps: str | int) -> None:
        self._steps = list(steps)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        trace, step = request.extensions[TRACE], self._steps.pop(0)
        trace.connect_start_ns = now_ns()
        await sleep_s(CONNECT_MS / 1000)
        if step == "stalls":
            raise httpx.ConnectTimeout("no connection")
        trace.connected_ns, trace.connection = now_ns(), "new"
        trace.sent_ns = trace.sent_ns or now_ns()
        trace.status, trace.headers = step, {"content-type": "text/event-stream"}
        trace.sink.body(now_ns(), 0, STREAM if step == 200 else b"busy")
        trace.sink.ended(now_ns(), "end")
        return httpx.Response(int(step), extensions={TRACE: trace}, request=request)


async def sent_by(transport: httpx.AsyncBaseTransport) -> Record:
    """Return the record of one request, tried up to four times."""
    told: list[Record] = []
    way = Way(
        transport=transport,
        limits=Limits(),
        endpoint="chat",
        epoch_ns=0,
        level=0,
        round=0,
        retries=3,
    )
    carrier = Carrier(way, told.append)
    request = httpx.Request("POST", "http://127.0.0.1:1/v1/x", content=b"{}")
    call = Call(prompt=Prompt(messages=[], hash="x"), request=request)
    due_ns = now_ns()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(carrier.settle_all())
        await carrier.carry(Arrival(id=0, due_ns=due_ns, phase=Phase.MEASURE), call, due_ns)
        carrier.close()
    return told[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "before"),
    [
        ([200], 1),
        (["stalls", 200], 2),
        (["stalls", "stalls", 200], 3),
        ([503, 200], 1),
        (["stalls", 503, 200], 2),
        ([503, "stalls", 200], 1),
        (["stalls", 503, "stalls", 200], 2),
    ],
    ids=lambda steps: "-".join(map(str, steps)) if isinstance(steps, list) else "",
)
async def test_a_slow_connect_of_any_attempt_is_no_send_lag(
    steps: list[str | int], before: int
) -> None:
    """before: how many connects lie before the first send."""
    made = await sent_by(SlowToConnect(*steps))
    assert (made.outcome, made.attempts) == (Outcome.OK, len(steps))
    found = measured(make_run([made])).requests.iloc[0]
    assert found["lateness_ns"] >= before * CONNECT_MS * 1e6
    assert 0 <= found["send_lag_ns"] < 0.6 * CONNECT_MS * 1e6
    assert found["internal_errors"] == 0


async def test_a_request_sent_once_has_no_earlier_connects() -> None:
    made = await sent_by(SlowToConnect(200))
    assert made.earlier_connects_ns is None
