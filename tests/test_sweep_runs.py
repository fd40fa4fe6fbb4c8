"""Sweeps over real simulators: one command, one matrix, and nothing left running."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drive import command, read, started, strict_json, until_said
from sites import sites

from loadgen.cli.outlets import BROKEN_PIPE
from loadgen.server.ports import accepts
from loadgen.simulator.spec import SimulatorSpec

pytestmark = pytest.mark.slow  # whole runs: seconds each


class Place:
    """A directory and a port for several servers, one after another."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = int(sock.getsockname()[1])
        self.directory = directory
        self.out = directory / "out"
        self.environ = {**os.environ, "XDG_STATE_HOME": str(directory)}

    def simulate(self, *flags: str) -> dict[str, Any]:
        port = ["--port", str(self.port), "--step-base", "1ms"]
        return {"server": {"command": ["loadgen", "simulate", *port, *flags]}}

    def scenario(self, servers: dict[str, Any], **parts: Any) -> str:
        given = {
            "name": "several",
            "target": {"url": f"http://127.0.0.1:{self.port}", "model": "sim"},
            "servers": servers,
            "prompts": {"input_tokens": 8, "output_tokens": 4},
            "levels": [{"concurrency": 1}, {"concurrency": 4}],
            "each_level": {"warmup": "1 requests", "measure": "8 requests"},
            **parts,
        }
        path = self.directory / "scenario.yaml"
        path.write_text(json.dumps(given))
        return str(path)

    def run(self, servers: dict[str, Any], **parts: Any) -> subprocess.CompletedProcess[str]:
        line = command("run", self.scenario(servers, **parts), "--out", str(self.out))
        return subprocess.run(line, env=self.environ, capture_output=True, text=True, timeout=60,
                              check=False, cwd=self.directory)  # fmt: skip

    @property
    def sweep(self) -> dict[str, Any]:
        found: dict[str, Any] = strict_json((self.out / "sweep.json").read_text())
        return found

    @property
    def statuses(self) -> dict[str, str]:
        return {one["name"]: one["status"] for one in self.sweep["servers"]}

    def pids(self) -> list[int]:
        """The processes that the simulators said they were."""
        logs = self.directory.glob("loadgen/servers/*/server.log")
        return [int(pid) for log in logs for pid in re.findall(r"\(pid (\d+)\)", log.read_text())]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    assert not accepts("127.0.0.1", made.port), "a server was left behind"
    assert made.pids(), "no server was ever there"
    assert [pid for pid in made.pids() if Path(f"/proc/{pid}").exists()] == []


def row_of(text: str, name: str) -> str:
    """The line of one server in the matrix, and what its last column wraps to."""
    matrix = text.split("\nServers, at ")[1].split("\n\n")[0]
    rows = re.split(r"\n(?=\S)", matrix)
    (row,) = [row for row in rows if row.startswith(f"{name} ")]
    return " ".join(row.split())


def test_each_is_measured_alike_and_all_stand_in_one_matrix(place: Place) -> None:
    golden = place.directory / "golden.jsonl"
    asked = {"id": "a", "prompt": "Say it.", "expect": {"regex": "^[a-z ]+$"}, "max_tokens": 4}
    golden.write_text(json.dumps(asked) + "\n")
    servers = {"slow": place.simulate(), "fast": place.simulate("--speed", "4", "--seed", "1")}
    servers["fast"]["conditions"] = {"weights": "int4"}
    done = place.run(servers, quality={"set": str(golden), "pass": True})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("all of 2 servers measured")
    assert row_of(done.stdout, "slow").endswith("baseline")
    assert "100 % (21 … 100)" in row_of(done.stdout, "fast")
    assert done.stdout.splitlines()[-3:] == [
        str(place.out / f"comparison.{kind}") for kind in ("html", "md", "json")]  # fmt: skip
    for name in servers:
        assert {"report.html", "manifest.json", "summary.json"} <= {
            path.name for path in (place.out / name).iterdir()}  # fmt: skip
    assert all(0 < one["ready_s"] < 30 for one in place.sweep["servers"])
    found = strict_json((place.out / "comparison.json").read_text())
    assert [row["result"]["name"] for row in found["matrix"]["rows"]] == ["slow", "fast"]
    assert [run["name"] for run in found["runs"]] == ["slow", "fast"]
    unlike = {one["what"] for one in found["mismatches"] if not one["expected"]}
    assert unlike <= {"client.distance"}  # a busy host's own connects may take long


@pytest.mark.parametrize("chosen", [[], ["--server", "a"]], ids=["all", "one of them"])
def test_a_reader_that_leaves_ends_no_run_and_leaves_no_server(
    place: Place, chosen: list[str]
) -> None:
    scenario = place.scenario({"a": place.simulate(), "b": place.simulate("--seed", "1")})
    line = command("run", scenario, *chosen, "--out", str(place.out))
    given: dict[str, Any] = {"env": place.environ, "cwd": place.directory}
    with started(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **given) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
    assert process.returncode == BROKEN_PIPE
    for run in [place.out] if chosen else [place.out / "a", place.out / "b"]:
        assert read(run)[0]["status"] == "complete"
        for name in ("report.html", "report.md", "summary.json"):
            assert (run / name).exists()
    assert (place.out / "comparison.html").exists() is not bool(chosen)


def test_request_k_is_the_same_for_all_servers(place: Place) -> None:
    servers = {"a": place.simulate(), "b": place.simulate("--seed", "1")}
    assert place.run(servers).returncode == 0
    (first, one), (second, two) = read(place.out / "a"), read(place.out / "b")
    prompts = [
        {(row["level"], row["id"]): row["prompt_hash"] for row in rows} for rows in (one, two)
    ]
    assert prompts[0] == prompts[1]
    assert len(set(prompts[0].values())) == len(prompts[0]) == 2 * (1 + 8)
    assert first["seeds"] == second["seeds"]
    assert first["seeds"]["nonce"] == place.sweep["seeds"]["nonce"]
    told = (place.out / "comparison.md").read_text()
    assert "Request k had the same prompt for every server (18 requests that they share)" in told
    assert "Each server was started for its turn" in told


def test_prompts_that_a_template_makes_shorter_are_not_said_to_be_the_same(place: Place) -> None:
    servers = {"a": place.simulate(), "b": place.simulate("--template-tokens", "5")}
    assert place.run(servers, prompts={"input_tokens": 64, "output_tokens": 4}).returncode == 0
    told = (place.out / "comparison.md").read_text()
    assert "are not the same text: of 18 requests that two of them share, 0 had equal" in told
    assert "takes more of them, fewer words are sent" in told
    assert "Each server was started for its turn" in told


def test_of_one_that_runs_already_each_turn_has_prompts_of_its_own(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with sites() as start:
        url = start(SimulatorSpec())
        hot = {"target": {"url": url}, "request": {"temperature": 1}}
        done = place.run({"a": {"target": {"url": url}}, "b": hot})
    assert done.returncode == 0, done.stderr
    told = (place.out / "comparison.md").read_text()
    assert "of 18 requests that two of them share, 0 had equal prompts" in told
    assert "prompts in a way of its own (the nonce)" in told
    assert "Each server was started for its turn" not in told


def test_one_that_does_not_start_is_a_row_with_its_reason(place: Place) -> None:
    log = "echo ValueError: No available memory for the cache blocks.; exit 7"
    servers = {
        "a": {"server": {"command": ["/bin/sh", "-c", log]}},
        "b": place.simulate(),
        "c": place.simulate("--no-such-flag"),
    }
    done = place.run(servers)
    assert done.returncode == 1
    assert place.statuses == {"a": "failed", "b": "measured", "c": "failed"}
    assert place.sweep["baseline"] == "b"
    assert "failed: ended with exit code 7 after" in row_of(done.stdout, "a")
    assert "no memory is left for the KV cache" in row_of(done.stdout, "a")
    assert row_of(done.stdout, "b").endswith("baseline")
    assert "failed: ended with exit code 2" in row_of(done.stdout, "c")
    assert "no option --no-such-flag" in row_of(done.stdout, "c")
    for kind in ("html", "md", "json"):
        assert "no memory is left for" in (place.out / f"comparison.{kind}").read_text()
    assert "  | ValueError: No available memory for the cache blocks." in done.stderr
    assert not (place.out / "a").exists()


def test_one_whose_run_is_aborted_is_a_row_with_the_rule(place: Place) -> None:
    servers = {"a": place.simulate(), "b": place.simulate("--fault", "status_500:100%")}
    rule = "errors > 50% over 1s"
    done = place.run(servers, abort_if=[rule], each_level={"measure": "2s", "drain": "2s"})
    assert done.returncode == 1
    assert place.statuses == {"a": "measured", "b": "failed"}
    assert "failed: aborted: errors > 50%" in row_of(done.stdout, "b")
    assert (place.out / "b" / "report.html").exists()


def test_one_that_dies_under_load_is_a_row_with_its_last_words(place: Place) -> None:
    serve = shlex.join(command(*place.simulate()["server"]["command"][1:]))
    dies = (
        f"{serve} & until [ -e {place.out}/b/manifest.json ]; do sleep 0.05; done; kill -9 $!; "
        "echo CUDA error: no CUDA-capable device is detected; exit 9"
    )
    servers = {"a": place.simulate(), "b": {"server": {"command": ["/bin/sh", "-c", dies]}}}
    done = place.run(servers, limits={"connect": "1s"})
    assert done.returncode == 1, done.stderr
    assert place.statuses == {"a": "measured", "b": "failed"}
    assert "failed: ended with exit code 9 during the measurement: the engine sees" in row_of(
        done.stdout, "b"
    )


def test_a_missed_objective_of_one_server_is_exit_code_1(place: Place) -> None:
    servers = {"a": place.simulate(), "b": place.simulate("--step-base", "50ms")}
    done = place.run(servers, objectives=["e2e p50 <= 100ms"])
    assert done.returncode == 1
    assert set(place.statuses.values()) == {"measured"}
    assert "missed: e2e p50 <= 100ms" in row_of(done.stdout, "b")
    assert "missed" not in row_of(done.stdout, "a")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_e18_a_signal_ends_the_run_under_way_and_starts_no_further_server(
    place: Place, number: signal.Signals
) -> None:
    servers = {name: place.simulate("--seed", str(seed)) for seed, name in enumerate("abc")}
    servers["b"] = place.simulate("--step-base", "100ms")
    line = command("run", place.scenario(servers), "--out", str(place.out))
    with started(line, env=place.environ, stdout=subprocess.PIPE) as process:
        until_said(process.stderr, "b: server 2 of 3")
        until_said(process.stderr, "concurrency 4: measure")
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert err.splitlines()[-1].startswith("loadgen: interrupted; the servers that were measured")
    assert place.statuses == {"a": "measured", "b": "interrupted", "c": "not run"}
    assert place.sweep["status"] == "interrupted"
    assert "1 of 3 servers measured; b interrupted" in out
    assert row_of(out, "b").endswith("interrupted")
    assert row_of(out, "c").endswith("not run")
    assert len(place.pids()) == 2


def test_a_signal_while_a_server_starts_compares_what_was_measured(place: Place) -> None:
    waits = {"server": {"command": ["/bin/sh", "-c", "echo loading; exec sleep 60"]}}
    servers = {"a": place.simulate(), "b": waits, "c": place.simulate("--seed", "1")}
    line = command("run", place.scenario(servers), "--out", str(place.out))
    with started(line, env=place.environ, stdout=subprocess.PIPE) as process:
        until_said(process.stderr, "starting: /bin/sh")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert row_of(out, "a").endswith("baseline")
    assert place.statuses == {"a": "measured", "b": "interrupted", "c": "not run"}


def test_one_alone_is_a_run_like_any_other(place: Place) -> None:
    scenario = place.scenario({"a": place.simulate(), "b": place.simulate("--seed", "1")})
    line = command("run", scenario, "--server", "b", "--out", str(place.out))
    done = subprocess.run(line, env=place.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    manifest, _ = read(place.out)
    assert manifest["name"] == "several-b"
    assert not (place.out / "sweep.json").exists()
