"""Requests built ahead, so that sending one costs no more than handing its bytes over."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from loadgen.client.clock import breathe
from loadgen.workload.prompt import Conversation, Prompt

Room = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, ready to go, and the prompt it says."""

    prompt: Prompt
    request: httpx.Request
    expects_many: bool = False  # several choices or prompts: several usages may come
    several_prompts: bool = False


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

    async def fill(self, room: Room = breathe) -> None:
        """Build until ``ahead`` are ready; room: awaited after each."""
        while len(self._ready) < self._ahead and (self._most is None or self._number < self._most):
            self._ready.append(self._next())
            await room()

    async def keep_filled(self, room: Room = breathe) -> None:
        """Build whenever half of what was ready is gone; runs until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.fill(room)

    def _next(self) -> Call:
        call = self._build(self._number)
        self._number += 1
        return call


class Talk:
    """One conversation under way: what its next turn says depends on how the last was answered."""

    def __init__(self, conversation: Conversation, build: Callable[[Prompt], Call]) -> None:
        self._conversation = conversation
        self._build = build
        self._replies: list[str] = []

    @property
    def over(self) -> bool:
        """Whether every turn was taken."""
        return len(self._replies) >= len(self._conversation.turns)

    @property
    def left(self) -> int:
        """How many turns were not taken."""
        return len(self._conversation.turns) - len(self._replies)

    @property
    def think_s(self) -> float:
        """How long the user thinks before the turn after the present one."""
        following = len(self._replies) + 1
        turns = self._conversation.turns
        return turns[following].think_s if following < len(turns) else 0.0

    def call(self) -> Call:
        """Build the present turn's request, with all that was said before."""
        return self._build(self._conversation.prompt(len(self._replies), self._replies))

    def answered(self, reply: str) -> None:
        """Go on to the next turn, knowing what the server answered."""
        self._replies.append(reply)
