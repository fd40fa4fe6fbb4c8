"""Docker and Compose through their command line: asked, never imitated.

Compose 2 or newer is a plugin (``docker compose``). Version 1 (``docker-compose``) ignores what the
files here say of GPUs and profiles, so it is refused rather than tried.
"""

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from signal import SIGINT

from loadgen.errors import EnvironmentFault

OLDEST_COMPOSE = 2
_QUICK_S = 30.0
_GRACE_S = 10.0
WITHOUT = "or start the server yourself and leave out server:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a command left: its exit code and both its outputs."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last thing it complained of."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


async def docker(
    *args: str,
    environ: Mapping[str, str],
    limit_s: float | None = _QUICK_S,
    on_line: Callable[[str], None] | None = None,
) -> Said:
    """Run ``docker ARGS…`` apart from the terminal's Ctrl-C; on_line hears what it complains of.

    Cut off, by a limit or from outside, it is interrupted and waited for: it may be amid something
    that it has to leave whole.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            "docker",
            *args,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        raise EnvironmentFault(f"docker: cannot be run ({error.strerror}); {WITHOUT}") from None
    try:
        async with asyncio.timeout(limit_s):
            out, err = await asyncio.gather(
                _all_of(process.stdout), _all_of(process.stderr, on_line)
            )
            code = await process.wait()
    except TimeoutError:
        raise EnvironmentFault(
            f"docker {args[0]}: no end within {limit_s:g} s; is the Docker engine well?"
        ) from None
    finally:
        if process.returncode is None:
            await _end(process)
    return Said(code=code, out=out, err=err)


async def _all_of(
    stream: asyncio.StreamReader | None, on_line: Callable[[str], None] | None = None
) -> str:
    lines: list[str] = []
    pending = b""
    while stream is not None and (chunk := await stream.read(65536)):
        *whole, pending = re.split(rb"[\r\n]", pending + chunk)  # progress bars end in \r
        for raw in whole:
            lines.append(raw.decode("utf-8", "replace"))
            if on_line and lines[-1].strip():
                on_line(lines[-1])
    return "\n".join([*lines, pending.decode("utf-8", "replace")])


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(SIGINT)
        try:
            async with asyncio.timeout(_GRACE_S):
                await process.communicate()
        except TimeoutError:
            process.kill()
            await process.communicate()


async def check_docker(environ: Mapping[str, str]) -> None:
    """Raise EnvironmentFault, in one line, unless an engine and Compose 2 or newer are there."""
    search = environ.get("PATH", os.defpath)
    if shutil.which("docker", path=search) is None:
        raise EnvironmentFault(f"docker: not found; install Docker with its Compose, {WITHOUT}")
    compose = await docker("compose", "version", "--short", environ=environ)
    problem = compose_problem(compose, old=shutil.which("docker-compose", path=search) is not None)
    if problem:
        raise EnvironmentFault(problem)
    engine = await docker("version", "--format", "{{.Server.Version}}", environ=environ)
    if engine.code:
        raise EnvironmentFault(
            f"docker: no engine answers ({engine.last_line}); start Docker, {WITHOUT}"
        )


def compose_problem(said: Said, *, old: bool) -> str | None:
    """Say why this Compose will not do; old: a ``docker-compose`` of its own is installed."""
    advice = f"install the plugin docker-compose-v2 (docker compose version tells), {WITHOUT}"
    found = re.match(r"v?(\d+)\.\S*", said.out.strip()) if said.code == 0 else None
    if found is None:
        instead = " (the docker-compose found here is another, older program)" if old else ""
        return f"docker compose: not installed{instead}; {advice}"
    if int(found[1]) < OLDEST_COMPOSE:
        return f"docker compose: {said.out.strip()} is older than {OLDEST_COMPOSE}; {advice}"
    return None
