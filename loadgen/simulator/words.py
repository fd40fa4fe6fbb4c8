"""The simulator's language: one word is one token, in the prompt and in the answer.

What is answered depends on the seed, the prompt and the choice alone, so the same question asked
twice gets the same answer, and a garbled one can be told from it.
"""

import hashlib
from collections.abc import Callable
from itertools import product

import numpy as np

COUNT = 1021  # a prime: any stride visits every word


def _vocabulary() -> tuple[bytes, ...]:
    syllables = [c + v for c, v in product("bdfgklmnprstvz", "aeiou")]
    pairs = (first + second for second, first in product(syllables, syllables))
    return tuple(b" " + word.encode() for word, _ in zip(pairs, range(COUNT), strict=False))


WORDS = _vocabulary()
GARBLED = tuple(b" " + word[1:].translate(bytes.maketrans(b"aeiou", b"xqjwh")) for word in WORDS)


def digest(text: str) -> int:
    """Return 64 bits of a prompt that are the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def answer_words(seed: int, prompt: int, *, choice: int, garbled: bool) -> Callable[[int], bytes]:
    """Return the function from a token's number to its text (ASCII, needs no JSON escapes)."""
    source = hashlib.blake2b(f"{seed} {prompt} {choice}".encode(), digest_size=8).digest()
    start = int.from_bytes(source[:4], "big") % COUNT
    stride = int.from_bytes(source[4:], "big") % (COUNT - 1) + 1
    words = GARBLED if garbled else WORDS

    def word(number: int) -> bytes:
        text = words[(start + number * stride) % COUNT]
        return text if number else text[1:]

    return word


def natural_length(seed: int, prompt: int, *, choice: int, mean: float) -> int:
    """Draw how long an unbounded answer is: geometric, at least 2 (a word and the end token)."""
    rng = np.random.default_rng([seed & 0xFFFF_FFFF, prompt, choice])
    return 1 + int(rng.geometric(1 / max(mean - 1, 1.0)))
