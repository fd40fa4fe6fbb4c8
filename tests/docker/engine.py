"""A Docker engine of the tests' own: its socket, data and containers lie in one directory.

It changes nothing of the host's network (no bridge, no packet filter, no forwarding), so containers
here have the host's network or none. Images are built from nothing: none is fetched.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_UP_LIMIT_S = 30.0
_POLL_S = 0.1
_LIMIT_S = 120.0
IMAGE = "loadgen-tests/empty"
NEEDED = ("docker", "dockerd", "busybox")
_DOCKERFILE = """\
FROM scratch
COPY busybox /busybox
WORKDIR /tmp
"""


class EngineAbsent(Exception):
    """No engine can be started here; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A running engine. environ: what a docker command needs to reach it and its Compose."""

    environ: Mapping[str, str]

    def docker(self, *args: str, **more: str) -> str:
        """Run ``docker ARGS…``; return what it prints."""
        done = subprocess.run(
            ("docker", *args),
            env={**self.environ, **more},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"docker {' '.join(args)}: {done.stderr}"
        return done.stdout

    def containers(self) -> list[str]:
        """Return the names of all containers, whether they run or not."""
        return self.docker("ps", "--all", "--format", "{{.Names}}").split()

    def volumes(self) -> list[str]:
        return self.docker("volume", "ls", "--quiet").split()


def missing() -> str | None:
    """Say what this machine lacks for an engine of its own; None if it has all."""
    if lacking := [name for name in NEEDED if shutil.which(name) is None]:
        return f"{', '.join(lacking)} not found: apt-get install docker.io busybox-static"
    return "a Docker engine of one's own needs root" if os.geteuid() else None


@contextmanager
def private_engine(directory: Path, *, compose: Path) -> Iterator[Engine]:
    """Start an engine in an empty directory; ``compose`` is the plugin's file."""
    if why := missing():
        raise EngineAbsent(why)
    plugins = directory / "config" / "cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(compose)
    socket = f"unix://{directory}/docker.sock"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DOCKER_")}
    environ = {**kept, "DOCKER_HOST": socket, "DOCKER_CONFIG": str(directory / "config")}
    log = directory / "dockerd.log"
    with log.open("wb") as out, subprocess.Popen(
        _command(directory, socket), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        start_new_session=True,
    ) as process:  # fmt: skip
        engine = Engine(environ=environ)
        try:
            _wait_until_up(process, environ, log)
            yield engine
        finally:
            if left := _left(engine):
                engine.docker("rm", "--force", "--volumes", *left)
            process.terminate()
            process.wait(_UP_LIMIT_S)
            _unmount_below(directory)


def build_image(engine: Engine, directory: Path) -> None:
    """Build the image that holds busybox and nothing else, with the builder that fetches none."""
    directory.mkdir()
    (directory / "Dockerfile").write_text(_DOCKERFILE)
    shutil.copy(str(shutil.which("busybox")), directory / "busybox")
    engine.docker("build", "--tag", IMAGE, str(directory), DOCKER_BUILDKIT="0")


def _command(directory: Path, socket: str) -> list[str]:
    return [
        *("dockerd", "--host", socket, "--pidfile", str(directory / "dockerd.pid")),
        *("--data-root", str(directory / "data"), "--exec-root", str(directory / "exec")),
        *("--bridge=none", "--iptables=false", "--ip6tables=false"),
        *("--ip-forward=false", "--ip-masq=false"),
        *("--exec-opt", "native.cgroupdriver=cgroupfs", "--storage-driver", _driver()),
    ]


def _driver() -> str:
    return os.environ.get("STORAGE_DRIVER", "overlay2")


def _wait_until_up(
    process: "subprocess.Popen[bytes]", environ: Mapping[str, str], log: Path
) -> None:
    for _ in range(round(_UP_LIMIT_S / _POLL_S)):
        asked = subprocess.run(
            ("docker", "version"), env=environ, capture_output=True, check=False, timeout=_LIMIT_S
        )
        if asked.returncode == 0:
            return
        try:  # pauses, and notices an engine that gave up
            status = process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            continue
        raise EngineAbsent(f"dockerd ended with status {status}: {_last_words(log)}")
    raise EngineAbsent(f"dockerd does not answer: {_last_words(log)}")


def _left(engine: Engine) -> list[str]:
    try:
        return engine.containers()
    except AssertionError:  # it never came up
        return []


def _unmount_below(directory: Path) -> None:
    """Undo the mounts that an engine leaves (its network namespace): they would keep its files."""
    for line in Path("/proc/mounts").read_text().splitlines():
        place = line.split()[1]
        if Path(place).is_relative_to(directory):
            subprocess.run(("umount", place), check=True, timeout=_LIMIT_S)


def _last_words(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").splitlines()
    return lines[-1] if lines else "it said nothing"
