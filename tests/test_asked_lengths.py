"""Lengths asked for, held against those of the same requests: a mix asks for some alone."""

from collections.abc import Mapping

import pytest
from make import every, level, make_run, record
from report_make import view

from loadgen.analysis.metrics import summarise
from loadgen.analysis.summary import LevelSummary, Summary

ASKED, GIVEN = 512, 20


def mixed(*, of_asked: Mapping[str, int]) -> Summary:
    """A class that asks for 512 and 20 tokens, and one whose texts and answers are natural."""
    records = []
    for number in range(200):
        asks = number % 2
        tokens, prompt = (of_asked["output"], of_asked["input"]) if asks else (60, 200)
        records.append(
            record(
                number,
                sent=100.0 * number,
                at=every(1, first=50, count=tokens),
                class_="chat" if asks else "free",
                reported_input=prompt,
                reported_output=tokens,
                asked_input=ASKED if asks else None,
                asked_output=GIVEN if asks else None,
                prompt_hash=str(number),
            )
        )
    return summarise(make_run(records, [level(window=(0, 20_000))]))


def lengths(of: LevelSummary) -> dict[str, tuple[str, float]]:
    words = ("input length", "output length", "answers")
    return {
        one.name: (one.verdict, round(one.value or 0.0, 3))
        for one in of.checks
        if one.name.startswith(words) and one.verdict != "pass"
    }


def test_a_class_that_asks_for_no_length_is_not_held_against_that_of_the_others() -> None:
    found = mixed(of_asked={"input": ASKED, "output": GIVEN})
    (whole,) = found.levels
    assert lengths(whole) == {}
    assert (whole.asked_input_mean, whole.input_told) == (ASKED, ASKED)
    assert (whole.asked_output_mean, whole.output_told) == (GIVEN, GIVEN)
    assert whole.output_tokens.mean == 40


@pytest.mark.parametrize(
    ("of_asked", "told"),
    [
        ({"input": 640, "output": 20}, {"input length, off by": ("warn", 0.25)}),
        ({"input": 512, "output": 10}, {"answers stop early by": ("warn", 0.5)}),
        ({"input": 512, "output": 30}, {"answers too long by": ("warn", 0.5)}),
    ],
    ids=["prompts", "short", "long"],
)
def test_what_is_not_as_asked_is_told_by_the_same_share_beside_a_natural_class(
    of_asked: dict[str, int], told: dict[str, tuple[str, float]]
) -> None:
    found = mixed(of_asked=of_asked)
    assert lengths(found.levels[0]) == told


def test_the_table_and_the_card_hold_the_same_requests_against_each_other() -> None:
    found = mixed(of_asked={"input": 520, "output": GIVEN})
    table = view(*found.levels).lengths
    (off,) = (index for index, column in enumerate(table.columns) if column.label == "off")
    assert table.rows[0][off].text == "8"
    (card,) = (one for one in found.conditions if "context lengths" in one.question)
    assert "input asked 512, reported 520; output asked 20, counted 20" in card.text
