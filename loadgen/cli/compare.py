"""``loadgen compare``: what changed from a baseline to each candidate, and whether that is sure."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadgen.errors import UsageError
from loadgen.units import parse_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadgen.analysis.about import About
    from loadgen.analysis.compare import Comparison, Side

REGRESSED = REFUSED = NOT_COMPARED = 1


def _share(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        return parse_share(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx=context, param=parameter) from None


@click.command("compare")
@click.argument("baseline", metavar="BASELINE", type=click.Path(path_type=Path))
@click.argument("candidates", metavar="[CANDIDATE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--tolerance",
    default="2%",
    show_default=True,
    callback=_share,
    help="Changes up to this are no difference.",
)
@click.option(
    "--varies",
    multiple=True,
    metavar="CONDITION",
    help="A condition that is meant to differ, as the table names it, or the beginning of its"
    " name: conditions.quantisation, target; repeatable.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Compare nothing, and exit 1, where another condition differs or a check failed.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["regression"]),
    help="Exit 1 where a figure of a candidate is worse, or nothing of one is compared.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["terminal", "markdown", "json", "html"]),
    default="terminal",
    show_default=True,
    help="What to make.",
)
@click.option("--out", metavar="FILE", help="Where to write it; stdout unless told.")
def command(
    baseline: Path,
    candidates: tuple[Path, ...],
    tolerance: float,
    varies: tuple[str, ...],
    strict: bool,
    fail_on: str | None,
    format_: str,
    out: str | None,
) -> None:
    """Hold one or more runs, CANDIDATE, against the run BASELINE.

    Conditions that differ come first. Then each figure of each level: its change, the 95 %
    interval of the change, and whether it is better, worse, or no significant difference.

    A sweep's directory alone stands for its runs, held against the first of them.
    """
    from loadgen.analysis.alike import misnamed
    from loadgen.analysis.compare import WORSE, compare
    from loadgen.report.compare import read_sides

    directories, meant = _sides_of([baseline, *candidates])
    first, *others = read_sides(directories)
    if wrong := misnamed(varies, [first.run, *(one.run for one in others)]):
        raise UsageError("\n".join(f"--varies {one}" for one in wrong))
    found = compare(first, others, tolerance=tolerance, varies=[*varies, *meant])
    refused = found.refusals if strict else []
    _write(replace(found, levels=[]) if refused else found, format_, out, [first, *others])
    if refused:
        click.echo(f"loadgen: refused under --strict: {'; '.join(refused)}", err=True)
        click.get_current_context().exit(REFUSED)
    if fail_on is not None and found.uncompared:
        click.echo(f"loadgen: --fail-on {fail_on}: {_uncompared(found)}", err=True)
        click.get_current_context().exit(NOT_COMPARED)
    regressed = fail_on is not None and found.count(WORSE)
    click.get_current_context().exit(REGRESSED if regressed else 0)


def _uncompared(found: "Comparison") -> str:
    """Say in one line of which candidates nothing is compared, why, and what to do."""
    from loadgen.report.text import plain

    names = " and ".join(plain(run.name) for run in found.uncompared)
    told = "; ".join(_levels_of(run) for run in (found.runs[0], *found.uncompared))
    return (
        f"nothing of {names} is compared: no level with figures in common with the baseline"
        f" ({told}), so a regression cannot be ruled out; measure the same levels"
    )


def _levels_of(run: "About") -> str:
    from loadgen.report.text import plain

    labels = ", ".join(plain(level.label) for level in run.levels)
    return f"{plain(run.name)}: {labels or 'none'}"


def _sides_of(directories: "Sequence[Path]") -> "tuple[list[Path], list[str]]":
    """Return the runs that are meant, and what is to differ between them.

    UsageError where there are fewer than two.
    """
    from loadgen.report.swept import is_sweep, read_sweep

    first = directories[0]
    if len(directories) > 1 or not is_sweep(first):
        if len(directories) < 2:
            raise click.UsageError("Missing argument 'CANDIDATE...': the runs to hold against it")
        return list(directories), []
    swept = read_sweep(first)
    runs = list(swept.measured.values())
    if len(runs) < 2:
        raise UsageError(
            f"{first}: fewer than two of its servers were measured; nothing to compare"
        )
    return runs, swept.varies


def _write(found: "Comparison", format_: str, out: str | None, sides: "Sequence[Side]") -> None:
    from loadgen.report.compare import comparison_page, render_comparison
    from loadgen.report.terminal import look_of
    from loadgen.report.write import write_text

    shown = bool(found.levels) and format_ == "html"
    page = comparison_page(found, {one.name: one.summary for one in sides}) if shown else ""
    if out is None or out == "-":
        look = look_of(sys.stdout)
        text = page or render_comparison(found, format_, width=look.width, colour=look.colour)
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        click.echo(text.encode(encoding, "replace").decode(encoding), nl=False)
        return
    click.echo(write_text(Path(out), page or render_comparison(found, format_)))
