"""Several servers, one after another: each measured alike, whatever became of the one before.

Request k of a level is the same for all: one seed, and one nonce, since a server that was started
for its turn knows no prompt of the others'. ``sweep.json`` is true at every moment.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import orjson

from loadgen.analysis.serial import to_plain
from loadgen.analysis.sweep import FAILED, INTERRUPTED, MEASURED, ServerResult, meant_to_differ
from loadgen.client.clock import utc_now
from loadgen.errors import Interrupted, LoadgenError, UsageError
from loadgen.record import SCHEMA_VERSION
from loadgen.report.swept import SWEEP_FILE
from loadgen.report.write import write_text
from loadgen.run.store import make_directory
from loadgen.scenario.model import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """How the measurement of one server went; ready_s: from its start to its first token.

    failure: why its figures are not to be used, in one line: the run was aborted, the server died.
    """

    ready_s: float | None = None
    failure: str | None = None
    interrupted: bool = False


Measure = Callable[[Scenario, Path, str | None], Measured]
"""Starts a server, measures it into a directory with a nonce (None: one of its own), ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What became of all servers."""

    directory: Path
    results: list[ServerResult]

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped it."""
        return any(result.status == INTERRUPTED for result in self.results)


def run_sweep(
    scenario: Scenario, *, out: Path | None, measure: Measure, say: Callable[[str], None]
) -> Sweep:
    """Measure each of a scenario's servers; one that fails is told of, and the next one's turn.

    Raises UsageError before anything is started where a server would not make way for the next.
    """
    variants = list(scenario.variants())
    kept = [name for name, made in variants if made.server is not None and made.server.keep]
    if kept:
        raise UsageError(
            f"servers.{kept[0]}.server.keep: each has to make way for the next; leave it out, or "
            f"measure this one alone: --server {kept[0]}"
        )
    started = utc_now()
    directory = make_directory(out, name=scenario.name, started=started)
    nonce = nonce_for(scenario)
    results = [ServerResult(name=name) for name, _ in variants]
    tell = _Teller(scenario, directory, started, nonce)
    for index, (name, made) in enumerate(variants):
        tell.write(results, status="running")
        line = f"{name}: server {index + 1} of {len(variants)}"
        work = partial(measure, made, directory / name, nonce)
        results[index] = _result(name, directory, partial(_announced, line, say=say, work=work))
        if results[index].status == FAILED:
            say(f"{name}: failed: {results[index].reason}")
        if results[index].status == INTERRUPTED:
            break
    sweep = Sweep(directory=directory, results=results)
    tell.write(results, status="interrupted" if sweep.interrupted else "complete")
    return sweep


def nonce_for(scenario: Scenario) -> str | None:
    """Return the nonce of all servers; None where two are the same one, which runs already.

    Its prefix cache would know the prompts of the turn before.
    """
    if scenario.nonce == "fixed":
        return None
    places = [made.target.base_url for _, made in scenario.variants() if made.server is None]
    return None if len(set(places)) < len(places) else secrets.token_hex(8)


def _announced(line: str, *, say: Callable[[str], None], work: Callable[[], Measured]) -> Measured:
    """Tell that a server's turn begins; a signal that comes with the line is one of its turn."""
    say(line)
    return work()


def _result(name: str, directory: Path, measure: Callable[[], Measured]) -> ServerResult:
    try:
        told = measure()
    except (Interrupted, KeyboardInterrupt):
        result = ServerResult(name=name, status=INTERRUPTED, reason="interrupted")
    except LoadgenError as failure:
        line = (str(failure).splitlines() or ["failed"])[0].removeprefix(f"{name}: ")
        result = ServerResult(name=name, status=FAILED, reason=line)
    else:
        status = INTERRUPTED if told.interrupted else FAILED if told.failure else MEASURED
        reason = "interrupted" if told.interrupted else told.failure
        result = ServerResult(name=name, status=status, reason=reason, ready_s=told.ready_s)
    has_run = (directory / name / "manifest.json").exists()
    return replace(result, directory=name if has_run else None)


@dataclass(frozen=True, slots=True)
class _Teller:
    """Writes ``sweep.json``, whole or not at all."""

    scenario: Scenario
    directory: Path
    started: datetime
    nonce: str | None

    def write(self, results: list[ServerResult], *, status: str) -> None:
        measured = [result.name for result in results if result.status == MEASURED]
        told = {
            "schema": SCHEMA_VERSION,
            "loadgen": version("loadgen"),
            "status": status,
            "name": self.scenario.name,
            "started_at": f"{self.started:%Y-%m-%dT%H:%M:%SZ}",
            "scenario": self.scenario.public_dict(),
            "seeds": {"seed": self.scenario.seed, "nonce": self.nonce},
            "varies": meant_to_differ(self.scenario),
            "baseline": next(iter(measured), None),
            "servers": to_plain(results),
        }
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        write_text(self.directory / SWEEP_FILE, orjson.dumps(told, option=options).decode())
