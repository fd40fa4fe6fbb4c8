"""What the simulator and the operating system know: true send times, processor time, memory."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson

from loadgen.analysis.table import RunData
from loadgen.client.clock import now_ns
from loadgen.errors import EnvironmentFault
from loadgen.record import Phase

Instants = np.ndarray[Any, np.dtype[np.int64]]

_PROC = Path("/proc")
_ANSWER_LIMIT_S = 30.0


def forget(url: str) -> None:
    """Let the simulator begin its counts anew."""
    _answer(httpx.post(f"{url}/sim/reset", trust_env=False, timeout=_ANSWER_LIMIT_S))


def true_send_times(url: str) -> dict[str, Instants]:
    """Return when each chunk of each request was sent (CLOCK_MONOTONIC ns), by x-request-id.

    Requests with a write that had to wait in the simulator are left out: there the stamp was
    taken before the bytes could leave.
    """
    found = httpx.get(f"{url}/sim/stats?chunks=1", trust_env=False, timeout=_ANSWER_LIMIT_S)
    return {
        served["request_id"]: np.array(served["sent_ns"], dtype=np.int64)
        for served in _answer(found)["requests"]
        if served["request_id"] and not served["late_writes"]
    }


def stamp_errors_us(
    run: RunData, truth: dict[str, Instants], *, epoch_ns: int
) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return client stamp − send time, in µs, of each measured chunk that ended its read."""
    requests = run.requests
    sent = [
        _sent_of(truth.get(str(name)), int(count))
        for name, count in zip(requests["prompt_hash"], requests["chunks"], strict=True)
    ]
    all_sent = np.concatenate(sent) if sent else np.empty(0, dtype=np.int64)
    measured = np.repeat((requests["phase"] == Phase.MEASURE).to_numpy(), requests["chunks"])
    exact = measured & (all_sent > 0) & ~run.chunks["coalesced"].to_numpy()
    at_ns = run.chunks["at_ns"].to_numpy() + epoch_ns
    return np.asarray((at_ns - all_sent)[exact] / 1e3, dtype=np.float64)


def _sent_of(known: Instants | None, count: int) -> Instants:
    """Return the send times of a request's first ``count`` chunks; zeros where they are unknown."""
    if known is None or len(known) < count:
        return np.zeros(count, dtype=np.int64)
    return known[:count]


def _answer(response: httpx.Response) -> Any:  # noqa: ANN401 - JSON
    if response.status_code != 200:
        raise EnvironmentFault(f"selftest: the simulator answered {response.status_code}")
    return orjson.loads(response.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a process used until now; None where the system does not say.

    waited_s: ready to run, but something else had the core (its main thread).
    """

    at_ns: int
    cpu_s: float | None
    waited_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Of the wall time between two looks: running, and kept waiting for a core."""

    cpu: float | None
    waited: float | None


def usage_of(pid: int) -> Usage:
    """Look at a process."""
    return Usage(at_ns=now_ns(), cpu_s=_cpu_s(pid), waited_s=_waited_s(pid))


def shares_between(before: Usage, after: Usage) -> Shares:
    """Return how a process spent the time between two looks at it."""
    wall_s = (after.at_ns - before.at_ns) / 1e9
    return Shares(
        cpu=_difference(after.cpu_s, before.cpu_s, wall_s),
        waited=_difference(after.waited_s, before.waited_s, wall_s),
    )


def resident_bytes() -> int | None:
    """Return the memory this process holds now."""
    try:
        pages = int((_PROC / "self" / "statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _difference(after: float | None, before: float | None, wall_s: float) -> float | None:
    return None if after is None or before is None or wall_s <= 0 else (after - before) / wall_s


def _cpu_s(pid: int) -> float | None:
    try:
        # The name in brackets may hold blanks; the numbers come after the last bracket.
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def _waited_s(pid: int) -> float | None:
    try:
        return int((_PROC / str(pid) / "schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return None
