"""Conversations on real sockets: turns, think time, history, and what cuts one short."""

import signal
import subprocess
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from drive import command, measure, read, scenario, started, until_said
from serve import Asked, Out, Script, scripted

from loadgen.workload.plan import schedule_of

pytestmark = pytest.mark.slow  # whole runs: seconds each

Records = list[dict[str, Any]]


def prompts(**more: Any) -> dict[str, Any]:
    return {"input_tokens": 8, "output_tokens": 4, "turns": 3, **more}


def serving(service_s: float, reply: str = "L") -> Script:
    async def script(asked: Asked, out: Out) -> None:
        await out.stream(reply, every_s=0.0 if asked.json["max_tokens"] == 1 else service_s)

    return script


def by_conversation(records: Records) -> dict[str, Records]:
    found: dict[str, Records] = defaultdict(list)
    for row in sorted(records, key=lambda row: row["due_ns"]):
        found[row["conversation"]].append(row)
    return found


def never_two_at_once(turns: Records) -> bool:
    return all(earlier["end_ns"] <= later["sent_ns"] for earlier, later in pairwise(turns))


@pytest.mark.parametrize("row", ["D25"])
def test_turns_follow_the_answer_and_the_think_time(row: str, tmp_path: Path) -> None:
    with scripted(serving(0.3)) as server:
        manifest, records = measure(
            server.url,
            tmp_path / "run",
            prompts=prompts(think_time="100ms"),
            levels=[{"sessions": 1}],
            each_level={"warmup": "0 requests", "measure": "3 requests"},
        )
        assert server.peak == 1
    start = manifest["levels"][0]["start_ns"]
    sent_s = [(row["sent_ns"] - start) / 1e9 for row in records]
    assert sent_s == pytest.approx([0, 0.4, 0.8], abs=0.03)
    assert [row.get("turn") for row in records] == [0, 1, 2]
    assert [row["due_ns"] for row in records[1:]] == pytest.approx(
        [row["end_ns"] + 100e6 for row in records[:-1]], abs=5e6
    )


def test_two_turns_of_one_conversation_are_never_in_flight_together(tmp_path: Path) -> None:
    with scripted(serving(0.02)) as server:
        _, records = measure(
            server.url,
            tmp_path / "run",
            prompts=prompts(turns={"mean": 3, "spread": 1}, think_time="10ms"),
            levels=[{"sessions": 6}],
            each_level={"warmup": "0 requests", "measure": "90 requests"},
        )
        assert server.peak <= 6
    conversations = by_conversation(records)
    assert len(conversations) > 20
    assert all(never_two_at_once(turns) for turns in conversations.values())
    assert all([row["turn"] for row in turns] == list(range(len(turns)))
               for turns in conversations.values())  # fmt: skip


def test_sessions_and_requests_in_flight_are_two_numbers(tmp_path: Path) -> None:
    with scripted(serving(0.05)) as server:
        manifest, records = measure(
            server.url,
            tmp_path / "run",
            prompts=prompts(),
            levels=[{"sessions": 12, "concurrency": 4}],
            each_level={"warmup": "0 requests", "measure": "72 requests"},
        )
        assert server.peak == 4
    level = manifest["levels"][0]
    assert (level["label"], level["peak_in_flight"]) == ("12 sessions, concurrency 4", 4)
    conversations = by_conversation(records)
    over = min(turns[-1]["end_ns"] for turns in conversations.values() if len(turns) == 3)
    begun = sum(turns[0]["due_ns"] < over for turns in conversations.values())
    assert begun == 12  # all under way before the first is over
    waits = [row["slot_ns"] - row["due_ns"] for row in records]
    assert max(waits) > 80e6  # 12 for 4 places of 50 ms: the last waits for two others
    assert all(never_two_at_once(turns) for turns in conversations.values())


# --- history


def dataset(directory: Path) -> str:
    talk = [("human", "one"), ("gpt", "R"), ("human", "two"), ("gpt", "R too")]
    said = [{"from": who, "value": text} for who, text in talk]
    path = directory / "talks.json"
    path.write_bytes(orjson.dumps([{"id": "t", "conversations": said}]))
    return str(path)


@pytest.mark.parametrize("row", ["D27"])
@pytest.mark.parametrize(
    ("given", "named", "repeated"),
    [
        ({}, "live", "L"),
        ({"history": "live"}, "live", "L"),
        ({"history": "recorded"}, "recorded", "R"),
    ],
    ids=["default", "live", "recorded"],
)
def test_the_second_turn_repeats_the_history_that_was_chosen(
    row: str, given: dict[str, str], named: str, repeated: str, tmp_path: Path
) -> None:
    with scripted(serving(0.0)) as server:
        manifest, _ = measure(
            server.url,
            tmp_path / "run",
            prompts={"source": "dataset", "file": dataset(tmp_path), "turns": 2,
                     "output_tokens": 4, **given},
            levels=[{"sessions": 1}],
            each_level={"warmup": "0 requests", "measure": "2 requests"},
        )  # fmt: skip
    first, second = (asked.json["messages"] for asked in server.generations[-2:])
    assert first == [{"role": "user", "content": "one"}]
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert [message["content"] for message in second] == ["one", repeated, "two"]
    assert manifest["scenario"]["prompts"]["history"] == named


@pytest.mark.parametrize(("history", "words"), [("live", 1), ("recorded", 4)])
def test_a_made_conversation_repeats_the_answer_or_one_of_the_asked_length(
    history: str, words: int, tmp_path: Path
) -> None:
    with scripted(serving(0.0)) as server:
        measure(
            server.url,
            tmp_path / "run",
            prompts=prompts(history=history),
            levels=[{"sessions": 1}],
            each_level={"warmup": "0 requests", "measure": "3 requests"},
        )
    third = server.generations[-1].json["messages"]
    assert [len(message["content"].split()) for message in third] == [8, words, 8, words, 8]
    assert (third[1]["content"] == "L") == (history == "live")


# --- what cuts a conversation short


def test_a_failed_turn_ends_its_conversation_and_is_counted(tmp_path: Path) -> None:
    async def script(asked: Asked, out: Out) -> None:
        if len(asked.json["messages"]) == 3 and asked.json["max_tokens"] > 1:  # the second turn
            await out.whole(500, {"error": {"message": "lost the thread"}})
        else:
            await out.stream("a")

    with scripted(script) as server:
        manifest, records = measure(
            server.url,
            tmp_path / "run",
            prompts=prompts(),
            levels=[{"sessions": 2}],
            each_level={"warmup": "0 requests", "measure": "20 requests"},
        )
    turns = Counter((row["turn"], row["outcome"]) for row in records)
    assert set(turns) == {(0, "ok"), (1, "refused")}
    assert manifest["levels"][0]["conversations_cut"] == turns[1, "refused"] > 7


@pytest.mark.parametrize(
    "service_s",
    [
        pytest.param(0.0, id="while-thinking", marks=pytest.mark.slow),
        pytest.param(0.6, id="while-answered"),
    ],
)
def test_an_interrupt_does_not_wait_for_a_user_to_think(service_s: float, tmp_path: Path) -> None:
    with scripted(serving(service_s)) as server:
        line = command("run", "--url", server.url, "-c", "3", "--turns", "3", "--think-time", "30s",
                       "--duration", "60s", "--warmup", "0 requests", "--input-tokens", "8",
                       "--output-tokens", "4", "--out", str(tmp_path / "run"))  # fmt: skip
        with started(line, stdout=subprocess.PIPE) as running:
            until_said(running.stderr, ": measure")
            with pytest.raises(subprocess.TimeoutExpired):
                running.wait(0.2)
            running.send_signal(signal.SIGINT)
            _, stderr = running.communicate(timeout=8)
    manifest, records = read(tmp_path / "run")
    assert running.returncode == 130, stderr
    assert [(row["turn"], row["outcome"]) for row in records] == [(0, "ok")] * 3
    level = manifest["levels"][0]
    assert level["end_ns"] - level["start_ns"] < 2e9


def test_a_level_does_not_wait_for_turns_that_are_no_longer_due(tmp_path: Path) -> None:
    with scripted(serving(0.3)) as server:
        manifest, records = measure(
            server.url,
            tmp_path / "run",
            prompts=prompts(think_time="30s"),
            levels=[{"sessions": 3}],
            each_level={"warmup": "0 requests", "measure": "0.2s"},
        )
    level = manifest["levels"][0]
    assert [(row["turn"], row["outcome"]) for row in records] == [(0, "ok")] * 3
    assert level["end_ns"] - level["start_ns"] < 1e9


# --- conversations that arrive


@pytest.mark.slow
def test_each_arrival_of_a_schedule_begins_a_conversation(tmp_path: Path) -> None:
    parts: dict[str, Any] = {
        "prompts": prompts(turns=2, think_time="20ms"),
        "levels": [{"rate": 40.0, "arrivals": "poisson"}],
        "each_level": {"warmup": "0 requests", "measure": "1s"},
    }
    with scripted(serving(0.02)) as server:
        manifest, records = measure(server.url, tmp_path / "run", **parts)
        whole = schedule_of(scenario(server.url, **parts), 0, round_=0)
    start = manifest["levels"][0]["start_ns"]
    begun = [row["due_ns"] - start for row in records if row["turn"] == 0]
    assert sorted(begun) == whole.due_ns.tolist()
    for turns in by_conversation(records).values():
        assert never_two_at_once(turns)
        for earlier, later in pairwise(turns):
            assert later["due_ns"] - earlier["end_ns"] == pytest.approx(20e6, abs=5e6)
    assert manifest["levels"][0]["arrivals"] == len(records)
