"""What a reader must know before using a run's figures, and no check tests; one line each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loadgen.analysis.bottleneck import idle, out_of_date, queue_bound, throttled
from loadgen.analysis.stats import wilson
from loadgen.analysis.summary import LevelSummary
from loadgen.analysis.telemetry import SEVERAL

COALESCED_WORTH_SAYING = 0.1
BROKEN_SHARE = 0.01
BROKEN_SURELY = 0.001
"""Of many answers: a share that is surely (95 %) above this is said, though it is small."""


def remarks(levels: Sequence[LevelSummary]) -> list[str]:
    """Return the warnings of all levels, those that spoil most figures first."""
    return [f"{level.label}: {text}" for rule in _RULES for level in levels for text in rule(level)]


def not_heard(
    manifest: Mapping[str, Any], levels: Sequence[LevelSummary], *, several: bool = False
) -> list[str]:
    """Return what the user asked for by name and did not get: the server's page, a GPU.

    several: more than one server has answered at the page's address.
    """
    asked = _mapping(_mapping(manifest, "scenario"), "telemetry")
    told = _mapping(manifest, "telemetry")
    heard = {
        "server": any(level.server for level in levels),
        "gpu": any(level.gpu for level in levels),
    }
    words = {"server": "no metrics of the server", "gpu": "no figures of a GPU"}
    whys = {key: _mapping(told, key).get("why_not") or "nothing could be read" for key in words}
    if several:
        whys["server"] = SEVERAL
    return [
        f"{words[key]}: {whys[key]}"
        for key in words
        if told and asked.get(key, "auto") not in ("auto", "off") and not heard[key]
    ]


def _broken(level: LevelSummary) -> Iterator[str]:
    found = level.quality
    share = found.broken / found.outputs if found.outputs else 0.0
    between = wilson(found.broken, found.outputs) if share else None
    if between is None or (share < BROKEN_SHARE and between.low <= BROKEN_SURELY):
        return
    counts = {
        "garbled": found.garbled, "empty": found.empty, "looping": found.looping,
        "truncated": found.truncated,
    }  # fmt: skip
    kinds = sorted((word for word, n in counts.items() if n), key=lambda word: -counts[word])
    figure = f"{share:.0%}"[:-1] if share >= 0.1 else f"{share * 100:.2g}"
    yield f"{figure} % of the answers are broken ({', '.join(kinds)})"


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


def _queue_passed(level: LevelSummary) -> Iterator[str]:
    found = level.steadiness
    if found.queue_peak is not None:
        usual, worst = (f"{ms / 1000:.2g} s" for ms in found.queue_peak_ttft)
        yield (
            f"a queue came and went: up to {found.queue_peak:,} requests waited for a first token,"
            f" and TTFT from due was {worst} then, {usual} at its least: percentiles mix both"
        )


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


def _out_of_date(level: LevelSummary) -> Iterator[str]:
    text = out_of_date(level.gpu)
    if text:
        yield f"the GPU's figures are left out: {text}"


def _idle(level: LevelSummary) -> Iterator[str]:
    if idle(level.gpu) and level.output_tokens_per_s:
        yield (
            "the GPU stayed idle (0 %) while the server answered: it may run elsewhere, behind a"
            " forwarded port; telemetry.gpu takes the address of its own DCGM exporter"
        )


def _mapping(outer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = outer.get(key)
    return found if isinstance(found, Mapping) else {}


_RULES: tuple[Callable[[LevelSummary], Iterator[str]], ...] = (
    _broken,
    _buffered,
    _coalesced,
    _counted_as_chunks,
    _conversations_cut,
    _restarted,
    _queue_passed,
    _queue_bound,
    _preempted,
    _throttled,
    _out_of_date,
    _idle,
)
