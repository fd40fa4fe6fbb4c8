"""One level of load: which request is due when, and who carries it.

A closed level has N slots; each sends its next request when its last one ended, through warm-up
and measure without a pause, until arrivals are over. An open level sends by a schedule drawn
beforehand, whatever the server does, up to a cap of requests in flight. With conversations a slot,
or a scheduled arrival, is a whole conversation: the next turn is due when the last one ended and
its think time is over, and never two of one conversation are in flight. Every arrival leaves
exactly one record.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from loadgen.client.clock import Alarm, Sleepers, breathe, now_ns, sleep_s
from loadgen.client.exchange import Exchange
from loadgen.record import Outcome, Phase, Record
from loadgen.run.carrier import Arrival, Carrier, Way
from loadgen.run.phases import AnyPhases, CountedPhases, LogPhases
from loadgen.run.places import Places
from loadgen.run.supply import Call, Supply, Talk
from loadgen.scenario.model import Level
from loadgen.units import seconds_to_ns
from loadgen.workload.arrivals import Schedule

_WAKE_EARLY_NS = 60_000  # what a wake by timer costs: be there, and wait the rest out
_PAUSE_S = 0.1  # a slot whose connection failed waits before the next try,
_LONGEST_PAUSE_S = 1.0  # doubling up to this: a dead server is not to be hammered
_NO_CONNECTION = frozenset({"connection_refused", "connect", "dns", "tls", "tls_verify"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one level asks for.

    slots: of a closed level, by number (a worker has some of them). in_flight: the most requests
    at once, None where slots already bound them. conversations: how many there are, None without
    an end. number: arrival i of this worker → its number in
    the level. ends_persist: the server keeps a connection when a stream ends, so that the next
    request may go out at once.
    """

    level: Level
    phases: AnyPhases
    supply: Supply
    drain_s: float
    slots: tuple[int, ...] = ()
    in_flight: int | None = None
    schedule: Schedule | None = None
    talks: Callable[[int], Talk] | None = None
    conversations: int | None = None
    number: Callable[[int], int] = int
    ends_persist: bool = True


class Ear(Protocol):
    """Who is told of a level's progress."""

    def record(self, record: Record) -> None:
        """Take one finished record."""

    def phase(self, phase: Phase) -> None:
        """Learn that a phase began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A slot's next request: admitted, its exchange ready, or sent already."""

    arrival: Arrival
    call: Call
    exchange: Exchange


class _Follower:
    """What a slot's stream calls when it ends: sends the slot's next request at once.

    asked: it was called; ``sent`` is then the request that followed, None when arrivals are over.
    """

    __slots__ = ("_dispatch", "_slot", "asked", "sent")

    def __init__(self, dispatch: "Dispatch", slot: int) -> None:
        self._dispatch = dispatch
        self._slot = slot
        self.asked = False
        self.sent: _Sent | None = None

    def __call__(self) -> None:
        if self._dispatch.carrier.can_launch:
            self.asked = True
            self.sent = self._dispatch.follow_up(self._slot)


class Dispatch:
    """Runs one level; ``run`` returns when every arrival has its record."""

    def __init__(self, load: Load, way: Way, ear: Ear, *, first_id: int) -> None:
        self.carrier = Carrier(way, ear.record)
        self.arrivals = 0
        self.conversations_cut = 0  # by a turn that failed
        self.measured_peak = 0
        self.measured_mean: float | None = None
        self._load = load
        self._phases = load.phases
        self._ear = ear
        self._first_id = first_id
        self._started = 0
        self._ready: tuple[Call, Exchange] | None = None
        self._change_ns: int | None = None
        self._seen_phase = Phase.WARMUP
        self._alarm: Alarm | None = None
        self._thinkers: Sleepers | None = None
        self._places = Places(load.in_flight)

    async def run(self) -> None:
        """Hold the level: warm up, measure, drain."""
        load = self._load
        self._alarm = Alarm(self._time_passed)
        self._thinkers = Sleepers() if load.talks else None
        async with asyncio.TaskGroup() as beside:
            filler = beside.create_task(load.supply.keep_filled(self.carrier.calm.room))
            settler = beside.create_task(self.carrier.settle_all())
            drain = beside.create_task(self._limit_drain())
            try:
                async with asyncio.TaskGroup() as carriers:
                    self._start(carriers)
            finally:
                self._alarm.close()
                if self._thinkers:
                    self._thinkers.close()
                filler.cancel()
                drain.cancel()
                self.carrier.close()
            await settler

    def stop(self, reason: str) -> None:
        """Let no further arrival come; what is in flight drains."""
        self._phases.stop(now_ns(), reason)
        self._changed()

    def cut(self, outcome: Outcome) -> None:
        """End everything in flight, and everything that waits, with this outcome."""
        self.carrier.cut(outcome)

    def _start(self, group: asyncio.TaskGroup) -> None:
        if self._load.schedule is not None:
            group.create_task(self._follow(self._load.schedule, group))
        else:
            start_ns = self._phases.start_ns
            hold = self._slot if self._load.talks is None else self._slot_of_talks
            for slot in self._load.slots:
                group.create_task(hold(slot, start_ns))
        self._time_passed()

    # --- closed: slots

    async def _slot(self, slot: int, due_ns: int) -> None:
        """Hold one slot: where a stream ends well, the next request leaves inside that very read.

        A burst of ends would else be read to its last before the first of the next was sent.
        """
        pause_s, early = 0.0, self._load.ends_persist
        sent = self._next(slot, due_ns)
        while sent is not None:
            follower = _Follower(self, slot)
            sent.exchange.on_end = follower if early else None
            exchange = await self.carrier.carry(
                sent.arrival, sent.call, sent.arrival.due_ns, launched=sent.exchange
            )
            exchange.on_end = sent.exchange.on_end = None
            if exchange.trace.reconnects:  # it closes connections that it said it would keep
                early = False
            if follower.asked:
                sent = follower.sent
                continue
            pause_s = await self._rest(exchange, pause_s)
            sent = self._next(slot, now_ns())

    def _next(self, slot: int, due_ns: int) -> "_Sent | None":
        """Admit the slot's next request, its exchange ready; None when arrivals are over."""
        arrival = self._admit(due_ns, slot)
        if arrival is None:
            return None
        call = self._load.supply.take()
        return _Sent(arrival=arrival, call=call, exchange=self.carrier.ready(call))

    def follow_up(self, slot: int) -> "_Sent | None":
        """Send the slot's next request now, from inside a read."""
        sent = self._next(slot, now_ns())
        if sent is not None:
            self.carrier.launch(sent.call, sent.exchange)
        return sent

    async def _slot_of_talks(self, slot: int, due_ns: int) -> None:
        pause_s = 0.0
        while True:
            exchange = await self._converse(due_ns, slot)
            if exchange is None:
                return
            pause_s = await self._rest(exchange, pause_s)
            due_ns = now_ns()

    async def _rest(self, exchange: Exchange, pause_s: float) -> float:
        """Pause a slot whose exchange found no connection; returns how long (s), 0 for others."""
        pause_s = _pause_after(exchange, pause_s)
        if pause_s:
            await self.carrier.pause(pause_s)
        elif exchange.verdict is not None:
            await breathe()  # it may have failed without a turn of the loop
        return pause_s

    # --- open: a schedule

    async def _follow(self, schedule: Schedule, group: asyncio.TaskGroup) -> None:
        start_ns = self._phases.start_ns
        due = [start_ns + int(offset) for offset in schedule.due_ns]
        position = 0

        def send_what_is_due() -> None:
            nonlocal position
            while position < len(due) and due[position] <= now_ns() + _WAKE_EARLY_NS:
                while now_ns() < due[position]:
                    pass  # tens of microseconds: a wake would come later than that
                self._start_one(due[position], group)
                position += 1
            if position < len(due):
                alarm.set(due[position] - _WAKE_EARLY_NS)
                self._ready_next()
            self.carrier.calm.expect(due[position] if position < len(due) else None)

        alarm = Alarm(send_what_is_due)
        try:
            send_what_is_due()
            await self.carrier.closed.wait()
            for due_ns in due[
                position:
            ]:  # due before the end, and a moment late; none after a stop
                self._start_one(due_ns, group)
        finally:
            alarm.close()
            self.carrier.calm.expect(None)

    def _start_one(self, due_ns: int, group: asyncio.TaskGroup) -> None:
        """Send one arrival at once, in the alarm's own call; its task only awaits the answer."""
        if self._load.talks is not None:
            group.create_task(self._converse(due_ns, None))
            return
        arrival = self._admit(due_ns, None)
        if arrival is None:
            return
        call, ready = self._take_ready()
        if self._places.try_take():
            launched = self.carrier.launch(call, ready) or ready
            group.create_task(self._in_place(arrival, call, slot_ns=due_ns, launched=launched))
        elif self._load.level.at_cap == "drop":
            self.carrier.set_aside(arrival, call, Outcome.DROPPED, ready)
        else:
            group.create_task(self._wait_for_place(arrival, call, ready))

    def _ready_next(self) -> None:
        """Have the next request's exchange at hand, so that being due means being sent."""
        if self._ready is None and self._load.talks is None:
            call = self._load.supply.take()
            self._ready = (call, self.carrier.ready(call))

    def _take_ready(self) -> tuple[Call, Exchange | None]:
        ready, self._ready = self._ready, None
        return ready or (self._load.supply.take(), None)

    async def _wait_for_place(self, arrival: Arrival, call: Call, ready: Exchange | None) -> None:
        await self._places.take()
        await self._in_place(arrival, call, slot_ns=now_ns(), launched=ready)

    async def _in_place(
        self, arrival: Arrival, call: Call, *, slot_ns: int, launched: Exchange | None = None
    ) -> None:
        try:
            if self.carrier.cut_as and not (launched and launched.begun):
                self.carrier.set_aside(arrival, call, self.carrier.cut_as, launched)
                return
            await self.carrier.carry(arrival, call, slot_ns, launched=launched)
        finally:
            self._places.give()

    # --- conversations

    async def _converse(self, due_ns: int, slot: int | None) -> Exchange | None:
        """Hold one conversation, turn by turn; None where its first turn was no longer due."""
        assert self._load.talks is not None
        if self._started == self._load.conversations:
            return None
        talk = self._load.talks(self._load.number(self._started))
        self._started += 1
        exchange: Exchange | None = None
        call = talk.call()
        while True:
            arrival = self._admit(due_ns, slot)
            if arrival is None:
                return exchange
            slot_ns = now_ns() if await self._places.take() else due_ns
            try:
                if self.carrier.cut_as:
                    self.carrier.set_aside(arrival, call, self.carrier.cut_as)
                    return exchange
                exchange, facts = await self.carrier.carry_and_settle(arrival, call, slot_ns)
            finally:
                self._places.give()
            due_ns = now_ns() + seconds_to_ns(talk.think_s)
            talk.answered(exchange.reply)
            if talk.over:
                return exchange
            if facts["outcome"] is not Outcome.OK:
                self.conversations_cut += 1
                if isinstance(self._phases, CountedPhases | LogPhases):
                    self._phases.forgo(talk.left)
                    self._changed()
                return exchange
            call = talk.call()  # while the user thinks, not when the turn is due
            if self._thinkers and not self.carrier.closed.is_set():
                await self._thinkers.until(due_ns)

    # --- both

    def _admit(self, due_ns: int, slot: int | None) -> Arrival | None:
        phase = self._phases.admit(due_ns)
        self._changed()
        if phase is None:
            return None
        number = self._first_id + self._load.number(self.arrivals)
        self.arrivals += 1
        return Arrival(id=number, due_ns=due_ns, phase=phase, slot=slot)

    # --- time

    def _time_passed(self) -> None:
        self._phases.advance(now_ns())
        self._change_ns = None  # the alarm went off: it is set for nothing now
        self._changed()

    def _changed(self) -> None:
        phase = self._phases.phase
        while self._seen_phase is not phase:
            measures = (
                self._seen_phase is Phase.WARMUP and self._phases.measure_start_ns is not None
            )
            self._enter(Phase.MEASURE if measures else Phase.DRAIN)
        change = self._phases.next_change_ns()
        if change is not None and change != self._change_ns and self._alarm:
            self._change_ns = change
            self._alarm.set(change)

    def _enter(self, phase: Phase) -> None:
        self._seen_phase = phase
        flow, now = self.carrier.flow, now_ns()
        if phase is Phase.MEASURE:
            flow.restart(now)
        else:
            if self._phases.measure_start_ns is not None:
                self.measured_peak = flow.peak
                self.measured_mean = flow.mean(now)
            self.carrier.closed.set()
            if self._thinkers:
                self._thinkers.wake_all()  # whose next turn is no longer due
        self._ear.phase(phase)

    async def _limit_drain(self) -> None:
        await self.carrier.closed.wait()
        await sleep_s(self._load.drain_s)
        self.cut(Outcome.UNFINISHED)


def _pause_after(exchange: Exchange, pause_s: float) -> float:
    """Return how long a slot waits after this exchange: longer with each failed connection."""
    verdict = exchange.verdict
    if verdict is None:
        return 0.0
    mine = verdict.outcome is Outcome.CLIENT_FAULT  # no descriptor, no port: nor a moment later
    if not mine and verdict.error_class not in _NO_CONNECTION:
        return 0.0
    return min(max(2 * pause_s, _PAUSE_S), _LONGEST_PAUSE_S)
