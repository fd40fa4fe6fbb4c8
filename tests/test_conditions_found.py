"""Conditions found by asking, over real sockets: from the server's pages to the card."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drive import measure, scenario
from gpu_make import MIB, RecordedNvml
from make import make_run, record
from serve import Asked, Out, Server, scripted
from sites import Open, sites
from told_make import SECRET, SGLANG, VLLM_CPU

from loadgen.analysis.alike import mismatches
from loadgen.analysis.conditions import answers
from loadgen.engines import ENGINES
from loadgen.run.conditions import (
    Conditions,
    Started,
    gpu_facts,
    is_here,
    visible_to_server,
)
from loadgen.run.headers import credentials_of
from loadgen.run.preflight import Found, Preflight
from loadgen.run.session import limits_of, transport_of
from loadgen.run.telemetry.gpu import Opened, open_gpu
from loadgen.simulator.engine import EngineSpec
from loadgen.simulator.spec import SimulatorSpec


@pytest.fixture(scope="module")
def start() -> Iterator[Open]:
    with sites() as opened:
        yield opened


def serving(pages: dict[str, Any], seen: list[str]) -> Any:
    """Answer GETs with these pages, and with one token whatever is asked for."""

    async def answer(asked: Asked, out: Out) -> None:
        path = asked.path.partition("?")[0]
        seen.append(path)
        if asked.method == "POST":
            await out.stream("a")
        else:
            await out.whole(200 if path in pages else 404, pages.get(path, {"detail": "none"}))

    return answer


def found_on(
    pages: dict[str, Any], out: Path, engine: str, **parts: Any
) -> tuple[dict[str, Any], Server, list[str]]:
    seen: list[str] = []
    answer = serving(pages, seen)
    with scripted(answer, gets=answer, models=("m",)) as server:
        target = {"url": server.url, "engine": engine, **parts.pop("target", {})}
        manifest, _ = measure(server.url, out, target=target, **parts)
    return manifest, server, seen


# --- the simulator says that it is one, and how it is set up


@pytest.mark.parametrize(
    ("dialect", "told"),
    [
        ("vllm", {"prefix_caching": "off", "speculative_decoding": "off", "max_sequences": 7,
                  "kv_cache_tokens": 4096, "max_model_len": 2048}),
        ("sglang", {"prefix_caching": "off", "max_sequences": 7, "kv_cache_tokens": 4096}),
        ("llamacpp", {"max_sequences": 7, "max_model_len": 2048}),
        ("trtllm", {}),
    ],
)  # fmt: skip
def test_the_card_is_filled_from_what_the_simulator_says(
    start: Open, tmp_path: Path, dialect: str, told: dict[str, Any]
) -> None:
    engine = EngineSpec(speed=50, max_running=7, kv_tokens=4096, prefix_cache_tokens=0)
    spec = SimulatorSpec(dialect=dialect, engine=engine, max_context=2048, model="small-AWQ")
    manifest, _ = measure(start(spec), tmp_path / "run")
    found = manifest["conditions"]
    assert found.items() >= told.items()
    assert (found["hardware"], found["found_by"]["hardware"]) == ("simulated", "/v1/models")
    assert {"gpu", "machine", "dtype", "quantisation"} & found.keys() == set()
    made = {answer.question: answer.text for answer in answers([], manifest)}
    assert made["which hardware?"] == "simulated (discovered)"
    assert ENGINES[dialect].label in made["which server, set up how?"]


def test_a_version_that_only_a_page_tells_is_the_engines(start: Open, tmp_path: Path) -> None:
    spec = SimulatorSpec(dialect="sglang", engine=EngineSpec(speed=50))
    manifest, _ = measure(start(spec), tmp_path / "run")
    assert manifest["target"]["engine_version"] == "simulated"
    assert "engine_version" not in manifest["conditions"]


# --- a server's own word


def test_what_was_declared_is_held_against_what_the_server_says(tmp_path: Path) -> None:
    declared = {"dtype": "bfloat16", "kv_cache_dtype": "auto", "thermal": "fixed"}
    manifest, _, _ = found_on(
        {"/server_info": VLLM_CPU}, tmp_path / "run", "vllm", conditions=declared
    )
    assert manifest["conditions"]["dtype"] == "float32"
    said = "conditions.dtype: declared bfloat16, but the server says float32"
    assert [line for line in manifest["warnings"] if line.startswith("conditions.")] == [said]


def test_few_pages_are_asked_for_and_none_that_generates(tmp_path: Path) -> None:
    _, _, seen = found_on({"/get_model_info": {"model_path": "m"}}, tmp_path, "sglang")
    gets = [path for path in seen if path not in ("/v1/chat/completions", "/tokenize")]
    assert gets == ["/version", "/server_info", "/get_server_info", "/get_model_info"]
    assert not {"/health", "/health_generate", "/metrics"} & set(seen)


def test_no_key_of_the_server_reaches_the_manifest(tmp_path: Path) -> None:
    command = f"python3 -m sglang.launch_server --model-path org/m-FP8 --api-key {SECRET} --tp 4"
    page = {**SGLANG, "model_path": f"https://me:{SECRET}@models.example/m-{SECRET}"}
    manifest, _, _ = found_on(
        {"/server_info": page},
        tmp_path / "run",
        "sglang",
        server={"command": command},
        target={"headers": {"X-Key": SECRET}},
    )
    assert manifest["conditions"]["tensor_parallel"] == 4
    assert SECRET not in json.dumps(manifest)


def test_a_page_that_does_not_come_is_waited_for_no_longer_than_told() -> None:
    async def hang(asked: Asked, out: Out) -> None:
        await asyncio.sleep(30)  # noqa: TID251 - longer than any patience

    async def ask(url: str) -> bytes | None:
        made = scenario(url)
        transport = transport_of(made, proxy=None)
        preflight = Preflight(made, transport=transport, limits=limits_of(made),
                              credentials=credentials_of(made.target, {}))  # fmt: skip
        try:
            return await preflight.page("/props", within_s=0.05)
        finally:
            await transport.aclose()

    with scripted(hang, gets=hang) as server:
        assert asyncio.run(ask(server.url)) is None


# --- how we started it, and what its name says


def test_the_servers_word_goes_before_its_command_and_that_before_its_name(tmp_path: Path) -> None:
    manifest, _, _ = found_on(
        {"/server_info": {"dtype": "bfloat16", "version": "0.5"}},
        tmp_path / "run",
        "sglang",
        server={"command": "python -m sglang.launch_server --dtype half --quantization fp8 --tp 2"},
        target={"model": "org/m-AWQ"},
    )
    found, by = manifest["conditions"], manifest["conditions"]["found_by"]
    assert (found["dtype"], by["dtype"]) == ("bfloat16", "/server_info")
    assert (found["quantisation"], by["quantisation"]) == ("fp8", "the command")
    assert found["tensor_parallel"] == 2


def test_a_name_is_a_hint_and_marked_as_one(tmp_path: Path) -> None:
    manifest, _, _ = found_on(
        {}, tmp_path / "run", "vllm",
        target={"model": "org/m-AWQ"}, conditions={"quantisation": "fp8"},
    )  # fmt: skip
    assert manifest["conditions"]["quantisation"] == "AWQ (by the model's name)"
    warning = "conditions.quantisation: declared fp8, but the model's name says AWQ"
    assert warning in manifest["warnings"]
    made = {answer.question: answer for answer in answers([], manifest)}
    text = "fp8 (declared); AWQ (by the model's name)"
    assert made["quantisation, weights and KV?"].text == text
    del manifest["scenario"]["conditions"]
    made = {answer.question: answer for answer in answers([], manifest)}
    assert made["quantisation, weights and KV?"].source == "hinted"


COMPOSE = """
services:
  vllm:
    profiles: [vllm]
    image: ${IMAGE:-vllm/vllm-openai}:v0.32.0
    command: serve ${MODEL} --max-model-len ${CONTEXT:-4096} --dtype float16
    environment: {CUDA_VISIBLE_DEVICES: "${GPUS:-0}"}
"""


def test_a_compose_service_is_read_as_it_is_started(tmp_path: Path) -> None:
    (tmp_path / "compose.yml").write_text(COMPOSE)
    server = {"profile": "vllm", "file": str(tmp_path / "compose.yml"),
              "variables": {"CONTEXT": "8192", "GPUS": "2,3"}}  # fmt: skip
    manifest, _, _ = found_on(
        {}, tmp_path / "run", "vllm", server=server, target={"model": "org/m"}
    )
    found = manifest["conditions"]
    assert found["image"] == "vllm/vllm-openai:v0.32.0"
    assert (found["max_model_len"], found["dtype"]) == (8192, "float16")
    assert found["found_by"]["dtype"] == "the compose file"
    assert visible_to_server(scenario("http://127.0.0.1:1", server=server)) == "2,3"


DOCKER = """#!/bin/sh
case "$1" in
  ps) [ "$6" = "label=com.docker.compose.service=vllm" ] && echo c0ffee ;;
  inspect) echo sha256:1111 ;;
  image) echo "$DIGESTS" ;;
esac
"""


@pytest.mark.parametrize(
    ("digests", "known_as"),
    [("vllm/vllm-openai@sha256:2222", "sha256:2222"), ("", "sha256:1111")],
    ids=["of a registry", "built here"],
)
def test_the_image_that_runs_is_told_by_docker(tmp_path: Path, digests: str, known_as: str) -> None:
    docker = tmp_path / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    made = scenario("http://127.0.0.1:1", server={"profile": "vllm"})
    assert made.server is not None
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "DIGESTS": digests}
    assert asyncio.run(Started(made.server, made, environ).image_id()) == {"image_digest": known_as}


# --- GPUs, and where the target is


def test_gpus_are_counted_by_their_names() -> None:
    nvml = RecordedNvml()
    assert gpu_facts(open_gpu("nvml", nvml=lambda: nvml)) == {
        "gpu": "2 × NVIDIA H100 80GB HBM3",
        "gpu_memory_bytes": 81_559 * MIB,
        "driver": "570.86.15",
    }
    assert nvml.closed
    assert gpu_facts(Opened(why_not="no NVIDIA driver on this machine")) == {}


@pytest.mark.parametrize(
    ("peers", "host", "here"),
    [
        (["127.0.0.1:8000"], "localhost", True),
        (["[::1]:8000", "127.0.0.1:8000"], "localhost", True),
        (["192.0.2.7:8000"], "gpu-host", False),
        (["127.0.0.1:8000", "192.0.2.7:8000"], "gpu-host", False),
        ([], "localhost", True),
        ([], "gpu-host", False),
    ],
)
def test_a_target_is_here_if_all_its_addresses_are(peers: list[str], host: str, here: bool) -> None:
    assert is_here(Found(model="m", engine=ENGINES["vllm"], peers=peers), host) is here


# --- on the card, and in a comparison


def test_the_first_to_tell_stands() -> None:
    made = Conditions()
    made.take({"dtype": "float16"}, "/props")
    made.take({"dtype": "float32", "image": "i"}, "the command")
    assert made.plain() == {
        "dtype": "float16", "image": "i", "found_by": {"dtype": "/props", "image": "the command"}
    }  # fmt: skip
    assert Conditions().plain() == {}


def run_with(declared: dict[str, Any], **found: Any) -> Any:
    by = dict.fromkeys(found, "/server_info") | {"hint": "the model's name"}
    return make_run(
        [record(at=[10])],
        scenario={"conditions": declared},
        conditions={**found, "hint": f"{len(found)}", "found_by": by} if found else {},
    )


@pytest.mark.parametrize(
    ("sides", "unlike"),
    [
        ([run_with({}, dtype="float32"), run_with({}, dtype="bfloat16")], ["conditions.dtype"]),
        ([run_with({}, dtype="float32"), run_with({})], []),
        ([run_with({"dtype": "bf16"}, dtype="float32"), run_with({}, dtype="float32")], []),
        ([run_with({"weights": "fp16"}), run_with({"weights": "int4"})], ["conditions.weights"]),
        ([run_with({}, kv_cache_tokens=1000), run_with({}, kv_cache_tokens=1016)], []),
    ],
    ids=["both told", "one told", "the server's word stands", "declared", "follows from memory"],
)
def test_found_conditions_are_compared_too(sides: list[Any], unlike: list[str]) -> None:
    assert [one.what for one in mismatches(sides)] == unlike
