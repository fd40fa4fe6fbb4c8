"""Answers held against the length that was asked for."""

from typing import NamedTuple

from loadgen.analysis.per_request import output_tokens
from loadgen.analysis.table import RunData
from loadgen.record import Outcome


class Unlike(NamedTuple):
    """How many answers are not as long as asked, of how many that were asked for a length."""

    number: int
    of: int


def answers_unlike_asked(run: RunData) -> Unlike:
    """Count the ok answers whose tokens differ from the length asked for."""
    requests = run.requests
    asked = requests[(requests["outcome"] == Outcome.OK) & requests["asked_output"].notna()]
    differ = output_tokens(asked) != asked["asked_output"]
    return Unlike(number=int(differ.sum()), of=len(asked))
