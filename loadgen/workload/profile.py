"""A rate that changes over time, and the time that belongs to each arrival of a unit process.

Arrivals are drawn once at one per second (in *units*) and then stretched: the arrival at u units
is due when the cumulated rate Λ(t) = ∫ rate reaches u. One seed thus gives one schedule whatever
the rates are; of Poisson gaps it makes the inhomogeneous Poisson process of that rate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadgen.scenario.levels import Segment

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A stretch of time whose rate goes evenly from ``first`` to ``last``, in arrivals per second.

    start_s: when it begins; start_units: Λ there. seconds: its length, infinite where it holds on.
    """

    start_s: float
    start_units: float
    seconds: float
    first: float
    last: float

    @property
    def end_s(self) -> float:
        """When it is over."""
        return self.start_s + self.seconds

    @property
    def end_units(self) -> float:
        """Λ at its end."""
        return self.units_at(self.end_s)

    def units_at(self, at_s: float) -> float:
        """Return Λ at an instant within the piece."""
        into = min(at_s - self.start_s, self.seconds)
        if self.first == self.last:
            return self.start_units + (self.first * into if self.first else 0.0)
        slope = (self.last - self.first) / self.seconds
        return self.start_units + self.first * into + slope * into * into / 2

    def due_s(self, units: Floats) -> Floats:
        """Return when Λ reaches each of these, all within the piece; its rate is not zero."""
        more = units - self.start_units
        if self.first == self.last:
            return self.start_s + more / self.first
        slope = (self.last - self.first) / self.seconds
        # the root of slope/2·t² + first·t = more that does not cancel; rounding may fall below 0
        root = np.sqrt(np.maximum(self.first * self.first + 2 * slope * more, 0.0))
        below = self.first + root
        into = np.divide(2 * more, below, out=np.zeros_like(more), where=below > 0)
        return self.start_s + np.minimum(into, self.seconds)


class Profile:
    """Pieces that follow one another from time 0; the first holds a rate for as long as wanted."""

    def __init__(self, rate: float) -> None:
        self.pieces = [Piece(start_s=0.0, start_units=0.0, seconds=math.inf, first=rate, last=rate)]

    def follow(self, segments: Sequence[Segment], *, from_s: float) -> None:
        """Let the segments begin at an instant, in place of what held on until then."""
        held = self.pieces[-1]
        self.pieces[-1] = Piece(
            start_s=held.start_s,
            start_units=held.start_units,
            seconds=from_s - held.start_s,
            first=held.first,
            last=held.last,
        )
        for segment in segments:
            before = self.pieces[-1]
            self.pieces.append(
                Piece(
                    start_s=before.end_s,
                    start_units=before.end_units,
                    seconds=segment.for_s,
                    first=segment.first,
                    last=segment.last,
                )
            )

    def units_at(self, at_s: float) -> float:
        """Return Λ at an instant; after the last piece it grows no more."""
        for piece in self.pieces:
            if at_s < piece.end_s:
                return piece.units_at(at_s)
        return self.pieces[-1].end_units

    def due_s(self, units: Floats) -> Floats:
        """Return when Λ reaches each of these ascending values; infinity where it never does."""
        due = np.full_like(units, np.inf)
        for piece in self.pieces:
            low, high = np.searchsorted(units, (piece.start_units, piece.end_units), side="left")
            if low < high:
                due[low:high] = piece.due_s(units[low:high])
        return due
