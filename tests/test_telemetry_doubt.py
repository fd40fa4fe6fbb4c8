"""Figures of the server or its GPUs that are not what they seem: left out, and said to be."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from make import level, make_run, record
from report_make import level as summed
from telemetry_make import gpu, histogram, series, track, with_readings

from loadgen.analysis.bottleneck import queue_bound
from loadgen.analysis.metrics import summarise
from loadgen.analysis.remarks import remarks
from loadgen.analysis.server_side import GpuFigures, ServerFigures
from loadgen.analysis.summary import LevelSummary, Summary
from loadgen.analysis.telemetry import SEVERAL
from loadgen.analysis.tracks import take_turns

TOKENS = "vllm:generation_tokens_total"
W = level(window=(5_000, 25_000), start_ns=0, end_ns=30_000_000_000)
"""Thirty seconds, of which twenty are measured."""


def of(*parts: Any, **manifest: Any) -> Summary:
    """The summary of a level that gave a token in each 10 ms of its window."""
    at_ms = [5_000.0 + 10 * n for n in range(1, 2_001)]
    made = record(at=at_ms, due_ms=5_000, reported_output=len(at_ms))
    return summarise(with_readings(make_run([made], [W], **manifest), *parts))


# --- several servers behind one address


def in_turn(*paces: int, pick: str) -> dict[float, float]:
    """A counter read each second of whichever server was picked; each counts at its own pace."""
    return {at_s: paces[int(who)] * at_s for at_s, who in enumerate(pick)}


@pytest.mark.parametrize(
    ("values", "several"),
    [
        pytest.param(in_turn(10, 4, pick="0101010101"), True, id="in turn"),
        pytest.param(in_turn(10, 4, pick="0011010010110"), True, id="by chance"),
        pytest.param({0: 700, 1: 720, 2: 740, 3: 500, 4: 520, 5: 540}, True, id="another for good"),
        pytest.param(in_turn(10, 4, 7, pick="012012012012"), True, id="three"),
        pytest.param(in_turn(10, 0, pick="00100000100"), True, id="one of them idle"),
        pytest.param(in_turn(10, pick="0" * 20), False, id="one server"),
        pytest.param({0: 900, 1: 950, 2: 20, 3: 60, 4: 100}, False, id="restarted"),
        pytest.param({0: 60, 1: 90, 2: 120, 30: 0, 31: 80, 32: 120, 33: 150, 70: 0, 71: 90,
                      72: 130}, False, id="restarted twice, and busy at once"),
        pytest.param({0: 60, 1: 90, 2: 120, 30: 200, 31: 300, 32: 80, 33: 180}, False,
                     id="restarted, and busier than before"),
        pytest.param({0: 1}, False, id="one reading"),
    ],
)  # fmt: skip
def test_servers_that_answer_in_turn_are_told_from_one_that_restarts(
    values: Mapping[float, float], several: bool
) -> None:
    assert take_turns([track(values)]) is several


@pytest.mark.parametrize("seed", range(20))
def test_any_two_servers_behind_a_balancer_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counted = rng.integers(0, 3000, 2)[:, None] + rng.poisson(30, (2, 40)).cumsum(1)
    picked = rng.integers(0, 2, 40)
    assert take_turns([track(dict(enumerate(counted[picked, range(40)].astype(float))))])


@pytest.mark.parametrize("seed", range(20))
def test_a_server_that_restarts_now_and_then_stays_one_server(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values: dict[float, float] = {}
    for life in range(4):
        for at_s, count in enumerate(rng.poisson(rng.choice([2, 30, 90]), 15).cumsum()):
            values[25.0 * life + at_s] = float(count)  # gone for 10 s in between
    assert not take_turns([track(values)])


def balanced() -> Iterator[Any]:
    turns = {at: 1000 * (at % 2) + 60 * at for at in range(31)}
    yield series(TOKENS, turns)
    yield series("vllm:request_success_total", turns, finished_reason="length")
    yield series("vllm:num_requests_running", dict.fromkeys(range(31), 2))
    yield histogram("vllm:time_to_first_token_seconds", 30, [0.1], bounds=(0.5,))


def test_no_figure_stands_on_servers_that_answer_in_turn() -> None:
    found = of(*balanced())
    (made,) = found.levels
    assert (made.server, made.reconciled, made.others) == (None, [], None)
    assert found.telemetry is None
    assert not [text for text in found.warnings if "restarted" in text]


def test_servers_that_answer_in_turn_are_said_to_do_so() -> None:
    told = {"server": {"kind": "prometheus", "why_not": None}}
    found = of(*balanced(), telemetry=told)
    assert found.telemetry is not None
    assert found.telemetry.why_not == SEVERAL
    assert "telemetry.server" in SEVERAL
    assert not [text for text in found.warnings if SEVERAL in text]
    named = {"telemetry": {"server": "http://balancer/metrics"}}
    warnings = of(*balanced(), telemetry=told, scenario=named).warnings
    assert f"no metrics of the server: {SEVERAL}" in warnings


@pytest.mark.parametrize(
    ("started", "heard"),
    [
        pytest.param({0: 500.0, 10: 500.0, 20: 500.0}, True, id="one"),
        pytest.param({0: 500.0, 10: 500.0, 20: 900.0}, True, id="restarted"),
        pytest.param({0: 900.0, 10: 500.0, 20: 500.0}, False, id="an older one answers"),
    ],
)
def test_a_server_does_not_grow_older_by_a_restart(
    started: Mapping[float, float], heard: bool
) -> None:
    readings = [series(TOKENS, {0: 0, 10: 700, 20: 1500, 30: 2000}),
                series("process_start_time_seconds", started)]  # fmt: skip
    assert (of(*readings).levels[0].server is not None) is heard


# --- an exporter that refreshes rarely


def power_w(at_s: float) -> float:
    return 500.0 if 3 <= at_s <= 27 else 100.0


def energy_j(at_s: float) -> float:
    return 1e6 + sum(power_w(step / 100) / 100 for step in range(round(at_s * 100)))


def exported(every_s: float, *, phase_s: float = 0.0) -> list[Any]:
    """What an exporter says each second of a GPU that it measures more rarely."""
    made = {at: max(0.0, (at - phase_s) // every_s * every_s + phase_s) for at in range(40)}
    return [
        gpu("power_w", {at: power_w(last) for at, last in made.items()}),
        gpu("energy_j", {at: energy_j(last) for at, last in made.items()}),
        gpu("temperature_c", dict.fromkeys(made, 50.0)),
    ]


DCGM: dict[str, Any] = {"telemetry": {"gpu": {"by": "dcgm"}}}


def gpu_of(*parts: Any, **manifest: Any) -> GpuFigures:
    found = of(*parts, **manifest).levels[0].gpu
    assert found is not None
    return found


@pytest.mark.parametrize("phase_s", [0, 2, 6, 15, 26, 29])
def test_figures_of_an_exporter_that_hardly_refreshes_in_the_window_are_withheld(
    phase_s: float,
) -> None:
    found = gpu_of(*exported(30, phase_s=phase_s), **DCGM)
    assert (found.energy_j, found.energy_per_token_j, found.power_mean_w) == (None, None, None)
    assert found.refreshed_s is not None
    assert found.refreshed_s >= 15
    assert found.samples <= 1


def test_what_to_do_about_an_exporter_that_hardly_refreshes_is_said() -> None:
    found = of(*exported(10, phase_s=2), **DCGM)
    assert found.warnings == [
        f"{found.levels[0].label}: the GPU's figures are left out: its exporter refreshes them"
        " about each 10 s, 2 times in the window; start it with -c 1000 (each second)"
    ]


@pytest.mark.parametrize("phase_s", [0, 1, 2])
def test_an_exporter_that_refreshes_often_enough_gives_the_true_energy(phase_s: float) -> None:
    found = gpu_of(*exported(3, phase_s=phase_s), **DCGM)
    assert found.energy_j == pytest.approx(10_000, rel=0.01)
    assert found.energy_per_token_j == pytest.approx(5, rel=0.01)
    assert (found.power_mean_w, found.temperature_max_c) == (pytest.approx(500), 50)
    assert found.refreshed_s is None


def test_an_exporter_that_is_read_as_often_as_it_refreshes_is_believed() -> None:
    found = gpu_of(*exported(1), **DCGM)
    assert (found.samples, found.refreshed_s) == (21, None)
    assert found.energy_j == pytest.approx(10_000, rel=0.01)


@pytest.mark.parametrize("values", [{0: 50.0}, {0: 50.0, 30: 50.0}], ids=["one", "two"])
def test_a_few_readings_of_an_exporter_do_not_tell_how_often_it_refreshes(
    values: Mapping[float, float],
) -> None:
    found = of(gpu("temperature_c", values), **DCGM)
    assert not [text for text in found.warnings if "exporter" in text]


def test_what_does_not_change_is_believed_of_a_driver_that_measures_when_asked() -> None:
    found = gpu_of(gpu("power_w", dict.fromkeys(range(31), 70.0)))
    assert (found.power_mean_w, found.refreshed_s) == (pytest.approx(70), None)


# --- what nobody told, and what happens elsewhere


def test_a_clock_that_nothing_lowered_is_told_from_one_of_which_nothing_is_known() -> None:
    known = gpu_of(gpu("throttle", dict.fromkeys(range(31), 0x1)))
    assert known.throttle == {}
    assert gpu_of(gpu("power_w", {0: 70, 30: 70})).throttle is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        pytest.param({"utilization_mean": 0.0}, True, id="idle"),
        pytest.param({"utilization_mean": 0.02}, False, id="at work"),
        pytest.param({"utilization_mean": None}, False, id="not told"),
        pytest.param({"utilization_mean": 0.0, "samples": 2}, False, id="hardly looked at"),
    ],
)
def test_a_gpu_that_stays_idle_under_load_may_not_be_the_servers(
    changes: dict[str, Any], said: bool
) -> None:
    figures = GpuFigures(**{"gpus": 1, "samples": 30, **changes})
    told = remarks([summed(gpu=figures)])
    assert any("behind a forwarded port" in text for text in told) is said
    quiet = remarks([summed(gpu=figures, output_tokens_per_s=0.0)])
    assert not any("forwarded" in text for text in quiet)


def limited(**conditions: Any) -> LevelSummary:
    running = series("vllm:num_requests_running", dict.fromkeys(range(31), 20))
    return of(running, conditions=conditions).levels[0]


@pytest.mark.parametrize(
    ("conditions", "most"),
    [({"max_sequences": 16}, 16), ({"max_sequences": 16, "data_parallel": 2}, 32), ({}, None)],
)
def test_each_engine_of_a_server_runs_as_many_as_its_limit(
    conditions: dict[str, Any], most: float | None
) -> None:
    found = limited(**conditions).server
    assert found is not None
    assert found.max_sequences == most


def test_a_limit_that_was_passed_is_not_called_one() -> None:
    figures = ServerFigures(
        samples=30, running_mean=20, running_max=24, waiting_mean=4, max_sequences=16,
        kv_usage_mean=0.2,
    )  # fmt: skip
    assert queue_bound(figures) is None
