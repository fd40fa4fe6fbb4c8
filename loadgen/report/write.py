"""A run directory → its reports: each is made again from the stored facts, any time, anywhere."""

from dataclasses import dataclass
from pathlib import Path

from loadgen.analysis.course import SATURATED
from loadgen.analysis.metrics import summarise
from loadgen.analysis.per_request import ttft_ns
from loadgen.analysis.samples import samples_of
from loadgen.analysis.summary import Summary
from loadgen.analysis.table import RunData, read_run
from loadgen.analysis.timelines import timelines
from loadgen.analysis.window import placed
from loadgen.errors import UsageError
from loadgen.report.export import render_json
from loadgen.report.html import render_html
from loadgen.report.markdown import render_markdown
from loadgen.report.series import Samples
from loadgen.report.terminal import DEFAULT_WIDTH, Look, render_terminal
from loadgen.report.view import View, build_view
from loadgen.units import NS_PER_MS

FORMATS = ("terminal", "markdown", "json", "html")


def load(run_dir: Path) -> tuple[RunData, Summary]:
    """Read a run and compute its figures; UsageError where the directory is no run."""
    run = read_run(run_dir)
    return run, summarise(run)


def summarise_run(run_dir: Path) -> Summary:
    """Return the figures of a run directory."""
    return load(run_dir)[1]


def render(run_dir: Path, format: str, *, width: int = DEFAULT_WIDTH, colour: bool = False) -> str:
    """Return one report of a run as text; ``format`` is one of FORMATS.

    width and colour matter to the terminal's alone.
    """
    run, summary = load(run_dir)
    match format:
        case "json":
            return render_json(summary)
        case "terminal":
            return render_terminal(view_of(run, summary), width=width, colour=colour)
        case "markdown":
            return render_markdown(view_of(run, summary))
        case "html":
            return render_html(view_of(run, summary))
    raise UsageError(f"format: there is no '{format}'; choose one of {', '.join(FORMATS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """A run reported once: its figures, the terminal's text, the files written."""

    summary: Summary
    terminal: str
    paths: list[Path]


def report_run(run_dir: Path, *, look: Look | None = None) -> Reports:
    """Write all files into the run directory; the run is read and computed only once.

    look: what the terminal that will show the text can do.
    """
    run, summary = load(run_dir)
    view, look = view_of(run, summary), look or Look()
    texts = {
        "report.html": render_html(view),
        "summary.json": render_json(summary),
        "report.md": render_markdown(view),
    }
    return Reports(
        summary=summary,
        terminal=render_terminal(view, width=look.width, colour=look.colour),
        paths=[write_text(run_dir / name, text) for name, text in texts.items()],
    )


def write_all(run_dir: Path) -> list[Path]:
    """Write report.html, summary.json and report.md into the run directory; return their paths."""
    return report_run(run_dir).paths


def write_text(path: Path, text: str) -> Path:
    """Write a file whole or not at all; UsageError, naming the path, where it cannot be written."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
    return path


def view_of(run: RunData, summary: Summary) -> View:
    """Lay out a run with its conditions and the samples of its curves.

    Of a saturated level no curve is drawn: it is its percentiles in another shape.
    """
    saturated = {one.level for one in summary.levels if one.steadiness.verdict == SATURATED}
    drawn = {
        level: samples for level, samples in ttft_samples(run).items() if level not in saturated
    }
    return build_view(summary, manifest=run.manifest, ttft=drawn, over_time=timelines(run))


def ttft_samples(run: RunData) -> dict[int, Samples]:
    """Return each level's TTFT in ms: the samples its percentiles are made of.

    An unfinished request without a first token is counted, not dropped: it is the slowest.
    """
    requests = placed(run).requests
    ttft = ttft_ns(requests)
    requests = requests.assign(ttft_ns=ttft.where(ttft >= 0))[requests["in_window"]]
    samples = {}
    for level in requests["level"].unique():
        found = samples_of(requests[requests["level"] == level], "ttft_ns")
        samples[int(level)] = Samples(
            values=(found.values / NS_PER_MS).tolist(), censored=len(found.at_least)
        )
    return samples
