"""The alarm: on time, once, and on the instant set last."""

import asyncio
from time import monotonic_ns

import pytest
from simulator_make import MS

from loadgen.simulator.timer import Alarm


async def ring(*offsets_ms: int, precise: bool) -> list[float]:
    """Set an alarm to each offset in turn; milliseconds after the start at which it rang."""
    rung: list[float] = []
    first = asyncio.Event()
    start_ns = monotonic_ns()

    def note() -> None:
        rung.append((monotonic_ns() - start_ns) / MS)
        first.set()

    alarm = Alarm(asyncio.get_running_loop(), note, precise=precise)
    for offset_ms in offsets_ms:
        alarm.set(start_ns + offset_ms * MS)
    await asyncio.wait_for(first.wait(), timeout=5)
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.02)
    alarm.close()
    return rung


@pytest.mark.parametrize("precise", [True, False], ids=["timerfd", "loop"])
@pytest.mark.parametrize(
    ("offsets_ms", "least", "most"),
    [([20], 20, 5000), ([4000, 10], 10, 3000), ([5, 60], 60, 5000), ([-5], 0, 5000)],
    ids=["once", "earlier", "later", "passed"],
)
async def test_it_rings_once_at_the_instant_set_last_and_never_early(
    offsets_ms: list[int], least: float, most: float, precise: bool
) -> None:
    rung = await ring(*offsets_ms, precise=precise)
    assert len(rung) == 1
    assert least <= rung[0] < most


async def test_a_closed_alarm_does_not_ring() -> None:
    rung: list[int] = []
    alarm = Alarm(asyncio.get_running_loop(), lambda: rung.append(1))
    alarm.set(monotonic_ns() + 5 * MS)
    alarm.close()
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.02)
    assert rung == []
