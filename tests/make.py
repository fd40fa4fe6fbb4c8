"""Makers of records, levels and runs, in milliseconds, for the tests of analysis and reports."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from loadgen.analysis.table import RunData, tables_of
from loadgen.record import Chunks, Outcome, Phase, Record
from loadgen.run.store import record_line

MS = 1_000_000


def ns(milliseconds: float) -> int:
    return round(milliseconds * MS)


def record(
    number: int = 0, *, at: Sequence[float] = (), sent: float | None = 0.0, **facts: object
) -> Record:
    """One request whose chunks came ``at`` ms after it was sent; all else follows unless told.

    Facts ending in ``_ms`` are instants in ms from the run's epoch (``end_ms=700``).
    """
    instants = [ns((sent or 0) + moment) for moment in at]
    known: dict[str, Any] = {
        "id": number,
        "level": 0,
        "phase": Phase.MEASURE,
        "outcome": Outcome.OK,
        "due_ns": ns(sent or 0),
        "chunks": chunks(instants),
        "finish_reasons": ["stop"] if instants else [],
    }
    if sent is not None:
        known |= {"sent_ns": ns(sent), "slot_ns": ns(sent), "attempts": 1}
    if instants:
        known |= {"first_ns": instants[0], "first_output_ns": instants[0]}
        known |= {"last_ns": instants[-1], "end_ns": instants[-1]}
    for name, value in facts.items():
        if name.endswith("_ms"):
            known[name.removesuffix("_ms") + "_ns"] = ns(value)
        else:
            known[name] = value
    return Record(**known)


def chunks(instants_ns: Sequence[int], **more: object) -> Chunks:
    """Chunks at instants from the run's epoch, stored as the record has them: as gaps."""
    gaps = [now - then for then, now in pairwise([0, *instants_ns])]
    return Chunks(**{"at_ns": gaps, "kind": "c" * len(gaps), **more})


def every(step_ms: float, *, first: float, count: int) -> list[float]:
    """``count`` instants, ``step_ms`` apart."""
    return [first + step_ms * index for index in range(count)]


def level(number: int = 0, *, window: tuple[float, float] = (0, 60_000), **facts: object) -> dict:
    """A level as the manifest tells of it; ``window`` is ``measure``, in ms."""
    return {
        "level": number,
        "round": 0,
        "label": f"level {number}",
        "concurrency": None,
        "rate": None,
        "start_ns": 0,
        "measure_start_ns": ns(window[0]),
        "measure_end_ns": ns(window[1]),
        "end_ns": ns(window[1]),
        "stop_reason": "time",
        "client": {},
        **facts,
    }


def manifest(levels: Sequence[dict], **facts: object) -> dict[str, Any]:
    objectives = list(facts.pop("objectives", ()))
    return {
        "schema": 1,
        "loadgen": "0.1.0",
        "status": "complete",
        "name": "made",
        "started_at": "2026-11-30T06:20:05Z",
        "scenario": {"objectives": objectives},
        "target": {"model": "tiny"},
        "levels": list(levels),
        "warnings": [],
        **facts,
    }


def make_run(records: Iterable[Record], levels: Sequence[dict] = (), **facts: object) -> RunData:
    """A run as ``read_run`` would give it; one level of 60 s unless told."""
    made = manifest(levels or [level()], **facts)
    return tables_of(made, [record_line(one) for one in records])


def write_run(
    directory: Path, records: Iterable[Record], levels: Sequence[dict] = (), **facts: object
) -> Path:
    """A run directory on disk."""
    directory.mkdir(parents=True, exist_ok=True)
    made = manifest(levels or [level()], **facts)
    (directory / "manifest.json").write_bytes(orjson.dumps(made))
    (directory / "requests.jsonl").write_bytes(b"".join(record_line(one) for one in records))
    return directory
