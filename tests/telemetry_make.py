"""Makers of readings, in seconds, for the tests of the server's own view."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from loadgen.analysis.readings import readings_of
from loadgen.analysis.table import RunData
from loadgen.analysis.tracks import Span, Track

S = 1_000_000_000

Line = dict[str, Any]


def reading(at_s: float, name: str, value: float, **labels: str) -> Line:
    """One reading of the server's page."""
    return {
        "at_ns": round(at_s * S), "source": "server", "name": name, "labels": labels,
        "value": float(value),
    }  # fmt: skip


def series(name: str, values: Mapping[float, float], **labels: str) -> Iterator[Line]:
    """Readings of one series at instants in seconds."""
    for at_s, value in values.items():
        yield reading(at_s, name, value, **labels)


def gpu(name: str, values: Mapping[float, float], *, number: int = 0) -> Iterator[Line]:
    """Readings of one GPU."""
    for line in series(name, values, gpu=str(number)):
        yield {**line, "source": "gpu"}


def histogram(
    name: str, at_s: float, observed: Sequence[float], *, bounds: Sequence[float], **labels: str
) -> Iterator[Line]:
    """What a page says of a histogram (seconds) that has observed so much by an instant."""
    for bound in (*bounds, float("inf")):
        le = "+Inf" if bound == float("inf") else str(bound)
        within = sum(value <= bound for value in observed)
        yield reading(at_s, f"{name}_bucket", within, le=le, **labels)
    yield reading(at_s, f"{name}_sum", sum(observed), **labels)
    yield reading(at_s, f"{name}_count", len(observed), **labels)


def lines_of(*parts: Any) -> list[bytes]:
    """Readings as lines of samples.jsonl."""
    return [orjson.dumps(line) + b"\n" for part in parts for line in part]


def with_readings(run: RunData, *parts: Any) -> RunData:
    """A run with such a samples.jsonl, in order of time."""
    return replace(run, samples=readings_of(lines_of(*parts))[0])


def span(start_s: float, end_s: float) -> Span:
    return Span(start_ns=start_s * S, end_ns=end_s * S)


def track(values: Mapping[float, float], labels: str = "") -> Track:
    """A track whose instants are in seconds."""
    import numpy as np

    return Track(
        labels=labels,
        at_ns=np.array(list(values), dtype=float) * S,
        values=np.array(list(values.values()), dtype=float),
    )
