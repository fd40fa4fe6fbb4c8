"""Properties of decoding: splits change nothing, no bytes raise or hang."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_cases import DONE, chunk, completion, d, event, fin, load, names, tokens, usage

from loadgen.client.answer import Answer, AnswerFacts, Delta, Endpoint, read_json_answer
from loadgen.client.outcome import of_status, of_stream

TEXT = st.text(max_size=8)
PARTS = st.one_of(
    st.builds(d, TEXT, st.integers(0, 2)),
    st.builds(lambda text, n: d(text, usage=tokens(3, n)), TEXT, st.integers(0, 9)),
    st.builds(lambda text: chunk({"reasoning": text}), TEXT),
    st.builds(completion, TEXT),
    st.builds(usage, st.integers(0, 9), st.integers(0, 9)),
    st.sampled_from(
        [
            fin("stop"),
            fin("length", 1),
            DONE,
            b": keep-alive\n\n",
            b"data: null\n\n",
            b"data: {broken\n\n",
            b'data: {"choices":[\ndata: ]}\n\n',
            b'data: {"choices":[]}\ndata: {"choices":[]}\n\n',
            b"event: ping\ndata: {}\n\n",
            b"id: 4\n",
            b"\n",
            b"data: half",
            event({"error": {"message": "boom"}}),
        ]
    ),
)
LINE_ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """A stream of ordinary and odd events, with any line ends, perhaps after a BOM."""
    parts = [part.replace(b"\n", draw(LINE_ENDS)) for part in draw(st.lists(PARTS, max_size=12))]
    return draw(st.sampled_from([b"", b"\xef\xbb\xbf"])) + b"".join(parts)


@st.composite
def cut(draw: st.DrawFn, whole: bytes) -> list[bytes]:
    """The same bytes in pieces, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    return [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]


def decode(
    pieces: list[bytes], endpoint: Endpoint = "chat", cap: int = 1 << 20
) -> tuple[list[Delta], AnswerFacts, Answer]:
    answer = Answer(endpoint=endpoint, max_event_bytes=cap, expects_many=True)
    deltas = [delta for piece in pieces for delta in answer.feed(piece)]
    deltas += answer.close()
    return deltas, answer.facts(), answer


@settings(max_examples=150, deadline=None)
@given(data=st.data(), whole=streams(), cap=st.sampled_from([40, 1 << 20]))
def test_any_split_of_any_stream_gives_the_same_deltas_and_facts(
    data: st.DataObject, whole: bytes, cap: int
) -> None:
    deltas, facts, answer = decode([whole], cap=cap)
    cut_deltas, cut_facts, cut_answer = decode(data.draw(cut(whole)), cap=cap)
    assert cut_deltas == deltas
    # What follows an error in the same read was decoded, and counted, beside it.
    assert answer.error or cut_facts == facts
    assert (cut_answer.error, cut_answer.complete) == (answer.error, answer.complete)


@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(st.binary(max_size=200), max_size=8), status=st.integers(200, 599))
def test_no_bytes_make_anything_raise(pieces: list[bytes], status: int) -> None:
    _, facts, answer = decode(pieces, "completions", cap=100)
    body = b"".join(pieces)
    of_stream(answer, ended="eof", content_type=None, body_head=body)
    of_status(status, {}, body)
    read_json_answer(body, "chat")
    assert facts.chunks >= 0


KEYS = st.sampled_from(
    [
        "choices",
        "delta",
        "content",
        "text",
        "usage",
        "index",
        "error",
        "message",
        "detail",
        "completion_tokens",
        "prompt_tokens",
        "tool_calls",
        "function",
        "arguments",
        "finish_reason",
        "token_ids",
        "reasoning",
        "refusal",
        "code",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
TOP_KEYS = st.sampled_from(["choices", "usage", "error", "detail"])


@settings(max_examples=150, deadline=None)
@given(bodies=st.lists(st.dictionaries(TOP_KEYS, JSON), max_size=4))
def test_no_json_makes_anything_raise(bodies: list[dict[str, object]]) -> None:
    _, _, answer = decode([event(body) for body in bodies])
    of_stream(answer, ended="eof", content_type=None, body_head=b"")
    for body in bodies:
        read_json_answer(event(body)[6:], "chat")
        of_status(400, {}, event(body)[6:])


def test_deep_nesting_and_long_numbers_are_malformed_events_not_failures() -> None:
    deep, long = b"[" * 100_000, b'{"choices":' + b"9" * 10_000 + b"}"
    for data in (deep, long, b"{" * 5000):
        _, facts, answer = decode([b"data: " + data + b"\n\n" + d("a")])
        assert (facts.chunks, answer.error) == (1, None)


def mutated(raw: bytes, rng: np.random.Generator) -> bytes:
    """Flip, drop, double or move some of a stream's bytes."""
    data = bytearray(raw)
    for _ in range(int(rng.integers(1, 12))):
        a, b = sorted(int(place) for place in rng.integers(0, len(data) + 1, 2))
        match int(rng.integers(0, 4)):
            case 0 if a < len(data):
                data[a] = int(rng.integers(0, 256))
            case 1:
                del data[a : min(b, a + 40)]
            case 2:
                data[a:a] = data[a : min(b, a + 400)]
            case _:
                data[a:a] = bytes(data[b : b + 60])
    return bytes(data)


def fuzz(rounds: int, until_s: float, seed: int) -> int:
    """Decode mutated captures; return how many. Each must end, whole and cut alike."""
    rng = np.random.default_rng(seed)
    raws = [load(name).raw for name in names() if "-stream" in name]
    end = time.monotonic() + until_s
    for done in range(rounds):
        if time.monotonic() > end:
            return done
        stream = mutated(raws[int(rng.integers(len(raws)))], rng)
        size = int(rng.integers(1, 400))
        whole = decode([stream])
        parts = decode([stream[i : i + size] for i in range(0, len(stream), size)])
        assert whole[0] == parts[0]
        assert whole[2].error or whole[1] == parts[1]
    return rounds


def test_mutated_captures_are_decoded_to_their_end() -> None:
    assert fuzz(rounds=150, until_s=5, seed=20261130) > 10


@pytest.mark.slow
def test_mutated_captures_are_decoded_to_their_end_for_ten_seconds() -> None:
    assert fuzz(rounds=1_000_000, until_s=10, seed=7) > 100
