"""``loadgen report``: make a run's report again from its stored facts; no server is needed."""

import sys
from pathlib import Path

import click

from loadgen.cli.options import strict_option


@click.command(name="report")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_",
    type=click.Choice(["terminal", "markdown", "json", "html"]),
    default="terminal",
    show_default=True,
    help="What to make.",
)
@click.option(
    "--out",
    metavar="FILE",
    help="Where to write it; - is stdout. Unless told, html goes to RUN/report.html and the rest"
    " to stdout.",
)
@strict_option
def command(run: Path, format_: str, out: str | None, strict: bool) -> None:
    """Make the report of RUN, a run directory.

    Every report is computed from manifest.json and requests.jsonl, so it can be made on any
    machine, of an interrupted run too. Of a sweep's directory: its comparison and, without
    --format and --out, the files of it again.
    """
    from loadgen.report.swept import is_sweep
    from loadgen.report.terminal import look_of
    from loadgen.report.write import render, write_text

    if is_sweep(run):
        _report_sweep(run, format_, out, strict=strict)
        return
    if out is None and format_ == "html":
        out = str(run / "report.html")
    if out is None or out == "-":
        look = look_of(sys.stdout)
        _print(render(run, format_, width=look.width, colour=look.colour))
    else:
        click.echo(write_text(Path(out), render(run, format_)))
    if strict:
        _exit_by_checks(run)


def _report_sweep(directory: Path, format_: str, out: str | None, *, strict: bool) -> None:
    from loadgen.cli.run import OBJECTIVE_MISSED
    from loadgen.report.sweep import report_again
    from loadgen.report.terminal import look_of
    from loadgen.report.write import write_text

    made = report_again(directory, look=look_of(sys.stdout))
    name = {"markdown": "comparison.md"}.get(format_, f"comparison.{format_}")
    if out is None and format_ == "html":
        out = str(directory / name)
    text = made.texts.get(name, made.terminal)
    if out is not None and out != "-":
        click.echo(write_text(Path(out), text))
    else:
        _print(text)
    if out is None and format_ == "terminal":
        for path in made.write():
            click.echo(str(path))
    if strict and not made.sound:
        click.get_current_context().exit(OBJECTIVE_MISSED)


def _exit_by_checks(run: Path) -> None:
    from loadgen.cli.run import OBJECTIVE_MISSED, checks_pass
    from loadgen.report.write import summarise_run

    if not checks_pass(summarise_run(run)):
        click.get_current_context().exit(OBJECTIVE_MISSED)


def _print(text: str) -> None:
    """Write to stdout; a character its encoding lacks becomes "?" instead of an error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "replace").decode(encoding), nl=False)
