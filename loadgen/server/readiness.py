"""Wait until a server is really ready, or say why it is not: at its death, or at the deadline.

Three look at once: one probes, one minds that the server lives, one tells the user that the wait
goes on. A server that dies is told of within two looks, however long a probe may take.
"""

import asyncio
from dataclasses import dataclass

from loadgen.client.clock import now_ns, sleep_s
from loadgen.errors import ServerNotReady
from loadgen.scenario.private import mask
from loadgen.server.diagnosis import diagnose, last_words
from loadgen.server.probe import Prober
from loadgen.server.system import TAIL_LINES, Say, State, System
from loadgen.units import format_duration

DIAGNOSED_LINES = 1000
"""How far back a cause is sought: a process that gives up quotes it long before its last line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait, and how often to look and to tell.

    began_ns: since when the time counts; None: from the wait's own beginning.
    poll_s: between two probes, and between two looks at the process or container.
    beat_s: between two signs of life to the user.
    """

    within_s: float
    began_ns: int | None = None
    poll_s: float = 0.5
    beat_s: float = 15.0


async def wait_until_ready(
    prober: Prober, system: System | None, *, patience: Patience, say: Say
) -> float:
    """Return after how many seconds a token came; raises ServerNotReady with the cause.

    system: None where the server was started by others: then only the deadline ends the wait.
    """
    wait = _Wait(prober, system, patience=patience, say=say)
    try:
        async with asyncio.timeout(wait.left_s), asyncio.TaskGroup() as group:
            minders = [group.create_task(wait.mind()), group.create_task(wait.tell())]
            await wait.probe()
            for minder in minders:
                minder.cancel()
    except TimeoutError:
        raise await wait.too_late() from None
    except BaseExceptionGroup as found:
        raise found.exceptions[0] from None
    return wait.elapsed_s


class _Wait:
    def __init__(
        self, prober: Prober, system: System | None, *, patience: Patience, say: Say
    ) -> None:
        self._prober = prober
        self._system = system
        self._say = say
        self._patience = patience
        self._began_ns = now_ns() if patience.began_ns is None else patience.began_ns
        self._failed = ""  # what the last probe said

    @property
    def elapsed_s(self) -> float:
        return (now_ns() - self._began_ns) / 1e9

    @property
    def left_s(self) -> float:
        return max(self._patience.within_s - self.elapsed_s, 0.0)

    async def probe(self) -> None:
        """Probe until a token comes; a server that answers and then is gone is not ready."""
        while failure := await self._prober.failure():
            self._failed = failure.text
            if failure.final:
                raise ServerNotReady(f"{self._name}: {failure.text}", log=await self._tail())
            await sleep_s(self._patience.poll_s)
        await self._look()

    async def mind(self) -> None:
        while self._system is not None:
            await self._look()
            await sleep_s(self._patience.poll_s)

    async def tell(self) -> None:
        while True:
            await sleep_s(self._patience.beat_s)
            last = last_words(await self._tail())
            log = f"; its log: {last}" if last else ""
            after = _seconds(self.elapsed_s)
            self._say(f"{self._name}: not ready after {after}: {self._last_words}{log}")

    async def too_late(self) -> ServerNotReady:
        """Say what was missing when the time was over."""
        log = await self._tail(DIAGNOSED_LINES)
        cause = diagnose("\n".join(log))
        within = format_duration(self._patience.within_s)
        last = last_words(log)
        unknown = f"; its log ends: {last}" if last else ""
        hint = f"; its log suggests: {cause}" if cause else unknown
        return ServerNotReady(
            f"{self._name}: not ready within {within}: {self._last_words}{hint}",
            log=log[-TAIL_LINES:],
        )

    async def _look(self) -> None:
        if self._system is None:
            return
        state = await self._system.state()
        if ending := ending_of(state):
            log = await self._tail(DIAGNOSED_LINES)
            raise ServerNotReady(self._died(state, ending, log), log=log[-TAIL_LINES:])

    def _died(self, state: State, ending: str, log: list[str]) -> str:
        said = "\n".join([*log, state.detail])
        cause = diagnose(said, exit_code=state.exit_code, out_of_memory=state.out_of_memory)
        last = last_words([*log, state.detail])
        silent = f"it said nothing; the last probe: {self._last_words}"
        why = str(cause) if cause else f"its log ends: {last}" if last else silent
        return f"{self._name}: {ending} after {_seconds(self.elapsed_s)}: {why}"

    @property
    def _last_words(self) -> str:
        return self._failed or "the first probe has no answer yet"

    async def _tail(self, lines: int = TAIL_LINES) -> list[str]:
        return await self._system.tail(lines) if self._system is not None else []

    @property
    def _name(self) -> str:
        return self._system.name if self._system is not None else "the server"


def ending_of(state: State) -> str | None:
    """Say how a server ended that should be running; None while it may yet become ready.

    A restart by its host is an ending, too: what made it end will do so again.
    """
    code = "" if state.exit_code is None else f" with exit code {state.exit_code}"
    match state.status:
        case "missing":
            return "is gone"
        case "ended":
            return f"ended{code}"
    if state.status == "restarting" or state.restarts:
        times = f"{state.restarts} time{'' if state.restarts == 1 else 's'}"
        return f"ends again and again{code} (restarted {times} by its restart policy)"
    if state.health == "unhealthy":
        detail = f" ({mask(' '.join(state.detail.split()))[:160]})" if state.detail else ""
        return f"is unhealthy by its own health check{detail}"
    return None


def _seconds(seconds: float) -> str:
    return format_duration(round(seconds, 1) if seconds < 10 else round(seconds))
