"""How a level went: what was cut off its beginning, whether it stayed steady, round by round."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from loadgen.analysis import rates
from loadgen.analysis.samples import samples_of
from loadgen.analysis.stats import (
    Floats,
    error_of_median,
    least_n,
    percentile,
    student_t,
    trend,
)
from loadgen.analysis.steady import (
    DRIFT_SHARE,
    FALL_SHARE,
    FILLING_SHARE,
    MSER_5,
    VARIES,
    Growth,
    Peak,
    Rise,
    fall_of,
    filling_of,
    growth_of,
    peak_of,
    rise_of,
    time_series,
    ttft_in_order,
)
from loadgen.analysis.summary import RoundFigures, Steadiness
from loadgen.analysis.table import RunData, select
from loadgen.analysis.times import gaps_ms
from loadgen.analysis.window import LevelPlan, Window, asked_level, without_cut
from loadgen.record import Phase
from loadgen.units import NS_PER_MS, NS_PER_S

THIRD = 5
"""Slices in each third of ``measure``; their scatter tells a fall from chance."""
FALLS_BEYOND = 0.95

STEADY, DRIFT, SATURATED, UNKNOWN = "steady", "drift", "saturated", "unknown"
UNSETTLED, FILLING = "not settled", "still filling"
TTFT, TPOT, OUTPUT = "TTFT", "TPOT", "output tok/s"

CLOSED, EVEN, UNEVEN = "closed", "even", "uneven"
"""Of what kind a level's load is: what ends decides what is sent; arrivals at one rate; arrivals
whose rate is meant to change (segments), or that changes as it did in a log."""

_ROUND_TIMES = {
    "ttft_p50": ("ttft_ns", 0.5),
    "ttft_p95": ("ttft_ns", 0.95),
    "tpot_p50": ("tpot_ns", 0.5),
    "e2e_p50": ("e2e_ns", 0.5),
    "e2e_p95": ("e2e_ns", 0.95),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Time:
    """How one time went in one round; change: as a share of what it began with; rise: if it did."""

    change: float | None
    rise: Rise | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    """How one level went in one round; growth: None where nothing can grow.

    filling_ns: how much of the window is spent filling up; 0 where that is little.
    """

    ttft: _Time
    tpot: _Time
    fall: float
    growth: Growth | None
    peak: Peak | None
    takes_ns: float
    filling_ns: float


def steadiness(plan: LevelPlan, windows: Sequence[Window], everything: RunData) -> Steadiness:
    """Say what was cut and whether the level stayed steady; of several rounds, most decide.

    But one round that began unlike its rest is enough: its requests are in the pooled figures.
    everything: the requests of the level, all phases, with metrics and windows. Only an open
    level can saturate: the slots of a closed one bound what is in flight.
    """
    if not windows:
        return Steadiness()
    kind, rounds = _kind(plan, everything), everything.requests["window_start_ns"]
    courses = [_course(kind, one, everything.requests[rounds == one.start_ns]) for one in windows]
    # of all of measure: a cut would hide a step, and a slow start only makes a fall look smaller
    whole = everything.with_requests(without_cut(everything, windows))
    slices = rates.output_in_slices(whole, 3 * THIRD)
    growths = [one.growth for one in courses if one.growth is not None]
    begins_anywhere = _rule(windows) == VARIES  # then there is no beginning to settle from
    saturated = _most([growth.unbounded for growth in growths])
    fall = 0.0 if begins_anywhere or saturated else max(one.fall for one in courses)
    filling = not saturated and _most([one.filling_ns > 0 for one in courses])
    drifting = [] if saturated or filling else _drifting(kind, courses, slices)
    known = kind != UNEVEN and any(one.ttft.change is not None for one in courses)
    verdicts = ((saturated, SATURATED), (fall > FALL_SHARE, UNSETTLED), (filling, FILLING),
                (bool(drifting), DRIFT), (known, STEADY))  # fmt: skip
    peaks = [one.peak for one in courses if one.peak is not None and not saturated]
    worst = max(peaks, key=lambda peak: peak.worst_ns, default=None)
    return Steadiness(
        truncation=_rule(windows),
        cut_s=sum(window.cut_ns for window in windows) / NS_PER_S,
        cut_requests=_cut_requests(windows, everything),
        settled=all(window.cut.settled for window in windows),
        verdict=next((word for holds, word in verdicts if holds), UNKNOWN),
        drifting=drifting,
        ttft_fall=fall,
        ttft_change=_change([one.ttft for one in courses]),
        tpot_change=_change([one.tpot for one in courses]),
        ttft_ends=_ends_ms([one.ttft for one in courses]),
        tpot_ends=_ends_ms([one.tpot for one in courses]),
        in_system_growth=sum(growth.requests for growth in growths) if growths else None,
        takes_s=max(one.takes_ns for one in courses) / NS_PER_S if filling else None,
        filling_s=max(one.filling_ns for one in courses) / NS_PER_S if filling else 0.0,
        queue_peak=None if worst is None else worst.waiting,
        queue_peak_ttft=[]
        if worst is None
        else [worst.usual_ns / NS_PER_MS, worst.worst_ns / NS_PER_MS],
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
    for time in ("tpot", "e2e"):
        error_ns = error_of_median(samples_of(due, f"{time}_ns").values)
        found[f"{time}_p50_error"] = None if error_ns is None else error_ns / NS_PER_MS
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


def _kind(plan: LevelPlan, run: RunData) -> str:
    """Return the kind of a level's load; what a crash kept out of the manifest, as asked."""
    asked = asked_level(run.manifest, plan.level)
    if any(value is not None for value in (
        plan.concurrency, asked.get("concurrency"), asked.get("sessions"))):  # fmt: skip
        return CLOSED
    return UNEVEN if plan.rate is None and asked.get("rate") is None else EVEN


def _course(kind: str, window: Window, requests: pd.DataFrame) -> _Course:
    """Judge one round. Drift is of a load that stays as it is: else times follow the load."""
    filling = filling_of(requests) if kind == EVEN else None
    full_ns = filling.until_ns if filling else window.measure_ns
    ttft, tpot = (
        _time(requests, column, window, max(full_ns, window.measure_ns))
        for column in ("ttft_ns", "tpot_ns")
    )
    whole = {"start_ns": window.measure_ns, "end_ns": window.end_ns}
    growth = None if kind == CLOSED else growth_of(requests, **whole)
    before_full_ns = min(full_ns, window.end_ns) - window.start_ns
    fills = before_full_ns > FILLING_SHARE * (window.end_ns - window.start_ns)
    mine = ttft_in_order(requests, start_ns=window.start_ns, end_ns=window.end_ns)
    return _Course(
        ttft=ttft if kind != UNEVEN else replace(ttft, rise=None),
        tpot=tpot if kind != UNEVEN else replace(tpot, rise=None),
        fall=fall_of(mine.values),
        growth=growth,
        peak=peak_of(requests, **whole) if kind == UNEVEN else None,
        takes_ns=filling.takes_ns if filling else 0.0,
        filling_ns=before_full_ns if fills and growth is not None and growth.requests > 0 else 0.0,
    )


def _time(requests: pd.DataFrame, column: str, window: Window, since_ns: float) -> _Time:
    """Judge one time over W, or over all of ``measure`` where it rises there.

    A cut takes part of a slow rise with it, and a cold start left in would hide one. since_ns:
    when an open level was full; until then its times rise with what is in flight.
    """
    for start_ns in (since_ns, max(since_ns, window.start_ns)):
        series = time_series(requests, column, start_ns=start_ns, end_ns=window.end_ns)
        rise = rise_of(series)
        if rise is not None:
            return _Time(change=rise.share, rise=rise)
    line = trend(series.due_ns, series.values)
    return _Time(change=None if line is None else line.share, rise=None)


def _drifting(kind: str, courses: Sequence[_Course], slices: Floats) -> list[str]:
    """Return what drifts: times that rise; of a closed level output tok/s that fall.

    Those of an open level follow its arrivals.
    """
    rises = ((TTFT, [one.ttft.rise for one in courses]), (TPOT, [one.tpot.rise for one in courses]))
    found = [word for word, told in rises if _most([rise is not None for rise in told])]
    return [*found, OUTPUT] if kind == CLOSED and _falls(slices) else found


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


def _change(found: Sequence[_Time]) -> float | None:
    """Return by what share a time rose or fell, as a mean over the rounds."""
    shares = [one.change for one in found if one.change is not None]
    return float(np.mean(shares)) if shares else None


def _ends_ms(found: Sequence[_Time]) -> list[float]:
    """Return from what to what a time rose, as means over the rounds in which it did."""
    rises = [(one.rise.start, one.rise.end) for one in found if one.rise is not None]
    return (np.mean(rises, axis=0) / NS_PER_MS).tolist() if rises else []


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
