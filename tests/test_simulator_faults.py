"""Which requests fail: exact shares, seeded order."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.simulator.faults import Dealer, Fault, parse_fault


def deal(shares: list[tuple[str, float]], count: int, *, seed: int = 0) -> list[str | None]:
    dealer = Dealer(shares, seed=seed)
    return [dealer.deal() for _ in range(count)]


@pytest.mark.parametrize(
    ("share", "count", "hits"),
    [(0.3, 200, 60), (0.005, 1000, 5), (1.0, 50, 50), (0.0, 100, 0), (0.999, 1000, 999)],
    ids=["30% of 200", "0.5% of 1000", "all", "none", "all but one"],
)
def test_a_share_is_met_exactly(share: float, count: int, hits: int) -> None:
    assert deal([("cut", share)], count).count("cut") == hits


def test_two_kinds_share_the_requests() -> None:
    counts = Counter(deal([("cut", 0.25), ("stall", 0.5)], 400))
    assert counts == {"cut": 100, "stall": 200, None: 100}


def test_the_order_is_mixed_and_comes_from_the_seed() -> None:
    first = deal([("cut", 0.3)], 100, seed=1)
    assert first == deal([("cut", 0.3)], 100, seed=1)
    assert first != deal([("cut", 0.3)], 100, seed=2)
    assert 5 < first[:50].count("cut") < 25


def test_shares_above_one_are_refused() -> None:
    with pytest.raises(ValueError, match="exceed 100"):
        Dealer([("cut", 0.6), ("stall", 0.6)], seed=0)


@settings(max_examples=50)
@given(share=st.floats(0, 1), blocks=st.integers(1, 20))
def test_no_share_is_ever_off_by_more_than_one(share: float, blocks: int) -> None:
    hits = deal([("cut", share)], 100 * blocks).count("cut")
    assert abs(hits - share * 100 * blocks) <= 1


@pytest.mark.parametrize("text", ["cut:0.3", "cut:30%"])
def test_a_fault_is_read_with_its_share(text: str) -> None:
    assert parse_fault(text) == Fault(kind="cut", share=0.3)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("stal:10%", "did you mean 'stall'"),
        ("xyzzy:10%", "one of status_429"),
        ("cut", "write it like cut:10%"),
        ("cut:7", "between 0 and 100"),
        ("cut:lots", "write it like 2%"),
    ],
    ids=["misspelt", "unknown", "no share", "too much", "no number"],
)
def test_a_bad_fault_is_answered_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_fault(text)
