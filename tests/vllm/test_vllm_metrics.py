"""vLLM's own view beside the client's: one run at 1, 8 and 16 of a server that takes 8 at once."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from load import Measured
from serving import Vllm, scenario

pytestmark = pytest.mark.vllm

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def curve(vllm: Vllm, served: str, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    asked = scenario(
        served,
        prompts={"input_tokens": 64, "output_tokens": 96},
        each_level={"measure": ["6s", "30 requests"], "drain": "20s"},
    )
    return vllm.run(tmp_path_factory.mktemp("metrics") / "curve", asked)


def figure(curve: Measured, key: str) -> dict[str, Any]:
    """One figure of the page, as the plotting library is given it."""
    page = (curve.directory / "report.html").read_text()
    (found,) = re.findall(r"^const figures = (.*);$", page, re.MULTILINE)
    figures: dict[str, dict[str, Any]] = json.loads(found)
    return figures[key]


def browsed(page: Path, *, profile: Path) -> str:
    """The page as a browser has it once its scripts ran."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--dump-dom")
    quiet = ("--disable-background-networking", "--virtual-time-budget=8000")
    line = [str(CHROMIUM), *flags, *quiet, f"--user-data-dir={profile}", page.as_uri()]
    return subprocess.run(line, capture_output=True, text=True, check=True, timeout=90).stdout


def levels(curve: Measured) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each level of the summary with its records of all phases."""
    return [
        (level, [record for record in curve.records if record["level"] == level["level"]])
        for level in curve.summary["levels"]
    ]


def test_the_page_is_read_every_second_and_never_in_vain(curve: Measured) -> None:
    assert curve.status == 0, curve.err
    assert curve.outcomes == {("ok", None)}
    telemetry = curve.manifest["telemetry"]
    assert telemetry["server"]["why_not"] is None
    assert telemetry["failed"] == 0
    assert all(level["server"]["samples"] >= 1 for level in curve.summary["levels"])
    assert sum(level["server"]["samples"] for level in curve.summary["levels"]) > 9


def test_tokens_and_requests_are_those_that_the_server_counted(curve: Measured) -> None:
    for level, records in levels(curve):
        server = level["server"]
        assert server["requests_done"] == len(records)
        assert server["generation_tokens"] == sum(one["reported_output"] for one in records)
        assert server["prompt_tokens"] == sum(one["reported_input"] for one in records)


def test_the_gap_between_both_counts_and_both_ttfts_is_told(curve: Measured) -> None:
    for level, _ in levels(curve):
        gaps = {one["what"]: one for one in level["reconciled"]}
        counts = [one for one in gaps.values() if one["unit"] in ("tokens", "requests")]
        assert counts
        assert {one["gap"] for one in counts} == {0}
        (ttft,) = [one for what, one in gaps.items() if "TTFT" in what.upper()]
        assert ttft["client"] >= ttft["server"] > 0
        assert ttft["gap"] == pytest.approx(ttft["client"] - ttft["server"])
        assert ttft["text"]


def test_the_time_between_tokens_is_the_servers_own(curve: Measured) -> None:
    for level, _ in levels(curve):
        (gap,) = [one for one in level["reconciled"] if one["what"].startswith("ITL")]
        assert gap["client"] == pytest.approx(gap["server"], rel=0.3)


def test_what_a_server_of_8_sequences_queues_stands_beside_what_its_clients_wait(
    curve: Measured,
) -> None:
    """A handful of readings find the queue now full, now empty; its histogram misses nothing."""
    one, eight, sixteen = (level["server"] for level in curve.summary["levels"])
    assert one["waiting_max"] == 0
    assert sixteen["waiting_max"] > 4 > eight["waiting_max"]
    assert sixteen["queued_mean"] > eight["queued_mean"]
    assert sixteen["running_max"] == 8
    assert sixteen["queue_ms"]["mean"] > 50 > eight["queue_ms"]["mean"]


def test_fresh_prompts_meet_no_cache(curve: Measured) -> None:
    assert {level["server"]["prefix_hit_share"] for level in curve.summary["levels"]} == {0.0}


@pytest.mark.parametrize(
    ("prompts", "low", "high"),
    [({}, 0.0, 0.01), ({"shared_prefix_tokens": 512}, 0.5, 0.85)],
    ids=["own words", "a shared prefix"],
)
def test_the_prefix_cache_is_hit_by_what_prompts_share_and_by_nothing_else(
    prompts: dict[str, Any], low: float, high: float, vllm: Vllm, served: str, tmp_path: Path
) -> None:
    """Blocks are of 128 tokens here: of 512 shared ones at least three are found again."""
    asked = scenario(
        served,
        prompts={"input_tokens": 640, "output_tokens": 4, **prompts},
        levels=[{"concurrency": 4}],
        each_level={"measure": "80 requests"},
    )
    found = vllm.run(tmp_path / "prefix", asked)
    (level,) = found.summary["levels"]
    assert low <= level["server"]["prefix_hit_share"] <= high
    assert level["cached_input_share_server"] == level["server"]["prefix_hit_share"]
    cache = [one for one in level["checks"] if one["name"].startswith("prefix-cache")]
    assert {one["verdict"] for one in cache} == {"pass"}


def test_the_card_is_filled_from_what_the_server_told(curve: Measured) -> None:
    target, told = curve.manifest["target"], curve.manifest["conditions"]
    assert (target["engine"], target["engine_version"]) == ("vllm", "0.32.0")
    assert told["max_model_len"] == 2048
    card = {one["question"]: one for one in curve.summary["conditions"]}
    weights = card["quantisation, weights and KV?"]
    assert weights["source"] == "discovered"


def test_the_report_has_the_servers_queue_under_the_clients_ttft_on_one_axis(
    curve: Measured,
) -> None:
    traces = figure(curve, "course")["data"]
    by_name = {trace["name"]: trace for trace in traces}
    ttft, waiting = by_name["request"], by_name["waiting"]
    assert {trace.get("xaxis") for trace in traces} == {None}  # the only one
    assert ttft["yaxis"] != waiting["yaxis"]
    assert len(ttft["x"]) == len(curve.records)
    assert 4 < max(waiting["y"]) <= 16
    began_s = curve.manifest["levels"][2]["start_ns"] / 1e9  # of 16 clients
    assert all(at_s > began_s for at_s, n in zip(waiting["x"], waiting["y"], strict=True) if n)


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
def test_a_browser_draws_them_one_below_the_other(curve: Measured, tmp_path: Path) -> None:
    drawn = browsed(curve.directory / "report.html", profile=tmp_path)
    strips = drawn[drawn.index('id="chart-course"') :]
    places = [strips.index(title) for title in ("client, TTFT in ms", "server, requests")]
    assert places == sorted(places)
    assert strips.index('class="main-svg"') < places[0]
