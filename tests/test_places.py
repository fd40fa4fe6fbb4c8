"""Places in flight: first come, first served, and never two for one place."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loadgen.run.places import Places


class Crowd:
    """Many who want places; counts how many have one."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.inside = 0
        self.peak = 0
        self.order: list[int] = []
        self.waited: list[bool] = []

    @contextmanager
    def place(self, name: int) -> Iterator[None]:
        self.order.append(name)
        self.inside += 1
        self.peak = max(self.peak, self.inside)
        try:
            yield
        finally:
            self.inside -= 1
            self.places.give()

    async def come(self, name: int, turns: int = 1) -> None:
        self.waited.append(await self.places.take())
        with self.place(name):
            await turn(turns)


async def turn(number: int = 1) -> None:
    for _ in range(number):
        await asyncio.sleep(0)  # noqa: TID251 - one turn of the loop


async def test_who_waits_longest_is_served_first() -> None:
    crowd = Crowd(Places(1))
    await asyncio.gather(*(crowd.come(name) for name in range(5)))
    assert crowd.order == [0, 1, 2, 3, 4]
    assert crowd.waited == [False, True, True, True, True]


@pytest.mark.parametrize("places", [1, 3, 10])
async def test_never_more_are_inside_than_there_are_places(places: int) -> None:
    crowd = Crowd(Places(places))
    stays = [1 + (7 * name) % 5 for name in range(60)]
    await asyncio.gather(*(crowd.come(name, stay) for name, stay in enumerate(stays)))
    assert crowd.peak == places
    assert sorted(crowd.order) == list(range(60))


async def test_nobody_slips_in_before_those_who_wait() -> None:
    places = Places(1)
    assert places.try_take()
    waiting = asyncio.create_task(places.take())
    await turn()
    places.give()  # goes to who waits, even before it has woken up
    assert not places.try_take()
    assert await waiting
    places.give()
    assert places.try_take()


async def test_a_place_passes_over_who_no_longer_waits() -> None:
    places = Places(1)
    places.try_take()
    gone, patient = asyncio.create_task(places.take()), asyncio.create_task(places.take())
    await turn()
    gone.cancel()
    await turn()
    places.give()
    assert await patient


async def test_a_place_given_to_one_who_is_gone_before_waking_is_given_on() -> None:
    places = Places(1)
    places.try_take()
    gone, patient = asyncio.create_task(places.take()), asyncio.create_task(places.take())
    await turn()
    places.give()
    gone.cancel()  # has the place, and has not yet run
    await turn(3)
    assert patient.done()


async def test_without_a_cap_nobody_waits() -> None:
    places = Places(None)
    assert all(places.try_take() for _ in range(10_000))
    assert await places.take() is False
