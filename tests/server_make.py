"""Makers for the tests of ``loadgen server``: liars, the dying, a false docker."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from loadgen.scenario.model import Scenario, Target
from loadgen.server.probe import Prober
from loadgen.server.readiness import Patience
from loadgen.server.system import State

RUNNING = State(status="running")


@dataclass
class Engine:
    """A server whose health page, models and completions say what a test wants.

    completions: the status of each POST by its number; 0 drops the connection.
    """

    health: int = 200
    models: tuple[str, ...] = ("tiny",)
    completions: Callable[[int], int] = lambda _number: 200
    key: str | None = None
    posts: int = 0
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.asked.append(f"{handler.command} {handler.path}")
        if self.key and handler.headers.get("authorization") != f"Bearer {self.key}":
            _say(handler, 401, {"error": "Unauthorized"})
        elif handler.path == "/health":
            _say(handler, self.health, {"status": "loading"})
        elif handler.path == "/v1/models":
            _say(handler, 200, {"data": [{"id": name} for name in self.models]})
        else:
            self._complete(handler)

    def _complete(self, handler: BaseHTTPRequestHandler) -> None:
        handler.rfile.read(int(handler.headers["content-length"]))
        status = self.completions(self.posts)
        self.posts += 1
        if status == 0:
            handler.connection.close()
        elif status != 200:
            _say(handler, status, {"error": {"message": "the engine is loading"}})
        else:
            usage = {"prompt_tokens": 1, "completion_tokens": 1}
            choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": "length"}
            chunk = {"id": "c", "object": "chat.completion.chunk", "choices": [choice]}
            events = f"data: {json.dumps({**chunk, 'usage': usage})}\n\ndata: [DONE]\n\n"
            _send(handler, 200, "text/event-stream", events.encode())


@contextmanager
def engine(**said: Any) -> Iterator[Engine]:
    """Serve an Engine on a port of its own."""
    made = Engine(**said)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.answer(self)

        do_POST = do_GET  # noqa: N815 - likewise

        def log_message(self, *_: object) -> None:
            """Nothing to tell."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        made.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            server.shutdown()
            thread.join(5)


def after_s(delay_s: float, *, before: int = 503) -> Callable[[int], int]:
    """Return statuses that are ``before`` until so long after this call, then 200."""
    ready = time.monotonic() + delay_s
    return lambda _number: 200 if time.monotonic() >= ready else before


def _say(handler: BaseHTTPRequestHandler, status: int, body: dict[str, Any]) -> None:
    _send(handler, status, "application/json", json.dumps(body).encode())


def _send(handler: BaseHTTPRequestHandler, status: int, kind: str, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


@dataclass
class Told:
    """A system that goes through given states, the last for ever; remembers what was done."""

    states: list[State] = field(default_factory=lambda: [RUNNING])
    log: list[str] = field(default_factory=list)
    name: str = "vllm"
    started: bool = False
    done: list[str] = field(default_factory=list)

    async def start(self, say: Callable[[str], None]) -> None:
        say("starting")
        self.started = True
        self.done.append("start")

    async def state(self) -> State:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    async def tail(self, lines: int = 80) -> list[str]:
        return self.log[-lines:]

    async def stop(self) -> None:
        self.started = False
        self.done.append("stop")


def within(seconds: float) -> Patience:
    return Patience(within_s=seconds, poll_s=0.02, beat_s=0.05)


def prober(url: str, *, key: str | None = None, **target: Any) -> Prober:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    secrets = (key,) if key else ()
    return Prober(Target(url=url, **target), headers=headers, secrets=secrets, limit_s=5.0)


def scenario_with(
    server: dict[str, Any], *, directory: Path | None = None, **more: Any
) -> Scenario:
    """Return a small scenario that starts a server."""
    given = {
        "name": "test",
        "target": {"url": "http://127.0.0.1:8000"},
        "server": server,
        "prompts": {"input_tokens": 8, "output_tokens": 4},
        "levels": [{"concurrency": 2}],
        **more,
    }
    return Scenario.model_validate(given).located(directory or Path())


FALSE_DOCKER = """\
#!/bin/sh
# answers as docker does: by a file named like its first two words, else with nothing
here=$(dirname "$0")
echo "$@" >> "$here/calls"
case "$1 $2" in
  "compose version") cat "$here/compose-version" 2>/dev/null; exit "$(cat "$here/compose-rc")" ;;
  "version --format") echo 20.10.24; exit 0 ;;
esac
for word in "$@"; do
  case "$word" in
    config) cat "$here/services"; exit 0 ;;
    ps) cat "$here/container" 2>/dev/null; exit 0 ;;
    up)
      [ -f "$here/up-takes-s" ] && exec sleep "$(cat "$here/up-takes-s")"
      echo id0 > "$here/container"
      [ -f "$here/up-says" ] && cat "$here/up-says" >&2
      exit "$(cat "$here/up-rc")" ;;
    down) rm -f "$here/container"; exit 0 ;;
    logs) cat "$here/log"; exit 0 ;;
    inspect) cat "$here/state"; exit 0 ;;
  esac
done
exit 0
"""


def false_docker(directory: Path, **answers: str) -> Path:
    """Write a command ``docker`` that answers from files; return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    usual = {
        "compose-version": "2.26.1",
        "compose-rc": "0",
        "services": "vllm",
        "up-rc": "0",
        "log": "",
        "state": '{"state":{"Status":"running","ExitCode":0},"restarts":0}',
    }
    told = {name.replace("_", "-"): text for name, text in answers.items()}
    for name, text in {**usual, **told}.items():
        (directory / name).write_text(text + "\n")
    command = directory / "docker"
    command.write_text(FALSE_DOCKER)
    command.chmod(0o755)
    return directory
