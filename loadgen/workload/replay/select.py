"""Which requests of a log are replayed, in which conversations, and when: pure, on flat arrays.

The order of doing: what is not to be sent is left out, the window cuts, conversations are drawn,
long gaps are capped, times are spread within their quantum, and the speed divides all gaps.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadgen.errors import UsageError
from loadgen.scenario.levels import Level
from loadgen.scenario.prompts import Prompts
from loadgen.scenario.window import Window, parse_window
from loadgen.units import NS_PER_S, seconds_to_ns
from loadgen.workload.arrivals import Seed
from loadgen.workload.replay.index import FAILED, NO_TIME, WRONG_ROLES, Log, Numbers
from loadgen.workload.replay.instants import EPOCH_FROM_NS

_DAY_NS = 86_400 * NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The requests that are replayed.

    members: their numbers in the log, conversation by conversation; starts: where in ``members``
    each conversation begins, and one more for the end. Conversations come in order of their first
    request. A request without a conversation is one of its own.
    left_out: how many requests were left out, by reason.
    """

    members: Numbers
    starts: Numbers
    left_out: dict[str, int]

    @property
    def conversations(self) -> int:
        """How many conversations there are, single requests among them."""
        return len(self.starts) - 1

    @property
    def conversational(self) -> bool:
        """Say that one has more than one request."""
        return len(self.members) > self.conversations

    @property
    def firsts(self) -> Numbers:
        """The first request of each conversation."""
        return self.members[self.starts[:-1]]

    def of(self, conversation: int) -> Numbers:
        """Return the requests of one conversation."""
        return self.members[self.starts[conversation] : self.starts[conversation + 1]]


def part_of(total: int, *, share: int, shares: int) -> range:
    """Return the conversations of one of equal parts of a log; each part has one at least."""
    start = share * total // shares
    return range(start, max((share + 1) * total // shares, start + 1))


def by_time(log: Log) -> Numbers:
    """Return the requests in the order of their times; one without goes with those before it."""
    times = log.arrival_ns
    known = np.where(times == NO_TIME, -1, np.arange(len(times)))
    filled = times[np.maximum(np.maximum.accumulate(known), 0)]
    return np.argsort(filled, kind="stable")


def reordered(log: Log) -> int:
    """Count the requests that stand after a later one in the file."""
    times = log.arrival_ns[log.arrival_ns != NO_TIME]
    if len(times) < 2:
        return 0
    return int(np.count_nonzero(times[1:] < np.maximum.accumulate(times)[:-1]))


def keep(log: Log, prompts: Prompts, *, seed: Seed, grouped: bool = True) -> Kept:
    """Choose what is replayed; grouped: requests of one session follow each other."""
    order = by_time(log)
    left_out: dict[str, int] = {}
    for reason, out in _unwanted(log, prompts).items():
        gone = out[order]
        if gone.any():
            left_out[reason] = int(np.count_nonzero(gone))
        order = order[~gone]
    if prompts.window is not None:
        inside = _inside(log, parse_window(prompts.window))[order]
        left_out["outside the window"] = int(np.count_nonzero(~inside))
        order = order[inside]
    units = _units(log.session[order] if grouped else np.zeros(len(order), dtype=np.uint64))
    if prompts.sample is not None and len(order):
        before = len(order)
        order, units = _sampled(order, units, share=prompts.sample, seed=seed)
        left_out["not sampled"] = before - len(order)
    if not len(order):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
        raise UsageError(f"{log.path}: no request is left to replay ({reasons})")
    sizes = np.bincount(units)
    return Kept(
        members=order[np.argsort(units, kind="stable")],
        starts=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        left_out=left_out,
    )


def over_context(log: Log, most: int) -> npt.NDArray[np.bool_]:
    """Say which requests are longer than a context of so many tokens, the answer included."""
    return log.input_tokens + np.maximum(log.output_tokens, 0) > most


def due_offsets(log: Log, kept: Kept, level: Level, *, seed: Seed) -> Numbers:
    """Return when each conversation begins in a level that follows the log, in ns from the first.

    Raises UsageError where a request has no time.
    """
    require_times(log, kept)
    times = np.sort(log.arrival_ns[kept.members])
    gaps = np.diff(times)
    if level.max_gap_s is not None:
        gaps = np.minimum(gaps, seconds_to_ns(level.max_gap_s))
    shortened = np.concatenate([[0], np.cumsum(gaps)])
    firsts = log.arrival_ns[kept.firsts]
    due = shortened[np.searchsorted(times, firsts, side="left")]
    quantum = quantum_ns(np.sort(log.arrival_ns[log.arrival_ns != NO_TIME]))  # a sample hides it
    if level.jitter and quantum is not None:
        drawn = np.random.default_rng(seed).uniform(0, quantum, size=len(due))
        due = due + drawn.astype(np.int64)
    scaled = np.rint(due / (level.speed or 1.0)).astype(np.int64)
    return np.sort(scaled)


def gaps_capped(log: Log, kept: Kept, level: Level) -> int:
    """Count the gaps of the log that a level cuts short."""
    if level.speed is None or level.max_gap_s is None:
        return 0
    gaps = np.diff(np.sort(log.arrival_ns[kept.members]))
    return int(np.count_nonzero(gaps > seconds_to_ns(level.max_gap_s)))


def require_times(log: Log, kept: Kept) -> None:
    """Refuse to follow a log whose requests have not all a time, or whose span is no span."""
    missing = kept.members[log.arrival_ns[kept.members] == NO_TIME]
    if len(missing):
        line = int(log.line[missing].min())
        raise UsageError(
            f"{log.path}: line {line}: has no time ({len(missing):,} of {len(kept.members):,} "
            "requests have none); replay it without times: --closed-loop"
        )


def quantum_ns(times: Numbers) -> int | None:
    """Return the grid that times lie on; None where they are not quantised.

    times: sorted. Quantised is a log most of whose requests share their instant with others; the
    quantum is the commonest gap between different instants.
    """
    distinct = np.unique(times)
    if len(distinct) < 3 or len(distinct) > len(times) / 2:
        return None
    gaps, counts = np.unique(np.diff(distinct), return_counts=True)
    return int(gaps[counts.argmax()])


def think_ns(log: Log, earlier: int, later: int) -> int:
    """Return the pause of a user between two requests: from the end of the first, where known."""
    start, next_start = int(log.arrival_ns[earlier]), int(log.arrival_ns[later])
    if NO_TIME in (start, next_start):
        return 0
    end = int(log.end_ns[earlier])
    return max(next_start - (start if end == NO_TIME else end), 0)


def _unwanted(log: Log, prompts: Prompts) -> dict[str, npt.NDArray[np.bool_]]:
    found: dict[str, npt.NDArray[np.bool_]] = {}
    if prompts.failed == "skip":
        found["failed in the log"] = (log.flags & FAILED) > 0
    if prompts.roles == "skip":
        found["with roles that do not alternate"] = (log.flags & WRONG_ROLES) > 0
    if prompts.max_context is not None and prompts.over_context == "skip":
        found["over the context"] = over_context(log, prompts.max_context)
    return found


def _units(sessions: npt.NDArray[np.uint64]) -> Numbers:
    """Number conversations by their first request; each request without a session is its own."""
    keys = sessions.copy()
    alone = keys == 0
    # sessions are odd hashes (see index): even numbers are free for those without one
    keys[alone] = np.arange(2, 2 * np.count_nonzero(alone) + 2, 2, dtype=np.uint64)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def _sampled(
    order: Numbers, units: Numbers, *, share: float, seed: Seed
) -> tuple[Numbers, Numbers]:
    """Draw whole conversations: exactly the share of them, at least one."""
    total = int(units.max()) + 1
    number = max(1, round(share * total))
    drawn = np.sort(np.random.default_rng(seed).permutation(total)[:number])
    chosen = np.isin(units, drawn)
    return order[chosen], np.searchsorted(drawn, units[chosen])


def _inside(log: Log, window: Window) -> npt.NDArray[np.bool_]:
    times = log.arrival_ns
    known = times[times != NO_TIME]
    if not len(known):
        raise UsageError(f"{log.path}: has no times, of which window could be a part")
    start = int(known.min())
    if window.clock:
        if start < EPOCH_FROM_NS:
            raise UsageError(f"{log.path}: has no dates; write window like 10m..20m")
        day = start // _DAY_NS * _DAY_NS
        first, last = (day + seconds_to_ns(at) for at in (window.from_s, window.to_s))
        if last <= first:  # over midnight
            last += _DAY_NS
        if last <= start:  # the part of the day is over when the log begins: it is the next day's
            first, last = first + _DAY_NS, last + _DAY_NS
    else:
        first, last = start + seconds_to_ns(window.from_s), start + seconds_to_ns(window.to_s)
    inside: npt.NDArray[np.bool_] = (times >= first) & (times < last) & (times != NO_TIME)
    return inside
