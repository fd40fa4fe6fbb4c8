"""Which part of a level is one worker's."""

from dataclasses import dataclass

from loadgen.scenario.levels import Level
from loadgen.scenario.model import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What of a level is one worker's: every ``workers``-th slot, arrival, and counted request."""

    worker: int
    workers: int

    def number(self, mine: int) -> int:
        """Return the number in the level of this worker's arrival ``mine``."""
        return mine * self.workers + self.worker

    def of(self, total: int) -> range:
        """Return the numbers below ``total`` that are this worker's."""
        return range(self.worker, total, self.workers)

    def span(self, span: Span) -> Span:
        """Return this worker's part of a counted span; a time is the same for all."""
        if span.requests is None:
            return span
        return Span(seconds=span.seconds, requests=len(self.of(span.requests)))


def slots_of(level: Level) -> int:
    """Return how many requests, or conversations, may be under way at once."""
    if level.closed:
        return level.sessions or level.concurrency or 1
    return level.max_in_flight


def workers_of(level: Level, workers: int) -> int:
    """Return how many of the workers a level needs: none would be without a slot, or a place."""
    return min(workers, level.slots)  # of sessions under a cap of requests, that cap
