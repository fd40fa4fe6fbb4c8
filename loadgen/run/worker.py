"""A worker process: opens a session of its own and holds its share of each level.

Started by ``workers.Crew``: JSON lines on stdin say what to do, those on stdout what happened.
"""

import asyncio
import dataclasses
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson

from loadgen.client.stock import proxy_for
from loadgen.client.transport import StampedTransport
from loadgen.engines import ENGINES
from loadgen.errors import EnvironmentFault
from loadgen.record import Outcome
from loadgen.run.events import Event, Notice, PhaseChanged, Tick
from loadgen.run.headers import credentials_of
from loadgen.run.level import LevelRun, Session
from loadgen.run.session import loop_factory, open_session, transport_of
from loadgen.scenario.model import Scenario
from loadgen.workload.prompts import prompt_source
from loadgen.workload.synthetic import Overhead
from loadgen.workload.tokens import counter_of


def main() -> None:
    """Serve the parent until it says "end" or is gone."""
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve())
    except* OSError as failed:  # a full disk, say: the parent sees that this worker is gone
        for error in _each(failed):
            sys.stderr.write(f"worker: {error}\n")
        sys.exit(EnvironmentFault.exit_code)


def _each(group: BaseExceptionGroup[OSError]) -> Iterator[BaseException]:
    for error in group.exceptions:
        yield from _each(error) if isinstance(error, BaseExceptionGroup) else (error,)


async def _serve() -> None:
    reader = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    told = orjson.loads(await reader.readline())
    _take_core(told["worker"])
    scenario = Scenario.model_validate(told["scenario"]).located(Path(told["scenario_directory"]))
    transport = transport_of(scenario, proxy=proxy_for(scenario.target.base_url))
    try:
        session = await _session(scenario, told, transport)
        try:
            await _obey(session, reader)
        finally:
            session.store.close()
    finally:
        await transport.aclose()


async def _session(
    scenario: Scenario, told: dict[str, Any], transport: httpx.AsyncBaseTransport
) -> Session:
    if isinstance(transport, StampedTransport):
        origin = transport.origin(httpx.URL(scenario.target.base_url))
        known = set(told["peers"])  # the addresses that answered the preflight
        found = await origin.resolve()
        origin.addresses = [each for each in found if each.peer in known] or found
    engine = dataclasses.replace(ENGINES[told["engine"]], chat_limit=told["chat_limit"])
    words = told["overhead"]["words"]
    overhead = Overhead(**{**told["overhead"], "words": words and frozenset(words)})
    tokenizer = counter_of(scenario)
    return open_session(
        scenario,
        transport=transport,
        credentials=credentials_of(scenario.target, os.environ),
        model=told["model"],
        engine=engine,
        source=prompt_source(scenario, nonce=told["nonce"], overhead=overhead),
        directory=Path(told["directory"]),
        epoch_ns=told["epoch_ns"],
        on_event=_tell_event,
        count_tokens=tokenizer.count if tokenizer else None,
        worker=told["worker"],
        workers=told["workers"],
    )


async def _obey(session: Session, reader: asyncio.StreamReader) -> None:
    """Do what the parent says; a level that fails ends this process, so that the parent knows."""
    level: LevelRun | None = None
    async with asyncio.TaskGroup() as group:
        holding: asyncio.Task[None] | None = None
        while line := await reader.readline():
            order = orjson.loads(line)
            match order["do"]:
                case "prepare":
                    mine = session.of_pass() if order.get("of_pass") else session
                    level = LevelRun(mine, order["level"], order["round"], order["first_id"])
                    await level.prepare()
                    # Looking through all that was built takes longer than the parent waits for the
                    # start; set apart now, it is not looked through again.
                    gc.collect()
                    gc.freeze()
                    _tell({"said": "ready"})
                case "hold" if level is not None:
                    holding = group.create_task(_hold(level, order["start_ns"]))
                case "stop" if level is not None:
                    level.stop(order["reason"])
                case "cut" if level is not None:
                    level.cut(Outcome(order["outcome"]))
                case "end":
                    break
        if level is not None and holding is not None and not holding.done():
            level.stop("interrupted")  # the parent is gone: leave nothing behind
            level.cut(Outcome.CANCELLED)


async def _hold(level: LevelRun, start_ns: int) -> None:
    _tell({"said": "entry", "entry": await level.hold(start_ns)})


def _tell_event(event: Event) -> None:
    match event:
        case Tick():
            _tell({"said": "tick", "tick": dataclasses.asdict(event)})
        case PhaseChanged():
            _tell({"said": "phase", "phase": dataclasses.asdict(event)})
        case Notice(text=text, stops=stops):
            _tell({"said": "notice", "text": text})
            if stops is not None:  # all workers together, not when this one has drained
                _tell({"said": "abort", "reason": stops})


def _tell(message: dict[str, Any]) -> None:
    try:
        sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:  # the parent is gone; stdin will say so, too
        return


def _take_core(worker: int) -> None:
    """Keep this process on one core, so that several do not meet on the same."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[worker % len(cores)]})


if __name__ == "__main__":
    main()
