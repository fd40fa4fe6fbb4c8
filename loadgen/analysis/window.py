"""Which requests and which stretch of time a level's figures are made of.

A request belongs to the window W when it was due in W and its phase is ``measure``. Something
that happens at an instant (a token, an end) is in W when start < instant ≤ end.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.table import RunData
from loadgen.record import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The steady stretch of one level in one round, ns from the run's epoch."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelPlan:
    """What the manifest says of one level; ``rounds`` holds its entry for each round."""

    level: int
    label: str
    concurrency: int | None
    rate: float | None
    rounds: tuple[dict[str, Any], ...]


def levels_of(run: RunData) -> list[LevelPlan]:
    """Return the levels in order, also one that a crash kept out of the manifest."""
    entries = [dict(entry) for entry in run.manifest.get("levels") or []]
    known = {(entry.get("level"), entry.get("round", 0)) for entry in entries}
    pairs = run.requests[["level", "round"]].drop_duplicates()
    for level, round_ in sorted(map(tuple, pairs.to_numpy().tolist())):
        if (level, round_) not in known:
            entries.append({"level": level, "round": round_, "stop_reason": "not recorded"})
    numbers = sorted({int(entry.get("level", 0)) for entry in entries})
    return [
        _plan(number, [entry for entry in entries if int(entry.get("level", 0)) == number])
        for number in numbers
    ]


def window_of(entry: dict[str, Any], requests: pd.DataFrame) -> Window | None:
    """Return the window of one level in one round; None where ``measure`` never began.

    W is the whole of ``measure``. Where the run ended inside it, W ends with the level, else with
    the last instant that the round's requests know.
    """
    counted = requests[requests["phase"] == Phase.MEASURE]
    start = entry.get("measure_start_ns")
    if start is None:
        if "start_ns" in entry or counted.empty:
            return None
        start = int(counted["due_ns"].min())
    end = entry.get("measure_end_ns")
    if end is None:
        end = entry.get("end_ns")
    if end is None:
        instants = requests[["due_ns", "last_ns", "end_ns"]].max().max()
        end = int(instants) if np.isfinite(instants) else start
    return Window(start_ns=int(start), end_ns=max(int(end), int(start)))


def placed(run: RunData) -> RunData:
    """Add to each request its round's window and ``in_window``: whether it counts in figures."""
    requests = run.requests.copy()
    requests["window_start_ns"] = np.nan
    requests["window_end_ns"] = np.nan
    for plan in levels_of(run):
        for entry in plan.rounds:
            rows = (requests["level"] == plan.level) & (requests["round"] == entry.get("round", 0))
            window = window_of(entry, requests[rows])
            if window is not None:
                requests.loc[rows, "window_start_ns"] = window.start_ns
                requests.loc[rows, "window_end_ns"] = window.end_ns
    due = requests["due_ns"]
    inside = (due >= requests["window_start_ns"]) & (due <= requests["window_end_ns"])
    requests["in_window"] = inside & (requests["phase"] == Phase.MEASURE)
    return RunData(
        manifest=run.manifest,
        requests=requests,
        chunks=run.chunks,
        reads=run.reads,
        warnings=run.warnings,
    )


def windows_of(plan: LevelPlan, requests: pd.DataFrame) -> list[Window]:
    """Return the windows of a level's rounds."""
    found = [
        window_of(entry, requests[requests["round"] == entry.get("round", 0)])
        for entry in plan.rounds
    ]
    return [window for window in found if window is not None]


def _plan(number: int, entries: list[dict[str, Any]]) -> LevelPlan:
    first = entries[0]
    return LevelPlan(
        level=number,
        label=str(first.get("label") or f"level {number}"),
        concurrency=first.get("concurrency"),
        rate=first.get("rate"),
        rounds=tuple(entries),
    )
