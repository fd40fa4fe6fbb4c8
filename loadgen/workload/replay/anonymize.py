"""A log without what was said in it: times, lengths, and which beginnings were equal.

Written in Mooncake's format, which many tools read, with ``end``, ``session_id``, ``block_size``
and ``failed`` beside it. Ids are keyed hashes: who does not know the salt cannot tell from a
guessed text whether it stood in the log.
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

from loadgen.units import NS_PER_MS
from loadgen.workload.replay.blocks import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    FINE_BYTES,
    FINE_TOKENS,
    block_ids,
)
from loadgen.workload.replay.index import NO_COUNT, NO_TIME, TEXT, Log

LONGEST_SALT = 64
SHORT_TOKENS = 512
"""Mean length below which prompts share in blocks of 16 tokens: a row then has some 32 ids."""


def anonymous_rows(log: Log, *, salt: bytes) -> Iterator[dict[str, Any]]:
    """Yield a row for each request of a log, in the order of the file.

    Times count from the log's first request, so that they do not tell the day. Where a log does not
    count its tokens they are estimated from the text's length. Text is cut into blocks of one size,
    by ``block_tokens``.
    """
    tokens = block_tokens(log)
    size = FINE_BYTES if tokens == FINE_TOKENS else BLOCK_BYTES
    known = log.arrival_ns[log.arrival_ns != NO_TIME]
    first_ns = int(known.min()) if len(known) else 0
    for number in range(len(log)):
        entry = log.entry(number)
        row: dict[str, Any] = {}
        if log.arrival_ns[number] != NO_TIME:
            row["timestamp"] = _ms(int(log.arrival_ns[number]) - first_ns)
        if log.end_ns[number] != NO_TIME:
            row["end"] = _ms(max(int(log.end_ns[number]) - first_ns, 0))
        row["input_length"] = int(log.input_tokens[number])
        if log.output_tokens[number] != NO_COUNT:
            row["output_length"] = int(log.output_tokens[number])
        if ids := block_ids(entry, salt, size=size):
            block_size = tokens if entry.has_text else entry.block_size
            row |= {"hash_ids": list(ids), "block_size": block_size}
        if entry.session is not None:
            row["session_id"] = _name(entry.session, salt)
        if entry.failed:
            row["failed"] = True
        yield row


def block_tokens(log: Log) -> int:
    """Return the tokens of a block of a log's text: 128, or 16 where its prompts are short.

    One size for all: only then do the first turns of a conversation share with the later ones.
    """
    lengths = log.input_tokens[(log.flags & TEXT) > 0]
    short = len(lengths) > 0 and float(lengths.mean()) < SHORT_TOKENS
    return FINE_TOKENS if short else BLOCK_TOKENS


def _name(session: str, salt: bytes) -> str:
    return blake2b(session.encode("utf-8", "replace"), digest_size=8, key=salt).hexdigest()


def _ms(ns: int) -> int | float:
    whole, rest = divmod(ns, NS_PER_MS)
    return ns / NS_PER_MS if rest else whole
