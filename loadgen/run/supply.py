"""Requests built ahead, so that sending one costs no more than handing its bytes over."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from loadgen.client.clock import breathe, now_ns
from loadgen.client.transport import WIRE_BYTES
from loadgen.workload.prompt import Conversation, Prompt

Room = Callable[[int], Awaitable[None]]
"""Waits for a moment in which a piece of work of so many ns is in nobody's way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, ready to go, and the prompt it says."""

    prompt: Prompt
    request: httpx.Request
    expects_many: bool = False  # several choices or prompts: several usages may come
    several_prompts: bool = False

    @property
    def held_bytes(self) -> int:
        """About what it takes in memory: the bytes that go out, and as many of the prompt's own."""
        return 2 * len(self.request.extensions.get(WIRE_BYTES, b""))


class Supply:
    """The next calls of one level, in order; some are kept ready.

    ahead: how many of them; fewer where they come to ``ahead_bytes`` (long prompts). ``take`` never
    waits: where nothing is ready it builds on the spot and counts it in ``misses``.
    """

    def __init__(
        self,
        build: Callable[[int], Call],
        *,
        ahead: int,
        most: int | None,
        ahead_bytes: int | None = None,
    ) -> None:
        self.misses = 0
        self._build = build
        self._ahead = ahead
        self._ahead_bytes = ahead_bytes
        self._most = most  # a level known to send fewer is not prepared for more
        self._ready: deque[Call] = deque()
        self._bytes = 0  # of what is ready
        self._filled = 0  # how many were ready when last there were enough
        self._number = 0
        self._takes_ns = 0  # to build one, on average of late
        self._wanted = asyncio.Event()

    def take(self) -> Call:
        """Return the next call."""
        if not self._ready:
            self.misses += 1
            self._wanted.set()
            return self._next()
        call = self._ready.popleft()
        self._bytes -= call.held_bytes
        if len(self._ready) <= self._filled // 2:
            self._wanted.set()
        return call

    async def fill(self, room: Room | None = None) -> None:
        """Build until enough are ready; room: awaited before each."""
        while self._short:
            await (room(self._room_ns) if room else breathe())
            if self._short:  # while it waited, the last may have been taken
                call = self._next()
                self._ready.append(call)
                self._bytes += call.held_bytes
        self._filled = len(self._ready)

    async def keep_filled(self, room: Room | None = None) -> None:
        """Build whenever half of what was ready is gone; runs until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self.fill(room)

    @property
    def _short(self) -> bool:
        """Whether fewer are ready than should be, and there are more to come."""
        if self._most is not None and self._number >= self._most:
            return False
        if self._ahead_bytes is not None and self._bytes >= self._ahead_bytes:
            return False
        return len(self._ready) < self._ahead

    @property
    def _room_ns(self) -> int:
        """The room that building asks for: twice what it takes, as lengths and machines vary.

        Where little is left it asks for none: one send held up now is better than each of many.
        """
        return 2 * self._takes_ns if len(self._ready) > self._filled // 4 else 0

    def _next(self) -> Call:
        begun_ns = now_ns()
        call = self._build(self._number)
        self._number += 1
        self._takes_ns += (now_ns() - begun_ns - self._takes_ns) // 8
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
