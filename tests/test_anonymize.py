"""Logs that can be shared: lengths, times and salted blocks, and the same load when replayed."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from drive import command
from replay_make import TRACES, chat, litellm, log_file, mooncake, needs_traces, read, source
from serve import scripted

from loadgen.cli.main import main
from loadgen.workload.replay.anonymize import anonymous_rows
from loadgen.workload.replay.found import facts_of

SHARED = "a shared beginning of two blocks: " + "x" * 2000
SCENARIOS = Path(__file__).parents[1] / "scenarios"
GB = 1_000_000_000


def pair(directory: Path) -> Path:
    """Two prompts that share a prefix of two blocks, and then differ."""
    rows = [
        litellm(at, chat(SHARED[:1200] + text * 300), session_id=f"ZEBRA-{at}",
                end_user="ZEBRA", endTime=1764480001 + at)
        for at, text in ((0, "cat "), (2.5, "dog "))
    ]  # fmt: skip
    return log_file(directory, rows)


def rows_of(path: Path, salt: bytes = b"salt") -> list[dict[str, Any]]:
    return list(anonymous_rows(read(path), salt=salt))


def test_h07_a_shared_prefix_has_the_same_ids_and_no_text_is_left(tmp_path: Path) -> None:
    one, other = rows_of(pair(tmp_path))
    assert one["hash_ids"][:2] == other["hash_ids"][:2]
    assert not set(one["hash_ids"][2:]) & set(other["hash_ids"][2:])
    assert set(one) == {"timestamp", "end", "input_length", "hash_ids", "block_size", "session_id"}
    assert not [text for text in ("shared", "cat", "ZEBRA") if text in json.dumps(one)]


def test_h07_another_salt_gives_other_ids(tmp_path: Path) -> None:
    path = pair(tmp_path)
    first, second = rows_of(path, b"one")[0], rows_of(path, b"two")[0]
    assert not set(first["hash_ids"]) & set(second["hash_ids"])
    assert first["session_id"] != second["session_id"]
    assert rows_of(path, b"one")[0] == first


def test_h07_the_ids_of_a_log_of_lengths_are_salted_as_well(tmp_path: Path) -> None:
    path = log_file(tmp_path, [mooncake(0, [7, 8]), mooncake(3000, [7, 9])])
    one, other = rows_of(path)
    assert one["hash_ids"][0] == other["hash_ids"][0] not in (7, 8, 9)
    assert (one["block_size"], other["timestamp"], other["output_length"]) == (512, 3000, 4)


def test_times_count_from_the_beginning_and_do_not_tell_the_day(tmp_path: Path) -> None:
    rows = rows_of(pair(tmp_path))
    assert [(row["timestamp"], row["end"]) for row in rows] == [(0, 1000), (2500, 3500)]


def test_what_was_anonymised_replays_with_the_same_prefix_sharing(tmp_path: Path) -> None:
    path = pair(tmp_path)
    written = log_file(tmp_path, rows_of(path), "shared.jsonl")
    made = source(written)
    texts = [made.prompt(level=0, round_=0, number=n).messages[0]["content"] for n in (0, 1)]
    words = [text.split() for text in texts]
    shared = int(np.argmin([a == b for a, b in zip(*words, strict=True)]))
    assert 256 <= shared < 384  # two blocks of 128 tokens
    assert [len(one) for one in words] == [row["input_length"] for row in rows_of(path)]


def test_what_short_prompts_share_is_kept(tmp_path: Path) -> None:
    path = SCENARIOS / "sample-log.jsonl"
    rows = rows_of(path)
    assert {row["block_size"] for row in rows} == {16}
    before, after = facts_of(read(path)), facts_of(read(log_file(tmp_path, rows)))
    assert after["prefix_hit_share"] == pytest.approx(before["prefix_hit_share"], abs=0.01)
    assert after["prefix_hit_share"] > 0.4


def test_blocks_of_a_log_are_of_one_size_so_that_later_turns_share_with_first_ones(
    tmp_path: Path,
) -> None:
    short = litellm(0, chat(SHARED[:400]))
    long = litellm(1, chat(SHARED[:400], "yes", SHARED))
    one, other = rows_of(log_file(tmp_path, [short, long]))
    assert one["block_size"] == other["block_size"] == 16
    assert one["hash_ids"][:6] == other["hash_ids"][:6]


def test_the_command_writes_a_new_file_and_never_over_one(tmp_path: Path) -> None:
    path = pair(tmp_path)
    done = CliRunner().invoke(main, ["anonymize", str(path)], env={"LOADGEN_SALT": "s"})
    out = tmp_path / "log.anonymous.jsonl"
    assert (done.exit_code, done.stdout) == (0, f"{out}: 2 requests, no text\n")
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows_of(path, b"s")
    again = CliRunner().invoke(main, ["anonymize", str(path)])
    assert (again.exit_code, "exists" in again.stderr) == (2, True)


def test_without_a_salt_every_log_has_ids_of_its_own(tmp_path: Path) -> None:
    path = pair(tmp_path)
    for name in ("a", "b"):
        assert CliRunner().invoke(main, ["anonymize", str(path), "-o", str(tmp_path / name)])
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


@needs_traces
@pytest.mark.parametrize("name", ["mooncake_conversation", "mooncake_synthetic"])
def test_a_trace_keeps_its_figures(name: str, tmp_path: Path) -> None:
    path = TRACES / f"{name}_2000.jsonl"
    before = facts_of(read(path))
    after = facts_of(read(log_file(tmp_path, rows_of(path))))
    same = ("requests", "span_s", "quantum_s", "input_tokens", "output_tokens", "prefix_hit_share")
    assert {key: after[key] for key in same} == {key: before[key] for key in same}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A log of 1 GB: chats of 4 kB, four turns a session, some with a shared beginning."""
    path = tmp_path_factory.mktemp("large") / "large.jsonl"
    words = [f"word{at:04d}" for at in range(4000)]
    heads = [" ".join(words[at : at + 100]) for at in range(0, 2000, 100)]
    bodies = [" ".join(words[at : at + 340]) for at in range(0, 3600, 4)]
    size = number = 0
    with path.open("wb") as file:
        while size < GB:
            said = [{"role": "system", "content": heads[number % 20]},
                    *chat(f"{number} {bodies[number % 900]}")]  # fmt: skip
            row = litellm(0.05 * number, said, session_id=f"s{number // 4}", prompt_tokens=900,
                          completion_tokens=20)  # fmt: skip
            size += file.write(json.dumps(row).encode() + b"\n")
            number += 1
    yield path
    path.unlink()


def planned(log: Path) -> tuple[str, float, float]:
    """Plan a log in a process of its own: what it says, its CPU seconds, its peak memory in MB."""
    code = ("import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]); "
            "used = resource.getrusage(resource.RUSAGE_CHILDREN); "
            "print(used.ru_utime + used.ru_stime, used.ru_maxrss); "
            "sys.exit(done.returncode)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code, *command("plan", "--log", str(log))],
                          capture_output=True, text=True, check=True)  # fmt: skip
    *said, used = done.stdout.splitlines()
    seconds, peak = map(float, used.split())
    return "\n".join(said), seconds, peak / 1024


@pytest.mark.slow
def test_a_log_of_a_gigabyte_is_planned_in_little_memory_and_time(large: Path) -> None:
    """50 MB/s where Python's own JSON reader does 500; machines differ, and their days."""
    _, seconds, megabytes = planned(large)
    assert megabytes < 300
    began = time.process_time()
    with large.open("rb") as file:
        for line in file:
            json.loads(line)
    assert seconds < 10 * (time.process_time() - began)


@pytest.mark.slow
def test_a_log_of_a_gigabyte_is_shared_with_its_prefix_share_and_sampled(
    large: Path, tmp_path: Path
) -> None:
    out = tmp_path / "shared.jsonl"
    done = CliRunner().invoke(main, ["anonymize", str(large), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert _share(planned(out)[0]) == _share(planned(large)[0])

    async def script(_: Any, answer: Any) -> None:
        await answer.stream("ok")

    with scripted(script) as server:
        flags = ["--sample", "0.01", "--speed", "2000", "--out", str(tmp_path / "run")]
        done = CliRunner().invoke(main, ["replay", str(large), "--url", server.url, *flags])
    assert done.exit_code == 0, done.output
    kept = len((tmp_path / "run" / "requests.jsonl").read_bytes().splitlines())
    assert kept == pytest.approx(0.01 * large.stat().st_size / 3300, rel=0.3)
    assert kept % 4 == 0


def _share(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("Prefix")).split(" ideal")[0]
