"""A server that fails looks worse, never faster: what a figure of its survivors is worth.

Times are those of requests that succeeded; where the slow ones fail, what is left looks fast. So
a figure that looks better beside more failures must still do so with each failure as +∞.
"""

from dataclasses import dataclass

import numpy as np

from loadgen.analysis.differ import of_shares
from loadgen.analysis.stats import Floats, percentile

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A share of 1 for each side."""

    baseline: float
    candidate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """What failed on each side, of what ended: (failed, ok + failed)."""

    baseline: tuple[int, int]
    candidate: tuple[int, int]

    @property
    def shares(self) -> Shares:
        """Return the error rates; 0 where nothing ended."""
        p, q = (hits / n if n else 0.0 for hits, n in (self.baseline, self.candidate))
        return Shares(baseline=p, candidate=q)

    def flatter(self, *, better: bool) -> bool:
        """Say whether failures can make the candidate look better (else: look worse)."""
        shares = self.shares
        more, less = shares.candidate, shares.baseline
        return more > less if better else less > more

    def clearly_flatter(self, *, better: bool) -> bool:
        """Say whether they do, and the difference of the error rates leaves out zero."""
        between = of_shares(self.baseline, self.candidate)
        return between is not None and (between.low > 0 if better else between.high < 0)

    def endless(self, *, better: bool) -> Shares:
        """Return the share of each side's requests that counts as +∞.

        All that failed, where the candidate looks better and clearly fails more often; else what
        failed beyond the other side's share: alike failures must hide no regression.
        """
        shares = self.shares
        if better and self.clearly_flatter(better=True):
            return shares
        return Shares(
            baseline=_beyond(shares.baseline, shares.candidate),
            candidate=_beyond(shares.candidate, shares.baseline),
        )

    def named(self, *, better: bool) -> str:
        """Name the share that failed on the side whose failures flatter it."""
        shares = self.shares
        return (
            f"{_per_cent(shares.candidate)} failed"
            if better
            else f"{_per_cent(shares.baseline)} of the baseline's failed"
        )


def percentile_with_failures(values: Floats, quantile: float, *, failed: float) -> float:
    """Return a percentile of all requests, a share ``failed`` of them at +∞.

    That is the percentile q / (1 - failed) of the others; +∞ where it falls among the failures.
    """
    place = quantile / (1 - failed) if failed < 1 else np.inf
    if not len(values) or (failed and place > 1 - _ROUNDING):
        return float(np.inf)
    return percentile(np.sort(values), place)


def _per_cent(share: float) -> str:
    """Write a share in words of a sentence: "48.7 %"."""
    text = f"{share * 100:.1f}".removesuffix(".0")
    return f"{text} %" if float(text) or not share else "under 0.1 %"


def _beyond(share: float, other: float) -> float:
    """Return which share of what the other side's rate leaves over was lost besides."""
    return max(0.0, 1 - (1 - share) / (1 - other)) if other < 1 else 0.0
