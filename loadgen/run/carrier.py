"""Carry arrivals over the wire and turn each into its record.

Sending is the slots' business; decoding what arrived and writing it down happens here, beside
them, so that no slot waits for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from loadgen.analysis.answers import defects
from loadgen.client.answer import Endpoint
from loadgen.client.clock import breathe, now_ns
from loadgen.client.exchange import Exchange
from loadgen.client.limits import Limits
from loadgen.record import Chunks, Outcome, Phase, Record
from loadgen.run.abort import Age
from loadgen.run.calm import Calm
from loadgen.run.ceiling import Ceiling
from loadgen.run.flow import Flow
from loadgen.run.privacy import storable
from loadgen.run.quality import canary_facts
from loadgen.run.supply import Call
from loadgen.units import NS_PER_MS

_BACKLOG = 256  # finished exchanges that may wait for a calm moment


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request that is due."""

    id: int
    due_ns: int
    phase: Phase
    slot: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How requests of a level are sent: the same for all of them."""

    transport: httpx.AsyncBaseTransport
    limits: Limits
    endpoint: Endpoint
    epoch_ns: int
    level: int
    round: int
    worker: int = 0
    retries: int = 0
    max_starts_per_s: float | None = None
    count_tokens: Callable[[str], int] | None = None
    secrets: tuple[str, ...] = ()


@dataclass(slots=True)
class _Finished:
    arrival: Arrival
    call: Call
    exchange: Exchange
    slot_ns: int | None  # None: no slot was ever granted
    facts: dict[str, Any] | None = None


class Carrier:
    """Sends what it is given; ``settle_all`` hands each record on until ``close``.

    pieces: body pieces after first tokens, a live measure of tokens. closed: set by the owner when
    arrivals are over; it cuts pauses short. calm: told by the owner when the next request is due.
    """

    def __init__(self, way: Way, tell: Callable[[Record], None]) -> None:
        self.flow = Flow(now_ns())
        self.pieces = 0
        self.closed = asyncio.Event()
        self.calm = Calm()
        self.cut_as: Outcome | None = None
        self._way = way
        self._tell = tell
        self._active: set[Exchange] = set()
        self._finished: deque[_Finished] = deque()
        self._news = asyncio.Event()
        self._over = False
        starts_per_s = way.max_starts_per_s
        self._ceiling = None if starts_per_s is None else Ceiling(starts_per_s)

    def ready(self, call: Call) -> Exchange:
        """Make the exchange of a request that is due soon."""
        return self._exchange(call)

    @property
    def can_launch(self) -> bool:
        """Whether a request may go out at once: no ceiling on starts, not the end of the level."""
        return self._ceiling is None and not self.cut_as

    def launch(self, call: Call, ready: Exchange | None = None) -> Exchange | None:
        """Send one request at once, from where its instant is noticed; ``carry`` must follow.

        None where sending has to wait.
        """
        if not self.can_launch:
            return None
        exchange = ready or self._exchange(call)
        exchange.launch(self._way.transport, call.request)
        return exchange

    async def carry(
        self, arrival: Arrival, call: Call, slot_ns: int, *, launched: Exchange | None = None
    ) -> Exchange:
        """Send one request and return when its exchange is over; its record follows.

        launched: its exchange, where it was sent already, or only made ready.
        """
        exchange = await self._in_flight(call, launched)
        self._done(_Finished(arrival, call, exchange, slot_ns))
        return exchange

    async def carry_and_settle(
        self, arrival: Arrival, call: Call, slot_ns: int
    ) -> tuple[Exchange, dict[str, Any]]:
        """Carry, and wait for the facts as well: a next turn depends on them."""
        exchange = await self._in_flight(call)
        facts = await self._settle(exchange)
        self._done(_Finished(arrival, call, exchange, slot_ns, facts))
        return exchange, facts

    def set_aside(
        self, arrival: Arrival, call: Call, outcome: Outcome, ready: Exchange | None = None
    ) -> None:
        """Record an arrival that is never sent; ready: its exchange, where one was made."""
        exchange = ready or self._exchange(call)
        exchange.set_aside(outcome)
        self._done(_Finished(arrival, call, exchange, None))

    def cut(self, outcome: Outcome) -> None:
        """End everything in flight with this outcome, and all that would still be sent.

        A second cut changes nothing: the first says why these ended.
        """
        if self.cut_as:
            return
        self.cut_as = outcome
        for exchange in list(self._active):
            exchange.interrupt(outcome)
        if self._ceiling:
            self._ceiling.lift()

    def ages(self, now_ns: int) -> Iterator[Age]:
        """Yield how long each request in flight has been, from its send."""
        for exchange in self._active:
            if (sent_ns := exchange.trace.sent_ns) is not None:
                answered = exchange.first_ns is not None
                yield Age(ms=(now_ns - sent_ns) / NS_PER_MS, answered=answered)

    async def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of arrivals."""
        try:
            async with asyncio.timeout(seconds):
                await self.closed.wait()
        except TimeoutError:
            pass

    def close(self) -> None:
        """Let ``settle_all`` return when the last record is out."""
        self._over = True
        self._news.set()
        if self._ceiling:
            self._ceiling.close()

    async def settle_all(self) -> None:
        """Decode finished exchanges and hand their records on, in the order they ended."""
        while self._finished or not self._over:
            if not self._finished:
                self._news.clear()
                await self._news.wait()
                continue
            item = self._finished.popleft()
            await self._room()
            facts = item.facts or await self._settle(item.exchange)
            self._tell(self._record(item, facts))

    # --- inside

    async def _in_flight(self, call: Call, launched: Exchange | None = None) -> Exchange:
        self.flow.begin(now_ns())
        try:
            throttled_ns = await self._ceiling.room() if self._ceiling else None
            exchange = await self._send(call, launched)
            exchange.throttled_ns = throttled_ns
            return exchange
        finally:
            self.flow.end(now_ns())

    async def _send(self, call: Call, launched: Exchange | None) -> Exchange:
        """Send once, and again where the scenario asks for retries and the failure allows it."""
        exchange = launched or self._exchange(call)
        for left in range(self._way.retries, -1, -1):
            if self.cut_as and not exchange.begun:
                exchange.set_aside(self.cut_as)
                return exchange
            if self.cut_as:  # cut between its send and now
                asyncio.get_running_loop().call_soon(exchange.interrupt, self.cut_as)
            self._active.add(exchange)
            try:
                await exchange.run(self._way.transport, call.request)
            finally:
                self._active.discard(exchange)
            if not left or not exchange.may_be_retried:
                return exchange
            await self.pause(exchange.retry_after_s)
            if self._ceiling:
                await self._ceiling.room()
            exchange = self._exchange(call).follow(exchange)
        return exchange

    def _exchange(self, call: Call) -> Exchange:
        return Exchange(
            endpoint=self._way.endpoint,
            limits=self._way.limits,
            expects_many=call.expects_many,
            several_prompts=call.several_prompts,
            asked_output=call.prompt.asked_output,
            on_piece=self._count_piece,
        )

    def _count_piece(self) -> None:
        self.pieces += 1

    async def _settle(self, exchange: Exchange) -> dict[str, Any]:
        return await exchange.settle(
            self._way.count_tokens, secrets=self._way.secrets, room=self._room
        )

    async def _room(self) -> None:
        """Wait until no send is near, unless much waits to be settled."""
        if len(self._finished) < _BACKLOG:
            await self.calm.room()
        else:
            await breathe()

    def _done(self, item: _Finished) -> None:
        self._finished.append(item)
        self._news.set()

    def _record(self, item: _Finished, facts: dict[str, Any]) -> Record:
        way, arrival, prompt = self._way, item.arrival, item.call.prompt
        facts["error"] = storable(facts["error"], secrets=way.secrets, prompt=prompt)
        answered = facts["outcome"] is Outcome.OK
        if answered:
            facts["flags"] = [*facts["flags"], *defects(item.exchange.reply)]
        return Record(
            id=arrival.id,
            level=way.level,
            round=way.round,
            phase=arrival.phase,
            worker=way.worker,
            slot=arrival.slot,
            class_=prompt.class_,
            conversation=prompt.conversation,
            turn=prompt.turn,
            prompt_hash=prompt.hash,
            due_ns=arrival.due_ns - way.epoch_ns,
            slot_ns=None if item.slot_ns is None else item.slot_ns - way.epoch_ns,
            asked_input=prompt.asked_input,
            asked_output=prompt.asked_output,
            canary=canary_facts(prompt.canary, item.exchange.reply if answered else None),
            **_from_epoch(facts, way.epoch_ns),
        )


_INSTANTS = (
    "connect_start_ns",
    "connected_ns",
    "tls_done_ns",
    "sent_ns",
    "written_ns",
    "headers_ns",
    "first_ns",
    "first_output_ns",
    "last_ns",
    "end_ns",
)


def _from_epoch(facts: dict[str, Any], epoch_ns: int) -> dict[str, Any]:
    """Turn absolute instants into instants from the run's epoch, and chunk instants into gaps."""
    for name in _INSTANTS:
        if facts[name] is not None:
            facts[name] -= epoch_ns
    chunks: Chunks = facts["chunks"]
    before = epoch_ns
    at_ns = chunks.at_ns
    for index, instant in enumerate(at_ns):
        at_ns[index] = instant - before
        before = instant
    return facts
