"""The distributions of one level: every time and speed of the requests due in its windows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.distribution import (
    QUANTILES,
    distribution,
    pooled_gaps_ms,
    with_failures,
    without_intervals,
)
from loadgen.analysis.failures import failed
from loadgen.analysis.per_request import legal_gaps
from loadgen.analysis.samples import of_load, samples_of
from loadgen.analysis.stats import t_interval
from loadgen.analysis.summary import Distribution, Quantile
from loadgen.analysis.table import RunData
from loadgen.record import Outcome
from loadgen.units import NS_PER_MS

TIMES = (
    "ttft", "ttfo", "e2e", "tpot", "ttfb", "stream_end", "connect", "tls", "ttft_cold",
    "ttft_from_due", "e2e_from_due",
)  # fmt: skip
CLIENT_TIMES = ("lateness", "slot_wait", "send_lag")
SPEEDS = ("decode_rate", "prefill_rate", "per_request_rate")

GROWING = (
    "ttft", "ttfo", "e2e", "tpot", "itl", "decode_rate", "prefill_rate", "per_request_rate",
    "ttfb", "stream_end", "ttft_cold", "ttft_from_due", "e2e_from_due", "lateness", "slot_wait",
    "ttft_failures_infinite", "e2e_failures_infinite",
)  # fmt: skip
"""What depends on how long the level lasted, once the queue grows."""


def distributions(due: RunData) -> dict[str, Distribution]:
    """Return every distribution by its field of the summary."""
    requests = due.requests
    found = {name: times(requests, name) for name in TIMES}
    in_order = requests.sort_values("due_ns", kind="stable")
    for name in CLIENT_TIMES:  # whatever became of the request, the client sent it so late
        found[name] = distribution(in_order[f"{name}_ns"].to_numpy() / NS_PER_MS)
    for name in SPEEDS:
        found[name] = distribution(samples_of(requests, name).values)
    failures = int(failed(requests).sum())
    for name in ("ttft", "e2e"):
        samples = samples_of(requests, f"{name}_ns")
        found[f"{name}_failures_infinite"] = with_failures(
            samples.values / NS_PER_MS, at_least=samples.at_least / NS_PER_MS, failures=failures
        )
    gaps = _gaps_seen(due)
    found["itl"] = pooled_gaps_ms(
        gaps["gap_ns"].to_numpy(dtype=np.float64),
        request=gaps["row"].to_numpy(),
        at_ns=gaps["at_ns"].to_numpy(),
    )
    found["user_lag"] = without_intervals(due.reads["lag_ns"].to_numpy() / NS_PER_MS)
    return found


def times(requests: pd.DataFrame, name: str) -> Distribution:
    """Return the distribution of one time in ms."""
    samples = samples_of(requests, f"{name}_ns")
    return distribution(samples.values / NS_PER_MS, at_least=samples.at_least / NS_PER_MS)


def widened_by_rounds(
    found: Mapping[str, Distribution], rounds: Sequence[RunData]
) -> dict[str, Distribution]:
    """Widen the interval of each percentile to the t interval over the rounds' own values.

    Nothing changes under 3 rounds, and where a round's own percentile is not known.
    """
    if len(rounds) < 3:
        return dict(found)
    widened = dict(found)
    for name in (*TIMES, *SPEEDS, "itl"):
        each = [_of_round(due, name) for due in rounds]
        between = {q: _between([getattr(one, q) for one in each]) for q in QUANTILES}
        quantiles: dict[str, Any] = {
            q: _wider(getattr(found[name], q), between[q]) for q in QUANTILES
        }
        widened[name] = replace(found[name], **quantiles)
    return widened


def withheld(found: Mapping[str, Distribution]) -> dict[str, Distribution]:
    """Leave out the percentiles of all that grows with a growing queue; n and mean stay."""
    none: dict[str, Any] = dict.fromkeys(QUANTILES, Quantile())
    return {
        name: replace(one, withheld=True, **none) if name in GROWING and one.n else one
        for name, one in found.items()
    }


def _gaps_seen(due: RunData) -> pd.DataFrame:
    seen = due.requests["outcome"].isin([Outcome.OK, Outcome.UNFINISHED]).to_numpy()
    seen = seen & of_load(due.requests)
    gaps = legal_gaps(due)
    return gaps[seen[gaps["row"]]]


def gaps_ms(due: RunData) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return the gaps of the load's requests that were seen, in ms and in order."""
    return _gaps_seen(due)["gap_ns"].to_numpy(dtype=np.float64) / NS_PER_MS


def _of_round(due: RunData, name: str) -> Distribution:
    if name == "itl":
        return without_intervals(_gaps_seen(due)["gap_ns"].to_numpy() / NS_PER_MS)
    if name in SPEEDS:
        return distribution(samples_of(due.requests, name).values)
    return times(due.requests, name)


def _between(rounds: Sequence[Quantile]) -> Quantile | None:
    """Return the t interval over the rounds' own percentiles, None where one is not known."""
    values = [one.value for one in rounds if one.value is not None and not one.above]
    interval = t_interval(np.array(values)) if len(values) == len(rounds) else None
    return None if interval is None else Quantile(low=interval.low, high=interval.high)


def _wider(pooled: Quantile, between: Quantile | None) -> Quantile:
    """Widen an interval until it holds that between the rounds; an open one stays open.

    The figure itself is always within: of rounds that differ, the pooled percentile lies in the
    slowest, far from the mean of the rounds' own. A time is never below zero.
    """
    if between is None or between.low is None or between.high is None or pooled.value is None:
        return pooled
    low = max(0.0, min(between.low, pooled.value if pooled.low is None else pooled.low))
    high: float | None = max(between.high, pooled.value if pooled.high is None else pooled.high)
    if pooled.low is not None and pooled.high is None:
        high = None
    if (low, high) == (pooled.low, pooled.high):
        return pooled
    return replace(pooled, low=low, high=high, by_rounds=True)
