"""What the server's metrics page told of each level.

The readings of a run are sorted once into signals (our words for what engines say, ``engines``);
a level's figures are means, differences and histograms of these over its windows.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.histograms import Histogram, histogram_of, time_over
from loadgen.analysis.readings import FAILED, SERVER, label_of
from loadgen.analysis.server_side import ServerFigures, ServerTime, Telemetry
from loadgen.analysis.tracks import (
    Floats,
    Span,
    Track,
    aligned,
    mean_over,
    most_over,
    readings_in,
    restarts,
    risen,
    rising,
    sweeps_of,
    take_turns,
    together,
    tracks_of,
)
from loadgen.engines import ENGINES, STARTED, UNKNOWN, Signal
from loadgen.units import NS_PER_MS

SHARES = frozenset({"kv_usage", "spec_rate"})
"""Gauges of which several series (engines) are averaged, not added up."""

LEAST_READINGS = 3
"""Of the page in W: the mean of fewer is no mean, as a queue is now full, now empty."""

SEVERAL = (
    "several servers answer at its address in turn (their counters fall and rise again), of which"
    " none tells of all; telemetry.server takes the page of one of them"
)

NOT_DONE = frozenset({"abort", "error"})
"""Values of the label ``finished_reason`` of requests that the server did not finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The server's signals over the whole run: gauges as read, counters rising from 0.

    raw: the counters as read, for their restarts. per_step: the histograms that were observed once
    per step of the engine. several: more than one server has answered, so that no figure holds.
    """

    sweeps: Floats
    gauges: Mapping[str, Track]
    counters: Mapping[str, Sequence[Track]]
    histograms: Mapping[str, Histogram]
    raw: Sequence[Track]
    per_step: frozenset[str] = frozenset()
    several: bool = False


def server_of(samples: pd.DataFrame, *, engine: str | None) -> Server | None:
    """Sort the server's readings into signals; None where there is none of a known name."""
    tracks = tracks_of(samples, SERVER)
    sweeps = sweeps_of(samples, SERVER)
    signals = _signals_of(tracks, engine)
    gauges: dict[str, Track] = {}
    counters: dict[str, list[Track]] = {}
    histograms: dict[str, Histogram] = {}
    raw: list[Track] = []
    for key, signal in signals.items():
        if signal.kind == "histogram":
            parts = {end: _named(tracks, signal, end) for end in ("_bucket", "_sum", "_count")}
            if parts["_count"]:
                raw += parts["_count"]
                up = {end: _rising(found, sweeps) for end, found in parts.items()}
                histograms[key] = histogram_of(up["_bucket"], sums=up["_sum"], counts=up["_count"])
            continue
        found = _scaled(_named(tracks, signal), signal.scale)
        if found and signal.kind == "gauge":
            gauges[key] = together(found, mean=key in SHARES)
        elif found:
            raw += found
            counters[key] = _rising(_done(found) if key == "requests_done" else found, sweeps)
    if not (gauges or counters or histograms):
        return None
    return Server(
        sweeps=sweeps,
        gauges=gauges,
        counters=counters,
        histograms=histograms,
        raw=raw,
        per_step=frozenset(key for key in histograms if signals[key].per_step),
        several=take_turns(raw) or _starts_earlier(tracks.get(STARTED, ())),
    )


def server_figures(
    server: Server, *, windows: Sequence[Span], whole: Sequence[Span], starts: Sequence[float] = ()
) -> ServerFigures:
    """Return the figures over W (``windows``), and the counts of the whole level (``whole``).

    starts: when the run's loads began, of all levels and passes.
    """
    samples = readings_in(server.sweeps, windows)
    gauges = server.gauges if samples >= LEAST_READINGS else {}
    means = {key: mean_over(track, windows) for key, track in gauges.items()}
    most = {key: most_over(track, windows) for key, track in server.gauges.items()}
    marked = marks(server.sweeps, whole, starts)
    spans = aligned(windows, server.sweeps)
    times: dict[str, ServerTime | None] = {
        key: time_over(histogram, spans) for key, histogram in server.histograms.items()
    }
    counted = {
        key: risen(server.counters.get(key, ()), marked) if marked else None
        for key in ("prompt_tokens", "generation_tokens", "requests_done")
    }
    return ServerFigures(
        samples=samples,
        running_mean=means.get("running"),
        running_max=most.get("running"),
        waiting_mean=means.get("waiting"),
        waiting_max=most.get("waiting"),
        queued_mean=_queued(times.get("queue_time"), spans),
        kv_usage_mean=means.get("kv_usage"),
        kv_usage_max=most.get("kv_usage"),
        preemptions=risen(server.counters.get("preemptions", ()), windows),
        prefix_hit_share=_share(server, "prefix_hits", "prefix_queries", windows),
        spec_acceptance=means.get("spec_rate")
        if most.get("spec_length")
        else _share(server, "spec_accepted", "spec_drafted", windows),
        ttft_ms=times.get("ttft"),
        itl_ms=times.get("itl"),
        tpot_ms=times.get("tpot"),
        queue_ms=times.get("queue_time"),
        prefill_ms=times.get("prefill_time"),
        restarts=sum(restarts(server.raw, span) for span in marked or whole),
        **counted,
    )


def _queued(queue: ServerTime | None, spans: Sequence[Span]) -> float | None:
    """Return how many requests waited on average: done per second × mean time in the queue."""
    length_ms = sum(span.end_ns - span.start_ns for span in spans) / NS_PER_MS
    return queue.n * queue.mean / length_ms if queue is not None and length_ms else None


def marks(sweeps: Floats, whole: Sequence[Span], starts: Sequence[float]) -> list[Span]:
    """Widen a level's spans to the readings around it; empty where one of them is not there.

    The last reading at or before its start, and after its end (its drain included) the last before
    the next load: a reading asked for before the end may bear an instant after it.
    """
    found = []
    for span in whole:
        before = int(np.searchsorted(sweeps, span.start_ns, "right")) - 1
        after = int(np.searchsorted(sweeps, span.end_ns, "left"))
        if before < 0 or after >= len(sweeps):
            return []
        if starts:
            following = min((at_ns for at_ns in starts if at_ns >= span.end_ns), default=math.inf)
            after = max(after, int(np.searchsorted(sweeps, following, "right")) - 1)
        found.append(Span(start_ns=float(sweeps[before]), end_ns=float(sweeps[after])))
    return found


def telemetry_of(
    manifest: Mapping[str, Any], samples: pd.DataFrame, *, several: bool = False
) -> Telemetry | None:
    """Say whether the server was listened to; None for a run that never tried."""
    told = manifest.get("telemetry")
    if not isinstance(told, Mapping):
        return None
    server, gpu = _mapping(told, "server"), _mapping(told, "gpu")
    failed = int(((samples["source"] == SERVER) & (samples["name"] == FAILED)).sum())
    return Telemetry(
        kind=_text(server.get("kind")),
        why_not=SEVERAL if several else _text(server.get("why_not")),
        sweeps=len(sweeps_of(samples, SERVER)),
        failed=failed,
        gpu_by=_text(gpu.get("by")),
        gpu_why_not=_text(gpu.get("why_not")),
    )


def _signals_of(names: Iterable[str], engine: str | None) -> Mapping[str, Signal]:
    """Return the signals of the engine whose names stand on the page; the run's own goes first."""
    known = {name.removesuffix("_count") for name in names} | set(names)
    for one in (ENGINES.get(engine or "", UNKNOWN), *ENGINES.values()):
        signals: Mapping[str, Signal] = one.signals
        if any(known & {*signal.names} for signal in signals.values()):
            return signals
    return {}


def _named(tracks: Mapping[str, list[Track]], signal: Signal, ending: str = "") -> list[Track]:
    """Return the series of the first name that the page has, and of those added to it."""
    first = next((name for name in signal.names if name + ending in tracks), None)
    if first is None:
        return []
    names = [first, *(name for name in signal.plus if name in tracks)]
    return [track for name in names for track in tracks[name + ending]]


def _scaled(tracks: Sequence[Track], scale: float) -> list[Track]:
    return [
        Track(labels=track.labels, at_ns=track.at_ns, values=track.values * scale)
        for track in tracks
    ]


def _done(tracks: Sequence[Track]) -> list[Track]:
    return [track for track in tracks if label_of(track.labels, "finished_reason") not in NOT_DONE]


def _starts_earlier(started: Sequence[Track]) -> bool:
    """Say whether a process was followed by one that had been started before it."""
    return any(bool((np.diff(track.values) < -1).any()) for track in started)


def _rising(tracks: Sequence[Track], sweeps: Floats) -> list[Track]:
    return [rising(track, sweeps=sweeps) for track in tracks]


def _share(server: Server, part: str, whole: str, windows: Sequence[Span]) -> float | None:
    """Return how much of one counter's rise another's is; None where that one did not rise."""
    top = risen(server.counters.get(part, ()), windows)
    bottom = risen(server.counters.get(whole, ()), windows)
    return top / bottom if top is not None and bottom else None


def _mapping(outer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = outer.get(key)
    return found if isinstance(found, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
