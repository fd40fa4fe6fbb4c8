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
from pathlib import Path
from typing import Any

import httpx
import orjson

from loadgen.client.clock import now_ns, utc_now
from loadgen.client.exchange import Limits
from loadgen.client.requests import RequestOptions, expects_many, fields
from loadgen.client.stock import proxy_for, stock_transport
from loadgen.client.transport import WIRE_BYTES, StampedTransport, ssl_context, wire_bytes
from loadgen.errors import Interrupted, UsageError
from loadgen.record import SCHEMA_VERSION, Outcome
from loadgen.run.descriptors import provide_descriptors
from loadgen.run.dispatch import slots_of
from loadgen.run.events import Event, Notice, RunStarted
from loadgen.run.headers import Credentials, credentials_of
from loadgen.run.level import LevelRun, Session
from loadgen.run.preflight import Found, Preflight
from loadgen.run.store import RunStore, make_directory
from loadgen.run.supply import Call
from loadgen.scenario.model import Scenario
from loadgen.workload.synthetic import SyntheticPrompts


def run_scenario(
    scenario: Scenario, *, out: Path | None = None, on_event: Callable[[Event], None]
) -> Path:
    """Run a scenario and return its directory.

    Raises EnvironmentFault before any load where the server or the machine is not as needed, and
    Interrupted, with the directory, when the user stopped it.
    """
    run = _Run(scenario, out, on_event)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(run.main())


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
        self.manifest: dict[str, Any] = {}
        self._signals = 0
        self._level: LevelRun | None = None
        self._task: asyncio.Task[Any] | None = None

    async def main(self) -> Path:
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        try:
            provide_descriptors(max(slots_of(level) for level in self.scenario.levels))
            transport = self._transport()
            try:
                return await self._with(transport)
            finally:
                await transport.aclose()
        except asyncio.CancelledError:
            if not self._signals:
                raise
            raise Interrupted("interrupted before any load was sent") from None
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def _with(self, transport: httpx.AsyncBaseTransport) -> Path:
        limits = _limits(self.scenario)
        found = await Preflight(
            self.scenario, transport=transport, credentials=self.credentials, limits=limits
        ).run()
        directory = make_directory(self.out, name=self.scenario.name, started=self.started)
        store = RunStore(directory)
        session = self._session(transport, store, limits, found)
        self._describe(found, transport)
        store.write_manifest(self.manifest)
        self.on_event(
            RunStarted(
                directory=str(directory),
                model=found.model,
                engine=found.engine.label,
                levels=len(self.scenario.levels) * self.scenario.rounds,
            )
        )
        for note in found.notes:
            self.on_event(Notice(text=note))
        try:
            await self._levels(session)
        except BaseException:
            self.manifest["status"] = "failed"
            raise
        finally:
            store.flush()
            store.write_manifest(self.manifest)
            store.close()
        if self._signals:
            raise Interrupted("interrupted; what was measured is reported", directory=directory)
        return directory

    async def _levels(self, session: Session) -> None:
        first_id = 0
        for round_, number in _listed_levels(self.scenario):
            self._level = LevelRun(session, number, round_, first_id)
            entry = await self._level.run()
            first_id += entry["arrivals"]
            self.manifest["levels"].append(entry)
            session.store.write_manifest(self.manifest)
            if self._signals:
                break
        self.manifest["status"] = "interrupted" if self._signals else "complete"

    def _session(
        self, transport: httpx.AsyncBaseTransport, store: RunStore, limits: Limits, found: Found
    ) -> Session:
        nonce = "fixed" if self.scenario.nonce == "fixed" else secrets.token_hex(8)
        self.manifest["seeds"] = {"seed": self.scenario.seed, "nonce": nonce}
        url = httpx.URL(self.scenario.target.endpoint_url())
        return Session(
            scenario=self.scenario,
            transport=transport,
            url=url,
            limits=limits,
            build=_builder(self.scenario, self.credentials, found, nonce),
            store=store,
            epoch_ns=now_ns(),
            on_event=self.on_event,
            secrets=self.credentials.secrets,
            preconnect=not found.engine.thread_per_connection
            and self.scenario.target.connections == "reuse",
        )

    def _transport(self) -> httpx.AsyncBaseTransport:
        target = self.scenario.target
        context = None
        if target.base_url.startswith("https"):
            try:
                context = ssl_context(ca_file=target.ca_file, insecure=target.insecure)
            except OSError as error:  # ssl.SSLError is one, too
                raise UsageError(f"--ca-file {target.ca_file}: {error}") from error
        reuse = target.connections == "reuse"
        if self.proxy or target.transport == "stock":
            return stock_transport(context=context, proxy=self.proxy, reuse=reuse)
        return StampedTransport(context=context, reuse=reuse)

    def _describe(self, found: Found, transport: httpx.AsyncBaseTransport) -> None:
        target = self.scenario.target
        stamps = isinstance(transport, StampedTransport)
        self.manifest.update(
            {
                "schema": SCHEMA_VERSION,
                "loadgen": version("loadgen"),
                "status": "running",
                "name": self.scenario.name,
                "started_at": f"{self.started:%Y-%m-%dT%H:%M:%SZ}",
                "scenario": self.scenario.public_dict(),
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
                    "proxy": _without_credentials(self.proxy),
                    "certificate_checked": not target.insecure,
                },
                "preflight": found.probe,
                "client": {
                    "python": platform.python_version(),
                    "platform": platform.platform(),
                    "cpus": os.cpu_count(),
                    "loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
                    "stamps": "kernel" if stamps and platform.system() == "Linux" else "user",
                    "pid": os.getpid(),
                },
                "levels": [],
                "warnings": list(found.notes),
            }
        )

    def _signalled(self) -> None:
        self._signals += 1
        if self._level is None:
            if self._task:
                self._task.cancel()
            return
        if self._signals == 1:
            self.on_event(Notice(text="stopping: no new requests; again to leave at once"))
            self._level.stop("interrupted")
        else:
            self._level.cut(Outcome.CANCELLED)


def _listed_levels(scenario: Scenario) -> Iterator[tuple[int, int]]:
    """Yield (round, level) in the order they are run."""
    for round_ in range(scenario.rounds):
        for number in range(len(scenario.levels)):
            yield round_, number


def _builder(
    scenario: Scenario, credentials: Credentials, found: Found, nonce: str
) -> Callable[[int, int, int], Call]:
    target = scenario.target
    prompts = SyntheticPrompts(
        scenario.prompts, seed=scenario.seed, nonce=nonce, endpoint=target.endpoint
    )
    options = RequestOptions(
        endpoint=target.endpoint,
        fixed_output=True,
        extra=scenario.request,
    )
    url = httpx.URL(target.endpoint_url())

    def build(level: int, round_: int, number: int) -> Call:
        prompt = prompts.prompt(level=level, round_=round_, number=number)
        said = fields(prompt, model=found.model, engine=found.engine, options=options)
        content = orjson.dumps(said)
        request = httpx.Request("POST", url, headers=credentials.headers, content=content)
        request.extensions[WIRE_BYTES] = wire_bytes(request)
        return Call(prompt=prompt, request=request, expects_many=expects_many(said))

    return build


def _limits(scenario: Scenario) -> Limits:
    limits = scenario.limits
    return Limits(
        connect_s=limits.connect_s,
        first_token_s=limits.first_token_s,
        idle_s=limits.idle_s,
        total_s=limits.total_s,
        max_event_bytes=limits.max_event_mb << 20,
    )


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _without_credentials(proxy: str | None) -> str | None:
    if proxy is None:
        return None
    scheme, _, rest = proxy.rpartition("://")
    return f"{scheme or 'http'}://{rest.rpartition('@')[2]}"
