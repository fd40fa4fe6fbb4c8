"""Kernel stamps are wall-clock times; what they become must not depend on the wall clock."""

import asyncio

import pytest

from loadgen.client.clock import RealtimeMap, Sleepers, now_ns

MS = 1_000_000


class Clocks:
    """A wall clock that can be stepped, and one that cannot; 20 ns pass at each look."""

    def __init__(self) -> None:
        self.now = 1_000_000_000
        self.wall_ahead = 1_700_000_000_000_000_000

    def monotonic(self) -> int:
        self.now += 20
        return self.now

    def wall(self) -> int:
        return self.monotonic() + self.wall_ahead

    def pass_ms(self, milliseconds: float) -> None:
        self.now += round(milliseconds * MS)

    def map(self) -> RealtimeMap:
        return RealtimeMap(wall=self.wall, monotonic=self.monotonic)


def test_a_stamp_is_mapped_within_its_bracket() -> None:
    clocks = Clocks()
    realtime = clocks.map()
    arrived = clocks.now
    stamp = clocks.now + clocks.wall_ahead
    clocks.pass_ms(0.05)
    assert abs(realtime.monotonic_of(stamp, clocks.now) - arrived) <= realtime.bracket_ns


@pytest.mark.parametrize("id_", ["B23"])
@pytest.mark.parametrize("step_s", [-2, 2, -3600], ids=lambda step: f"{step}s")
def test_a_wall_clock_that_is_stepped_changes_no_duration(id_: str, step_s: int) -> None:
    clocks = Clocks()
    realtime = clocks.map()
    clocks.pass_ms(100)
    first = realtime.monotonic_of(clocks.now + clocks.wall_ahead, clocks.now)
    clocks.wall_ahead += step_s * 1_000_000_000
    clocks.pass_ms(40)
    second = realtime.monotonic_of(clocks.now + clocks.wall_ahead, clocks.now)
    assert second - first == pytest.approx(40 * MS, abs=1000)


@pytest.mark.parametrize("id_", ["B23"])
def test_what_arrived_before_the_step_is_never_later_than_its_read(id_: str) -> None:
    clocks = Clocks()
    realtime = clocks.map()
    clocks.pass_ms(100)
    stamp = clocks.now + clocks.wall_ahead  # the kernel stamps, then somebody sets the clock
    clocks.wall_ahead -= 2_000_000_000
    clocks.pass_ms(60)
    read = clocks.now
    assert 0 <= read - realtime.monotonic_of(stamp, read) <= 60 * MS + 1000


def test_a_read_that_is_truly_late_keeps_its_stamp() -> None:
    clocks = Clocks()
    realtime = clocks.map()
    arrived = clocks.now
    stamp = clocks.now + clocks.wall_ahead
    clocks.pass_ms(300)
    assert abs(realtime.monotonic_of(stamp, clocks.now) - arrived) < 1000


async def test_sleepers_wake_in_order_and_never_early() -> None:
    sleepers = Sleepers()
    woken: list[int] = []

    async def sleep(number: int, at_ns: int) -> None:
        await sleepers.until(at_ns)
        assert now_ns() >= at_ns
        woken.append(number)

    start = now_ns()
    await asyncio.gather(*(sleep(n, start + (30 - 10 * n) * MS) for n in range(3)))
    sleepers.close()
    assert woken == [2, 1, 0]
