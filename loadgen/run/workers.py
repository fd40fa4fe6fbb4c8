"""Several processes that generate one load: each has a loop and a core of its own.

The schedule of an open level is drawn once and dealt by arrival number; the slots of a closed one
are shared out; all begin at one agreed instant. Every worker appends its records to the run's one
file, whole lines at a time. Of a worker that dies, what it still owed is recorded as
``client_fault``; the others go on. (What it had finished but not yet handed to the system, half a
second's records at most, is gone with it.)

The talk between the processes is JSON lines over stdin and stdout, so that what is secret in a
scenario (header values) is on no command line.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from loadgen.client.clock import now_ns
from loadgen.record import Outcome, Phase, Record
from loadgen.run.events import Event, LevelEnded, Notice, PhaseChanged, Tick
from loadgen.run.share import slots_of, workers_of
from loadgen.run.store import RunStore
from loadgen.scenario.model import Scenario
from loadgen.workload.arrivals import deal
from loadgen.workload.plan import schedule_of

_LEAD_NS = 50_000_000  # between "all are ready" and the agreed start
_LONGEST_LINE = 1 << 26
_END_S = 10.0
_PHASES = (Phase.WARMUP, Phase.MEASURE, Phase.DRAIN)


class Crew:
    """The worker processes of one run."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        workers: int,
        directory: Path,
        epoch_ns: int,
        on_event: Callable[[Event], None],
    ) -> None:
        self.scenario = scenario
        self.workers = workers
        self.epoch_ns = epoch_ns
        self.on_event = on_event
        self.store = RunStore(directory)
        self.members: list[Member] = []
        self._directory = directory

    async def start(self, common: dict[str, Any]) -> None:
        """Start the processes; ``common`` is what each needs to open its session."""
        for worker in range(self.workers):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "loadgen.run.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LONGEST_LINE,
                start_new_session=True,  # Ctrl-C is for the parent, which tells them
            )
            member = Member(process, worker)
            self.members.append(member)
            member.tell(
                {
                    **common,
                    "scenario": self.scenario.model_dump(mode="json", exclude_unset=True),
                    "scenario_directory": str(self.scenario.file(".")),
                    "directory": str(self._directory),
                    "epoch_ns": self.epoch_ns,
                    "worker": worker,
                    "workers": self.workers,
                }
            )

    async def end(self) -> None:
        """End the processes and wait for them."""
        for member in self.members:
            member.tell({"do": "end"})
        for member in self.members:
            await member.ended(_END_S)
        self.store.close()


class Member:
    """One worker as its parent sees it."""

    def __init__(self, process: asyncio.subprocess.Process, number: int) -> None:
        self.number = number
        self.lost = False
        self._process = process

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def tell(self, message: dict[str, Any]) -> None:
        """Send one message; nothing happens where the worker is gone."""
        assert self._process.stdin is not None
        if not self.lost and not self._process.stdin.is_closing():
            self._process.stdin.write(orjson.dumps(message) + b"\n")

    async def hear(self) -> dict[str, Any] | None:
        """Return the worker's next message; None when it is gone."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            self.lost = True
            return None
        message: dict[str, Any] = orjson.loads(line)
        return message

    async def ended(self, limit_s: float) -> None:
        """Wait for the process; one that does not go by itself is ended."""
        try:
            async with asyncio.timeout(limit_s):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """A worker that is gone: in which phase of the level, and when."""

    phase: Phase
    at_ns: int


class CrewLevel:
    """One level held by all workers together; the counterpart of ``LevelRun``."""

    def __init__(
        self, crew: Crew, number: int, round_: int, first_id: int, *, of_pass: bool = False
    ) -> None:
        self._crew = crew
        self._of_pass = of_pass
        self._number = number
        self._round = round_
        self._first_id = first_id
        self._level = crew.scenario.levels[number]
        self._workers = workers_of(self._level, crew.workers)
        self._phase: Phase | None = None
        self._ticks: dict[int, Tick] = {}
        self._entries: dict[int, dict[str, Any]] = {}
        self._losses: dict[int, _Loss] = {}
        self._stopped_ns: int | None = None

    async def prepare(self) -> None:
        """Have every worker build its requests and connect."""
        message = {
            "do": "prepare",
            "level": self._number,
            "round": self._round,
            "first_id": self._first_id,
            "of_pass": self._of_pass,
        }
        for member in self._present():
            member.tell(message)
        await asyncio.gather(*(self._listen(member, "ready") for member in self._present()))

    async def hold(self) -> dict[str, Any]:
        """Hold the level from one agreed instant and return its merged manifest entry."""
        start_ns = now_ns() + _LEAD_NS
        for member in self._present():
            member.tell({"do": "hold", "start_ns": start_ns})
        await asyncio.gather(*(self._listen(member, "entry") for member in self._present()))
        asked = self._crew.members[: self._workers]
        gone = [member for member in asked if member.number not in self._entries]
        entry = merge_entries([self._entries[key] for key in sorted(self._entries)])
        if gone:
            entry = self._without(gone, {**self._blank(start_ns), **entry})
        self._crew.on_event(
            LevelEnded(
                level=self._number, label=self._level.label, stop_reason=entry["stop_reason"]
            )
        )
        return entry

    def stop(self, reason: str) -> None:
        """Let no further request start."""
        self._stopped_ns = self._stopped_ns or now_ns()
        for member in self._present():
            member.tell({"do": "stop", "reason": reason})

    def cut(self, outcome: Outcome) -> None:
        """End what is in flight now."""
        for member in self._present():
            member.tell({"do": "cut", "outcome": outcome})

    # --- inside

    def _present(self) -> list[Member]:
        return [member for member in self._crew.members[: self._workers] if not member.lost]

    async def _listen(self, member: Member, until: str) -> None:
        while (message := await member.hear()) is not None:
            match message["said"]:
                case "tick":
                    self._tick(member.number, Tick(**message["tick"]))
                case "phase":
                    self._announce(PhaseChanged(**message["phase"]))
                case "notice":
                    self._crew.on_event(Notice(text=message["text"]))
                case "abort":
                    self.stop(message["reason"])
                case "entry":
                    self._entries[member.number] = message["entry"]
                    self._at_rest(member.number)
            if message["said"] == until:
                return
        self._losses[member.number] = _Loss(phase=self._phase or Phase.WARMUP, at_ns=now_ns())
        self._at_rest(member.number)
        self._crew.on_event(Notice(text=f"worker {member.number} (pid {member.pid}) is gone"))

    def _tick(self, worker: int, tick: Tick) -> None:
        self._ticks[worker] = tick
        at_work = self._ticks.keys() - self._entries.keys() - self._losses.keys()
        if worker != max(at_work):  # one line for all of them
            return
        ticks = list(self._ticks.values())
        self._crew.on_event(
            Tick(
                level=tick.level,
                label=tick.label,
                phase=tick.phase,
                elapsed_s=tick.elapsed_s,
                in_flight=sum(each.in_flight for each in ticks),
                done=sum(each.done for each in ticks),
                failed=sum(each.failed for each in ticks),
                output_tokens_per_s=sum(each.output_tokens_per_s for each in ticks),
            )
        )

    def _at_rest(self, worker: int) -> None:
        """Let a worker that is done, or gone, count for what it did, no longer for what it does."""
        if worker in self._ticks:
            last = self._ticks[worker]
            self._ticks[worker] = replace(last, in_flight=0, output_tokens_per_s=0.0)

    def _announce(self, change: PhaseChanged) -> None:
        phase = Phase(change.phase)
        if self._phase is None or _PHASES.index(phase) > _PHASES.index(self._phase):
            self._phase = phase
            self._crew.on_event(change)

    def _without(self, gone: list[Member], entry: dict[str, Any]) -> dict[str, Any]:
        """Record what lost workers owed; return the level's entry, which must not be used."""
        store = self._crew.store
        start_ns = entry["start_ns"] + self._crew.epoch_ns
        for member in gone:
            loss = self._losses.get(member.number) or _Loss(phase=Phase.WARMUP, at_ns=start_ns)
            for record in self._owed(member.number, start_ns, loss=loss):
                store.append(record)
            store.flush()
        ids = [row["id"] for row in self._rows()]
        return {
            **entry,
            "arrivals": len(ids),
            "next_id": max([entry["next_id"], *(number + 1 for number in ids)]),
            "invalid": f"{len(gone)} of {self._workers} workers were lost",
        }

    def _owed(self, worker: int, start_ns: int, *, loss: _Loss) -> Iterator[Record]:
        """Yield a record for each arrival, or slot, that a lost worker left without one."""
        crew = self._crew
        for number, due_ns, phase in self._left_by(worker, start_ns, loss=loss):
            yield Record(
                id=self._first_id + number,
                level=self._number,
                round=self._round,
                phase=phase,
                worker=worker,
                due_ns=due_ns - crew.epoch_ns,
                end_ns=max(loss.at_ns, due_ns) - crew.epoch_ns,
                outcome=Outcome.CLIENT_FAULT,
                error_class="worker_lost",
                error=f"worker {worker} ended before this request did",
            )

    def _left_by(
        self, worker: int, start_ns: int, *, loss: _Loss
    ) -> Iterator[tuple[int, int, Phase]]:
        """Yield number, due instant and phase of what a lost worker left without a record.

        Of conversations that arrive, those not yet begun: how many turns the others still had,
        nobody knows.
        """
        rows, workers = self._rows(), self._workers
        sent = {row["id"] - self._first_id for row in rows}
        free = (number for number in count(worker, workers) if number not in sent)
        if self._level.closed:
            for _ in range(worker, slots_of(self._level), workers):
                yield next(free), loss.at_ns, loss.phase
            return
        whole = schedule_of(self._crew.scenario, self._number, round_=self._round)
        mine = deal(whole, worker, workers).tolist()
        if self._crew.scenario.conversational:
            begun = [row for row in rows if row.get("worker") == worker and row.get("turn") == 0]
            owed: Iterator[tuple[int, int]] = zip(free, mine[len(begun) :], strict=False)
        else:
            owed = ((number, number) for number in mine if number not in sent)
        for number, arrival in owed:
            due_ns = int(whole.due_ns[arrival])
            phase = Phase.WARMUP if due_ns < whole.measure_start_ns else Phase.MEASURE
            if not self._stopped_before(start_ns + due_ns):
                yield number, start_ns + due_ns, phase

    def _rows(self) -> list[dict[str, Any]]:
        """Return what is on disk of this level; a quality pass beside it has earlier ids."""
        rows = self._crew.store.rows_of(level=self._number, round_=self._round)
        return [row for row in rows if row["id"] >= self._first_id]

    def _stopped_before(self, due_ns: int) -> bool:
        return self._stopped_ns is not None and self._stopped_ns < due_ns

    def _blank(self, start_ns: int) -> dict[str, Any]:
        offset = start_ns - self._crew.epoch_ns
        return {
            "level": self._number,
            "round": self._round,
            "label": self._level.label,
            "concurrency": self._level.concurrency,
            "rate": self._level.rate,
            "start_ns": offset,
            "measure_start_ns": None,
            "measure_end_ns": None,
            "end_ns": now_ns() - self._crew.epoch_ns,
            "stop_reason": "workers lost",
            "arrivals": 0,
            "next_id": self._first_id,
            "client": {},
        }


def merge_entries(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one manifest entry for a level that several workers held.

    ``measure`` runs from the first worker's begin to the last one's end; what counts adds up.
    """
    if len(entries) < 2:
        return dict(entries[0]) if entries else {}
    clients = [entry["client"] for entry in entries]
    return {
        **entries[0],
        "stop_reason": _stop_reason([entry["stop_reason"] for entry in entries]),
        "measure_start_ns": _extreme(min, entries, "measure_start_ns"),
        "measure_end_ns": _extreme(max, entries, "measure_end_ns"),
        "end_ns": _extreme(max, entries, "end_ns"),
        "arrivals": sum(entry["arrivals"] for entry in entries),
        "next_id": max(entry["next_id"] for entry in entries),
        "conversations_cut": sum(entry["conversations_cut"] for entry in entries),
        # peaks of the parts need not coincide: their sum is an upper bound
        "peak_in_flight": sum(entry["peak_in_flight"] for entry in entries),
        "mean_in_flight": _sum(entry["mean_in_flight"] for entry in entries),
        "client": {
            "cpu_share": _extreme(max, clients, "cpu_share"),
            "cpu_ns": _sum(client["cpu_ns"] for client in clients),
            "loop_lag_p99_ns": _extreme(max, clients, "loop_lag_p99_ns"),
            "loop_lag_max_ns": _extreme(max, clients, "loop_lag_max_ns"),
            "rss_bytes": _sum(client["rss_bytes"] for client in clients),
            "requests_built_late": sum(client["requests_built_late"] for client in clients),
            "workers": clients,
        },
        "invalid": next((entry["invalid"] for entry in entries if entry["invalid"]), None),
    }


def _stop_reason(reasons: list[str]) -> str:
    """Name what ended a level: what stopped a worker early, where anything did."""
    by_itself = {"time", "count", "time and count", "log"}
    return next((reason for reason in reasons if reason not in by_itself), reasons[0])


def _extreme(pick: Any, rows: list[dict[str, Any]], key: str) -> Any:  # noqa: ANN401
    values = [row[key] for row in rows if row.get(key) is not None]
    return pick(values) if values else None


def _sum(values: Any) -> Any:  # noqa: ANN401
    found = [value for value in values if value is not None]
    return sum(found) if found else None
