"""Makers of scenarios for tests: the smallest valid one, and changes to it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import ScenarioError
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario

ROOT = Path(__file__).resolve().parent.parent
MINIMAL = """
name: tiny
target: {url: http://localhost:8000/v1}
prompts: {input_tokens: 20, output_tokens: 8}
levels: [{concurrency: 2}]
"""


def make_scenario(**parts: object) -> Scenario:
    """Build a scenario in memory; parts replace those of the smallest one."""
    smallest = {
        "name": "tiny",
        "target": {"url": "http://localhost:8000"},
        "prompts": {"input_tokens": 20, "output_tokens": 8},
        "levels": [{"concurrency": 2}],
    }
    return Scenario.model_validate({**smallest, **parts})


def load_text(
    text: str,
    directory: Path,
    *,
    environ: Mapping[str, str] | None = None,
    **more: Any,
) -> Scenario:
    """Write a scenario file and load it."""
    path = directory / "s.yaml"
    path.write_text(text, encoding="utf-8")
    return load_scenario(path, environ=environ or {}, **more)


def problems_in(text: str, directory: Path, **more: Any) -> list[str]:
    """Load a faulty scenario file; return its problems without the file's name."""
    with pytest.raises(ScenarioError) as caught:
        load_text(text, directory, **more)
    return [line.replace(f"{directory}/", "") for line in caught.value.problems]
