"""Compose by its command line alone: found, asked, and never told a secret it would print."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from drive import command
from scenario_make import ROOT
from server_make import false_docker

from loadgen.server.compose import state_of
from loadgen.server.docker import Said, compose_problem
from loadgen.server.system import State

pytestmark = pytest.mark.slow  # whole runs: seconds each

ENGINES = str(ROOT / "scenarios" / "engines.yaml")
SCENARIO = (ENGINES, "--server", "vllm")


def loadgen(*args: str, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command with ``path`` before what a shell needs, and none of the user's keys."""
    environ = {"PATH": f"{path}:/usr/bin:/bin", "HOME": str(path), **env}
    return subprocess.run(
        command(*args), env=environ, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("said", "old", "words"),
    [
        (Said(code=0, out="2.26.1\n", err=""), False, None),
        (Said(code=0, out="v5.6.1\n", err=""), True, None),
        (Said(code=0, out="1.29.2\n", err=""), False, "1.29.2 is older than 2"),
        (Said(code=1, out="", err="'compose' is not a docker command"), False, "not installed; in"),
        (Said(code=125, out="", err="unknown flag"), True, "the docker-compose found here is an"),
    ],
    ids=["v2", "v5", "v1", "none", "only-v1"],
)
def test_e09_compose_1_is_refused_and_none_is_named(
    said: Said, old: bool, words: str | None
) -> None:
    problem = compose_problem(said, old=old)
    assert problem is None if words is None else words in (problem or "")


@pytest.mark.parametrize(
    "verb",
    [["run"], ["server", "up"], ["server", "status"], ["server", "logs"], ["server", "down"]],
    ids=" ".join,
)
def test_e09_without_docker_every_verb_says_so_in_one_line(verb: list[str], tmp_path: Path) -> None:
    nowhere = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(command(*verb, *SCENARIO), env=nowhere, capture_output=True, text=True,
                          cwd=tmp_path, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("loadgen: docker: not found; install Docker with its Compose")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_e09_without_docker_no_server_of_several_is_tried(tmp_path: Path) -> None:
    done = loadgen("run", ENGINES, "--out", str(tmp_path / "run"), path=tmp_path / "none")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert not (tmp_path / "run").exists()


def test_e09_an_old_compose_is_one_line(tmp_path: Path) -> None:
    path = false_docker(tmp_path / "bin", compose_version="1.29.2")
    done = loadgen("server", "up", *SCENARIO, path=path)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "1.29.2 is older than 2" in done.stderr


def test_e04_a_dead_container_is_told_of_within_5_s(tmp_path: Path) -> None:
    ended = '{"state":{"Status":"exited","ExitCode":1},"restarts":0}'
    log = "ValueError: No available memory for the cache blocks."
    path = false_docker(tmp_path / "bin", state=ended, log=log)
    began = time.monotonic()
    done = loadgen("server", "up", *SCENARIO, "--url", "http://127.0.0.1:9", path=path)
    assert time.monotonic() - began < 5
    assert done.returncode == 3
    assert f"  | {log}" in done.stderr.splitlines()
    assert "vllm: ended with exit code 1 after" in done.stderr.splitlines()[-1]
    assert "no memory is left for the KV cache" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(("flags", "downs"), [([], 1), (["--keep"], 0)], ids=["usual", "keep"])
def test_e18_a_failed_start_is_taken_down_once(
    flags: list[str], downs: int, tmp_path: Path
) -> None:
    path = false_docker(tmp_path / "bin", up_rc="1", up_says="manifest for vllm/x:v9 not found")
    done = loadgen("server", "up", *SCENARIO, "--url", "http://127.0.0.1:9", *flags, path=path)
    assert done.returncode == 3
    assert "vllm: did not start: there is no image vllm/x:v9" in done.stderr
    calls = (path / "calls").read_text().splitlines()
    assert sum(" down " in call for call in calls) == downs
    own = [call for call in calls if call.startswith("compose") and "version" not in call]
    assert own
    assert all("--project-name loadgen-vllm" in call for call in own)


@pytest.mark.slow
def test_a_fetch_that_outlasts_the_wait_is_ended_with_it(tmp_path: Path) -> None:
    path = false_docker(tmp_path / "bin", up_takes_s="30")
    began = time.monotonic()
    done = loadgen("server", "up", *SCENARIO, "--url", "http://127.0.0.1:9", "--within", "1s",
                   path=path)  # fmt: skip
    assert time.monotonic() - began < 10
    assert (done.returncode, "vllm: not started within 1s: its image" in done.stderr) == (3, True)
    assert " down " in (path / "calls").read_text()


def test_a_service_that_is_not_in_the_file_is_named(tmp_path: Path) -> None:
    path = false_docker(tmp_path / "bin", services="vllm")
    done = loadgen("server", "up", *SCENARIO, "--set", "servers.vllm.server.profile=vlm",
                   path=path)  # fmt: skip
    assert (done.returncode, "has no service 'vlm'" in done.stderr) == (3, True)


def test_h09_a_token_is_in_no_command_no_output_and_no_file(tmp_path: Path) -> None:
    path = false_docker(tmp_path / "bin", up_rc="1", up_says="Bad token hf_test0000 given")
    flags = ("--set", "server.variables.HF_TOKEN=${HF_TOKEN}", "--url", "http://127.0.0.1:9")
    done = loadgen("server", "up", *SCENARIO, *flags, path=path, HF_TOKEN="hf_test0000")
    assert done.returncode == 3
    assert "Bad token *** given" in done.stderr
    assert "hf_test0000" not in done.stderr + done.stdout + (path / "calls").read_text()
    assert "HF_TOKEN: ${HF_TOKEN:-}" in (ROOT / "docker-compose.yml").read_text()


@pytest.mark.parametrize(
    ("told", "state"),
    [
        (
            {"state": {"Status": "running", "ExitCode": 0}, "restarts": 0},
            State(status="running"),
        ),
        (
            {"state": {"Status": "exited", "ExitCode": 137, "OOMKilled": True, "Error": ""},
             "restarts": 0},
            State(status="ended", exit_code=137, out_of_memory=True),
        ),
        (
            {"state": {"Status": "restarting", "ExitCode": 1}, "restarts": 4},
            State(status="restarting", exit_code=1, restarts=4),
        ),
        (
            {"state": {"Status": "running", "ExitCode": 0, "Health": {
                "Status": "unhealthy", "Log": [{"Output": "refused\n"}, {"Output": ""}]}},
             "restarts": 0},
            State(status="running", health="unhealthy", detail="refused"),
        ),
        ({"state": {"Status": "created", "Error": "no gpu"}}, State(status="starting",
                                                                     detail="no gpu")),
    ],
    ids=["running", "killed-for-memory", "looping", "unhealthy", "created"],
)  # fmt: skip
def test_what_docker_says_of_a_container_is_read(told: dict[str, object], state: State) -> None:
    assert state_of(told) == state


def test_help_of_each_server_verb_explains_each_flag() -> None:
    line = [sys.executable, "-m", "loadgen.cli.main", "server"]
    for verb in ("up", "wait", "status", "logs", "down"):
        done = subprocess.run([*line, verb, "--help"], capture_output=True, text=True, check=True)
        assert "[SCENARIO]" in done.stdout
        assert "--api-key" not in done.stdout


def test_a_printed_command_can_be_typed_again(tmp_path: Path) -> None:
    path = false_docker(tmp_path / "my bin", up_rc="1")
    done = loadgen("server", "up", *SCENARIO, "--url", "http://127.0.0.1:9", path=path)
    words = shlex.split(done.stderr.splitlines()[0].removeprefix("starting: "))
    assert words[:2] == ["docker", "compose"]
    assert Path(words[words.index("--file") + 1]) == ROOT / "docker-compose.yml"
    assert words[-4:] == ["up", "--detach", "--force-recreate", "vllm"]
