"""Several processes that send one load: what is dealt, what is merged, what becomes of a loss."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import drive
import numpy as np
import orjson
import pytest
from click.testing import CliRunner
from drive import command, loadgen, measure, read, scenario
from hypothesis import given
from hypothesis import strategies as some
from make import level, make_run, record
from scenario_make import ROOT
from serve import Asked, Out, Server, scripted
from simulator_make import stats

from loadgen.analysis.metrics import summarise
from loadgen.analysis.stats import percentile
from loadgen.analysis.table import RunData, read_run
from loadgen.cli.main import main
from loadgen.run.events import Event, Tick
from loadgen.run.share import Share, slots_of, workers_of
from loadgen.run.workers import merge_entries
from loadgen.scenario.levels import Level
from loadgen.scenario.load import load_scenario
from loadgen.scenario.model import Scenario, Span
from loadgen.simulator.process import simulator_process
from loadgen.workload.plan import plan_hash, schedule_of

pytestmark = pytest.mark.slow  # whole runs: seconds each

FAST = ("--speed", "50", "--max-running", "512")


def slow(seconds: float) -> Any:
    async def script(asked: Asked, out: Out) -> None:
        await out.stream("a", every_s=0.0 if asked.json["max_tokens"] == 1 else seconds)

    return script


# --- what is dealt


@given(total=some.integers(0, 500), workers=some.integers(1, 9))
def test_the_shares_of_all_workers_are_the_whole_and_never_overlap(
    total: int, workers: int
) -> None:
    shares = [Share(worker=worker, workers=workers) for worker in range(workers)]
    assert sorted(number for share in shares for number in share.of(total)) == list(range(total))
    numbers = [share.number(mine) for share in shares for mine in range(len(share.of(total)))]
    assert sorted(numbers) == list(range(total))
    assert sum(share.span(Span(requests=total)).requests or 0 for share in shares) == total


def test_a_time_is_the_same_for_every_worker() -> None:
    assert Share(worker=1, workers=3).span(Span(seconds=5.0)) == Span(seconds=5.0)
    assert Share(worker=1, workers=3).span(Span(seconds=5.0, requests=7)).seconds == 5.0


@pytest.mark.parametrize(
    ("load", "slots", "workers"),
    [
        ({"concurrency": 3}, 3, 3),
        ({"concurrency": 64}, 64, 4),
        ({"sessions": 2}, 2, 2),
        ({"sessions": 12, "concurrency": 4}, 12, 4),
        ({"sessions": 12, "concurrency": 2}, 12, 2),
        ({"rate": 5.0, "max_in_flight": 1}, 1, 1),
    ],
)
def test_no_worker_is_without_a_slot(load: dict[str, Any], slots: int, workers: int) -> None:
    asked = Level.model_validate(load)
    assert slots_of(asked) == slots
    assert workers_of(asked, 4) == workers
    places = [Share(worker=worker, workers=workers).of(asked.slots) for worker in range(workers)]
    assert all(places)


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda p: p.stem)
def test_a_worker_reads_the_scenario_it_is_told_as_the_same_one(path: Path) -> None:
    told = load_scenario(path, environ={})
    heard = orjson.loads(orjson.dumps(told.model_dump(mode="json", exclude_unset=True)))
    read_again = Scenario.model_validate(heard).located(path.parent)
    assert read_again == told
    assert plan_hash(read_again) == plan_hash(told)


def test_the_plan_is_the_same_for_any_number_of_workers() -> None:
    hashes = set()
    for workers in ("1", "2", "4", "auto"):
        arguments = ["plan", str(ROOT / "scenarios" / "mix.yaml"), "--hash", "--workers", workers]
        done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, done.output
        hashes.add(done.stdout)
    assert len(hashes) == 1


# --- what is merged


def entry(**facts: Any) -> dict[str, Any]:
    """A level as one worker tells of it."""
    client = {"cpu_share": 0.1, "cpu_ns": 80, "loop_lag_p99_ns": 5, "loop_lag_max_ns": 9,
              "rss_bytes": 100, "requests_built_late": 1}  # fmt: skip
    told = {"stop_reason": "time", "measure_start_ns": 10, "measure_end_ns": 90, "end_ns": 95,
            "arrivals": 7, "next_id": 14, "conversations_cut": 1, "peak_in_flight": 2,
            "mean_in_flight": 1.5, "client": client, "invalid": None}  # fmt: skip
    return {**told, **facts}


def test_what_counts_adds_up_and_measure_spans_all_workers() -> None:
    merged = merge_entries(
        [entry(), entry(measure_start_ns=8, measure_end_ns=99, end_ns=120, next_id=15)]
    )
    assert (merged["measure_start_ns"], merged["measure_end_ns"]) == (8, 99)
    assert (merged["end_ns"], merged["next_id"], merged["arrivals"]) == (120, 15, 14)
    assert (merged["conversations_cut"], merged["peak_in_flight"]) == (2, 4)
    assert merged["mean_in_flight"] == 3.0
    assert (merged["client"]["rss_bytes"], merged["client"]["cpu_ns"]) == (200, 160)
    assert len(merged["client"]["workers"]) == 2


@pytest.mark.parametrize("reason", ["abort: errors > 50% over 5s: 60%", "interrupted"])
def test_what_stopped_any_worker_early_ended_the_level(reason: str) -> None:
    assert merge_entries([entry(), entry(stop_reason=reason)])["stop_reason"] == reason
    assert merge_entries([entry(), entry()])["stop_reason"] == "time"


def test_a_fault_of_any_worker_makes_the_level_invalid() -> None:
    assert merge_entries([entry(), entry(invalid="3 requests failed")])["invalid"]
    assert merge_entries([entry(), entry()])["invalid"] is None


def uneven(workers: int) -> RunData:
    """60 requests; the second worker's are ten times as slow as the first one's."""
    records = [
        record(i, sent=100.0 * i, at=[(10 if i % 2 else 1) * (50 + i)], worker=i % workers)
        for i in range(60)
    ]
    return make_run(
        records, [level(window=(0, 6000))], scenario={"each_level": {"truncate": "off"}}
    )


def test_merged_percentiles_are_those_of_the_pooled_samples() -> None:
    (merged,), (whole,) = summarise(uneven(2)).levels, summarise(uneven(1)).levels
    pooled = np.sort([(10 if i % 2 else 1) * (50.0 + i) for i in range(60)])
    assert merged.ttft == whole.ttft
    for quantile, found in ((0.5, merged.ttft.p50), (0.9, merged.ttft.p90)):
        assert found.value == pytest.approx(percentile(pooled, quantile))
    means = np.mean([np.median(pooled[:30]), np.median(pooled[30:])])
    assert merged.ttft.p50.value != pytest.approx(means, rel=0.1)  # as an average would be


# --- what is sent


@pytest.mark.slow
def test_a_closed_level_of_two_workers_is_one_level(tmp_path: Path) -> None:
    events: list[Event] = []
    with scripted(slow(0.1)) as server:
        manifest, records = measure(server.url, tmp_path / "run", events=events, workers=2,
                                    levels=[{"concurrency": 8}, {"concurrency": 1}],
                                    each_level={"measure": "1.2s"})  # fmt: skip
        assert server.peak == 8
    first, second = manifest["levels"]
    assert (first["peak_in_flight"], second["peak_in_flight"]) == (8, 1)
    assert first["mean_in_flight"] > 7
    assert len({row["id"] for row in records}) == len(records)
    assert len(records) == first["arrivals"] + second["arrivals"]
    slots = {(row["level"], row.get("worker", 0), row["slot"]) for row in records}
    assert slots == {(0, slot % 2, slot) for slot in range(8)} | {(1, 0, 0)}
    ticks = [event for event in events if isinstance(event, Tick) and event.level == 0]
    assert ticks
    assert max(tick.in_flight for tick in ticks) == 8  # summed over the workers


def arrivals_of(server_url: str, manifest: dict[str, Any]) -> np.ndarray:
    """When the simulator read each request of the level, in ns from the level's start."""
    start = manifest["epoch_monotonic_ns"] + manifest["levels"][0]["start_ns"]
    arrived = np.array([row["arrived_ns"] for row in stats(server_url)["requests"]])
    return np.sort(arrived[arrived >= start]) - start


def follow_the_schedule(workers: int, number: int, out: Path) -> None:
    parts = {
        "workers": workers,
        "levels": [{"rate": 500.0, "arrivals": "poisson"}],
        "each_level": {"warmup": "0 requests", "measure": f"{number} requests"},
        "prompts": {"input_tokens": 12, "output_tokens": 2},
        "seed": 5,
    }
    with simulator_process(*FAST) as simulator:
        manifest, records = measure(simulator.url, out, **parts)
        arrived = arrivals_of(simulator.url, manifest)
    due = schedule_of(scenario(simulator.url, **parts), 0, round_=0).due_ns
    start = manifest["levels"][0]["start_ns"]
    assert sorted(row["due_ns"] - start for row in records) == due.tolist()
    assert [row["due_ns"] - start for row in sorted(records, key=lambda row: row["id"])] == (
        due.tolist()
    )
    assert len(arrived) == number
    sent = np.sort([row["sent_ns"] - start for row in records])
    assert (arrived >= due).all()
    assert np.median(arrived - sent) < 1e6  # the way there
    assert np.median(sent - due) < 2e6
    assert (arrived - due).max() <= (sent - due).max() + 50e6
    assert {row["outcome"] for row in records} == {"ok"}
    assert Counter(row.get("worker", 0) for row in records) == {
        worker: len(range(worker, number, workers)) for worker in range(workers)
    }


def test_two_workers_send_the_one_schedule(tmp_path: Path) -> None:
    follow_the_schedule(2, 500, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_servers_arrivals_are_the_one_schedule(workers: int, tmp_path: Path) -> None:
    follow_the_schedule(workers, 2000, tmp_path / "run")


@pytest.mark.slow
def test_a_run_of_two_workers_reports_the_percentiles_of_all_its_samples(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"measure": "200 requests", "truncate": "off"}
    with simulator_process(*FAST) as simulator:
        measure(simulator.url, tmp_path / "run", workers=2, levels=[{"concurrency": 6}],
                each_level=parts)  # fmt: skip
    run = read_run(tmp_path / "run")
    (found,) = summarise(run).levels
    rows = run.requests[run.requests["phase"] == "measure"]
    ttft = np.sort((rows["first_ns"] - rows["sent_ns"]).to_numpy(float)) / 1e6
    assert set(rows["worker"]) == {0, 1}
    assert found.ttft.n == len(ttft)
    assert found.ttft.p50.value == pytest.approx(percentile(ttft, 0.5))
    assert found.ttft.p99.value == pytest.approx(percentile(ttft, 0.99))


# --- what is lost


@contextmanager
def started(server: Server, out: Path, *flags: str) -> Iterator["subprocess.Popen[str]"]:
    line = command("run", "--url", server.url, "--input-tokens", "8", "--output-tokens", "4",
                   "--workers", "2", "--out", str(out), *flags)  # fmt: skip
    with drive.started(line, stdout=subprocess.PIPE) as running:
        try:
            yield running
        finally:
            running.kill()  # where it is over, nothing happens


def wait_for(running: "subprocess.Popen[str]", word: str) -> None:
    assert running.stderr is not None
    for line in running.stderr:
        if word in line:
            return
    raise AssertionError(f"it ended without a word of {word}")


def workers_under(running: "subprocess.Popen[str]") -> list[int]:
    """The processes of the workers, in the order of their numbers; beside them is a sampler."""
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    return sorted(int(pid) for pid in children if "telemetry" not in said_by(pid))


def said_by(pid: str) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


linux = pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")


@linux
@pytest.mark.parametrize(
    ("flags", "owed"),
    [
        pytest.param(("-c", "6"), {3}, id="closed"),
        pytest.param(
            ("--rate", "60/s", "--arrivals", "constant"),
            range(20, 50),
            marks=pytest.mark.slow,
            id="open",
        ),
        pytest.param(
            ("--rate", "30/s", "--arrivals", "constant", "--turns", "2"),
            range(5, 30),
            marks=pytest.mark.slow,
            id="conversations-that-arrive",
        ),
    ],
)
def test_a_worker_that_is_killed_leaves_client_faults_and_the_rest_is_kept(
    flags: tuple[str, ...], owed: Any, tmp_path: Path
) -> None:
    with (
        scripted(slow(0.05)) as server,
        started(server, tmp_path / "run", *flags, "--warmup", "0.2s", "--duration", "1.6s") as run,
    ):
        wait_for(run, ": measure")
        pids = workers_under(run)
        with pytest.raises(subprocess.TimeoutExpired):
            run.wait(0.6)
        os.kill(pids[1], signal.SIGKILL)
        stdout, stderr = run.communicate(timeout=30)
    manifest, records = read(tmp_path / "run")
    (found,) = manifest["levels"]
    lost = [row for row in records if row["outcome"] == "client_fault"]
    kept = [row for row in records if row["outcome"] == "ok"]
    assert run.returncode == 1, stderr
    assert "worker 1 (pid" in stderr
    assert "Traceback" not in stderr
    assert found["invalid"] == "1 of 2 workers were lost"
    assert {(row["worker"], row["error_class"], row["phase"]) for row in lost} == {
        (1, "worker_lost", "measure")
    }
    assert len(lost) in owed
    assert len(lost) + len(kept) == len(records) == found["arrivals"]
    assert len({row["id"] for row in records}) == len(records)
    assert {row.get("worker", 0) for row in kept} == {0, 1}
    assert max(row["end_ns"] for row in kept) > found["measure_end_ns"] - 0.2e9
    assert "client_fault" in stdout
    assert all(gone(pid) for pid in pids)
    assert loadgen("report", str(tmp_path / "run")).returncode == 0


@linux
@pytest.mark.parametrize(
    "again", [pytest.param(0, id="once"), pytest.param(1, marks=pytest.mark.slow, id="twice")]
)
def test_an_interrupt_reaches_the_workers_and_leaves_none(again: int, tmp_path: Path) -> None:
    flags = ("-c", "4,4", "--duration", "30s")
    with scripted(slow(0.4)) as server, started(server, tmp_path / "run", *flags) as run:
        wait_for(run, ": measure")
        pids = workers_under(run)
        run.send_signal(signal.SIGINT)
        if again:
            wait_for(run, "stopping")
            run.send_signal(signal.SIGINT)
        stdout, stderr = run.communicate(timeout=10)
    manifest, records = read(tmp_path / "run")
    (found,) = manifest["levels"]
    assert run.returncode == 130, stderr
    assert (manifest["status"], found["stop_reason"]) == ("interrupted", "interrupted")
    assert {row["outcome"] for row in records} <= {"ok", "cancelled"}
    assert len(records) == found["arrivals"]
    assert "interrupted" in stdout
    assert "Traceback" not in stderr
    assert all(gone(pid) for pid in pids)


@linux
@pytest.mark.slow
def test_workers_do_not_outlive_the_run_that_started_them(tmp_path: Path) -> None:
    flags = ("-c", "4", "--duration", "30s")
    with scripted(slow(0.1)) as server, started(server, tmp_path / "run", *flags) as run:
        wait_for(run, ": measure")
        pids = workers_under(run)
        run.kill()
        run.wait(10)
        for _ in range(100):
            if all(gone(pid) for pid in pids):
                return
            with pytest.raises(subprocess.TimeoutExpired):
                subprocess.run(["sleep", "1"], timeout=0.1, check=False)
    raise AssertionError("a worker still runs")


@pytest.mark.slow
def test_a_rule_that_one_worker_sees_broken_stops_them_all(tmp_path: Path) -> None:
    rule = "ttft p50 > 30ms over 1s"
    with scripted(slow(0.06)) as server, started(
        server, tmp_path / "run", "-c", "8,8", "--duration", "30s", "--abort-if", rule
    ) as run:  # fmt: skip
        _, stderr = run.communicate(timeout=20)
    manifest, records = read(tmp_path / "run")
    (found,) = manifest["levels"]
    assert run.returncode == 1, stderr
    assert (manifest["status"], found["invalid"]) == ("failed", None)
    assert found["stop_reason"].startswith(f"abort: {rule}: ")
    assert f"aborted: {rule}: " in stderr
    assert found["end_ns"] - found["start_ns"] < 5e9
    assert len(records) == found["arrivals"]


# --- what a worker says


@pytest.mark.slow
def test_a_worker_that_aborts_says_so_before_it_has_drained(tmp_path: Path) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await asyncio.sleep(0.02)  # noqa: TID251 - the server's own pace
        await out.whole(503, {"error": {"message": "full"}})

    with scripted(script) as server:
        asked = scenario(server.url, abort_if=["errors > 50% over 1s"],
                         each_level={"measure": "30s"}, levels=[{"concurrency": 4}])  # fmt: skip
        said, status, _ = talk(asked, tmp_path, server)
    assert status == 0
    words = [message["said"] for message in said]
    phases = [message.get("phase", {}).get("phase") for message in said]
    assert (words[0], words[-1]) == ("ready", "entry")
    abort = words.index("abort")
    assert said[abort]["reason"].startswith("abort: errors > 50% over 1s: ")
    assert abort < phases.index("drain")  # the others learn of it at once


def test_a_worker_that_cannot_write_ends_so_that_its_parent_knows(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").symlink_to("/dev/full")
    with scripted(slow(0.0)) as server:
        asked = scenario(server.url, each_level={"measure": "8 requests"})
        said, status, stderr = talk(asked, tmp_path, server)
    assert status == 3
    assert "entry" not in {message["said"] for message in said}
    assert stderr == "worker: [Errno 28] No space left on device\n"


def talk(asked: Scenario, directory: Path, server: Server) -> tuple[list[dict[str, Any]], int, str]:
    """Be the parent of one worker of two; return all that it says, and how it ends."""
    session = {
        "nonce": "ab12", "model": "mock", "engine": "unknown", "chat_limit": "max_tokens",
        "peers": [f"127.0.0.1:{server.port}"], "worker": 0, "workers": 2, "epoch_ns": 0,
        "overhead": {"tokens": 0, "turn": 0, "words": None, "per_word": 1.0},
        "scenario": asked.model_dump(mode="json", exclude_unset=True),
        "scenario_directory": ".", "directory": str(directory),
    }  # fmt: skip
    orders = [session, {"do": "prepare", "level": 0, "round": 0, "first_id": 0},
              {"do": "hold", "start_ns": 1}]  # fmt: skip
    pipe = subprocess.PIPE
    line = [sys.executable, "-m", "loadgen.run.worker"]
    said: list[dict[str, Any]] = []
    with subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(b"".join(orjson.dumps(order) + b"\n" for order in orders))
        worker.stdin.flush()
        for text in worker.stdout:
            said.append(orjson.loads(text))
            if said[-1]["said"] == "entry":
                break
        _, stderr = worker.communicate(timeout=10)  # stdin ends: the parent is gone
    return said, worker.returncode, stderr.decode()
