import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadgen.analysis.summary import LevelSummary, ObjectiveResult, Summary
from loadgen.cli.main import main
from loadgen.cli.run import exit_code


def summary(*verdicts: str, status: str = "complete", invalid: str | None = None) -> Summary:
    results = [ObjectiveResult(objective="ttft p95 <= 1s", verdict=verdict) for verdict in verdicts]
    level = LevelSummary(level=0, label="concurrency 1", objectives=results, invalid=invalid)
    return Summary(
        schema=1, name="x", status=status, started_at="", target={}, levels=[level, level]
    )


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (summary(), 0),
        (summary("met", "unclear"), 0),
        (summary("met", "missed"), 1),
        (summary("met", invalid="client_fault"), 1),
        (summary(status="failed"), 1),
    ],
    ids=["no-objective", "met-or-unclear", "missed", "invalid", "failed"],
)
def test_the_exit_code_says_whether_the_objectives_were_kept(made: Summary, code: int) -> None:
    assert exit_code(made) == code


def test_an_objective_that_one_class_of_a_mix_missed_is_exit_code_1() -> None:
    made = summary("met")
    missed = replace(summary("missed").levels[0], class_="chat")
    assert exit_code(replace(made, by_class=[missed])) == 1
    assert exit_code(replace(made, by_class=[made.levels[0]])) == 0


def test_a_server_that_is_not_there_gets_one_line_and_exit_code_3(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "loadgen.cli.main", "run", "--url", "http://127.0.0.1:9",
               "-c", "1", "--header", "X-Team: hush-0000"]  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("loadgen: http://127.0.0.1:9")
    assert done.stderr.count("\n") == 1
    assert "hush" not in done.stderr
    assert list(tmp_path.rglob("requests.jsonl")) == []


def test_a_wrong_scenario_leaves_no_directory_behind(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = CliRunner().invoke(main, ["run", "--url", "h", "--out", str(out)])
    assert result.exit_code == 2
    assert not out.exists()
