"""The run's side of the sampler: started early, told what to sample, marked, ended.

The sampler is a process of its own, so that reading a page never delays the client's loop. It is
never worth a run: one that dies is one warning, and no wait for it is longer than ``MARK_S``, but
for a page that takes seconds by itself, which is read only where the user names it.
Before the load nothing else waits for it at all: what the server had counted so far is fetched
here, unread, and read by the sampler when it has loaded; a source that the user named is tried
here, so that one which is down is said while there is time to mend it.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import orjson

from loadgen.client.clock import now_ns
from loadgen.client.stock import proxy_for
from loadgen.run.events import Event, Notice
from loadgen.run.headers import Credentials
from loadgen.run.preflight import Found
from loadgen.run.telemetry.asked import Asked, asked_of, samples_path, spec_of
from loadgen.run.telemetry.source import DRAINED_TIMEOUT_S
from loadgen.run.telemetry.tried import gpu_problem, page_problem
from loadgen.scenario.model import Scenario
from loadgen.scenario.telemetry import AUTO, OFF

NO_SERVER, NO_GPU = "no metrics of the server", "no figures of a GPU"
MARK_S = 2.0
_FIRST_PAGE_S = 0.5
_END_S = 0.3
_LONGEST_LINE = 1 << 20


class Sampling:
    """One run's sampler process."""

    def __init__(self, scenario: Scenario, *, on_event: Callable[[Event], None]) -> None:
        if scenario.telemetry.server not in (AUTO, OFF):
            proxy_for(scenario.telemetry.server)  # one that will not do is refused before any load
        self._scenario = scenario
        self._on_event = on_event
        self._process: asyncio.subprocess.Process | None = None
        self._asked: Asked | None = None
        self._marks = 0
        self._heard: dict[str, Any] = {}
        self._told: set[str] = set()
        self.warnings: list[str] = []

    async def start(self) -> None:
        """Start the process, so that it loads while the preflight asks."""
        if self._scenario.telemetry.off:
            return
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "loadgen.run.telemetry",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,  # what it has to say comes by stdout
                limit=_LONGEST_LINE,
                start_new_session=True,  # Ctrl-C is for the run, which ends it
            )
        except OSError as error:
            await self._lost(error.strerror or str(error))

    async def begin(
        self,
        found: Found,
        *,
        credentials: Credentials,
        transport: httpx.AsyncBaseTransport,
        directory: Path,
        epoch_ns: int,
    ) -> None:
        """Say what to sample, now that the server is known; nothing at all ends the process."""
        if self._process is None:
            return
        asked = self._asked = asked_of(self._scenario, found)
        if asked.nothing:
            await self._kill()
            return
        spec = spec_of(self._scenario, asked, credentials=credentials, proxy_for=proxy_for)
        first = await _first_page(asked, transport, spec["access"]["headers"])
        path = str(samples_path(directory))
        self._tell({**spec, "first": first, "path": path, "epoch_ns": epoch_ns})
        if asked.drained:
            await self.mark()  # the sampler's own reading tries the page, which is read but once
        there = asked.drained or (first is not None and first["status"] == 200)
        await self._try_what_was_named(spec, there=there)

    async def _try_what_was_named(self, spec: dict[str, Any], *, there: bool) -> None:
        """Say which source named by the user gives nothing; there: the server's page was tried."""
        told = self._scenario.telemetry
        tries = {}
        if told.server != AUTO and spec["page"] and not there:
            tries[NO_SERVER] = page_problem(spec["page"][0], spec["access"])
        if told.gpu != AUTO and spec["gpu"]:
            tries[NO_GPU] = gpu_problem(spec["gpu"], visible=spec["visible"])
        for what, why in zip(tries, await asyncio.gather(*tries.values()), strict=True):
            if why is not None:
                self._say(what, f"{what} so far: {why}")

    async def mark(self) -> None:
        """Have the server sampled now; waits for it ``MARK_S``, longer for a page that is slow."""
        if self._process is None:
            return
        drained = self._asked is not None and self._asked.drained
        within_s = MARK_S + (DRAINED_TIMEOUT_S if drained else 0.0)
        self._marks += 1
        self._tell({"mark": self._marks})
        try:
            async with asyncio.timeout(within_s):
                await self._listen(until=self._marks)
        except TimeoutError:
            return  # the answer counts when it comes

    async def end(self) -> dict[str, Any]:
        """End the process, killed if need be, and return ``facts``; again: the same."""
        process = self._process
        if process is not None:
            if self._asked is not None and process.stdin is not None:
                process.stdin.close()
                try:
                    async with asyncio.timeout(_END_S):
                        await self._listen(until=None)
                        await process.wait()
                except TimeoutError:
                    pass  # it hangs in a page
            await self._kill()
        return self.facts()

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says: server, gpu, sweeps, failed."""
        asked, heard = self._asked, self._heard
        off = self._scenario.telemetry.off
        nobody = "switched off" if off else "the sampler had not begun"
        server = {
            "url": None,
            "kind": None,
            "clears_on_read": False,
            "why_not": (asked.no_server if asked else None) or nobody,
            "stopped": None,
            **(heard.get("server") or {}),
        }
        gpu = {
            "by": None,
            "devices": [],
            "driver": None,
            "why_not": (asked.no_gpu if asked else None) or nobody,
            **(heard.get("gpu") or {}),
        }
        return {
            "server": {**server, "every_s": self._scenario.telemetry.every_s},
            "gpu": gpu,
            "sweeps": heard.get("sweeps", 0),
            "failed": heard.get("failed", 0),
        }

    # --- inside

    def _tell(self, message: dict[str, Any]) -> None:
        process = self._process
        if process is not None and process.stdin is not None and not process.stdin.is_closing():
            process.stdin.write(orjson.dumps(message) + b"\n")

    async def _listen(self, *, until: int | None) -> None:
        """Hear the sampler out until it answers a mark, or ends."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = orjson.loads(line)
            if "facts" in message:
                self._learn(message["facts"])
            if message.get("ended"):
                return
            if "failed" in message:
                await self._lost(message["failed"])
                return
            if until is not None and message.get("marked") == until:
                return
        await self._lost("it ended by itself")

    async def _lost(self, why: str) -> None:
        self._warn(f"the server's own view stops here: the sampler failed ({why})")
        await self._kill()

    def _learn(self, facts: dict[str, Any]) -> None:
        """Keep what is known; say once what the user would miss or should know."""
        self._heard = facts
        server = facts.get("server") or {}
        if server.get("clears_on_read"):
            self._say(
                "clears on read",
                f"{server['url']} gives each figure once: while this run samples it, others who "
                "read that page miss what is read here (telemetry: {server: off} leaves it alone)",
            )
        if server.get("why_not"):
            self._say(NO_SERVER, f"{NO_SERVER}: {server['why_not']}")
        if server.get("stopped"):
            self._warn(f"the server's own view stops here: {server['stopped']}")
        gpu = facts.get("gpu") or {}
        if gpu.get("why_not") and self._scenario.telemetry.gpu != AUTO:
            self._say(NO_GPU, f"{NO_GPU}: {gpu['why_not']}")

    def _warn(self, text: str) -> None:
        """Tell the user what the report has to say, too; once."""
        if text not in self.warnings:
            self.warnings.append(text)
            self._on_event(Notice(text=text))

    def _say(self, what: str, text: str) -> None:
        """Tell the user, of each matter once."""
        if what not in self._told:
            self._told.add(what)
            self._on_event(Notice(text=text))

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


async def _first_page(
    asked: Asked, transport: httpx.AsyncBaseTransport, headers: dict[str, str]
) -> dict[str, Any] | None:
    """Fetch the page; None where nothing comes at once, and of one that takes its time."""
    if asked.page is None or asked.drained:
        return None
    try:
        async with asyncio.timeout(_FIRST_PAGE_S):
            return await _fetched(asked.page[0], transport, headers)
    except (httpx.HTTPError, OSError):  # TimeoutError is one, too
        return None


async def _fetched(
    url: str, transport: httpx.AsyncBaseTransport, headers: dict[str, str]
) -> dict[str, Any]:
    began_ns = now_ns()
    request = httpx.Request("GET", url, headers=headers)
    request.extensions["timeout"] = {"connect": _FIRST_PAGE_S}
    response = await transport.handle_async_request(request)
    body = (await response.aread()).decode("utf-8", "replace")
    at_ns = (began_ns + now_ns()) // 2
    return {"status": response.status_code, "body": body, "at_ns": at_ns}
