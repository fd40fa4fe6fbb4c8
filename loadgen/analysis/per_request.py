"""One function for each metric of a request; the formulas stand in each docstring.

Each takes the requests table (where chunks matter, the whole run) and returns one value per row,
NaN where the metric is null. Times are nanoseconds. A negative time is an error of ours: the
functions let it through, and ``measured`` counts and withholds it.
"""

from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.table import RunData, row_of_each_chunk
from loadgen.units import NS_PER_S

Floats = np.ndarray[Any, np.dtype[np.float64]]

BURST_SHARE = 0.05
BURST_TOKENS = 10
BURST_TPOT_NS = 1e6


def ttft_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """TTFT = first - sent; null without a token."""
    return requests["first_ns"] - requests["sent_ns"]


def ttfo_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """TTFO = first_output - sent; null without visible output."""
    return requests["first_output_ns"] - requests["sent_ns"]


def e2e_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """E2E = last - sent; of a whole JSON answer end - sent; null without a token."""
    whole = has_flag(requests, "non_stream_response")
    return requests["last_ns"].where(~whole, requests["end_ns"]) - requests["sent_ns"]


def ttfb_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """Time to the answer's headers = headers - sent: never called TTFT."""
    return requests["headers_ns"] - requests["sent_ns"]


def stream_end_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """Stream end = end - sent ([DONE] or close): never called E2E."""
    return requests["end_ns"] - requests["sent_ns"]


def connect_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """Connect = connected - connect_start; null on a reused connection."""
    return _on_new(requests, requests["connected_ns"] - requests["connect_start_ns"])


def tls_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """TLS = tls_done - connected; null on a reused connection and without TLS."""
    return _on_new(requests, requests["tls_done_ns"] - requests["connected_ns"])


def ttft_cold_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """TTFT_cold = first - connect_start; null on a reused connection."""
    return _on_new(requests, requests["first_ns"] - requests["connect_start_ns"])


def ttft_from_due_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """TTFT from due = first - due: what an open-loop user feels."""
    return requests["first_ns"] - requests["due_ns"]


def e2e_from_due_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """E2E from due = E2E + lateness: what an open-loop user feels."""
    return e2e_ns(requests) + lateness_ns(requests)


def lateness_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """Lateness = sent - due = slot_wait + send_lag + connects, TLS and throttled time."""
    return requests["sent_ns"] - requests["due_ns"]


def slot_wait_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """slot_wait = slot - due: the cap held the request back, which a slow server causes."""
    return requests["slot_ns"] - requests["due_ns"]


def send_lag_ns(requests: pd.DataFrame) -> "pd.Series[Any]":
    """send_lag = sent - slot less connect, TLS and throttled time: the client's own.

    Only the part of connecting that lies between slot and sent is taken off: a connection made
    ahead costs the request nothing. Of a request tried again, every attempt's connecting counts.
    """
    slot, sent = requests["slot_ns"], requests["sent_ns"]
    ready = requests["tls_done_ns"].fillna(requests["connected_ns"])
    begun = requests["connect_start_ns"].clip(lower=slot)
    connecting = (ready.clip(upper=sent) - begun).clip(lower=0).fillna(0)
    connecting = connecting + requests["earlier_connects_ns"].fillna(0)
    return sent - slot - connecting - requests["throttled_ns"].fillna(0)


def output_tokens(requests: pd.DataFrame) -> "pd.Series[Any]":
    """Output tokens n: reported where > 0, else counted, else chunks; null where nothing came."""
    reported = requests["reported_output"].where(requests["reported_output"] > 0)
    counted = requests["counted_output"].where(requests["counted_output"] > 0)
    chunks = requests["chunks"].where(requests["chunks"] > 0).astype(np.float64)
    return reported.fillna(counted).fillna(chunks)


def streamed_tokens(requests: pd.DataFrame) -> "pd.Series[Any]":
    """n_streamed = n less the reasoning tokens that usage names but that never streamed."""
    hidden = requests["reasoning"].where(has_flag(requests, "hidden_reasoning"), 0.0)
    return (output_tokens(requests) - hidden.fillna(0)).clip(lower=0)


def first_chunk_tokens(run: RunData) -> "pd.Series[Any]":
    """k1: tokens in the first chunk, where per-chunk usage or token ids say; else 1."""
    requests = run.requests
    first = np.full(len(requests), np.nan)
    counts = requests["chunks"].to_numpy()
    some = counts > 0
    first[some] = run.chunks["tokens"].to_numpy()[(np.cumsum(counts) - counts)[some]]
    known = requests["first_chunk_tokens"].fillna(pd.Series(first, index=requests.index))
    return known.where(known >= 1, 1.0)


def tpot_ns(run: RunData) -> "pd.Series[Any]":
    """TPOT = (last - first) / (n_streamed - k1) of one choice stream.

    Null with fewer than 2 chunks, with n_streamed - k1 < 1, where the last chunk came with the
    first, and for several choices whose own counts are unknown. Where they are known: the sum
    of the choices' spans over the sum of their later tokens.
    """
    requests = run.requests
    span = requests["last_ns"] - requests["first_ns"]
    later = streamed_tokens(requests) - first_chunk_tokens(run)
    usable = (requests["choices"] == 1) & (requests["chunks"] >= 2) & (later >= 1) & (span != 0)
    single = (span / later.where(later >= 1)).where(usable)
    if not (requests["choices"] > 1).any():
        return single
    return single.fillna(_tpot_of_choices_ns(run))


def decode_rate(tpot: "pd.Series[Any]") -> "pd.Series[Any]":
    """Decode rate = 1 / TPOT, tokens per second for one user."""
    return NS_PER_S / tpot.where(tpot > 0)


def prefill_rate(requests: pd.DataFrame) -> "pd.Series[Any]":
    """Apparent prefill rate = (reported - cached prompt tokens) / TTFT; it includes queueing."""
    fresh = requests["reported_input"] - requests["cached_input"].fillna(0)
    ttft = ttft_ns(requests)
    return fresh / ttft.where(ttft > 0) * NS_PER_S


def per_request_rate(requests: pd.DataFrame) -> "pd.Series[Any]":
    """Output tokens / E2E of one request, tokens per second; prefill and queueing included."""
    e2e = e2e_ns(requests)
    return streamed_tokens(requests) / e2e.where(e2e > 0) * NS_PER_S


def buffered(run: RunData) -> "pd.Series[Any]":
    """Say whose stream came in one burst, so that its TTFT and TPOT are not the server's.

    The client's flag; or last = first over several chunks; or at least 10 tokens in the last
    5 % of E2E, faster than one in a millisecond.
    """
    requests = run.requests
    span = requests["last_ns"] - requests["first_ns"]
    later = streamed_tokens(requests) - first_chunk_tokens(run)
    several = requests["chunks"] >= 2
    burst = (
        (later >= BURST_TOKENS - 1)
        & (span < BURST_SHARE * e2e_ns(requests))
        & (span < BURST_TPOT_NS * later)
    )
    return has_flag(requests, "buffered") | (several & ((span == 0) | burst))


def gaps(run: RunData) -> pd.DataFrame:
    """Gaps between consecutive chunks of one choice stream: ``row`` of the request, ``gap_ns``.

    ``at_ns`` is when a gap ended.
    """
    row, at = row_of_each_chunk(run), run.chunks["at_ns"].to_numpy()
    choice = run.chunks["choice"].to_numpy()
    if choice.any():
        order = np.lexsort((np.arange(len(row)), choice, row))
        row, at, choice = row[order], at[order], choice[order]
    same = (row[1:] == row[:-1]) & (choice[1:] == choice[:-1])
    gap_ns = (at[1:] - at[:-1])[same]
    return pd.DataFrame({"row": row[1:][same], "gap_ns": gap_ns, "at_ns": at[1:][same]})


def legal_gaps(run: RunData) -> pd.DataFrame:
    """Gaps less the negative ones, which are errors of ours and withheld."""
    found = gaps(run)
    return found[found["gap_ns"] >= 0].reset_index(drop=True)


def gap_quantile_ns(run: RunData, quantile: float) -> Floats:
    """Return each request's own quantile of its gaps (linear); NaN without a gap."""
    found = np.full(len(run.requests), np.nan)
    legal = legal_gaps(run)
    row, gap = legal["row"].to_numpy(), legal["gap_ns"].to_numpy()
    if not len(row):
        return found
    ordered = gap[np.lexsort((gap, row))].astype(np.float64)
    number = np.bincount(row, minlength=len(found))
    some = number > 0
    start = (np.cumsum(number) - number)[some]
    place = quantile * (number[some] - 1)
    below = np.floor(place).astype(np.int64)
    above = np.ceil(place).astype(np.int64)
    low, high = ordered[start + below], ordered[start + above]
    found[some] = low + (place - below) * (high - low)
    return found


def has_flag(requests: pd.DataFrame, flag: str) -> "pd.Series[Any]":
    """Say which requests carry a flag."""
    return requests["flags"].map(lambda flags: flag in flags).astype(bool)


def measured(run: RunData) -> RunData:
    """Add every metric to the requests, one column each; negative times are withheld.

    ``internal_errors`` counts the negative times of each request, its gaps among them.
    """
    requests = run.requests.copy()
    times = {
        "ttft_ns": ttft_ns(requests), "ttfo_ns": ttfo_ns(requests), "e2e_ns": e2e_ns(requests),
        "ttfb_ns": ttfb_ns(requests), "stream_end_ns": stream_end_ns(requests),
        "connect_ns": connect_ns(requests), "tls_ns": tls_ns(requests),
        "ttft_cold_ns": ttft_cold_ns(requests), "tpot_ns": tpot_ns(run),
        "ttft_from_due_ns": ttft_from_due_ns(requests),
        "e2e_from_due_ns": e2e_from_due_ns(requests), "lateness_ns": lateness_ns(requests),
        "slot_wait_ns": slot_wait_ns(requests), "send_lag_ns": send_lag_ns(requests),
    }  # fmt: skip
    negative = _negative_gaps(run)
    for name, time in times.items():
        wrong = time < 0
        negative = negative + wrong.to_numpy()
        requests[name] = time.mask(wrong)
    requests["output_tokens"] = output_tokens(requests)
    requests["streamed_tokens"] = streamed_tokens(requests)
    requests["decode_rate"] = decode_rate(requests["tpot_ns"])
    requests["prefill_rate"] = prefill_rate(requests)
    requests["per_request_rate"] = per_request_rate(requests)
    requests["buffered"] = buffered(run)
    requests["internal_errors"] = negative
    return run.with_requests(requests)


def _on_new(requests: pd.DataFrame, time: "pd.Series[Any]") -> "pd.Series[Any]":
    return time.where(requests["connection"] != "reused")


def _negative_gaps(run: RunData) -> "np.ndarray[Any, np.dtype[np.int64]]":
    found = gaps(run)
    wrong = found["row"].to_numpy()[found["gap_ns"].to_numpy() < 0]
    return np.bincount(wrong, minlength=len(run.requests)).astype(np.int64)


def _tpot_of_choices_ns(run: RunData) -> "pd.Series[Any]":
    """Σ spans / Σ later tokens over the choices of each request; NaN where a count is unknown."""
    chunks = run.chunks[["choice", "at_ns", "tokens"]].assign(row=row_of_each_chunk(run))
    several = run.requests["choices"].to_numpy() > 1
    by_stream = chunks[several[chunks["row"]]].groupby(["row", "choice"])
    count, known = by_stream["at_ns"].size(), by_stream["tokens"].count()
    span = (by_stream["at_ns"].last() - by_stream["at_ns"].first()).astype(np.float64)
    later = by_stream["tokens"].sum() - by_stream["tokens"].first()
    usable = (count >= 2) & (later >= 1) & (span != 0)
    spans = span.where(usable, 0.0).groupby(level="row").sum()
    laters = later.where(usable, 0.0).groupby(level="row").sum()
    complete = (known == count).groupby(level="row").all()
    ratio = (spans / laters.where(laters > 0)).where(complete)
    return ratio.reindex(range(len(several))).set_axis(run.requests.index)
