"""How a level went: what was cut off its beginning, whether it stayed steady, round by round."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from loadgen.analysis import rates
from loadgen.analysis.samples import samples_of
from loadgen.analysis.stats import Floats, Trend, least_n, percentile, student_t
from loadgen.analysis.steady import (
    DRIFT_SHARE,
    FALL_SHARE,
    MSER_5,
    VARIES,
    drifts,
    fall_of,
    growth_of,
    time_trend,
    ttft_in_order,
)
from loadgen.analysis.summary import RoundFigures, Steadiness
from loadgen.analysis.table import RunData, select
from loadgen.analysis.times import gaps_ms
from loadgen.analysis.window import LevelPlan, Window, without_cut
from loadgen.record import Phase
from loadgen.units import NS_PER_MS, NS_PER_S

THIRD = 5
"""Slices in each third of ``measure``; their scatter tells a fall from chance."""
FALLS_BEYOND = 0.95

STEADY, DRIFT, SATURATED, UNKNOWN = "steady", "drift", "saturated", "unknown"
UNSETTLED = "not settled"
TTFT, TPOT, OUTPUT = "TTFT", "TPOT", "output tok/s"

_ROUND_TIMES = {
    "ttft_p50": ("ttft_ns", 0.5),
    "ttft_p95": ("ttft_ns", 0.95),
    "tpot_p50": ("tpot_ns", 0.5),
    "e2e_p50": ("e2e_ns", 0.5),
    "e2e_p95": ("e2e_ns", 0.95),
}


def steadiness(plan: LevelPlan, windows: Sequence[Window], everything: RunData) -> Steadiness:
    """Say what was cut and whether the level stayed steady; of several rounds, most decide.

    But one round that began unlike its rest is enough: its requests are in the pooled figures.
    everything: the requests of the level, all phases, with metrics and windows. Only an open
    level can saturate: the slots of a closed one bound what is in flight.
    """
    if not windows:
        return Steadiness()
    requests = everything.requests
    ttft, tpot, growths, falls = [], [], [], [0.0]
    for window in windows:
        mine = requests[requests["window_start_ns"] == window.start_ns]
        ttft.append(_trend(mine, "ttft_ns", window))
        tpot.append(_trend(mine, "tpot_ns", window))
        times = ttft_in_order(mine, start_ns=window.start_ns, end_ns=window.end_ns)
        falls.append(fall_of(times.values))
        if plan.rate is not None:
            growths.append(growth_of(mine, start_ns=window.measure_ns, end_ns=window.end_ns))
    # of all of measure: a cut would hide a step, and a slow start only makes a fall look smaller
    whole = everything.with_requests(without_cut(everything, windows))
    slices = rates.output_in_slices(whole, 3 * THIRD)
    saturated = _most([growth.unbounded for growth in growths])
    varies = _rule(windows) == VARIES  # then times follow the load, and tell nothing of the server
    trends = () if varies else ((TTFT, ttft), (TPOT, tpot))
    drifting = [word for word, found in trends if _most([drifts(one) for one in found])]
    if plan.rate is None and not varies and _falls(slices):
        drifting.append(OUTPUT)
    known = not varies and any(found is not None for found in ttft)
    fall = 0.0 if varies or saturated else max(falls)
    steady = UNSETTLED if fall > FALL_SHARE else DRIFT if drifting else STEADY if known else UNKNOWN
    return Steadiness(
        truncation=_rule(windows),
        cut_s=sum(window.cut_ns for window in windows) / NS_PER_S,
        cut_requests=_cut_requests(windows, everything),
        settled=all(window.cut.settled for window in windows),
        verdict=SATURATED if saturated else steady,
        drifting=[] if saturated else drifting,
        ttft_fall=fall,
        ttft_change=_change(ttft),
        tpot_change=_change(tpot),
        in_system_growth=sum(growth.requests for growth in growths) if growths else None,
        thirds=_thirds(slices).tolist() if slices.any() else [],
        thirds_change=_fall(slices),
    )


def by_round(plan: LevelPlan, everything: RunData) -> list[RoundFigures]:
    """Return the main figures of each round; nothing where there is one alone."""
    if len(plan.rounds) < 2:
        return []
    rounds = everything.requests["round"]
    return [
        _round_figures(number, select(everything, (rounds == number).to_numpy()))
        for number in (int(entry.get("round", 0)) for entry in plan.rounds)
    ]


def warmup_s(plan: LevelPlan) -> float | None:
    """Return how long the rounds took from their start to ``measure``; None where none got there.

    A server's first wave of a shape may compile for a minute: that is how long it took.
    """
    told = [(entry.get("start_ns"), entry.get("measure_start_ns")) for entry in plan.rounds]
    known = [end - start for start, end in told if start is not None and end is not None]
    return sum(known) / NS_PER_S if known else None


def warmup_ttft_max_ms(everything: RunData) -> float | None:
    """Return the slowest first token of the warm-up; None where no token came in it."""
    requests = everything.requests
    slowest = requests.loc[requests["phase"] == Phase.WARMUP, "ttft_ns"].max()
    return None if pd.isna(slowest) else float(slowest) / NS_PER_MS


def _round_figures(number: int, part: RunData) -> RoundFigures:
    requests = part.requests
    due = requests[requests["in_window"]]
    window_s = 0.0
    if len(requests) and requests["window_start_ns"].notna().any():
        first = requests.iloc[0]
        window_s = float(first["window_end_ns"] - first["window_start_ns"]) / NS_PER_S
    found: dict[str, float | None] = {}
    for name, (column, quantile) in _ROUND_TIMES.items():
        values = np.sort(samples_of(due, column).values)
        enough = len(values) >= max(1, least_n(quantile))
        found[name] = percentile(values, quantile) / NS_PER_MS if enough else None
    gaps = gaps_ms(select(part, requests["in_window"].to_numpy()))
    return RoundFigures(
        round=number,
        itl_p95=percentile(np.sort(gaps), 0.95) if len(gaps) >= least_n(0.95) else None,
        window_s=window_s or None,
        arrivals=len(due),
        requests_per_s=rates.requests_ended_ok(part) / window_s if window_s else None,
        output_tokens_per_s=rates.output_tokens(part) / window_s if window_s else None,
        **found,
    )


def _trend(requests: pd.DataFrame, column: str, window: Window) -> Trend | None:
    """Return the trend over W, or over all of ``measure`` where that one drifts.

    A cut takes part of a slow rise with it, and a cold start left in would hide one.
    """
    whole, steady = (
        time_trend(requests, column, start_ns=start, end_ns=window.end_ns)
        for start in (window.measure_ns, window.start_ns)
    )
    return whole if drifts(whole) else steady


def _rule(windows: Sequence[Window]) -> str:
    """Return what all rounds had in common; one that could be cut stands for all."""
    rules = [window.cut.rule for window in windows]
    return MSER_5 if MSER_5 in rules else rules[0]


def _cut_requests(windows: Sequence[Window], everything: RunData) -> int:
    """Count the requests of ``measure`` that were due before their window."""
    requests = everything.requests
    measured = requests["phase"] == Phase.MEASURE
    starts = {window.start_ns for window in windows}
    cut = measured & requests["window_start_ns"].isin(starts) & ~requests["in_window"]
    return int((cut & (requests["due_ns"] < requests["window_start_ns"])).sum())


def _most(found: Sequence[bool]) -> bool:
    return sum(found) * 2 > len(found)


def _change(found: Sequence[Trend | None]) -> float | None:
    shares = [one.share for one in found if one is not None and one.share is not None]
    return float(np.mean(shares)) if shares else None


def _thirds(slices: Floats) -> Floats:
    return np.asarray(slices.reshape(3, THIRD).mean(axis=1))


def _fall(slices: Floats) -> float | None:
    """Return (last third - first third) / first third of the output tok/s."""
    first, _, last = _thirds(slices)
    return float(last / first - 1) if first else None


def _falls(slices: Floats) -> bool:
    """Say whether the rate fell by more than 5 %, and by more than its slices scatter."""
    change = _fall(slices)
    if change is None or change >= -DRIFT_SHARE:
        return False
    first, last = slices[:THIRD], slices[-THIRD:]
    error = float(np.sqrt((first.var(ddof=1) + last.var(ddof=1)) / THIRD))
    fell = float(first.mean() - last.mean())
    return error == 0 or fell / error > student_t(2 * THIRD - 2, FALLS_BEYOND)
