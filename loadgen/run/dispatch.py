"""One level of load: arrivals × slots → records.

A closed level has N slots; each sends its next request when its last one ended, through warm-up
and measure without a pause, until arrivals are over. An open level sends by a schedule drawn
beforehand, whatever the server does, up to a cap of requests in flight. Every arrival leaves
exactly one record. Decoding what arrived and writing it down happens beside the slots, so that no
slot waits for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from asyncio_throttle.throttler import Throttler

from loadgen.client.answer import Endpoint
from loadgen.client.clock import Alarm, now_ns, sleep_s
from loadgen.client.exchange import Exchange, Limits
from loadgen.record import Chunks, Outcome, Phase, Record
from loadgen.run.flow import Flow
from loadgen.run.phases import AnyPhases
from loadgen.run.privacy import storable
from loadgen.run.supply import Call, Supply
from loadgen.scenario.model import Level
from loadgen.workload.arrivals import Schedule

_PAUSE_S = 0.1  # a slot whose connection failed waits before the next try,
_LONGEST_PAUSE_S = 1.0  # doubling up to this: a dead server is not to be hammered
_NO_CONNECTION = frozenset({"connection_refused", "connect", "dns", "tls", "tls_verify"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request that is due."""

    id: int
    due_ns: int
    phase: Phase
    slot: int | None = None


@dataclass(slots=True, kw_only=True)
class Setting:
    """All that a level needs from the run."""

    number: int
    round: int
    level: Level
    phases: AnyPhases
    transport: httpx.AsyncBaseTransport
    supply: Supply
    limits: Limits
    endpoint: Endpoint
    drain_s: float
    epoch_ns: int
    first_id: int
    schedule: Schedule | None = None  # of an open level
    retries: int = 0
    count_tokens: Callable[[str], int] | None = None
    secrets: tuple[str, ...] = ()


class Ear(Protocol):
    """Who is told of a level's progress."""

    def record(self, record: Record) -> None:
        """Take one finished record."""

    def phase(self, phase: Phase) -> None:
        """Learn that a phase began."""


@dataclass(slots=True)
class _Finished:
    arrival: Arrival
    call: Call
    exchange: Exchange
    slot_ns: int | None  # None: no slot was ever granted


class Dispatch:
    """Runs one level; ``run`` returns when every arrival has its record."""

    def __init__(self, setting: Setting, ear: Ear) -> None:
        self.flow = Flow(now_ns())
        self.pieces = 0
        self.arrivals = 0
        self.measured_peak = 0
        self.measured_mean: float | None = None
        self.flow_at_end: int | None = None
        self._setting = setting
        self._phases = setting.phases
        self._ear = ear
        self._active: set[Exchange] = set()
        self._finished: deque[_Finished] = deque()
        self._news = asyncio.Event()
        self._over = False
        self._closed = asyncio.Event()  # arrivals are over
        self._seen_phase = Phase.WARMUP
        self._throttler = _throttler(setting.level.max_starts_per_s)
        self._alarm: Alarm | None = None
        self._waiting: deque[Arrival] = deque()
        self._cut_as: Outcome | None = None

    async def run(self) -> None:
        """Hold the level: warm up, measure, drain."""
        self._alarm = Alarm(self._time_passed)
        async with asyncio.TaskGroup() as beside:
            filler = beside.create_task(self._setting.supply.keep_filled())
            settler = beside.create_task(self._settle_all())
            drain = beside.create_task(self._limit_drain())
            try:
                async with asyncio.TaskGroup() as carriers:
                    if self._setting.schedule is None:
                        self._start_slots(carriers)
                    else:
                        carriers.create_task(self._follow_schedule(carriers))
                    self._time_passed()
            finally:
                self._alarm.close()
                filler.cancel()
                drain.cancel()
                self._over = True
                self._news.set()
            await settler

    def stop(self, reason: str) -> None:
        """Let no further arrival come; what is in flight drains."""
        self._phases.stop(now_ns(), reason)
        self._changed()

    def cut(self, outcome: Outcome) -> None:
        """End everything in flight, and everything that waits, with this outcome."""
        self._cut_as = outcome
        for exchange in list(self._active):
            exchange.interrupt(outcome)
        while self._waiting:
            self._set_aside(self._waiting.popleft(), outcome)

    # --- closed: slots

    def _start_slots(self, group: asyncio.TaskGroup) -> None:
        concurrency = self._setting.level.concurrency
        assert concurrency is not None
        for slot in range(concurrency):
            group.create_task(self._slot(slot, self._phases.start_ns))

    async def _slot(self, slot: int, due_ns: int) -> None:
        pause_s = 0.0
        while (arrival := self._admit(due_ns, slot)) is not None:
            exchange = await self._carry(arrival, due_ns)
            verdict = exchange.verdict
            if verdict is not None and verdict.error_class in _NO_CONNECTION:
                pause_s = min(max(2 * pause_s, _PAUSE_S), _LONGEST_PAUSE_S)
                await self._pause(pause_s)
            else:
                pause_s = 0.0
            due_ns = now_ns()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            pass

    # --- open: a schedule

    async def _follow_schedule(self, group: asyncio.TaskGroup) -> None:
        schedule = self._setting.schedule
        assert schedule is not None
        start_ns = self._phases.start_ns
        due = [start_ns + int(offset) for offset in schedule.due_ns]
        position = 0
        finished = asyncio.get_running_loop().create_future()

        def send_what_is_due() -> None:
            nonlocal position
            while position < len(due) and due[position] <= now_ns():
                arrival = self._admit(due[position], None)
                position += 1
                if arrival is None:
                    position = len(due)
                    break
                self._take_place(arrival, group)
            if position < len(due):
                alarm.set(due[position])
            elif not finished.done():
                finished.set_result(None)

        alarm = Alarm(send_what_is_due)
        try:
            send_what_is_due()
            await self._closed.wait()
            send_what_is_due()  # what was due before the end and is a moment late, or a stop
            await finished
        finally:
            alarm.close()

    def _take_place(self, arrival: Arrival, group: asyncio.TaskGroup) -> None:
        level = self._setting.level
        if self.flow.in_flight < level.max_in_flight:
            self.flow.begin(now_ns())
            group.create_task(self._carry_waiting(arrival, arrival.due_ns))
        elif level.at_cap == "drop":
            self._set_aside(arrival, Outcome.DROPPED)
        else:
            self._waiting.append(arrival)

    async def _carry_waiting(self, arrival: Arrival, slot_ns: int) -> None:
        """Carry an arrival; then, in the same place, those that waited for one."""
        while True:
            await self._carry(arrival, slot_ns, counted=True)
            if not self._waiting or self._cut_as:
                return
            arrival = self._waiting.popleft()
            slot_ns = now_ns()
            self.flow.begin(slot_ns)

    # --- both

    def _admit(self, due_ns: int, slot: int | None) -> Arrival | None:
        phase = self._phases.admit(due_ns)
        self._changed()
        if phase is None:
            return None
        number = self._setting.first_id + self.arrivals
        self.arrivals += 1
        return Arrival(id=number, due_ns=due_ns, phase=phase, slot=slot)

    async def _carry(self, arrival: Arrival, slot_ns: int, *, counted: bool = False) -> Exchange:
        setting = self._setting
        call = setting.supply.take()
        if not counted:
            self.flow.begin(now_ns())
        try:
            throttled_ns = await self._throttle()
            exchange = await self._send(call)
            exchange.throttled_ns = throttled_ns
        finally:
            self.flow.end(now_ns())
        self._finished.append(_Finished(arrival, call, exchange, slot_ns))
        self._news.set()
        return exchange

    async def _send(self, call: Call) -> Exchange:
        """Send once, and again where the scenario asks for retries and the failure allows it."""
        exchange = self._exchange(call)
        for left in range(self._setting.retries, -1, -1):
            if self._cut_as:
                exchange.set_aside(self._cut_as)
                return exchange
            self._active.add(exchange)
            try:
                await exchange.run(self._setting.transport, call.request)
            finally:
                self._active.discard(exchange)
            if not left or not exchange.may_be_retried:
                return exchange
            await self._pause(exchange.retry_after_s)
            exchange = self._exchange(call).follow(exchange)
        return exchange

    def _exchange(self, call: Call) -> Exchange:
        setting = self._setting
        return Exchange(
            endpoint=setting.endpoint,
            limits=setting.limits,
            expects_many=call.expects_many,
            asked_output=call.prompt.asked_output,
            on_piece=self._count_piece,
        )

    def _count_piece(self) -> None:
        self.pieces += 1

    async def _throttle(self) -> int | None:
        if self._throttler is None:
            return None
        before = now_ns()
        async with self._throttler:
            return now_ns() - before

    def _set_aside(self, arrival: Arrival, outcome: Outcome) -> None:
        call = self._setting.supply.take()
        exchange = self._exchange(call)
        exchange.set_aside(outcome)
        self._finished.append(_Finished(arrival, call, exchange, None))
        self._news.set()

    # --- time

    def _time_passed(self) -> None:
        self._phases.advance(now_ns())
        self._changed()

    def _changed(self) -> None:
        phase = self._phases.phase
        while self._seen_phase is not phase:
            self._enter(Phase.MEASURE if self._seen_phase is Phase.WARMUP else Phase.DRAIN)
        change = self._phases.next_change_ns()
        if change is not None and self._alarm:
            self._alarm.set(change)

    def _enter(self, phase: Phase) -> None:
        self._seen_phase = phase
        now = now_ns()
        if phase is Phase.MEASURE:
            self.flow.restart(now)
        else:
            self.measured_peak = self.flow.peak
            self.measured_mean = self.flow.mean(now)
            self._closed.set()
        self._ear.phase(phase)

    async def _limit_drain(self) -> None:
        await self._closed.wait()
        await sleep_s(self._setting.drain_s)
        self.cut(Outcome.UNFINISHED)

    # --- beside the slots

    async def _settle_all(self) -> None:
        while self._finished or not self._over:
            if not self._finished:
                self._news.clear()
                await self._news.wait()
                continue
            item = self._finished.popleft()
            facts = await item.exchange.settle(
                self._setting.count_tokens, secrets=self._setting.secrets
            )
            self._ear.record(self._record(item, facts))

    def _record(self, item: _Finished, facts: dict[str, Any]) -> Record:
        setting, arrival, prompt = self._setting, item.arrival, item.call.prompt
        facts["error"] = storable(facts["error"], secrets=setting.secrets, prompt=prompt)
        return Record(
            id=arrival.id,
            level=setting.number,
            round=setting.round,
            phase=arrival.phase,
            slot=arrival.slot,
            class_=prompt.class_,
            conversation=prompt.conversation,
            turn=prompt.turn,
            prompt_hash=prompt.hash,
            due_ns=arrival.due_ns - setting.epoch_ns,
            slot_ns=None if item.slot_ns is None else item.slot_ns - setting.epoch_ns,
            asked_input=prompt.asked_input,
            asked_output=prompt.asked_output,
            **_from_epoch(facts, setting.epoch_ns),
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


def _throttler(starts_per_s: float | None) -> Throttler | None:
    """Return a ceiling on starts that spaces them evenly (a plain one lets N through at once)."""
    if starts_per_s is None:
        return None
    return Throttler(rate_limit=1, period=1 / starts_per_s, retry_interval=0.001)


def slots_of(level: Level) -> int:
    """Return how many requests may be in flight at once."""
    return level.concurrency if level.concurrency is not None else level.max_in_flight
