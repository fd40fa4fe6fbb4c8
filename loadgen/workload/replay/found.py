"""What a log amounts to: how many requests, how fast, how long, and how much of them is shared.

Formulas. mean rate = requests / span; peak minute = the most requests in any 60 s, / 60; CV of gaps
= standard deviation / mean of the gaps between arrivals; ideal prefix-hit share = tokens of leading
prefix blocks that an earlier request had / of all blocks. Percentiles of lengths are lengths that
occur: the one at rank q (n − 1), rounded up.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from loadgen.errors import UsageError
from loadgen.units import NS_PER_S
from loadgen.workload.replay.blocks import BLOCK_BYTES, FINE_BYTES, hit_share, tokens_in
from loadgen.workload.replay.index import (
    ESTIMATED_INPUT,
    ESTIMATED_OUTPUT,
    FAILED,
    NO_COUNT,
    NO_TIME,
    TEXT,
    WRONG_ROLES,
    Log,
    Numbers,
)
from loadgen.workload.replay.instants import EPOCH_FROM_NS
from loadgen.workload.replay.select import by_time, quantum_ns, reordered

SHORTEST_S, LONGEST_S = 1.0, 60 * 86_400.0
_MINUTE_NS = 60 * NS_PER_S
_OF_TEXT = f"{FINE_BYTES} bytes ({BLOCK_BYTES} beyond the first {BLOCK_BYTES})"


def facts_of(log: Log) -> dict[str, Any]:
    """Say what a log holds, JSON-ready; never what stands in it."""
    found = log.found
    times = np.sort(log.arrival_ns[log.arrival_ns != NO_TIME])
    text = (log.flags & TEXT) > 0
    tokens = partial(tokens_in, text=text, block_size=log.block_size or 1)
    share = hit_share(log.blocks, log.block_counts, by_time(log), tokens=tokens)
    return {
        "format": log.format,
        "requests": len(log),
        "rows": log.rows,
        "other_rows": found.other_rows,
        "bad_rows": found.bad.total(),
        "bad_examples": found.bad_rows,
        "time_unit": unit_of(log),
        "time_zone": _zone(found.kinds),
        **_of_times(times),
        "without_time": int(len(log) - len(times)),
        "reordered": reordered(log),
        "conversations": len(np.unique(log.session[log.session > 0])),
        "with_text": int(np.count_nonzero(text)),
        "input_tokens": _lengths(log.input_tokens, (log.flags & ESTIMATED_INPUT) > 0),
        "output_tokens": _lengths(log.output_tokens, (log.flags & ESTIMATED_OUTPUT) > 0),
        "prefix_hit_share": None if share is None else round(share, 6),
        "block": _OF_TEXT if text.any() else f"{log.block_size} tokens",
        "unique": len(np.unique(log.print)),
        "failed": int(np.count_nonzero(log.flags & FAILED)),
        "models": len(found.models),
        "headers_dropped": dict(found.headers),
        "overridden": dict(found.overridden),
        "roles_wrong": int(np.count_nonzero(log.flags & WRONG_ROLES)),
        "roles_wrong_lines": found.wrong_roles,
        "hash": log.hash(),
    }


def unit_of(log: Log) -> str:
    """Name the unit that times were read in."""
    known = log.arrival_ns[log.arrival_ns != NO_TIME]
    if not len(known):
        return "none"
    if log.found.kinds["number"] and log.unit != "date":
        return log.unit
    dates = not log.found.kinds["number"] or int(known.min()) >= EPOCH_FROM_NS
    return "date" if dates else "s, or as the column's name says"


def check_span(log: Log, *, unit_given: bool) -> None:
    """Refuse a span that speaks for a wrong unit of time."""
    times = log.arrival_ns[log.arrival_ns != NO_TIME]
    if unit_given or len(times) < 2:
        return
    span_s = float(times.max() - times.min()) / NS_PER_S
    if SHORTEST_S <= span_s <= LONGEST_S:
        return
    raise UsageError(
        f"{log.path}: {len(times):,} requests span {_span(span_s)} with times in {unit_of(log)}: "
        "is that the unit? Say it with --time-unit (time_unit: s, ms, us, ns)"
    )


def _span(seconds: float) -> str:
    return f"{seconds / 86_400:,.1f} days" if seconds > LONGEST_S else f"{seconds:g} s"


def _of_times(times: Numbers) -> dict[str, Any]:
    """times: sorted."""
    if len(times) < 2:
        return {"span_s": None, "distinct_times": len(times), "quantum_s": None, "rate_mean": None,
                "rate_peak_minute": None, "gap_cv": None}  # fmt: skip
    span_s = float(times[-1] - times[0]) / NS_PER_S
    gaps = np.diff(times).astype(np.float64)
    quantum = quantum_ns(times)
    within = np.searchsorted(times, times + _MINUTE_NS, side="left") - np.arange(len(times))
    return {
        "span_s": span_s,
        "distinct_times": len(np.unique(times)),
        "quantum_s": None if quantum is None else quantum / NS_PER_S,
        "rate_mean": len(times) / span_s if span_s else None,
        "rate_peak_minute": float(within.max()) / 60 if span_s >= 60 else None,
        "gap_cv": float(gaps.std() / gaps.mean()) if span_s else None,
    }


def _lengths(tokens: Numbers, estimated: npt.NDArray[np.bool_]) -> dict[str, Any]:
    known = tokens[tokens != NO_COUNT]
    if not len(known):
        return {"known": 0}
    p50, p95 = np.percentile(known, [50, 95], method="higher")
    return {
        "known": len(known),
        "estimated": int(np.count_nonzero(estimated)),
        "mean": float(known.mean()),
        "p50": int(p50),
        "p95": int(p95),
        "max": int(known.max()),
    }


def _zone(kinds: Mapping[str, int]) -> str | None:
    """Say what zone dates are in; mixed dates are told."""
    naive, zoned = kinds.get("naive", 0), kinds.get("zoned", 0)
    if naive and zoned:
        return f"mixed: {naive:,} without a zone, taken for UTC, {zoned:,} with one"
    if naive:
        return "none given, taken for UTC"
    return "as given" if zoned else None
