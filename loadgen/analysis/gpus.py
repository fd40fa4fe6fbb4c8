"""What the GPUs told of each level: use, memory, power, heat, clocks, and the joules of a token.

Which of a machine's GPUs serve the model is not known here: figures are of all that were seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """The GPUs' readings over the whole run: by name, one track for each GPU."""

    sweeps: Floats
    tracks: Mapping[str, Sequence[Track]]


def gpus_of(samples: pd.DataFrame) -> Gpus | None:
    """Return the GPUs' readings; None where there is none."""
    sweeps = sweeps_of(samples, GPU)
    if not len(sweeps):
        return None
    return Gpus(sweeps=sweeps, tracks=tracks_of(samples, GPU))


def gpu_figures(gpus: Gpus, *, windows: Sequence[Span], output_tokens: float) -> GpuFigures | None:
    """Return the figures of all GPUs over W; None where no reading covers any of it."""
    tracks = gpus.tracks
    most = {name: most_over(together(found), windows) for name, found in tracks.items()}
    if all(value is None for value in most.values()):
        return None
    energy_j = _energy_j(gpus, windows)
    clocks = [values_over(track, windows) for track in tracks.get("sm_clock_hz", ())]
    slowest = [float(values.min()) for values in clocks if len(values)]
    hottest = [most_over(track, windows) for track in tracks.get("temperature_c", ())]
    return GpuFigures(
        gpus=len({label_of(track.labels, "gpu") for found in tracks.values() for track in found}),
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


def _throttle(tracks: Sequence[Track], windows: Sequence[Span]) -> dict[str, float]:
    """Return each reason with its share of the readings in W, of all GPUs together."""
    masks: dict[float, int] = {}
    for track in tracks:
        for span in windows:
            inside = (track.at_ns >= span.start_ns) & (track.at_ns <= span.end_ns)
            for at, value in zip(track.at_ns[inside], track.values[inside], strict=True):
                masks[float(at)] = masks.get(float(at), 0) | int(value)
    seen = {
        word: sum(bool(mask & bit) for mask in masks.values()) for bit, word in THROTTLE.items()
    }
    return {word: n / len(masks) for word, n in seen.items() if n}
