"""A run over time: what the client felt and what the server said, on one axis, for a picture.

Seconds count from the run's epoch. A line holds at most ``MOST`` points: of each stretch of a
longer one the lowest and the highest stay, so that a peak is never lost. None breaks a line where
nothing was read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from loadgen.analysis.beside import Beside, heard
from loadgen.analysis.per_request import ttft_ns
from loadgen.analysis.quality import without_passes
from loadgen.analysis.steady import in_flight_at
from loadgen.analysis.table import RunData
from loadgen.analysis.tracks import Floats, Track, together
from loadgen.analysis.window import levels_of
from loadgen.units import NS_PER_MS, NS_PER_S

MOST = 600
SLOWEST = 30
"""Of the dots, those that are always drawn."""
ROLLING = 21
"""Requests under one value of the running median."""
BREAK = 4.0
"""Times the usual distance of two readings, beyond which a line is broken."""

GPU_LINES = {"utilization": True, "power_w": False, "temperature_c": True, "sm_clock_hz": True}
"""What is drawn of the GPUs; True: the mean of several, False: their sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Values at seconds from the run's epoch; None: nothing was read there."""

    t_s: tuple[float, ...] = ()
    values: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """One level in one round: its warm-up, its measure, and where its drain ended."""

    label: str
    start_s: float
    measure_s: float | None
    measure_end_s: float | None
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines:
    """server, gpu: by signal; requests: a dot's request id."""

    bands: tuple[Band, ...]
    in_flight: Moments
    ttft_ms: Moments
    ttft_median_ms: Moments
    requests: tuple[int, ...] = ()
    server: Mapping[str, Moments] = field(default_factory=dict)
    gpu: Mapping[str, Moments] = field(default_factory=dict)
    gpus: int = 0


def timelines(run: RunData) -> Timelines | None:
    """Return the course of a run; None where it has no level or sent nothing."""
    bands = _bands(run)
    requests = run.requests[run.requests["sent_ns"].notna()]
    if not bands or requests.empty:
        return None
    first_s, last_s = bands[0].start_s, max(band.end_s for band in bands)
    moments_ns = np.linspace(first_s, last_s, MOST) * NS_PER_S
    timed = _with_ttft(without_passes(run)[0].requests)
    dots = _some(timed)
    told = heard(run)
    return Timelines(
        bands=bands,
        in_flight=_moments(moments_ns, in_flight_at(run.requests, moments_ns)),
        ttft_ms=_moments(dots["sent_ns"], dots["ttft_ms"]),
        ttft_median_ms=_medians(timed, most=max(MOST // len(bands), 2)),
        requests=tuple(dots["id"].astype(int)),
        server={key: _line(track) for key, track in _gauges(told).items()},
        gpu=_gpu_lines(told),
        gpus=_gpus(told),
    )


def _bands(run: RunData) -> tuple[Band, ...]:
    """Return the levels in the order in which they ran; one that has no start is left out."""
    found = []
    for plan in levels_of(run):
        for entry in plan.rounds:
            start, end = entry.get("start_ns"), entry.get("end_ns")
            if start is None:
                continue
            mine = run.requests["level"] == plan.level
            last = end if end is not None else run.requests["end_ns"][mine].max()
            found.append(
                Band(
                    label=plan.label,
                    start_s=float(start) / NS_PER_S,
                    measure_s=_seconds(entry.get("measure_start_ns")),
                    measure_end_s=_seconds(entry.get("measure_end_ns")),
                    end_s=float(np.nan_to_num(last, nan=float(start))) / NS_PER_S,
                )
            )
    return tuple(sorted(found, key=lambda band: band.start_s))


def _seconds(at_ns: float | None) -> float | None:
    return None if at_ns is None else float(at_ns) / NS_PER_S


def _with_ttft(requests: pd.DataFrame) -> pd.DataFrame:
    ttft = ttft_ns(requests)
    known = requests.assign(ttft_ms=ttft / NS_PER_MS)[ttft >= 0]
    return known.sort_values("sent_ns", kind="stable").reset_index(drop=True)


def _some(timed: pd.DataFrame) -> pd.DataFrame:
    """Choose the requests that are drawn as dots: evenly, the slowest among them."""
    if len(timed) <= MOST:
        return timed
    even = np.linspace(0, len(timed) - 1, MOST - SLOWEST).astype(int)
    slowest = np.argsort(timed["ttft_ms"].to_numpy())[-SLOWEST:]
    return timed.iloc[np.union1d(even, slowest)]


def _medians(timed: pd.DataFrame, *, most: int) -> Moments:
    """Return the running median of each level by itself, in order of sent."""
    t_s: list[float] = []
    values: list[float | None] = []
    for _, mine in timed.groupby(["round", "level"], sort=False):
        rolled = mine["ttft_ms"].rolling(ROLLING, center=True, min_periods=1).median()
        kept = np.unique(np.linspace(0, len(mine) - 1, min(most, len(mine))).astype(int))
        at_s = mine["sent_ns"].to_numpy()[kept] / NS_PER_S
        t_s += [*at_s.tolist(), float(at_s[-1])]
        values += [*rolled.to_numpy()[kept].tolist(), None]
    return Moments(t_s=tuple(t_s), values=tuple(values))


def _gauges(told: Beside) -> dict[str, Track]:
    if told.server is None:
        return {}
    gauges = told.server.gauges
    return {key: gauges[key] for key in ("running", "waiting", "kv_usage") if key in gauges}


def _gpu_lines(told: Beside) -> dict[str, Moments]:
    tracks = told.gpus.tracks if told.gpus else {}
    return {
        name: _line(together(tracks[name], mean=mean))
        for name, mean in GPU_LINES.items()
        if name in tracks
    }


def _gpus(told: Beside) -> int:
    tracks = told.gpus.tracks if told.gpus else {}
    return max((len(found) for found in tracks.values()), default=0)


def _line(track: Track) -> Moments:
    """Thin a gauge and break it where readings failed."""
    at_ns, values = _broken(track.at_ns, track.values)
    kept = thinned(values)
    return _moments(at_ns[kept], values[kept])


def _broken(at_ns: Floats, values: Floats) -> tuple[Floats, Floats]:
    steps = np.diff(at_ns)
    if not len(steps):
        return at_ns, values
    wide = np.flatnonzero(steps > BREAK * np.median(steps)) + 1
    middles = (at_ns[wide - 1] + at_ns[wide]) / 2
    return np.insert(at_ns, wide, middles), np.insert(values, wide, np.nan)


def thinned(values: Floats, *, most: int = MOST) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the positions that are kept: of each stretch its lowest, its highest, its breaks."""
    if len(values) <= most:
        return np.arange(len(values))
    kept: list[int] = []
    for part in np.array_split(np.arange(len(values)), most // 2):
        known = part[~np.isnan(values[part])]
        if len(known):
            kept += [int(known[values[known].argmin()]), int(known[values[known].argmax()])]
        kept += part[np.isnan(values[part])][:1].tolist()
    return np.unique(kept)


def _moments(at_ns: Sequence[float] | Floats | pd.Series, values: Floats | pd.Series) -> Moments:
    told = np.asarray(values, dtype=np.float64)
    return Moments(
        t_s=tuple(np.round(np.asarray(at_ns, dtype=np.float64) / NS_PER_S, 3).tolist()),
        values=tuple(None if np.isnan(value) else float(f"{value:.6g}") for value in told),
    )
