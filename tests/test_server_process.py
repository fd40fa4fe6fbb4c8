"""A command as the system under test: started, waited for, and ended with all its children."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from drive import command, read, started, until_said

from loadgen.server.ports import accepts, listener_on

pytestmark = pytest.mark.slow  # whole runs: seconds each

WITH_A_CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
child.wait()
"""


@dataclass(frozen=True)
class Place:
    """A directory and a port for one server."""

    directory: Path
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / "loadgen" / "servers" / "loadgen-mine" / "server.log"

    def simulate(self, **server: Any) -> str:
        """Write a scenario around a simulator."""
        line = [*command("simulate", "--port", str(self.port), "--model", "sim")]
        return self.scenario(line, **server)

    def scenario(self, line: list[str], **server: Any) -> str:
        given = {
            "name": "process",
            "target": {"url": self.url},
            "server": {"command": line, "project": "loadgen-mine", **server},
            "prompts": {"input_tokens": 8, "output_tokens": 4},
            "levels": [{"concurrency": 2}],
            "each_level": {"measure": "10 requests"},
        }
        path = self.directory / "scenario.yaml"
        path.write_text(json.dumps(given))
        return str(path)

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.directory)}

    def loadgen(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command(*args), env=self.environ, capture_output=True, text=True,
                              timeout=60, check=False, cwd=self.directory)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    made = Place(tmp_path, port)
    yield made
    assert not accepts("127.0.0.1", port), "a server was left behind"


@pytest.mark.slow
def test_a_run_starts_it_measures_it_and_ends_it(place: Place) -> None:
    done = place.loadgen("run", place.simulate(), "--out", "run")
    assert done.returncode == 0, done.stderr
    manifest, records = read(place.directory / "run")
    assert {record["outcome"] for record in records} == {"ok"}
    assert manifest["scenario"]["server"]["command"][-1] == "sim"
    assert "mine: ready after" in done.stderr
    assert done.stderr.count("mine: taking it down") == 1


@pytest.mark.slow
def test_it_outlives_up_and_is_found_again_until_down(place: Place) -> None:
    scenario = place.simulate()
    assert place.loadgen("server", "up", scenario).returncode == 0
    assert "mine: running, port" in place.loadgen("server", "status", scenario).stdout
    assert "simulator: http" in place.loadgen("server", "logs", scenario).stdout
    again = place.loadgen("server", "up", scenario)
    assert (again.returncode, "mine: runs already" in again.stderr) == (3, True)
    assert place.loadgen("server", "down", scenario).returncode == 0
    assert place.loadgen("server", "status", scenario).returncode == 3


@pytest.mark.slow
def test_keep_leaves_it_running_after_a_run(place: Place) -> None:
    scenario = place.simulate(keep=True)
    done = place.loadgen("run", scenario, "--out", "run")
    assert (done.returncode, "mine: left running" in done.stderr) == (0, True)
    assert place.loadgen("server", "wait", "--url", place.url).returncode == 0
    assert place.loadgen("server", "down", scenario).returncode == 0


def test_an_early_end_has_its_code_its_log_and_its_cause(place: Place) -> None:
    line = ["/bin/sh", "-c", "echo failed to open GGUF file /m/x.gguf; exit 5"]
    done = place.loadgen("run", place.scenario(line), "--out", "run")
    assert done.returncode == 3
    assert "  | failed to open GGUF file /m/x.gguf" in done.stderr.splitlines()
    last = done.stderr.splitlines()[-1]
    assert last.startswith("loadgen: mine: ended with exit code 5 after ")
    assert "the model file /m/x.gguf cannot be loaded" in last
    assert not (place.directory / "run").exists()


@pytest.mark.slow
def test_a_server_that_dies_under_load_has_its_last_words_told(place: Place) -> None:
    serve = shlex.join(command("simulate", "--port", str(place.port), "--model", "sim"))
    dies = (  # soon after the load begins
        f"{serve} & until [ -e run/manifest.json ]; do sleep 0.05; done; kill -9 $!; "
        "echo CUDA error: no CUDA-capable device is detected; exit 9"
    )
    scenario = place.scenario(["/bin/sh", "-c", dies])
    done = place.loadgen("run", scenario, "--out", "run", "--requests", "4")
    assert done.returncode == 1, done.stderr
    assert "  | CUDA error: no CUDA-capable" in done.stderr
    assert "mine: ended with exit code 9 during the measurement: the engine sees" in done.stderr


def test_a_command_that_is_not_there_is_one_line(place: Place) -> None:
    done = place.loadgen("server", "up", place.scenario(["no-such-server"]))
    assert done.returncode == 3
    assert "'no-such-server' cannot be run (No such file or directory)" in done.stderr


def test_e13_a_port_in_use_is_named_with_who_has_it(place: Place) -> None:
    with socket.create_server(("127.0.0.1", place.port)):
        done = place.loadgen("run", place.simulate(), "--out", "run")
        assert done.returncode == 3
    assert f"port {place.port} is taken by " in done.stderr
    assert f"(pid {os.getpid()})" in done.stderr


@pytest.mark.parametrize("verb", [["server", "up"], ["run"]], ids=" ".join)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name)
def test_e18_a_signal_during_the_wait_ends_it_with_its_children(
    place: Place, verb: list[str], number: signal.Signals
) -> None:
    line = command(*verb, place.scenario([sys.executable, "-c", WITH_A_CHILD]))
    with started(line, env=place.environ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("starting: ")
        child = said_child(place.log)
        process.send_signal(number)
        said = process.stderr.read()
    assert (process.returncode, said.count("taking it down")) == (130, 1)
    assert not Path(f"/proc/{child}/cmdline").exists() or ends_soon(child)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
                         ids=lambda n: n.name)  # fmt: skip
def test_e18_a_signal_during_the_measurement_ends_it_after_the_report(
    place: Place, number: signal.Signals
) -> None:
    out = place.directory / "run"
    line = command("run", place.simulate(), "--out", str(out), "--duration", "30s")
    with started(line, env=place.environ) as process:
        assert process.stderr is not None
        until_said(process.stderr, "measure")
        process.send_signal(number)
        said = process.stderr.read()
    assert process.returncode == 130, said
    assert said.index("interrupted") > 0
    assert said.count("mine: taking it down") == 1
    assert read(out)[0]["status"] == "interrupted"


@pytest.mark.slow
def test_under_nohup_a_closed_terminal_ends_nothing(place: Place) -> None:
    scenario = place.scenario(["/bin/sh", "-c", "echo loading; exec sleep 60"], ready_within="2s")
    line = ["nohup", *command("server", "up", scenario)]
    with started(line, env=place.environ) as process:
        assert process.stderr is not None
        until_said(process.stderr, "starting: ")
        process.send_signal(signal.SIGHUP)
        said = process.stderr.read()
    assert (process.returncode, "not ready within 2s" in said) == (3, True)


@pytest.mark.slow
def test_the_deadline_of_the_scenario_holds(place: Place) -> None:
    scenario = place.scenario(["/bin/sh", "-c", "echo loading; exec sleep 60"], ready_within="1s")
    done = place.loadgen("server", "up", scenario)
    assert done.returncode == 3
    assert "mine: not ready within 1s: no answer (" in done.stderr


def test_h09_a_key_in_the_command_is_printed_nowhere(place: Place) -> None:
    line = ["/bin/sh", "-c", "echo key $1 read; exit 1", "x", "sk-test-0000", "--api-key", "plain"]
    done = place.loadgen("server", "up", place.scenario(line))
    assert done.returncode == 3
    assert "  | key *** read" in done.stderr.splitlines()
    assert "sk-test" not in done.stderr
    assert "plain" not in done.stderr


def test_a_free_port_has_no_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        found = listener_on("127.0.0.1", port)
        assert found is not None
        assert f"(pid {os.getpid()})" in str(found)
    assert listener_on("127.0.0.1", port) is None


def test_a_port_that_is_bound_and_does_not_listen_yet_is_taken() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        found = listener_on("127.0.0.1", sock.getsockname()[1])
        assert str(found) == "something that does not say what it is"


def said_child(log: Path) -> int:
    for _ in range(200_000):  # reads until it has spoken
        words = log.read_text().split() if log.exists() else []
        if len(words) == 2:
            return int(words[1])
    raise AssertionError("the server said nothing")


def ends_soon(pid: int) -> bool:
    """Say whether a process is gone, or only waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"
