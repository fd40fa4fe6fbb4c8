"""A service of a compose file as the system under test, under a project name of its own.

The service is named like its profile, so that naming it is enough to start it. Everything is asked
for by project: what else runs on this machine is neither seen nor touched.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from loadgen.client.clock import now_ns
from loadgen.errors import EnvironmentFault, ServerNotReady
from loadgen.scenario.model import Scenario
from loadgen.scenario.private import mask, mask_command, secrets_in
from loadgen.scenario.server import Server
from loadgen.server.diagnosis import diagnose
from loadgen.server.docker import Said, check_docker, docker
from loadgen.server.ports import listener_on
from loadgen.server.system import TAIL_LINES, Say, State, Status

UP = ("up", "--detach", "--force-recreate")
"""Starts a service anew: what an earlier call left of it has a log that is not this one's."""

_DOWN_LIMIT_S = 180.0
_STOP_S = 20  # a server that holds a GPU is given so long before it is killed
_PROGRESS_NS = 10_000_000_000
_STATUSES: Mapping[str, Status] = {
    "created": "starting",
    "running": "running",
    "paused": "running",
    "restarting": "restarting",
    "exited": "ended",
    "dead": "ended",
    "removing": "ended",
}


class ComposeService:
    """One service of one project; ``place`` is the host and port it has to listen on."""

    def __init__(
        self,
        server: Server,
        *,
        files: Sequence[Path],
        variables: Mapping[str, str],
        place: tuple[str, int],
    ) -> None:
        self.name = server.profile or ""
        self.project = server.project_name
        self._files = files
        self._environ = {"COMPOSE_PROGRESS": "plain", **os.environ, **variables}
        self._secrets = secrets_in(self._environ)
        self._place = place
        self.started = False
        self._container = ""

    def command(self, *args: str) -> list[str]:
        """Return the arguments of ``docker`` that do this to the project."""
        return compose_command(self.project, self._files, self.name, args)

    async def check(self) -> None:
        """Raise EnvironmentFault unless Docker and its Compose are there."""
        await check_docker(self._environ)

    async def start(self, say: Say) -> None:
        """Create and start the service; refuse where something else has its port."""
        await self.check()
        await self._check_configuration()
        if (await self.state()).status in ("starting", "running", "restarting"):
            raise ServerNotReady(
                f"{self.name}: project {self.project} is up already; measure it without server:, "
                "or take it down first: loadgen server down"
            )
        host, port = self._place
        if taken := listener_on(host, port):
            raise ServerNotReady(
                f"{self.name}: port {port} is taken by {taken}; end that, or set another port in "
                "target.url"
            )
        say(f"starting: {self.shown(*UP, self.name)}")
        self.started = True
        said = await docker(
            *self.command(*UP, self.name),
            environ=self._environ,
            limit_s=None,  # fetching an image takes what it takes: the whole start has its limit
            on_line=_Progress(say, self._secrets),
        )
        if said.code:
            raise self._not_started(said)

    def shown(self, *args: str) -> str:
        """Return a command as it is printed: to be typed again, without any secret."""
        return "docker " + shlex.join(mask_command(self.command(*args), self._secrets))

    async def state(self) -> State:
        """Ask the engine how the container is."""
        if not self._container and not await self._find():
            return State(status="missing")
        said = await docker(
            "inspect",
            "--format",
            '{"state":{{json .State}},"restarts":{{json .RestartCount}}}',
            self._container,
            environ=self._environ,
        )
        if said.code:
            self._container = ""
            return State(status="missing", detail=self._masked(said.last_line))
        return state_of(orjson.loads(said.out))

    async def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """Return the last lines of the service's log."""
        said = await docker(
            *self.command("logs", "--no-color", "--no-log-prefix", "--tail", str(lines), self.name),
            environ=self._environ,
        )
        # the container's stdout and stderr come as ours do; which line came first is not told
        text = "\n".join(part for part in (said.out, said.err) if part.strip())
        return [self._masked(line) for line in text.splitlines() if line.strip()][-lines:]

    async def stop(self) -> None:
        """Take the project down, if it was started here."""
        if self.started:
            await self.down()

    async def down(self, *, volumes: bool = False) -> None:
        """Remove the project's containers and network; volumes: what it keeps on disk as well."""
        more = ["--volumes"] if volumes else []
        said = await docker(
            *self.command("down", "--timeout", str(_STOP_S), *more),
            environ=self._environ,
            limit_s=_DOWN_LIMIT_S,
        )
        self.started, self._container = False, ""
        if said.code:
            raise EnvironmentFault(
                f"{self.name}: cannot be taken down ({self._masked(said.last_line)}); try: "
                f"{self.shown('down')}"
            )

    async def _check_configuration(self) -> None:
        said = await docker(*self.command("config", "--services"), environ=self._environ)
        if said.code:
            raise EnvironmentFault(f"{self._files[0]}: {self._masked(said.last_line)}")
        services = said.out.split()
        if self.name not in services:
            raise EnvironmentFault(
                f"{self._files[0]}: has no service '{self.name}' of that profile"
            )

    async def _find(self) -> str:
        said = await docker(
            *self.command("ps", "--all", "--quiet", self.name), environ=self._environ
        )
        self._container = next(iter(said.out.split()), "") if said.code == 0 else ""
        return self._container

    def _not_started(self, said: Said) -> ServerNotReady:
        text = self._masked(f"{said.err}\n{said.out}")
        cause = diagnose(text)
        why = str(cause) if cause else self._masked(said.last_line)
        log = [line for line in text.splitlines() if line.strip()]
        return ServerNotReady(f"{self.name}: did not start: {why}", log=log[-TAIL_LINES:])

    def _masked(self, text: str) -> str:
        return mask(text, self._secrets)


class _Progress:
    """Passes on what Compose says while it fetches and builds, at most a line in ten seconds."""

    def __init__(self, say: Say, secrets: Sequence[str]) -> None:
        self._say = say
        self._secrets = secrets
        self._next_ns = now_ns() + _PROGRESS_NS

    def __call__(self, line: str) -> None:
        if now_ns() >= self._next_ns:
            self._next_ns = now_ns() + _PROGRESS_NS
            self._say(f"  {mask(line.strip(), self._secrets)}")


def compose_files(scenario: Scenario, server: Server) -> list[Path]:
    """Return where a scenario's compose files lie, without detours."""
    return [Path(os.path.normpath(scenario.file(name))) for name in server.compose_files]


def compose_command(
    project: str, files: Sequence[Path], profile: str, args: Sequence[str]
) -> list[str]:
    """Return ``compose --project-name … --file … --profile … ARGS``."""
    named = [word for file in files for word in ("--file", str(file))]
    return ["compose", "--project-name", project, *named, "--profile", profile, *args]


def state_of(told: Mapping[str, Any]) -> State:
    """Read what ``docker inspect`` says of a container."""
    state = told["state"]
    health = state.get("Health") or {}
    log = [entry.get("Output", "").strip() for entry in health.get("Log") or []]
    status = _STATUSES.get(state.get("Status", ""), "starting")
    ended = status in ("ended", "restarting")
    return State(
        status=status,
        exit_code=state.get("ExitCode") if ended else None,
        restarts=told.get("restarts") or 0,
        out_of_memory=bool(state.get("OOMKilled")),
        health=health.get("Status") if health.get("Status") != "none" else None,
        detail=state.get("Error") or next((text for text in reversed(log) if text), ""),
    )
