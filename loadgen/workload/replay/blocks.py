"""Prefix blocks: which beginnings of requests are equal, and how much of a log a cache could hold.

Of a text a block is 512 bytes of what the server's template sees in order: tools, then messages.
Its id is a hash of the block and all blocks before it, so that equal ids mean equal beginnings.
Where hits are counted, the first of these blocks is eight of 64 bytes, some 16 tokens, as many as a
server's blocks have: else a short conversation would repeat nothing.
"""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import orjson

from loadgen.workload.replay.entry import Entry

BLOCK_BYTES = 512
BLOCK_TOKENS = 128
"""Of one block of text, at the usual four bytes a token."""
FINE_BYTES, FINE_TOKENS = 64, 16
FINE_BLOCKS = BLOCK_BYTES // FINE_BYTES

Ids = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]


def block_ids(entry: Entry, salt: bytes = b"", *, size: int = BLOCK_BYTES) -> tuple[int, ...]:
    """Return the ids of a request's blocks, 63 bits each; the log's own where it has them.

    size: bytes of a block of text. salt: makes ids that nobody without it can make from a guessed
    text; the log's own are then hashed, too.
    """
    if entry.has_text:
        said = _bytes_of(entry)
        return _chained(said, range(0, len(said), size), salt)
    if not salt:
        return entry.hash_ids
    return tuple(
        _id(blake2b(one.to_bytes(8, signed=True), digest_size=8, key=salt).digest())
        for one in entry.hash_ids
    )


def fine_ids(entry: Entry) -> tuple[int, ...]:
    """Return ids to count hits by: of a text the first eight are of 64 bytes, further ones of 512.

    A log's own ids stay as they are.
    """
    if not entry.has_text:
        return entry.hash_ids
    said = _bytes_of(entry)
    fine = range(0, min(len(said), BLOCK_BYTES), FINE_BYTES)
    return _chained(said, [*fine, *range(BLOCK_BYTES, len(said), BLOCK_BYTES)])


def tokens_in(counts: Counts, *, text: npt.NDArray[np.bool_], block_size: int) -> Counts:
    """Return the tokens of so many first blocks of each request, as ``fine_ids`` cuts them.

    text: whether a request has text; block_size: of the log's own blocks.
    """
    fine = np.minimum(counts, FINE_BLOCKS)
    of_text = FINE_TOKENS * fine + BLOCK_TOKENS * (counts - fine)
    return np.where(text, of_text, block_size * counts)


def hit_share(
    ids: Ids,
    counts: Counts,
    order: npt.NDArray[np.int64],
    *,
    tokens: Callable[[Counts], Counts] = np.positive,
) -> float | None:
    """Return the share that a cache without limit would hold: leading blocks seen before.

    ids: of all requests, one after another; counts: how many each has; order: requests by time.
    tokens: of so many first blocks of each request, where blocks differ; else blocks count.
    """
    if not len(ids):
        return None
    # lean: a log may have millions of blocks
    request = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    missed = _missed(ids, _ranks(order)[request])
    position = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    leading = counts.copy()
    np.minimum.at(leading, request[missed], position[missed])
    return float(tokens(leading).sum() / tokens(counts).sum())


def _ranks(order: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    return rank


def _missed(ids: Ids, when: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Say of each block whether no earlier request had it; when: the rank of its request."""
    by_id = np.argsort(ids)
    alike = ids[by_id]
    starts = np.flatnonzero(np.concatenate([[True], alike[1:] != alike[:-1]]))
    del alike
    when = when[by_id]
    first = np.minimum.reduceat(when, starts)
    missed = np.empty(len(ids), dtype=np.bool_)
    missed[by_id] = when <= np.repeat(first, np.diff(starts, append=len(ids)))
    return missed


def _chained(said: bytes, starts: Sequence[int], salt: bytes = b"") -> tuple[int, ...]:
    """Return an id for each block; a block ends where the next one starts."""
    chain, found = b"", []
    for start, end in pairwise([*starts, len(said)]):
        chain = blake2b(chain + said[start:end], digest_size=8, key=salt).digest()
        found.append(_id(chain))
    return tuple(found)


def _bytes_of(entry: Entry) -> bytes:
    tools = entry.params.get("tools")
    before = orjson.dumps(tools) if tools else b""
    if entry.messages is None:
        return before + (entry.text or "").encode("utf-8", "surrogatepass")
    return before + orjson.dumps(entry.messages)[1:-1]


def _id(digest: bytes) -> int:
    return int.from_bytes(digest) >> 1
