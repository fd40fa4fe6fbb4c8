"""Makers for the tests of comparisons: runs in virtual time, and runs of given times."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from make import level, make_run, record
from virtual import closed_run, open_run, poisson

from loadgen.analysis.compare import Change, Comparison, Side, compare
from loadgen.analysis.table import RunData
from loadgen.simulator.engine import EngineSpec

_INSTANTS = ("due_ns", "slot_ns", "sent_ns", "first_ns", "first_output_ns", "last_ns", "end_ns")
_ENDS = ("start_ns", "measure_start_ns", "measure_end_ns", "end_ns")
_APART_NS, _APART = 10**13, 10**6
_WARM = 60


def simulated(
    spec: EngineSpec, *, seed: int, rounds: int = 3, slots: int = 8, requests: int = 120
) -> RunData:
    """A closed level in virtual time, each round with a seed of its own."""
    return _joined(
        [
            closed_run(
                spec, slots=slots, requests=requests, warmup=slots, seed=1000 * seed + number
            )
            for number in range(rounds)
        ]
    )


def simulated_open(
    spec: EngineSpec, *, seed: int, arrivals: int, rate: float, rounds: int = 1, requests: int = 300
) -> RunData:
    """An open level in virtual time: the server's noise has one seed, the scenario another."""
    run = _joined(
        [
            open_run(
                spec,
                due_s=poisson(rate, _WARM + requests, seed=1000 * arrivals + number),
                warmup=_WARM,
                seed=1000 * seed + number,
                rate=rate,
            )
            for number in range(rounds)
        ]
    )
    scenario = {"prompts": {"source": "synthetic"}, "seed": arrivals, "levels": [{"rate": rate}]}
    scenario = {**run.manifest["scenario"], **scenario}
    return replace(run, manifest={**run.manifest, "scenario": scenario})


def _joined(rounds: Sequence[RunData]) -> RunData:
    """One run of several rounds."""
    parts = [_moved(one, number) for number, one in enumerate(rounds)]
    entries = [part.manifest["levels"][0] for part in parts]
    return RunData(
        manifest={**parts[0].manifest, "levels": entries},
        requests=pd.concat([part.requests for part in parts], ignore_index=True),
        chunks=pd.concat([part.chunks for part in parts], ignore_index=True),
        reads=parts[0].reads,
    )


def _moved(run: RunData, number: int) -> RunData:
    """The same run as a later round: other ids, and later."""
    by = number * _APART_NS
    requests = run.requests.assign(round=number, id=run.requests["id"] + number * _APART)
    requests = requests.assign(**{name: requests[name] + by for name in _INSTANTS})
    chunks = run.chunks.assign(
        request=run.chunks["request"] + number * _APART, at_ns=run.chunks["at_ns"] + by
    )
    entry = dict(run.manifest["levels"][0], round=number)
    entry |= {name: entry[name] + by for name in _ENDS}
    return replace(
        run, manifest={**run.manifest, "levels": [entry]}, requests=requests, chunks=chunks
    )


def timed(
    ttft_ms: Sequence[float], *, gap_ms: float = 10.0, name: str = "made", **facts: object
) -> RunData:
    """One level of one slot: each request has this TTFT and then three more tokens."""
    records, now = [], 0.0
    for number, first in enumerate(ttft_ms):
        at = [first + gap_ms * token for token in range(4)]
        records.append(record(number, sent=now, at=at, reported_output=4))
        now += at[-1]
    made = level(window=(0, now), concurrency=1, label="concurrency 1", arrivals=len(records))
    return make_run(records, [made], name=name, **facts)


def side(run: RunData, name: str = "a") -> Side:
    return Side(name, run)


def compared(baseline: RunData, *candidates: RunData, **options: object) -> Comparison:
    sides = [Side(f"candidate {i}", run) for i, run in enumerate(candidates, start=1)]
    return compare(Side("baseline", baseline), sides, **options)


def changes(found: Comparison, *, candidate: int = 0) -> dict[str, Change]:
    """Of the first level, by the metric's word."""
    return {row.word: row.changes[candidate] for row in found.levels[0].rows}


def noise(n: int, *, seed: int, mean: float = 100.0, spread: float = 5.0) -> list[float]:
    return np.random.default_rng(seed).normal(mean, spread, n).tolist()
