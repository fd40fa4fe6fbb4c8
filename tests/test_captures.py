"""Every captured answer of a real server, decoded at its recorded read boundaries.

``wire/expected.json`` has a row for each capture: streams and whole answers as a second, simpler
reader (``wire_cases.read_by_lines``) finds them, refusals as a person read them.
"""

import json
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import pytest
from wire_cases import (
    SPLITS,
    WIRE,
    Capture,
    Case,
    Seen,
    body_reads,
    load,
    names,
    play,
    read_by_lines,
    text_hash,
)

from loadgen import engines
from loadgen.client.outcome import of_status
from loadgen.client.requests import expects_many

TABLE: Mapping[str, Mapping[str, Any]] = json.loads((WIRE / "expected.json").read_text())


def replay(capture: Capture, split: int = 0) -> Seen:
    case = Case(
        reads=body_reads(capture),
        endpoint=capture.endpoint,
        many=expects_many(capture.asked),
        content_type=capture.head["content-type"].split(";")[0],
        expect={},
    )
    return play(case, split)


def in_words(seen: Seen) -> dict[str, Any]:
    """What was seen, by the names of a row of streams."""
    facts = seen.facts
    return {
        "outcome": seen.outcome,
        "hash": facts.output_hash,
        "chars": facts.output_chars,
        "chunks": facts.chunks,
        "kinds": "".join(f"{len(list(run))}{kind}" for kind, run in groupby(seen.kinds)),
        "finish": facts.finish_reasons,
        "output": facts.reported_output,
        "input": facts.reported_input,
        "cached": facts.cached_input,
        "done": facts.done_seen,
        "first_ms": seen.ttft,
        "last_ms": seen.e2e,
        "flags": facts.flags,
    }


def test_every_capture_has_a_row() -> None:
    rows = [name for rows in TABLE.values() for name in rows]
    assert sorted(rows) == names()


@pytest.mark.parametrize("name", TABLE["streams"])
def test_a_captured_stream_is_read_as_the_table_says(name: str) -> None:
    assert in_words(replay(load(name))) == TABLE["streams"][name]


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("name", [n for n in TABLE["streams"] if n.startswith("vllm-chat")])
def test_a_captured_stream_may_be_cut_anywhere(name: str, split: int) -> None:
    assert in_words(replay(load(name), split)) == TABLE["streams"][name]


@pytest.mark.parametrize("name", TABLE["streams"])
def test_the_table_says_what_a_reader_by_lines_finds(name: str) -> None:
    found = read_by_lines(load(name))
    assert {key: TABLE["streams"][name][key] for key in found} == found


@pytest.mark.parametrize("name", TABLE["whole"])
def test_a_captured_whole_answer_is_ok_and_its_tokens_are_known(name: str) -> None:
    seen, row = replay(load(name)), TABLE["whole"][name]
    assert (seen.outcome, seen.flags, seen.ttft) == ("ok", ["non_stream_response"], None)
    assert (seen.output_hash, seen.finish_reasons) == (row["hash"], row["finish"])
    assert seen.usage == (row["input"], row["output"])


@pytest.mark.parametrize("name", TABLE["refused"])
def test_a_captured_refusal_has_its_class_and_the_servers_words(name: str) -> None:
    capture, row = load(name), TABLE["refused"][name]
    body = b"".join(read.data for read in body_reads(capture))
    verdict = of_status(capture.status, capture.head, body)
    assert (capture.status, verdict.outcome, verdict.error_class) == (
        row["status"],
        "refused",
        row["class"],
    )
    assert verdict.error == row["error"]


@pytest.mark.parametrize("name", TABLE["other"])
def test_an_engine_is_recognised_by_one_of_its_own_answers_or_not_at_all(name: str) -> None:
    capture, row = load(name), TABLE["other"][name]
    body = b"".join(read.data for read in body_reads(capture))
    kind = capture.request.rsplit("/", 1)[1]
    found = engines.recognise(
        server_header=capture.head["server"],
        version_body=body if kind == "version" else None,
        models_body=body if kind == "models" else None,
        metrics_head=body if kind == "metrics" else None,
    )
    assert (capture.status, found.name) == (200, row["engine"])


SPOT_CHECKS: dict[str, dict[str, Any]] = {
    # per-chunk totals 0 (role), 1 … 5
    "vllm-chat-stream-contusage": {"chunk_tokens": [1] * 5, "first_chunk_tokens": 1},
    # the first token alone, then four a chunk, the rest in the last
    "vllm-chat-stream-interval4-contusage": {"chunk_tokens": [1, 4, 4, 1], "tokens_known": True},
    # forced usage: the EOS that no chunk carries stays in the total of 18
    "vllm-chat-stream-interval4-forceusage": {"chunk_tokens": [1, 4, 4, 4, 4], "usage": (11, 18)},
    # token ids on each chunk, usage once at the end
    "vllm-chat-stream-tokenids": {"chunk_tokens": [1] * 4, "first_chunk_tokens": 1},
    "vllm-chat-stream-usage": {"chunk_tokens": [None] * 12, "first_chunk_tokens": None},
    "sglang-chat-stream-contusage": {"chunk_tokens": [1] * 5, "tokens_known": True},
    "sglang-chat-stream-interval4-contusage": {"chunk_tokens": [1, 4], "usage": (17, 6)},
    "sglang-chat-stream-interval4-reasoning": {"reasoning": 1, "flags": ["hidden_reasoning"]},
    # one usage for each choice, 4 and 4; the first comes while the other choice still sends
    "llama-server-chat-stream-n2": {"usage": (11, 8), "choices": 2, "tokens_known": False},
    # a usage of 3 on each finish chunk
    "llama-server-completions-stream-multiprompt": {"usage": (2, 6), "choices": 2},
    "transformers-err-negative-max-tokens": {
        "error_class": "server_error_in_stream",
        "error": "`max_new_tokens` must be greater than 0, but is -5.",
    },
    "llamacpp-disconnect": {"error_class": "truncated", "chunks": 33},
}


@pytest.mark.parametrize("name", SPOT_CHECKS)
def test_what_a_person_read_in_a_capture_is_seen(name: str) -> None:
    seen = replay(load(name))
    assert {key: getattr(seen, key) for key in SPOT_CHECKS[name]} == SPOT_CHECKS[name]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("vllm-chat-stream-contusage", "inti townthereq"),
        ("vllm-completions-stream-echo", "hello worldweenystem tell"),
        ("vllm-chat-stream-tool-required-nothink", "get_weathertrue"),
        ("transformers-completions-stream-usage", " stoneS tell\\ userwhleaystem"),
    ],
)
def test_the_text_read_by_eye_has_the_same_hash(name: str, text: str) -> None:
    assert replay(load(name)).output_hash == text_hash(text)
