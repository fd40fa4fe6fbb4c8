from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from replay_make import TRACES, log_file, mooncake, needs_traces, read, replaying

from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.scenario.window import parse_window
from loadgen.units import NS_PER_S
from loadgen.workload.plan import schedule_of
from loadgen.workload.replay.follow import kept_of
from loadgen.workload.replay.found import facts_of
from loadgen.workload.replay.instants import moment
from loadgen.workload.replay.select import quantum_ns, reordered
from loadgen.workload.rows import BadRow

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"


def due_s(path: Path, level: dict | None = None, **keys: object) -> list[float]:
    scenario = replaying(path, level, **keys)
    return [float(at) / NS_PER_S for at in schedule_of(scenario, 0, round_=0).due_ns]


def seconds(directory: Path, *times: float) -> Path:
    return log_file(directory, [mooncake(1000 * at) for at in times])


def test_d01_seven_digits_are_kept_exactly(tmp_path: Path) -> None:
    rows = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109",
            "2023-11-16 18:15:51.2224670,879,55"]  # fmt: skip
    path = log_file(tmp_path, AZURE + "\r\n".join(rows), "a.csv")
    assert schedule_of(replaying(path), 0, round_=0).due_ns.tolist() == [
        0, 4_314_579_000, 4_541_877_000]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "unit", "ns"),
    [
        (27482, "ms", 27_482_000_000),
        (27482, "s", 27_482_000_000_000),
        ("0.1", "s", 100_000_000),
        ("1764480000.123456789", "auto", 1_764_480_000_123_456_789),
        ("2026-03-29T01:30:00Z", "auto", 1_774_747_800_000_000_000),
        ("2026-03-29T03:30:00+02:00", "auto", 1_774_747_800_000_000_000),
        ("2026-03-29 01:30", "auto", 1_774_747_800_000_000_000),
        ("2023-11-16 18:17:03.9799600", "auto", 1_700_158_623_979_960_000),
    ],
)
def test_times_are_read_exactly(value: object, unit: str, ns: int) -> None:
    assert moment(value, unit).ns == ns


def test_d02_the_unit_is_the_formats_and_stands_beside_the_span(tmp_path: Path) -> None:
    path = log_file(tmp_path, [mooncake(0), mooncake(27482)])
    done = CliRunner().invoke(main, ["plan", "--log", str(path)])
    assert "span 27.482 s (times in ms)" in done.stdout
    told = CliRunner().invoke(main, ["plan", "--log", str(path), "--time-unit", "s"])
    assert "span 27,482.0 s (times in s)" in told.stdout


def test_d03_a_date_is_known_in_any_unit() -> None:
    given = (1731000000, 1731000000123, 1731000000123456, 1731000000123456789)
    found = [moment(value, "auto").ns for value in given]
    assert found == [1731000000 * 10**9, 1731000000123 * 10**6, 1731000000123456 * 10**3, given[3]]
    assert max(found) - min(found) < 0.2e9
    assert moment(1731000000.123456, "auto").ns == pytest.approx(found[2], abs=1000)


def test_d05_zones_are_told_apart_and_a_mix_is_flagged(tmp_path: Path) -> None:
    times = ["2026-03-29T01:30:00Z", "2026-03-29T03:30:00+02:00", "2026-03-29T01:30:05"]
    rows = [{"timestamp": at, "prompt": "hi"} for at in times]
    log = read(log_file(tmp_path, rows))
    assert (np.diff(log.arrival_ns) / 1e9).tolist() == [0, 5]
    assert facts_of(log)["time_zone"] == "mixed: 1 without a zone, taken for UTC, 2 with one"
    assert facts_of(read(log_file(tmp_path, rows[2:])))["time_zone"] == "none given, taken for UTC"


def test_d07_rows_are_sorted_and_counted_and_the_file_stays(tmp_path: Path) -> None:
    path = seconds(tmp_path, 0, 5, 3, 8)
    before = path.read_bytes()
    assert due_s(path) == [0, 3, 5, 8]
    assert reordered(read(path)) == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize("value", ["-3", "NaN", "Infinity", "-Infinity", '"yesterday"', "true"])
def test_d08_times_that_are_none_are_refused_with_their_line(value: str, tmp_path: Path) -> None:
    good = '{"timestamp":0,"input_length":5,"output_length":1}\n'
    bad = good.replace(":0", f":{value}")
    found = read(log_file(tmp_path, good + bad)).found
    assert [row["line"] for row in found.bad_rows] == [2]


def test_d09_speed_divides_the_gaps(tmp_path: Path) -> None:
    assert due_s(seconds(tmp_path, 100, 104, 110), {"speed": 2}) == [0, 2, 5]


def test_d11_a_long_gap_is_capped_and_counted(tmp_path: Path) -> None:
    path = seconds(tmp_path, 0, 2, 7202)
    assert due_s(path, {"speed": 1, "max_gap": "60s"}) == [0, 2, 62]
    level = '[{"speed": 1, "max_gap": "60s"}]'
    done = CliRunner().invoke(
        main, ["plan", "--log", str(path), "--url", "http://h", "--set", f"levels={level}"]
    )
    assert "1 gap cut short" in done.stdout


def test_d22_a_timed_replay_wants_all_times_and_a_closed_one_none(tmp_path: Path) -> None:
    rows = [mooncake(0), {"input_length": 5, "output_length": 1}, mooncake(2000)]
    path = log_file(tmp_path, rows)
    with pytest.raises(UsageError, match="line 2: has no time"):
        schedule_of(replaying(path, format="mooncake"), 0, round_=0)
    closed = replaying(path, {"concurrency": 1}, format="mooncake")
    assert len(kept_of(closed, closed.prompts).members) == 3


@pytest.mark.parametrize(
    ("times", "unit"),
    [((0, 0.9), None), ((0, 61 * 86400), None), ((0, 0.9), "ms"), ((0, 61 * 86400), "ms")],
    ids=["too-short", "too-long", "short-but-told", "long-but-told"],
)
def test_a_span_that_speaks_for_a_wrong_unit_is_refused(
    times: tuple[float, ...], unit: str | None, tmp_path: Path
) -> None:
    keys = {"time_unit": unit} if unit else {}
    path = seconds(tmp_path, *times)
    if unit:
        assert due_s(path, **keys) == list(times)
        return
    with pytest.raises(UsageError, match="--time-unit"):
        due_s(path)


@pytest.mark.parametrize(
    ("window", "left"),
    [("1s..3s", [0, 1]), ("3s..1m", [0]), ("0..2", [0, 1])],
    ids=["half-open", "to-the-end", "plain-seconds"],
)
def test_a_window_is_a_part_of_the_log_by_its_times(
    window: str, left: list[float], tmp_path: Path
) -> None:
    assert due_s(seconds(tmp_path, 10, 11, 12, 13), window=window) == left


@pytest.mark.parametrize(
    ("window", "requests"),
    [("10:00..10:30", 1), ("23:00..01:00", 2), ("08:00..09:00", 1), ("00:00..24:00", 3)],
    ids=["morning", "over-midnight", "of-the-next-day", "first-day"],
)
def test_a_window_may_be_a_time_of_the_day(window: str, requests: int, tmp_path: Path) -> None:
    times = ["2026-01-01T10:10:00Z", "2026-01-01T10:40:00Z", "2026-01-01T23:30:00Z",
             "2026-01-02T00:30:00Z", "2026-01-02T08:30:00Z"]  # fmt: skip
    rows = [{"time": at, "prompt": "hi"} for at in times]
    assert len(due_s(log_file(tmp_path, rows), window=window)) == requests


@pytest.mark.parametrize("text", ["", "5m", "..5m", "5m..", "2m..1m", "a..b", "10:00..5m"])
def test_a_window_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write it like 10m\.\.20m"):
        parse_window(text)


def test_times_on_a_grid_are_found_and_spread_within_it(tmp_path: Path) -> None:
    path = seconds(tmp_path, *[3 * at for at in range(10) for _ in range(8)])
    assert facts_of(read(path))["quantum_s"] == 3
    spread = due_s(path, {"speed": 1, "jitter": True})
    assert [int(at // 3) for at in spread] == [at for at in range(10) for _ in range(8)]
    assert len(set(spread)) == 80
    assert spread == due_s(path, {"speed": 1, "jitter": True})
    assert spread != due_s(path, {"speed": 1, "jitter": True}, parts={"seed": 1})


@pytest.mark.parametrize(
    "times", [[0, 1, 2, 3], [5, 5, 5, 5], [0, 1.5, 2.75, 9]], ids=["even", "one", "odd"]
)
def test_times_that_differ_are_not_quantised(times: list[float]) -> None:
    assert quantum_ns(np.array(times) * 1e9) is None


def test_a_time_that_is_none_is_no_time() -> None:
    assert moment(None, "s") is moment("", "s") is None
    with pytest.raises(BadRow, match="below 0"):
        moment(-1, "s")


@needs_traces
@pytest.mark.parametrize(
    ("file", "says"),
    [
        ("mooncake_conversation_2000.jsonl",
         ["span 669.0 s", "224 distinct", "28.9 % ideal hits", "p50 7,967, p95 47,725",
          "max 123,192", "3 s apart"]),
        ("mooncake_synthetic_2000.jsonl",
         ["span 532.806 s", "32.8 % ideal hits", "p50 4,174, p95 42,117", "max 134,773"]),
        ("azure2023_code_2000.csv", ["span 853.079347 s", "azure", "2,000 in 2,000 rows"]),
        ("azure2023_conv_2000.csv", ["span 424.259457 s", "0 bad rows"]),
    ],
    ids=["conversation", "synthetic", "azure-code", "azure-conv"],
)  # fmt: skip
def test_the_traces_have_their_check_values(file: str, says: list[str]) -> None:
    done = CliRunner().invoke(main, ["plan", "--log", str(TRACES / file)])
    assert done.exit_code == 0, done.output
    assert [text for text in says if text not in done.stdout] == []


@needs_traces
def test_the_times_of_the_azure_trace_are_exact_to_the_microsecond() -> None:
    path = TRACES / "azure2023_code_2000.csv"
    offsets = schedule_of(replaying(path), 0, round_=0).due_ns
    assert offsets[:3].tolist() == [0, 52_000_000, 98_189_000]
    assert int(offsets[-1]) == 853_079_347_000
