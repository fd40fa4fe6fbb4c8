"""Where a level becomes steady, and whether it stays so: truncation, growth of the queue, drift.

Every function takes the requests of one level in one round. Growth is judged against a queue that
is exactly at its capacity: that one wanders like a random walk, so what waits for a first token
must have grown by more than such a walk would, and TTFT must have risen with it. All that is in
flight grows as well while a level that began empty fills up, for as long as a request takes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.samples import of_load
from loadgen.analysis.stats import TREND_BATCHES, Floats, Trend, beginning, student_t, trend
from loadgen.record import FAILED_OUTCOMES, Outcome, Phase

LEAST_TO_CUT = 50
"""Requests below which MSER-5 is too noisy to be acted upon (metrics: per level)."""

SAMPLE_NS = 100_000_000
SLICES = 20
GROWS_BEYOND = 0.85
"""One-sided confidence of the test for growth, exact for a queue at its capacity. One below it is
pulled back: at 90 % of capacity under 5 % of seeded draws are called saturated, while 20 % above
it is found in 95 % from some 300 requests on."""
LATER_HALF = 0.1
"""The least share of the growth that falls into the later half: a backlog of the beginning, or of
a spike, has passed by then."""
RISES_BEYOND = 0.95
WAITS_SHARE = 0.1
"""The least rise of TTFT that is a queue's, as a share of the time from a first token to the end:
a batch that fills up makes its steps longer, and TTFT rises by a few of these."""

TOOK = 0.95
FILLING_SHARE = 0.2
"""Of the window: how much of it may lie in the time that a level needs to fill up. MSER-5 cuts that
time off where it is under a half."""
PEAK_BATCHES, PEAKS_BY, PEAK_SHARE = 10, 3.0, 0.5
"""A queue that came and went is told of where the TTFT of one of ten batches of requests was so
many times the least one, and longer by half the time from a first token to the end."""

DRIFTS_BEYOND = 0.99
DRIFT_SHARE = 0.05

STEP_BATCHES, LEAST_TO_STEP = 20, 20
STEP_EXPLAINS = 0.7
RISE_BATCHES = 2
"""The least that a late rise lasts: one batch may hold a single slow request."""
FALL_SHARE = 0.3
"""A smaller fall is not told. Of 100 requests that began cold every one is found; of queues 70 %
busy and of closed levels under 2 in 100 are called so (at 90 % busy and 60 requests 16: those ran
out of a backlog)."""

MSER_5, OFF, TOO_FEW, VARIES = "mser-5", "off", "too few", "load varies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What MSER-5 takes off the beginning of ``measure``.

    rule: mser-5; off (the scenario says so), too few (under 50 requests) and load varies
        (segments) cut nothing. settled: False where TTFT or in flight never became steady (d* at
        m/2): then that series cuts nothing, or only a beginning that stands out clearly.
    """

    at_ns: int
    rule: str
    settled: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How much the number of requests in the system grew; unbounded: its queue by more than chance.

    The queue are those that wait for a first token.
    """

    requests: float = 0.0
    unbounded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """How long a level that began empty fills up: until ``until_ns``, as requests take that long.

    takes_ns: p95 of end - due; of a request that was cut, its age.
    """

    takes_ns: float
    until_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """A queue that came and went: how many waited for a first token at most, and TTFT from due.

    usual_ns, worst_ns: the least and the largest median of ten batches of requests.
    """

    waiting: int
    usual_ns: float
    worst_ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rise:
    """From what to what a time rose, ns."""

    start: float
    end: float

    @property
    def share(self) -> float:
        """The rise as a share of the start."""
        return self.end / self.start - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values in order of due."""

    due_ns: Floats
    values: Floats


def cut_of(requests: pd.DataFrame, *, start_ns: int, end_ns: int) -> Cut:
    """Return the later truncation of TTFT in order of due and of in flight each 100 ms.

    Half of the requests always stay: as d* at m/2, a later cut means that nothing was steady.
    """
    series = ttft_in_order(requests, start_ns=start_ns, end_ns=end_ns)
    if len(series.values) < LEAST_TO_CUT:
        return Cut(at_ns=start_ns, rule=TOO_FEW)
    moments = np.arange(start_ns, end_ns, SAMPLE_NS, dtype=np.float64)
    half_ns = series.due_ns[len(series.due_ns) // 2]
    at_ns, settled = start_ns, True
    for at, values in (
        (series.due_ns, series.values),
        (moments, in_flight_at(requests, moments)),
    ):
        found = beginning(values)
        cut_ns = _after(at, found.cut) if found.cut else start_ns
        settled = settled and found.steady and cut_ns <= half_ns
        at_ns = max(at_ns, cut_ns if cut_ns <= half_ns else start_ns)
    return Cut(at_ns=at_ns, rule=MSER_5, settled=settled)


def _after(at: Floats, cut: int) -> int:
    """Return the first instant after the samples cut: those that were due together go together."""
    return int(at[min(np.searchsorted(at, at[cut - 1], "right"), len(at) - 1)])


def ttft_in_order(
    requests: pd.DataFrame, *, start_ns: float, end_ns: float, since: str = "sent_ns"
) -> Series:
    """Return first - sent (or - due) of the requests of ``measure`` due in a stretch of time.

    Failed requests have none; one cut while waiting counts with its age.
    """
    due = requests["due_ns"]
    chosen = requests[(requests["phase"] == Phase.MEASURE) & (due >= start_ns) & (due <= end_ns)]
    chosen = chosen[~chosen["outcome"].isin([*FAILED_OUTCOMES, Outcome.DROPPED]) & of_load(chosen)]
    chosen = chosen.sort_values("due_ns", kind="stable")
    waiting = chosen["outcome"] == Outcome.UNFINISHED
    told = chosen["first_ns"].where(chosen["first_ns"].notna() | ~waiting, chosen["end_ns"])
    values = (told - chosen[since]).to_numpy(dtype=np.float64)
    known = values >= 0
    return Series(due_ns=chosen["due_ns"].to_numpy(dtype=np.float64)[known], values=values[known])


def in_flight_at(requests: pd.DataFrame, moments: Floats) -> Floats:
    """Count the requests sent and not yet ended at each moment, whatever their phase."""
    return _between(requests["sent_ns"], requests["end_ns"], moments)


def in_system_at(requests: pd.DataFrame, moments: Floats) -> Floats:
    """Count the requests due and not yet ended at each moment: those that wait for a slot, too."""
    taken = requests[requests["outcome"] != Outcome.DROPPED]
    return _between(taken["due_ns"], taken["end_ns"], moments)


def waiting_at(requests: pd.DataFrame, moments: Floats) -> Floats:
    """Count the requests due, not ended and without a first token at each moment."""
    taken = requests[requests["outcome"] != Outcome.DROPPED]
    return _between(taken["due_ns"], taken["first_ns"].fillna(taken["end_ns"]), moments)


def growth_of(requests: pd.DataFrame, *, start_ns: int, end_ns: int) -> Growth:
    """Judge whether the queue of an open level grew as long as it lasted.

    Student's t of the increments of what waits for a first token over 20 equal slices, against the
    scatter of all that is in the system: arrivals come as unevenly where hardly any of them waits.
    The later half must have grown as well, and TTFT from due must have risen, by more than a batch
    that fills up makes it.
    """
    if end_ns <= start_ns:
        return Growth()
    moments = np.linspace(start_ns, end_ns, SLICES + 1)
    inside, steps = (np.diff(of(requests, moments)) for of in (in_system_at, waiting_at))
    growth, spread = float(steps.sum()), float(inside.std(ddof=1))
    requests_more = float(inside.sum())
    if growth <= 0 or float(steps[SLICES // 2 :].sum()) < LATER_HALF * growth:
        return Growth(requests=requests_more)
    t = float(steps.mean()) / (spread / np.sqrt(SLICES)) if spread else np.inf
    waits = ttft_in_order(requests, start_ns=start_ns, end_ns=end_ns, since="due_ns")
    rise = trend(waits.due_ns, waits.values)
    rose = (
        rise is not None
        and rise.t > student_t(TREND_BATCHES - 2, RISES_BEYOND)
        and rise.growth > WAITS_SHARE * _after_first_ns(requests)
    )
    grew = t > student_t(SLICES - 1, GROWS_BEYOND)
    return Growth(requests=requests_more, unbounded=grew and rose)


def peak_of(requests: pd.DataFrame, *, start_ns: int, end_ns: int) -> Peak | None:
    """Return the worst of a queue that came and went; None where none to speak of did."""
    waits = ttft_in_order(requests, start_ns=start_ns, end_ns=end_ns, since="due_ns")
    if len(waits.values) < LEAST_TO_CUT:
        return None
    medians = [float(np.median(one)) for one in np.array_split(waits.values, PEAK_BATCHES)]
    usual, worst = min(medians), max(medians)
    if worst < PEAKS_BY * usual or worst - usual < PEAK_SHARE * _after_first_ns(requests):
        return None
    waiting = int(waiting_at(requests, waits.due_ns).max())
    return Peak(waiting=waiting, usual_ns=usual, worst_ns=worst)


def filling_of(requests: pd.DataFrame) -> Filling | None:
    """Return how long an open level fills up from its first request; None where none ended.

    By then as many end as are sent, if the server keeps up. Failed requests end early.
    """
    kept = requests[requests["outcome"].isin([Outcome.OK, Outcome.UNFINISHED])]
    took = (kept["end_ns"] - kept["due_ns"]).dropna()
    if took.empty:
        return None
    takes_ns = float(took.quantile(TOOK))
    return Filling(takes_ns=takes_ns, until_ns=float(requests["due_ns"].min()) + takes_ns)


def _after_first_ns(requests: pd.DataFrame) -> float:
    """Return the median time from a first token to the end; 0 where none is known."""
    found = (requests["end_ns"] - requests["first_ns"]).median()
    return 0.0 if pd.isna(found) else float(found)


def time_series(requests: pd.DataFrame, column: str, *, start_ns: float, end_ns: float) -> Series:
    """Return one time of the ok requests of ``measure``, in order of due."""
    due = requests["due_ns"]
    chosen = requests[(requests["phase"] == Phase.MEASURE) & (due >= start_ns) & (due <= end_ns)]
    chosen = chosen[(chosen["outcome"] == Outcome.OK) & chosen[column].notna() & of_load(chosen)]
    chosen = chosen.sort_values("due_ns", kind="stable")
    at, values = (chosen[name].to_numpy(dtype=np.float64) for name in ("due_ns", column))
    return Series(due_ns=at, values=values)


def rise_of(series: Series) -> Rise | None:
    """Return from what to what a series rose: by a line, or by one step that came late.

    A line must rise by more than 5 % and more than its own scatter explains. Of a late step it
    makes too much, or finds nothing where the last tenth alone is higher.
    """
    line, step = trend(series.due_ns, series.values), _late_step(series.values)
    if line is None or not drifts(line) or (step is not None and line.growth > 2 * line.first):
        return step
    return Rise(start=line.first, end=line.first + line.growth)


def drifts(found: Trend | None) -> bool:
    """Say whether a series rose by more than 5 % and more than its own scatter explains."""
    if found is None or found.share is None:
        return False
    return found.share > DRIFT_SHARE and found.t > student_t(TREND_BATCHES - 2, DRIFTS_BEYOND)


def _late_step(values: Floats) -> Rise | None:
    """Return a step up that explains a series, as large as a fall that is told."""
    found = _step(values[::-1], least=RISE_BATCHES)
    if found is None or found.rest <= 0 or found.rest >= (1 - FALL_SHARE) * found.head:
        return None
    return Rise(start=found.rest, end=found.head)


def fall_of(values: Floats) -> float:
    """Return by what share of its beginning a series fell to what followed; 0 where it did not.

    It did where one step explains it: a cold start, a backlog, a cache that fills. Rises are
    ``rise_of``.
    """
    found = _step(values)
    return 0.0 if found is None else max(0.0, 1 - found.rest / found.head)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The means before and after the one place that explains a series."""

    head: float
    rest: float


def _step(values: Floats, *, least: int = 1) -> _Step | None:
    """Return the step that explains most of how the means of 20 batches differ, if one does.

    Batches are of 2 samples or more; ``least`` of them come before the step, and at least a fifth
    after it (the last few of a level end among themselves).
    """
    number = min(STEP_BATCHES, len(values) // 2)
    if len(values) < LEAST_TO_STEP:
        return None
    size = len(values) // number
    means = values[: number * size].reshape(number, size).mean(axis=1)
    total = float(((means - means.mean()) ** 2).sum())
    before = np.arange(least, number - number // 5 + 1)
    sums = np.cumsum(means)[before - 1]
    heads, rests = sums / before, (means.sum() - sums) / (number - before)
    explained = before * (number - before) / number * (heads - rests) ** 2
    best = int(explained.argmax())
    if heads[best] <= 0 or explained[best] <= STEP_EXPLAINS * total:
        return None
    return _Step(head=float(heads[best]), rest=float(rests[best]))


def _between(begin: "pd.Series[Any]", end: "pd.Series[Any]", moments: Floats) -> Floats:
    known = begin.notna()
    begun = np.sort(begin[known].to_numpy(dtype=np.float64))
    ended = np.sort(end[known].fillna(np.inf).to_numpy(dtype=np.float64))
    inside = np.searchsorted(begun, moments, "right") - np.searchsorted(ended, moments, "right")
    return inside.astype(np.float64)
