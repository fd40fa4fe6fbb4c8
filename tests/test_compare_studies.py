"""Seeded studies in virtual time: how often a comparison is right."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from compare_make import changes, noise, side, simulated, simulated_open, timed
from virtual import poisson, queue_run

from loadgen.analysis.compare import BETTER, WORSE, Side, compare
from loadgen.simulator.engine import EngineSpec

pytestmark = pytest.mark.slow

PAIRS = 100
REQUESTS = 200
"""In each round; the steps of the server vary by 10 %."""
SERVER = EngineSpec(noise=0.1)


def slower(share: float) -> EngineSpec:
    """The same server, but for a decode step that lasts longer by this share."""
    return replace(
        SERVER,
        step_base_s=(1 + share) * SERVER.step_base_s,
        step_per_sequence_s=(1 + share) * SERVER.step_per_sequence_s,
        step_per_context_token_s=(1 + share) * SERVER.step_per_context_token_s,
    )


@pytest.fixture(scope="module")
def baselines() -> list[Side]:
    """Runs of three rounds, each round with a seed of its own."""
    return [side(simulated(SERVER, seed=seed, requests=REQUESTS)) for seed in range(PAIRS)]


def told(baseline: Side, candidate: Side) -> dict[str, str]:
    found = compare(baseline, [candidate])
    return {word: change.verdict for word, change in changes(found).items()}


def test_two_runs_of_one_server_are_called_different_in_at_most_7_of_100(
    baselines: list[Side],
) -> None:
    different: Counter[str] = Counter()
    for index, baseline in enumerate(baselines):
        verdicts = told(baseline, baselines[index - 1])
        different.update(word for word, one in verdicts.items() if one in (BETTER, WORSE))
    assert max(different.values(), default=0) <= 7, different


def test_a_decode_step_5_per_cent_longer_is_found_in_95_of_100(baselines: list[Side]) -> None:
    verdicts = [
        told(baseline, side(simulated(slower(0.05), seed=PAIRS + seed, requests=REQUESTS)))
        for seed, baseline in enumerate(baselines)
    ]
    found = Counter(one["TPOT p50"] for one in verdicts)
    assert found[WORSE] >= 95, found
    assert sum(one["errors"] in (BETTER, WORSE) for one in verdicts) == 0


def test_single_runs_of_one_server_are_called_different_in_at_most_7_of_100() -> None:
    different: Counter[str] = Counter()
    for seed in range(50):
        pair = [side(timed(noise(120, seed=2 * seed + i, spread=20))) for i in (0, 1)]
        different.update(word for word, one in told(*pair).items() if one in (BETTER, WORSE))
    assert max(different.values(), default=0) <= 0.07 * 50, different


@pytest.mark.parametrize(("slots", "requests"), [(8, 120), (8, 300), (32, 300)])
def test_single_closed_runs_of_one_server_are_seldom_called_different(
    slots: int, requests: int
) -> None:
    """Of 120 requests at 8 slots the bootstrap alone told TTFT p95 apart in 33 of 100 pairs."""
    different, pairs = Counter[str](), 40
    for pair in range(pairs):
        sides = [
            side(simulated(SERVER, seed=2 * pair + i, rounds=1, slots=slots, requests=requests))
            for i in (0, 1)
        ]
        different.update(word for word, one in told(*sides).items() if one in (BETTER, WORSE))
    assert max(different.values(), default=0) <= 0.1 * pairs, different


@pytest.mark.parametrize(("slots", "requests"), [(8, 120), (16, 300)])
def test_requests_per_s_of_closed_runs_in_waves_are_told_apart(slots: int, requests: int) -> None:
    """A decode step 30 % longer; by where the ends of waves fell it was found in 20 of 100."""
    runs = [(SERVER, 2 * pair) for pair in range(10)] + [(slower(0.3), 100 + n) for n in range(10)]
    sides = [
        side(simulated(spec, seed=seed, rounds=1, slots=slots, requests=requests))
        for spec, seed in runs
    ]
    found = [told(one, other)["requests"] for one, other in zip(sides, sides[10:], strict=False)]
    alike = [told(one, other)["requests"] for one, other in pairwise(sides[:10])]
    assert found.count(WORSE) == 10
    assert not {BETTER, WORSE} & set(alike)


OPEN_PAIRS = 30
BUSY, BUSIER, AT_CAPACITY = 25.0, 32.0, 40.0
"""Requests/s of the open levels: TTFT p95 is 1.5 and 4 times TTFT p50; then queues may grow."""


def one_seed(spec: EngineSpec, *, pair: int, run: int) -> Side:
    return side(simulated_open(spec, seed=2 * pair + run, arrivals=pair, rate=BUSIER))


def three_rounds(spec: EngineSpec, *, pair: int, run: int) -> Side:
    made = 2 * pair + run
    return side(simulated_open(spec, seed=made, arrivals=made, rate=BUSY, rounds=3))


@pytest.mark.parametrize(
    ("measured", "shown_by"),
    [(one_seed, ("TPOT p50", "ITL p95")), (three_rounds, ("TPOT p50", "E2E p50"))],
    ids=["one seed", "three rounds"],
)
def test_open_runs_are_told_apart_where_their_servers_are(
    measured: Callable[..., Side], shown_by: tuple[str, ...]
) -> None:
    """Of one server at most 7 % are called different; of one 20 % slower 90 % are found."""
    different, found = Counter[str](), Counter[str]()
    for pair in range(OPEN_PAIRS):
        baseline = measured(SERVER, pair=pair, run=0)
        like = told(baseline, measured(SERVER, pair=pair, run=1))
        slow = told(baseline, measured(slower(0.2), pair=pair, run=1))
        different.update(word for word, one in like.items() if one in (BETTER, WORSE))
        found.update(word for word, one in slow.items() if one == WORSE)
        assert BETTER not in slow.values()
    assert max(different.values(), default=0) <= 0.07 * OPEN_PAIRS, different
    assert min(found[word] for word in shown_by) >= 0.9 * OPEN_PAIRS, found


@pytest.mark.parametrize("rate", [BUSY, BUSIER, AT_CAPACITY])
def test_single_open_runs_with_other_arrivals_are_not_called_different(rate: float) -> None:
    different: Counter[str] = Counter()
    for pair in range(15):
        seeds = (2 * pair, 2 * pair + 1)
        sides = [side(simulated_open(SERVER, seed=s, arrivals=s, rate=rate)) for s in seeds]
        different.update(word for word, one in told(*sides).items() if one in (BETTER, WORSE))
    assert max(different.values(), default=0) <= 0.07 * 15, different


def queued(load: float, *, n: int, servers: int, pair: int, run: int) -> Side:
    """A single run before equal servers, whose service times are exponential."""
    due = poisson(load * servers, n + 300, seed=10_000 + pair)
    service = np.random.default_rng(2 * pair + run).exponential(size=n + 300)
    made = queue_run(due, service, servers=servers, warmup=300)
    scenario = {"prompts": {"source": "synthetic"}, "seed": pair, "levels": [{"rate": 1.0}]}
    scenario = {**made.manifest["scenario"], **scenario}
    return side(replace(made, manifest={**made.manifest, "scenario": scenario}))


@pytest.mark.parametrize(
    ("load", "n", "servers", "most"),
    [(0.5, 300, 8, 0.07), (0.7, 1000, 1, 0.12), (0.7, 3000, 8, 0.12), (0.85, 1000, 1, 0.15)],
)
def test_one_seed_before_a_queue_that_remembers_is_seldom_called_different(
    load: float, n: int, servers: int, most: float
) -> None:
    """Service times are drawn anew in each run. The busier, the fewer spells there are to judge by:
    by batches of requests 47 of 100 pairs were told apart at 85 %."""
    different, pairs = Counter[str](), 50
    for pair in range(pairs):
        sides = [queued(load, n=n, servers=servers, pair=pair, run=run) for run in (0, 1)]
        different.update(word for word, one in told(*sides).items() if one in (BETTER, WORSE))
    assert max(different.values(), default=0) <= most * pairs, different
