"""How the simulator fails on request, and which requests it fails.

Each block of 100 requests holds ``100 · share`` failures of a kind, in seeded random order; what
does not divide is carried to the next block. So 30 % of 200 requests is 60, not about 60.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from loadgen.units import parse_share

BLOCK = 100

FAULTS = {
    "status_429": "429 with Retry-After: 1",
    "status_500": "500 with the dialect's error body",
    "status_503": "503 with the dialect's error body",
    "stream_error": "an error object inside the 200 stream, after a few tokens",
    "cut": "the connection closed in mid-stream",
    "reset": "the connection reset (RST) in mid-stream",
    "stall": "silence in mid-stream, the connection left open",
    "empty": "a 200 stream without a token and without a finish reason",
    "html": "200 with an HTML page in place of an answer",
    "slow_connect": "a new connection left unserved for a while",
    "no_done": "the stream ends without [DONE]",
    "keepalive": "comment lines before the first token",
    "garbage": "one event that is not JSON among good ones",
    "burst": "the whole stream in one write at its end",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of failure and the share of requests (for slow_connect: connections) it hits."""

    kind: str
    share: float


def parse_fault(text: str) -> Fault:
    """Read "stream_error:0.3" or "cut:5%". ValueError says what to write instead."""
    kind, colon, share = text.partition(":")
    if kind not in FAULTS:
        close = get_close_matches(kind, FAULTS, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"one of {', '.join(FAULTS)}"
        raise ValueError(f"'{kind}' is no fault; {hint}")
    if not colon:
        raise ValueError(f"'{text}' names no share; write it like {kind}:10%")
    return Fault(kind=kind, share=parse_share(share))


class Dealer:
    """Deals names out by their shares, one per call; None for the rest."""

    def __init__(self, shares: Sequence[tuple[str, float]], *, seed: int) -> None:
        if sum(share for _, share in shares) > 1 + 1e-9:
            raise ValueError("the shares of all faults together exceed 100 %")
        self._shares = shares
        self._owed = dict.fromkeys((name for name, _ in shares), 0.0)
        self._rng = np.random.default_rng(seed)
        self._block: list[str | None] = []

    def deal(self) -> str | None:
        """Return the name that the next request gets."""
        if not self._shares:
            return None
        if not self._block:
            self._block = self._next_block()
        return self._block.pop()

    def _next_block(self) -> list[str | None]:
        names: list[str | None] = []
        for name, share in self._shares:
            self._owed[name] += share * BLOCK
            whole = min(int(self._owed[name] + 1e-9), BLOCK - len(names))
            self._owed[name] -= whole
            names += [name] * whole
        names += [None] * (BLOCK - len(names))
        return [names[place] for place in self._rng.permutation(BLOCK)]
