"""Was the client itself the bottleneck? Each level's own figures against stated bounds.

What a late client spoils depends on its stamps. With kernel stamps TTFT and gaps stay exact however
late user space reads them; what suffers is the *load*: a slot that learns late that it is free
sends late. With user-space stamps every instant is late by as much as the loop is.

A slow server trips none of these: user lag runs from the arrival of bytes, send lag leaves out
connecting, TLS, throttling and waiting for a slot, and an idle client has idle loop and core. The
first wave of a closed level (all slots are due at once, so the last of 1024 is sent some 30 ms
late) lies in the warm-up unless the scenario takes that away; then it counts, because it was late.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from loadgen.analysis.bounds import FAIL, PASS, WARN, Bounds, Found, held, worst
from loadgen.analysis.soundness import measurement_checks
from loadgen.analysis.summary import Check, Distribution, LevelSummary, Summary

__all__ = ["FAIL", "PASS", "WARN", "checks_of", "stamps_are_kernel", "with_checks", "worst"]

USER_LAG_MS = (10.0, 50.0)
USER_LAG_SHARE = (0.02, 0.10)
"""Of a request's E2E: a slot stands empty for that share of its time, and so much of the asked
concurrency is missing. A wave of 256 answers ending together costs about 12 ms on one core."""

SEND_LAG_MS = (2.0, 5.0)
SEND_LAG_SHARE = (0.02, 0.05)
"""Of TTFT: what a user feels from the due instant is wrong by that share. A sound level stays far
below: p99 0.2 ms closed at 256 streams, 0.3 ms open at 1000/s. A closed level has no due instants
that a user would feel: there a late send only leaves its slot empty, as user lag does."""

CPU_SHARE = (0.70, 0.90)
"""Of one core. Bursts queue above 70 %; at 90 % the rates measured are the client's own."""
CPU_WINDOW_S = 1.0
"""A level shorter than this is mostly its own beginning and end: its CPU share says nothing."""

LOOP_STALL_MS = 150.0
"""The longest the loop stood still. Lag is sampled every 10 ms, so that a stall of 200 ms shows as
190 or more; the burst that begins a level of 1024 streams stays below 100."""

STAMP_LAG_MS = (1.0, 5.0)
STAMP_LAG_SHARE = (0.02, 0.05)
"""Of TTFT, where stamps are user-space: the loop's lag is in each of them."""

COALESCED_SHARE = 0.10
COALESCED_LAG_MS = 1.0
"""Chunks share a read because they were sent together, or because the client came late. Only where
one read in ten is later than this was it the client."""

_SPLIT = "deal the load to several processes or machines, or keep other work off this core"


def with_checks(summary: Summary) -> Summary:
    """Return the summary with every level's checks in place, the client's first."""
    levels = [
        replace(level, checks=[*checks_of(level), *measurement_checks(level)])
        for level in summary.levels
    ]
    return replace(summary, levels=levels)


def checks_of(level: LevelSummary) -> Iterator[Check]:
    """Yield the checks of the client that this level's figures allow."""
    for rule in _RULES:
        yield from rule(level)


def stamps_are_kernel(level: LevelSummary) -> bool:
    """Say whether the kernel stamped the arrivals: then no read is without lag.

    Without any read there is nothing to spoil, and the answer is yes.
    """
    return level.user_lag.n == 0 or (level.user_lag.max or 0) > 0


def _user_lag(level: LevelSummary) -> Iterator[Check]:
    tail = _tail(level.user_lag)
    if tail is None or not stamps_are_kernel(level):
        return
    bounds = _relative(USER_LAG_MS, USER_LAG_SHARE, level.e2e)
    text = f"slots learn late that they are free, so less load is sent than asked; {_SPLIT}"
    yield held(Found(name=f"user lag {tail.name}", value=tail.value, text=text), bounds)


def _send_lag(level: LevelSummary) -> Iterator[Check]:
    tail = _tail(level.send_lag)
    if tail is None:
        return
    if level.rate is None and level.concurrency is not None:
        bounds = _relative(SEND_LAG_MS, USER_LAG_SHARE, level.e2e)
    else:
        bounds = _relative(SEND_LAG_MS, SEND_LAG_SHARE, level.ttft)
    text = f"requests left later than they were due, by the client's own delay; {_SPLIT}"
    yield held(Found(name=f"send lag {tail.name}", value=tail.value, text=text), bounds)


def _cpu(level: LevelSummary) -> Iterator[Check]:
    value = level.client.get("cpu_share")
    if value is None or (level.window_s or 0) < CPU_WINDOW_S:
        return
    bounds = Bounds(warn=CPU_SHARE[0], fail=CPU_SHARE[1])
    text = f"the rates may be the client's, not the server's; {_SPLIT}"
    yield held(Found(name="CPU", value=float(value), text=text, unit=""), bounds)


def _loop_stall(level: LevelSummary) -> Iterator[Check]:
    value = level.client.get("loop_lag_max_ns")
    if value is None:
        return
    text = "the client stood still once for so long; look for other work on this machine"
    yield held(
        Found(name="loop lag max", value=float(value) / 1e6, text=text), Bounds(warn=LOOP_STALL_MS)
    )


def _stamp_lag(level: LevelSummary) -> Iterator[Check]:
    value = level.client.get("loop_lag_p99_ns")
    if value is None or stamps_are_kernel(level):
        return
    bounds = _relative(STAMP_LAG_MS, STAMP_LAG_SHARE, level.ttft)
    text = f"stamps are user-space here and late by so much; use the own transport, or {_SPLIT}"
    yield held(Found(name="loop lag p99", value=float(value) / 1e6, text=text), bounds)


def _coalesced(level: LevelSummary) -> Iterator[Check]:
    value, lag = level.coalesced_share, level.user_lag.p90.value
    if value is None or lag is None:
        return
    bound = COALESCED_SHARE if lag > COALESCED_LAG_MS else 1.0
    text = f"the client read late, so chunks share a stamp that is exact for the last; {_SPLIT}"
    yield held(Found(name="coalesced", value=value, text=text, unit=""), Bounds(warn=bound))


_RULES: tuple[Callable[[LevelSummary], Iterator[Check]], ...] = (
    _user_lag,
    _send_lag,
    _loop_stall,
    _stamp_lag,
    _cpu,
    _coalesced,
)


def _relative(
    least_ms: tuple[float, float], shares: tuple[float, float], of: Distribution
) -> Bounds:
    """Return bounds that are a share of the typical time, but never below ``least_ms``.

    Where the percentiles are withheld, since the queue grew, the mean stands for them.
    """
    typical = (of.mean if of.withheld else of.p50.value) or 0.0
    warn, fail = (max(least_ms[i], shares[i] * typical) for i in (0, 1))
    return Bounds(warn=warn, fail=fail)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    """A percentile, by its name."""

    name: str
    value: float


_TAIL_NEEDS = {"p99": 101, "p95": 21, "p90": 11, "p50": 3}
"""The samples from which the largest of them lies beyond a percentile, interpolation included: one
late send is an event, not the client's pace. P95 and P99 are printed from one sample fewer."""


def _tail(distribution: Distribution) -> _Tail | None:
    """Return the highest percentile that no single sample decides; None under 3 samples."""
    for name, least in _TAIL_NEEDS.items():
        value = getattr(distribution, name).value
        if value is not None and distribution.n >= least:
            return _Tail(name=name, value=value)
    return None
