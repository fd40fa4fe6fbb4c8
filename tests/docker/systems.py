"""Scenarios that start containers, and the command line that runs them, for these tests."""

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drive import started
from engine import Engine

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REAL = HERE.parent / "real"


def open_files() -> str:
    """Return how many open files this host grants: a container cannot have more."""
    return str(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Containers:
    """One test's directory and port, and the engine its containers run on."""

    engine: Engine
    directory: Path
    port: int
    command: Sequence[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        return {
            **{name: v for name, v in self.engine.environ.items() if not name.endswith("_API_KEY")},
            "XDG_STATE_HOME": str(self.directory / "state"),
            "HF_TOKEN": "hf_test0000",
        }

    def failing(self, profile: str, **server: Any) -> str:
        """Write a scenario around a service that never answers."""
        return self._scenario({"profile": profile, "file": str(HERE / "failing.yaml"), **server})

    def llamacpp(self, python: Path, model: Path) -> str:
        """Write a scenario around the llamacpp-cpu service that we ship."""
        variables = {
            "PYTHON_ROOT": sys.base_prefix,
            "VENV": str(python.parents[1]),
            "SCRIPTS": str(REAL),
            "MODEL_DIR": str(model),
            "NOFILE": open_files(),
        }
        files = [str(ROOT / "docker-compose.yml"), str(HERE / "llamacpp.yaml")]
        return self._scenario(
            {"profile": "llamacpp-cpu", "file": files, "variables": variables}, model="tiny"
        )

    def loadgen(self, *args: str, timeout: float = 90) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *args],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def started(self, *args: str) -> "AbstractContextManager[subprocess.Popen[str]]":
        """Start the command and come back; its progress is on stderr."""
        line = [*self.command, *args]
        return started(line, limit_s=90, env=self.environ, stdout=subprocess.DEVNULL)

    def _scenario(self, server: dict[str, Any], *, model: str | None = None) -> str:
        path = self.directory / "scenario.yaml"
        target = {"url": self.url, **({"model": model} if model else {})}
        given = {
            "name": "system",
            "target": target,
            "server": server,
            "prompts": {"input_tokens": 16, "output_tokens": 8},
            "levels": [{"concurrency": 2}],
            "each_level": {"measure": "20 requests"},
        }
        path.write_text(json.dumps(given))
        return str(path)
