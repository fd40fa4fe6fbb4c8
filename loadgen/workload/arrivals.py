"""When requests are due: offsets from one instant, drawn once, never a sleep after a send.

An absolute schedule cannot drift: a late send does not move the ones after it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.errors import UsageError
from loadgen.scenario.fields import Span
from loadgen.scenario.levels import EachLevel, Level, Segment
from loadgen.units import NS_PER_S, seconds_to_ns
from loadgen.workload.profile import Floats, Profile

Seed = int | np.random.SeedSequence

_NEVER_NS = np.iinfo(np.int64).max

MOST_ARRIVALS = 20_000_000
"""Of one level: 160 MB of due times. More is a slip of the pen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All arrivals of one open level, as offsets from its start.

    due_ns: int64, ascending, every one below measure_end_ns.
    An arrival belongs to warm-up when due before measure_start_ns, else to measure.
    turns: how many requests each arrival begins, where the level lasts until all of them were sent
        (the conversations of a log); measure_end_ns is then but the last arrival's.
    """

    due_ns: npt.NDArray[np.int64]
    measure_start_ns: int
    measure_end_ns: int
    turns: npt.NDArray[np.int64] | None = None


def constant_arrivals(rate: float) -> Iterator[float]:
    """Yield arrival offsets in seconds: 0, 1/rate, 2/rate, … without adding up rounding."""
    for number in count():
        yield number / rate


def poisson_arrivals(rate: float, *, seed: Seed) -> Iterator[float]:
    """Yield arrival offsets in seconds: independent exponential gaps, mean ``1 / rate``."""
    rng = np.random.default_rng(seed)
    units = 0.0
    while True:
        units += rng.exponential()
        yield units / rate


def gamma_arrivals(rate: float, burstiness: float, *, seed: Seed) -> Iterator[float]:
    """Yield arrival offsets in seconds: independent gamma gaps of this shape, mean ``1 / rate``.

    The coefficient of variation of the gaps is ``burstiness ** -0.5``: 1 is Poisson, a smaller
    shape comes in bursts, a larger one is evener.
    """
    rng = np.random.default_rng(seed)
    units = 0.0
    while True:
        units += rng.gamma(burstiness, 1 / burstiness)
        yield units / rate


def open_schedule(level: Level, each: EachLevel, *, seed: Seed) -> Schedule:
    """Draw the arrivals of a level's warm-up and measure.

    A phase ends when its time is over, or its last counted arrival is due, or both where both are
    asked (metrics: Per level). A counted arrival that ends a phase belongs to it: the phase ends
    one nanosecond later. Segments begin when the warm-up, at the first rate, is over.
    """
    if level.closed:
        raise ValueError("a closed level has no schedule: its arrivals are its ends")
    source = _Offsets(level, seed)
    warm = source.phase(each.warmup_of(level), after=0, from_ns=0)
    if level.segments is not None:
        source.follow(level.segments, from_ns=warm.at_ns)
    measured = source.phase(each.measure_of(level), after=warm.arrivals, from_ns=warm.at_ns)
    return Schedule(
        due_ns=source.first(measured.arrivals),
        measure_start_ns=warm.at_ns,
        measure_end_ns=measured.at_ns,
    )


def busiest_second(schedule: Schedule) -> int:
    """Return the most arrivals within one second."""
    due = schedule.due_ns
    within = np.searchsorted(due, due + NS_PER_S, side="left") - np.arange(len(due))
    return int(within.max(initial=0))


def deal(schedule: Schedule, worker: int, workers: int) -> npt.NDArray[np.int64]:
    """Return the numbers of the arrivals that one of several workers sends, in turn.

    Dealt by number, not drawn apart: together the workers send exactly the one schedule.
    """
    return np.arange(worker, len(schedule.due_ns), workers, dtype=np.int64)


class _End(NamedTuple):
    """The end of a phase: how many arrivals there were up to it, and when it came."""

    arrivals: int
    at_ns: int


class _Offsets:
    """Offsets of one level in ns, drawn in blocks as far as they are asked for."""

    def __init__(self, level: Level, seed: Seed) -> None:
        self._level = level
        self._rng = np.random.default_rng(seed)
        self._profile = Profile(level.first_rate)
        self._units = np.empty(0, dtype=np.float64)
        self._ns = np.empty(0, dtype=np.int64)

    def first(self, number: int) -> npt.NDArray[np.int64]:
        """Return the first so many offsets."""
        if len(self._ns) < number:
            self._draw(number - len(self._ns))
        return self._ns[:number]

    def phase(self, span: Span, *, after: int, from_ns: int) -> _End:
        """Return how many arrivals there are when the phase ends, and when it ends."""
        end_ns = from_ns + seconds_to_ns(span.seconds or 0.0)
        if span.requests:
            last = int(self.first(after + span.requests)[-1])
            end_ns = max(end_ns, last + 1)
        return _End(arrivals=self._before(end_ns), at_ns=end_ns)

    def follow(self, segments: Sequence[Segment], *, from_ns: int) -> None:
        """Let segments begin at an instant; arrivals already drawn after it move with them."""
        self._profile.follow(segments, from_s=from_ns / NS_PER_S)
        kept = int(np.searchsorted(self._ns, from_ns, side="left"))
        later = self._profile.due_s(self._units)[kept:]
        self._ns = np.concatenate([self._ns[:kept], _to_ns(later)])

    def _before(self, end_ns: int) -> int:
        """Count the arrivals due before an instant."""
        while not len(self._ns) or self._ns[-1] < end_ns:
            drawn = self._units[-1] if len(self._units) else 0.0
            missing = self._profile.units_at(end_ns / NS_PER_S) - drawn
            self._draw(int(max(missing, 0.0) * 1.05) + 16)
        return int(np.searchsorted(self._ns, end_ns, side="left"))

    def _draw(self, number: int) -> None:
        have = len(self._units)
        if have + number > MOST_ARRIVALS:
            raise UsageError(
                f"{self._level.label}: more than {MOST_ARRIVALS:,} arrivals; lower the rate or "
                "shorten each_level"
            )
        units = self._more_units(number)
        self._units = np.concatenate([self._units, units])
        self._ns = np.concatenate([self._ns, _to_ns(self._profile.due_s(units))])

    def _more_units(self, number: int) -> Floats:
        """Draw the next arrivals of the process of one per second."""
        if self._level.arrivals == "constant":
            have = len(self._units)
            return np.arange(have, have + number, dtype=np.float64)
        shape = self._level.burstiness if self._level.arrivals == "gamma" else None
        if shape is None:
            gaps = self._rng.exponential(size=number)
        else:
            gaps = self._rng.gamma(shape, 1 / shape, size=number)
        if len(self._units):
            gaps[0] += self._units[-1]  # then the sums equal adding one by one
        return np.cumsum(gaps)


def _to_ns(due_s: Floats) -> npt.NDArray[np.int64]:
    """Round seconds to nanoseconds; what never comes is due at the end of time."""
    with np.errstate(invalid="ignore"):
        rounded = np.rint(due_s * NS_PER_S).astype(np.int64)
    rounded[np.isinf(due_s)] = _NEVER_NS
    return rounded
