"""A log, gone through once: what each request amounts to, in flat arrays, and where its text lies.

Memory follows the number of requests, some tens of bytes each and eight for each prefix block,
never the bytes of the file. The text of a request is read again when it is due.
"""

from array import array
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.errors import UsageError
from loadgen.scenario.prompts import Prompts
from loadgen.workload.replay.blocks import fine_ids
from loadgen.workload.replay.entry import Entry, Reading, chars_of
from loadgen.workload.replay.formats import FORMATS, Format, format_of, readable
from loadgen.workload.replay.roles import alternate
from loadgen.workload.rows import BadRow, Container, RowFile

Numbers = npt.NDArray[np.int64]

NO_TIME = -1
NO_COUNT = -1
CHARS_PER_TOKEN = 4
"""Where a log does not count its tokens: a rough rule, and every figure made with it says so."""

FAILED, WRONG_ROLES, ESTIMATED_INPUT, ESTIMATED_OUTPUT, TEXT = 1, 2, 4, 8, 16

_SHOWN_ROWS = 5
_CONTAINERS: dict[str, Container] = {"jsonl": "jsonl", "json": "json", "csv": "csv"}


@dataclass(slots=True)
class Found:
    """What was met on the way through a log; ``bad`` counts by reason, examples have lines."""

    bad: Counter[str] = field(default_factory=Counter)
    bad_rows: list[dict[str, Any]] = field(default_factory=list)
    other_rows: int = 0
    headers: Counter[str] = field(default_factory=Counter)
    overridden: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    models: set[str] = field(default_factory=set)
    wrong_roles: list[int] = field(default_factory=list)


class Log:
    """One log. Arrays have an element for each request, in the order of the file.

    arrival_ns, end_ns: NO_TIME where there is none. input_tokens, output_tokens: NO_COUNT likewise.
    session: a hash, 0 for none. flags: FAILED, WRONG_ROLES, … line: of the file.
    blocks: ids of all prefix blocks, one request after another; block_counts: how many each has.
    """

    def __init__(self, path: Path, prompts: Prompts, *, chat: bool = True) -> None:
        self.path = path
        self.found = Found()
        self.format = ""
        self._prompts = prompts
        self._chat = chat
        self._rows = RowFile(path, _CONTAINERS.get(prompts.format))
        self._adapter: Format | None = None
        self._reading = Reading(
            columns=prompts.columns,
            unit=None if prompts.time_unit == "auto" else prompts.time_unit,
        )
        kept = _Kept()
        self._read(kept)
        if not len(kept.arrival_ns):
            raise UsageError(f"{path}: {self._why_empty()}")
        self.arrival_ns = _numbers(kept.arrival_ns)
        self.end_ns = _numbers(kept.end_ns)
        self.input_tokens = _numbers(kept.input_tokens)
        self.output_tokens = _numbers(kept.output_tokens)
        self.session = np.frombuffer(kept.session, dtype=np.uint64)
        self.print = np.frombuffer(kept.print, dtype=np.uint64)
        self.flags = np.frombuffer(kept.flags, dtype=np.uint8)
        self.line = _numbers(kept.line)
        self.blocks = np.frombuffer(kept.blocks, dtype=np.uint64)
        self.block_counts = _numbers(kept.block_counts)
        self._row = kept.row
        self._part = kept.part
        self.block_size = kept.block_size

    def __len__(self) -> int:
        return len(self.arrival_ns)

    @property
    def rows(self) -> int:
        """How many rows of the file are requests."""
        return len(self._rows)

    @property
    def unit(self) -> str:
        """The unit of the times, in words."""
        asked = self._reading.unit
        return asked or FORMATS[self.format].unit

    def entry(self, number: int) -> Entry:
        """Read one request again."""
        try:
            row = self._rows.row(self._row[number])
            assert self._adapter is not None
            return self._adapter.entries(row, self._reading)[self._part[number]]
        except (BadRow, IndexError):
            raise UsageError(f"{self.path}: was changed while it was in use") from None

    def hash(self) -> str:
        """Return a hash of everything that is sent of the log, and of when."""
        digest = sha256(self.format.encode())
        for each in (self.arrival_ns, self.end_ns, self.input_tokens, self.output_tokens,
                     self.session, self.print):  # fmt: skip
            digest.update(each.tobytes())
        return digest.hexdigest()

    def _read(self, kept: "_Kept") -> None:
        for span in self._rows.spans():
            try:
                entries = self._entries(self._rows.read(span))
            except BadRow as bad:
                self._bad(span.line, str(bad))
                continue
            if not entries:
                self.found.other_rows += 1
                continue
            row = len(self._rows)
            self._rows.keep(span)
            for part, entry in enumerate(entries):
                flags = kept.add(entry, row=row, part=part, line=span.line)
                self._note(entry, span.line, flags=flags)
        if self._prompts.strict_input and self.found.bad:
            lines = ", ".join(f"{one['line']} {one['reason']}" for one in self.found.bad_rows)
            total = self.found.bad.total()
            raise UsageError(f"{self.path}: {total} bad row{'s'[: total > 1]}: line {lines}")

    def _entries(self, row: object) -> list[Entry]:
        if self._adapter is None:
            asked = self._prompts.format
            named = asked if asked in FORMATS else None
            self.format = named or (
                "columns" if asked in _CONTAINERS else format_of(row, self._prompts.columns)
            )
            self._adapter = FORMATS[self.format]
            if self.format == "columns" and self._rows.header:
                self._check_columns()
        entries = self._adapter.entries(row, self._reading)
        if not self._chat and any(entry.messages is not None for entry in entries):
            raise BadRow("has messages, which need endpoint: chat")
        return entries

    def _check_columns(self) -> None:
        header = self._rows.header
        if not readable(dict.fromkeys(header), self._prompts.columns):
            raise UsageError(
                f"{self.path}: has no column that says what was asked (input_tokens, prompt, "
                "messages, body); name yours, like --column input_tokens=n_in "
                "(columns: {input_tokens: n_in})"
            )
        asked = self._prompts.columns.model_dump(exclude_none=True).values()
        if missing := [name for name in asked if name not in header]:
            raise UsageError(f"{self.path}: has no column '{missing[0]}'")

    def _note(self, entry: Entry, line: int, *, flags: int) -> None:
        found = self.found
        if entry.headers:
            found.headers.update(entry.headers)
        if entry.overridden:
            found.overridden.update(entry.overridden)
        if entry.arrival is not None:
            found.kinds[entry.arrival.kind] += 1
        if entry.model and len(found.models) < 1000:
            found.models.add(entry.model)
        if flags & WRONG_ROLES and len(found.wrong_roles) < _SHOWN_ROWS:
            found.wrong_roles.append(line)

    def _bad(self, line: int, reason: str) -> None:
        self.found.bad[reason] += 1
        if len(self.found.bad_rows) < _SHOWN_ROWS:
            self.found.bad_rows.append({"line": line, "reason": reason})

    def _why_empty(self) -> str:
        bad = self.found.bad
        if not bad:
            return "holds no requests" if self.found.other_rows else "holds no rows"
        reason, times = bad.most_common(1)[0]
        line = next((one["line"] for one in self.found.bad_rows if one["reason"] == reason), "?")
        return (
            f"has no row that can be replayed: of {bad.total()}, {times} like line {line}, which "
            f"{reason}; its format was taken for '{self.format or 'none'}' (see --format)"
        )


class _Kept:
    """The arrays while they grow."""

    def __init__(self) -> None:
        self.arrival_ns, self.end_ns = array("q"), array("q")
        self.input_tokens, self.output_tokens = array("i"), array("i")
        self.session, self.print, self.blocks = array("Q"), array("Q"), array("Q")
        self.flags = array("B")
        self.row, self.part, self.line = array("i"), array("i"), array("i")
        self.block_counts = array("i")
        self.block_size = 0

    def add(self, entry: Entry, *, row: int, part: int, line: int) -> int:
        """Append one request; return its flags."""
        flags = self._counted(entry)
        self.flags.append(flags)
        self.row.append(row)
        self.part.append(part)
        self.line.append(line)
        self.arrival_ns.append(NO_TIME if entry.arrival is None else entry.arrival.ns)
        self.end_ns.append(NO_TIME if entry.end_ns is None else entry.end_ns)
        self.session.append(_hash(entry.session) if entry.session else 0)
        ids = fine_ids(entry)
        self.block_counts.append(len(ids))
        self.blocks.extend(one & 0xFFFFFFFFFFFFFFFF for one in ids)
        self.block_size = self.block_size or entry.block_size
        self.print.append(_hash(f"{ids}{dict(entry.params)}") if ids else _hash(f"row {row}"))
        return flags

    def _counted(self, entry: Entry) -> int:
        """Append the lengths; return the flags."""
        flags = FAILED if entry.failed else 0
        told, answered = entry.input_tokens, entry.output_tokens
        if entry.has_text:
            flags |= TEXT
            if entry.messages is not None and not alternate(entry.messages):
                flags |= WRONG_ROLES
            if not told:
                told = max(1, chars_of(entry.messages, entry.text) // CHARS_PER_TOKEN)
                flags |= ESTIMATED_INPUT
        if answered is None and entry.reply_chars is not None:
            answered = max(1, entry.reply_chars // CHARS_PER_TOKEN)
            flags |= ESTIMATED_OUTPUT
        self.input_tokens.append(told or 0)
        self.output_tokens.append(NO_COUNT if answered is None else answered)
        return flags


def read_log(path: Path, prompts: Prompts, *, chat: bool = True) -> Log:
    """Go through a log, or return what was found when this process last did.

    What is sent, when it is sent and what is told of it are asked for in different places, and a
    log may be large: the latest are remembered while the file stays as it is.
    """
    try:
        known = path.stat()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    return _read(path, prompts, chat, (known.st_size, known.st_mtime_ns))


@lru_cache(maxsize=8)
def _read(path: Path, prompts: Prompts, chat: bool, _version: tuple[int, int]) -> Log:
    return Log(path, prompts, chat=chat)


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest()) | 1


def _numbers(grown: "array[int]") -> Numbers:
    dtype = np.int64 if grown.typecode == "q" else np.int32
    return np.frombuffer(grown, dtype=dtype).astype(np.int64)
