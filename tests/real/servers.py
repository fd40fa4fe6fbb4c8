"""Real inference servers as processes of their own, on loopback, ready before they are used.

with llamacpp(python, model, log) as server:
    ... server.url, server.name, server.kill() ...
"""

import json
import os
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_READY_LIMIT_S = 120.0
_POLL_S = 0.05
_STOP_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running server; ``model`` is the name that requests give it."""

    port: int
    model: str
    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """End it as a crash would: at once, with its connections reset."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(_STOP_LIMIT_S)

    def freeze(self) -> None:
        """Stop it in its tracks: its connections stay open, and silent."""
        self.process.send_signal(signal.SIGSTOP)

    def last_words(self) -> str:
        """Return the end of the log, for the message of a failure."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return "\n".join(["--- the server said", *lines[-15:]])

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as response:
            return json.load(response)

    def text(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as response:
            return str(response.read().decode())


Serve = Callable[..., AbstractContextManager[Server]]
"""Starts a server with the named variant of the tiny model, and the server's own options."""


@contextmanager
def llamacpp(
    python: Path,
    model: Path,
    log: Path,
    *,
    parallel: int = 4,
    context: int = 8192,
    http_threads: int = -1,
) -> Iterator[Server]:
    """Serve a GGUF file as "tiny"; each of the ``parallel`` slots has an equal share of context."""
    port = free_port()
    command = [
        *(str(python), str(HERE / "serve_llamacpp.py"), str(model)),
        *("--port", str(port), "--alias", "tiny", "--http-threads", str(http_threads)),
        *("--context", str(context), "--parallel", str(parallel)),
    ]
    with _running(command, port=port, model="tiny", log=log) as server:
        yield server


@contextmanager
def transformers_serve(python: Path, model: Path, log: Path) -> Iterator[Server]:
    """Serve a model directory; requests name the model by its path."""
    port = free_port()
    command = [
        *(str(python.with_name("transformers")), "serve", str(model)),
        *("--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"),
    ]
    with _running(command, port=port, model=str(model), log=log) as server:
        yield server


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def _running(command: Sequence[str], *, port: int, model: str, log: Path) -> Iterator[Server]:
    offline = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **offline},
        )
    server = Server(port=port, model=model, process=process, log=log)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        _stop(process)


def _wait_until_ready(server: Server) -> None:
    """Wait for a one-token answer: a listening port, or even a health page, comes earlier."""
    for _ in range(round(_READY_LIMIT_S / _POLL_S)):
        if _answers(server):
            return
        try:  # pauses, and notices a server that is gone
            status = server.process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            continue
        raise AssertionError(f"the server ended with status {status}\n{server.last_words()}")
    raise AssertionError(f"no answer within {_READY_LIMIT_S:g} s\n{server.last_words()}")


def _answers(server: Server) -> bool:
    asked = {
        "model": server.model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
    }
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions",
        data=json.dumps(asked).encode(),
        headers={"content-type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_READY_LIMIT_S):
            return True
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return False
    except OSError:
        return False


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_LIMIT_S)
