"""The compose file that we ship, as Compose itself reads it."""

import json
from typing import Any

import pytest
from engine import Engine
from systems import ROOT

pytestmark = pytest.mark.docker

GPU = ["vllm", "trtllm", "sglang", "llamacpp", "transformers"]
SERVERS = [*GPU, "llamacpp-cpu"]
VARIABLES = {
    "MODEL": "org/model",
    "SERVED_NAME": "mine",
    "QUANTIZATION": "awq",
    "CONTEXT": "2048",
    "TENSOR_PARALLEL": "2",
    "GPUS": "0,1",
    "EXTRA_ARGS": "--seed 7",
    "PORT": "8123",
    "MODELS": "/data/models",
    "MODEL_CACHE": "/data/cache",
    "HF_TOKEN": "hf_test0000",
}


def service(engine: Engine, profile: str, **variables: str) -> dict[str, Any]:
    """Return one service as Compose resolves it."""
    file = str(ROOT / "docker-compose.yml")
    line = ("compose", "--file", file, "--profile", profile, "config", "--format", "json")
    found: dict[str, Any] = json.loads(engine.docker(*line, **variables))["services"]
    assert list(found) == [profile]
    return found[profile]


@pytest.mark.parametrize("variables", [{}, VARIABLES], ids=["defaults", "all-variables"])
@pytest.mark.parametrize("profile", [*SERVERS, "loadgen"])
def test_compose_accepts_every_profile(
    engine: Engine, profile: str, variables: dict[str, str]
) -> None:
    assert service(engine, profile, **variables)["restart"] == "no"


@pytest.mark.parametrize("profile", SERVERS)
def test_e06_e07_e20_a_server_has_time_shared_memory_and_descriptors(
    engine: Engine, profile: str
) -> None:
    made = service(engine, profile)
    assert made["ipc"] == "host"
    assert made["ulimits"]["nofile"] >= 65535
    assert made["ulimits"]["memlock"] == -1
    assert made["healthcheck"]["start_period"] == "30m0s"
    assert [port["host_ip"] for port in made["ports"]] == ["127.0.0.1"]
    image = made.get("image", "built:here")
    assert not image.endswith((":latest", ":"))


@pytest.mark.parametrize("profile", GPU)
def test_a_gpu_engine_is_handed_gpus_and_told_which_to_use(engine: Engine, profile: str) -> None:
    made = service(engine, profile, GPUS="1,3")
    devices = made["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"capabilities": ["gpu"], "driver": "nvidia", "count": -1}]
    assert made["environment"]["CUDA_VISIBLE_DEVICES"] == "1,3"


def test_variables_reach_the_command(engine: Engine) -> None:
    command = service(engine, "vllm", **VARIABLES)["command"]
    assert command[:3] == ["org/model", "--served-model-name", "mine"]
    assert command[-4:] == ["--quantization", "awq", "--seed", "7"]
    assert command[command.index("--max-model-len") + 1] == "2048"
    assert "--quantization" not in service(engine, "vllm")["command"]
    local = service(engine, "llamacpp-cpu", MODEL_SOURCE="--model", MODEL="/models/x.gguf")
    assert local["command"][:2] == ["--model", "/models/x.gguf"]
