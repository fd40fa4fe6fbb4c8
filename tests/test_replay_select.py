"""What is kept of a log, and its figures, against slow and plain ways to find the same."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_make import chat, litellm, log_file, mooncake, read, replaying

from loadgen.units import NS_PER_S
from loadgen.workload.plan import schedule_of
from loadgen.workload.replay.blocks import block_ids, fine_ids, hit_share, tokens_in
from loadgen.workload.replay.entry import Entry
from loadgen.workload.replay.follow import kept_of
from loadgen.workload.replay.found import facts_of

PREFIXES = st.lists(st.lists(st.integers(0, 6), max_size=5), min_size=1, max_size=30)


def plain_share(requests: list[list[int]]) -> float | None:
    seen: set[int] = set()
    hits = total = 0
    for ids in requests:
        for at, one in enumerate(ids):
            if one not in seen:
                break
            hits = hits + 1
            assert at < len(ids)
        total += len(ids)
        seen.update(ids)
    return hits / total if total else None


@given(PREFIXES)
def test_the_share_of_hits_is_that_of_a_cache_without_limit(requests: list[list[int]]) -> None:
    flat = np.array([one for ids in requests for one in ids], dtype=np.uint64)
    counts = np.array([len(ids) for ids in requests], dtype=np.int64)
    share = hit_share(flat, counts, np.arange(len(requests)))
    assert share == pytest.approx(plain_share(requests))


def test_hits_are_counted_in_the_order_of_time() -> None:
    ids, counts = np.array([1, 2, 1], dtype=np.uint64), np.array([2, 1])
    assert hit_share(ids, counts, np.array([0, 1])) == pytest.approx(1 / 3)
    assert hit_share(ids, counts, np.array([1, 0])) == pytest.approx(1 / 3)
    longer = np.array([1, 2, 1, 2, 3], dtype=np.uint64)
    assert hit_share(longer, np.array([2, 3]), np.array([0, 1])) == pytest.approx(2 / 5)


ROWS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 4)), min_size=2, max_size=40
)  # second, session (0: none)


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_every_request_is_kept_once_and_conversations_stay_in_order(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]]
) -> None:
    made = [mooncake(1000 * at, session_id=f"s{one}" if one else None) for at, one in rows]
    path = log_file(tmp_path_factory.mktemp("log"), made)
    scenario = replaying(path, time_unit="ms")
    log, kept = read(path), kept_of(scenario, scenario.prompts)
    assert sorted(kept.members.tolist()) == list(range(len(rows)))
    starts = log.arrival_ns[kept.firsts]
    assert (np.diff(starts) >= 0).all()
    for one in range(kept.conversations):
        members = kept.of(one)
        assert (np.diff(log.arrival_ns[members]) >= 0).all()
        assert len({rows[int(member)][1] for member in members}) == 1
    due = schedule_of(scenario, 0, round_=0).due_ns
    assert due.tolist() == (starts - starts[0]).tolist()


def test_a_sample_of_a_log_on_a_grid_is_still_spread(tmp_path: Path) -> None:
    path = log_file(tmp_path, [mooncake(3000 * at) for at in range(50) for _ in range(8)])
    scenario = replaying(path, {"speed": 1, "jitter": True}, sample=0.02)
    due = schedule_of(scenario, 0, round_=0).due_ns / NS_PER_S
    assert len(due) == 8
    assert (np.abs(due / 3 - np.round(due / 3)) > 1e-6).sum() >= 6


def test_equal_beginnings_of_texts_have_equal_blocks() -> None:
    one, other = (Entry(messages=chat("a" * 1500 + text)) for text in ("x" * 400, "y" * 700))
    first, second = block_ids(one), block_ids(other)
    assert first[:2] == second[:2]
    assert not set(first[2:]) & set(second[2:])
    assert block_ids(one, b"salt") != first


def test_the_next_turn_of_a_conversation_meets_the_one_before(tmp_path: Path) -> None:
    said = ["q" * 3000, "r" * 3000, "s" * 3000]
    rows = [litellm(0, chat(said[0])), litellm(5, chat(*said))]
    share = facts_of(read(log_file(tmp_path, rows)))["prefix_hit_share"]
    assert share == pytest.approx(5 / 24, abs=0.01)


def test_tools_come_before_messages_and_part_prefixes() -> None:
    tools = [{"type": "function", "function": {"name": "now"}}]
    plain, armed = Entry(messages=chat("a")), Entry(messages=chat("a"), params={"tools": tools})
    assert block_ids(plain) != block_ids(armed)


def test_what_turns_repeat_counts_though_they_are_short(tmp_path: Path) -> None:
    said = ["a" * 90, "b" * 90, "c"]  # the first turn has 123 bytes, of which the second repeats
    rows = [litellm(0, chat(*said[:1]), session_id="s"), litellm(1, chat(*said), session_id="s")]
    share = facts_of(read(log_file(tmp_path, rows)))["prefix_hit_share"]
    # blocks of 64 bytes: 2 and 5; the last of the first turn goes on otherwise in the second
    assert share == pytest.approx(1 / 7)


def test_a_long_text_has_eight_fine_blocks_and_then_whole_ones(tmp_path: Path) -> None:
    path = log_file(tmp_path, [{"prompt": "x" * 1200}])
    entry = read(path, chat=False).entry(0)
    ids = fine_ids(entry)
    assert len(ids) == 8 + 2
    counts = np.array([3, 8, 10, 10])
    text = np.array([True, True, True, False])
    assert tokens_in(counts, text=text, block_size=5).tolist() == [48, 128, 384, 50]
