"""How ``loadgen run`` measures several servers: each started in turn, then one comparison."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.cli.server import say, server_for
from loadgen.errors import Interrupted

if TYPE_CHECKING:
    from loadgen.analysis.summary import Summary
    from loadgen.run.sweep import Measured
    from loadgen.scenario.model import Scenario

SERVER_FAILED = 1


def sweep(scenario: "Scenario", out: Path | None, *, strict: bool) -> int:
    """Measure each server of a scenario, compare them, and return the exit code."""
    from loadgen.analysis.sweep import MEASURED
    from loadgen.cli.run import exit_code
    from loadgen.report.sweep import report_sweep
    from loadgen.report.terminal import look_of
    from loadgen.run.sweep import run_sweep

    _check(scenario)
    summaries: list[Summary] = []

    def measure(made: "Scenario", directory: Path, nonce: str | None) -> "Measured":
        return _measured(made, directory, nonce, summaries=summaries)

    done = run_sweep(scenario, out=out, measure=measure, say=say)
    reports = report_sweep(scenario, done.directory, done.results, look=look_of(sys.stdout))
    click.echo(reports.terminal, nl=False)
    for path in reports.write():
        click.echo(str(path))
    if done.interrupted:
        raise Interrupted("interrupted; the servers that were measured are compared")
    if any(result.status != MEASURED for result in done.results) or (strict and reports.unlike):
        return SERVER_FAILED
    return max(exit_code(summary, strict=strict) for summary in summaries)


def _check(scenario: "Scenario") -> None:
    """Refuse before anything is started what no server could be started with."""
    from loadgen.server.start import server_of, to_the_end

    for server in [server_of(made) for _, made in scenario.variants() if made.server is not None]:
        to_the_end(server.check, say=say)


def _measured(
    scenario: "Scenario", directory: Path, nonce: str | None, *, summaries: "list[Summary]"
) -> "Measured":
    from loadgen.cli.run import measured_run, report_files
    from loadgen.report.view import first_line
    from loadgen.run.sweep import Measured

    with server_for(scenario) as held:
        _, stopped = measured_run(scenario, directory, nonce=nonce, of=directory.name)
    reports = report_files(directory)
    say(f"{directory.name}: {first_line(reports.summary).text}")
    summaries.append(reports.summary)
    return Measured(
        ready_s=held.ready_s,
        failure=held.ending or _aborted(reports.summary),
        interrupted=stopped is not None,
    )


def _aborted(summary: "Summary") -> str | None:
    """Say why a run ended early; None where it did not, or the user ended it."""
    if summary.status != "failed":
        return None
    reasons = ", ".join(level.stop_reason for level in summary.levels if level.stop_reason)
    _, _, rule = reasons.partition("abort: ")
    return f"aborted: {rule}" if rule else "the run failed; see its report"
