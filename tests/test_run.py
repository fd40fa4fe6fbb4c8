"""Whole runs against scripted servers: what was asked is what was sent, and nothing gets lost."""

import os
import resource
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drive import command, loadgen, measure, read, started, strict_json, until_said
from serve import Asked, Out, scripted

from loadgen.errors import PreflightFailed, ServerUnreachable, UsageError
from loadgen.run.events import Notice


async def answer(asked: Asked, out: Out) -> None:
    await out.stream("a", "b")


def slow(seconds: float, *texts: str) -> Any:
    async def script(asked: Asked, out: Out) -> None:
        if asked.json.get("max_tokens") == 1:  # the preflight
            await out.stream("a")
        else:
            await out.stream(*(texts or ("a",)), every_s=seconds)

    return script


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
    with scripted(slow(0.05)) as server:
        manifest, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"concurrency": 4}],
            each_level={"warmup": "0.4s", "measure": "0.6s"},
        )
    level = manifest["levels"][0]
    warm = [row for row in records if row["phase"] == "warmup"]
    assert any(row["end_ns"] > level["measure_start_ns"] for row in warm)
    assert level["measure_start_ns"] - level["start_ns"] == 400_000_000
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


# --- preflight


@pytest.mark.parametrize("id_", ["C14"])
@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_the_forms_of_a_url_are_one(id_: str, suffix: str, tmp_path: Path) -> None:
    with scripted(answer) as server:
        measure(server.url + suffix, tmp_path / "run")
        assert {asked.path for asked in server.generations} == {"/v1/chat/completions"}


@pytest.mark.parametrize("id_", ["C15"])
def test_a_wrong_model_ends_the_run_with_the_servers_list(id_: str, tmp_path: Path) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.whole(404, {"error": {"message": "The model `x` does not exist.", "code": 404}})

    with (
        scripted(script, models=("one", "two")) as server,
        pytest.raises(PreflightFailed, match="does not know the model 'x'; it serves: one, two"),
    ):
        measure(server.url, tmp_path / "run", target={"url": server.url, "model": "x"})
    assert not (tmp_path / "run").exists()


def test_the_only_model_listed_is_used_and_of_several_one_must_be_named(tmp_path: Path) -> None:
    with scripted(answer, models=("only",)) as server:
        manifest, _ = measure(server.url, tmp_path / "run")
        assert manifest["target"]["model"] == "only"
        assert server.generations[-1].json["model"] == "only"
    with (
        scripted(answer, models=("one", "two")) as server,
        pytest.raises(PreflightFailed, match="--model: one, two"),
    ):
        measure(server.url, tmp_path / "other")


@pytest.mark.parametrize(
    ("status", "words"), [(401, "wants a key"), (403, "wants a key"), (422, "refuses a one-token")]
)
def test_a_server_that_would_refuse_everything_ends_the_run(
    status: int, words: str, tmp_path: Path
) -> None:
    with (
        scripted(lambda asked, out: out.whole(status, {"error": {"message": "no"}})) as server,
        pytest.raises(PreflightFailed, match=words),
    ):
        measure(server.url, tmp_path / "run")


def test_a_server_that_is_busy_at_preflight_is_measured_nevertheless(tmp_path: Path) -> None:
    events: list[Any] = []
    with scripted(lambda asked, out: out.whole(503, {"error": {"message": "busy"}})) as server:
        manifest, records = measure(server.url, tmp_path / "run", events=events)
    assert {row["error_class"] for row in records} == {"overloaded"}
    assert any("probe failed" in event.text for event in events if isinstance(event, Notice))
    assert any("probe failed" in warning for warning in manifest["warnings"])


def test_an_unreachable_server_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ServerUnreachable, match="no connection"):
        measure("http://127.0.0.1:9", tmp_path / "run")
    done = loadgen("run", "--url", "http://127.0.0.1:9", "-c", "1")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("id_", ["C17"])
def test_the_token_limit_field_follows_what_the_server_says(id_: str, tmp_path: Path) -> None:
    async def script(asked: Asked, out: Out) -> None:
        if "max_tokens" in asked.json:
            message = "Unsupported parameter: 'max_tokens' is not supported with this model. "
            message += "Use 'max_completion_tokens' instead."
            await out.whole(400, {"error": {"message": message, "code": 400}})
        else:
            await out.stream("a")

    with scripted(script) as server:
        manifest, records = measure(server.url, tmp_path / "run")
    assert {row["outcome"] for row in records} == {"ok"}
    assert any("max_completion_tokens" in text for text in manifest["warnings"])


# --- the directory


def test_a_run_never_overwrites_another(tmp_path: Path) -> None:
    with scripted(answer) as server:
        measure(server.url, tmp_path / "run")
        before = (tmp_path / "run" / "requests.jsonl").read_bytes()
        with pytest.raises(UsageError, match="never overwrites"):
            measure(server.url, tmp_path / "run")
    assert (tmp_path / "run" / "requests.jsonl").read_bytes() == before


def test_every_arrival_has_one_record_and_the_manifest_is_strict_json(tmp_path: Path) -> None:
    with scripted(answer) as server:
        manifest, records = measure(
            server.url, tmp_path / "run", levels=[{"concurrency": 1}, {"concurrency": 3}]
        )
    strict_json((tmp_path / "run" / "manifest.json").read_text())
    assert sorted(row["id"] for row in records) == list(range(len(records)))
    for level in manifest["levels"]:
        rows = [row for row in records if row["level"] == level["level"]]
        assert len(rows) == level["arrivals"]
    assert manifest["status"] == "complete"


# --- privacy

KEY, HEADER, MARKER = "sk-test-0000-abcd", "hush-0000", "ZEBRA-77"


@pytest.mark.parametrize("id_", ["H01-H02-H05"])
def test_no_key_header_value_or_prompt_is_left_anywhere(id_: str, tmp_path: Path) -> None:
    said: list[str] = []

    async def script(asked: Asked, out: Out) -> None:
        """Say everything back, in errors and in answers."""
        prompt = asked.json["messages"][0]["content"]
        said.append(prompt)
        team = asked.headers["x-team-token"]
        echo = f"bad key {asked.headers['authorization']} {team} {prompt}"
        if asked.number % 2:
            await out.stream(MARKER, prompt)
        else:
            await out.whole(500, {"error": {"message": echo}})

    with scripted(script) as server:
        done = loadgen(
            "run", "--url", server.url, "-c", "2", "--requests", "8", "--input-tokens", "40",
            "--output-tokens", "4", "--header", f"X-Team-Token: {HEADER}",
            "--out", str(tmp_path / "run"), env={"LOADGEN_API_KEY": KEY},
        )  # fmt: skip
        assert server.generations[0].headers["authorization"] == f"Bearer {KEY}"
        assert server.generations[0].headers["x-team-token"] == HEADER
    assert done.returncode == 1, done.stderr
    texts = {path.name: path.read_text() for path in (tmp_path / "run").iterdir()}
    texts |= {"stdout": done.stdout, "stderr": done.stderr}
    assert "X-Team-Token".lower() in texts["manifest.json"].lower()
    prompts = [text for text in said if len(text) > 40]
    assert prompts
    for name, text in texts.items():
        for secret in (KEY, HEADER, MARKER, *(prompt[:30] for prompt in prompts)):
            assert secret not in text, (name, secret)


# --- interruption


@pytest.mark.parametrize("id_", ["C19"])
@pytest.mark.parametrize(
    ("wait_for", "again"),
    [
        ("warmup", 0),
        pytest.param("measure", 1, marks=pytest.mark.slow),
        pytest.param("measure", 0, marks=pytest.mark.slow),
        pytest.param("drain", 1, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_ends_the_run_and_keeps_what_was_measured(
    id_: str, wait_for: str, again: int, tmp_path: Path
) -> None:
    async def script(asked: Asked, out: Out) -> None:
        if asked.json.get("max_tokens") == 1:
            await out.stream("a")
            return
        sent = sum(one.json.get("max_tokens") != 1 for one in server.generations)
        first_level = sent <= 10
        await out.stream(*"abcde", every_s=0.01 if first_level else 0.25)

    with scripted(script) as server:
        line = command(
            "run", "--url", server.url, "-c", "2,2", "--requests", "6", "--warmup", "4 requests",
            "--input-tokens", "8", "--output-tokens", "5", "--out", str(tmp_path / "run"),
        )  # fmt: skip
        with started(line, stdout=subprocess.PIPE) as child:
            assert child.stderr is not None
            for _ in range(2):  # of the second level
                until_said(child.stderr, f": {wait_for}")
            child.send_signal(signal.SIGINT)
            for _ in range(again):
                child.stderr.readline()
                child.send_signal(signal.SIGINT)
            stdout, stderr = child.communicate(timeout=30)
    assert child.returncode == 130, stderr
    manifest, records = read(tmp_path / "run")
    assert manifest["status"] == "interrupted"
    assert Counter(row["outcome"] for row in records if row["level"] == 0) == {"ok": 10}
    assert len(records) == sum(level["arrivals"] for level in manifest["levels"])
    assert "interrupted" in stdout
    assert "Traceback" not in stderr
    strict_json((tmp_path / "run" / "summary.json").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
    assert loadgen("report", str(tmp_path / "run")).returncode == 0


@pytest.mark.slow
def test_all_requests_failed_is_a_table_with_classes_and_exit_1(tmp_path: Path) -> None:
    with scripted(lambda asked, out: out.whole(500, {"error": {"message": "kaput"}})) as server:
        done = loadgen("run", "--url", server.url, "-c", "2", "--requests", "6",
                       "--input-tokens", "8", "--output-tokens", "2",
                       "--out", str(tmp_path / "run"))  # fmt: skip
    assert done.returncode == 1
    assert "server_error" in done.stdout
    assert "kaput" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_one_line_and_keeps_what_was_written(tmp_path: Path) -> None:
    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    with scripted(answer) as server:
        line = command("run", "--url", server.url, "-c", "8", "--requests", "400",
                       "--input-tokens", "8", "--output-tokens", "2",
                       "--out", str(tmp_path / "run"))  # fmt: skip
        done = subprocess.run(
            line, capture_output=True, text=True, check=False, preexec_fn=small_files
        )
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert "could not go on" in done.stderr
    assert (tmp_path / "run" / "requests.jsonl").stat().st_size > 0


@pytest.mark.parametrize("key", ["kü", "abc\ndef"], ids=["not-ascii", "line-break"])
def test_a_key_that_no_header_can_carry_is_one_line(key: str) -> None:
    done = loadgen("run", "--url", "http://127.0.0.1:9", "-c", "1", env={"LOADGEN_API_KEY": key})
    assert done.returncode == 2
    assert done.stderr.startswith("loadgen: LOADGEN_API_KEY: ")
    assert done.stderr.count("\n") == 1
    assert key not in done.stderr
