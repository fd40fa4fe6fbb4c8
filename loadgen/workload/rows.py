"""Rows of a file, found without holding the file: where each lies, and one read when wanted.

Memory follows the number of rows and the longest of them, never the bytes of the file. Lines of
JSON, one JSON list and CSV are told apart by their first character, gzip and zstd by their magic
bytes, whatever the file is called. A compressed file is unpacked once into a temporary file
that has no name.
"""

import codecs
import csv
import gzip
import importlib
import io
import json
import os
import sys
import tempfile
import weakref
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import orjson

from loadgen.errors import MissingExtra, UsageError

Container = Literal["jsonl", "json", "csv"]

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BOM = b"\xef\xbb\xbf"
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
_BLOCK = 1 << 20
_LONG_ROW = 1 << 20
_LONGEST_CUT = 16  # a word (true, -Infinity) or an escape that the end of a text cuts in two


class Span(NamedTuple):
    """Where a row lies: bytes, and the number of its first line, counted from 1."""

    start: int
    size: int
    line: int


class BadRow(ValueError):
    """A row that cannot be used; the message says why and never what stands in it."""


class RowFile:
    """A file of rows. ``row`` reads one of them again; ``spans`` finds them all, once, in order."""

    def __init__(self, path: Path, container: Container | None = None) -> None:
        self.path = path
        self._file = _opened(path)
        weakref.finalize(self, self._file.close)
        head = self._file.read(4096)
        self._first = len(_BOM) if head.startswith(_BOM) else 0
        if head.startswith(_WIDE_BOMS):
            raise UsageError(f"{path}: is UTF-16 text; save it as UTF-8")
        self.container = container or _container_of(head[self._first :])
        self.header: list[str] = []
        self.piece = _BLOCK  # bytes of a JSON list that are read at once
        self._starts = array("q")
        self._sizes = array("q")

    def __len__(self) -> int:
        return len(self._starts)

    def spans(self) -> Iterator[Span]:
        """Find every row. Raises UsageError where the file as a whole cannot be read on."""
        self._file.seek(self._first)
        match self.container:
            case "jsonl":
                yield from _lines(self._file, self._first)
            case "json":
                yield from _elements(_Window(self._file, self._first, self))
            case "csv":
                records = _records(self._file, self._first, self.path)
                head = next(records, None)
                if head is not None:
                    self.header = self._header(head)
                    yield from records

    def read(self, span: Span) -> object:
        """Read the row at a place; BadRow says why it cannot be used."""
        return self._value(self._bytes(span))

    def keep(self, span: Span) -> None:
        """Remember a row, so that ``row`` can read it again by its number."""
        self._starts.append(span.start)
        self._sizes.append(span.size)

    def row(self, number: int) -> object:
        """Read again the row that was kept as this number."""
        return self._value(self._bytes(Span(self._starts[number], self._sizes[number], 0)))

    def _header(self, span: Span) -> list[str]:
        try:
            return [cell.strip() for cell in _cells(self._bytes(span))]
        except BadRow as bad:
            raise UsageError(f"{self.path}: line {span.line}: the header {bad}") from None

    def _bytes(self, span: Span) -> bytes:
        return os.pread(self._file.fileno(), span.size, span.start)

    def _value(self, raw: bytes) -> object:
        if self.container != "csv":
            try:
                return _json(raw)
            except (ValueError, RecursionError):
                raise BadRow("is not valid JSON") from None
        cells = _cells(raw)
        if len(cells) != len(self.header):
            raise BadRow("has not as many cells as the header")
        return dict(zip(self.header, cells, strict=True))


def _json(raw: bytes) -> object:
    """Parse one row; a long one by the parser that takes less memory, and as strictly."""
    if len(raw) < _LONG_ROW:  # above, orjson's twelve bytes of memory for each count
        value: object = orjson.loads(raw)
        return value
    return json.loads(raw, parse_constant=_no_constant)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _opened(path: Path) -> BinaryIO:
    """Open a file for reading anywhere in it, unpacked where it is packed."""
    try:
        file: BinaryIO = path.open("rb")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    magic = file.read(4)
    file.seek(0)
    if magic.startswith(_GZIP):
        return _unpacked(path, file, _gzip_pieces(file))
    if magic == _ZSTD:
        return _unpacked(path, file, _zstd_pieces(file))
    return file


def _unpacked(path: Path, packed: BinaryIO, pieces: Iterator[bytes]) -> BinaryIO:
    plain = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the RowFile
    try:
        plain.writelines(pieces)
    except (OSError, EOFError, zlib.error) as error:
        plain.close()
        raise UsageError(f"{path}: cannot be unpacked: {error}") from None
    except BaseException:
        plain.close()
        raise
    finally:
        packed.close()
    plain.seek(0)
    return plain


def _gzip_pieces(file: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as unpacking:  # goes on from member to member
        while piece := unpacking.read(_BLOCK):
            yield piece


def _zstd_pieces(file: BinaryIO) -> Iterator[bytes]:
    try:
        zstandard = importlib.import_module("zstandard")
    except ImportError:
        raise MissingExtra("zstd") from None
    frame, left = None, b""
    try:
        while left or (left := file.read(_BLOCK >> 3)):
            frame = frame or zstandard.ZstdDecompressor().decompressobj()
            yield frame.decompress(left)
            left = frame.unused_data
            frame = None if frame.eof else frame
    except zstandard.ZstdError as error:
        raise OSError(error) from None
    if frame is not None:
        raise EOFError("the file ends inside a frame")


def _container_of(head: bytes) -> Container:
    first = head.lstrip()[:1]
    if first == b"[":
        return "json"
    return "jsonl" if first == b"{" else "csv"


def _lines(file: BinaryIO, start: int) -> Iterator[Span]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield Span(start, len(line), number)
        start += len(line)


def _records(file: BinaryIO, start: int, path: Path) -> Iterator[Span]:
    """Find the records of CSV: a quoted cell may hold line ends."""
    csv.field_size_limit(sys.maxsize)  # a prompt may be longer than the 128 KiB that csv allows
    pulled = _Pulled(file)
    reader = csv.reader(pulled, strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield Span(start, pulled.bytes, line)
            start, line = start + pulled.bytes, line + pulled.lines
            pulled.bytes = pulled.lines = 0
    except csv.Error as error:
        raise UsageError(f"{path}: line {line}: not valid CSV: {error}") from None


class _Pulled:
    """Lines of a file for csv to pull, counted in bytes as it pulls them."""

    def __init__(self, file: BinaryIO) -> None:
        self.bytes = self.lines = 0
        self._file = file

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline()
        if not line:
            raise StopIteration
        self.bytes += len(line)
        self.lines += 1
        return line.decode("utf-8", "replace").replace("\0", "\ufffd")


def _cells(raw: bytes) -> list[str]:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise BadRow("is not UTF-8") from None
    return next(csv.reader(io.StringIO(text, newline="")), [])


def _elements(window: "_Window") -> Iterator[Span]:
    """Find the elements of one JSON list, with no more of it in memory than the longest needs."""
    window.skip("[")
    if window.first() == "]":
        return
    while True:
        yield window.element()
        if window.skip(",]") == "]":
            return


class _Window:
    """A stretch of text of a file, moved along it; ``at`` is where reading goes on."""

    def __init__(self, file: BinaryIO, start: int, of: RowFile) -> None:
        self._pieces = _decoded(file, of)
        self._path = of.path
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._at = 0
        self._byte = start
        self._line = 1

    def first(self) -> str:
        """Return the next character that is no space; "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._pass(self._at + 1)
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def skip(self, expected: str) -> str:
        """Pass one of these characters and return it."""
        found = self.first()
        if not found or found not in expected:
            raise self._broken()
        self._pass(self._at + 1)
        return found

    def element(self) -> Span:
        """Pass one value and return where it lies."""
        if not self.first():
            raise self._broken()
        start, line = self._byte, self._line
        while True:
            end = self._end_of_value()
            if end < len(self._text):  # else a number might go on, or the text is too short
                break
            if not self._more(len(self._text) - self._at):
                raise self._broken()
        self._pass(end)
        return Span(start, self._byte - start, line)

    def _end_of_value(self) -> int:
        """Return where a value ends; the end of the text where more of it is needed."""
        try:
            return self._decoder.raw_decode(self._text, self._at)[1]
        except json.JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated") or error.pos > len(self._text) - _LONGEST_CUT
            if cut:
                return len(self._text)
        except RecursionError:
            pass
        raise self._broken()

    def _pass(self, end: int) -> None:
        passed = self._text[self._at : end]
        self._byte += len(passed.encode())
        self._line += passed.count("\n")
        self._at = end

    def _more(self, least: int = 0) -> bool:
        """Read on, at least so many characters, so that a long value is not parsed too often."""
        pieces, have = [self._text[self._at :]], 0
        while have <= least and (piece := next(self._pieces, "")):
            pieces.append(piece)
            have += len(piece)
        self._text, self._at = "".join(pieces), 0
        return have > 0

    def _broken(self) -> UsageError:
        return UsageError(f"{self._path}: line {self._line}: not valid JSON from here on")


def _decoded(file: BinaryIO, of: RowFile) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while block := file.read(of.piece):
            if text := decoder.decode(block):  # a piece may be but a part of one character
                yield text
    except UnicodeDecodeError:
        raise UsageError(f"{of.path}: is not UTF-8 text") from None
