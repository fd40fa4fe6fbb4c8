"""The card of conditions: questions answered from what was discovered, declared, measured."""

import json
from pathlib import Path
from typing import Any

import pytest
from make import level, make_run, record, write_run
from report_make import MANIFEST, distribution
from report_make import level as summed
from report_make import summary as run_of
from report_make import write_run as stored

from loadgen.analysis.conditions import answers, measured_from
from loadgen.analysis.metrics import summarise
from loadgen.analysis.roofline import (
    Batch,
    Facts,
    facts_of,
    kv_bytes_per_token,
    least_step_s,
    most_tokens_per_s,
)
from loadgen.analysis.summary import LevelSummary, Steadiness
from loadgen.report.conditions import conditions
from loadgen.report.write import FORMATS, render

GIB = 1024**3
LLAMA = {"layers": 32, "kv_heads": 8, "head_dim": 128}
ROOFLINE = {"weight_bytes": 15.1e9, "bandwidth_bytes_per_s": 4.8e12, **LLAMA}


def card(*levels: LevelSummary, **manifest: Any) -> dict[str, str]:
    return {answer.question: answer.text for answer in answers(levels or [summed()], manifest)}


def test_what_the_server_told_stands_beside_what_was_declared() -> None:
    declared = {"scenario": {"conditions": {"quantisation": "fp8"}}}
    told = {"conditions": {"kv_cache_dtype": "fp8_e5m2"}}
    question = "quantisation, weights and KV?"
    assert card(**declared)[question] == "fp8 (declared)"
    assert card(**told)[question] == "KV fp8_e5m2 (discovered)"
    assert card(**declared, **told)[question] == "fp8 (declared); KV fp8_e5m2 (discovered)"
    assert card()[question] == "unknown"


def test_each_answer_says_where_it_is_from() -> None:
    made = {answer.question: answer.source for answer in answers([summed()], MANIFEST)}
    assert made["which hardware?"] == "declared"
    assert made["one request or many at once?"] == "measured"
    assert len(made) == 7


FOUND = {
    "model": "/srv/models/tiny",
    "quantisation": "none",
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "max_model_len": 2048,
    "tensor_parallel": 1,
    "prefix_caching": "on",
    "speculative_decoding": "off",
    "kv_cache_tokens": 1_048_576,
    "gpu": "2 × NVIDIA H100 80GB HBM3",
    "gpu_memory_bytes": 80 * GIB,
    "driver": "570.86.15",
    "found_by": {"dtype": "/server_info"},
}


def test_the_server_and_its_set_up_are_on_the_card() -> None:
    target = {"engine_label": "vLLM", "engine_version": "0.32.0", "model": "tiny"}
    made = card(target=target, conditions=FOUND)
    assert made["which server, set up how?"] == (
        "vLLM 0.32.0, model tiny (/srv/models/tiny); context 2,048 tokens, TP 1, prefix caching on,"
        " speculative decoding off, KV cache of 1,048,576 tokens (discovered)"
    )
    assert made["quantisation, weights and KV?"] == "not quantised, float32, KV auto (discovered)"
    assert made["which hardware?"] == (
        "2 × NVIDIA H100 80GB HBM3, 80 GiB each, driver 570.86.15 (discovered)"
    )


def test_each_found_condition_says_who_told_it() -> None:
    facts = {fact.label: fact.text for fact in conditions(run_of(), {"conditions": FOUND})}
    assert facts["conditions: dtype"] == "float32 (/server_info)"
    assert not [label for label in facts if "found_by" in label]


@pytest.mark.parametrize("row", ["F18"])
def test_the_load_names_its_loop_its_cap_and_what_happens_there(row: str) -> None:
    closed = [summed(i, concurrency=c) for i, c in enumerate((1, 8))]
    rate = summed(2, concurrency=None)
    asked = {"rate": "4/s", "max_in_flight": 256, "at_cap": "drop"}
    made = card(*closed, rate, scenario={"levels": [{}, {}, asked]})
    assert made["one request or many at once?"] == (
        "concurrency 1, 8 (closed loop); 4/s poisson (open loop, at most 256 in flight, then drop)"
    )


@pytest.mark.parametrize("row", ["F18"])
def test_seed_and_plan_stand_with_the_result(row: str) -> None:
    facts = conditions(run_of(), {**MANIFEST, "plan_hash": "9f31"})
    told = {fact.label: fact.text for fact in facts}
    assert (told["seeds: seed"], told["seeds: nonce"]) == ("7", "ab12cd34")
    assert told["plan"] == "9f31"


@pytest.mark.parametrize(
    ("request_", "text"),
    [({}, "server default"), ({"temperature": 0}, "temperature 0")],
    ids=["not given", "given"],
)
@pytest.mark.parametrize("row", ["F11"])
def test_sampling_is_said_or_is_the_servers(row: str, request_: dict, text: str) -> None:
    facts = conditions(run_of(), {"scenario": {"request": request_}})
    assert {fact.label: fact.text for fact in facts}["sampling"] == text


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ([summed()], "drift: unknown"),
        ([summed(steadiness=Steadiness(verdict="steady"))], "drift: none"),
        ([summed(steadiness=Steadiness(verdict="drift", drifting=["TPOT"]))],
         "drift: concurrency 8: TPOT"),
        ([summed(steadiness=Steadiness(verdict="saturated"))], "drift: concurrency 8: saturated"),
        ([summed(rounds=3)], "rounds: 3; window"),
        ([summed(warmup_requests=8, warmup_s=5.25, warmup_ttft_max=5010.0)],
         "at least 2 (took 5.2 s, TTFT up to 5,010 ms); rounds"),
        ([summed()], "rounds: 1 (a single run: how far rounds differ is unknown)"),
    ],
    ids=["too few", "steady", "drift", "saturated", "rounds", "E17 cold", "F13 single"],
)  # fmt: skip
def test_how_it_went_is_part_of_the_card(levels: list[LevelSummary], words: str) -> None:
    assert words in card(*levels)["warm-ups, rounds, how long?"]


def test_where_it_was_measured_from_is_told() -> None:
    client = {"cpus": 16, "platform": "Linux-6.1", "loop": "uvloop", "stamps": "kernel"}
    near = summed(connect=distribution(0.21))
    assert measured_from([near], {"client": client}) == (
        "16 CPUs, Linux-6.1, uvloop, kernel stamps, 0.21 ms to connect"
    )
    assert measured_from([summed()], {"preflight": {"connect_ns": 180_000}}) == "0.18 ms to connect"
    assert measured_from([summed()], {}) == "time to connect unknown"


@pytest.mark.parametrize("format_", FORMATS)
def test_the_card_is_on_every_report(tmp_path: Path, format_: str) -> None:
    text = render(stored(tmp_path / "run"), format_, width=300)
    assert "which hardware?" in text
    assert "1 × H200 (declared)" in text


def test_the_card_is_in_the_summary(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [record(at=[10])])
    made = json.loads(render(run, "json"))["conditions"]
    assert [answer["source"] for answer in made[2:4]] == ["unknown", "unknown"]


# --- the decode roofline


def test_the_published_rooflines_of_an_8b_model() -> None:
    """Llama-3.1-8B in bf16 on 4.8 TB/s: 3.15 ms alone (317 tok/s), about 8,000 tok/s at 32 × 1k."""
    facts = facts_of({"conditions": {"roofline": ROOFLINE}})
    assert facts is not None
    assert facts.kv_bytes_per_token == kv_bytes_per_token(value_bytes=2, **LLAMA) == 131_072
    alone, many = (Batch(sequences=n, context_tokens=c) for n, c in ((1, 0), (32, 1024)))
    assert least_step_s(facts, alone) == pytest.approx(0.00315, rel=0.005)
    assert most_tokens_per_s(facts, alone) == pytest.approx(317, rel=0.005)
    assert most_tokens_per_s(facts, many) == pytest.approx(8000, rel=0.05)


@pytest.mark.parametrize(
    "told",
    [None, {}, {"weight_bytes": 1e9}, {"weight_bytes": True, "bandwidth_bytes_per_s": 1}, "x"],
    ids=["nothing", "empty", "half", "no number", "no mapping"],
)
def test_without_its_facts_there_is_no_roofline(told: object) -> None:
    assert facts_of({"scenario": {"conditions": {"roofline": told}}}) is None


def test_a_level_is_held_against_the_roofline_where_its_facts_are_known() -> None:
    facts = {"weight_bytes": 1e9, "bandwidth_bytes_per_s": 1e11, "kv_bytes_per_token": 1}
    records = [
        record(n, sent=1000.0 * n, at=[10 * i for i in range(1, 101)], reported_output=100,
               reported_input=10)
        for n in range(20)
    ]  # fmt: skip
    plan = level(window=(0, 20_000), concurrency=1)
    known = make_run(records, [plan], scenario={"conditions": {"roofline": facts}})
    assert summarise(known).levels[0].roofline_share == pytest.approx(1.0, rel=0.01)
    assert summarise(make_run(records, [plan])).levels[0].roofline_share is None


def test_a_step_reads_weights_and_contexts() -> None:
    facts = Facts(weight_bytes=100, kv_bytes_per_token=2, bandwidth_bytes_per_s=1000)
    assert least_step_s(facts, Batch(sequences=5, context_tokens=10)) == 0.2
