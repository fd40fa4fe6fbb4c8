"""Server-sent events: bytes in, events out. No I/O; any split of the bytes gives the same events.

Follows the WHATWG event stream rules (lines end in LF, CR or CRLF; one leading BOM is dropped; one
space after the colon is dropped; data lines join with LF), with three deliberate leniencies, each
of them flagged, because servers under test do these things and their tokens are real:

- an event that the end of the body cuts off is still delivered (``unterminated_last_event``);
- one LF between events instead of two: a data line that is a whole JSON value by itself ends its
  event when the next data line begins (``nonconformant_framing``), and from then on every such
  line is delivered at once, so that its stamp is its own;
- a ``[DONE]`` line ends its event at once: no blank line has to follow.
"""

from typing import NamedTuple

import orjson

UNTERMINATED_LAST_EVENT = "unterminated_last_event"
NONCONFORMANT_FRAMING = "nonconformant_framing"

DONE = b"[DONE]"

_BOM = b"\xef\xbb\xbf"
_LINE_ENDS = (b"\n", b"\r")


class Event(NamedTuple):
    """One event: its data lines joined with LF, and its name where an ``event:`` line gave one."""

    data: bytes
    name: str | None


class EventTooLarge(Exception):
    """An event outgrew the cap; ``events`` are those completed before it in the same feed."""

    def __init__(self, limit: int, events: list[Event]) -> None:
        super().__init__(f"an event of more than {limit} bytes")
        self.limit = limit
        self.events = events


class EventDecoder:
    """Decodes one response body. Memory is bounded by ``max_event_bytes`` and one read."""

    __slots__ = (
        "_at_start",
        "_data",
        "_held",
        "_idle",
        "_line_per_event",
        "_max",
        "_name",
        "_partial",
        "_skip_lf",
        "comments",
        "flags",
    )

    def __init__(self, max_event_bytes: int) -> None:
        self.comments = 0
        self.flags: set[str] = set()
        self._max = max_event_bytes
        self._partial: list[bytes] = []  # pieces of a line whose end has not come
        self._data: list[bytes] = []  # data lines of the event that is open
        self._held = 0  # bytes in the two lists above
        self._name: str | None = None
        self._skip_lf = False  # a CR ended the last read: an LF may belong to it
        self._at_start = True
        self._line_per_event = False
        self._idle = True  # nothing held, nothing to skip: whole blocks need no line splitting

    def single(self, data: bytes) -> bytes | None:
        """Return the data of a read that is exactly one "data: ..." block; None for any other.

        The ordinary read of a token stream, without lines, lists or events: half of ``feed``'s
        cost. On None nothing has been taken: ``feed`` the same bytes.
        """
        if (
            self._idle
            and data.find(b"\n") == len(data) - 2
            and data[-1:] == b"\n"
            and data[:6] == b"data: "
            and data.find(b"\r") < 0
            and len(data) <= self._max
        ):
            self._at_start = False
            return data[6:-2]
        return None

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that these bytes complete; raise EventTooLarge beyond the cap."""
        if self._idle and data[-2:] == b"\n\n" and len(data) <= self._max:
            events = _whole_blocks(data)
            if events is not None:
                self._at_start = False
                return events
        return self._feed_lines(data)

    def close(self) -> list[Event]:
        """Return what the end of the body leaves behind: at most one event, flagged."""
        events: list[Event] = []
        if self._partial:
            line = b"".join(self._partial)
            self._partial.clear()
            if self._at_start:
                line = line.removeprefix(_BOM)
            self._line(line, events)
        if self._data:
            self._dispatch(events)
        elif not events:
            return events
        self.flags.add(UNTERMINATED_LAST_EVENT)
        return events

    def _feed_lines(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        if self._at_start:
            data = self._without_bom(data)
        if self._skip_lf and data:
            self._skip_lf = False
            data = data.removeprefix(b"\n")
        for piece in data.splitlines(keepends=True):
            if piece[-1:] in _LINE_ENDS:
                line = piece.rstrip(b"\r\n")
                if self._partial:
                    line = b"".join([*self._partial, line])
                    self._held -= sum(map(len, self._partial))
                    self._partial.clear()
                self._check_size(len(line), events)
                self._line(line, events)
            else:
                self._check_size(len(piece), events)
                self._partial.append(piece)
                self._held += len(piece)
        self._skip_lf = data[-1:] == b"\r" or (self._skip_lf and not data)
        self._idle = not (self._partial or self._data or self._name or self._skip_lf)
        self._idle = self._idle and not self._at_start and not self._line_per_event
        return events

    def _without_bom(self, data: bytes) -> bytes:
        """Drop one leading BOM; hold back up to two bytes that may become one."""
        start = b"".join(self._partial) + data
        self._partial.clear()
        self._held = 0
        if len(start) < len(_BOM) and _BOM.startswith(start):
            if start:
                self._partial.append(start)
                self._held = len(start)
            return b""
        self._at_start = False
        return start.removeprefix(_BOM)

    def _check_size(self, more: int, events: list[Event]) -> None:
        if self._held + more > self._max:
            self._partial.clear()
            self._data.clear()
            self._held = 0
            raise EventTooLarge(self._max, events)

    def _line(self, line: bytes, events: list[Event]) -> None:
        if not line:
            if self._data:
                self._dispatch(events)
            self._name = None
        elif line[0] == 0x3A:  # a colon first: a comment
            self.comments += 1
        else:
            field, _, value = line.partition(b":")
            if value[:1] == b" ":
                value = value[1:]
            if field == b"data":
                self._data_line(value, events)
            elif field == b"event":
                self._name = value.decode("utf-8", "replace")
            # id and retry serve reconnecting readers; unknown fields are ignored by the rules

    def _data_line(self, value: bytes, events: list[Event]) -> None:
        done = value.strip() == DONE
        if len(self._data) == 1 and (done or _is_whole(self._data[0])):
            self.flags.add(NONCONFORMANT_FRAMING)
            self._line_per_event = True
            self._dispatch(events)
        elif self._data and done:
            self.flags.add(NONCONFORMANT_FRAMING)
            self._dispatch(events)
        self._data.append(value)
        self._held += len(value) + 1
        if done or (self._line_per_event and len(self._data) == 1 and _is_whole(value)):
            self._dispatch(events)

    def _dispatch(self, events: list[Event]) -> None:
        data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
        events.append(Event(data, self._name))
        self._data.clear()
        self._held = 0
        self._name = None


def _whole_blocks(data: bytes) -> list[Event] | None:
    """Return the events of bytes made of one-line data blocks only; None when anything else is in.

    ``data`` ends in LF LF.
    """
    if data.find(b"\r") >= 0:
        return None
    events = []
    for block in data[:-2].split(b"\n\n"):
        if block[:6] != b"data: " or b"\n" in block:
            return None
        events.append(Event(block[6:], None))
    return events


def _is_whole(value: bytes) -> bool:
    """Say whether one data line is a JSON value by itself."""
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True
