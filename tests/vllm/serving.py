"""vLLM on this machine's CPU with the tiny model, as a scenario of the product starts it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from drive import loadgen
from load import Measured, measured

LIMIT_S = 400
MODEL = "tiny"

# One thread and a small cache: two cores serve the model and send the load. The model runs within
# the engine's own process: two processes would wait for each other by turning round and round, and
# on two cores nothing else, the client least of all, gets a turn until an answer is whole. Nothing
# is looked up or reported elsewhere, and its processes speak over loopback.
_VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # or the executor below is not heeded
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
}
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "TRITON_CACHE_DIR")
"""Where it keeps what it compiled: not in a place that outlives the tests, and warms them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """An installed vLLM and what it serves; ``state`` is where started servers are remembered."""

    program: Path
    model: Path
    state: Path

    def server(self, url: str, *, dtype: str = "float32", sequences: int = 16) -> dict[str, Any]:
        """Return the ``server`` of a scenario: at most so many sequences run at once."""
        place = urlsplit(url)
        command = [
            *(str(self.program), "serve", str(self.model), "--served-model-name", MODEL),
            *("--host", str(place.hostname), "--port", str(place.port)),
            *("--dtype", dtype, "--max-model-len", "2048", "--max-num-seqs", str(sequences)),
            *("--enforce-eager", "--distributed-executor-backend", "uni"),
        ]
        kept = {name: str(self.state / "cache" / name.lower()) for name in _CACHES}
        variables = {**_VARIABLES, **kept}
        return {"command": command, "variables": variables, "ready_within": "5m"}

    def run(self, directory: Path, scenario: Mapping[str, Any]) -> Measured:
        """Run a scenario into a new directory, as a user types it."""
        directory.mkdir()
        file, out = directory / "scenario.yaml", directory / "run"
        done = self.loadgen("run", str(written(file, scenario)), "--out", str(out))
        return measured(done.returncode, done.stdout, done.stderr, out)

    def loadgen(self, *args: str) -> Any:
        return loadgen(*args, timeout=LIMIT_S, env={"XDG_STATE_HOME": str(self.state)})


def written(file: Path, scenario: Mapping[str, Any]) -> Path:
    """Write a scenario; JSON is YAML, too."""
    file.write_bytes(orjson.dumps(scenario, option=orjson.OPT_INDENT_2))
    return file


def scenario(url: str, **parts: Any) -> dict[str, Any]:
    """A small load at 1, 8 and 16; ``parts`` are keys of the file."""
    return {
        "name": "vllm",
        "target": {"url": f"{url}/v1", "model": MODEL},
        "prompts": {"input_tokens": 64, "output_tokens": 16},
        "levels": [{"concurrency": 1}, {"concurrency": 8}, {"concurrency": 16}],
        "each_level": {"measure": ["4s", "60 requests"], "drain": "20s"},
        "seed": 7,
        **parts,
    }
