"""A run for notebooks: its manifest, its tables as pandas DataFrames, its figures.

run = loadgen.open_run("runs/2026-11-30T06-20-05-chat-short")
run.requests[run.requests.in_window].groupby("level").ttft.median()
run.summary.levels[0].ttft.p95
"""

from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.metrics import summarise
from loadgen.analysis.per_request import measured
from loadgen.analysis.summary import Summary
from loadgen.analysis.table import RunData, read_run
from loadgen.analysis.window import placed
from loadgen.units import NS_PER_MS

METRICS_MS = (
    "ttft", "ttfo", "e2e", "tpot", "ttfb", "stream_end", "connect", "tls", "ttft_cold",
    "ttft_from_due", "e2e_from_due", "lateness", "slot_wait", "send_lag",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run directory, read.

    requests: one row per arrival: the stored facts (instants in ns from the run's epoch), every
        metric in ms (ttft, ttfo, e2e, tpot, …), decode_rate, prefill_rate and per_request_rate in
        tok/s, output_tokens, in_window (whether the figures count it). NaN = did not happen.
    chunks: one row per token chunk: request (id), index, at_ns, kind, choice, tokens, coalesced,
        gap in ms (to the chunk before it in the same choice).
    """

    directory: Path
    manifest: dict[str, Any] = field(repr=False)
    requests: pd.DataFrame = field(repr=False)
    chunks: pd.DataFrame = field(repr=False)
    data: RunData = field(repr=False)

    @cached_property
    def summary(self) -> Summary:
        """The figures that the reports are made of; computed when first asked for."""
        return summarise(self.data)


def load(directory: "str | PathLike[str]") -> Run:
    """Read a run directory; UsageError where it is none."""
    path = Path(directory)
    data = read_run(path)
    return Run(
        directory=path,
        manifest=data.manifest,
        requests=_in_ms(placed(measured(data)).requests),
        chunks=_with_gaps(data.chunks),
        data=data,
    )


def _in_ms(requests: pd.DataFrame) -> pd.DataFrame:
    times = {name: requests[f"{name}_ns"] / NS_PER_MS for name in METRICS_MS}
    facts = requests.drop(columns=[f"{name}_ns" for name in METRICS_MS])
    return facts.assign(**times)


def _with_gaps(chunks: pd.DataFrame) -> pd.DataFrame:
    before = chunks.groupby(["request", "choice"], sort=False)["at_ns"].shift()
    gap = (chunks["at_ns"] - before).astype(np.float64) / NS_PER_MS
    return chunks.assign(gap=gap)
