"""``loadgen run``: measure, report, and say by the exit code whether the objectives were met."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.logs import found_in, held_against_the_log
from loadgen.cli.options import scenario_arguments, scenario_from, strict_option
from loadgen.cli.outlets import BROKEN_PIPE, outlasting_readers
from loadgen.cli.server import one_server, server_for, server_option
from loadgen.cli.sweep import sweep
from loadgen.errors import Interrupted

if TYPE_CHECKING:
    from loadgen.analysis.summary import Summary
    from loadgen.report.write import Reports
    from loadgen.scenario.model import Scenario

OBJECTIVE_MISSED = 1


@click.command("run")
@scenario_arguments
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The run's directory, new or empty. [runs/<when>-<name>]",
)
@server_option
@strict_option
def command(
    out: Path | None,
    chosen: str | None,
    strict: bool,
    **options: Any,  # noqa: ANN401 - by name
) -> None:
    """Measure a server, level by level, and report.

    Takes a scenario file, flags alone, or flags over a file. Results go to stdout, progress to
    stderr. The first Ctrl-C stops the arrivals, drains and reports; the second leaves at once.

    Of a scenario with servers: each is started in turn, measured alike and stopped; at the end they
    are compared with the first.
    """
    scenario = one_server(scenario_from(options, os.environ), chosen)
    click.get_current_context().exit(carry_out(scenario, out, strict=strict))


def carry_out(scenario: "Scenario", out: Path | None, *, strict: bool) -> int:
    """Measure and report; return the exit code: BROKEN_PIPE where nobody was left to read it.

    A reader that leaves does not end a run: its servers are taken down, its report is written.
    """
    with outlasting_readers() as readers:
        code = _carried_out(scenario, out, strict=strict)
    return BROKEN_PIPE if readers.left else code


def _carried_out(scenario: "Scenario", out: Path | None, *, strict: bool) -> int:
    """Measure and report; what a log holds is told before it is sent."""
    if scenario.replays:
        for line in found_in(scenario):
            click.echo(line, err=True)
    if scenario.servers:
        return sweep(scenario, out, strict=strict)
    with server_for(scenario):
        directory, stopped = measured_run(scenario, out)
    summary = _report(directory)
    if scenario.replays:
        for line in held_against_the_log(directory, summary):
            click.echo(line)
    if stopped is not None:
        raise stopped
    return exit_code(summary, strict=strict)


def exit_code(summary: "Summary", *, strict: bool = False) -> int:
    """Return 1 where an objective was missed or a level must not be used, else 0.

    strict: 1 also where a check, of the client or of the measurement, failed or warns.
    """
    if strict and not checks_pass(summary):
        return OBJECTIVE_MISSED
    missed = any(
        result.verdict == "missed"
        for level in (*summary.levels, *summary.by_class)
        for result in level.objectives
    )
    spoiled = any(level.invalid is not None for level in summary.levels)
    return OBJECTIVE_MISSED if missed or spoiled or summary.status == "failed" else 0


def checks_pass(summary: "Summary") -> bool:
    """Say whether every check of every level passed: of its client, and of its measurement."""
    return all(check.verdict == "pass" for level in summary.levels for check in level.checks)


def measured_run(
    scenario: "Scenario", out: Path | None, *, nonce: str | None = None, of: str = ""
) -> tuple[Path, Interrupted | None]:
    """Return the directory of a run, and how the user stopped it; None where nobody did.

    of: the server's name, where the run is one of several.
    """
    from loadgen.report.progress import Progress
    from loadgen.run.runner import run_scenario

    with Progress(of=of) as progress:
        try:
            return run_scenario(scenario, out=out, on_event=progress, nonce=nonce), None
        except Interrupted as stop:
            directory: Path | None = getattr(stop, "directory", None)
            if directory is None:  # stopped before anything was written
                raise
            return directory, stop


def report_files(directory: Path) -> "Reports":
    """Write a run's reports into its directory."""
    from loadgen.report.terminal import look_of
    from loadgen.report.write import report_run

    return report_run(directory, look=look_of(sys.stdout))


def _report(directory: Path) -> "Summary":
    reports = report_files(directory)
    click.echo(reports.terminal, nl=False)
    for path in reports.paths:
        click.echo(str(path))
    return reports.summary
