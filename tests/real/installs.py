"""An environment of its own for each engine, made on first use and kept.

They lie in the project's root (``.venv-llamacpp``, ``.venv-transformers``; beside them
``.venv-vocabularies``, for the files of a package that is never imported), or under
$LOADGEN_ENGINES_DIR where that is set, so that several checkouts can share them. A stamp inside
names what was installed; another list of requirements makes the environment anew.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_STAMP = "installed-for-tests.txt"
_LIMIT_S = 900


class InstallFailed(Exception):
    """An engine could not be installed; the message is pip's own last word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """One engine's environment: its name, and what pip puts there."""

    name: str
    requirements: tuple[str, ...]

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
# Only files are wanted of it: vocabularies of tiktoken, which a run finds without importing them.
VOCABULARIES = Install(name="vocabularies", requirements=("--no-deps", "llama-index-core==0.14.25"))


def packages_of(install: Install) -> Path:
    """Return where an environment's packages lie."""
    (found,) = install.directory.glob("lib/python3*/site-packages")
    return found


def interpreter(install: Install) -> Path:
    """Return the environment's python, making the environment first where it is not there."""
    stamp = install.directory / _STAMP
    wanted = "\n".join(install.requirements) + "\n"
    if stamp.is_file() and stamp.read_text() == wanted and install.python.exists():
        return install.python
    shutil.rmtree(install.directory, ignore_errors=True)  # half of one is none
    _run(sys.executable, "-m", "venv", str(install.directory))
    pip = (str(install.python), "-m", "pip", "--disable-pip-version-check", "-q")
    _run(*pip, "install", *install.requirements)
    stamp.write_text(wanted)
    return install.python


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_LIMIT_S, check=False, cwd=ROOT
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")]
        raise InstallFailed((errors or lines or [f"exit status {done.returncode}"])[-1])
