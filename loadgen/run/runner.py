"""A whole run: preflight, the levels one after another, and the directory they leave.

The program has one loop, over levels that a search names; a list of levels is a search whose
answers are known in advance.
"""

import asyncio
import os
import platform
import secrets
import signal
from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import httpx

from loadgen.client.clock import now_ns, utc_now
from loadgen.client.stock import proxy_for
from loadgen.client.transport import StampedTransport
from loadgen.errors import EnvironmentFault, Interrupted
from loadgen.record import SCHEMA_VERSION, Outcome
from loadgen.run.descriptors import provide_descriptors
from loadgen.run.events import Event, Notice, RunStarted
from loadgen.run.headers import Credentials, credentials_of
from loadgen.run.level import LevelRun
from loadgen.run.prepare import Prepared, prepare
from loadgen.run.session import loop_factory, open_session, transport_of
from loadgen.run.share import slots_of
from loadgen.run.store import RunStore, make_directory
from loadgen.run.target import refuse_public_target
from loadgen.run.telemetry.sampling import Sampling
from loadgen.run.workers import Crew, CrewLevel
from loadgen.scenario.model import Scenario
from loadgen.workload.order import order_of_levels
from loadgen.workload.replay.follow import check_logs


def run_scenario(
    scenario: Scenario,
    *,
    out: Path | None = None,
    on_event: Callable[[Event], None],
    nonce: str | None = None,
) -> Path:
    """Run a scenario and return its directory; nonce: one shared with other runs of its prompts.

    Raises EnvironmentFault before any load where the server or the machine is not as needed, and
    Interrupted, with the directory, when the user stopped it.
    """
    run = _Run(scenario, out, on_event)
    run.nonce = nonce or run.nonce
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(run.main())
    except (OSError, BaseExceptionGroup) as failure:
        fault = _system_fault(failure)
        if fault is None:
            raise
        raise EnvironmentFault(
            f"the run could not go on: {fault.strerror or fault}; what was written is kept"
        ) from failure


class _Run:
    """One execution; owns the signals, the transport and the store while it lasts."""

    def __init__(
        self, scenario: Scenario, out: Path | None, on_event: Callable[[Event], None]
    ) -> None:
        self.scenario = scenario
        self.out = out
        self.on_event = on_event
        self.credentials: Credentials = credentials_of(scenario.target, os.environ)
        self.proxy = proxy_for(scenario.target.base_url)
        self.started: datetime = utc_now()
        self.epoch_ns = now_ns()
        self.nonce = "fixed" if scenario.nonce == "fixed" else secrets.token_hex(8)
        self.manifest: dict[str, Any] = {}
        self.sampling = Sampling(scenario, on_event=on_event)
        self._signals = 0
        self._resting: asyncio.Event | None = None
        self._level: LevelRun | CrewLevel | None = None
        self._task: asyncio.Task[Any] | None = None

    async def main(self) -> Path:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        try:
            await self.sampling.start()
            await refuse_public_target(self.scenario, proxied=self.proxy is not None)
            check_logs(self.scenario)
            provide_descriptors(max(slots_of(level) for level in self.scenario.levels))
            transport = transport_of(self.scenario, proxy=self.proxy)
            try:
                return await self._with(transport)
            finally:
                await transport.aclose()
        except asyncio.CancelledError:
            if not self._signals:
                raise
            raise Interrupted("interrupted before any load was sent") from None
        finally:
            await self.sampling.end()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def _with(self, transport: httpx.AsyncBaseTransport) -> Path:
        prepared = await prepare(
            self.scenario, transport=transport, credentials=self.credentials, nonce=self.nonce
        )
        directory = make_directory(self.out, name=self.scenario.name, started=self.started)
        found = prepared.found
        await self.sampling.begin(
            found,
            credentials=self.credentials,
            transport=transport,
            directory=directory,
            epoch_ns=self.epoch_ns,
        )
        self._describe(prepared, transport)
        self.on_event(
            RunStarted(
                directory=str(directory),
                model=found.model,
                engine=found.engine.label,
                levels=len(self.scenario.levels) * self.scenario.rounds,
            )
        )
        for note in self.manifest["warnings"]:
            self.on_event(Notice(text=note))
        workers = worker_count(self.scenario)
        if workers > 1:
            await transport.aclose()  # the workers have connections of their own
            await self._by_crew(prepared, directory, workers)
        else:
            await self._alone(prepared, directory, transport)
        if self._signals:
            raise Interrupted("interrupted; what was measured is reported", directory=directory)
        return directory

    async def _alone(
        self, prepared: Prepared, directory: Path, transport: httpx.AsyncBaseTransport
    ) -> None:
        session = open_session(
            self.scenario,
            transport=transport,
            credentials=self.credentials,
            model=prepared.found.model,
            engine=prepared.found.engine,
            source=prepared.source,
            directory=directory,
            epoch_ns=self.epoch_ns,
            on_event=self.on_event,
            count_tokens=prepared.count_tokens,
        )
        await self._levels(
            session.store,
            lambda *which, of_pass: LevelRun(session.of_pass() if of_pass else session, *which),
        )

    async def _by_crew(self, prepared: Prepared, directory: Path, workers: int) -> None:
        crew = Crew(
            self.scenario,
            workers=workers,
            directory=directory,
            epoch_ns=self.epoch_ns,
            on_event=self.on_event,
        )
        try:
            crew.store.write_manifest(self.manifest)
            await crew.start(prepared.for_workers(self.nonce))
            await self._levels(
                crew.store, lambda *which, of_pass: CrewLevel(crew, *which, of_pass=of_pass)
            )
        finally:
            await crew.end()

    async def _levels(
        self, store: RunStore, level_run: Callable[..., LevelRun | CrewLevel]
    ) -> None:
        """Run the levels one after another; the manifest on disk is true at every moment.

        level_run(number, round, first id, of_pass=): of_pass asks the golden set at that level.
        """
        manifest = self.manifest
        store.write_manifest(manifest)
        first_id = 0
        quality = self.scenario.quality
        kinds = ("levels", "quality_passes") if quality and quality.pass_ else ("levels",)
        try:
            for (round_, number), kind in product(listed_levels(self.scenario), kinds):
                of_pass = kind == "quality_passes"
                if first_id and not of_pass and await self._rested():
                    break
                if of_pass:
                    label = self.scenario.levels[number].label
                    self.on_event(Notice(text=f"{label}: asking the golden set"))
                self._level = level_run(number, round_, first_id, of_pass=of_pass)
                await self._level.prepare()
                entry = await self._level.hold()
                first_id = entry.pop("next_id")
                manifest.setdefault(kind, []).append(entry)
                await self._mark()
                store.write_manifest(manifest)
                if self._signals or entry["stop_reason"].startswith("abort"):
                    break
            manifest["status"] = "interrupted" if self._signals else _status(manifest["levels"])
        except BaseException:
            manifest["status"] = "failed"
            raise
        finally:
            store.flush()
            manifest["telemetry"] = await self.sampling.end()
            manifest["warnings"] += self.sampling.warnings
            store.write_manifest(manifest)
            store.close()

    async def _mark(self) -> None:
        """Sample at the end of a level, unless the user wants to be gone; cannot end the run."""
        if self._signals < 2:
            await self.sampling.mark()
        self.manifest["telemetry"] = self.sampling.facts()

    async def _rested(self) -> bool:
        """Rest between two levels as long as the scenario says; True where a signal ended it."""
        if not self.scenario.each_level.cooldown_s:
            return False
        self._resting = asyncio.Event()
        try:
            async with asyncio.timeout(self.scenario.each_level.cooldown_s):
                await self._resting.wait()
        except TimeoutError:
            pass
        finally:
            self._resting = None
        return self._signals > 0

    def _describe(self, prepared: Prepared, transport: httpx.AsyncBaseTransport) -> None:
        target, found = self.scenario.target, prepared.found
        stamps = isinstance(transport, StampedTransport)
        self.manifest = {
            "schema": SCHEMA_VERSION,
            "loadgen": version("loadgen"),
            "status": "running",
            "name": self.scenario.name,
            "started_at": f"{self.started:%Y-%m-%dT%H:%M:%SZ}",
            "epoch_monotonic_ns": self.epoch_ns,  # what every instant of the run counts from
            "scenario": self.scenario.public_dict(),
            "seeds": {"seed": self.scenario.seed, "nonce": self.nonce},
            "target": {
                "url": target.masked_url,
                "base_url": target.masked_base_url,
                "endpoint": target.endpoint,
                "model": found.model,
                "engine": found.engine.name,
                "engine_label": found.engine.label,
                "engine_version": found.engine_version,
                "models": found.models,
                "peers": found.peers,
                "unreachable": found.unreachable,
                "transport": "own" if stamps else "stock",
                "connections": target.connections,
                "proxy": self.proxy.masked if self.proxy else None,
                "certificate_checked": not target.insecure,
            },
            "preflight": found.probe,
            "conditions": prepared.conditions,
            "prompts": prepared.facts,
            "client": {
                "python": platform.python_version(),
                "platform": platform.platform(),
                "cpus": os.cpu_count(),
                "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
                "stamps": "kernel" if stamps and platform.system() == "Linux" else "user",
                "workers": worker_count(self.scenario),
                "pid": os.getpid(),
            },
            "telemetry": self.sampling.facts(),
            "levels": [],
            "warnings": list(prepared.notes),
        }

    def _signalled(self) -> None:
        self._signals += 1
        if self._resting is not None:
            self._resting.set()
            return
        if self._level is None:
            if self._task:
                self._task.cancel()
            return
        if self._signals == 1:
            self.on_event(Notice(text="stopping: no new requests; again to leave at once"))
            self._level.stop("interrupted")
        else:
            self._level.cut(Outcome.CANCELLED)


def listed_levels(scenario: Scenario) -> Iterator[tuple[int, int]]:
    """Yield (round, level) in the order they are run."""
    for round_ in range(scenario.rounds):
        for number in order_of_levels(scenario, round_=round_):
            yield round_, number


def worker_count(scenario: Scenario) -> int:
    """Return how many processes generate the load; "auto" is one for each core of this host."""
    asked = scenario.workers
    if asked != "auto":
        return int(asked)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(usable or 1, max(slots_of(level) for level in scenario.levels))


def _system_fault(failure: BaseException) -> OSError | None:
    """Return the system's refusal (a full disk, a limit) that ended a run; None where none did."""
    if isinstance(failure, OSError):
        return failure
    if isinstance(failure, BaseExceptionGroup):
        found = (_system_fault(each) for each in failure.exceptions)
        return next((fault for fault in found if fault is not None), None)
    return None


def _status(levels: list[dict[str, Any]]) -> str:
    aborted = any(entry["stop_reason"].startswith("abort") for entry in levels)
    return "failed" if aborted else "complete"
