"""Seeded studies in virtual time: how often the estimators are right."""

from collections.abc import Callable

import numpy as np
import pytest
from virtual import as_load, open_run, poisson, queue_run

from loadgen.analysis.course import steadiness
from loadgen.analysis.distribution import distribution
from loadgen.analysis.per_request import measured
from loadgen.analysis.stats import Floats, mser5
from loadgen.analysis.summary import Steadiness
from loadgen.analysis.table import RunData
from loadgen.analysis.window import levels_of, placed, windows_of
from loadgen.simulator.engine import EngineSpec

pytestmark = pytest.mark.slow

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95}
Service = Callable[[np.random.Generator, int], Floats]


def exponential(rng: np.random.Generator, n: int) -> Floats:
    return rng.exponential(1, n)


def constant(rng: np.random.Generator, n: int) -> Floats:
    return np.ones(n)


def sojourns(n: int, *, load: float, servers: int, seed: int) -> Floats:
    """Times in the system of M/M/c in steady state, in order of arrival; service 1 on average."""
    rng, warm = np.random.default_rng(seed), 2000
    arrivals = np.cumsum(rng.exponential(1 / (load * servers), n + warm))
    free, ends = np.zeros(servers), np.empty(n + warm)
    for i, service in enumerate(rng.exponential(1, n + warm)):
        first = int(free.argmin())
        free[first] = ends[i] = max(arrivals[i], free[first]) + service
    return (ends - arrivals)[warm:]


def course(run: RunData) -> Steadiness:
    facts = placed(measured(run))
    (plan,) = levels_of(facts)
    return steadiness(plan, windows_of(plan, facts), facts)


def queue(load: float, n: int, *, servers: int, service: Service, seed: int) -> RunData:
    """An open level; below its capacity after a warm-up, above it from the start."""
    warmup = 300 if load < 1 else 0
    rng = np.random.default_rng(seed)
    due = poisson(load * servers, n + warmup, seed=seed + 10_000)
    return queue_run(due, service(rng, n + warmup), servers=servers, warmup=warmup)


@pytest.mark.parametrize("n", [100, 1000], ids=str)
def test_intervals_of_independent_draws_hold_the_truth_in_93_to_99_5_of_100(n: int) -> None:
    rng, held = np.random.default_rng(21), {name: [] for name in QUANTILES}
    for _ in range(1000):
        found = distribution(rng.exponential(size=n))
        for name, quantile in QUANTILES.items():
            one = getattr(found, name)
            if one.low is not None:
                held[name].append(one.low <= -np.log(1 - quantile) <= one.high)
    for name in QUANTILES:
        assert len(held[name]) >= 900
        assert 0.93 <= np.mean(held[name]) <= 0.995, name


@pytest.mark.parametrize("servers", [1, 4], ids=["one server", "four servers"])
def test_intervals_of_a_queues_output_hold_the_truth_in_90_of_100(servers: int) -> None:
    if servers == 1:  # the time in M/M/1 is exponential
        truth = {name: -np.log(1 - q) / 0.3 for name, q in QUANTILES.items()}
    else:
        long = sojourns(300_000, load=0.7, servers=servers, seed=99)
        truth = {name: float(np.quantile(long, q)) for name, q in QUANTILES.items()}
    held: dict[str, list[bool]] = {name: [] for name in QUANTILES}
    for seed in range(120):
        found = distribution(sojourns(5000, load=0.7, servers=servers, seed=seed))
        for name, true in truth.items():
            one = getattr(found, name)
            if one.low is not None:
                held[name].append(one.low <= true <= one.high)
    assert all(len(found) >= 100 for found in held.values())
    assert all(np.mean(found) >= 0.90 for found in held.values()), held


@pytest.mark.parametrize("n", [700, 2000], ids=str)
def test_mser5_finds_a_step_of_one_sigma_and_leaves_a_flat_series(n: int) -> None:
    rng, found, lost = np.random.default_rng(31), [], []
    for _ in range(300):
        flat = rng.normal(size=n)
        lost.append(mser5(flat).cut > 0.1 * n)
        flat[:300] += 1
        found.append(abs(mser5(flat).cut - 300) <= 30)
    assert np.mean(found) >= 0.90
    assert np.mean(lost) <= 0.06


@pytest.mark.parametrize(
    ("load", "n", "servers", "service"),
    [(1.6, 300, 1, constant), (1.6, 300, 8, exponential), (1.2, 1000, 1, exponential),
     (1.2, 1000, 8, constant)],
    ids=["G01", "far above", "20 % above, random", "20 % above, even"],
)  # fmt: skip
def test_a_growing_queue_is_called_saturated_in_95_of_100(
    load: float, n: int, servers: int, service: Service
) -> None:
    found = [
        course(queue(load, n, servers=servers, service=service, seed=seed)).verdict
        for seed in range(60)
    ]
    assert np.mean([verdict == "saturated" for verdict in found]) >= 0.95


@pytest.mark.parametrize(
    ("load", "n", "servers", "service"),
    [(0.7, 300, 1, exponential), (0.7, 1000, 8, constant), (0.9, 1000, 1, exponential)],
    ids=["70 %, short", "70 %, long", "90 %"],
)
def test_a_steady_queue_is_called_saturated_in_at_most_5_of_100(
    load: float, n: int, servers: int, service: Service
) -> None:
    found = [
        course(queue(load, n, servers=servers, service=service, seed=seed)).verdict
        for seed in range(60)
    ]
    assert np.mean([verdict == "saturated" for verdict in found]) <= 0.05


@pytest.mark.parametrize(
    ("output", "lasts_s"),
    [(200, 30), (500, 30), (800, 30), (800, 60), (1000, 120)],
    ids=["E2E 5 s of 30", "14 s of 30", "25 s of 30", "28 s of 60", "44 s of 120"],
)
def test_a_level_that_fills_up_is_called_saturated_in_at_most_5_of_100(
    output: int, lasts_s: int
) -> None:
    """4 requests/s, a server with places for all of them, whose steps grow with the batch."""
    spec = EngineSpec(max_running=256, kv_tokens=10**7, step_tokens=2048, noise=0.05,
                      step_base_s=0.02, step_per_sequence_s=1e-4)  # fmt: skip
    found = []
    for seed in range(20):
        due = poisson(4, 6 * lasts_s, seed=seed)
        due = due[due < lasts_s + 0.5]
        run = open_run(spec, due_s=due, warmup=2, seed=seed, rate=4.0, output=output)
        found.append(course(run).verdict)
    assert np.mean([verdict == "saturated" for verdict in found]) <= 0.05


def arrivals(at_least: float, at_most: float, *, lasts_s: float, seed: int) -> Floats:
    """Poisson arrivals whose rate rises evenly from one to the other."""
    rng = np.random.default_rng(seed)
    due = np.cumsum(rng.exponential(1 / at_most, int(2 * at_most * lasts_s)))
    due = due[due < lasts_s]
    rates = at_least + (at_most - at_least) * due / lasts_s
    return due[rng.random(len(due)) < rates / at_most]


LOG: dict[str, object] = {"speed": 2.0}
RAMP: dict[str, object] = {"segments": [{"from": "2/s", "to": "12/s", "for": "2m"}]}


@pytest.mark.parametrize("load", [1.3, 1.6, 2.0], ids=str)
def test_a_log_above_capacity_is_called_saturated_in_95_of_100(load: float) -> None:
    runs = (queue(load, 800, servers=8, service=exponential, seed=seed) for seed in range(40))
    found = [course(as_load(run, **LOG)).verdict for run in runs]
    assert np.mean([verdict == "saturated" for verdict in found]) >= 0.95


@pytest.mark.parametrize(
    ("at_most", "saturated"), [(12.0, True), (4.0, False)], ids=["past 5/s", "up to 4 of 5/s"]
)
def test_a_ramp_is_saturated_only_where_it_passes_the_capacity(
    at_most: float, saturated: bool
) -> None:
    found = []
    for seed in range(40):
        due = arrivals(1, at_most, lasts_s=120, seed=seed)
        service = np.random.default_rng(seed).exponential(1, len(due))
        found.append(course(as_load(queue_run(due, service, servers=5), **RAMP)).verdict)
    share = np.mean([verdict == "saturated" for verdict in found])
    assert share >= 0.95 if saturated else share <= 0.05


def test_a_slow_rise_of_ttft_is_drift_and_not_saturation() -> None:
    """Service slows by 20 % while the server stays under 70 % busy; its noise is 5 %."""
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        slower = np.linspace(1, 1.2, 600) * rng.lognormal(0, 0.05, 600)
        found.append(course(queue_run(np.arange(600) / 0.5, slower)))
    assert np.mean([one.verdict == "drift" for one in found]) >= 0.95
    assert all(one.verdict != "saturated" for one in found)
    assert np.mean([one.ttft_change for one in found]) == pytest.approx(0.2, abs=0.02)
