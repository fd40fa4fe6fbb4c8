import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from dataset_make import DRESSES, Row, as_csv, as_lines, as_list, in_members, written
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import MissingExtra, UsageError
from loadgen.workload.rows import BadRow, RowFile

THREE = [{"prompt": text} for text in ("a", "b\nc, d\u2028", '"中🙂"')]
BOM = b"\xef\xbb\xbf"


def rows_in(path: Path) -> list[object]:
    """Find all rows, keep them, and read each again by its number."""
    file = RowFile(path)
    for span in file.spans():
        file.keep(span)
    return [file.row(number) for number in range(len(file))]


def lines_in(path: Path) -> list[int]:
    return [span.line for span in RowFile(path).spans()]


@pytest.mark.parametrize("dress", DRESSES.values(), ids=DRESSES)
@pytest.mark.parametrize("name", ["t.jsonl", "t.csv", "t.gz", "t"])
def test_what_a_file_holds_decides_and_not_what_it_is_called(
    dress: Callable[[list[Row]], bytes], name: str, tmp_path: Path
) -> None:
    assert rows_in(written(tmp_path, dress(THREE), name)) == THREE


@pytest.mark.parametrize("dress", DRESSES.values(), ids=DRESSES)
def test_d15_a_file_from_windows_is_read(
    dress: Callable[[list[Row]], bytes], tmp_path: Path
) -> None:
    data = dress(THREE).replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    assert rows_in(written(tmp_path, BOM + b'{"prompt":"a"}\r\n')) == [{"prompt": "a"}]
    assert len(rows_in(written(tmp_path, BOM + data))) == 3


@pytest.mark.parametrize("name", ["t.jsonl", "t.gz"])
def test_d17_gzip_of_several_members_is_known_by_its_magic_bytes(name: str, tmp_path: Path) -> None:
    assert rows_in(written(tmp_path, in_members(THREE), name)) == THREE


def test_d17_zstd_of_several_frames_is_known_by_its_magic_bytes(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="the extra 'zstd' is not installed")
    frames = [zstandard.ZstdCompressor().compress(as_lines([row])) for row in THREE]
    assert rows_in(written(tmp_path, b"".join(frames), "t.jsonl")) == THREE
    for broken in (frames[0][:-3], frames[0] + b"nonsense", frames[0][:9] + b"nonsense" * 9):
        with pytest.raises(UsageError, match=r"t\.jsonl: cannot be unpacked"):
            rows_in(written(tmp_path, broken, "t.jsonl"))


def test_zstd_without_its_package_names_what_to_install(tmp_path: Path) -> None:
    try:
        import zstandard  # noqa: F401 - asked only whether it is there
    except ImportError:
        with pytest.raises(MissingExtra, match=r"pip install 'loadgen\[zstd\]'"):
            RowFile(written(tmp_path, b"\x28\xb5\x2f\xfd\0"))
    else:
        pytest.skip("the extra 'zstd' is installed here")


def big(rows: int, size: int) -> list[Row]:
    return [{"prompt": "x" * size, "n": n} for n in range(rows)]


@pytest.mark.parametrize(
    "dress", [*DRESSES.values(), lambda rows: gzip.compress(as_lines(rows))], ids=[*DRESSES, "gz"]
)
def test_d16_memory_follows_the_longest_row_and_not_the_file(
    dress: Callable[[list[Row]], bytes], tmp_path: Path
) -> None:
    peaks = []
    for rows in (200, 2000):
        path = written(tmp_path, dress([*big(rows, 8000), *big(1, 400_000)]))
        tracemalloc.start()
        file = RowFile(path)
        for span in file.spans():
            file.read(span)
            file.keep(span)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(file) == rows + 1
    assert peaks[1] < 1.2 * peaks[0] < 2000 * 8000


def test_d16_a_line_of_twenty_megabytes_among_ten_thousand_is_one_row(tmp_path: Path) -> None:
    path = written(tmp_path, as_lines([*big(5000, 10), *big(1, 20_000_000), *big(5000, 10)]))
    sizes = [span.size for span in RowFile(path).spans()]
    assert len(sizes) == 10_001
    assert sorted(sizes)[-2] < 100 < 20_000_000 < sizes[5000]


def test_lines_are_physical_lines_counted_from_one(tmp_path: Path) -> None:
    assert lines_in(written(tmp_path, '{"a":1}\n\n  \n{"a":2}\r\n{"a":3}')) == [1, 4, 5]
    assert lines_in(written(tmp_path, '[\n {"a":1},\n\n {"a":\n 2}, {"a":3}\n]')) == [2, 4, 5]
    assert lines_in(written(tmp_path, 'a,b\n1,"x\ny"\n2,z\n')) == [2, 4]


@given(rows=st.lists(st.dictionaries(st.text(min_size=1), st.text(), min_size=1), min_size=1))
def test_any_rows_of_json_are_found_again(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row]
) -> None:
    directory = tmp_path_factory.mktemp("any")
    assert rows_in(written(directory, as_list(rows))) == rows
    assert rows_in(written(directory, as_lines(rows))) == rows


@given(cells=st.lists(st.text(alphabet='ab,"\n\r; 中'), min_size=1, max_size=5))
def test_any_cells_of_csv_are_found_again(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str]
) -> None:
    rows = [{"prompt": cell, "n": "1"} for cell in cells]
    assert rows_in(written(tmp_path_factory.mktemp("any"), as_csv(rows))) == rows


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1 << 20])
def test_a_list_is_found_whatever_piece_of_it_is_read_at_once(size: int, tmp_path: Path) -> None:
    rows = [{"a": [True, None, -1.5e10, {"é": "\\u00e9 \\" + '"'}]}, {"b": "x" * 50}, {"c": []}]
    file = RowFile(written(tmp_path, as_list(rows)))
    file.piece = size
    assert [file.read(span) for span in file.spans()] == rows


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'[{"a":1},\n{"a":}]', "line 2: not valid JSON from here on"),
        (b'[{"a":1}\n{"a":2}]', "line 2: not valid JSON from here on"),
        (b'[{"a":1},\n', "line 2: not valid JSON from here on"),
        (b'[{"a":"' + b"x" * 3000, "line 1: not valid JSON from here on"),
        (b'[{"a":"\xff"}]', "is not UTF-8 text"),
        (b"[" * 200_000, "line 1: not valid JSON from here on"),
        ("a,b\n".encode("utf-16"), "is UTF-16 text; save it as UTF-8"),
        (b"a,\xff\n1,2\n", "line 1: the header is not UTF-8"),
        (b'a,b\n1,"x" y\n', "line 2: not valid CSV"),
        (b'a,b\n1,"x\n', "line 2: not valid CSV: unexpected end of data"),
        (gzip.compress(b'{"a":1}\n' * 99)[:-12], "cannot be unpacked"),
        (b"\x1f\x8b\x08\x00nonsense", "cannot be unpacked"),
    ],
    ids=["value", "comma", "cut", "cut-text", "utf-8", "deep", "utf-16", "header",
         "quote", "open", "cut-gz", "bad-gz"],
)  # fmt: skip
def test_a_file_that_cannot_be_read_on_says_where(
    data: bytes, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"rows\.jsonl: ") as caught:
        list(RowFile(written(tmp_path, data)).spans())
    assert problem in str(caught.value)


def test_a_broken_list_is_given_up_where_it_breaks_and_not_read_to_its_end(tmp_path: Path) -> None:
    path = written(tmp_path, b'[{"a":}, ' + b'{"a": "' + b"x" * 40_000_000 + b'"}]')
    tracemalloc.start()
    with pytest.raises(UsageError, match="line 1: not valid JSON"):
        list(RowFile(path).spans())
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a":1}\n{"a":\n', "is not valid JSON"),
        (b'{"a":1}\n{"a":"\xff"}\n', "is not valid JSON"),
        (b"a,b\n1,2,3\n", "has not as many cells as the header"),
        (b"a,b\n1,\xff\n", "is not UTF-8"),
    ],
    ids=["json", "json-utf-8", "cells", "csv-utf-8"],
)
def test_one_bad_row_says_why_and_not_what(data: bytes, reason: str, tmp_path: Path) -> None:
    file = RowFile(written(tmp_path, data))
    with pytest.raises(BadRow) as caught:
        [file.read(span) for span in file.spans()]
    assert str(caught.value) == reason


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no\.csv: cannot be read: No such file"):
        RowFile(tmp_path / "no.csv")


def test_a_json_list_may_be_empty(tmp_path: Path) -> None:
    assert rows_in(written(tmp_path, json.dumps([]))) == []
