"""Makers of datasets for tests: files of rows in every dress."""

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

from loadgen.scenario.prompts import Prompts
from loadgen.workload.dataset import DatasetPrompts, Use

Row = dict[str, Any]


def written(directory: Path, data: str | bytes, name: str = "rows.jsonl") -> Path:
    """Write a file and return its path."""
    path = directory / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def as_lines(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_list(rows: list[Row]) -> bytes:
    return json.dumps(rows, ensure_ascii=False, indent=1).encode()


def as_csv(rows: list[Row]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


DRESSES = {"jsonl": as_lines, "json": as_list, "csv": as_csv}


def in_members(rows: list[Row]) -> bytes:
    """Pack each row as a gzip member of its own."""
    return b"".join(gzip.compress(as_lines([row])) for row in rows)


def dataset(
    path: Path,
    *,
    endpoint: str = "chat",
    use: dict[str, Any] | None = None,
    **keys: object,
) -> DatasetPrompts:
    """Read a file as the prompts of a run."""
    prompts = Prompts.model_validate({"source": "dataset", "file": path.name, **keys})
    return DatasetPrompts(prompts, path, Use(**{"seed": 7, "endpoint": endpoint, **(use or {})}))


def contents(made: DatasetPrompts, number: int, *, level: int = 0) -> list[str]:
    """Return what the first requests of a level say."""
    prompts = [made.prompt(level=level, round_=0, number=n) for n in range(number)]
    return [p.text if p.messages is None else p.messages[0]["content"] for p in prompts]
