"""Prefix blocks: which beginnings of requests are equal, and how much of a log a cache could hold.

Of a text a block is 512 bytes of what the server's template sees in order: tools, then messages.
Its id is a hash of the block and all blocks before it, so that equal ids mean equal beginnings.
"""

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
import orjson

from loadgen.workload.replay.entry import Entry

BLOCK_BYTES = 512
BLOCK_TOKENS = 128
"""Of one block of text, at the usual four bytes a token."""

Ids = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.int64]


def block_ids(entry: Entry, salt: bytes = b"") -> tuple[int, ...]:
    """Return the ids of a request's blocks, 63 bits each; the log's own where it has them.

    salt: makes ids that nobody without it can make from a guessed text; the log's own are then
    hashed, too.
    """
    if entry.has_text:
        return _of_text(entry, salt)
    if not salt:
        return entry.hash_ids
    return tuple(
        _id(blake2b(one.to_bytes(8, signed=True), digest_size=8, key=salt).digest())
        for one in entry.hash_ids
    )


def hit_share(ids: Ids, counts: Counts, order: npt.NDArray[np.int64]) -> float | None:
    """Return the share of blocks that a cache without limit would hold: leading ones seen before.

    ids: of all requests, one after another; counts: how many each has; order: requests by time.
    """
    if not len(ids):
        return None
    request = np.repeat(np.arange(len(counts)), counts)
    rank = np.empty(len(counts), dtype=np.int64)
    rank[order] = np.arange(len(order))
    when = rank[request]
    _, block = np.unique(ids, return_inverse=True)
    first = np.full(int(block.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, block, when)
    missed = first[block] >= when
    position = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    leading = counts.copy()
    np.minimum.at(leading, request[missed], position[missed])
    return float(leading.sum() / len(ids))


def _of_text(entry: Entry, salt: bytes) -> tuple[int, ...]:
    said = _bytes_of(entry)
    chain, found = b"", []
    for start in range(0, len(said), BLOCK_BYTES):
        chain = blake2b(chain + said[start : start + BLOCK_BYTES], digest_size=8, key=salt).digest()
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
