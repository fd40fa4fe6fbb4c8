"""Seeded studies in virtual time: how often the intervals of gaps and of p99 hold the truth."""

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from test_studies import sojourns
from virtual import closed_run, open_run, poisson

from loadgen.analysis.distribution import distribution
from loadgen.analysis.metrics import summarise
from loadgen.analysis.per_request import legal_gaps, measured
from loadgen.analysis.summary import Distribution, LevelSummary, Quantile
from loadgen.analysis.table import RunData, select
from loadgen.analysis.window import placed
from loadgen.simulator.engine import EngineSpec

pytestmark = pytest.mark.slow

SERVER = EngineSpec(noise=0.1, max_running=64)
"""Its steps vary by 10 %, each of them for every stream of the batch at once."""
RUNS, QUEUES = 60, 60
GAPS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def closed(slots: int, seed: int) -> RunData:
    """200 or 300 requests; the last wave is as full as the others: each run ends alike."""
    requests = 320 if slots == 32 else 304 if slots == 16 else 208
    return closed_run(SERVER, slots=slots, requests=requests, warmup=slots, seed=seed)


def opened(seed: int) -> RunData:
    """400 requests, about 14 of them in flight, more at times."""
    due = poisson(30, 500, seed=seed)
    spec = replace(SERVER, max_running=32)
    return open_run(spec, due_s=due, warmup=100, seed=seed, rate=30.0)


def level_of(run: RunData, *objectives: str) -> LevelSummary:
    scenario = {**run.manifest["scenario"], "objectives": list(objectives)}
    (found,) = summarise(replace(run, manifest={**run.manifest, "scenario": scenario})).levels
    return found


def pooled(runs: list[RunData]) -> dict[str, float]:
    """The percentiles of the gaps of all runs: of one of them as good as the truth."""
    every = []
    for run in runs:
        facts = placed(measured(run))
        gaps = legal_gaps(select(facts, facts.requests["in_window"].to_numpy()))
        every.append(gaps["gap_ns"].to_numpy() / 1e6)
    return {name: float(np.quantile(np.concatenate(every), q)) for name, q in GAPS.items()}


def shown(levels: list[LevelSummary], name: str) -> list[Quantile]:
    """The percentiles of gaps that have an interval."""
    found = [getattr(level.itl, name) for level in levels]
    return [one for one in found if one.low is not None]


def share_held(found: list[Quantile], true: float) -> float:
    return float(np.mean([one.low <= true <= one.high for one in found]))


@pytest.mark.parametrize("slots", [1, 16, 32], ids=lambda n: f"{n} in flight")
def test_intervals_of_gaps_hold_the_truth_in_90_of_100_however_many_share_a_step(
    slots: int,
) -> None:
    """And an objective at the truth is called met or missed in at most 10, one 5 % off in 90."""
    runs = [closed(slots, seed) for seed in range(RUNS)]
    true = pooled(runs)
    bounds = [
        f"p95 <= {true['p95']}",
        f"p50 <= {0.95 * true['p50']}",
        f"p50 <= {1.05 * true['p50']}",
    ]
    levels = [level_of(run, *(f"itl {bound}ms" for bound in bounds)) for run in runs]
    for name in ("p50", "p90", "p95"):
        found = shown(levels, name)
        assert len(found) >= 0.9 * RUNS, name
        assert share_held(found, true[name]) >= 0.90, name
    found = shown(levels, "p99")
    # Of 32 at once the steps are too few for an interval of p99 in most runs of this length.
    assert len(found) >= 0.9 * RUNS or slots == 32
    false = sum(not one.low <= true["p99"] <= one.high for one in found)
    assert false <= 0.10 * max(len(found), RUNS / 2)
    at, below, above = (
        Counter(level.objectives[index].verdict for level in levels) for index in range(3)
    )
    assert at["met"] + at["missed"] <= 0.10 * RUNS, at
    assert min(below["missed"], above["met"]) >= 0.90 * RUNS, (below, above)


def test_intervals_of_gaps_hold_the_truth_where_the_batch_comes_and_goes() -> None:
    """An open level: the batch, and with it each step, is larger for seconds on end."""
    runs = [opened(seed) for seed in range(RUNS)]
    true, levels = pooled(runs), [level_of(run) for run in runs]
    for name in ("p50", "p90", "p95"):
        found = shown(levels, name)
        assert len(found) >= 0.9 * RUNS, name
        assert share_held(found, true[name]) >= 0.85, name


@pytest.mark.parametrize("n", [400, 1000], ids=str)
def test_p99_of_independent_draws_is_held_in_93_to_99_5_of_100(n: int) -> None:
    rng, held = np.random.default_rng(22), []
    for _ in range(1500):
        one = distribution(rng.exponential(size=n)).p99
        held += [one] if one.low is not None else []
    assert len(held) >= 0.8 * 1500
    assert 0.93 <= share_held(held, -np.log(0.01)) <= 0.995


@pytest.mark.parametrize(
    ("servers", "n"), [(1, 20_000), (4, 10_000)], ids=["one server", "four servers"]
)
def test_p99_of_a_queues_output_is_held_in_90_of_100(servers: int, n: int) -> None:
    found = [one.p99 for one in queues(servers, n) if one.p99.low is not None]
    assert len(found) >= 0.8 * QUEUES
    assert share_held(found, p99_of_queue(servers)) >= 0.90


@pytest.mark.parametrize(
    ("servers", "most_shown"), [(1, 0.1), (4, 0.6)], ids=["one server", "four servers"]
)
def test_p99_of_5_000_of_a_queues_output_is_held_or_not_shown(
    servers: int, most_shown: float
) -> None:
    """They are worth about 200 of one server and 430 of four, and p99 takes 368 worth its name."""
    true = p99_of_queue(servers)
    found = [one.p99 for one in queues(servers, 5000) if one.p99.low is not None]
    assert len(found) <= most_shown * QUEUES
    assert sum(not one.low <= true <= one.high for one in found) <= 0.05 * QUEUES


def queues(servers: int, n: int) -> list[Distribution]:
    return [
        distribution(sojourns(n, load=0.7, servers=servers, seed=seed)) for seed in range(QUEUES)
    ]


@cache
def p99_of_queue(servers: int) -> float:
    if servers == 1:  # the time in M/M/1 is exponential
        return float(-np.log(0.01) / 0.3)
    return float(np.quantile(sojourns(1_000_000, load=0.7, servers=servers, seed=99), 0.99))
