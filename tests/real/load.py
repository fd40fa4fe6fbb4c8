"""``loadgen run`` against a real server, as a user types it, and what it left."""

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
    """One run: the exit status, both outputs, and the directory with its content."""

    directory: Path
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
    def server_tokens(self) -> int:
        """Return the tokens that the server should have generated: records and probes of one."""
        probes = 1 + len(self.manifest.get("prompts", {}).get("probes", ()))
        return probes + sum(int(record["reported_output"]) for record in self.records)

    @property
    def flags(self) -> set[str]:
        return {flag for record in self.records for flag in record.get("flags", ())}


def run(server: Server, directory: Path, *flags: str) -> Measured:
    """Measure ``server`` and return what came of it; the directory must be new."""
    done = loadgen(*arguments(server, directory, *flags), timeout=LIMIT_S)
    return measured(done.returncode, done.stdout, done.stderr, directory)


def arguments(server: Server, directory: Path, *flags: str) -> tuple[str, ...]:
    return ("run", "--url", server.url, "--out", str(directory), *flags)


def measured(status: int, out: str, err: str, directory: Path) -> Measured:
    """Read what a run left, whatever its exit status."""
    assert "Traceback" not in err, err
    assert (directory / "summary.json").exists(), err
    manifest, records = read(directory)
    summary = orjson.loads((directory / "summary.json").read_bytes())
    return Measured(
        directory=directory,
        status=status,
        out=out,
        err=err,
        manifest=manifest,
        records=records,
        summary=summary,
    )


def chunk_instants(record: dict[str, Any]) -> list[int]:
    """Return the arrival of each chunk, in ns from the run's epoch."""
    return list(accumulate(record["chunks"]["at_ns"]))
