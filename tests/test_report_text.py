"""Numbers and texts as every report writes them."""

import pytest
from report_make import HOSTILE, distribution

from loadgen.analysis.summary import Distribution, Quantile
from loadgen.report.text import interval, number, percent, plain, quantile, quantile_cell, shares


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(None, "–", id="unknown is a dash, never 0"),
        pytest.param(float("nan"), "–", id="not a number"),
        pytest.param(0.0, "0", id="zero is zero"),
        pytest.param(0.0421, "0.042", id="below one"),
        pytest.param(9.70, "9.70", id="units"),
        pytest.param(22.47, "22.5", id="tens"),
        pytest.param(99.96, "100", id="rounding up changes the digits"),
        pytest.param(718.9, "719", id="hundreds"),
        pytest.param(1234567.8, "1,234,568", id="thousands are separated"),
        pytest.param(0.0000004, "< 0.001", id="tiny is not zero"),
    ],
)
def test_a_number_has_three_significant_digits(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        pytest.param(None, "–", id="unknown"),
        pytest.param(0.0, "0 %", id="none"),
        pytest.param(0.00001, "< 0.01 %", id="nearly none is not none"),
        pytest.param(0.0025, "0.25 %", id="below one per cent"),
        pytest.param(0.737, "73.7 %", id="ordinary"),
        pytest.param(0.9999, "> 99.9 %", id="nearly all is not all"),
        pytest.param(1.0, "100 %", id="all"),
    ],
)
def test_a_share_is_written_per_cent(share: float | None, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize(
    ("n", "texts"),
    [
        pytest.param(0, ["–", "–", "–", "–"], id="nothing observed"),
        pytest.param(10, ["100", "144", "n < 20", "n < 100"], id="F01 ten samples"),
        pytest.param(20, ["100", "144", "160", "n < 100"], id="twenty"),
        pytest.param(100, ["100", "144", "160", "208"], id="a hundred"),
    ],
)
def test_a_percentile_of_too_few_samples_says_how_many_it_needs(n: int, texts: list[str]) -> None:
    made = distribution(100, n=n) if n else Distribution()
    assert [quantile(made, name) for name in ("p50", "p90", "p95", "p99")] == texts


@pytest.mark.parametrize(
    ("found", "text"),
    [
        pytest.param(Quantile(value=1.0), "n too small", id="no interval"),
        pytest.param(Quantile(value=1.0, low=0.5, high=2.0), "0.500 … 2.00", id="both ends"),
        pytest.param(Quantile(value=1.0, low=0.5), "0.500 … ∞", id="open above"),
    ],
)
def test_an_interval_is_given_or_said_to_be_missing(found: Quantile, text: str) -> None:
    assert interval(found) == text


def test_a_percentile_among_cut_requests_is_a_lower_bound() -> None:
    made = Distribution(n=30, censored=9, p95=Quantile(value=1200.0, above=True))
    assert quantile(made, "p95") == "> 1,200"


def test_n_stands_beside_each_percentile() -> None:
    assert "n 42," in quantile_cell(distribution(10.0, n=42), "p50", unit="ms").title


def test_shares_are_ordered_and_sum_to_a_whole() -> None:
    assert shares({"length": 3, "stop": 7}) == "stop 70 %, length 30 %"


def test_no_control_character_and_no_line_break_survives() -> None:
    text = plain(HOSTILE)
    assert text.isprintable()
    assert "\x1b" not in text
    assert "second line </script>" in text


@pytest.mark.parametrize(
    "text",
    ["\ud800", "a" * 10_000, "\x00\x9b31m", ""],
    ids=["surrogate", "long", "control", "empty"],
)
def test_any_text_becomes_one_printable_line_of_bounded_length(text: str) -> None:
    assert plain(text).isprintable()
    assert len(plain(text)) <= 401
