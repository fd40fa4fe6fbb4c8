"""What a reader must know before using a run's figures, and no check tests; one line each."""

from collections.abc import Callable, Iterator, Sequence

from loadgen.analysis.bottleneck import queue_bound, throttled
from loadgen.analysis.summary import LevelSummary

COALESCED_WORTH_SAYING = 0.1


def remarks(levels: Sequence[LevelSummary]) -> list[str]:
    """Return the warnings of all levels, those that spoil most figures first."""
    return [f"{level.label}: {text}" for rule in _RULES for level in levels for text in rule(level)]


def _buffered(level: LevelSummary) -> Iterator[str]:
    bursts = level.flags.get("buffered", 0)
    if bursts:
        yield (
            f"{bursts} answers came in one burst (buffered on the way): their TTFT, TPOT and"
            " decode rate are not the server's"
        )


def _coalesced(level: LevelSummary) -> Iterator[str]:
    share = level.coalesced_share
    if share is not None and share > COALESCED_WORTH_SAYING:
        yield f"{share:.0%} of chunks shared a read with a later one; their stamps are upper bounds"


def _counted_as_chunks(level: LevelSummary) -> Iterator[str]:
    chunks = level.token_sources.get("chunks", 0)
    if chunks:
        yield (
            f"the server reported no token usage for {chunks} requests; their tokens are counted"
            " as chunks"
        )


def _conversations_cut(level: LevelSummary) -> Iterator[str]:
    if level.conversations_cut:
        yield f"{level.conversations_cut} conversations ended early, by a turn that failed"


def _queue_bound(level: LevelSummary) -> Iterator[str]:
    text = queue_bound(level.server)
    if text:
        yield text


def _preempted(level: LevelSummary) -> Iterator[str]:
    preempted = round(level.server.preemptions or 0) if level.server else 0
    if preempted:
        yield (
            f"the server took {preempted:,} requests out of its batch again (preempted), for want"
            " of KV cache, and computed them anew"
        )


def _restarted(level: LevelSummary) -> Iterator[str]:
    restarts = level.server.restarts if level.server else 0
    if restarts:
        times = "once" if restarts == 1 else f"{restarts} times"
        yield f"the server restarted {times}: its counters began anew"


def _throttled(level: LevelSummary) -> Iterator[str]:
    text = throttled(level.gpu)
    if text:
        yield f"the GPU lowered its clock: {text}"


_RULES: tuple[Callable[[LevelSummary], Iterator[str]], ...] = (
    _buffered,
    _coalesced,
    _counted_as_chunks,
    _conversations_cut,
    _restarted,
    _queue_bound,
    _preempted,
    _throttled,
)
