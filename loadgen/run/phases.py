"""When a level warms up, measures and drains: a pure machine that is told instants.

Instants are ns of one clock, whatever its epoch. ``admit`` is asked for each arrival and names its
phase; ``advance`` is told that time passed. A span bounded by a time and a count is over when both
are reached. ``measure`` begins with the first arrival after the warm-up, and ends when its time is
over or its last counted arrival is due, or both where both are asked.
"""

from loadgen.record import Phase
from loadgen.scenario.model import Span
from loadgen.units import seconds_to_ns


class Phases:
    """The phase of one closed level.

    Time alone does not end its warm-up: while every slot still waits for its first answer (a server
    that compiles, or loads what it serves), nothing is warm, and no request would be measured.
    """

    def __init__(self, *, warmup: Span, measure: Span, start_ns: int) -> None:
        self.start_ns = start_ns
        self.phase = Phase.WARMUP
        self.measure_start_ns: int | None = None
        self.measure_end_ns: int | None = None
        self.stop_reason: str | None = None
        self._warmup = warmup
        self._measure = measure
        self._warmed = 0
        self._measured = 0
        self._last_due_ns = start_ns

    def admit(self, due_ns: int) -> Phase | None:
        """Count an arrival due now and return its phase; None when arrivals are over."""
        self.advance(due_ns)
        if self.phase is Phase.WARMUP:
            if not self._warmup_over(due_ns):
                self._warmed += 1
                self._last_due_ns = due_ns
                return Phase.WARMUP
            self._begin_measure(due_ns)
            self.advance(due_ns)
        if self.phase is not Phase.MEASURE:
            return None
        self._measured += 1
        self._last_due_ns = due_ns
        self.advance(due_ns)
        return Phase.MEASURE

    def advance(self, now_ns: int) -> None:
        """Let time pass: end ``measure`` where time alone decides."""
        change = self.next_change_ns()
        if change is not None and change <= now_ns:
            self._end_measure(change)

    def next_change_ns(self) -> int | None:
        """Return the instant at which the phase changes if no further arrival comes; else None."""
        if self.phase is Phase.MEASURE and _enough(self._measure, self._measured):
            assert self.measure_start_ns is not None
            end = self.measure_start_ns + seconds_to_ns(self._measure.seconds or 0)
            return max(end, self._last_due_ns) if self._measure.requests else end
        return None

    def stop(self, now_ns: int, reason: str) -> None:
        """End arrivals now, from whatever phase."""
        if self.phase is Phase.DRAIN:
            return
        if self.phase is Phase.MEASURE:
            self.measure_end_ns = now_ns
        self.phase = Phase.DRAIN
        self.stop_reason = reason

    def _warmup_over(self, now_ns: int) -> bool:
        if not _enough(self._warmup, self._warmed):
            return False
        seconds = self._warmup.seconds
        return seconds is None or now_ns >= self.start_ns + seconds_to_ns(seconds)

    def _begin_measure(self, now_ns: int) -> None:
        self.phase = Phase.MEASURE
        self.measure_start_ns = self._last_due_ns = now_ns

    def _end_measure(self, at_ns: int) -> None:
        self.phase = Phase.DRAIN
        self.measure_end_ns = at_ns
        self.stop_reason = reason_of(self._measure)


class PlannedPhases:
    """The phase of one open level, whose schedule fixes every instant beforehand."""

    def __init__(
        self, *, start_ns: int, measure_start_ns: int, measure_end_ns: int, reason: str
    ) -> None:
        self.start_ns = start_ns
        self.phase = Phase.WARMUP
        self.measure_start_ns: int | None = None
        self.measure_end_ns: int | None = None
        self.stop_reason: str | None = None
        self._changes = (measure_start_ns, measure_end_ns)
        self._reason = reason
        self._stopped = False

    def admit(self, due_ns: int) -> Phase | None:
        """Return the phase an arrival belongs to by its due instant; None after a stop."""
        if self._stopped or due_ns >= self._changes[1]:
            return None
        return Phase.WARMUP if due_ns < self._changes[0] else Phase.MEASURE

    def advance(self, now_ns: int) -> None:
        """Let time pass."""
        if self.phase is Phase.WARMUP and now_ns >= self._changes[0]:
            self.phase = Phase.MEASURE
            self.measure_start_ns = self._changes[0]
        if self.phase is Phase.MEASURE and now_ns >= self._changes[1]:
            self.phase = Phase.DRAIN
            self.measure_end_ns = self._changes[1]
            self.stop_reason = self._reason

    def next_change_ns(self) -> int | None:
        """Return when the phase changes next."""
        if self.phase is Phase.DRAIN:
            return None
        return self._changes[0 if self.phase is Phase.WARMUP else 1]

    def stop(self, now_ns: int, reason: str) -> None:
        """End arrivals now, from whatever phase."""
        self._stopped = True
        if self.phase is Phase.DRAIN:
            return
        if self.phase is Phase.MEASURE:
            self.measure_end_ns = now_ns
        self.phase = Phase.DRAIN
        self.stop_reason = reason


class CountedPhases:
    """The phase of an open level that lasts until all that it expects was sent.

    Conversations follow a schedule by their first turns alone; when their last turn is due, the
    server decides. What a failed turn cuts off is no longer expected (``forgo``).
    """

    def __init__(self, *, start_ns: int, measure_start_ns: int, expected: int) -> None:
        self.start_ns = start_ns
        self.phase = Phase.WARMUP
        self.measure_start_ns: int | None = None
        self.measure_end_ns: int | None = None
        self.stop_reason: str | None = None
        self._begin_ns = measure_start_ns
        self._expected = expected
        self._last_due_ns = start_ns

    def admit(self, due_ns: int) -> Phase | None:
        """Count an arrival and return the phase it belongs to; None after a stop."""
        if self.phase is Phase.DRAIN:
            return None
        self._last_due_ns = max(self._last_due_ns, due_ns)
        self.forgo(1)
        return Phase.WARMUP if due_ns < self._begin_ns else Phase.MEASURE

    def forgo(self, requests: int) -> None:
        """Expect so many requests fewer."""
        self._expected -= requests
        if self._expected <= 0:
            self.advance(max(self._begin_ns, self._last_due_ns))
            self.stop(max(self._begin_ns, self._last_due_ns) + 1, "log")

    def advance(self, now_ns: int) -> None:
        """Let time pass."""
        if self.phase is Phase.WARMUP and now_ns >= self._begin_ns:
            self.phase = Phase.MEASURE
            self.measure_start_ns = self._begin_ns

    def next_change_ns(self) -> int | None:
        """Return when the phase changes next by time alone."""
        return self._begin_ns if self.phase is Phase.WARMUP else None

    def stop(self, now_ns: int, reason: str) -> None:
        """End arrivals now, from whatever phase."""
        if self.phase is Phase.DRAIN:
            return
        if self.phase is Phase.MEASURE:
            self.measure_end_ns = now_ns
        self.phase = Phase.DRAIN
        self.stop_reason = reason


class LogPhases(Phases):
    """The phase of a closed level that is over when all that it expects was sent.

    A counted warm-up is a part of that. What a failed turn cuts off is no longer expected.
    """

    def __init__(self, *, warmup: Span, expected: int, start_ns: int) -> None:
        # one more than can come: not the count of measure, but the end of the log ends it
        super().__init__(warmup=warmup, measure=Span(requests=expected + 1), start_ns=start_ns)
        self._expected = expected

    def admit(self, due_ns: int) -> Phase | None:
        """Count an arrival due now and return its phase; None when arrivals are over."""
        phase = super().admit(due_ns)
        if phase is not None:
            self.forgo(1)
        return phase

    def advance(self, now_ns: int) -> None:
        """Let time pass: the log may be over."""
        super().advance(now_ns)
        self.forgo(0)

    def forgo(self, requests: int) -> None:
        """Expect so many requests fewer."""
        self._expected -= requests
        if self._expected > 0 or self.phase is Phase.DRAIN:
            return
        if self.phase is Phase.WARMUP:
            self._begin_measure(self._last_due_ns)
        self.stop(self._last_due_ns, "log")


AnyPhases = Phases | PlannedPhases | CountedPhases


def reason_of(measure: Span) -> str:
    """Name what ends a measure phase: "time", "count", "time and count", or "log" for its end."""
    if measure == Span():
        return "log"
    if measure.requests is None:
        return "time"
    return "count" if measure.seconds is None else "time and count"


def _enough(span: Span, count: int) -> bool:
    return span.requests is None or count >= span.requests
