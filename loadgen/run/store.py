"""The run directory: made once, never overwritten, valid at every moment.

``requests.jsonl`` grows by one line as each request ends; ``manifest.json`` is replaced whole. What
is on disk after a crash is a run whose last line may be cut. Several workers append to the one
file: each writes whole lines in one call, which the system puts one after another.
"""

import dataclasses
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from loadgen.errors import UsageError
from loadgen.record import Chunks, Record

_FIELDS = tuple(
    (field.name, field.name.rstrip("_"))
    for field in dataclasses.fields(Record)
    if field.name != "chunks"
)
_BUFFER_BYTES = 1 << 18
_CHUNK_FIELDS = tuple(field.name for field in dataclasses.fields(Chunks))


class RunStore:
    """Writes one run directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / "requests.jsonl"
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lines: list[bytes] = []
        self._bytes = 0

    def append(self, record: Record) -> None:
        """Add one record; it reaches the file with the next ``flush``, or when many wait."""
        line = record_line(record)
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes > _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand what was appended to the operating system."""
        data = memoryview(b"".join(self._lines))
        self._lines, self._bytes = [], 0
        while data:
            data = data[os.write(self._file, data) :]

    def rows_of(self, *, level: int, round_: int) -> list[dict[str, Any]]:
        """Return the records that are on disk for a level; a line that was cut is left out."""
        rows = (_row_of(line) for line in self._path.read_bytes().splitlines())
        return [row for row in rows if (row.get("level"), row.get("round")) == (level, round_)]

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Replace the manifest, whole or not at all."""
        path = self.directory / "manifest.json"
        fresh = path.with_suffix(".json.new")
        fresh.write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2) + b"\n")
        fresh.replace(path)

    def close(self) -> None:
        """Write what waits and close the file of requests; closing twice does nothing."""
        if self._file < 0:
            return
        self.flush()
        os.close(self._file)
        self._file = -1


def _row_of(line: bytes) -> dict[str, Any]:
    try:
        row: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return row


def record_line(record: Record) -> bytes:
    """Return a record as one line of JSON; what did not happen is left out."""
    row: dict[str, Any] = {}
    for name, key in _FIELDS:
        value = getattr(record, name)
        if value is not None and value != []:
            row[key] = value
    if record.chunks.at_ns:
        chunks = ((name, getattr(record.chunks, name)) for name in _CHUNK_FIELDS)
        row["chunks"] = {name: value for name, value in chunks if value is not None}
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def make_directory(out: Path | None, *, name: str, started: datetime) -> Path:
    """Create the directory of a new run; ``out`` must be new or empty.

    Raises UsageError where it cannot be had.
    """
    if out is None:
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
        base = Path("runs") / f"{started:%Y-%m-%dT%H-%M-%S}-{slug}"
        return _first_free(base)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UsageError(
                f"--out {out}: is not empty, and a run never overwrites another; name a new one"
            )
    except OSError as error:
        text = f"--out {out}: {error.strerror}; name a directory that can be made"
        raise UsageError(text) from error
    return out


def _first_free(base: Path) -> Path:
    for number in range(1, 1000):
        path = base if number == 1 else base.with_name(f"{base.name}-{number}")
        try:
            path.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; use --out DIR") from error
        return path
    raise UsageError(f"{base}: a thousand runs of this name began in one second; use --out DIR")
