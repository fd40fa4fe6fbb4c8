"""Which requests and which stretch of time a level's figures are made of.

W is ``measure`` less what MSER-5 cuts off its beginning (``steady``). A request belongs to W when
it was due in W and its phase is ``measure``. Something that happens at an instant (a token, an
end) is in W when start < instant ≤ end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.steady import MSER_5, OFF, VARIES, Cut, cut_of
from loadgen.analysis.table import RunData
from loadgen.record import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The steady stretch of one level in one round, ns from the run's epoch.

    measure_ns: where ``measure`` began; cut: how ``start_ns`` was found from there.
    """

    start_ns: int
    end_ns: int
    measure_ns: int
    cut: Cut

    @property
    def cut_ns(self) -> int:
        """How much of the beginning of ``measure`` was cut off."""
        return self.start_ns - self.measure_ns


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


def truncates(run: RunData) -> bool:
    """Say whether the scenario lets MSER-5 cut; ``each_level.truncate: off`` forbids it."""
    each = (run.manifest.get("scenario") or {}).get("each_level")
    told = each.get("truncate") if isinstance(each, dict) else None
    return told not in ("off", False)


def asked_level(manifest: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return what the scenario says of a level; empty where it says nothing."""
    scenario = manifest.get("scenario")
    levels = scenario.get("levels") if isinstance(scenario, Mapping) else None
    found = levels[number] if isinstance(levels, list) and 0 <= number < len(levels) else None
    return found if isinstance(found, Mapping) else {}


def rule_of(run: RunData, level: int) -> str:
    """Say what decides the beginning of a level's window: MSER-5, or that nothing is cut."""
    if asked_level(run.manifest, level).get("segments"):
        return VARIES
    return MSER_5 if truncates(run) else OFF


def measure_of(entry: dict[str, Any], requests: pd.DataFrame) -> Window | None:
    """Return the whole of ``measure`` of one level in one round; None where it never began.

    Where the run ended inside it, it ends with the level, else with the last instant that the
    round's requests know.
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
    start = int(start)
    return Window(
        start_ns=start,
        end_ns=max(int(end), start),
        measure_ns=start,
        cut=Cut(at_ns=start, rule=OFF),
    )


def window_of(entry: dict[str, Any], requests: pd.DataFrame, *, rule: str) -> Window | None:
    """Return W: ``measure`` less what MSER-5 cuts off; None where ``measure`` never began."""
    whole = measure_of(entry, requests)
    if whole is None or rule != MSER_5:
        return whole and replace(whole, cut=Cut(at_ns=whole.start_ns, rule=rule))
    cut = cut_of(requests, start_ns=whole.start_ns, end_ns=whole.end_ns)
    return replace(whole, start_ns=min(cut.at_ns, whole.end_ns), cut=cut)


def placed(run: RunData) -> RunData:
    """Add to each request its round's window and ``in_window``: whether it counts in figures."""
    requests = run.requests.copy()
    requests["window_start_ns"] = np.nan
    requests["window_end_ns"] = np.nan
    for plan in levels_of(run):
        for entry in plan.rounds:
            rows = (requests["level"] == plan.level) & (requests["round"] == entry.get("round", 0))
            window = window_of(entry, requests[rows], rule=rule_of(run, plan.level))
            if window is not None:
                requests.loc[rows, "window_start_ns"] = window.start_ns
                requests.loc[rows, "window_end_ns"] = window.end_ns
    return run.with_requests(_told(requests))


def windows_of(plan: LevelPlan, run: RunData) -> list[Window]:
    """Return the windows of a level's rounds; ``run`` holds that level's requests alone."""
    rounds = run.requests["round"]
    found = [
        window_of(
            entry, run.requests[rounds == entry.get("round", 0)], rule=rule_of(run, plan.level)
        )
        for entry in plan.rounds
    ]
    return [window for window in found if window is not None]


def without_cut(run: RunData, windows: Sequence[Window]) -> pd.DataFrame:
    """Return the requests with windows that begin where ``measure`` began."""
    requests = run.requests.copy()
    for window in windows:
        rows = requests["window_start_ns"] == window.start_ns
        requests.loc[rows, "window_start_ns"] = window.measure_ns
    return _told(requests)


def _told(requests: pd.DataFrame) -> pd.DataFrame:
    """Add ``in_window``: due in its window, in ``measure``."""
    due = requests["due_ns"]
    inside = (due >= requests["window_start_ns"]) & (due <= requests["window_end_ns"])
    return requests.assign(in_window=inside & (requests["phase"] == Phase.MEASURE))


def _plan(number: int, entries: list[dict[str, Any]]) -> LevelPlan:
    first = entries[0]
    return LevelPlan(
        level=number,
        label=str(first.get("label") or f"level {number}"),
        concurrency=first.get("concurrency"),
        rate=first.get("rate"),
        rounds=tuple(entries),
    )
