"""The order of levels in each round, and the rest between them."""

import signal
import subprocess
from pathlib import Path

import pytest
from drive import command, loadgen, measure, read, scenario, started, until_said
from serve import Asked, Out, scripted

from loadgen.client.clock import now_ns
from loadgen.run.runner import listed_levels
from loadgen.scenario.load import load_scenario
from loadgen.workload.order import order_of_levels
from loadgen.workload.plan import plan_hash

URL = "http://127.0.0.1:1"
EIGHT = {"levels": [{"concurrency": n} for n in range(1, 9)], "rounds": 3}


async def answer(_asked: Asked, out: Out) -> None:
    await out.stream("a", "b")


def test_levels_go_as_listed_unless_told() -> None:
    found = list(listed_levels(scenario(URL, **EIGHT)))
    assert found == [(round_, level) for round_ in range(3) for level in range(8)]


def test_shuffled_each_round_draws_its_own_order_from_the_seed() -> None:
    made, again = (scenario(URL, **EIGHT, level_order="shuffled") for _ in range(2))
    orders = [order_of_levels(made, round_=round_) for round_ in range(3)]
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert orders == [order_of_levels(again, round_=round_) for round_ in range(3)]
    other = scenario(URL, **EIGHT, level_order="shuffled", seed=1)
    assert orders[0] != order_of_levels(other, round_=0)


def test_the_order_is_part_of_the_plan() -> None:
    listed, shuffled = (scenario(URL, **EIGHT, level_order=one) for one in ("listed", "shuffled"))
    assert plan_hash(listed) != plan_hash(shuffled)
    assert "level_order" not in listed.public_dict()
    assert shuffled.public_dict()["level_order"] == "shuffled"


def test_truncate_off_is_a_word_in_yaml_and_is_written_back(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        f"target: {{url: {URL}, model: m}}\nprompts: {{input_tokens: 8, output_tokens: 4}}\n"
        "levels: [{concurrency: 2}]\neach_level: {truncate: off}\n"
    )
    made = load_scenario(path, environ={})
    assert made.public_dict()["each_level"]["truncate"] == "off"
    assert "truncate" not in scenario(URL).public_dict()["each_level"]


def test_a_run_rests_between_levels_and_not_after_the_last(tmp_path: Path) -> None:
    each = {"measure": "4 requests", "cooldown": "300ms"}
    levels = [{"concurrency": 1}, {"concurrency": 2}]
    with scripted(answer) as server:
        manifest, _ = measure(server.url, tmp_path / "run", levels=levels, each_level=each)
    first, second = manifest["levels"]
    assert 0.3e9 <= second["start_ns"] - first["end_ns"] < 1.5e9
    assert manifest["scenario"]["each_level"]["cooldown"] == "300ms"


@pytest.mark.slow
def test_a_run_of_shuffled_levels_reports_each_by_its_number(tmp_path: Path) -> None:
    parts = {**EIGHT, "level_order": "shuffled", "each_level": {"measure": "2 requests"}}
    with scripted(answer) as server:
        manifest, rows = measure(server.url, tmp_path / "run", **parts)
    ran = [(entry["round"], entry["level"]) for entry in manifest["levels"]]
    assert ran == list(listed_levels(scenario(URL, **parts)))
    assert len({row["id"] for row in rows}) == len(rows)


@pytest.mark.slow
def test_a_signal_ends_the_rest(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with scripted(answer) as server:
        flags = ["run", "--url", server.url, "-c", "1,2", "--requests", "4", "--out", str(out),
                 "--set", "each_level.cooldown=30s"]  # fmt: skip
        with started(command(*flags), stdout=subprocess.PIPE) as process:
            until_said(process.stderr, "concurrency 1: done")
            begun = now_ns()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=20)
    assert process.returncode == 130
    assert now_ns() - begun < 10e9
    assert (read(out)[0]["status"], len(read(out)[0]["levels"])) == ("interrupted", 1)
    assert loadgen("report", str(out)).returncode == 0
