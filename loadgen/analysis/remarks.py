"""What a reader must know before using a run's figures, one line each."""

from collections.abc import Callable, Iterator, Sequence

from loadgen.analysis.summary import LevelSummary

IN_FLIGHT_TOLERANCE = 0.05
COALESCED_WORTH_SAYING = 0.1


def remarks(levels: Sequence[LevelSummary]) -> list[str]:
    """Return the warnings of all levels, those that spoil most figures first."""
    return [f"{level.label}: {text}" for rule in _RULES for level in levels for text in rule(level)]


def _internal_errors(level: LevelSummary) -> Iterator[str]:
    if level.internal_errors:
        yield (
            f"{level.internal_errors} negative durations were found and withheld: an error of"
            " the measurement itself"
        )


def _window_too_short(level: LevelSummary) -> Iterator[str]:
    """A level of one wave of requests is over, as a window, before its first answer."""
    typical = level.e2e.p50.value
    if level.window_s is None or typical is None or level.window_s * 1000 >= typical:
        return
    yield (
        f"its measured window ({level.window_s:.3g} s) is shorter than one request"
        f" ({typical / 1000:.3g} s), so its rates mean little; ask for more requests or for a time"
    )


def _in_flight_off(level: LevelSummary) -> Iterator[str]:
    asked, mean = level.concurrency, level.in_flight_mean
    if asked and mean is not None and abs(mean / asked - 1) > IN_FLIGHT_TOLERANCE:
        yield f"{mean:.1f} requests were in flight on average, where {asked} were asked for"


def _dropped(level: LevelSummary) -> Iterator[str]:
    dropped = level.outcomes.get("dropped", 0)
    if dropped:
        yield f"{dropped} of {level.arrivals} arrivals were dropped: no slot was free"


def _unfinished(level: LevelSummary) -> Iterator[str]:
    unfinished = level.outcomes.get("unfinished", 0)
    if unfinished:
        yield (
            f"{unfinished} requests were unfinished when the drain ended; percentiles that fall"
            " among them read '> x'"
        )


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


_RULES: tuple[Callable[[LevelSummary], Iterator[str]], ...] = (
    _internal_errors,
    _window_too_short,
    _in_flight_off,
    _dropped,
    _unfinished,
    _buffered,
    _coalesced,
    _counted_as_chunks,
)
