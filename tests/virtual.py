"""Whole runs in virtual time: the simulator's engine under a closed or an open load, no clock."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from make import make_run

from loadgen.analysis.table import RunData
from loadgen.record import Chunks, Outcome, Phase, Record
from loadgen.simulator.engine import Engine, EngineSpec, Sequence
from loadgen.units import NS_PER_S

PROMPT, OUTPUT = 64, 32


@dataclass
class _Course:
    """What becomes of one sequence."""

    due_ns: int
    tokens_ns: list[int] = field(default_factory=list)


def closed_run(
    spec: EngineSpec, *, slots: int, requests: int, warmup: int = 0, seed: int = 0, **facts: object
) -> RunData:
    """Keep ``slots`` requests in flight until all have been sent; they are then drained."""
    engine, courses = Engine(spec, seed=seed), list[_Course]()
    for _ in range(min(slots, warmup + requests)):
        _submit(engine, courses, 0)
    while (at_ns := engine.next_event_ns()) is not None:
        step = engine.step(at_ns)
        assert step is not None
        for emission in step.emissions:
            courses[emission.key].tokens_ns.append(step.end_ns)
            if emission.last and len(courses) < warmup + requests:
                _submit(engine, courses, step.end_ns)
    return _run(courses, warmup, concurrency=slots, **facts)


def open_run(
    spec: EngineSpec,
    *,
    due_s: Iterable[float],
    warmup: int = 0,
    seed: int = 0,
    rate: float = 1.0,
    output: int = OUTPUT,
) -> RunData:
    """Send at the moments given, whatever the engine does."""
    engine, courses = Engine(spec, seed=seed), list[_Course]()
    for due in due_s:
        due_ns = round(due * NS_PER_S)
        _run_until(engine, courses, due_ns)
        _submit(engine, courses, due_ns, output=output)
    _run_until(engine, courses, None)
    return _run(courses, warmup, rate=rate)


def poisson(rate: float, n: int, *, seed: int) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


def queue_run(
    arrivals_s: np.ndarray, service_s: np.ndarray, *, servers: int = 1, warmup: int = 0
) -> RunData:
    """First come, first served before equal servers; TTFT is the wait and a tenth of the service.

    The schedule's rate stands in the manifest; each request gives two tokens.
    """
    free = np.zeros(servers)
    courses = []
    for due, service in zip(arrivals_s, service_s, strict=True):
        server = int(free.argmin())
        start = max(due, free[server])
        free[server] = start + service
        tokens = [round((start + service / 10) * NS_PER_S), round(free[server] * NS_PER_S)]
        courses.append(_Course(round(due * NS_PER_S), tokens))
    return _run(courses, warmup, rate=len(arrivals_s) / float(arrivals_s[-1]))


def as_load(run: RunData, **asked: object) -> RunData:
    """The same facts of a level whose arrivals were asked for otherwise: segments, or a log."""
    entry = {**run.manifest["levels"][0], "rate": None}
    scenario = {**run.manifest["scenario"], "levels": [asked]}
    return replace(run, manifest={**run.manifest, "levels": [entry], "scenario": scenario})


def scenario_of(run: RunData, **each_level: object) -> RunData:
    """The same facts under a scenario with these keys of ``each_level``."""
    scenario = {**run.manifest["scenario"], "each_level": each_level}
    return replace(run, manifest={**run.manifest, "scenario": scenario})


def _submit(engine: Engine, courses: list[_Course], now_ns: int, *, output: int = OUTPUT) -> None:
    one = Sequence(key=len(courses), prompt_tokens=PROMPT, output_tokens=output)
    courses.append(_Course(now_ns))
    engine.submit(one, now_ns=now_ns)


def _run_until(engine: Engine, courses: list[_Course], until_ns: int | None) -> None:
    while (at_ns := engine.next_event_ns()) is not None and (until_ns is None or at_ns <= until_ns):
        step = engine.step(at_ns)
        assert step is not None
        for emission in step.emissions:
            courses[emission.key].tokens_ns.append(step.end_ns)


def _run(courses: list[_Course], warmup: int, **facts: object) -> RunData:
    records = [_record(i, one, warm=i < warmup) for i, one in enumerate(courses)]
    measured = [one.due_ns for one in courses[warmup:]]
    entry = {
        "level": 0,
        "round": 0,
        "label": "made",
        "start_ns": 0,
        "measure_start_ns": measured[0] if warmup else 0,
        "measure_end_ns": measured[-1],
        "end_ns": max(one.tokens_ns[-1] for one in courses),
        "stop_reason": "count",
        "arrivals": len(courses),
        **facts,
    }
    return make_run(records, [entry])


def _record(number: int, one: _Course, *, warm: bool) -> Record:
    at = one.tokens_ns
    gaps = [at[0], *np.diff(at).tolist()]
    return Record(
        id=number,
        level=0,
        phase=Phase.WARMUP if warm else Phase.MEASURE,
        outcome=Outcome.OK,
        due_ns=one.due_ns,
        slot_ns=one.due_ns,
        sent_ns=one.due_ns,
        first_ns=at[0],
        first_output_ns=at[0],
        last_ns=at[-1],
        end_ns=at[-1],
        finish_reasons=["length"],
        asked_output=len(at),
        reported_output=len(at),
        token_source="reported",
        chunks=Chunks(at_ns=gaps, kind="c" * len(at)),
    )
