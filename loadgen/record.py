"""The facts of one request, and the vocabulary for them.

Every arrival becomes exactly one ``Record``, whatever came of it. ``None`` means "did not happen",
never zero. Instants are integer nanoseconds of one monotonic clock, counted from the run's epoch.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SCHEMA_VERSION = 1

FAILED_OUTCOMES = frozenset({"refused", "timeout", "broken", "truncated"})
"""Outcomes that count in the error rate (metrics: failed / (ok + failed))."""


class Outcome(StrEnum):
    """What came of one arrival."""

    OK = "ok"
    REFUSED = "refused"  # an HTTP status of 300 or more
    TIMEOUT = "timeout"  # error_class: connect, first_token, idle, total
    BROKEN = "broken"  # refused or reset connection, unusable body, error inside the stream
    TRUNCATED = "truncated"  # closed without finish reason and without [DONE]
    DROPPED = "dropped"  # no slot, and the policy says drop
    UNFINISHED = "unfinished"  # cut by us when the drain ended: censored, not absent
    CANCELLED = "cancelled"  # the user stopped the run
    CLIENT_FAULT = "client_fault"  # descriptors, ports, a lost worker: never the server's


class Phase(StrEnum):
    """Part of a level; a request belongs to the phase in which it was due."""

    WARMUP = "warmup"
    MEASURE = "measure"
    DRAIN = "drain"


class Fault(StrEnum):
    """Whose fault a failure is."""

    SERVER = "server"
    REQUEST = "request"
    CLIENT = "client"


REQUEST_FAULT_CLASSES = frozenset(
    {
        "context_length",
        "bad_request",
        "bad_request_template",
        "auth",
        "model_not_found",
        "not_found",
        "redirect",
    }
)
"""Error classes that say the request was wrong, not the server."""


def fault_of(outcome: str, error_class: str | None) -> Fault | None:
    """Say whose fault a record's failure is; None where nothing failed."""
    if outcome == Outcome.CLIENT_FAULT:
        return Fault.CLIENT
    if outcome not in FAILED_OUTCOMES:
        return None
    return Fault.REQUEST if error_class in REQUEST_FAULT_CLASSES else Fault.SERVER


# Kinds of chunk, one letter each, as stored in ``Chunks.kind``.
CONTENT, REASONING, TOOL, REFUSAL = "c", "r", "t", "f"
VISIBLE_KINDS = frozenset({CONTENT, TOOL, REFUSAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """The token chunks of one request, in order of arrival; flat arrays of equal length.

    at_ns: first entry is the instant from the run's epoch, each later one the gap to the chunk
        before it (so the cumulative sum gives instants).
    kind: one letter per chunk (content c, reasoning r, tool t, refusal f).
    choice: choice index per chunk; None when all are 0.
    tokens: tokens per chunk where the server says (per-chunk usage, token ids); None when unknown.
    lag_ns: user-space stamp minus kernel stamp, one per *read* that carried chunks.
    coalesced: indices of chunks that were not the last of their read (stamps are upper bounds).
    """

    at_ns: list[int] = field(default_factory=list)
    kind: str = ""
    choice: list[int] | None = None
    tokens: list[int] | None = None
    lag_ns: list[int] = field(default_factory=list)
    coalesced: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All stored facts of one arrival; one line of ``requests.jsonl``."""

    # which
    id: int
    level: int
    round: int = 0
    phase: Phase
    worker: int = 0
    slot: int | None = None
    class_: str | None = None  # stored as "class"
    conversation: str | None = None
    turn: int | None = None
    prompt_hash: str | None = None
    # when, ns from the run's epoch
    due_ns: int
    slot_ns: int | None = None
    connect_start_ns: int | None = None
    connected_ns: int | None = None
    tls_done_ns: int | None = None
    earlier_connects_ns: int | None = None  # a duration: connecting in attempts before, up to sent
    throttled_ns: int | None = None  # a duration: time spent under a starts ceiling
    sent_ns: int | None = None
    written_ns: int | None = None
    headers_ns: int | None = None
    first_ns: int | None = None
    first_output_ns: int | None = None
    last_ns: int | None = None
    end_ns: int | None = None
    # how
    connection: str | None = None  # new, reused
    peer: str | None = None
    attempts: int = 0
    reconnects: int = 0
    http_status: int | None = None
    retry_after_s: float | None = None
    # what came of it
    outcome: Outcome
    error_class: str | None = None
    error: str | None = None  # the server's message, scrubbed, at most 200 characters
    finish_reasons: list[str] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    # tokens
    asked_input: int | None = None
    asked_output: int | None = None
    reported_input: int | None = None
    cached_input: int | None = None
    reported_output: int | None = None
    reasoning: int | None = None
    counted_output: int | None = None
    token_source: str | None = None  # reported, counted, chunks
    first_chunk_tokens: int | None = None
    output_chars: int | None = None
    output_hash: str | None = None
    # chunks and quality
    chunks: Chunks = field(default_factory=Chunks)
    canary: dict[str, Any] | None = None
