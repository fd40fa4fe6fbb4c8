"""Text for logs that hold lengths only: words, so many as tokens, equal where the log's blocks are.

Block id h of size b is b words drawn from a seed of h alone, so that requests which share leading
ids share leading words. A server's template adds tokens in front: its own blocks then begin a few
words further on than the log's. What is beyond the blocks, or where there are none, is drawn for
each request, the first words of all from the run's nonce and the request's place.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from loadgen.workload.replay.entry import Entry
from loadgen.workload.seeds import derive
from loadgen.workload.synthetic import OPENING_WORDS, Overhead, nonce_number, usable_words

Place = tuple[int, int, int]
"""Level, round, and how often the log was gone through before."""

_KEPT_BLOCKS = 4096
Indices = npt.NDArray[np.int64]


class LogWords:
    """Makes the texts of one log.

    Each level, round and pass has words of its own, so that none meets what another left in the
    server's prefix cache: only what the log shares is shared.
    """

    def __init__(self, *, seed: int, nonce: str, overhead: Overhead, name: str = "") -> None:
        self._seed = seed
        self._nonce = nonce_number(nonce)
        self._overhead = overhead
        self._name = name
        self._words = usable_words(overhead.words)
        self._block = lru_cache(maxsize=_KEPT_BLOCKS)(self._drawn_block)

    def text(self, entry: Entry, number: int, place: Place, *, size: int) -> str:
        """Return the text of one request: ``size`` tokens with what the template adds."""
        words = self._size(size)
        full = len(entry.hash_ids) * entry.block_size
        wanted = entry.hash_ids[: -(-words // entry.block_size)] if entry.block_size else ()
        parts = [self._block(one, entry.block_size, place) for one in wanted]
        if words > full:
            parts.append(self._own(number, place, size=words - full))
        return " ".join(self._words[np.concatenate(parts)[:words]].tolist())

    def _size(self, tokens: int) -> int:
        added, per_word = self._overhead.tokens, self._overhead.per_word
        return max(1, round((tokens - max(added, 0)) / max(per_word, 1.0)))

    def _drawn_block(self, block: int, size: int, place: Place) -> Indices:
        return self._draw("log blocks", self._nonce, *place, block, size, size=size)

    def _own(self, number: int, place: Place, *, size: int) -> Indices:
        drawn = self._draw("log words", *place, number, size=size)
        if self._nonce:
            opening = min(OPENING_WORDS, size)
            drawn[:opening] = self._draw("log opening", self._nonce, *place, number, size=opening)
        return drawn

    def _draw(self, name: str, *parts: int, size: int) -> Indices:
        rng = np.random.default_rng(derive(self._seed, name + self._name, *parts))
        return rng.integers(0, len(self._words), size=size)
