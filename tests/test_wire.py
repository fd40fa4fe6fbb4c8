"""Wire quirks of real servers: class A of the case list, each whole and cut into small pieces."""

import json
import zlib
from collections.abc import Callable

import pytest
from wire_cases import (
    CAP,
    DONE,
    ROLE,
    SPLITS,
    Case,
    Read,
    at,
    chunk,
    completion,
    d,
    event,
    fin,
    play,
    reads,
    text_hash,
    tokens,
    usage,
)

from loadgen.client.answer import Answer, Endpoint
from loadgen.client.requests import HEADERS

A = b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}'
B = A.replace(b'"a"', b'"b"')
C = A.replace(b'"a"', b'"c"')
NIHAO = d("中🙂")
E4 = NIHAO.index("中".encode()) + 1  # after its first byte
F09F = NIHAO.index("🙂".encode()) + 2  # after its first two
LONG = "x" * 700_000
WHOLE = {
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there"},
            "finish_reason": "stop",
        }
    ],
    "usage": tokens(9, 12),
}
WEATHER = {"name": "f", "arguments": ""}


def case(*parts: Read, **expect: object) -> Case:
    return Case(reads=parts, expect=expect)


def tool(**function: str) -> bytes:
    return chunk({"tool_calls": [{"index": 0, "function": function}]})


def tool_counted(running: int, **function: str) -> bytes:
    return chunk({"tool_calls": [{"function": function}]}, usage=tokens(5, running))


def no_key(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


CASES: dict[str, Case] = {
    "A01": Case(
        reads=reads(NIHAO[:E4], NIHAO[E4:F09F], NIHAO[F09F:], fin("stop"), DONE),
        expect={"chunks": 1, "output_hash": text_hash("中🙂"), "outcome": "ok", "flags": []},
    ),
    "A03": case(
        at(5, d("a"), d("b"), usage(3, 2), DONE),
        times=[5, 5],
        usage=(3, 2),
        output_hash=text_hash("ab"),
        outcome="ok",
    ),
    "A04": case(
        at(1, b"data: ", A, b"\n\r\n"),
        at(2, b"data: ", B, b"\n\r\n"),
        at(3, b"data: ", C, b"\r\r"),
        at(4, b"data: [DONE]\r\r"),
        times=[1, 2, 3],
        output_hash=text_hash("abc"),
        complete_ms=4,
    ),
    "A06": case(at(1, b"data:", A, b"\n\ndata:[DONE]\n\n"), chunks=1, done_seen=True),
    "A07": case(
        at(50, b": PROCESSING\n\n"),
        at(100, b": PROCESSING\n\n"),
        at(200, b": keep-alive\n\n:\n\n"),
        at(800, d("a"), DONE),
        ttft=800,
        chunks=1,
        comments=4,
        error=None,
        flags=["no_finish_reason"],
    ),
    "A09": case(
        at(1, b'data: {"choices":[{"index":0,\ndata: "delta":{"content":"hi"}}]}\n\n'),
        chunks=1,
        output_hash=text_hash("hi"),
        flags=[],
    ),
    "A10": case(
        at(1, b"data: ", A, b"\n"),
        at(2, b"data: ", B, b"\n"),
        at(3, b"data: ", C, b"\n"),
        at(4, DONE),
        output_hash=text_hash("abc"),
        times=[2, 2, 3],  # the first is told apart only by the second; from then on each at once
        flags=["no_finish_reason", "nonconformant_framing"],
    ),
    "A12": case(
        at(
            1,
            b'event: error\ndata: {"type":"error","error":'
            b'{"type":"overloaded_error","message":"busy"}}\n\n',
        ),
        outcome="broken",
        error_class="server_error_in_stream",
        error="busy",
        chunks=0,
    ),
    "A13": case(
        at(1, d("a")),
        at(2, d("b")),
        at(3, event({"error": {"message": "engine died", "code": 500}})),
        at(4, DONE),
        outcome="broken",
        error_class="server_error_in_stream",
        error="engine died",
        chunks=2,
        e2e=2,
    ),
    "A16": Case(
        reads=[at(500, json.dumps(WHOLE).encode())],
        content_type="application/json",
        expect={
            "outcome": "ok",
            "flags": ["non_stream_response"],
            "usage": (9, 12),
            "token_source": "reported",
            "ttft": None,
            "e2e": None,
            "first_chunk_tokens": None,
            "end_ms": 500,
            "output_hash": text_hash("Hello there"),
        },
    ),
    "A17": Case(
        reads=[at(3, b"<html><head><title>Sign in</title></head></html>")],
        content_type="text/html; charset=utf-8",
        expect={
            "outcome": "broken",
            "error_class": "unexpected_content_type",
            "error": "text/html: Sign in",
        },
    ),
    "A18-done": case(
        at(1, DONE), outcome="broken", error_class="no_tokens", ttft=None, done_seen=True
    ),
    "A18-nothing": case(at(1, b""), outcome="broken", error_class="no_tokens", ttft=None),
    "A19": case(
        at(70, chunk({"content": "Yes"}, finish="stop")),
        at(80, usage(5, 1), DONE),
        ttft=70,
        chunks=1,
        finish_reasons=["stop"],
        usage=(5, 1),
    ),
    "A20": case(
        at(5, event({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]})),
        at(6, ROLE),
        at(200, d("a")),
        at(201, event({"choices": [{"index": 0, "content_filter_offsets": {"end": 1}}]})),
        at(202, fin("stop"), DONE),
        ttft=200,
        chunks=1,
        outcome="ok",
        flags=[],
    ),
    "A22": case(at(2, ROLE), at(150, d("Hi")), ttft=150, chunks=1),
    "A23": case(
        at(100, d("a")),
        at(160, usage(7, 1)),
        at(161, DONE),
        usage=(7, 1),
        e2e=100,
        complete_ms=161,
        chunks=1,
    ),
    "A24": case(
        at(1, d("a", usage=None), d("b", usage=None), usage(4, 2), DONE), usage=(4, 2), chunks=2
    ),
    "A26": case(
        *reads(
            d("a", usage=tokens(9, 22)), d("b", usage=tokens(9, 24)), d("c", usage=tokens(9, 26))
        ),
        usage=(9, 26),
        chunk_tokens=[22, 2, 2],
    ),
    "A28": case(
        *reads(no_key("a"), no_key("b"), fin("stop"), DONE),
        outcome="ok",
        finish_reasons=["stop"],
        chunks=2,
    ),
    "A30-finish": case(
        at(1, d("a"), fin("stop")), outcome="ok", done_seen=False, flags=["no_done"]
    ),
    "A30-cut": case(at(1, d("a")), outcome="truncated", chunks=1, ttft=1),
    "A32": case(at(90, d("a"), fin("stop")), at(100, DONE), complete_ms=100, outcome="ok"),
    "A33": case(
        at(1, d("a"), fin("stop"), DONE, DONE, d("z")),
        output_hash=text_hash("a"),
        chunks=1,
        after_done=2,
        outcome="ok",
        flags=["after_done"],
    ),
    "A34-no-lf": case(
        at(1, d("a"), fin("stop").removesuffix(b"\n\n")),
        finish_reasons=["stop"],
        outcome="ok",
        flags=["no_done", "unterminated_last_event"],
    ),
    "A34-one-lf": case(
        at(1, d("a"), fin("stop").removesuffix(b"\n")),
        finish_reasons=["stop"],
        outcome="ok",
        flags=["no_done", "unterminated_last_event"],
    ),
    "A36": case(
        at(1, b"\xef"),
        at(2, b"\xbb\xbf", d("a"), d("b")),
        output_hash=text_hash("ab"),
        bad_events=0,
        times=[2, 2],
    ),
    "A37": case(
        at(1, d("a\u2028b\u2029c\u0085d"), DONE),
        chunks=1,
        output_hash=text_hash("a\u2028b\u2029c\u0085d"),
    ),
    "A42": case(
        *(at(t, chunk({"reasoning_content": "hm"})) for t in range(100, 3000, 100)),
        at(3000, d("So")),
        ttft=100,
        ttfo=3000,
        kinds="r" * 29 + "c",
    ),
    "A43": case(at(80, chunk({"content": "", "reasoning": "Ok"})), ttft=80, ttfo=None, kinds="r"),
    "A45": case(
        at(1, *(chunk({"reasoning": "x"}) for _ in range(128))),
        at(2, fin("length"), usage(9, 128), DONE),
        outcome="ok",
        usage=(9, 128),
        ttfo=None,
        flags=[],
    ),
    "A47": case(
        at(120, tool(**WEATHER)),
        at(140, tool(arguments='{"a"')),
        at(160, tool(arguments=":1}")),
        at(161, fin("tool_calls"), DONE),
        ttft=120,
        outcome="ok",
        kinds="ttt",
        times=[120, 140, 160],
    ),
    "A49": case(
        at(435.8, d("a", usage=tokens(5, 1))),
        at(500.0, chunk({}, usage=tokens(5, 9))),  # the tool parser holds back what it has
        at(619.4, tool_counted(17, **WEATHER)),
        at(801.8, tool_counted(31, arguments="{}")),
        at(802.0, fin("tool_calls"), DONE),
        usage=(5, 31),
        chunk_tokens=[1, 16, 14],  # so TPOT = (801.8 - 435.8) / 30
        first_chunk_tokens=1,
        times=[435.8, 619.4, 801.8],
        tokens_known=True,
    ),
    "A50": Case(
        reads=reads(
            d("A"), d("X", 1), d("B"), d("Y", 1), fin("stop"), fin("stop", 1), usage(5, 4), DONE
        ),
        many=True,
        expect={
            "output_hash": text_hash("AB", "XY"),
            "usage": (5, 4),
            "finish_reasons": ["stop", "stop"],
            "choices": 2,
            "chunks": 4,
        },
    ),
    "A51": case(at(3, chunk({"role": "assistant", "content": None})), at(90, d("a")), ttft=90),
    "A52": Case(
        reads=[
            at(50, completion(" a")),
            at(60, completion(" b")),
            at(61, completion("", "length", usage=tokens(5, 2), timings={"predicted_n": 2})),
        ],
        endpoint="completions",
        expect={"chunks": 2, "e2e": 60, "usage": (5, 2), "finish_reasons": ["length"]},
    ),
    "A54": case(
        at(1, b'data: {"choices":[{"delta":{"role":"a\n\n', d("b"), DONE),
        bad_events=1,
        output_hash=text_hash("b"),
        outcome="ok",
        flags=["degraded", "no_finish_reason"],
    ),
}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("name", CASES)
def test_a_stream_means_the_same_however_it_is_cut(name: str, split: int) -> None:
    seen = play(CASES[name], split)
    assert {key: getattr(seen, key) for key in CASES[name].expect} == CASES[name].expect


@pytest.mark.parametrize("split", SPLITS.values(), ids=[f"A38-{name}" for name in SPLITS])
def test_a_data_line_of_700_000_characters_is_one_chunk(split: int) -> None:
    stream = d(LONG)
    # Cut small only at its ends: what lies between is one run of the same character.
    start, middle, end = stream[:80], stream[80:-80], stream[-80:]
    answer = Answer(endpoint="chat", max_event_bytes=CAP)
    pieces = [start, middle, end] if not split else [
        *(start[i : i + split] for i in range(0, 80, split)),
        middle,
        *(end[i : i + split] for i in range(0, 80, split)),
    ]  # fmt: skip
    deltas = [delta for piece in pieces for delta in answer.feed(piece)]
    assert len(deltas) == 1
    assert answer.facts().output_chars == 700_000
    assert answer.facts().output_hash == text_hash(LONG)


@pytest.mark.parametrize("wbits", [pytest.param(31, id="A40-gzip"), pytest.param(15, id="A40")])
def test_compression_is_not_asked_for_and_events_flushed_one_by_one_arrive_so(wbits: int) -> None:
    squeeze, expand = zlib.compressobj(wbits=wbits), zlib.decompressobj(wbits=wbits)
    answer = Answer(endpoint="chat", max_event_bytes=CAP)
    counts = [
        len(answer.feed(expand.decompress(squeeze.compress(d(text)) + squeeze.flush(2))))
        for text in "abc"
    ]
    assert counts == [1, 1, 1]
    assert HEADERS["accept-encoding"] == "identity"


def test_of_a_long_page_at_most_200_characters_are_kept() -> None:
    page = b"<html><title>Sign in</title>" + b"x " * 900
    seen = play(Case(reads=[at(3, page)], content_type="text/html", expect={}))
    assert seen.error_class == "unexpected_content_type"
    assert len(str(seen.error)) == 200


@pytest.mark.parametrize(
    ("endpoint", "token"),
    [
        pytest.param("chat", d("a"), id="B10-chat"),
        pytest.param("completions", completion("a"), id="B10-completions"),
    ],
)
def test_usage_and_done_do_not_move_the_last_token(endpoint: Endpoint, token: bytes) -> None:
    stream = [at(1000, token), at(1050, usage(5, 1)), at(1051, DONE), at(1100, b"")]
    seen = play(Case(reads=stream, endpoint=endpoint, expect={}))
    assert (seen.e2e, seen.complete_ms, seen.end_ms) == (1000, 1051, 1100)


def words(text: str) -> int:
    return len(text.split())


def words_and_bos(text: str) -> int:
    return words(text) + 1


PIECES = reads(d("Hel"), d("lo"), d(" world"), fin("stop"))


@pytest.mark.parametrize(
    ("parts", "count", "expected"),
    [
        pytest.param([usage(5, 2)], words, ("reported", 2, 2), id="B14-usage"),
        pytest.param([], words, ("counted", None, 2), id="B14-no-usage"),
        pytest.param([], words_and_bos, ("counted", None, 2), id="B15"),
        pytest.param([], None, ("chunks", None, None), id="B17"),  # 3 chunks; asked was 256
        pytest.param([usage(5, 0)], words, ("counted", 0, 2), id="usage-of-0"),
    ],
)
def test_output_is_reported_or_counted_once_over_the_joined_text_or_chunks(
    parts: list[bytes], count: Callable[[str], int] | None, expected: tuple[object, ...]
) -> None:
    seen = play(Case(reads=[*PIECES, at(9, *parts, DONE)], count=count, expect={}))
    assert (seen.token_source, seen.reported_output, seen.counted_output) == expected
    assert seen.chunks == 3
