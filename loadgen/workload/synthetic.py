"""Prompts made of words that are one token each in every common tokenizer: n words, n tokens.

A pure function of (seed, nonce, level, round, number): nothing is remembered from one prompt to the
next, so any worker can make any prompt.

How a prompt of n words is laid out:

    [k shared words] [3 opening words] [n − k − 3 words]

The opening words come from the run's nonce *and* the prompt's place in the run, so that no two
prompts, of one run or of two, begin alike and meet each other's prefix cache. The shared words are
equal in all prompts of a run and differ from run to run. Everything else comes from the seed alone.
"""

import hashlib
import json
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from loadgen.scenario.fields import Length
from loadgen.scenario.model import Prompts
from loadgen.workload.prompt import Prompt
from loadgen.workload.seeds import derive

OPENING_WORDS = 3
"""2,818 cubed is 2 in 10¹⁰: two prompts of a run open alike about once in 200,000 prompts."""


FIXED_NONCE = "fixed"
"""In place of a nonce: the opening words come from the seed alone."""


class SyntheticPrompts:
    """Makes the prompts of one run.

    nonce: hex text drawn for this run; FIXED_NONCE makes every run send the same.
    """

    def __init__(self, prompts: Prompts, *, seed: int, nonce: str, endpoint: str) -> None:
        self._prompts = prompts
        self._seed = seed
        self._nonce = _nonce_number(nonce)
        self._chat = endpoint == "chat"
        self._shared = self._draw("shared", self._nonce, size=prompts.shared_prefix_tokens)

    def prompt(self, *, level: int, round_: int, number: int) -> Prompt:
        """Return the prompt of one arrival."""
        asked_input, asked_output = self.lengths(round_=round_, number=number)
        place = (level, round_, number)
        text = " ".join(_words()[self._indices(asked_input, place)].tolist())
        return Prompt(
            messages=[{"role": "user", "content": text}] if self._chat else None,
            text=None if self._chat else text,
            asked_input=asked_input,
            asked_output=asked_output,
            hash=hashlib.sha256(text.encode()).hexdigest()[:16],
        )

    def lengths(self, *, round_: int, number: int) -> tuple[int, int]:
        """Return the tokens asked for, in and out.

        The n-th prompts of all levels ask for the same lengths, so that levels are compared over
        the same work; each round draws its own.
        """
        rng = np.random.default_rng(derive(self._seed, "lengths", round_, number))
        asked_input = _length(self._prompts.input_tokens, rng)
        return asked_input, _length(self._prompts.output_tokens, rng)

    def shared_words(self, asked_input: int) -> int:
        """Return how many words of a prompt are shared: at least one is always its own."""
        return min(len(self._shared), asked_input - 1)

    def _indices(self, size: int, place: tuple[int, int, int]) -> npt.NDArray[np.int64]:
        indices = self._draw("words", *place, size=size)
        shared = self.shared_words(size)
        opening = min(OPENING_WORDS, size - shared)
        indices[:shared] = self._shared[:shared]
        if self._nonce:
            drawn = self._draw("opening", self._nonce, *place, size=opening)
            indices[shared : shared + opening] = drawn
        return indices

    def _draw(self, name: str, *parts: int, size: int) -> npt.NDArray[np.int64]:
        rng = np.random.default_rng(derive(self._seed, name, *parts))
        return rng.integers(0, len(_words()), size=size)


def _length(length: Length, rng: np.random.Generator) -> int:
    drawn = rng.normal(length.mean, length.spread)  # drawn always: one length never shifts another
    return max(1, round(drawn))


def _nonce_number(nonce: str) -> int:
    """Return a number for a nonce; 0 means none."""
    if nonce == FIXED_NONCE:
        return 0
    return int.from_bytes(hashlib.sha256(nonce.encode()).digest()[:8], "big") | 1


@cache
def _words() -> npt.NDArray[np.object_]:
    text = files("loadgen.workload").joinpath("words.json").read_text(encoding="utf-8")
    return np.array(json.loads(text), dtype=object)  # joined ten times faster than numpy's strings
