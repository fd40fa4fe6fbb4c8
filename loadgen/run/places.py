"""Places in flight: a cap on requests at once, first come, first served."""

import asyncio
from collections import deque

UNBOUNDED = 1 << 60


class Places:
    """So many places; ``try_take`` never waits, ``take`` does."""

    def __init__(self, number: int | None) -> None:
        self._free = UNBOUNDED if number is None else number
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_take(self) -> bool:
        """Take a place if one is free and nobody waits for it."""
        if self._free <= 0 or self._waiting:
            return False
        self._free -= 1
        return True

    async def take(self) -> bool:
        """Take a place; returns whether it had to be waited for."""
        if self.try_take():
            return False
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # given before it could be taken
                self.give()
            raise
        return True

    def give(self) -> None:
        """Give a place back, to who waits longest."""
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                return
        self._free += 1
