import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.units import (
    format_duration,
    parse_duration_s,
    parse_rate,
    parse_share,
    seconds_to_ns,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30.0), ("500ms", 0.5), ("1m30s", 90.0), ("1m 30s", 90.0), ("2h", 7200.0), ("90", 90.0),
     ("0", 0.0), (".5s", 0.5), ("1.5min", 90.0), ("10us", 1e-5), ("3µs", 3e-6), ("7ns", 7e-9),
     ("1d", 86400.0), (" 2S ", 2.0), (3, 3.0), (0.25, 0.25)],
    ids=str,
)  # fmt: skip
def test_a_duration_is_read_as_seconds(text: str | float, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["", "s", "soon", "-3s", "3x", "3 s later", "1s..", "s3", "1e3s", "nan", "inf", True, -1,
     float("nan"), float("inf")],
    ids=str,
)  # fmt: skip
def test_what_is_no_duration_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("4/s", 4.0), ("90/min", 1.5), ("90/m", 1.5), ("36/h", 0.01), ("4 per s", 4.0),
     ("2.5 / sec", 2.5), ("8", 8.0), (8, 8.0), (0.5, 0.5)],
    ids=str,
)  # fmt: skip
def test_a_rate_is_read_as_events_per_second(text: str | float, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    "text", ["", "0/s", "-1/s", "4/day", "fast", "4/", 0, -2, True, float("inf"), float("nan")],
    ids=str,
)  # fmt: skip
def test_what_is_no_rate_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match="rate"):
        parse_rate(text)


@pytest.mark.parametrize(
    ("text", "share"), [("2%", 0.02), ("0.02", 0.02), ("0", 0.0), ("100 %", 1.0), (0.5, 0.5)],
    ids=str,
)  # fmt: skip
def test_a_share_is_read_as_a_number_between_0_and_1(text: str | float, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "few", "101%", "2", "-1%", True, 1.5, float("nan")], ids=str)
def test_what_is_no_share_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match="share"):
        parse_share(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.25, "250ms"), (1.5, "1.5s"), (30, "30s"), (60, "1m"), (90, "1m30s")],
    ids=str,
)
def test_seconds_are_written_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(0, 10**6))
def test_whole_milliseconds_survive_writing_and_reading(milliseconds: int) -> None:
    text = format_duration(milliseconds / 1000)
    assert parse_duration_s(text) == pytest.approx(milliseconds / 1000, rel=1e-5)


def test_nanoseconds_are_rounded_not_cut() -> None:
    assert seconds_to_ns(0.29) == 290_000_000
