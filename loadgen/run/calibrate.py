"""How many tokens a server counts for words of ours: probes of the run's own shape.

A universal word is one token in nearly every tokenizer, and a template adds a constant. So
usage.prompt_tokens(n words) − n, asked for several n and different words, is one number where both
hold; then n words more are n tokens more, exactly. Where it is not, the server's own tokenizer may
say which words are one token; else every word of the list is sent once, the number of words is
scaled by their mean, and the report tells by how much lengths missed.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from loadgen.workload.prompt import Message, Prompt, hash_of
from loadgen.workload.synthetic import Overhead, universal_words

_SIZES = (8, 8, 64, 257)
_TURN_WORDS = 8
_COUNTING_S = 10.0  # a slow server counts only a part of the list
_LEAST_PER_WORD, _MOST_PER_WORD = 0.5, 20.0  # beyond, what is reported counts something else
_FEWEST_WORDS = 200  # usable ones: fewer would repeat so much that a cache finds them
_LINE_BREAKS = frozenset({"\n", "\u010a", "<0x0A>"})  # as tokenizers of several kinds spell one

Words = npt.NDArray[np.object_]
Ask = Callable[[Prompt], Awaitable[int | None]]
"""Send a prompt for one token; return usage.prompt_tokens, None where none is reported."""
Pieces = Callable[[str], Awaitable[list[str] | None]]
"""Return the tokens of a text as the server splits it; None where it will not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What was found: ``how`` is linear, filtered, scaled, unknown, or none (not tried)."""

    how: str
    overhead: Overhead
    probes: list[tuple[int, int]]  # words sent, tokens counted

    @property
    def exact(self) -> bool:
        """Whether prompts will have exactly the length asked for."""
        return self.how in ("linear", "filtered")

    @property
    def note(self) -> str | None:
        """What the user should know; None where lengths are exact."""
        if self.exact or self.how == "none":
            return None
        if self.how == "unknown":
            return (
                "the server reports no usable count of prompt tokens: prompts have as many words "
                "as tokens asked for"
            )
        return (
            f"words are not tokens on this server ({self.overhead.per_word:.2f} tokens each): "
            "prompt lengths are approximate; the report shows asked against counted"
        )


async def calibrate(ask: Ask, pieces: Pieces, *, chat: bool, turns: bool) -> Calibration:
    """Probe a server; ``turns`` also finds what a reply and a further turn add.

    The probes' words are drawn anew each time, so that no cache answers for the tokenizer.
    """
    shape = _Shape(ask, chat=chat, rng=np.random.default_rng())
    words = universal_words()
    probes = await shape.probe(words)
    if not probes:
        return Calibration(how="unknown", overhead=Overhead(), probes=[])
    how: str = "linear"
    usable: frozenset[str] | None = None
    if not _constant(probes):
        how = "scaled"
        for usable in await _single_tokens(pieces, words):
            filtered = await shape.probe(np.array(sorted(usable), dtype=object))
            if _constant(filtered):
                how, probes = "filtered", filtered
                break
    if how == "scaled":
        probes = probes + await shape.count(words, at_once=max(size for size, _ in probes))
        overhead = _scaled(probes)
        if overhead is None:
            return Calibration(how="unknown", overhead=Overhead(), probes=probes)
        return Calibration(how=how, overhead=overhead, probes=probes)
    tokens = probes[0][1] - probes[0][0]
    turn = await shape.turn(usable, words, tokens) if turns else 0
    overhead = Overhead(tokens=tokens, turn=turn, words=usable)
    return Calibration(how=how, overhead=overhead, probes=probes)


class _Shape:
    """Builds probes the way the run builds its prompts."""

    def __init__(self, ask: Ask, *, chat: bool, rng: np.random.Generator) -> None:
        self._ask = ask
        self._chat = chat
        self._rng = rng

    async def probe(self, words: Words) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for size in _SIZES:
            counted = await self._ask(self._prompt(self._text(words, size)))
            if counted is not None:  # a small context refuses the longer ones
                found.append((size, counted))
        return found if len({size for size, _ in found}) > 1 else []

    async def count(self, words: Words, *, at_once: int) -> list[tuple[int, int]]:
        """Ask for all words, each once: their mean is then known, not estimated from a few."""
        found: list[tuple[int, int]] = []
        until = time.monotonic() + _COUNTING_S
        shuffled = self._rng.permutation(words)
        for part in np.array_split(shuffled, -(-len(words) // at_once)):
            counted = await self._ask(self._prompt(" ".join(part)))
            if counted is not None:
                found.append((len(part), counted))
            if time.monotonic() > until:
                break
        return found

    async def turn(self, usable: frozenset[str] | None, words: Words, tokens: int) -> int:
        """Return what one reply and one further user message add beyond their words."""
        known = words if usable is None else np.array(sorted(usable), dtype=object)
        said = [self._text(known, _TURN_WORDS) for _ in range(3)]
        roles = ("user", "assistant", "user")
        messages: list[Message] = [
            {"role": role, "content": text} for role, text in zip(roles, said, strict=True)
        ]
        prompt = Prompt(messages=messages, asked_output=1, hash=hash_of(messages))
        counted = await self._ask(prompt)
        return 0 if counted is None else counted - tokens - 3 * _TURN_WORDS

    def _text(self, words: Words, size: int) -> str:
        return " ".join(words[self._rng.integers(0, len(words), size)])

    def _prompt(self, text: str) -> Prompt:
        messages: list[Message] = [{"role": "user", "content": text}]
        return Prompt(
            messages=messages if self._chat else None,
            text=None if self._chat else text,
            asked_output=1,
            hash=hash_of(text),
        )


def _constant(probes: list[tuple[int, int]]) -> bool:
    return len({counted - size for size, counted in probes}) == 1 and bool(probes)


def _scaled(probes: list[tuple[int, int]]) -> Overhead | None:
    """Fit counted = tokens + per_word · words; None where that is no count.

    Least squares, each probe weighed by 1/words: the variance of a sum grows with its terms.
    """
    sizes = np.array([size for size, _ in probes], dtype=float)
    counted = np.array([tokens for _, tokens in probes], dtype=float)
    per_word, tokens = np.polyfit(sizes, counted, 1, w=1 / np.sqrt(sizes))
    if not _LEAST_PER_WORD <= per_word <= _MOST_PER_WORD:
        return None
    return Overhead(tokens=max(round(float(tokens)), 0), per_word=float(per_word))


async def _single_tokens(pieces: Pieces, words: Words) -> list[frozenset[str]]:
    """Return sets of words that are one token each by the server's own tokenizer, the best first.

    A prompt's first word follows no space, so that the best are one token without it, too; but a
    tokenizer that begins every text with a space of its own has few of those.
    """
    known = frozenset(words)
    spaced = _whole_after_space(await pieces(" " + " ".join(words)) or [], known)
    bare = _whole_lines(await pieces("\n".join(words)) or [], known)
    found = [spaced & bare, spaced]
    return [usable for usable in found if len(usable) >= _FEWEST_WORDS]


def _whole_after_space(found: list[str], known: frozenset[str]) -> frozenset[str]:
    single = {piece[1:] for piece in found if piece[:1] == " " and piece[1:] in known}
    # a piece may begin a longer word: only where the next piece begins a word, too, it is whole
    for piece, following in pairwise([*found, " "]):
        if piece[:1] == " " and following[:1] != " ":
            single.discard(piece[1:])
    return frozenset(single)


def _whole_lines(found: list[str], known: frozenset[str]) -> frozenset[str]:
    framed = ["\n", *found, "\n"]
    return frozenset(
        piece
        for before, piece, after in zip(framed, framed[1:], framed[2:], strict=False)
        if piece in known and before in _LINE_BREAKS and after in _LINE_BREAKS
    )
