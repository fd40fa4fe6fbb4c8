"""Real containers: started, ready, measured, explained when they fail, and gone afterwards."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine import IMAGE, Engine
from installs import LLAMACPP, interpreter
from systems import HERE, ROOT, Containers, open_files

pytestmark = pytest.mark.docker


@pytest.fixture
def llamacpp(containers: Containers, model: Path) -> str:
    return containers.llamacpp(interpreter(LLAMACPP), model)


def test_a_run_starts_the_shipped_service_measures_it_and_takes_it_down(
    containers: Containers, llamacpp: str
) -> None:
    out = containers.directory / "run"
    done = containers.loadgen("run", llamacpp, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "llamacpp-cpu: ready after" in done.stderr
    records = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    assert {record["outcome"] for record in records} == {"ok"}
    manifest = (out / "manifest.json").read_text()
    assert json.loads(manifest)["target"]["engine"] == "llamacpp"
    assert "hf_test0000" not in manifest + done.stderr + done.stdout


def test_up_status_logs_run_and_down_by_hand(containers: Containers, llamacpp: str) -> None:
    up = containers.loadgen("server", "up", llamacpp)
    assert up.returncode == 0, up.stderr
    status = containers.loadgen("server", "status", llamacpp)
    assert status.stdout.startswith("llamacpp-cpu: running, ")
    assert "accepts connections" in status.stdout
    assert containers.loadgen("server", "wait", llamacpp).returncode == 0
    assert "llama" in containers.loadgen("server", "logs", llamacpp).stdout
    again = containers.loadgen("server", "up", llamacpp)
    assert (again.returncode, "is up already" in again.stderr) == (3, True)
    out = str(containers.directory / "run")
    run = containers.loadgen("run", "--url", containers.url, "-c", "2", "--requests", "10",
                             "--out", out)  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert containers.loadgen("server", "down", llamacpp).returncode == 0
    gone = containers.loadgen("server", "status", llamacpp)
    assert (gone.returncode, "does not run" in gone.stderr) == (3, True)


def test_loadgen_itself_measures_from_a_container(containers: Containers, llamacpp: str) -> None:
    assert containers.loadgen("server", "up", llamacpp).returncode == 0
    work = containers.directory / "work"
    work.mkdir()
    files = ("--file", str(ROOT / "docker-compose.yml"), "--file", str(HERE / "loadgen.yaml"))
    measure = ("run", "--url", containers.url, "-c", "2", "--requests", "10", "--out", "/work/r")
    containers.engine.docker(
        *("compose", "--project-name", "loadgen-itself", *files, "run", "--rm", "loadgen"),
        *measure,
        PYTHON_ROOT=sys.base_prefix,
        VENV=sys.prefix,
        ROOT=str(ROOT),
        WORK=str(work),
        NOFILE=open_files(),
    )
    assert (work / "r" / "summary.json").exists()
    assert containers.loadgen("server", "down", llamacpp).returncode == 0


def test_e04_a_container_that_dies_is_told_of_at_once_with_its_cause(
    containers: Containers,
) -> None:
    began = time.monotonic()
    done = containers.loadgen("server", "up", containers.failing("dies"))
    took_s = time.monotonic() - began
    assert done.returncode == 3
    last = done.stderr.splitlines()[-1]
    assert "dies: ended with exit code 7 after" in last
    assert "131072" in last
    assert "39024" in last
    assert "  | token *** read" in done.stderr.splitlines()
    assert took_s < 1 + 5 + 3, "it lives a second; then 5 s, and starting and ending the containers"


def test_an_unhealthy_container_is_not_waited_for(containers: Containers) -> None:
    done = containers.loadgen("server", "up", containers.failing("unhealthy"))
    assert done.returncode == 3
    assert "unhealthy: is unhealthy by its own health check" in done.stderr
    assert "no-such-page" in done.stderr


def test_a_crash_loop_is_one_failure(containers: Containers) -> None:
    done = containers.loadgen("server", "up", containers.failing("loops"))
    assert done.returncode == 3
    assert "loops: ends again and again" in done.stderr
    assert "the GPU's memory ran out" in done.stderr


def test_e08_a_gpu_that_docker_cannot_hand_over_is_explained(containers: Containers) -> None:
    done = containers.loadgen("server", "up", containers.failing("no-gpu"))
    assert done.returncode == 3
    assert "Docker cannot hand a GPU to a container; install the NVIDIA" in done.stderr


def test_e13_a_port_in_use_is_named_before_anything_is_started(containers: Containers) -> None:
    with socket.create_server(("127.0.0.1", containers.port)):
        done = containers.loadgen("server", "up", containers.failing("silent"))
    assert done.returncode == 3
    assert f"port {containers.port} is taken by " in done.stderr
    assert "(pid " in done.stderr
    assert "starting:" not in done.stderr


def test_e15_a_wait_ends_at_its_deadline_with_the_last_probes_error(
    containers: Containers,
) -> None:
    scenario = containers.failing("silent", ready_within="3s")
    done = containers.loadgen("server", "up", scenario)
    assert done.returncode == 3
    assert "silent: not ready within 3s: no answer (" in done.stderr
    assert "  | loading weights" in done.stderr


@pytest.mark.parametrize("verb", [("server", "up"), ("run",)], ids=["up", "run"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_e18_a_signal_during_the_wait_takes_down_what_was_started_and_nothing_else(
    containers: Containers, engine: Engine, verb: tuple[str, ...], number: signal.Signals
) -> None:
    engine.docker("run", "--detach", "--name", "bystander", "--network", "host",
                  IMAGE, "/busybox", "sleep", "600")  # fmt: skip
    with containers.started(*verb, containers.failing("silent")) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("starting: docker compose")
        until_there(engine, "loadgen-silent-silent-1")
        process.send_signal(number)
        process.send_signal(number)
        said = process.stderr.read()
    assert process.returncode == 130, said
    assert said.count("silent: taking it down") == 1
    assert engine.containers() == ["bystander"]
    engine.docker("rm", "--force", "bystander")


def test_a_failed_server_can_be_kept_and_looked_into(containers: Containers) -> None:
    scenario = containers.failing("dies")
    assert containers.loadgen("server", "up", scenario, "--keep").returncode == 3
    status = containers.loadgen("server", "status", scenario)
    assert (status.returncode, "ended with exit code 7" in status.stderr) == (3, True)
    assert "131072" in containers.loadgen("server", "logs", scenario, "--tail", "3").stdout
    assert containers.loadgen("server", "down", scenario).returncode == 0


def test_an_engine_that_does_not_answer_is_one_line(containers: Containers) -> None:
    line = [*containers.command, "run", containers.failing("silent")]
    nowhere = {**containers.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    done = subprocess.run(line, env=nowhere, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert done.stderr.startswith("loadgen: docker: no engine answers (")


def until_there(engine: Engine, name: str) -> None:
    for _ in range(100):  # each asks the engine, which takes its time
        if name in engine.docker("ps", "--format", "{{.Names}}").split():
            return
    raise AssertionError(f"{name} never came")
