"""A command of this machine as the system under test, where there is no Docker.

It runs in a session of its own, so that Ctrl-C reaches the load first and it last. A small file
beside its log says which process it is, for ``loadgen server status|logs|down`` later on.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from loadgen.client.clock import sleep_s
from loadgen.errors import ServerNotReady, UsageError
from loadgen.scenario.private import mask, mask_command, secrets_in
from loadgen.scenario.server import Server
from loadgen.server.ports import listener_on
from loadgen.server.system import TAIL_LINES, Say, State

_STOP_S = 20.0  # a server that holds a GPU is given so long before it is killed
_POLL_S = 0.05
_TAIL_BYTES = 1 << 18


def state_home(environ: Mapping[str, str]) -> Path:
    """Return the directory in which servers that run are remembered."""
    home = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "loadgen" / "servers"


class ProcessServer:
    """One command; ``place`` is the host and port it has to listen on."""

    def __init__(
        self,
        server: Server,
        *,
        directory: Path,
        variables: Mapping[str, str],
        place: tuple[str, int],
    ) -> None:
        self.project = server.project_name
        self.name = self.project.removeprefix("loadgen-")
        self._command = server.command or ()
        self._directory = directory
        self._environ = {**os.environ, **variables}
        self._secrets = secrets_in(self._environ)
        self._place = place
        self._home = state_home(os.environ) / self.project
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def started(self) -> bool:
        """Whether this call started it, and has not ended it yet."""
        return self._process is not None

    @property
    def log(self) -> Path:
        """Where both its outputs go."""
        return self._home / "server.log"

    async def check(self) -> None:
        """Nothing has to be there but the system itself."""

    async def start(self, say: Say) -> None:
        """Start the command; refuse where it runs already or something else has its port."""
        if self._remembered() is not None:
            raise ServerNotReady(
                f"{self.name}: runs already; measure it without server:, or take it down first: "
                "loadgen server down"
            )
        host, port = self._place
        if taken := listener_on(host, port):
            raise ServerNotReady(
                f"{self.name}: port {port} is taken by {taken}; end that, or set another port in "
                "target.url and in the command"
            )
        say(f"starting: {shlex.join(mask_command(self._command, self._secrets))}")
        self._process = self._spawn()

    async def state(self) -> State:
        """Ask the system how the process is."""
        if self._process is not None:
            code = self._process.poll()
            if code is None:
                return State(status="running")
            return State(status="ended", exit_code=code if code >= 0 else 128 - code)
        return State(status="missing" if self._remembered() is None else "running")

    async def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """Return the last lines of its log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return []
        return [mask(line, self._secrets) for line in text.splitlines() if line.strip()][-lines:]

    async def stop(self) -> None:
        """End what was started here."""
        if self._process is not None:
            await self._end(self._process.pid)
            self._process.wait()
            self._process = None
            self._forget()

    async def down(self, *, volumes: bool = False) -> None:
        """End it, also where another call started it; UsageError if volumes are to go, too."""
        if volumes:
            raise UsageError("--volumes: goes with a profile; a command has no volumes")
        await self.stop()
        if (known := self._remembered()) is not None:
            await self._end(known["pid"])
            self._forget()

    def _spawn(self) -> "subprocess.Popen[bytes]":
        self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            with self.log.open("wb") as log:
                process = subprocess.Popen(
                    program(self._command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environ,
                    cwd=self._directory,
                    start_new_session=True,
                )
        except OSError as error:
            raise ServerNotReady(
                f"{self.name}: '{self._command[0]}' cannot be run ({error.strerror}); check "
                "server.command"
            ) from None
        told = {"pid": process.pid, "began": _began(process.pid)}
        (self._home / "server.json").write_bytes(orjson.dumps(told))
        return process

    async def _end(self, pid: int) -> None:
        """End the whole session: SIGTERM, and SIGKILL for what heeds it not."""
        for number, patience_s in ((signal.SIGTERM, _STOP_S), (signal.SIGKILL, _STOP_S)):
            with suppress(ProcessLookupError):
                os.killpg(pid, number)
            for _ in range(round(patience_s / _POLL_S)):
                if self._process is not None:
                    self._process.poll()  # else it stays as a zombie
                if not _group_lives(pid):
                    return
                await sleep_s(_POLL_S)

    def _remembered(self) -> dict[str, Any] | None:
        """Return what is known of a process that another call started, if it still runs."""
        try:
            known = orjson.loads((self._home / "server.json").read_bytes())
            pid, began = int(known["pid"]), known["began"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return known if _began(pid) == began and _group_lives(pid) else None

    def _forget(self) -> None:
        (self._home / "server.json").unlink(missing_ok=True)


def program(command: Sequence[str]) -> list[str]:
    """Return what is started: a bare ``loadgen`` is this installation, which no PATH need name."""
    if list(command[:1]) != ["loadgen"]:
        return list(command)
    installed = Path(sys.executable).with_name("loadgen")
    own = [str(installed)] if installed.exists() else [sys.executable, "-m", "loadgen.cli.main"]
    return [*own, *command[1:]]


def _group_lives(pid: int) -> bool:
    """Say whether the session has a process left; one that only waits to be reaped is none."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    members = [fields for path in Path("/proc").glob("[0-9]*") if (fields := _stat(path))]
    if not members:
        return True  # no /proc here: the kernel's word has to do
    return any(fields[2] == str(pid) and fields[0] != "Z" for fields in members)


def _began(pid: int) -> str | None:
    """Return when a process began, in the kernel's ticks: numbers are used again, this is not."""
    fields = _stat(Path(f"/proc/{pid}"))
    return fields[19] if fields else None


def _stat(process: Path) -> list[str]:
    """Return what follows the name in /proc/PID/stat: state, parent, process group, …"""
    try:
        return (process / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []
