"""What a level costs the client itself: its core and its loop, while the level measures.

A long drain is mostly waiting, and so may a warm-up be: counted in, either would make a client that
was busy look idle.
"""

import resource
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from loadgen.client.clock import LoopLag, now_ns
from loadgen.record import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The CPU this process had used at an instant, and how often the loop was looked at by then."""

    at_ns: int = field(default_factory=now_ns)
    cpu_ns: int = field(default_factory=time.process_time_ns)
    samples: int = 0


class Burden:
    """Watches from its making to ``close``; ``enter`` tells of each phase.

    A level that never measured is taken from its begin, one that never drained to its end.
    """

    def __init__(self) -> None:
        self._lag = LoopLag()
        self._began = self._measured = Moment()
        self._drained: Moment | None = None

    def enter(self, phase: Phase) -> None:
        """Learn that a phase begins."""
        if phase is Phase.MEASURE:
            self._measured = self._moment()
        elif phase is Phase.DRAIN:
            self._drained = self._moment()

    def close(self) -> None:
        """Watch no longer."""
        self._lag.close()

    def figures(self) -> dict[str, Any]:
        """Return the client's figures for the manifest.

        cpu_share, loop_lag_p99_ns: while it measured. cpu_ns, loop_lag_max_ns: of the whole level.
        """
        end = self._moment()
        measured, drained = self._measured, self._drained or end
        return {
            "cpu_share": cpu_share(measured, drained),
            "cpu_ns": end.cpu_ns - self._began.cpu_ns,
            "loop_lag_p99_ns": _p99(self._lag.samples_ns[measured.samples : drained.samples]),
            "loop_lag_max_ns": self._lag.largest_ns,
            "rss_bytes": _peak_rss_bytes(),
        }

    def _moment(self) -> Moment:
        return Moment(samples=len(self._lag.samples_ns))


def cpu_share(begin: Moment, end: Moment) -> float | None:
    """Return the share of one core used between two moments; None where no time passed."""
    wall_ns = end.at_ns - begin.at_ns
    return round((end.cpu_ns - begin.cpu_ns) / wall_ns, 4) if wall_ns > 0 else None


def _p99(samples_ns: list[int]) -> int | None:
    ordered_ns = sorted(samples_ns)
    return ordered_ns[min(len(ordered_ns) - 1, int(0.99 * len(ordered_ns)))] if ordered_ns else None


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
