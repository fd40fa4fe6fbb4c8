"""What a level did per second: ratios of sums over its windows, never means of rates.

Everything that arrived in W counts, whichever request it belongs to: a request that straddles an
edge of W counts by its share. Each function takes the requests and chunks of one level, all
phases, with their windows (``window.placed``) and metrics (``per_request.measured``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.per_request import has_flag
from loadgen.analysis.table import RunData, row_of_each_chunk
from loadgen.analysis.window import Window
from loadgen.record import Outcome
from loadgen.units import NS_PER_S

Floats = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

IN_A_WAVE, BETWEEN_WAVES, SELDOM = 0.2, 0.5, 0.05
"""See ``first_wave``."""


def window_s(windows: Sequence[Window]) -> float | None:
    """Return the length of all windows together; None without one."""
    if not windows:
        return None
    return sum(window.end_ns - window.start_ns for window in windows) / NS_PER_S


def per_second(amount: float, windows: Sequence[Window]) -> float | None:
    """Return an amount over the length of the windows; None where that is nothing."""
    seconds = window_s(windows)
    return amount / seconds if seconds else None


def requests_ended_ok(level: RunData, of: Flags | None = None) -> int:
    """Count the ``ok`` requests that ended in W; ``of`` narrows them (goodput)."""
    requests = level.requests
    ended = within(requests, requests["end_ns"]) & (requests["outcome"] == Outcome.OK).to_numpy()
    return int((ended if of is None else ended & of).sum())


def requests_between_ends(level: RunData) -> float | None:
    """Return (n - k) / (last end - kth end) of the ok requests that ended in W, per second.

    Where the window begins empty, requests / window counts the time before the first answer as
    well; this rate does not. The first k ends came as one wave (``first_wave``); k = 1 where ends
    come one by one. Rounds add up: Σ(n - k) / Σ(last - kth).
    """
    requests = level.requests
    ok = (requests["outcome"] == Outcome.OK).to_numpy()
    ended = requests[within(requests, requests["end_ns"]) & ok]
    if ended.empty:
        return None
    later, span = 0, 0.0
    for _, column in ended.groupby("round")["end_ns"]:
        ends = np.sort(column.to_numpy(dtype=np.float64))
        k = first_wave(ends)
        later += len(ends) - k
        span += float(ends[-1] - ends[k - 1])
    return later / span * NS_PER_S if span > 0 else None


def first_wave(ends: Floats) -> int:
    """Return how many of the sorted ends came as the first wave; 1 where they come one by one.

    The clients of a closed loop may go in step: n - 1 would count all of the first wave but one,
    and no time for it. Let G be the gap such that gaps as long make up half of the time. Ends come
    in waves where hardly any gap (5 %) is between G/5 and G/2; of independent ends 28 % are. The
    first wave then ends at the first gap of G/2.
    """
    gaps = np.diff(ends)
    if not len(gaps) or not gaps.sum():
        return 1
    longest_first = np.sort(gaps)[::-1]
    half = int(np.searchsorted(np.cumsum(longest_first), gaps.sum() / 2))
    typical = float(longest_first[half])
    between = (gaps > IN_A_WAVE * typical) & (gaps < BETWEEN_WAVES * typical)
    if between.mean() > SELDOM:
        return 1
    return 1 + int(np.argmax(gaps >= BETWEEN_WAVES * typical))


def output_tokens(level: RunData, of: Flags | None = None) -> float:
    """Count the tokens that arrived in W, each by its own time.

    A chunk of unknown size counts n_streamed / chunks; a whole JSON answer arrives at its end.
    ``of`` narrows the requests (those that ended ok).
    """
    return float(_arrived(level, of).tokens.sum())


def output_in_slices(level: RunData, slices: int) -> Floats:
    """Return the output tok/s in equal slices of W; of several rounds, slice by slice together."""
    return _in_slices(level, _arrived(level, None), slices)


def ended_in_slices(level: RunData, slices: int) -> Floats:
    """Return the ok requests that ended per second in equal slices of W."""
    requests = level.requests
    ended = within(requests, requests["end_ns"]) & (requests["outcome"] == Outcome.OK).to_numpy()
    ends = _Arrived(
        at_ns=requests["end_ns"].to_numpy(dtype=np.float64)[ended],
        tokens=np.ones(int(ended.sum())),
        row=np.flatnonzero(ended),
    )
    return _in_slices(level, ends, slices)


def served_in_slices(level: RunData, slices: int) -> Floats:
    """Return the ok requests that were served per second in equal slices of W.

    Each counts over its whole time, from send to end, so that requests that end together, in waves,
    do not fall into one slice or the next by chance. The first and last count by their part in W.
    """
    requests = level.requests
    ok = (requests["outcome"] == Outcome.OK).to_numpy()
    sent, ended, start, end = (
        requests[name].to_numpy(dtype=np.float64)[ok]
        for name in ("sent_ns", "end_ns", "window_start_ns", "window_end_ns")
    )
    edges = start[:, None] + np.linspace(0, 1, slices + 1) * (end - start)[:, None]
    done = np.clip((edges - sent[:, None]) / np.maximum(ended - sent, 1)[:, None], 0, 1)
    total = _total_s(level)
    return np.diff(done, axis=1).sum(axis=0) / (total / slices) if total else np.zeros(slices)


def _in_slices(level: RunData, arrived: "_Arrived", slices: int) -> Floats:
    start = level.requests["window_start_ns"].to_numpy()[arrived.row]
    length = level.requests["window_end_ns"].to_numpy()[arrived.row] - start
    place = np.ceil((arrived.at_ns - start) / length * slices).astype(np.int64) - 1
    amount = np.bincount(np.clip(place, 0, slices - 1), arrived.tokens, minlength=slices)
    total = _total_s(level)
    return amount / (total / slices) if total else np.zeros(slices)


def _total_s(level: RunData) -> float:
    windows = level.requests[["round", "window_start_ns", "window_end_ns"]].drop_duplicates()
    return float((windows["window_end_ns"] - windows["window_start_ns"]).sum()) / NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrived:
    """Tokens as they arrived in W: when, how many at once, and whose (row of the request)."""

    at_ns: Floats
    tokens: Floats
    row: "np.ndarray[Any, np.dtype[np.int64]]"


def _arrived(level: RunData, of: Flags | None) -> _Arrived:
    requests = level.requests
    rows = row_of_each_chunk(level)
    share = requests["streamed_tokens"] / requests["chunks"].where(requests["chunks"] > 0)
    size = level.chunks["tokens"].to_numpy()
    size = np.where(np.isnan(size), share.to_numpy()[rows], size)
    arrived = _chunk_in_window(level, rows)
    whole = has_flag(requests, "non_stream_response") & (requests["chunks"] == 0)
    at_end = whole.to_numpy() & within(requests, requests["end_ns"])
    if of is not None:
        arrived, at_end = arrived & of[rows], at_end & of
    at = level.chunks["at_ns"].to_numpy(dtype=np.float64)[arrived]
    sizes = np.concatenate((size[arrived], requests["streamed_tokens"].to_numpy()[at_end]))
    return _Arrived(
        at_ns=np.concatenate((at, requests["end_ns"].to_numpy()[at_end])),
        tokens=np.nan_to_num(sizes),
        row=np.concatenate((rows[arrived], np.flatnonzero(at_end))),
    )


def input_tokens(level: RunData) -> float | None:
    """Count the prompt tokens whose prefill ended in W: each prompt at its first token.

    As the server reports them; a prompt whose answer was cut before its usage came counts as
    asked. None where the server reported no prompt at all.
    """
    requests = level.requests
    if requests["reported_input"].isna().all():
        return None
    size = requests["reported_input"].fillna(requests["asked_input"]).fillna(0)
    whole = has_flag(requests, "non_stream_response")
    done = requests["first_ns"].where(~whole, requests["end_ns"])
    return float(size[within(requests, done)].sum())


def mean_in_flight(level: RunData, windows: Sequence[Window]) -> float | None:
    """Return the average over W of the requests between sent (else slot) and end."""
    requests = level.requests
    begun = requests["sent_ns"].fillna(requests["slot_ns"])
    low, high = requests["window_start_ns"], requests["window_end_ns"]
    overlap = requests["end_ns"].fillna(high).clip(upper=high) - begun.clip(lower=low)
    inside = overlap.clip(lower=0).where(low.notna())
    return per_second(float(inside.sum()) / NS_PER_S, windows)


def peak_in_flight(level: RunData) -> int | None:
    """Return the most requests that were in flight at one instant of the level, warm-up too."""
    requests = level.requests
    begun = requests["sent_ns"].fillna(requests["slot_ns"])
    known = begun.notna() & requests["end_ns"].notna()
    if not known.any():
        return None
    moments = np.concatenate((begun[known], requests["end_ns"][known]))
    steps = np.repeat([1, -1], int(known.sum()))
    order = np.lexsort((steps, moments))  # at one instant an end comes before a start
    return int(np.cumsum(steps[order]).max())


def implied_concurrency(tokens_per_s: float | None, mean_tpot_ms: float | None) -> float | None:
    """Return tok/s × TPOT: how many decoding users the two figures amount to together."""
    if tokens_per_s is None or mean_tpot_ms is None:
        return None
    return tokens_per_s * mean_tpot_ms / 1000


def tokens_per_chunk(requests: pd.DataFrame) -> float | None:
    """Return Σ streamed tokens / Σ chunks over the given requests."""
    streamed = requests[requests["chunks"] > 0]
    return _ratio(streamed["streamed_tokens"].sum(), streamed["chunks"].sum())


def coalesced_share(level: RunData) -> float | None:
    """Return the share of chunks that were not the last of their read (their stamp is late)."""
    return float(level.chunks["coalesced"].mean()) if len(level.chunks) else None


def cached_input_share(requests: pd.DataFrame) -> float | None:
    """Return Σ cached / Σ reported prompt tokens, where the server tells of both."""
    told = requests[requests["cached_input"].notna() & requests["reported_input"].notna()]
    return _ratio(told["cached_input"].sum(), told["reported_input"].sum())


def within(requests: pd.DataFrame, at_ns: "pd.Series[Any]") -> Flags:
    """Say which instants lie in their request's window: start < instant ≤ end."""
    inside = (at_ns > requests["window_start_ns"]) & (at_ns <= requests["window_end_ns"])
    return np.asarray(inside, dtype=bool)


def _chunk_in_window(level: RunData, rows: "np.ndarray[Any, np.dtype[np.int64]]") -> Flags:
    at = level.chunks["at_ns"].to_numpy()
    start = level.requests["window_start_ns"].to_numpy()[rows]
    end = level.requests["window_end_ns"].to_numpy()[rows]
    return np.asarray((at > start) & (at <= end), dtype=bool)


def _ratio(top: float, bottom: float) -> float | None:
    return float(top) / float(bottom) if bottom else None
