"""Run the product from a test: in this process, or as the command a user types."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from loadgen.run.events import Event
from loadgen.run.runner import run_scenario
from loadgen.scenario.model import Scenario

PROMPTS = {"source": "synthetic", "input_tokens": 8, "output_tokens": 4}


def scenario(url: str, **parts: Any) -> Scenario:
    """A small scenario against ``url``; ``parts`` are keys of the file."""
    given = {
        "name": "test",
        "target": {"url": url},
        "prompts": PROMPTS,
        "levels": [{"concurrency": 2}],
        "each_level": {"measure": "8 requests"},
        "telemetry": "off",  # a process more for each run
        **parts,
    }
    return Scenario.model_validate(given)


def measure(
    url: str, out: Path, *, events: list[Event] | None = None, **parts: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run in this process; return the manifest and the records."""
    heard: list[Event] = [] if events is None else events
    directory = run_scenario(scenario(url, **parts), out=out, on_event=heard.append)
    return read(directory)


def read(directory: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    manifest = orjson.loads((directory / "manifest.json").read_bytes())
    lines = (directory / "requests.jsonl").read_bytes().splitlines()
    return manifest, [orjson.loads(line) for line in lines]


DEFAULT_ACTIONS = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""
"""What is ignored stays ignored over an exec, and the product honours it: under ``nohup``, or in
the background of a script, a test's signal would do nothing."""

_LAST_WORDS_S = 10


def as_from_a_terminal(line: Sequence[str]) -> list[str]:
    """Return the command with the default action of each signal, whatever this process ignores."""
    return [sys.executable, "-I", "-S", "-c", DEFAULT_ACTIONS, *line]


@contextmanager
def started(
    line: Sequence[str], *, limit_s: float = 60, **given: Any
) -> "Iterator[subprocess.Popen[str]]":
    """Start a command as from a terminal, its stderr piped unless told; ended after ``limit_s``.

    So reading what it says comes to an end, and a fault is a failure and not a hang. Ended is the
    whole session of the command, SIGTERM first: it can still take down what it started.
    """
    given = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True, **given}
    with subprocess.Popen(as_from_a_terminal(line), **given) as process:
        overdue = threading.Event()

        def end() -> None:
            overdue.set()
            _end(process)

        watch = threading.Timer(limit_s, end)
        watch.start()
        try:
            yield process
            process.wait()
        finally:
            watch.cancel()
            if process.poll() is None:
                _end(process)
        assert not overdue.is_set(), f"{' '.join(line)}: still ran after {limit_s} s"


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(_LAST_WORDS_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children, too: they may hold its pipes


def until_said(pipe: IO[str] | None, words: str) -> str:
    """Read lines up to the one that holds some words, and return it."""
    assert pipe is not None
    read = []
    for line in pipe:
        read.append(line)
        if words in line:
            return line
    raise AssertionError(f"{words!r} was not said: {''.join(read)}")


def command(*args: str, **env: str) -> list[str]:
    return [sys.executable, "-m", "loadgen.cli.main", *args]


def loadgen(
    *args: str, timeout: float = 60, env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command; no key of the surroundings reaches it."""
    clean = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return subprocess.run(
        command(*args),
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**clean, **(env or {})},
        cwd=cwd,
        check=False,
    )


def strict_json(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)
