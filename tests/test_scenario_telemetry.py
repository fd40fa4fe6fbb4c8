"""``telemetry:`` in a scenario: what it takes, what it refuses, and how it is written again."""

from pathlib import Path

import pytest
from scenario_make import MINIMAL, load_text, make_scenario, problems_in

from loadgen.scenario.telemetry import Telemetry


def test_unless_told_all_is_watched_every_second() -> None:
    told = make_scenario().telemetry
    assert (told.every_s, told.server, told.gpu, told.off) == (1.0, "auto", "auto", False)


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("off", "off"),
        ("{server: off, gpu: off}", "off"),
        ("auto", {"every": "1s", "server": "auto", "gpu": "auto"}),
        ("{every: 250ms, gpu: nvml}", {"every": "250ms", "server": "auto", "gpu": "nvml"}),
        ("{server: 'http://user:pw@h:1/metrics?key=x', gpu: 'http://h:9400/metrics'}",
         {"every": "1s", "server": "http://***@h:1/metrics?key=***",
          "gpu": "http://h:9400/metrics"}),
    ],
)  # fmt: skip
def test_it_is_written_as_it_was_meant(line: str, plain: object, tmp_path: Path) -> None:
    scenario = load_text(f"{MINIMAL}telemetry: {line}\n", tmp_path)
    assert scenario.public_dict()["telemetry"] == plain


def test_a_key_from_the_environment_stands_by_its_name(tmp_path: Path) -> None:
    text = f"{MINIMAL}telemetry: {{server: 'http://h/metrics?a=b&key=${{KEY}}'}}\n"
    scenario = load_text(text, tmp_path, environ={"KEY": "sesame"})
    assert scenario.telemetry.server == "http://h/metrics?a=b&key=sesame"
    assert scenario.public_dict()["telemetry"]["server"] == "http://h/metrics?a=***&key=${KEY}"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{every: 50ms}", "telemetry.every: must be 100ms or longer"),
        ("{every: often}", "telemetry.every: 'often' is not a duration"),
        ("{evry: 1s}", "telemetry.evry: unknown key; did you mean 'every'?"),
        ("{server: yes please}", "telemetry.server: 'yes please' will not do; write auto, off"),
        ("{server: 'h:8000/metrics'}", "telemetry.server: has no scheme; did you mean"),
        ("{gpu: dcgm}", "telemetry.gpu: 'dcgm' will not do; write auto, off, nvml or a page's"),
        ("{gpu: 'ftp://h/metrics'}", "telemetry.gpu: has the scheme 'ftp'"),
        ("5", "telemetry: write off, or a mapping like {every: 1s,"),
    ],
)
def test_what_will_not_do_is_explained(line: str, problem: str, tmp_path: Path) -> None:
    found = problems_in(f"{MINIMAL}telemetry: {line}\n", tmp_path)
    assert found[0].startswith(f"s.yaml: {problem}")


def test_off_survives_the_way_to_another_process() -> None:
    told = Telemetry.model_validate("off").model_dump(mode="json", exclude_unset=True)
    assert Telemetry.model_validate(told).off
