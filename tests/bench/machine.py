"""Cores, compilers, servers and children of the benchmark."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SERVER_CORE, CLIENT_CORE = 0, 1
_LIMIT_S = 60
_SIMULATOR_FLAGS = (
    "--step-per-sequence=0s", "--step-per-context-token=0s", "--prefill-rate=1000000000/s",
    "--step-tokens=1000000", "--max-running=2048", "--kv-tokens=10000000",
    "--prefix-cache-tokens=0",
)  # fmt: skip


class Skipped(Exception):
    """A row cannot be measured on this machine; the text says why."""


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def pinned() -> bool:
    """Whether server and client get a core of their own."""
    return len(cores()) >= 2


def pin_to(core: int) -> Callable[[], None] | None:
    """Return what a child calls before it becomes another program."""
    if not pinned():
        return None
    number = cores()[core]
    return lambda: os.sched_setaffinity(0, {number})


def compiled(directory: Path) -> dict[str, Path]:
    """Compile the truth server and the raw reader; raise Skipped where that cannot be done."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        raise Skipped("the truth server needs Linux and a C compiler")
    made = {}
    for name in ("truth_server", "raw_reader"):
        made[name] = directory / name
        line = [compiler, "-O2", "-w", "-o", str(made[name]), str(HERE / f"{name}.c")]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Skipped(f"{name}.c does not compile here: {done.stderr.strip()[:200]}")
    return made


@contextmanager
def truth_server(program: Path, *, ttft_ms: float = 50, itl_ms: float = 10) -> Iterator[int]:
    """Run the truth server on a free port of its own core; yields the port."""
    port = _free_port()
    line = [str(program), "--port", str(port), "--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms)]
    with subprocess.Popen(
        line, stderr=subprocess.DEVNULL, preexec_fn=pin_to(SERVER_CORE)
    ) as server:
        try:
            _wait_until_up(port)
            yield port
        finally:
            server.terminate()
            server.wait(5)


def told(port: int, path: str) -> dict[str, Any]:
    """Ask the truth server for /stats, or tell it to /reset."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def child(name: str, **arguments: object) -> dict[str, Any]:
    """Run one measurement of ``client.py`` in a process of its own, on the client's core."""
    line = [sys.executable, str(HERE / "client.py"), name, json.dumps(arguments)]
    found: dict[str, Any] = json.loads(_output(line))
    return found


def raw_reader(
    program: Path, port: int, streams: int, query: str, *, spread_s: float
) -> dict[str, Any]:
    """Run the C reader on the client's core, its streams spread over ``spread_s``."""
    apart_us = round(spread_s / streams * 1e6)
    line = [str(program), str(port), str(streams), query, "1", str(apart_us)]
    found: dict[str, Any] = json.loads(_output(line))
    return found


def product(directory: Path, *arguments: str) -> float:
    """Run ``loadgen run`` on the client's core; returns the CPU seconds of the whole process."""
    before = os.times()
    line = [sys.executable, "-m", "loadgen.cli.main", "run", *arguments, "--out", str(directory)]
    _output(line)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


def started_after_s(directory: Path, port: int) -> float:
    """Return how long after its start the product's first request was at the truth server."""
    began = time.time()  # noqa: TID251 - the server tells its instant by the wall clock
    url = f"http://127.0.0.1:{port}"
    product(directory, "--url", url, "-c", "2", "--requests", "4", "--output-tokens", "4")
    return float(told(port, "/stats")["first_http_wall"]) - began


@dataclass(slots=True)
class Simulated:
    """A running simulator; its delays (µs) are told when it has ended."""

    base: str
    ca_file: str | None
    delays: dict[str, float] = field(default_factory=dict)


@contextmanager
def simulator(directory: Path, *, step_s: float, tls: bool) -> Iterator[Simulated]:
    """Run the simulator on its own core, with steps of one length."""
    flags, ca_file = list(_SIMULATOR_FLAGS), None
    if tls:
        ca_file, certificate, key = _certificate(directory)
        flags += ["--tls", certificate, key]
    line = [sys.executable, str(HERE / "told_simulator.py"), "--port", "0", *flags]
    line.append(f"--step-base={step_s}s")
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, text=True, preexec_fn=pin_to(SERVER_CORE)
    ) as server:
        assert server.stdout is not None
        try:
            said = server.stdout.readline().split()
            if len(said) < 2:
                raise RuntimeError("the simulator did not start")
            running = Simulated(said[1], ca_file)
            yield running
        finally:
            server.terminate()
            rest, _ = server.communicate(timeout=10)
        running.delays.update(json.loads(rest))


def _certificate(directory: Path) -> tuple[str, str, str]:
    """Make a certificate for 127.0.0.1; return the files of its CA, of itself and of its key."""
    import trustme

    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    names = [str(directory / name) for name in ("ca.pem", "cert.pem", "key.pem")]
    authority.cert_pem.write_to_path(names[0])
    own.cert_chain_pems[0].write_to_path(names[1])
    own.private_key_pem.write_to_path(names[2])
    return names[0], names[1], names[2]


def results(directory: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the manifest's and the summary's entry of a run's only level."""
    manifest = json.loads((directory / "manifest.json").read_bytes())
    summary = json.loads((directory / "summary.json").read_bytes())
    return manifest["levels"][0], summary["levels"][0]


def _output(line: list[str]) -> str:
    done = subprocess.run(
        line,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        preexec_fn=pin_to(CLIENT_CORE),
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}\n{done.stderr.strip()[-2000:]}")
    return done.stdout


def _free_port() -> int:
    import socket

    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait_until_up(port: int) -> None:
    for _ in range(100):
        try:
            told(port, "/reset")
        except OSError:
            time.sleep(0.02)  # noqa: TID251 - nothing is measured yet
        else:
            return
    raise RuntimeError(f"the truth server did not come up on port {port}")
