"""Prompts made of words that are one token each in every common tokenizer: n words, n tokens.

A pure function of (seed, nonce, level, round, number): nothing is remembered from one prompt to the
next, so any worker can make any prompt.

How a prompt of n words is laid out:

    [k shared words] [3 opening words] [n − k − 3 words]

The opening words come from the run's nonce *and* the prompt's place in the run, so that no two
prompts, of one run or of two, begin alike and meet each other's prefix cache. The shared words are
equal in all prompts of a run and differ from run to run. Everything else comes from the seed alone.

A server's chat template adds tokens of its own. Where their number is known (``Overhead``), so many
words fewer are sent, and n tokens asked are n tokens counted by the server.
"""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.scenario.prompts import Prompts
from loadgen.workload.lengths import Asked, Lengths, Pairs
from loadgen.workload.prompt import Conversation, Message, Prompt, Turn, hash_of
from loadgen.workload.seeds import derive

OPENING_WORDS = 3
"""2,818 cubed is 2 in 10¹⁰: two prompts of a run open alike about once in 200,000 prompts."""

FIXED_NONCE = "fixed"
"""In place of a nonce: the opening words come from the seed alone."""

FEWEST_WORDS = 100
"""A server's tokenizer that leaves fewer words than these cannot be served with words."""

Place = tuple[int, int, int]
"""Level, round and number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """What is known of a server's tokens, found by asking it.

    tokens: added by the template to a prompt of one message. turn: added for each reply and further
    message. words: those that are one token there, None where all are. per_word: tokens of a word
    on average, where words are not one token each.
    """

    tokens: int = 0
    turn: int = 0
    words: frozenset[str] | None = None
    per_word: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What synthetic prompts may be told beside the scenario's own words."""

    class_: str | None = None
    overhead: Overhead = field(default_factory=Overhead)
    pairs: Pairs | None = None


class SyntheticPrompts:
    """Makes the prompts of one run, or of one class of its mix.

    nonce: hex text drawn for this run; FIXED_NONCE makes every run send the same.
    """

    def __init__(
        self,
        prompts: Prompts,
        *,
        seed: int,
        nonce: str,
        endpoint: str,
        given: Given = Given(),
    ) -> None:
        self._prompts = prompts
        self._seed = seed
        self._nonce = nonce_number(nonce)
        self._chat = endpoint == "chat"
        self._class = given.class_
        self._name = "" if given.class_ is None else f" of {given.class_}"
        self._overhead = given.overhead
        self._pairs = given.pairs
        self._words = usable_words(given.overhead.words)
        self._lengths = Lengths(prompts, seed=seed, name=self._name, pairs=given.pairs)
        self._shared = self._draw("shared", self._nonce, size=prompts.shared_prefix_tokens)

    def prompt(self, *, level: int, round_: int, number: int) -> Prompt:
        """Return the prompt of one arrival; of a conversation its first turn."""
        asked = self.lengths(round_=round_, number=number)
        text = self._opening_text(asked.input_tokens, (level, round_, number))
        return Prompt(
            messages=[{"role": "user", "content": text}] if self._chat else None,
            text=None if self._chat else text,
            asked_input=asked.input_tokens,
            asked_output=asked.output_tokens,
            max_output=self._prompts.max_output_tokens,
            hash=hash_of(text),
            class_=self._class,
        )

    def conversation(self, *, level: int, round_: int, number: int) -> Conversation:
        """Return all turns of one conversation; its first is what ``prompt`` returns."""
        place = (level, round_, number)
        turns = self._lengths.turns(round_=round_, number=number)
        return Conversation(
            id=conversation_id(self._class, place),
            turns=tuple(self._turn(place, turn) for turn in range(turns)),
            history=self._prompts.history,
            class_=self._class,
            turn_overhead=self._overhead.turn,
        )

    def lengths(self, *, round_: int, number: int) -> Asked:
        """Return the tokens asked for, in and out."""
        return self._lengths.asked(round_=round_, number=number)

    def facts(self) -> dict[str, Any]:
        """Say, for the manifest, what the prompts are made of."""
        known: dict[str, Any] = {
            "source": "synthetic",
            "overhead_tokens": self._overhead.tokens,
            "words": len(self._words),
        }
        if self._pairs is not None:
            digest = hashlib.sha256(self._pairs.tobytes()).hexdigest()
            known |= {"length_pairs": len(self._pairs), "length_pairs_hash": digest}
        return known

    def shared_words(self, asked_input: int) -> int:
        """Return how many words of a prompt are shared: at least one is always its own."""
        share = self._prompts.cache_hit_share
        wanted = self._prompts.shared_prefix_tokens
        if share is not None:
            wanted = round(share * asked_input)
        return min(wanted, self._size(asked_input) - 1)

    def _size(self, asked_input: int) -> int:
        """Return how many words are sent: never fewer than open a prompt."""
        added, per_word = self._overhead.tokens, self._overhead.per_word
        # words never merge: a server that counts less than one token each does not count them
        words = round((asked_input - max(added, 0)) / max(per_word, 1.0))
        return max(min(OPENING_WORDS, asked_input), words)

    def _opening_text(self, asked_input: int, place: Place) -> str:
        size = self._size(asked_input)
        indices = self._draw("words", *place, size=size)
        shared = self.shared_words(asked_input)
        opening = min(OPENING_WORDS, size - shared)
        indices[:shared] = self._shared_words(shared)
        if self._nonce:
            drawn = self._draw("opening", self._nonce, *place, size=opening)
            indices[shared : shared + opening] = drawn
        return self._text(indices)

    def _turn(self, place: Place, turn: int) -> Turn:
        _, round_, number = place
        asked = self._lengths.asked(round_=round_, number=number, turn=turn)
        text = (
            self._opening_text(asked.input_tokens, place)
            if turn == 0
            else self._text(self._draw("words", *place, turn, size=asked.input_tokens))
        )
        return Turn(
            messages=({"role": "user", "content": text},),
            input_tokens=asked.input_tokens,
            asked_output=asked.output_tokens,
            max_output=self._prompts.max_output_tokens,
            think_s=self._lengths.think_s(round_=round_, number=number, turn=turn),
            reply=self._reply(place, turn, asked.output_tokens),
            reply_tokens=asked.output_tokens,
        )

    def _reply(self, place: Place, turn: int, size: int | None) -> tuple[Message, ...] | None:
        """Make the reply that a recorded history repeats: of exactly the length asked for."""
        if size is None or self._prompts.history == "live":
            return None
        text = self._text(self._draw("replies", *place, turn, size=size))
        return ({"role": "assistant", "content": text},)

    def _shared_words(self, size: int) -> npt.NDArray[np.int64]:
        if size > len(self._shared):  # a longer draw of the same seed begins as the shorter one
            self._shared = self._draw("shared", self._nonce, size=2 * size)
        return self._shared[:size]

    def _text(self, indices: npt.NDArray[np.int64]) -> str:
        return " ".join(self._words[indices].tolist())

    def _draw(self, name: str, *parts: int, size: int) -> npt.NDArray[np.int64]:
        rng = np.random.default_rng(derive(self._seed, name + self._name, *parts))
        return rng.integers(0, len(self._words), size=size)


def conversation_id(class_: str | None, place: Place) -> str:
    """Name a conversation by its place in the run."""
    plain = ".".join(map(str, place))
    return plain if class_ is None else f"{class_}.{plain}"


def nonce_number(nonce: str) -> int:
    """Return a number for a nonce; 0 means none."""
    if nonce == FIXED_NONCE:
        return 0
    return int(hash_of(nonce), 16) | 1


def usable_words(words: frozenset[str] | None) -> npt.NDArray[np.object_]:
    """Keep the words of the list that a server takes for one token; the order stays."""
    if words is None:
        return universal_words()
    kept = np.array([word for word in universal_words() if word in words], dtype=object)
    if len(kept) < FEWEST_WORDS:
        raise ValueError(f"{len(kept)} usable words are too few to make prompts of")
    return kept


@cache
def universal_words() -> npt.NDArray[np.object_]:
    """Return the words that are one token in every common tokenizer."""
    text = files("loadgen.workload").joinpath("words.json").read_text(encoding="utf-8")
    return np.array(json.loads(text), dtype=object)  # joined ten times faster than numpy's strings
