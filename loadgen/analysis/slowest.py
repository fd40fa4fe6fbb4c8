"""The requests that took longest, for the report's table."""

from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.per_request import gap_quantile_ns
from loadgen.analysis.samples import of_load
from loadgen.analysis.summary import SlowRequest
from loadgen.analysis.table import RunData, select
from loadgen.record import Outcome
from loadgen.units import NS_PER_MS

SHOWN = 20


def slowest(run: RunData, labels: dict[int, str]) -> list[SlowRequest]:
    """Return the 20 slowest requests of all windows: the unfinished by age, then by E2E."""
    requests = run.requests
    unfinished = requests["outcome"] == Outcome.UNFINISHED
    shown = requests["in_window"] & (unfinished | (requests["outcome"] == Outcome.OK))
    shown = shown & of_load(requests)
    age = requests["end_ns"] - requests["sent_ns"]
    took = requests["e2e_ns"].where(~unfinished, age)
    order = pd.DataFrame({"unfinished": unfinished, "took": took})[shown & took.notna()]
    order = order.sort_values(["unfinished", "took"], ascending=False, kind="stable").head(SHOWN)
    chosen = select(run, np.isin(np.arange(len(requests)), order.index))
    gap = pd.Series(gap_quantile_ns(chosen, 1.0), index=np.sort(order.index))
    return [
        _slow_request(requests.loc[row], took=took[row], gap=gap[row], labels=labels)
        for row in order.index
    ]


def _slow_request(
    request: "pd.Series[Any]", *, took: float, gap: float, labels: dict[int, str]
) -> SlowRequest:
    level, tokens = int(request["level"]), float(request["output_tokens"])
    return SlowRequest(
        id=int(request["id"]),
        level=level,
        label=labels.get(level, f"level {level}"),
        outcome=str(request["outcome"]),
        ttft=_ms(float(request["ttft_ns"])),
        e2e=_ms(took),
        largest_gap=_ms(gap),
        output_tokens=None if np.isnan(tokens) else round(tokens),
    )


def _ms(time_ns: float) -> float | None:
    return None if np.isnan(time_ns) else float(time_ns) / NS_PER_MS
