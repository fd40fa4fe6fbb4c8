"""What the GPUs told of each level: use, memory, power, heat, clocks, and the joules of a token.

Which of a machine's GPUs serve the model is not known here: figures are of all that were seen.
An exporter renews its page now and then (each 30 s unless told) and says the same in between: what
repeats the reading before it was measured then, not now, and is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from loadgen.analysis.readings import GPU, label_of
from loadgen.analysis.server_side import GpuFigures
from loadgen.analysis.tracks import (
    Floats,
    Span,
    Track,
    covered,
    mean_over,
    most_over,
    readings_in,
    risen,
    rising,
    sweeps_of,
    together,
    tracks_of,
    values_over,
)
from loadgen.units import NS_PER_S

COVERED = 0.95
"""The least share of W between readings for an energy: half of it would look like a good one."""

EXPORTER = "dcgm"
"""Whose page says for a while what was measured once; NVML measures when it is asked."""

LEAST_REFRESHES = 5
"""In W, of a source that is renewed more rarely than it is read: of fewer, any figure is chance."""

SELDOM = 2.0
"""Times the distance of two readings from which a source is renewed more rarely than it is read."""

THROTTLE = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (driver)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
"""NVML's reasons for a lowered clock that are the device's own; idle and set clocks are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs' readings over the whole run: by name, one track for each GPU.

    refreshed_ns: how far apart they were renewed, where that is farther than they were read; then
        the readings are those that said something new.
    """

    sweeps: Floats
    tracks: Mapping[str, Sequence[Track]]
    refreshed_ns: float | None = None


def gpus_of(samples: pd.DataFrame, *, cached: bool = False) -> Gpus | None:
    """Return the GPUs' readings; None where there is none. cached: by an exporter."""
    sweeps = sweeps_of(samples, GPU)
    if not len(sweeps):
        return None
    gpus = Gpus(sweeps=sweeps, tracks=tracks_of(samples, GPU))
    return _renewed(gpus) if cached and len(sweeps) > 1 else gpus


def _renewed(gpus: Gpus) -> Gpus:
    """Return the readings that said something new; all where most did."""
    every = [track for found in gpus.tracks.values() for track in found]
    new = np.unique(np.concatenate([one.at_ns[1:][np.diff(one.values) != 0] for one in every]))
    # fewer than two: the longest stretch without one is the least that their distance can be
    ends = (gpus.sweeps[:1], new, gpus.sweeps[-1:])
    apart = np.median(np.diff(new)) if len(new) > 1 else np.diff(np.concatenate(ends)).max()
    if apart < SELDOM * np.median(np.diff(gpus.sweeps)):
        return gpus
    kept = {name: [_only(track, new) for track in found] for name, found in gpus.tracks.items()}
    tracks = {name: [one for one in found if len(one.at_ns)] for name, found in kept.items()}
    tracks = {name: found for name, found in tracks.items() if found}
    return Gpus(sweeps=new, tracks=tracks, refreshed_ns=float(apart))


def _only(track: Track, at_ns: Floats) -> Track:
    kept = np.isin(track.at_ns, at_ns)
    return Track(labels=track.labels, at_ns=track.at_ns[kept], values=track.values[kept])


def gpu_figures(gpus: Gpus, *, windows: Sequence[Span], output_tokens: float) -> GpuFigures | None:
    """Return the figures of all GPUs over W; None where no reading covers any of it."""
    if gpus.refreshed_ns is not None and readings_in(gpus.sweeps, windows) < LEAST_REFRESHES:
        return _out_of_date(gpus, windows)
    tracks = gpus.tracks
    most = {name: most_over(together(found), windows) for name, found in tracks.items()}
    if all(value is None for value in most.values()):
        return None
    energy_j = _energy_j(gpus, windows)
    clocks = [values_over(track, windows) for track in tracks.get("sm_clock_hz", ())]
    slowest = [float(values.min()) for values in clocks if len(values)]
    hottest = [most_over(track, windows) for track in tracks.get("temperature_c", ())]
    return GpuFigures(
        gpus=_count(gpus),
        samples=readings_in(gpus.sweeps, windows),
        utilization_mean=_mean(tracks.get("utilization"), windows, mean=True),
        memory_used_max_bytes=most.get("memory_used_bytes"),
        memory_total_bytes=most.get("memory_total_bytes"),
        power_mean_w=_mean(tracks.get("power_w"), windows),
        temperature_max_c=max((value for value in hottest if value is not None), default=None),
        sm_clock_mean_hz=_mean(tracks.get("sm_clock_hz"), windows, mean=True),
        sm_clock_min_hz=min(slowest, default=None),
        throttle=_throttle(tracks.get("throttle", ()), windows),
        energy_j=energy_j,
        energy_per_token_j=energy_j / output_tokens if energy_j and output_tokens else None,
    )


def _out_of_date(gpus: Gpus, windows: Sequence[Span]) -> GpuFigures:
    assert gpus.refreshed_ns is not None
    return GpuFigures(
        gpus=_count(gpus),
        samples=readings_in(gpus.sweeps, windows),
        refreshed_s=gpus.refreshed_ns / NS_PER_S,
    )


def _count(gpus: Gpus) -> int:
    tracks = [track for found in gpus.tracks.values() for track in found]
    return len({label_of(track.labels, "gpu") for track in tracks})


def _mean(
    tracks: Sequence[Track] | None, windows: Sequence[Span], *, mean: bool = False
) -> float | None:
    return mean_over(together(tracks, mean=mean), windows) if tracks else None


def _energy_j(gpus: Gpus, windows: Sequence[Span]) -> float | None:
    """Return the joules over W: by the device's counter, else power over time."""
    counters = [rising(track) for track in gpus.tracks.get("energy_j", ())]
    if counters and all(covered(track, windows) >= COVERED for track in counters):
        return risen(counters, windows)
    power = gpus.tracks.get("power_w")
    if not power or any(covered(track, windows) < COVERED for track in power):
        return None
    watts = mean_over(together(power), windows)
    length_s = sum(span.end_ns - span.start_ns for span in windows) / NS_PER_S
    return None if watts is None else watts * length_s


def _throttle(tracks: Sequence[Track], windows: Sequence[Span]) -> dict[str, float] | None:
    """Return each reason with its share of the readings in W, of all GPUs; None: not told."""
    masks: dict[float, int] = {}
    for track in tracks:
        for span in windows:
            inside = (track.at_ns >= span.start_ns) & (track.at_ns <= span.end_ns)
            for at, value in zip(track.at_ns[inside], track.values[inside], strict=True):
                masks[float(at)] = masks.get(float(at), 0) | int(value)
    if not masks:
        return None
    seen = {
        word: sum(bool(mask & bit) for mask in masks.values()) for bit, word in THROTTLE.items()
    }
    return {word: n / len(masks) for word, n in seen.items() if n}
