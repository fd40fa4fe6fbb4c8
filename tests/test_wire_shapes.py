"""The shapes in which servers write tokens, errors and what is neither."""

from typing import Any

import pytest
from wire_cases import DONE, SPLITS, Case, at, chunk, d, event, fin, play, reads, text_hash

from loadgen.client.answer import Answer

A = b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'


ERRORS: dict[str, bytes] = {
    "nested": event({"error": {"message": "boom", "type": "x", "code": 500}}),
    "flat": event({"object": "error", "message": "boom", "code": 500}),
    "string": event({"error": "boom"}),
    "typed": event({"type": "error", "message": "boom"}),
    "detail": event({"detail": "boom"}),
    "message-and-code": event({"message": "boom", "code": 503}),
    "beside-choices": event({"choices": [{"index": 0, "delta": {}}], "error": {"message": "boom"}}),
    "named-event": b'event: error\ndata: {"message":"boom"}\n\n',
    "named-event-beside-choices": b'event: error\ndata: {"choices":[],"message":"boom"}\n\n',
    "named-event-text": b"event: error\ndata: boom\n\n",
    "named-event-json-string": b'event: error\ndata: "boom"\n\n',
    "named-after-data": b'data: "boom"\nevent: error\n\n',
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_an_error_in_the_stream_is_found_in_every_shape(error: bytes) -> None:
    seen = play(Case(reads=reads(d("a"), error, d("b"), DONE), expect={}), split=3)
    assert (seen.outcome, seen.error_class) == ("broken", "server_error_in_stream")
    assert (seen.error, seen.chunks) == ("boom", 1)


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_finish_reason_that_says_failure_is_a_failure(reason: str) -> None:
    seen = play(Case(reads=reads(d("a"), fin(reason), DONE), expect={}))
    assert (seen.outcome, seen.error_class) == ("broken", "server_error_in_stream")


HARMLESS: dict[str, bytes] = {
    "null": b"data: null\n\n",
    "empty-data": b"data:\n\n",
    "ping": b"event: ping\ndata: {}\n\n",
    "side-channel": b'event: sglext_ids\ndata: {"ids":[1,2]}\n\n',
    "null-error": event({"choices": [], "error": None}),
    "null-choices": event({"choices": None}),
    "id-and-retry": b"id: 7\nretry: 1000\n\n",
    "odd-types": event({"choices": [7, None, {"index": "x", "delta": 3, "token_ids": 4}]}),
    "odd-usage": event({"choices": [], "usage": [1]}),
    "odd-numbers": event({"choices": [], "usage": {"completion_tokens": -3, "prompt_tokens": 1.5}}),
    "space-before-lf": b'data: {"choices":[]} \n\n',
}


@pytest.mark.parametrize("between", HARMLESS.values(), ids=HARMLESS)
def test_what_is_no_token_changes_nothing(between: bytes) -> None:
    seen = play(Case(reads=reads(between, d("a"), between, fin("stop"), DONE), expect={}))
    assert (seen.outcome, seen.chunks, seen.bad_events, seen.flags) == ("ok", 1, 0, [])
    assert seen.usage == (None, None)


DELTAS: dict[str, tuple[dict[str, Any], str, str]] = {
    "refusal": ({"refusal": "I cannot"}, "f", "I cannot"),
    "reasoning-then-content": ({"reasoning_content": "x", "content": "y"}, "c", "xy"),
    "content-then-reasoning": ({"content": "y", "reasoning": "x"}, "c", "yx"),
    "both-spellings": ({"reasoning": "x", "reasoning_content": "x"}, "r", "x"),
    "old-function-call": ({"function_call": {"name": "f"}}, "t", "f"),
    "argument-object": ({"tool_calls": [{"function": {"arguments": {"a": 1}}}]}, "t", '{"a": 1}'),
    "content-parts": ({"content": [{"type": "text", "text": "y"}]}, "c", "y"),
    "thinking-part": ({"content": [{"thinking": [{"text": "x"}]}]}, "r", "x"),
}


@pytest.mark.parametrize(("delta", "kind", "text"), DELTAS.values(), ids=DELTAS)
def test_each_channel_is_read_and_visible_output_wins(
    delta: dict[str, Any], kind: str, text: str
) -> None:
    seen = play(Case(reads=[at(1, chunk(delta))], expect={}))
    assert (seen.kinds, seen.output_hash) == (kind, text_hash(text))


def test_several_choices_in_one_event_are_several_chunks() -> None:
    both = {"choices": [{"index": i, "delta": {"content": t}} for i, t in enumerate("ab")]}
    seen = play(Case(reads=[at(1, event(both))], many=True, expect={}))
    assert [(s.delta.kind, s.delta.choice) for s in seen.stamped] == [("c", 0), ("c", 1)]


def test_a_whole_message_in_one_event_is_one_chunk_and_is_not_read_twice() -> None:
    said = event({"choices": [{"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}]})
    assert play(Case(reads=[at(1, said, DONE)], expect={})).chunks == 1
    assert play(Case(reads=[at(1, d("Hi"), said, DONE)], expect={})).chunks == 1


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        pytest.param(A.replace(b'"a"', b'"a\xff"'), "a\ufffd", id="utf8"),
        pytest.param(A.replace(b"null", b"-Infinity"), "a", id="infinity"),
    ],
)
def test_json_that_only_servers_write_is_read(stream: bytes, text: str) -> None:
    seen = play(Case(reads=[at(1, b"data: ", stream, b"\n\n")], expect={}))
    assert (seen.output_hash, seen.bad_events) == (text_hash(text), 0)
    assert ("invalid_utf8" in seen.flags) == ("\ufffd" in text)


def test_half_of_a_surrogate_pair_does_not_stop_the_reading() -> None:
    seen = play(Case(reads=[at(1, b'data: {"choices":[{"text":"\\ud83d"}]}\n\n')], expect={}))
    assert (seen.chunks, seen.output_chars) == (1, 1)


def test_an_event_cut_in_half_is_part_of_the_cut_not_a_malformed_event() -> None:
    seen = play(Case(reads=[at(1, d("a"), d("b")[:30])], expect={}))
    assert (seen.outcome, seen.bad_events, seen.chunks) == ("truncated", 0, 1)


def test_an_event_beyond_the_cap_ends_the_answer_and_keeps_what_came_before() -> None:
    answer = Answer(endpoint="chat", max_event_bytes=1000)
    assert len(answer.feed(d("a") + d("x" * 2000) + d("b"))) == 1
    assert answer.error is not None
    assert answer.error.error_class == "event_too_large"
    assert answer.feed(d("c")) == []


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_a_done_line_ends_the_answer_without_a_blank_line(split: int) -> None:
    seen = play(Case(reads=reads(d("a"), fin("stop"), b"data: [DONE]\n"), expect={}), split)
    assert (seen.complete_ms, seen.outcome, seen.flags) == (3, "ok", [])
