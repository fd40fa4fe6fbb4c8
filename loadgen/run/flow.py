"""How many requests are in flight: now, at most, and on average over time."""


class Flow:
    """Counts requests that begin and end; instants are ns of one clock."""

    def __init__(self, now_ns: int) -> None:
        self.in_flight = 0
        self.peak = 0
        self._since_ns = now_ns
        self._changed_ns = now_ns
        self._area = 0

    def begin(self, now_ns: int) -> None:
        """Count one more."""
        self._advance(now_ns)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)

    def end(self, now_ns: int) -> None:
        """Count one less."""
        self._advance(now_ns)
        self.in_flight -= 1

    def restart(self, now_ns: int) -> None:
        """Begin a new average and peak, from what is in flight now."""
        self._since_ns = self._changed_ns = now_ns
        self._area = 0
        self.peak = self.in_flight

    def mean(self, now_ns: int) -> float | None:
        """Return the time average since the last restart; None over no time."""
        self._advance(now_ns)
        span = now_ns - self._since_ns
        return self._area / span if span > 0 else None

    def _advance(self, now_ns: int) -> None:
        self._area += self.in_flight * (now_ns - self._changed_ns)
        self._changed_ns = now_ns
