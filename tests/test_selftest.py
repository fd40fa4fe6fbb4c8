"""What this machine can measure: judged from figures, and found out for real on a small ladder."""

import os
import time
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from drive import loadgen, strict_json
from make import make_run, record

from loadgen.analysis.summary import Check
from loadgen.cli.selftest import command
from loadgen.run.selftest.findings import Rung, findings, limit_of
from loadgen.run.selftest.ladder import simulator_flags
from loadgen.run.selftest.truth import shares_between, stamp_errors_us, usage_of

SOUND = Rung(
    streams=256,
    asked_chunks_per_s=12_800,
    chunks_per_s=12_500,
    stamps=25_000,
    error_p50_us=3,
    error_p99_us=18,
    error_max_us=900,
    user_lag_p99_ms=4,
    send_lag_p99_ms=0.2,
    coalesced_share=0.001,
    cpu_us_per_chunk=20,
    cpu_share=0.25,
    waited_share=0.01,
    simulator_cpu_share=0.15,
    simulator_waited_share=0.01,
    bytes_per_stream=60_000,
)
SPOILT = Check(name="send lag p99", verdict="fail", value=31, bound=5, unit="ms", text="do")


def rung(**changes: object) -> Rung:
    return replace(SOUND, **changes)


def verdict(*rungs: Rung) -> str:
    return findings(rungs, machine={}).verdict


@pytest.mark.parametrize(
    ("changes", "sound"),
    [
        ({}, True),
        ({"chunks_per_s": 11_000}, False),
        ({"error_p99_us": 400}, False),
        ({"error_p99_us": None, "stamps": 0}, False),
        ({"checks": [SPOILT]}, False),
        ({"checks": [replace(SPOILT, verdict="warn")]}, True),
    ],
    ids=["sound", "load not reached", "stamps off", "no stamps", "check failed", "check warns"],
)
def test_a_rung_is_sound_or_not(changes: dict, sound: bool) -> None:
    assert rung(**changes).sound is sound


@pytest.mark.parametrize(
    ("changes", "limit"),
    [
        ({"cpu_share": 0.97}, "client"),
        ({"simulator_cpu_share": 0.99, "cpu_share": 0.9}, "simulator"),
        ({"waited_share": 0.4, "cpu_share": 0.55}, "other work"),
        ({"simulator_waited_share": 0.4}, "other work"),
        ({"waited_share": None, "simulator_waited_share": None, "cpu_share": 0.97}, "client"),
        ({}, "unclear"),
    ],
    ids=["client", "simulator", "hog beside the client", "hog beside the simulator",
         "no word of waiting", "unclear"],
)  # fmt: skip
def test_what_was_the_limit(changes: dict, limit: str) -> None:
    assert limit_of(rung(chunks_per_s=1_000, **changes)) == limit


def test_the_verdict_names_the_highest_load_and_its_worst_stamp_error() -> None:
    broken = rung(streams=1024, chunks_per_s=9_000, cpu_share=0.97)
    said = verdict(rung(error_p99_us=21.4), rung(streams=512, chunks_per_s=25_000), broken)
    assert said.startswith("up to 25,000 chunks/s (512 streams): stamps within 21 µs (p99); ")
    assert said.endswith("this client's core is full (97%): use several processes")


def test_a_sound_rung_above_a_broken_one_does_not_count() -> None:
    found = findings([rung(), rung(error_p99_us=900), rung()], machine={})
    assert found.sound_chunks_per_s == 12_500
    assert found.limit == "unclear"
    assert "stamps are off by 900 µs (p99)" in found.verdict


def test_where_nothing_is_sound_the_verdict_says_so() -> None:
    said = verdict(rung(waited_share=0.5, chunks_per_s=6_000))
    assert said.startswith("not even 12,800 chunks/s (256 streams) can be measured soundly here")
    assert "other work on this machine held the core" in said


@pytest.mark.parametrize(
    "changes",
    [{"cpu_share": 0.97}, {"simulator_cpu_share": 0.99}, {"waited_share": 0.5}, {}],
    ids=["client", "simulator", "other work", "unclear"],
)
def test_what_lies_beyond_is_said_only_where_something_was_sound(changes: dict) -> None:
    broken = rung(chunks_per_s=6_000, **changes)
    assert "beyond" not in verdict(broken)
    assert "; beyond that, " in verdict(rung(), broken)


@pytest.mark.parametrize("streams", [(1,), (32, 1024), (32, 20_000)])
def test_the_simulator_has_a_place_for_each_stream_of_the_highest_load(
    streams: tuple[int, ...],
) -> None:
    (places,) = (flag for flag in simulator_flags(streams) if flag.startswith("--max-running="))
    assert int(places.partition("=")[2]) >= max(streams)


def test_where_all_is_sound_no_limit_is_claimed() -> None:
    found = findings([rung()], machine={})
    assert found.limit is None
    assert found.verdict.endswith("no higher load was tried")


def test_errors_come_from_the_last_chunk_of_each_read() -> None:
    one = record(0, at=[200, 220, 240], prompt_hash="a")
    coalesced = replace(one, chunks=replace(one.chunks, coalesced=[1]))
    run = make_run([coalesced, record(1, at=[300], prompt_hash="not the simulator's")])
    sent = {"a": np.array([1_199_990_000, 1, 1_239_970_000, 1_260_000_000])}
    assert stamp_errors_us(run, sent, epoch_ns=1_000_000_000).tolist() == [10.0, 30.0]


def test_a_busy_process_shows_as_busy() -> None:
    before = usage_of(os.getpid())
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        pass
    shares = shares_between(before, usage_of(os.getpid()))
    assert shares.cpu is None or 0.3 < shares.cpu + (shares.waited or 0) < 1.4


@pytest.mark.slow
def test_a_small_ladder_is_climbed_and_told_as_strict_json() -> None:
    done = loadgen("selftest", "--json", "--streams", "4", "--seconds", "0.5")
    assert done.returncode == 0, done.stderr
    told = strict_json(done.stdout)
    [found] = told["rungs"]
    assert (found["streams"], found["asked_chunks_per_s"]) == (4, 200)
    assert found["stamps"] > 60
    assert 0 < found["error_p50_us"] < 1000
    assert told["verdict"]


@pytest.mark.parametrize("streams", ["8,4", "0", "x", ""])
def test_streams_that_do_not_rise_are_refused(streams: str) -> None:
    done = CliRunner().invoke(command, ["--streams", streams])
    assert done.exit_code == 2
    assert "each larger than the one before" in done.output
