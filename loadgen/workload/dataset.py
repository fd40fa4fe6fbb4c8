"""Prompts from a file, sent as they are: which row goes where, and what the file amounts to.

A run walks through the file once. Each level of each round has its own equal stretch of it, so that
no level meets in the server's prefix cache what another has put there; a level that needs more than
its stretch goes on into the next, and past the end from the beginning again.
"""

import hashlib
from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from loadgen.errors import UsageError
from loadgen.scenario.prompts import Columns, Prompts
from loadgen.workload.lengths import Lengths, Pairs
from loadgen.workload.prompt import Conversation, Message, Prompt, Turn, hash_of
from loadgen.workload.rows import BadRow, Container, RowFile
from loadgen.workload.seeds import derive
from loadgen.workload.shapes import Item, Shape, missing_columns, read_item, shape_of, turns_of
from loadgen.workload.synthetic import conversation_id

_SHOWN_BAD_ROWS = 5
_CONTAINERS: dict[str, Container] = {"jsonl": "jsonl", "json": "json", "csv": "csv"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """How a run uses a dataset.

    levels, rounds: among which the rows are shared out. class_: of a mix.
    """

    seed: int
    endpoint: str
    levels: int = 1
    rounds: int = 1
    class_: str | None = None


class DatasetPrompts:
    """The prompts of one file; ``path`` is where the scenario's ``file`` lies."""

    def __init__(self, prompts: Prompts, path: Path, use: Use) -> None:
        self._prompts = prompts
        self._use = use
        name = "" if use.class_ is None else f" of {use.class_}"
        self._lengths = Lengths(prompts, seed=use.seed, name=name)
        self._found = _Index(path, prompts, use.endpoint)
        self._order = self._ordered(f"order{name}")

    def prompt(self, *, level: int, round_: int, number: int) -> Prompt:
        """Return the request of one arrival; of a conversation its first turn."""
        item = self._item((level, round_, number))
        if item.messages and (self._prompts.conversational or not item.whole):
            item = _first_turn(item)
        chat = self._use.endpoint == "chat"
        messages = _as_messages(item) if chat else None
        output, limit = self._answer(item, round_, number, 0)
        return Prompt(
            messages=messages,
            text=None if chat else item.text,
            asked_output=output,
            max_output=limit,
            hash=hash_of(messages if messages is not None else item.text or ""),
            class_=self._use.class_,
            extra=item.extra,
        )

    def conversation(self, *, level: int, round_: int, number: int) -> Conversation:
        """Return the turns of one row: as many as are asked for, or as it has."""
        place = (level, round_, number)
        item = self._item(place)
        turns = turns_of(_as_messages(item)) if self._prompts.conversational else []
        most = self._lengths.turns(round_=round_, number=number)
        if not turns:
            only = self.prompt(level=level, round_=round_, number=number)
            turns = [Turn(messages=tuple(only.messages or ()))]
        return Conversation(
            id=conversation_id(self._use.class_, place),
            turns=tuple(self._turn(item, place, i, turn) for i, turn in enumerate(turns[:most])),
            history=self._prompts.history,
            class_=self._use.class_,
            extra=item.extra,
        )

    def facts(self) -> dict[str, Any]:
        """Say, for the manifest, what the file holds; never what stands in it."""
        return {"source": "dataset", "file": self._prompts.file, **self._found.facts()}

    def row_of(self, *, level: int, round_: int, number: int) -> int:
        """Return which of the file's usable rows one arrival gets."""
        rows, use = len(self._order), self._use
        stretch = (round_ * use.levels + level) * rows // (use.levels * use.rounds)
        return int(self._order[(stretch + number) % rows])

    def _item(self, place: tuple[int, int, int]) -> Item:
        level, round_, number = place
        return self._found.item(self.row_of(level=level, round_=round_, number=number))

    def _turn(self, item: Item, place: tuple[int, int, int], number: int, turn: Turn) -> Turn:
        _, round_, conversation = place
        output, limit = self._answer(item, round_, conversation, number)
        return Turn(
            messages=turn.messages,
            asked_output=output,
            max_output=limit,
            think_s=self._lengths.think_s(round_=round_, number=conversation, turn=number),
            reply=turn.reply,
        )

    def _answer(
        self, item: Item, round_: int, number: int, turn: int
    ) -> tuple[int | None, int | None]:
        """Return the length an answer is to have, and the most it may have."""
        prompts = self._prompts
        if prompts.output_tokens is not None and not prompts.output_tokens.natural:
            return self._lengths.output(round_=round_, number=number, turn=turn), None
        limit = prompts.max_output_tokens or item.max_output
        if prompts.output_tokens is None and item.output_tokens is not None:
            return item.output_tokens, None
        return None, limit

    def _ordered(self, name: str) -> npt.NDArray[np.int64]:
        rows = len(self._found)
        if self._prompts.order == "file":
            return np.arange(rows)
        return np.random.default_rng(derive(self._use.seed, name)).permutation(rows)


def read_pairs(path: Path) -> Pairs:
    """Read rows of input_tokens and output_tokens: lengths that were measured together."""
    rows = RowFile(path)
    found = array("i")
    spoiled: list[int] = []
    for span in rows.spans():
        try:
            found.extend(_pair(rows.read(span)))
        except BadRow:
            spoiled.append(span.line)
    if spoiled:
        raise UsageError(
            f"{path}: line {spoiled[0]}: needs input_tokens and output_tokens, whole numbers above "
            f"0 ({len(spoiled)} of {len(spoiled) + len(found) // 2} rows have not)"
        )
    if not found:
        raise UsageError(f"{path}: is empty; give it rows of input_tokens and output_tokens")
    return np.array(found, dtype=np.int32).reshape(-1, 2)


def _pair(row: object) -> tuple[int, int]:
    if not isinstance(row, dict):
        raise BadRow("is not a mapping of names and values")
    numbers = []
    for name in ("input_tokens", "output_tokens"):
        value = row.get(name)
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
            raise BadRow(f"has no {name}")
        numbers.append(value)
    return numbers[0], numbers[1]


class _Index:
    """Where the usable rows of a file lie, found by reading it once."""

    def __init__(self, path: Path, prompts: Prompts, endpoint: str) -> None:
        self._path = path
        self._columns: Columns = prompts.columns
        self._chat = endpoint == "chat"
        self._rows = RowFile(path, _CONTAINERS.get(prompts.format))
        named: dict[str, Shape] = {"sharegpt": "sharegpt", "openai_batch": "openai_batch"}
        self._shape: Shape | None = named.get(prompts.format)
        self._bad: Counter[str] = Counter()
        self._bad_rows: list[dict[str, Any]] = []
        self._hash = hashlib.sha256()
        self._unique = self._read()
        if not len(self._rows):
            raise UsageError(f"{path}: {self._why_empty()}")

    def __len__(self) -> int:
        return len(self._rows)

    def item(self, number: int) -> Item:
        """Read a usable row again."""
        try:
            return self._understood(self._rows.row(number))
        except BadRow:
            raise UsageError(f"{self._path}: was changed while it was in use") from None

    def facts(self) -> dict[str, Any]:
        return {
            "format": self._rows.container if self._shape == "columns" else self._shape,
            "rows": len(self._rows),
            "unique": self._unique,
            "bad_rows": self._bad.total(),
            "bad_examples": self._bad_rows,
            "hash": self._hash.hexdigest(),
        }

    def _read(self) -> int:
        """Go through the file; return how many different rows it has."""
        prints = array("Q")
        for span in self._rows.spans():
            try:
                item = self._understood(self._rows.read(span))
            except BadRow as bad:
                self._bad[str(bad)] += 1
                if len(self._bad_rows) < _SHOWN_BAD_ROWS:
                    self._bad_rows.append({"line": span.line, "reason": str(bad)})
                continue
            self._rows.keep(span)
            print_ = _print_of(item)
            self._hash.update(print_)
            prints.append(int.from_bytes(print_[:8]))
        return len(np.unique(np.array(prints)))

    def _understood(self, row: object) -> Item:
        if self._shape is None:
            self._shape = shape_of(row, self._columns)
            header = self._rows.header
            problem = missing_columns(header, self._columns) if header else None
            if problem is not None:
                raise UsageError(f"{self._path}: {problem}")
        item = read_item(row, self._shape, self._columns)
        if item.messages is not None and not self._chat:
            raise BadRow("has messages, which need endpoint: chat")
        return item

    def _why_empty(self) -> str:
        if not self._bad:
            return "holds no rows"
        reason, times = self._bad.most_common(1)[0]
        line = next(row["line"] for row in self._bad_rows if row["reason"] == reason)
        total = self._bad.total()
        return f"has no row that can be sent: of {total}, {times} like line {line}, which {reason}"


def _print_of(item: Item) -> bytes:
    """Return the fingerprint of all that is sent of a row."""
    sent = [item.messages, item.text, item.output_tokens, item.max_output, dict(item.extra)]
    return hashlib.sha256(orjson.dumps(sent)).digest()


def _first_turn(item: Item) -> Item:
    turns = turns_of(item.messages or [])
    return Item(messages=list(turns[0].messages), max_output=item.max_output, extra=item.extra)


def _as_messages(item: Item) -> list[Message]:
    if item.messages is not None:
        return item.messages
    return [{"role": "user", "content": item.text}]
