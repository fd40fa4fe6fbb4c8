"""Start a scenario's server, wait for it, and end it again, whatever comes between.

The first Ctrl-C, SIGTERM or SIGHUP ends the wait and takes down what was started; further ones are
answered, and wait: leaving amid that would leave a server behind, and its GPU memory taken.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from loadgen.client.clock import now_ns
from loadgen.errors import Interrupted, ServerNotReady, UsageError
from loadgen.scenario.model import Scenario
from loadgen.scenario.server import variables_for
from loadgen.server.compose import ComposeService, compose_files
from loadgen.server.diagnosis import diagnose, last_words
from loadgen.server.ports import accepts
from loadgen.server.probe import Prober
from loadgen.server.process import ProcessServer
from loadgen.server.readiness import DIAGNOSED_LINES, Patience, ending_of, wait_until_ready
from loadgen.server.system import TAIL_LINES, Held, Say, System
from loadgen.units import format_duration

Result = TypeVar("Result")
OurServer = ComposeService | ProcessServer
_LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::")


def server_of(scenario: Scenario) -> OurServer:
    """Return the server that a scenario starts; UsageError where it starts none."""
    server = scenario.server
    if server is None:
        raise UsageError(
            f"{scenario.name}: starts none; give it server: {{profile: vllm}}, or --profile vllm"
        )
    host, port = urlsplit(scenario.target.base_url).hostname or "", scenario.target.port
    if host not in _LOCAL:
        raise UsageError(
            f"{scenario.name}: target.url names {host}, but server: starts one on this machine; "
            "write http://127.0.0.1:8000, or leave out server:"
        )
    variables = variables_for(server, port=port, model=scenario.target.model)
    if server.command is not None:
        directory = scenario.file(".")
        return ProcessServer(server, directory=directory, variables=variables, place=(host, port))
    files = compose_files(scenario, server)
    return ComposeService(server, files=files, variables=variables, place=(host, port))


def listens(scenario: Scenario) -> bool:
    """Say whether something accepts connections where the target is."""
    host = urlsplit(scenario.target.base_url).hostname or ""
    return accepts(host, scenario.target.port)


async def asked(server: OurServer, what: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Ask a server something, after making sure that what runs it is there."""
    await server.check()
    return await what()


async def bring_up(
    server: System,
    prober: Prober,
    *,
    patience: Patience,
    say: Say,
    keep: bool = False,
) -> float:
    """Start and wait; return after how many seconds it was ready.

    What does not become ready is taken down again, unless it is to be kept.
    """
    patience = replace(patience, began_ns=now_ns())  # what fetching the image takes counts, too
    try:
        await _started(server, patience.within_s, say)
        took_s = await wait_until_ready(prober, server, patience=patience, say=say)
    except BaseException:
        if not keep:
            await _taken_down(server, say)
        raise
    finally:
        await prober.aclose()
    say(f"{server.name}: ready after {format_duration(round(took_s, 1))}: a token came")
    return took_s


async def _started(server: System, within_s: float, say: Say) -> None:
    try:
        async with asyncio.timeout(within_s):
            await server.start(say)
    except TimeoutError:
        raise ServerNotReady(
            f"{server.name}: not started within {format_duration(within_s)}: its image is still "
            "fetched or built, or Docker is unwell; allow more time, or fetch it beforehand"
        ) from None


@contextmanager
def running(server: System, *, up: Callable[[], Coroutine[Any, Any, float]], keep: bool,
            say: Say) -> Iterator[Held]:  # fmt: skip
    """Hold a server up for a ``with`` block: ``up`` starts it; afterwards it is taken down."""
    held = Held(ready_s=to_the_end(up, say=say))
    before = {number: signal.getsignal(number) for number in _heeded()}
    signal.signal(signal.SIGTERM, _stop_block)
    if signal.SIGHUP in before:  # a terminal that closes is to end a run as SIGTERM does
        signal.signal(signal.SIGHUP, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    try:
        yield held
    finally:
        if keep:
            say(f"{server.name}: left running; end it with: loadgen server down")
        else:
            held.ending = to_the_end(lambda: _ended(server, say), say=say, cancellable=False)
        for number, handler in before.items():
            signal.signal(number, handler)


async def _ended(server: System, say: Say) -> str | None:
    """Take a server down; one that ended by itself meanwhile has its last words told first."""
    told, ending = None, ending_of(await server.state())
    if ending is not None:
        log = await server.tail(DIAGNOSED_LINES)
        for line in log[-TAIL_LINES:]:
            say(f"  | {line}")
        cause = diagnose("\n".join(log)) or f"its log ends: {last_words(log) or 'it is empty'}"
        told = f"{ending} during the measurement: {cause}"
        say(f"{server.name}: {told}")
    await _taken_down(server, say)
    return told


async def _taken_down(server: System, say: Say) -> None:
    if server.started:
        say(f"{server.name}: taking it down")
        await server.stop()


def to_the_end(
    work: Callable[[], Coroutine[Any, Any, Result]], *, say: Say, cancellable: bool = True
) -> Result:
    """Run to the end on a loop of its own; a signal cancels once, and raises Interrupted."""
    with asyncio.Runner() as runner:
        return runner.run(_heeding_signals(work, say, cancellable))


async def _heeding_signals(
    work: Callable[[], Coroutine[Any, Any, Result]], say: Say, cancellable: bool
) -> Result:
    task = asyncio.create_task(work())
    signals = 0

    def signalled() -> None:
        nonlocal signals
        signals += 1
        if cancellable and signals == 1:
            task.cancel()
        else:
            say("taking the server down; one moment")

    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in _heeded()}
    for number in handlers:
        loop.add_signal_handler(number, signalled)
    try:
        return await task
    except asyncio.CancelledError:
        raise Interrupted("interrupted") from None
    finally:
        for number, handler in handlers.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _heeded() -> list[signal.Signals]:
    """Return the signals that end the work; nohup, which ignores SIGHUP, is respected."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def _stop_block(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted("stopped")
