"""Seeded studies in virtual time: how often a comparison is right."""

from collections import Counter
from dataclasses import replace

import pytest
from compare_make import changes, noise, side, simulated, timed

from loadgen.analysis.compare import BETTER, WORSE, Side, compare
from loadgen.simulator.engine import EngineSpec

pytestmark = pytest.mark.slow

PAIRS = 100
REQUESTS = 200
"""In each round; the steps of the server vary by 10 %."""
SERVER = EngineSpec(noise=0.1)
SLOWER = replace(
    SERVER,
    step_base_s=1.05 * SERVER.step_base_s,
    step_per_sequence_s=1.05 * SERVER.step_per_sequence_s,
    step_per_context_token_s=1.05 * SERVER.step_per_context_token_s,
)
"""The same server, but for a decode step that lasts 5 % longer."""


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
        told(baseline, side(simulated(SLOWER, seed=PAIRS + seed, requests=REQUESTS)))
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
