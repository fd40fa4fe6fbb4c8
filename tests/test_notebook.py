import subprocess
import sys
from pathlib import Path

import pytest
from make import level, ns, record, write_run

import loadgen
from loadgen.analysis.metrics import summarise
from loadgen.analysis.table import read_run
from loadgen.errors import UsageError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    records = [
        record(0, due_ms=-5, at=[200, 210, 230], reported_output=3),
        record(1, at=[100], phase="warmup"),
        record(2, outcome="refused", http_status=429, error_class="rate_limited"),
    ]
    return write_run(tmp_path / "run", records, [level(window=(-10, 60_000))])


def test_a_run_opens_with_every_metric_in_milliseconds(directory: Path) -> None:
    requests = loadgen.open_run(directory).requests.set_index("id")
    first = requests.loc[0]
    assert (first.ttft, first.e2e, first.tpot, first.decode_rate) == (200, 230, 15, 1000 / 15)
    assert (first.ttft_from_due, first.lateness) == (205, 5)
    assert requests["ttft"].isna().tolist() == [False, False, True]
    assert requests["in_window"].tolist() == [True, False, True]


def test_the_stored_facts_stand_beside_the_metrics(directory: Path) -> None:
    requests = loadgen.open_run(directory).requests
    assert requests["outcome"].tolist() == ["ok", "ok", "refused"]
    assert requests["first_ns"].tolist()[:2] == [ns(200), ns(100)]
    assert requests["error_class"][2] == "rate_limited"


def test_chunks_have_their_instants_and_gaps(directory: Path) -> None:
    chunks = loadgen.open_run(str(directory)).chunks
    first = chunks[chunks["request"] == 0]
    assert first["at_ns"].tolist() == [ns(200), ns(210), ns(230)]
    assert first["gap"].dropna().tolist() == [10, 20]


def test_the_summary_is_the_one_that_reports_are_made_of(directory: Path) -> None:
    run = loadgen.open_run(directory)
    assert run.summary == summarise(read_run(directory))
    assert run.summary is run.summary
    assert run.manifest["name"] == run.summary.name == "made"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"manifest\.json is missing"):
        loadgen.open_run(tmp_path)


def test_importing_loadgen_loads_nothing_heavy() -> None:
    code = "import sys, loadgen; print([m for m in ('pandas', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_few() -> None:
    assert loadgen.__all__ == ["open_run"]
