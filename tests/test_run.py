"""Whole runs against scripted servers: what was asked is what was sent, and nothing gets lost."""

import resource
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drive import command, measure, read
from serve import Asked, Out, answer, scripted, slow

from loadgen.run.events import Event, PhaseChanged

# --- the load sent is the load asked for


@pytest.mark.parametrize("id_", ["C20"])
def test_a_closed_level_holds_its_concurrency(id_: str, tmp_path: Path) -> None:
    with scripted(slow(0.1)) as server:
        manifest, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"concurrency": 8}],
            each_level={"measure": "80 requests"},
        )
        assert server.peak == 8
    level = manifest["levels"][0]
    measured = [row for row in records if row["phase"] == "measure"]
    assert len(measured) == 80
    took = max(row["end_ns"] for row in measured) - min(row["due_ns"] for row in measured)
    assert 0.98e9 < took < 1.35e9
    assert level["peak_in_flight"] == 8
    assert level["mean_in_flight"] >= 7.5


@pytest.mark.slow
@pytest.mark.parametrize("id_", ["C01"])
def test_256_streams_are_256_in_flight(id_: str, tmp_path: Path) -> None:
    with scripted(slow(1.0)) as server:
        _, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"concurrency": 256}],
            each_level={"warmup": "256 requests", "measure": "256 requests"},
        )
        assert server.peak == 256
    assert Counter(row["outcome"] for row in records) == {"ok": 512}
    assert max(row["end_ns"] for row in records) - min(row["due_ns"] for row in records) < 4e9


@pytest.mark.parametrize("id_", ["C03"])
def test_connections_are_reused(id_: str, tmp_path: Path) -> None:
    with scripted(answer) as server:
        _, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"concurrency": 16}],
            each_level={"measure": "1000 requests"},
        )
        assert server.connects <= 20
    assert Counter(row["outcome"] for row in records) == {"ok": 1016}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_counted_phase_of_an_open_level_tells_how_long_its_schedule_is(
    workers: int, tmp_path: Path
) -> None:
    events: list[Event] = []
    levels = [{"rate": 20.0, "arrivals": "constant"}]
    each = {"warmup": "3 requests", "measure": "4 requests"}
    with scripted(answer) as server:
        measure(server.url, tmp_path / "run", events=events, workers=workers, levels=levels,
                each_level=each)  # fmt: skip
    told = [event.scheduled_s for event in events if isinstance(event, PhaseChanged)]
    assert told == [pytest.approx(0.1), pytest.approx(0.2), None]


@pytest.mark.parametrize("id_", ["C22"])
def test_an_open_level_sends_by_its_schedule(id_: str, tmp_path: Path) -> None:
    with scripted(answer) as server:
        manifest, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"rate": 400.0, "arrivals": "poisson"}],
            each_level={"warmup": "50 requests", "measure": "1000 requests"},
            seed=3,
        )
    measured = sorted(row["due_ns"] for row in records if row["phase"] == "measure")
    gaps = np.diff(measured)
    assert len(measured) == 1000
    assert 1e9 / gaps.mean() == pytest.approx(400, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.1)
    lags = [row["sent_ns"] - row["due_ns"] for row in records]
    assert min(lags) >= 0
    assert np.median(lags) < 5e6
    level = manifest["levels"][0]
    assert level["stop_reason"] == "count"
    assert level["arrivals"] == 1050


@pytest.mark.parametrize(("at_cap", "outcomes"), [("wait", {"ok"}), ("drop", {"ok", "dropped"})])
def test_an_arrival_beyond_the_cap_waits_or_is_dropped_and_recorded(
    at_cap: str, outcomes: set[str], tmp_path: Path
) -> None:
    with scripted(slow(0.2)) as server:
        manifest, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"rate": 20.0, "arrivals": "constant", "max_in_flight": 2, "at_cap": at_cap}],
            each_level={"warmup": "2 requests", "measure": "10 requests"},
        )
        assert server.peak == 2
    assert {row["outcome"] for row in records} == outcomes
    assert len(records) == manifest["levels"][0]["arrivals"] == 12
    waits = [row["slot_ns"] - row["due_ns"] for row in records if "slot_ns" in row]
    assert (max(waits) > 100e6) == (at_cap == "wait")


@pytest.mark.slow
@pytest.mark.parametrize("id_", ["B12"])
def test_latency_from_due_and_from_sent_differ_by_the_wait(id_: str, tmp_path: Path) -> None:
    with scripted(slow(0.5)) as server:
        _, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"rate": 10.0, "arrivals": "constant", "max_in_flight": 1}],
            each_level={"warmup": "0 requests", "measure": "8 requests"},
        )
    e2e = [(row["last_ns"] - row["sent_ns"]) / 1e6 for row in records]
    from_due = [(row["last_ns"] - row["due_ns"]) / 1e6 for row in records]
    waits = [(row["slot_ns"] - row["due_ns"]) / 1e6 for row in records]
    assert np.mean(e2e) == pytest.approx(500, rel=0.05)
    assert np.mean(from_due) == pytest.approx(1900, rel=0.05)
    assert max(from_due) == pytest.approx(3300, rel=0.05)
    assert np.mean(waits) == pytest.approx(1400, rel=0.06)


def test_slots_pass_from_warmup_to_measure_without_a_drain(tmp_path: Path) -> None:
    async def uneven(asked: Asked, out: Out) -> None:  # equal ones would end together
        await out.stream("a", every_s=0.19 if asked.number % 2 else 0.03)

    with scripted(uneven) as server:
        manifest, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"concurrency": 4}],
            each_level={"warmup": "0.4s", "measure": "0.6s"},
        )
    level = manifest["levels"][0]
    warm = [row for row in records if row["phase"] == "warmup"]
    assert any(row["end_ns"] > level["measure_start_ns"] for row in warm)
    assert level["measure_start_ns"] - level["start_ns"] >= 400_000_000
    assert level["measure_start_ns"] == min(r["due_ns"] for r in records if r["phase"] == "measure")
    assert level["measure_end_ns"] - level["measure_start_ns"] == 600_000_000
    assert all(row["due_ns"] < level["measure_end_ns"] for row in records)
    assert level["mean_in_flight"] > 3.6


def test_a_ceiling_on_starts_spaces_them_and_is_noted(tmp_path: Path) -> None:
    with scripted(answer) as server:
        _, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"concurrency": 8, "max_starts_per_s": 20.0}],
            each_level={"warmup": "0 requests", "measure": "10 requests"},
        )
    sent = sorted(row["sent_ns"] for row in records)
    assert (sent[-1] - sent[0]) / 1e9 >= 9 / 20 * 0.9
    assert max(row["throttled_ns"] for row in records) > 50e6


def test_drain_cuts_what_takes_too_long_and_keeps_it_as_unfinished(tmp_path: Path) -> None:
    with scripted(slow(0.3, *"abcdefghijklmnop")) as server:
        manifest, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"concurrency": 3}],
            each_level={"warmup": "0 requests", "measure": "3 requests", "drain": "0.8s"},
        )
    assert Counter(row["outcome"] for row in records) == {"unfinished": 3}
    assert all(2 <= len(row["chunks"]["at_ns"]) <= 3 for row in records)
    assert manifest["status"] == "complete"


# --- failures are outcomes


@pytest.mark.parametrize("id_", ["C13"])
@pytest.mark.parametrize(("retries", "outcome", "attempts"), [(0, "refused", 1), (2, "ok", 3)])
def test_retries_are_explicit_counted_and_timed_from_the_first_send(
    id_: str, retries: int, outcome: str, attempts: int, tmp_path: Path
) -> None:
    posts = 0

    async def script(asked: Asked, out: Out) -> None:
        nonlocal posts
        if asked.json["max_tokens"] == 1:  # the preflight's
            await out.stream("a")
            return
        posts += 1
        if posts <= 2:
            await out.whole(429, {"error": {"message": "busy"}})
        else:
            await out.stream("a", every_s=0.05)

    with scripted(script) as server:
        _, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"concurrency": 1}],
            each_level={"warmup": "0 requests", "measure": "1 requests"},
            limits={"retries": retries},
        )
    assert (records[0]["outcome"], records[0]["attempts"]) == (outcome, attempts)
    if retries:
        assert records[0]["first_ns"] - records[0]["sent_ns"] > 50e6


def test_a_dead_server_is_recorded_and_not_hammered(tmp_path: Path) -> None:
    async def script(asked: Asked, out: Out) -> None:
        if asked.number < 12:
            await out.stream("a")
        else:
            out.reset()

    with scripted(script) as server:
        _, records = measure(
            server.url, tmp_path / "run", each_level={"measure": ["0.5s", "10 requests"]}
        )
    classes = Counter(row.get("error_class") for row in records)
    assert classes["connection_reset"] + classes["connection_closed"] > 0
    assert len({row["id"] for row in records}) == len(records)


@pytest.mark.parametrize("id_", ["C02"])
def test_descriptors_are_raised_or_the_run_is_refused_with_the_number(
    id_: str, tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limited(soft: int, hard: int) -> Any:
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with scripted(slow(0.05)) as server:
        line = command("run", "--url", server.url, "-c", "200", "--requests", "200",
                       "--input-tokens", "8", "--output-tokens", "2", "--out")  # fmt: skip
        raised = subprocess.run([*line, str(tmp_path / "a")], capture_output=True, text=True,
                                check=False, preexec_fn=limited(64, hard))  # fmt: skip
        refused = subprocess.run([*line, str(tmp_path / "b")], capture_output=True, text=True,
                                 check=False, preexec_fn=limited(64, 64))  # fmt: skip
    assert soft > 200
    assert raised.returncode == 0, raised.stderr
    assert Counter(row["outcome"] for row in read(tmp_path / "a")[1]) == {"ok": 400}
    assert refused.returncode == 3
    assert refused.stderr.count("\n") == 1
    assert "264" in refused.stderr
