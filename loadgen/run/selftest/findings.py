"""What a self-test found, and its plain verdict. Pure.

A rung is sound where the load asked for was reached, the stamps agree with the simulator's own
send times, and no check of the client failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from loadgen.analysis.checks import FAIL, worst
from loadgen.analysis.summary import Check

REACHED = 0.95
"""Of the chunks asked for. A sound rung reaches 97 % or more: a request waits for the step that is
under way, and its slot for the read that ends it."""

STAMP_BOUND_US = 250.0
"""A quarter of 1 ms, the shortest gap worth reporting. Of it 2 to 20 µs are the simulator's own
way from its stamp to the kernel; more where it is interrupted on that way."""

FULL_CORE = 0.85
WAITED = 0.15
"""Shares of the wall time: running, and ready to run while something else had the core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One load of the ladder, as the client measured it and as the simulator knows it.

    error: client stamp − the simulator's send time, of chunks that were the last of their read.
    cpu_share, waited_share: of one core; ready to run but not running (None: the system does not
        say). bytes_per_stream: what a further stream takes, counted from the lowest rung, its
        prepared requests and undecoded chunks included; None where it says little.
    """

    streams: int
    asked_chunks_per_s: float
    chunks_per_s: float
    stamps: int  # that the errors come from
    error_p50_us: float | None
    error_p99_us: float | None
    error_max_us: float | None
    user_lag_p99_ms: float | None
    send_lag_p99_ms: float | None
    coalesced_share: float | None
    cpu_us_per_chunk: float | None
    cpu_share: float | None
    waited_share: float | None
    simulator_cpu_share: float | None
    simulator_waited_share: float | None
    bytes_per_stream: int | None
    checks: list[Check] = field(default_factory=list)

    @property
    def reached(self) -> bool:
        """Whether the load asked for was there."""
        return self.chunks_per_s >= REACHED * self.asked_chunks_per_s

    @property
    def exact(self) -> bool:
        """Whether the stamps agree with the truth."""
        return self.error_p99_us is not None and self.error_p99_us <= STAMP_BOUND_US

    @property
    def sound(self) -> bool:
        """Whether this load can be measured here."""
        return self.reached and self.exact and worst(self.checks) != FAIL


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The whole ladder. limit: client, simulator, other work, unclear; None: not reached."""

    verdict: str
    limit: str | None
    sound_chunks_per_s: float | None  # of the highest rung up to which all were sound
    machine: dict[str, Any]
    rungs: list[Rung]


def findings(rungs: Sequence[Rung], *, machine: dict[str, Any]) -> Findings:
    """Judge the rungs, the lowest first."""
    sound = _sound_from_below(rungs)
    broken = rungs[len(sound)] if len(sound) < len(rungs) else None
    return Findings(
        verdict=_verdict(sound, broken),
        limit=None if broken is None else limit_of(broken),
        sound_chunks_per_s=sound[-1].chunks_per_s if sound else None,
        machine=machine,
        rungs=list(rungs),
    )


def limit_of(rung: Rung) -> str:
    """Say what kept a rung from being sound: who waited for a core, or who filled one."""
    if max(rung.waited_share or 0, rung.simulator_waited_share or 0) > WAITED:
        return "other work"
    client, simulator = rung.cpu_share or 0, rung.simulator_cpu_share or 0
    if max(client, simulator) < FULL_CORE:
        return "unclear"
    return "client" if client >= simulator else "simulator"


def _sound_from_below(rungs: Sequence[Rung]) -> list[Rung]:
    found: list[Rung] = []
    for rung in rungs:
        if not rung.sound:
            break
        found.append(rung)
    return found


def _verdict(sound: Sequence[Rung], broken: Rung | None) -> str:
    if not sound:
        assert broken is not None
        load = f"{broken.asked_chunks_per_s:,.0f} chunks/s ({broken.streams} streams)"
        return f"not even {load} can be measured soundly here: {_why(broken)}"
    top = sound[-1]
    error = max(rung.error_p99_us or 0 for rung in sound)
    reach = (
        f"up to {top.chunks_per_s:,.0f} chunks/s ({top.streams} streams):"
        f" stamps within {error:.0f} µs (p99)"
    )
    if broken is None:
        return f"{reach}; no higher load was tried"
    return f"{reach}; beyond that, {_why(broken)}"


def _why(rung: Rung) -> str:
    match limit_of(rung):
        case "client":
            busy = f"{rung.cpu_share or 0:.0%}"
            return f"this client's core is full ({busy}): use several processes"
        case "simulator":
            busy = f"{rung.simulator_cpu_share or 0:.0%}"
            return (
                f"the simulator was the limit (its core {busy} busy, the client's"
                f" {rung.cpu_share or 0:.0%}); the client may reach further"
            )
        case "other work":
            return (
                "other work on this machine held the core while the client was ready"
                f" {rung.waited_share or 0:.0%} of the time, and the simulator"
                f" {rung.simulator_waited_share or 0:.0%}; stop it, or pin the client elsewhere"
            )
    return f"{_symptoms(rung)}, and neither side had filled its core; try again when it is quiet"


def _symptoms(rung: Rung) -> str:
    said = []
    if not rung.reached:
        said.append(f"only {rung.chunks_per_s / rung.asked_chunks_per_s:.0%} of the load came")
    if not rung.exact:
        said.append(f"stamps are off by {rung.error_p99_us or 0:.0f} µs (p99)")
    said += [
        f"{check.name} is {check.value:.3g} {check.unit}".rstrip()
        for check in rung.checks
        if check.verdict == FAIL
    ]
    return " and ".join(said)
