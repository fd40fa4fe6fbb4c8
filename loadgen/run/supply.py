"""Requests built ahead, so that sending one costs no more than handing its bytes over."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from loadgen.client.clock import breathe
from loadgen.workload.prompt import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, ready to go, and the prompt it says."""

    prompt: Prompt
    request: httpx.Request
    expects_many: bool = False  # several choices or prompts: several usages may come


class Supply:
    """The next calls of one level, in order; ``ahead`` of them are kept ready.

    ``take`` never waits: where nothing is ready it builds on the spot and counts it in ``misses``.
    """

    def __init__(self, build: Callable[[int], Call], *, ahead: int, most: int | None) -> None:
        self.misses = 0
        self._build = build
        self._ahead = ahead
        self._most = most  # a level known to send fewer is not prepared for more
        self._ready: deque[Call] = deque()
        self._number = 0
        self._wanted = asyncio.Event()

    def take(self) -> Call:
        """Return the next call."""
        if len(self._ready) <= self._ahead // 2:
            self._wanted.set()
        if self._ready:
            return self._ready.popleft()
        self.misses += 1
        return self._next()

    async def fill(self) -> None:
        """Build until ``ahead`` are ready."""
        while len(self._ready) < self._ahead and (self._most is None or self._number < self._most):
            self._ready.append(self._next())
            await breathe()

    async def keep_filled(self) -> None:
        """Build whenever half of what was ready is gone; runs until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.fill()

    def _next(self) -> Call:
        call = self._build(self._number)
        self._number += 1
        return call
