"""A sweep's directory, read again: its servers, what became of each, and where its run is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from loadgen.analysis.sweep import FAILED, ServerResult
from loadgen.errors import UsageError
from loadgen.record import SCHEMA_VERSION

SWEEP_FILE = "sweep.json"
_NOT_TOLD = ("conditions", "request", "target")
"""What may differ in a sweep of before this was written down: all that a server can have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What became of a sweep's servers. varies: the conditions in which they were to differ."""

    name: str
    directory: Path
    results: list[ServerResult]
    varies: list[str]

    @property
    def runs(self) -> dict[str, Path]:
        """The runs of its servers, by the servers' names; a server without one is left out."""
        return {
            result.name: self.directory / result.directory
            for result in self.results
            if result.directory is not None
        }

    @property
    def measured(self) -> dict[str, Path]:
        """The runs whose figures count, if only of a part: not one of a server that failed."""
        failed = {result.name for result in self.results if result.status == FAILED}
        return {name: run for name, run in self.runs.items() if name not in failed}


def is_sweep(directory: Path) -> bool:
    """Say whether a directory is a sweep's, and no run's."""
    return (directory / SWEEP_FILE).is_file() and not (directory / "manifest.json").exists()


def read_sweep(directory: Path) -> Swept:
    """Read what ``loadgen run`` wrote of several servers; UsageError where it cannot be used."""
    path = directory / SWEEP_FILE
    try:
        told = orjson.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{path}: is no JSON: {error}") from error
    try:
        return _swept(told, directory)
    except (KeyError, TypeError, AttributeError):
        raise UsageError(f"{path}: is not as loadgen writes it") from None


def runs_of(directory: Path) -> dict[str, Path] | None:
    """Return the runs of a sweep's directory by their servers' names; None of any other one.

    UsageError where no server of it has a run.
    """
    if not is_sweep(directory):
        return None
    runs = read_sweep(directory).runs
    if not runs:
        raise UsageError(f"{directory}: no server of this sweep has a run")
    return runs


def server_of(run: Path) -> str | None:
    """Return which server of a sweep a run directory is of; None where it is of no sweep."""
    parent = run.resolve().parent
    if not is_sweep(parent):
        return None
    try:
        runs = read_sweep(parent).runs
    except UsageError:
        return None
    return next((name for name, path in runs.items() if path.name == run.resolve().name), None)


def _swept(told: dict[str, Any], directory: Path) -> Swept:
    if told["schema"] > SCHEMA_VERSION:
        raise UsageError(f"{directory / SWEEP_FILE}: was written by a newer version of loadgen")
    keys = ("name", "status", "reason", "directory", "ready_s")
    return Swept(
        name=str(told["name"]),
        directory=directory,
        results=[ServerResult(**{key: one[key] for key in keys}) for one in told["servers"]],
        varies=list(told.get("varies", _NOT_TOLD)),
    )
