"""One level, from scenario entry to manifest entry: prepare, dispatch, watch the client."""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx

from loadgen.client.clock import Sleepers, now_ns, sleep_s
from loadgen.client.limits import Limits
from loadgen.client.transport import StampedTransport
from loadgen.record import FAILED_OUTCOMES, Outcome, Phase, Record
from loadgen.run.abort import Watch
from loadgen.run.burden import Burden
from loadgen.run.carrier import Way
from loadgen.run.dispatch import Dispatch, Load
from loadgen.run.events import Event, LevelEnded, Notice, PhaseChanged, Tick
from loadgen.run.phases import AnyPhases, CountedPhases, LogPhases, Phases, PlannedPhases, reason_of
from loadgen.run.quality import Golden, scenario_of_pass
from loadgen.run.share import Share, slots_of, workers_of
from loadgen.run.store import RunStore
from loadgen.run.supply import Call, Supply, Talk
from loadgen.scenario.abort import parse_abort_rule
from loadgen.scenario.model import Level, Scenario, Span
from loadgen.units import NS_PER_S
from loadgen.workload.arrivals import Schedule, busiest_second, deal
from loadgen.workload.plan import schedule_of
from loadgen.workload.replay.follow import log_turns
from loadgen.workload.replay.index import Numbers

_TICK_S = 0.5
_COLLECT_TICKS = 20  # young garbage is collected every 10 s, so that long levels do not grow
_AHEAD = 256
_AHEAD_OPEN = 16384  # building takes 0.1 ms, which a send may find in its way: do it before
_AHEAD_BYTES = 128 << 20  # of all workers together: long prompts are built as they are needed
_LONG_S = 1.0  # preparing that takes longer is told of


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What all levels of a run share, in one process.

    worker, workers: which share of every level is this process's.
    """

    scenario: Scenario
    transport: httpx.AsyncBaseTransport
    url: httpx.URL
    limits: Limits
    build: Callable[[int, int, int], Call]  # level, round, number
    store: RunStore
    epoch_ns: int
    on_event: Callable[[Event], None]
    converse: Callable[[int, int, int], Talk] | None = None
    golden: Golden | None = None
    secrets: tuple[str, ...] = ()
    preconnect: bool = True
    count_tokens: Callable[[str], int] | None = None
    worker: int = 0
    workers: int = 1

    def share(self, level: Level) -> Share:
        """Return this process's share of a level."""
        return Share(worker=self.worker, workers=workers_of(level, self.workers))

    def of_pass(self) -> "Session":
        """Return the session of a quality pass: each question of the golden set once."""
        golden = self.golden
        assert golden is not None
        return replace(
            self,
            scenario=scenario_of_pass(self.scenario, golden.questions),
            build=lambda _level, _round, number: golden.call(number),
            converse=None,
        )


class LevelRun:
    """A level while it runs: ``prepare``, then ``hold``.

    ``stop`` and ``cut`` may be called at any time, from a signal handler too.
    """

    def __init__(self, session: Session, number: int, round_: int, first_id: int) -> None:
        self.session = session
        self.number = number
        self.round = round_
        self.level: Level = session.scenario.levels[number]
        self._first_id = first_id
        self._share = session.share(self.level)
        self._schedule = self._my_schedule()
        self._turns = self._my_turns()
        self._supply = self._my_supply()
        self._watch = Watch([parse_abort_rule(text) for text in session.scenario.abort_if])
        self._dispatch: Dispatch | None = None
        self._burden: Burden | None = None
        self._stopped: str | None = None
        self._phase = Phase.WARMUP
        self._phase_began_ns = 0
        self._done = 0
        self._failed = 0
        self._faults = 0

    async def run(self) -> dict[str, Any]:
        """Prepare the level, hold it, and return its manifest entry."""
        await self.prepare()
        return await self.hold()

    async def prepare(self) -> None:
        """Build requests and connect ahead."""
        session = self.session
        telling = asyncio.get_running_loop().call_later(_LONG_S, self._tell_of_preparing)
        try:
            await self._supply.fill()
        finally:
            telling.cancel()
        if session.preconnect and isinstance(session.transport, StampedTransport):
            await _preconnect(session, max(self._connections() // self._share.workers, 1))

    async def hold(self, start_ns: int | None = None) -> dict[str, Any]:
        """Hold the level, from ``start_ns`` (now, unless told), and return its manifest entry."""
        with _collector_paused():
            if start_ns is not None:
                sleepers = Sleepers()
                await sleepers.until(start_ns)
                sleepers.close()
            return await self._hold(now_ns() if start_ns is None else start_ns)

    async def _hold(self, start_ns: int) -> dict[str, Any]:
        session, scenario = self.session, self.session.scenario
        phases = self._phases(start_ns)
        load = Load(
            level=self.level,
            phases=phases,
            supply=self._supply,
            drain_s=scenario.each_level.drain_s,
            slots=tuple(self._share.of(slots_of(self.level))) if self._schedule is None else (),
            in_flight=self._cap(),
            schedule=self._schedule,
            talks=self._talks(),
            conversations=None if self._turns is None else len(self._turns),
            ends_persist=session.preconnect,
            number=self._share.number,
        )
        way = Way(
            transport=session.transport,
            limits=session.limits,
            endpoint=scenario.target.endpoint,
            epoch_ns=session.epoch_ns,
            level=self.number,
            round=self.round,
            worker=session.worker,
            retries=scenario.limits.retries,
            max_starts_per_s=self._ceiling(),
            count_tokens=session.count_tokens,
            secrets=session.secrets,
        )
        dispatch = self._dispatch = Dispatch(load, way, self, first_id=self._first_id)
        if self._stopped:
            dispatch.stop(self._stopped)
        self._announce(Phase.WARMUP)
        client = await self._drive(dispatch)
        client["requests_built_late"] = self._supply.misses
        reason = phases.stop_reason or "failed"
        session.store.flush()
        session.on_event(LevelEnded(level=self.number, label=self.level.label, stop_reason=reason))
        return self._entry(dispatch, phases, reason=reason, client=client)

    def stop(self, reason: str) -> None:
        """Let no further request start; what is in flight drains."""
        self._stopped = reason
        if self._dispatch:
            self._dispatch.stop(reason)

    def cut(self, outcome: Outcome) -> None:
        """End what is in flight now."""
        if self._dispatch:
            self._dispatch.cut(outcome)

    # --- told by the dispatch

    def record(self, record: Record) -> None:
        """Store a finished record and count it."""
        self.session.store.append(record)
        self._watch.take(record)
        if record.outcome is Outcome.CLIENT_FAULT:
            self._faults += 1
            if self._faults == 1:
                self._tell_of_fault(record)
        if record.phase is self._phase or self._phase is Phase.DRAIN:
            self._done += 1
            self._failed += record.outcome in FAILED_OUTCOMES

    def phase(self, phase: Phase) -> None:
        """Learn that a phase began."""
        if self._burden:
            self._burden.enter(phase)
        self._announce(phase)

    # --- this process's share

    def _my_schedule(self) -> Schedule | None:
        if self.level.closed:
            return None
        session = self.session
        whole = schedule_of(session.scenario, self.number, round_=self.round)
        mine = deal(whole, self._share.worker, self._share.workers)
        turns = None if whole.turns is None else whole.turns[mine]
        return replace(whole, due_ns=whole.due_ns[mine], turns=turns)

    def _my_turns(self) -> Numbers | None:
        """Return the turns of each conversation, where a level goes once through a log."""
        if not self.level.once:
            return None
        whole = log_turns(self.session.scenario, self.number, round_=self.round)
        return whole[self._share.worker :: self._share.workers]

    def _my_supply(self) -> Supply:
        session = self.session

        def build(mine: int) -> Call:
            return session.build(self.number, self.round, self._share.number(mine))

        if session.converse is not None:
            return Supply(build, ahead=0, most=0)
        if self._schedule is not None:
            total = len(self._schedule.due_ns)
            # requests of a log may be long: fewer are held ready
            ahead = _AHEAD_OPEN if self.level.speed is None else _AHEAD
            most_bytes = _AHEAD_BYTES // self._share.workers
            return Supply(build, ahead=min(total, ahead), most=total, ahead_bytes=most_bytes)
        if self._turns is not None:
            return Supply(build, ahead=_AHEAD, most=len(self._turns))
        each = session.scenario.each_level
        warmup, measure = each.warmup_of(self.level), each.measure_of(self.level)
        counted = warmup.seconds is None and measure.seconds is None
        most = (warmup.requests or 0) + (measure.requests or 0) if counted else None
        return Supply(build, ahead=max(_AHEAD, 2 * slots_of(self.level)), most=most)

    def _talks(self) -> Callable[[int], Talk] | None:
        converse = self.session.converse
        if converse is None:
            return None
        return lambda number: converse(self.number, self.round, number)

    def _connections(self) -> int:
        """Return how many to make ahead: the slots, or about a second's worth of sends."""
        level = self.level
        if level.closed or self._schedule is None:
            return level.slots
        if level.speed is None:
            return min(level.max_in_flight, max(8, round(level.peak_rate)))
        mine = busiest_second(self._schedule)
        return min(level.max_in_flight, max(8, mine * self._share.workers))

    def _cap(self) -> int | None:
        """Return how many requests may be in flight at once, where slots do not bound them."""
        if self._schedule is not None:
            return max(len(self._share.of(self.level.max_in_flight)), 1)
        if self.level.sessions is not None and self.level.concurrency is not None:
            return max(len(self._share.of(self.level.concurrency)), 1)
        return None

    def _ceiling(self) -> float | None:
        starts_per_s = self.level.max_starts_per_s
        return None if starts_per_s is None else starts_per_s / self._share.workers

    def _tell_of_preparing(self) -> None:
        if self.session.worker == 0:  # one line for all of them
            self.session.on_event(Notice(text=f"{self.level.label}: preparing requests"))

    def _tell_of_fault(self, record: Record) -> None:
        """Say now what makes the level invalid; its rest may take an hour."""
        what = f"{self.level.label}: {record.error_class}: {record.error}"
        self.session.on_event(
            Notice(text=f"{what}; the client's own fault, so do not use this level")
        )

    def _phases(self, start_ns: int) -> AnyPhases:
        each = self.session.scenario.each_level
        warmup, measure = each.warmup_of(self.level), each.measure_of(self.level)
        schedule = self._schedule
        if self._turns is not None:
            return LogPhases(
                warmup=self._share.span(warmup),
                expected=int(self._turns.sum()),
                start_ns=start_ns,
            )
        if schedule is None:
            return Phases(
                warmup=self._share.span(warmup),
                measure=self._share.span(measure),
                start_ns=start_ns,
            )
        if schedule.turns is not None:
            return CountedPhases(
                start_ns=start_ns,
                measure_start_ns=start_ns + schedule.measure_start_ns,
                expected=int(schedule.turns.sum()),
            )
        return PlannedPhases(
            start_ns=start_ns,
            measure_start_ns=start_ns + schedule.measure_start_ns,
            measure_end_ns=start_ns + schedule.measure_end_ns,
            reason=reason_of(measure),
        )

    # --- while it runs

    async def _drive(self, dispatch: Dispatch) -> dict[str, Any]:
        """Run the dispatch while watching the client itself; returns the client's figures."""
        burden = self._burden = Burden()
        ticker = asyncio.create_task(self._tick(dispatch))
        try:
            await dispatch.run()
        finally:
            burden.close()
            if not ticker.cancel() and not ticker.cancelled():
                ticker.result()  # it failed (a full disk): say so
        return burden.figures()

    async def _tick(self, dispatch: Dispatch) -> None:
        session, carrier = self.session, dispatch.carrier
        pieces, ticks, before_ns = 0, 0, now_ns()
        while True:
            await sleep_s(_TICK_S)
            await carrier.calm.room()
            ticks += 1
            now = now_ns()
            rate = (carrier.pieces - pieces) / ((now - before_ns) / NS_PER_S)
            pieces, before_ns = carrier.pieces, now
            if isinstance(session.transport, StampedTransport):
                session.transport.realtime.calibrate()
            session.store.flush()
            if ticks % _COLLECT_TICKS == 0:
                gc.collect(1)
            broken = self._watch.judge(now - session.epoch_ns, carrier.ages(now))
            if broken and self._phase is not Phase.DRAIN:  # then there is nothing left to stop
                session.on_event(Notice(text=f"aborted: {broken}", stops=f"abort: {broken}"))
                self.stop(f"abort: {broken}")
            session.on_event(
                Tick(
                    level=self.number,
                    label=self.level.label,
                    phase=self._phase,
                    elapsed_s=(now - self._phase_began_ns) / NS_PER_S,
                    in_flight=carrier.flow.in_flight,
                    done=self._done,
                    failed=self._failed,
                    output_tokens_per_s=rate,
                )
            )

    def _announce(self, phase: Phase) -> None:
        self._phase = phase
        self._phase_began_ns = now_ns()
        self._done = self._failed = 0
        planned = self._planned(phase)
        self.session.on_event(
            PhaseChanged(
                level=self.number,
                label=self.level.label,
                phase=phase,
                planned_s=planned.seconds,
                planned_requests=planned.requests,
                scheduled_s=self._scheduled_s(phase, planned),
            )
        )

    def _planned(self, phase: Phase) -> Span:
        each = self.session.scenario.each_level
        match phase:
            case Phase.WARMUP:
                return each.warmup_of(self.level)
            case Phase.MEASURE if self._turns is not None:
                return Span(requests=int(self._turns.sum()))
            case Phase.MEASURE:
                return each.measure_of(self.level)
        return Span(seconds=each.drain_s)

    def _scheduled_s(self, phase: Phase, planned: Span) -> float | None:
        schedule = self._schedule
        if schedule is None or (planned.requests is None and planned.seconds is not None):
            return None
        if phase is Phase.WARMUP:
            return schedule.measure_start_ns / NS_PER_S
        return (schedule.measure_end_ns - schedule.measure_start_ns) / NS_PER_S

    def _entry(
        self, dispatch: Dispatch, phases: AnyPhases, *, reason: str, client: dict[str, Any]
    ) -> dict[str, Any]:
        epoch_ns = self.session.epoch_ns

        def offset(instant_ns: int | None) -> int | None:
            return None if instant_ns is None else instant_ns - epoch_ns

        return {
            "level": self.number,
            "round": self.round,
            "label": self.level.label,
            "concurrency": self.level.concurrency,
            "rate": self.level.rate,
            "start_ns": offset(phases.start_ns),
            "measure_start_ns": offset(phases.measure_start_ns),
            "measure_end_ns": offset(phases.measure_end_ns),
            "end_ns": offset(now_ns()),
            "stop_reason": reason,
            "arrivals": dispatch.arrivals,
            "next_id": self._first_id + self._share.number(dispatch.arrivals),
            "conversations_cut": dispatch.conversations_cut,
            "peak_in_flight": dispatch.measured_peak,
            "mean_in_flight": dispatch.measured_mean,
            "client": client,
            "invalid": f"{self._faults} requests failed by the client's own fault"
            if self._faults
            else None,
        }


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from pausing the loop while stamps are taken."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def _preconnect(session: Session, wanted: int) -> None:
    transport = session.transport
    assert isinstance(transport, StampedTransport)
    try:
        await transport.origin(session.url).preconnect(wanted, session.limits.connect_s)
    except httpx.TransportError:
        return  # each request will find out, and its record will say so
