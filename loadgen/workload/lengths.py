"""How many tokens each request asks for, in and out: drawn by number, equal in all levels.

The n-th prompts of all levels ask for the same lengths, so that levels are compared over the same
work; each round draws its own.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.scenario.lengths import Length, ThinkTime
from loadgen.scenario.prompts import Prompts
from loadgen.workload.seeds import derive

Pairs = npt.NDArray[np.int32]
"""Input and output tokens measured together, a row for each request of some log."""


class Asked(NamedTuple):
    """The tokens asked for; output None: as long as the model likes."""

    input_tokens: int
    output_tokens: int | None


class Lengths:
    """Draws the lengths of one kind of prompt.

    name: sets the draws of one class of a mix apart from those of the others.
    pairs: rows drawn with replacement, in place of the two distributions.
    """

    def __init__(
        self, prompts: Prompts, *, seed: int, name: str = "", pairs: Pairs | None = None
    ) -> None:
        self._prompts = prompts
        self._seed = seed
        self._name = name
        self._pairs = pairs

    def asked(self, *, round_: int, number: int, turn: int = 0) -> Asked:
        """Return the lengths of one request; of a later turn: its own message and its answer."""
        place = (round_, number, turn)
        if self._pairs is not None:
            row = int(self._rng("length pairs", *place).integers(len(self._pairs)))
            return Asked(int(self._pairs[row, 0]), int(self._pairs[row, 1]))
        asked = self._drawn(self._prompts.input_tokens, "input lengths", place)
        if asked is None:
            raise ValueError("prompts are made of input_tokens, or of pairs of lengths")
        return Asked(asked, self.output(round_=round_, number=number, turn=turn))

    def output(self, *, round_: int, number: int, turn: int = 0) -> int | None:
        """Return the length of one answer alone."""
        place = (round_, number, turn)
        return self._drawn(self._prompts.output_tokens, "output lengths", place)

    def turns(self, *, round_: int, number: int) -> int:
        """Return how many turns a conversation has."""
        return self._drawn(self._prompts.turns, "turns", (round_, number)) or 1

    def think_s(self, *, round_: int, number: int, turn: int) -> float:
        """Return the pause before a turn; none before the first."""
        think: ThinkTime = self._prompts.think_time
        if turn == 0 or not think.spread_s:
            return think.mean_s if turn else 0.0
        drawn = self._rng("think times", round_, number, turn).normal(think.mean_s, think.spread_s)
        return max(0.0, float(drawn))

    def _drawn(self, length: Length | None, name: str, place: tuple[int, ...]) -> int | None:
        if length is None or length.natural:
            return None
        if length.distribution == "fixed":  # nothing is drawn: no generator is made for it
            return length.clip(length.mean or 1)
        return draw_length(length, self._rng(name, *place))

    def _rng(self, name: str, *place: int) -> np.random.Generator:
        return np.random.default_rng(derive(self._seed, name + self._name, *place))


def draw_length(length: Length, rng: np.random.Generator) -> int:
    """Draw one whole number from a distribution."""
    mean = length.mean or 1.0
    match length.distribution:
        case "uniform":
            return int(rng.integers(length.min or 1, length.max or 1, endpoint=True))
        case "lognormal":
            stretch = float(np.exp(rng.normal(0.0, length.sigma or 0.0)))
            return length.clip((length.median or 1.0) * stretch)
        case "normal":
            return length.clip(float(rng.normal(mean, length.spread)))
    return length.clip(mean)
