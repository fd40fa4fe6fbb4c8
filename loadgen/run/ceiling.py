"""A ceiling on starts: at most so many a second, evenly spaced, first come, first served.

asyncio-throttle holds the ceiling. Alone it would let a second's worth through at once, or, set to
one start at a time, lose to its polling what each start is late. So the starts come to it one by
one, at the instants of an even schedule that is a little slower than what it allows.
"""

import asyncio

from asyncio_throttle.throttler import Throttler

from loadgen.client.clock import Sleepers, now_ns
from loadgen.units import NS_PER_S

_SLOWER = 1.02
_CATCH_UP_NS = 20_000_000  # of starts that were late, as much of a second as the schedule is slower
_POLL_S = 0.001  # seldom needed: the schedule comes when the throttler is ready


class Ceiling:
    """Lets starts pass; whoever wants to start waits for ``room``."""

    def __init__(self, starts_per_s: float) -> None:
        at_most = max(1, int(starts_per_s))
        self._throttler = Throttler(
            rate_limit=at_most, period=at_most / starts_per_s, retry_interval=_POLL_S
        )
        self._gap_ns = round(_SLOWER * NS_PER_S / starts_per_s)
        self._due_ns = 0  # of the latest start, by the schedule
        self._turn = asyncio.Lock()  # first come, first served, and one that sleeps for all
        self._sleepers = Sleepers()
        self._lifted = False

    async def room(self) -> int:
        """Return when a start may leave: how many ns it had to wait."""
        came_ns = now_ns()
        async with self._turn:
            if not self._lifted:
                await self._next(came_ns)
        return now_ns() - came_ns

    def lift(self) -> None:
        """Hold nobody any longer: who waits now goes on at once."""
        self._lifted = True
        self._sleepers.wake_all()

    def close(self) -> None:
        """Give the timer back; nobody may wait any more."""
        self._sleepers.close()

    async def _next(self, came_ns: int) -> None:
        now = now_ns()
        self._due_ns = max(self._due_ns + self._gap_ns, came_ns, now - _CATCH_UP_NS)
        if self._due_ns > now:
            await self._sleepers.until(self._due_ns)
        if not self._lifted:
            async with self._throttler:
                return
