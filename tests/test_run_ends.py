"""Whole runs from outside: before the load, the directory they leave, how they are ended."""

import os
import resource
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from drive import command, loadgen, measure, read, started, strict_json, until_said
from serve import Asked, Out, answer, scripted

from loadgen.errors import PreflightFailed, ServerUnreachable, UsageError
from loadgen.run.events import Notice

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
