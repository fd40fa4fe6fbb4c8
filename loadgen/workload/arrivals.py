"""When requests are due: offsets from one instant, drawn once, never a sleep after a send.

An absolute schedule cannot drift: a late send does not move the ones after it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from loadgen.errors import UsageError
from loadgen.scenario.fields import Span
from loadgen.scenario.model import EachLevel, Level
from loadgen.units import NS_PER_S, seconds_to_ns

Seed = int | np.random.SeedSequence

MOST_ARRIVALS = 20_000_000
"""Of one level: 160 MB of due times. More is a slip of the pen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All arrivals of one open level, as offsets from its start.

    due_ns: int64, ascending, every one below measure_end_ns.
    An arrival belongs to warm-up when due before measure_start_ns, else to measure.
    """

    due_ns: npt.NDArray[np.int64]
    measure_start_ns: int
    measure_end_ns: int


def constant_arrivals(rate: float) -> Iterator[float]:
    """Yield arrival offsets in seconds: 0, 1/rate, 2/rate, … without adding up rounding."""
    for number in count():
        yield number / rate


def poisson_arrivals(rate: float, *, seed: Seed) -> Iterator[float]:
    """Yield arrival offsets in seconds: independent exponential gaps, mean ``1 / rate``."""
    rng = np.random.default_rng(seed)
    due = 0.0
    while True:
        due += rng.exponential(1 / rate)
        yield due


def open_schedule(level: Level, each: EachLevel, *, seed: Seed) -> Schedule:
    """Draw the arrivals of a level's warm-up and measure.

    A phase ends when its time is over, or its last counted arrival is due, or both where both are
    asked (metrics: Per level). A counted arrival that ends a phase belongs to it: the phase ends
    one nanosecond later.
    """
    if level.rate is None:
        raise ValueError("a closed level has no schedule: its arrivals are its ends")
    warmup = each.warmup_of(level)
    source = _Offsets(level, seed)
    warm = source.phase(warmup, after=0, from_ns=0)
    measured = source.phase(each.measure, after=warm.arrivals, from_ns=warm.at_ns)
    return Schedule(
        due_ns=source.first(measured.arrivals),
        measure_start_ns=warm.at_ns,
        measure_end_ns=measured.at_ns,
    )


class _End(NamedTuple):
    """The end of a phase: how many arrivals there were up to it, and when it came."""

    arrivals: int
    at_ns: int


class _Offsets:
    """Offsets of one level in ns, drawn in blocks as far as they are asked for."""

    def __init__(self, level: Level, seed: Seed) -> None:
        self._rate = level.rate or 0.0
        self._label = level.label
        self._constant = level.arrivals == "constant"
        self._rng = np.random.default_rng(seed)
        self._last_s = 0.0
        self._ns = np.empty(0, dtype=np.int64)

    def first(self, number: int) -> npt.NDArray[np.int64]:
        """Return the first so many offsets."""
        while len(self._ns) < number:
            self._draw(number - len(self._ns))
        return self._ns[:number]

    def phase(self, span: Span, *, after: int, from_ns: int) -> _End:
        """Return how many arrivals there are when the phase ends, and when it ends."""
        end_ns = from_ns + seconds_to_ns(span.seconds or 0.0)
        if span.requests:
            last = int(self.first(after + span.requests)[-1])
            end_ns = max(end_ns, last + 1)
        return _End(arrivals=self._before(end_ns), at_ns=end_ns)

    def _before(self, end_ns: int) -> int:
        """Count the arrivals due before an instant."""
        while not len(self._ns) or self._ns[-1] < end_ns:
            missing_s = end_ns / NS_PER_S - self._last_s
            self._draw(int(max(missing_s, 0.0) * self._rate * 1.05) + 16)
        return int(np.searchsorted(self._ns, end_ns, side="left"))

    def _draw(self, number: int) -> None:
        have = len(self._ns)
        if have + number > MOST_ARRIVALS:
            raise UsageError(
                f"{self._label}: more than {MOST_ARRIVALS:,} arrivals; lower the rate or "
                "shorten each_level"
            )
        if self._constant:
            offsets_s: npt.NDArray[Any] = np.arange(have, have + number) / self._rate
        else:
            gaps_s = self._rng.exponential(1 / self._rate, size=number)
            gaps_s[0] += self._last_s  # then the sums equal adding one by one
            offsets_s = np.cumsum(gaps_s)
        self._last_s = float(offsets_s[-1])
        more = np.rint(offsets_s * NS_PER_S).astype(np.int64)
        self._ns = np.concatenate([self._ns, more])
