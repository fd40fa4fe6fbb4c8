"""``loadgen run`` against a real server, as a user types it, and what it left."""

import subprocess
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import orjson
from drive import loadgen, read
from servers import Server

LIMIT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run: the exit status, both outputs, and the directory's content."""

    status: int
    out: str
    err: str
    manifest: dict[str, Any]
    records: list[dict[str, Any]]
    summary: dict[str, Any]

    @property
    def outcomes(self) -> set[tuple[str, str | None]]:
        return {(record["outcome"], record.get("error_class")) for record in self.records}

    @property
    def flags(self) -> set[str]:
        return {flag for record in self.records for flag in record.get("flags", ())}


def run(server: Server, directory: Path, *flags: str) -> Measured:
    """Measure ``server`` and return what came of it; the directory must be new."""
    done = loadgen(*arguments(server, directory, *flags), timeout=LIMIT_S)
    return measured(done, directory)


def arguments(server: Server, directory: Path, *flags: str) -> tuple[str, ...]:
    return ("run", "--url", server.url, "--out", str(directory), *flags)


def measured(done: "subprocess.CompletedProcess[str]", directory: Path) -> Measured:
    assert "Traceback" not in done.stderr, done.stderr
    assert (directory / "summary.json").exists(), done.stderr
    manifest, records = read(directory)
    summary = orjson.loads((directory / "summary.json").read_bytes())
    return Measured(
        status=done.returncode,
        out=done.stdout,
        err=done.stderr,
        manifest=manifest,
        records=records,
        summary=summary,
    )


def chunk_instants(record: dict[str, Any]) -> list[int]:
    """Return the arrival of each chunk, in ns from the run's epoch."""
    return list(accumulate(record["chunks"]["at_ns"]))
