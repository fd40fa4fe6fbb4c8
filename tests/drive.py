"""Run the product from a test: in this process, or as the command a user types."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
