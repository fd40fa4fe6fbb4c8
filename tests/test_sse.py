"""The event stream decoder: framing, names, comments, the cap, the end."""

import pytest
from wire_cases import SPLITS, pieces_of

from loadgen.client.sse import Event, EventDecoder, EventTooLarge


def decode(data: bytes, split: int = 0, cap: int = 1000) -> tuple[list[Event], EventDecoder]:
    decoder = EventDecoder(cap)
    events = [event for piece in pieces_of(data, split) for event in decoder.feed(piece)]
    return events + decoder.close(), decoder


FRAMES: dict[str, tuple[bytes, list[Event]]] = {
    "lf": (b"data: 1\n\ndata: 2\n\n", [Event(b"1", None), Event(b"2", None)]),
    "crlf": (b"data: 1\r\n\r\ndata: 2\r\n\r\n", [Event(b"1", None), Event(b"2", None)]),
    "cr": (b"data: 1\r\rdata: 2\r\r", [Event(b"1", None), Event(b"2", None)]),
    "mixed": (b"data: 1\r\n\ndata: 2\n\r\n", [Event(b"1", None), Event(b"2", None)]),
    "no-space": (b"data:1\n\n", [Event(b"1", None)]),
    "one-space-only": (b"data:  1\n\n", [Event(b" 1", None)]),
    "colon-in-data": (b"data: a:b\n\n", [Event(b"a:b", None)]),
    "lines-join": (b"data: {\ndata: }\n\n", [Event(b"{\n}", None)]),
    "crlf-lines-join": (b"data: {\r\ndata: }\r\n\r\n", [Event(b"{\n}", None)]),
    "cr-lines-join": (b"data: {\rdata: }\r\r", [Event(b"{\n}", None)]),
    "empty-data": (b"data\n\n", [Event(b"", None)]),
    "named": (b"event: error\ndata: 1\n\n", [Event(b"1", "error")]),
    "name-ends-with-its-event": (b"event: x\n\ndata: 1\n\n", [Event(b"1", None)]),
    "named-after-data": (b"data: x\nevent: error\n\n", [Event(b"x", "error")]),
    "other-fields": (b"id: 1\nretry: 2\nfoo: 3\nbar\ndata: 1\n\n", [Event(b"1", None)]),
    "comment-between-lines": (b"data: {\n: hi\ndata: }\n\n", [Event(b"{\n}", None)]),
    "blank-lines": (b"\n\n\ndata: 1\n\n\n\n", [Event(b"1", None)]),
    "bom": (b"\xef\xbb\xbfdata: 1\n\n", [Event(b"1", None)]),
    "second-bom-is-text": (b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\ndata: 2\n\n", [Event(b"2", None)]),
    "bom-later-is-text": (b"data: 1\n\n\xef\xbb\xbfdata: 2\n\n", [Event(b"1", None)]),
    "unicode-line-ends": (
        "data: a\u2028b\u0085c\x0bd\n\n".encode(),
        [Event("a\u2028b\u0085c\x0bd".encode(), None)],
    ),
    "html": (b"<html>\n<body>\n\n</html>", []),
    "done-without-blank-line": (b"data: [DONE]\n", [Event(b"[DONE]", None)]),
    "done-glued": (b"data: 1\ndata: [DONE]\n\n", [Event(b"1", None), Event(b"[DONE]", None)]),
    "one-lf": (
        b'data: {"a":1}\ndata: {"b":2}\n\ndata: 3\n\n',
        [Event(b'{"a":1}', None), Event(b'{"b":2}', None), Event(b"3", None)],
    ),
    "one-lf-named": (
        b"event: x\ndata: 1\ndata: 2\n\n",
        [Event(b"1", "x"), Event(b"2", None)],
    ),
    "unterminated": (b"data: 1", [Event(b"1", None)]),
    "unterminated-bom": (b"\xef\xbb", []),
    "nothing": (b"", []),
}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize(("data", "events"), FRAMES.values(), ids=FRAMES)
def test_bytes_become_the_same_events_however_cut(
    data: bytes, events: list[Event], split: int
) -> None:
    assert decode(data, split)[0] == events


@pytest.mark.parametrize(
    ("data", "flags"),
    [
        pytest.param(b"data: 1\n\n", set(), id="conformant"),
        pytest.param(b"data: {\ndata: }\n\n", set(), id="lines-that-need-each-other"),
        pytest.param(b"data: 1\ndata: 2\n\n", {"nonconformant_framing"}, id="one-lf"),
        pytest.param(b"data: {\ndata: [DONE]\n\n", {"nonconformant_framing"}, id="done-glued"),
        pytest.param(b"data: 1\n", {"unterminated_last_event"}, id="one-lf-at-the-end"),
        pytest.param(b"data: 1", {"unterminated_last_event"}, id="no-lf-at-the-end"),
        pytest.param(b"data: 1\n\n: bye", set(), id="comment-at-the-end"),
        pytest.param(b"data: [DONE]", {"unterminated_last_event"}, id="done-cut"),
    ],
)
def test_each_leniency_is_flagged(data: bytes, flags: set[str]) -> None:
    assert decode(data, 1)[1].flags == flags
    assert decode(data)[1].flags == flags


def test_an_event_is_delivered_by_the_byte_that_completes_it() -> None:
    decoder = EventDecoder(100)
    assert [len(decoder.feed(bytes([byte]))) for byte in b"data: 1\r\r\ndata: 2\r\r"] == (
        [0] * 8 + [1] + [0] * 9 + [1]
    )


def test_with_one_lf_between_events_each_line_is_delivered_at_its_end() -> None:
    decoder = EventDecoder(100)
    lines = [b'data: {"a":1}\n', b'data: {"a":2}\n', b'data: {"a":3}\n']
    assert [len(decoder.feed(line)) for line in lines] == [0, 2, 1]


def test_comments_are_counted() -> None:
    assert decode(b": a\n\n:\n\n:b\ndata: 1\n\n", 2)[1].comments == 3


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"data: " + b"x" * 50, id="a-line"),
        pytest.param(b"data: xxxx\n" * 10 + b"\n", id="many-lines"),
        pytest.param(b": " + b"x" * 50 + b"\n", id="a-comment"),
        pytest.param(b"data: " + b"x" * 50 + b"\n\n", id="a-whole-event"),
    ],
)
def test_beyond_the_cap_it_stops_with_what_came_before(data: bytes, split: int) -> None:
    decoder = EventDecoder(40)
    pieces = pieces_of(b"data: 1\n\n" + data, split)
    found: list[Event] = []
    with pytest.raises(EventTooLarge) as fault:
        found.extend(event for piece in pieces for event in decoder.feed(piece))
    # extend keeps what came before the fault; the events of the faulty read travel with it
    assert found + fault.value.events == [Event(b"1", None)]


def test_events_up_to_the_cap_pass_and_their_number_does_not_matter() -> None:
    stream = (b"data: " + b"x" * 34 + b"\n\n") * 20
    for split in SPLITS.values():
        assert len(decode(stream, split, cap=40)[0]) == 20


def test_a_read_of_one_whole_event_takes_the_short_way_and_means_the_same() -> None:
    decoder = EventDecoder(100)
    assert decoder.single(b"data: 1\n\n") == b"1"
    for other in (b"data:1\n\n", b"data: 1\n", b"data: 1\r\n\n", b"data: 1\n\ndata: 2\n\n", b"\n"):
        assert decoder.single(other) is None
    decoder.feed(b"data: hal")
    assert decoder.single(b"data: 1\n\n") is None
