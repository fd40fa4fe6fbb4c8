"""Reports made from a run directory, and the verb that makes them."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from report_make import MS, record, refused, write_run

from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.record import Chunks, Outcome
from loadgen.report.terminal import Look, look_of
from loadgen.report.text import quantile
from loadgen.report.write import FORMATS, load, render, report_run, ttft_samples, write_all

pytestmark = pytest.mark.slow  # seconds in all


def report(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def unfinished(number: int) -> object:
    """A request cut at an age of 900 ms, before any token."""
    return record(number, first_ns=None, first_output_ns=None, last_ns=None, chunks=Chunks(),
                  end_ns=number * 10 * MS + 900 * MS, outcome=Outcome.UNFINISHED)  # fmt: skip


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not strict JSON")


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_holds_the_runs_own_figures(tmp_path: Path, format_: str) -> None:
    run = write_run(tmp_path / "run")
    text = render(run, format_)
    _, summary = load(run)
    assert summary.levels[0].ttft.p50.value == pytest.approx(100.0)
    shown = "100.0" if format_ == "json" else quantile(summary.levels[0].ttft, "p50")
    assert shown in text


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([record(i) for i in range(5)], id="F01 few samples"),
        pytest.param([refused(i) for i in range(5)], id="F14 nothing ok"),
        pytest.param([unfinished(i) for i in range(5)], id="all cut"),
        pytest.param([record(0), refused(1), unfinished(2)], id="some of each"),
    ],
)
@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_takes(tmp_path: Path, format_: str, rows: list[object]) -> None:
    run = write_run(tmp_path / "run", *rows, status="interrupted")
    assert "interrupted" in render(run, format_)


def test_the_summary_is_strict_json(tmp_path: Path) -> None:
    text = render(write_run(tmp_path / "run", refused(0), unfinished(1)), "json")
    loaded = json.loads(text, parse_constant=refuse_constant)
    assert loaded["levels"][0]["outcomes"] == {"refused": 1, "unfinished": 1}


def test_the_samples_of_the_cdf_are_those_of_the_percentiles(tmp_path: Path) -> None:
    run, summary = load(write_run(tmp_path / "run", record(0), refused(1), unfinished(2)))
    samples = ttft_samples(run)[0]
    assert (list(samples.values), samples.censored) == ([100.0], 1)
    assert summary.levels[0].ttft.n == 2


def test_all_reports_are_written_beside_the_facts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    paths = write_all(run)
    assert [path.name for path in paths] == ["report.html", "summary.json", "report.md"]
    assert all(path.stat().st_size for path in paths)
    assert not list(run.glob("*.part"))


def test_a_run_reported_once_says_what_each_report_says(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", record(0), refused(1))
    reports = report_run(run, look=Look(width=70))
    assert reports.terminal == render(run, "terminal", width=70)
    assert reports.summary == load(run)[1]


def test_a_pipe_has_120_columns_and_no_colours() -> None:
    assert look_of(io.StringIO()) == Look(width=120, colour=False)


def test_the_same_facts_give_the_same_reports(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    first = [path.read_bytes() for path in write_all(run)]
    assert first == [path.read_bytes() for path in write_all(run)]


def test_an_unknown_format_names_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="choose one of terminal, markdown, json, html"):
        render(write_run(tmp_path / "run"), "pdf")


@pytest.mark.parametrize(
    ("format_", "start"),
    [("terminal", "1 level, 30 requests ok"), ("markdown", "# chat"), ("json", "{")],
)
def test_text_goes_to_stdout(tmp_path: Path, format_: str, start: str) -> None:
    result = report(write_run(tmp_path / "run"), "--format", format_)
    assert result.exit_code == 0
    assert result.stdout.startswith(start)
    assert result.stderr == ""


def test_html_goes_into_the_run_directory_and_its_path_to_stdout(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    result = report(run, "--format", "html")
    assert result.stdout == f"{run / 'report.html'}\n"
    assert (run / "report.html").read_text().startswith("<!doctype html>")


def test_out_says_where_a_report_goes(tmp_path: Path) -> None:
    out = tmp_path / "x.json"
    result = report(write_run(tmp_path / "run"), "--format", "json", "--out", out)
    assert result.stdout == f"{out}\n"
    assert json.loads(out.read_text())["name"] == "chat"


def test_a_dash_is_stdout(tmp_path: Path) -> None:
    result = report(write_run(tmp_path / "run"), "--format", "html", "--out", "-")
    assert result.stdout.startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        pytest.param(lambda at: at / "nowhere", [], id="no such directory"),
        pytest.param(lambda at: at, [], id="a directory that is no run"),
        pytest.param(lambda _: Path(__file__), [], id="a file"),
        pytest.param(lambda at: write_run(at / "run"), ["--out", "/nowhere/x"], id="no place"),
        pytest.param(lambda at: write_run(at / "run"), ["--format", "pdf"], id="no such format"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_2(
    tmp_path: Path, make: object, arguments: list[str]
) -> None:
    result = report(make(tmp_path), *arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("loadgen: ")
    assert len(result.stderr.splitlines()) == 1


def test_a_terminal_without_unicode_gets_text_not_a_traceback(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-m", "loadgen.cli.main", "report", str(run)],
        env={"PYTHONIOENCODING": "ascii"}, capture_output=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"concurrency" in done.stdout
