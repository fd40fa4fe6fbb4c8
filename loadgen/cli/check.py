"""``loadgen check``: can a run's figures be trusted, and if not, why not and what to do."""

import sys
from pathlib import Path

import click

UNSOUND = 1


@click.command("check")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--all", "everything", is_flag=True, help="List the checks that passed, too.")
@click.option("--strict", is_flag=True, help="Exit 1 on a warning, too.")
def command(run: Path, everything: bool, strict: bool) -> None:
    """Test whether the figures of RUN, a run directory, can be trusted.

    Each check that did not pass (with --all: each one) is told with its number, the bound it was
    held against and what to do: the client's own delays, dropped and unfinished arrivals, requests
    in flight against those asked for, lengths, repeated prompts and prefix-cache hits, errors,
    drift and saturation, the number of samples, records that are missing. A run that was cut short
    warns. Exit code 1 where a check failed. Of a sweep's directory each run is tested.
    """
    from loadgen.report.swept import runs_of

    unsound = ("fail", "warn") if strict else ("fail",)
    verdicts = []
    for name, one in (runs_of(run) or {"": run}).items():
        if name:
            click.echo(f"{name}:")
        verdicts.append(_checked(one, everything=everything))
    click.get_current_context().exit(UNSOUND if {*verdicts} & {*unsound} else 0)


def _checked(run: Path, *, everything: bool) -> str:
    """Tell the checks of a run, and return their verdict."""
    from loadgen.report.checklist import render_checklist, verdict_of
    from loadgen.report.terminal import look_of
    from loadgen.report.write import summarise_run

    summary = summarise_run(run)
    text = render_checklist(summary, look=look_of(sys.stdout), everything=everything)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding), nl=False)
    return verdict_of(summary)
