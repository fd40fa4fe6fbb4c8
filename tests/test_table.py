from pathlib import Path

import hypothesis
import numpy as np
import orjson
import pytest
from hypothesis import strategies as st
from make import chunks, level, make_run, manifest, ns, record, write_run

from loadgen.analysis.metrics import summarise
from loadgen.analysis.serial import to_json
from loadgen.analysis.table import RunData, merge, read_run, select, tables_of
from loadgen.errors import UsageError
from loadgen.record import Record
from loadgen.run.store import record_line


def mixed_records() -> list[Record]:
    """Requests of two levels and every shape of outcome and chunks."""
    at = [ns(moment) for moment in (100, 105, 120, 135)]
    two = chunks(at, choice=[0, 1, 0, 1], tokens=[1, 1, 2, 3], lag_ns=[7, 8], coalesced=[0])
    return [
        record(0, at=[100, 110, 125.5]),
        record(1, at=[100, 105, 120, 135], chunks=two, level=1),
        record(2, outcome="refused", error_class="overloaded", http_status=503, error="busy"),
        record(3, sent=None, due_ms=30, outcome="dropped", level=1),
        record(4, at=[200, 450], outcome="unfinished", end_ms=9000, class_="long"),
        record(5, sent=40, at=[10, 30, 31], reported_output=5, reported_input=9, cached_input=4),
        record(6, sent=50, at=[10], level=1, class_="short", flags=["no_done"]),
        record(7, sent=60, outcome="cancelled", end_ms=70),
    ]


TWO_LEVELS = [level(0), level(1)]


def test_a_run_that_was_written_is_read_back(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", mixed_records(), TWO_LEVELS))
    first = run.requests.iloc[0]
    assert run.requests["id"].tolist() == list(range(8))
    assert (first.outcome, first.first_ns, first.chunks) == ("ok", ns(100), 3)
    assert np.isnan(run.requests["sent_ns"][3])
    assert run.requests["class_"][4] == "long"
    assert run.requests["flags"][6] == ["no_done"]
    assert run.warnings == []


def test_gaps_on_disk_become_instants_in_the_table() -> None:
    run = make_run([record(0, at=[100, 110, 125.5]), record(1, sent=40, at=[10, 30])])
    assert run.chunks["at_ns"].tolist() == [ns(t) for t in (100, 110, 125.5, 50, 70)]
    assert run.chunks["request"].tolist() == [0, 0, 0, 1, 1]
    assert run.chunks["index"].tolist() == [0, 1, 2, 0, 1]


def test_instants_are_right_even_where_the_running_sum_wraps_around() -> None:
    late = 9 * 10**15 / 1e6  # 104 days into a run, in ms
    run = make_run([record(number, sent=late, at=[1, 2]) for number in range(2000)])
    assert set(run.chunks["at_ns"].tolist()) == {ns(late + 1), ns(late + 2)}


def test_what_a_chunk_says_is_kept_and_what_it_does_not_say_is_filled_in() -> None:
    run = make_run(mixed_records(), TWO_LEVELS)
    told = run.chunks[run.chunks["request"] == 1]
    silent = run.chunks[run.chunks["request"] == 0]
    assert told["choice"].tolist() == [0, 1, 0, 1]
    assert told["tokens"].tolist() == [1, 1, 2, 3]
    assert told["coalesced"].tolist() == [True, False, False, False]
    assert run.reads["lag_ns"].tolist() == [7, 8]
    assert run.reads["request"].tolist() == [1, 1]
    assert silent["choice"].tolist() == [0, 0, 0]
    assert silent["tokens"].isna().all()
    assert run.requests["choices"].tolist() == [1, 2, 0, 0, 1, 1, 1, 0]


def test_kinds_of_chunks_keep_their_letters() -> None:
    at = [ns(moment) for moment in (1, 2, 3, 4)]
    run = make_run([record(at=[1, 2, 3, 4], chunks=chunks(at, kind="rtfc"))])
    assert run.chunks["kind"].tolist() == ["r", "t", "f", "c"]


def test_a_line_cut_off_by_a_crash_is_left_out_and_said(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", mixed_records(), TWO_LEVELS)
    path = directory / "requests.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    run = read_run(directory)
    assert len(run.requests) == 7
    assert run.warnings == ["the last line of requests.jsonl was cut off and left out"]
    assert run.warnings[0] in summarise(run).warnings


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[1]",
        b"null",
        b"{}",
        b'{"id":9,"level":0,"phase":"measure","due_ns":"soon","outcome":"ok"}',
        b'{"id":9,"level":0,"phase":"measure","due_ns":1,"outcome":"ok","chunks":[1]}',
        b'{"id":9,"level":0,"phase":"measure","due_ns":1,"outcome":"ok","chunks":{"at_ns":["x"]}}',
        b'{"id":9,"level":0,"phase":"measure","due_ns":1,"outcome":"ok",'
        b'"chunks":{"at_ns":[1],"kind":"cc"}}',
        b'{"id":9,"level":0,"phase":"measure","due_ns":1,"outcome":"ok",'
        b'"chunks":{"at_ns":[1],"kind":"c","coalesced":[1]}}',
        b'{"id":1e30,"level":0,"phase":"measure","due_ns":1,"outcome":"ok"}',
        b'{"id":9,"level":0,"phase":"measure","due_ns":1,"outcome":"ok","flags":"x"}',
        b'{"id":9,"level":0,"phase":"measure","due_ns":1,"outcome":{}}',
    ],
    ids=["bytes", "list", "null", "empty", "text-for-a-number", "chunks-list", "chunk-text",
         "lengths", "index", "overflow", "flags-text", "outcome"],
)  # fmt: skip
def test_an_unusable_line_is_named_and_the_others_stand(line: bytes) -> None:
    good = [record_line(record(number, at=[10])) for number in (0, 1)]
    run = tables_of(manifest([level()]), [good[0], line + b"\n", b"\n", good[1]])
    assert run.requests["id"].tolist() == [0, 1]
    assert run.warnings == ["unusable lines of requests.jsonl were left out: 1 (line 2)"]


def test_an_empty_file_is_an_empty_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", []))
    assert (len(run.requests), len(run.chunks), len(run.reads), run.warnings) == (0, 0, 0, [])


def test_a_run_without_its_requests_says_so(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", [])
    (directory / "requests.jsonl").unlink()
    assert read_run(directory).warnings == ["requests.jsonl is missing: no request was recorded"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "manifest.json is missing"),
        (b"", "not JSON"),
        (b"[]", "not the manifest of a run"),
        (b'{"schema":"1"}', "not the manifest of a run"),
        (b'{"schema":99}', "schema 99 is newer"),
        (b'{"schema":1,"levels":[5]}', "levels"),
        (b'{"schema":1,"levels":[{"level":"x"}]}', "levels"),
        (b'{"schema":1,"levels":{}}', "levels"),
        (b'{"schema":1,"levels":[{"level":0,"end_ns":"x"}]}', "end_ns"),
        (b'{"schema":1,"levels":[{"level":0,"client":3}]}', "client"),
        (b'{"schema":1,"scenario":7}', "scenario"),
        (b'{"schema":1,"scenario":{"objectives":"ttft"}}', "objectives"),
    ],
    ids=["missing", "empty", "list", "no-schema", "newer", "levels", "level-text", "levels-map",
         "instant", "client", "scenario", "objectives"],
)  # fmt: skip
def test_what_is_no_run_is_refused_in_one_line(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    directory = write_run(tmp_path / "run", [])
    (directory / "manifest.json").unlink()
    if content is not None:
        (directory / "manifest.json").write_bytes(content)
    with pytest.raises(UsageError, match=words) as caught:
        read_run(directory)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        read_run(tmp_path / "nowhere")


def test_a_file_of_a_run_is_not_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "summary.json").touch()
    with pytest.raises(UsageError, match=r"summary\.json: is a file; give the directory of a run"):
        read_run(tmp_path / "summary.json")


def test_objectives_that_cannot_be_read_are_refused_with_their_place() -> None:
    with pytest.raises(UsageError, match=r"manifest\.json: scenario\.objectives"):
        summarise(make_run([], objectives=["ttft"]))


def test_repeated_ids_are_said() -> None:
    assert make_run([record(3), record(3)]).warnings == [
        "request ids that stand in requests.jsonl again: 1"
    ]


def test_the_order_of_lines_is_chance_and_changes_nothing() -> None:
    records = mixed_records()
    straight, shuffled = make_run(records, TWO_LEVELS), make_run(records[::-1], TWO_LEVELS)
    assert straight.requests.equals(shuffled.requests)
    assert straight.chunks.equals(shuffled.chunks)
    assert straight.reads.equals(shuffled.reads)


@pytest.mark.slow
@hypothesis.settings(max_examples=8, deadline=None)
@hypothesis.given(st.lists(st.integers(0, 2), min_size=8, max_size=8), st.permutations([0, 1, 2]))
def test_a_run_that_is_split_and_merged_is_the_same_run(
    workers: list[int], order: list[int]
) -> None:
    run = make_run(mixed_records(), TWO_LEVELS)
    parts = [select(run, np.array(workers) == worker) for worker in order]
    merged = merge(parts)
    assert merged.requests.equals(run.requests)
    assert merged.chunks.equals(run.chunks)
    assert to_json(summarise(merged)) == to_json(summarise(run))


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_selection_keeps_the_chunks_and_reads_of_its_requests(rows: list[bool]) -> None:
    run = make_run(mixed_records(), TWO_LEVELS)
    kept = select(run, np.array(rows))
    assert sum_of(kept, "chunks") == len(kept.chunks)
    assert sum_of(kept, "reads") == len(kept.reads)
    assert set(kept.chunks["request"]) <= set(kept.requests["id"])


def sum_of(run: RunData, column: str) -> int:
    return int(run.requests[column].sum())


def test_a_manifest_keeps_what_it_says(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", [], seeds={"seed": 7})
    assert read_run(directory).manifest["seeds"] == {"seed": 7}
    assert orjson.loads((directory / "manifest.json").read_bytes())["schema"] == 1
