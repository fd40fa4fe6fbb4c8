"""Two simulated servers, measured and compared as a user would."""

from pathlib import Path

import pytest
from drive import loadgen, strict_json
from scenario_make import ROOT
from sites import sites

from loadgen.simulator.engine import EngineSpec
from loadgen.simulator.spec import SimulatorSpec

pytestmark = pytest.mark.slow

BUSY_HOST = {"client.distance"}
"""What differs where this host is busy: a connect to itself may take long."""
SCENARIO = str(ROOT / "scenarios" / "quality.yaml")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """FP16, and an INT4 that is 1.8 times as fast and garbles 3 % of its answers."""
    base = tmp_path_factory.mktemp("runs")
    specs = {
        "fp16": SimulatorSpec(engine=EngineSpec(noise=0.1), seed=1),
        "int4": SimulatorSpec(engine=EngineSpec(noise=0.1, speed=1.8), seed=2, garble=0.03),
    }
    with sites() as start:
        for name, spec in specs.items():
            url, told = start(spec), f"conditions.quantisation={name}"
            done = loadgen("run", SCENARIO, "--url", url, "--set", told, "--out", str(base / name))
            assert done.returncode == 0, done.stderr
    return {name: base / name for name in specs}


def test_speed_and_quality_stand_side_by_side(runs: dict[str, Path]) -> None:
    done = loadgen("compare", str(runs["fp16"]), str(runs["int4"]), "--format", "json")
    made = strict_json(done.stdout)
    unlike = {one["what"] for one in made["mismatches"]} - BUSY_HOST
    assert unlike == {"conditions.quantisation"}
    for level in made["levels"]:
        rows = {row["word"]: row["changes"][0] for row in level["rows"]}
        assert rows["TPOT p50"]["verdict"] == "better"
        assert rows["TPOT p50"]["change"] == pytest.approx(1 / 1.8 - 1, abs=0.03)
        assert rows["broken answers"]["value"] == pytest.approx(0.03, abs=0.025)
        assert rows["accuracy"]["value"] <= 1


def test_a_regression_and_unlike_runs_are_exit_code_1(runs: dict[str, Path]) -> None:
    sides = (str(runs["fp16"]), str(runs["int4"]))
    assert loadgen("compare", *sides).returncode == 0
    assert loadgen("compare", *sides, "--fail-on", "regression").returncode == 1
    assert loadgen("compare", *sides, "--strict").returncode == 1
    meant = ("--varies", "conditions", *(f"--varies={what}" for what in BUSY_HOST))
    assert loadgen("compare", *sides, "--strict", *meant).returncode == 0


def test_a_run_against_itself_differs_in_nothing(runs: dict[str, Path]) -> None:
    done = loadgen("compare", str(runs["fp16"]), str(runs["fp16"]), "--fail-on", "regression")
    assert done.returncode == 0
    assert done.stdout.startswith("no significant difference")
