"""A sweep's directory stands for its runs: report, check and compare take it."""

from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner, Result
from make import level, record, write_run

from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.report.swept import is_sweep, read_sweep, runs_of, server_of


def sweep(directory: Path, *names: str, **facts: object) -> Path:
    """A sweep of servers that were measured, and of one that failed."""
    for name in names:
        levels = [level(i, concurrency=c, label=f"concurrency {c}") for i, c in enumerate((1, 8))]
        records = [
            record(n, level=n % 2, sent=100.0 * n, at=[50 + n % 7, 60, 70], reported_output=3,
                   asked_output=3)
            for n in range(80)
        ]  # fmt: skip
        told = {"name": f"quant-{name}", "scenario": {"conditions": {"quantisation": name}}}
        write_run(directory / name, records, levels, **told)
    servers = [
        {"name": name, "status": "measured", "reason": None, "directory": name, "ready_s": 1.0}
        for name in names
    ]
    servers.append({"name": "int4", "status": "failed", "reason": "no GPU", "directory": None,
                    "ready_s": None})  # fmt: skip
    made = {"schema": 1, "name": "quant", "varies": ["conditions.quantisation"],
            "servers": servers, **facts}  # fmt: skip
    (directory / "sweep.json").write_bytes(orjson.dumps(made))
    return directory


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return sweep(tmp_path, "fp16", "int8")


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_report_makes_the_comparison_again(place: Path) -> None:
    done = invoke("report", place)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("2 of 3 servers measured; int4 failed")
    assert "failed: no GPU" in done.output
    for kind in ("html", "md", "json"):
        assert str(place / f"comparison.{kind}") in done.output
        assert (place / f"comparison.{kind}").stat().st_size


@pytest.mark.parametrize(
    ("format_", "begins"), [("markdown", "# quant: "), ("json", "{"), ("terminal", "2 of 3 ")]
)
def test_report_prints_one_format_and_writes_nothing_else(
    place: Path, format_: str, begins: str
) -> None:
    assert invoke("report", place, "--format", format_, "--out", "-").stdout.startswith(begins)
    assert not list(place.glob("comparison.*"))


def test_check_tests_each_run_and_the_worst_decides(place: Path) -> None:
    done = invoke("check", place)
    assert [line for line in done.output.splitlines() if line in ("fp16:", "int8:")] == [
        "fp16:", "int8:"]  # fmt: skip
    single = {invoke("check", place / name).exit_code for name in ("fp16", "int8")}
    assert done.exit_code == max(single)


def test_compare_holds_the_runs_of_a_sweep_against_the_first(place: Path) -> None:
    made = orjson.loads(invoke("compare", place, "--format", "json").output)
    assert [run["name"] for run in made["runs"]] == ["fp16", "int8"]
    assert [(one["what"], one["expected"]) for one in made["mismatches"]] == [
        ("conditions.quantisation", True)]  # fmt: skip
    page = invoke("compare", place, "--format", "html").output
    assert 'id="chart-ttft-p95"' in page


def test_runs_of_a_sweep_have_their_servers_names(place: Path) -> None:
    done = invoke("compare", place / "fp16", place / "int8", "--format", "json")
    assert [run["name"] for run in orjson.loads(done.output)["runs"]] == ["fp16", "int8"]
    assert (server_of(place / "int8"), server_of(place)) == ("int8", None)


def test_a_run_alone_has_nothing_to_be_compared_with(place: Path, tmp_path: Path) -> None:
    assert invoke("compare", place / "fp16").exit_code == 2
    (tmp_path / "one").mkdir()
    one = sweep(tmp_path / "one", "fp16")
    done = invoke("compare", one)
    assert done.exit_code == 2
    assert "fewer than two of its servers were measured" in done.output


def test_a_run_is_no_sweep(place: Path) -> None:
    assert (is_sweep(place), is_sweep(place / "fp16")) == (True, False)
    assert runs_of(place / "fp16") is None
    assert list(read_sweep(place).runs) == ["fp16", "int8"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is no JSON"), ("[]", "is not as loadgen"), ('{"schema": 99}', "newer version")],
    ids=["cut", "another", "newer"],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UsageError, match=said):
        read_sweep(tmp_path)
    assert invoke("report", tmp_path).exit_code == 2
