"""Which requests give samples of a metric, and which are known only from below.

Percentiles come from ``ok`` and ``unfinished`` requests; failed ones never enter (a cut stream
has a short E2E). An unfinished request is censored, not absent: where its time was not observed,
its age when it was cut is a lower bound.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from loadgen.record import Outcome

Floats = np.ndarray[Any, np.dtype[np.float64]]

# The instant from which an unfinished request's age counts, for the times that it bounds.
_AGE_FROM = {
    "ttft_ns": "sent_ns",
    "ttfo_ns": "sent_ns",
    "e2e_ns": "sent_ns",
    "stream_end_ns": "sent_ns",
    "ttft_from_due_ns": "due_ns",
    "e2e_from_due_ns": "due_ns",
}
# Never observed on an unfinished request: what was seen last need not have been the last.
_NEVER_OBSERVED = frozenset({"e2e_ns", "stream_end_ns", "e2e_from_due_ns"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """values: observed, in order of due; at_least: lower bounds of the others."""

    values: Floats
    at_least: Floats


def of_load(requests: pd.DataFrame) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Say which requests are the load's own: questions of a golden set are no samples of time."""
    return requests["canary"].isna().to_numpy()


def samples_of(requests: pd.DataFrame, metric: str) -> Samples:
    """Return the samples of one metric's column in its own unit."""
    requests = requests.sort_values("due_ns", kind="stable")
    unfinished = (requests["outcome"] == Outcome.UNFINISHED).to_numpy()
    seen = (unfinished | (requests["outcome"] == Outcome.OK).to_numpy()) & of_load(requests)
    values = requests[metric].to_numpy(dtype=np.float64)
    observed = ~np.isnan(values)
    if metric in _NEVER_OBSERVED:
        observed &= ~unfinished
    bounds = np.full(len(values), np.nan)
    if metric in _AGE_FROM:
        bounds = (requests["end_ns"] - requests[_AGE_FROM[metric]]).to_numpy(dtype=np.float64)
    censored = unfinished & seen & ~observed & ~np.isnan(bounds)
    return Samples(values=values[seen & observed], at_least=bounds[censored])
