"""The server's and the GPUs' own figures put beside a level's: the one door to telemetry."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from loadgen.analysis.gpus import EXPORTER, Gpus, gpu_figures, gpus_of
from loadgen.analysis.prompts import unasked_tokens
from loadgen.analysis.rates import output_tokens
from loadgen.analysis.reconcile import Sides, foreign, reconciled
from loadgen.analysis.server_side import Foreign, ServerFigures
from loadgen.analysis.summary import LevelSummary
from loadgen.analysis.table import RunData
from loadgen.analysis.telemetry import Server, server_figures, server_of
from loadgen.analysis.tracks import Span
from loadgen.analysis.window import LevelPlan, Window
from loadgen.units import NS_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What was listened to in a run; None where nothing was heard.

    several: there is no server, as more than one has answered at its address.
    """

    server: Server | None
    gpus: Gpus | None
    several: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """When a level was: its windows W, and each round from its start to the end of its drain.

    starts: of every load of the run, this level's among them.
    """

    windows: tuple[Span, ...]
    whole: tuple[Span, ...]
    starts: tuple[float, ...] = ()


def heard(run: RunData) -> Beside:
    """Sort a run's readings, once for all levels."""
    target = run.manifest.get("target") or {}
    engine = target.get("engine")
    server = server_of(run.samples, engine=engine if isinstance(engine, str) else None)
    several = server is not None and server.several
    return Beside(
        server=None if several else server,
        gpus=gpus_of(run.samples, cached=_gpu_by(run.manifest) == EXPORTER),
        several=several,
    )


def _gpu_by(manifest: Mapping[str, Any]) -> object:
    told = manifest.get("telemetry")
    gpu = told.get("gpu") if isinstance(told, dict) else None
    return gpu.get("by") if isinstance(gpu, dict) else None


def stretch_of(plan: LevelPlan, windows: Sequence[Window], manifest: Mapping[str, Any]) -> Stretch:
    """Return when a level was measured and when it lasted, drains included.

    Where a round's start or end is not known, neither is that of the whole.
    """
    ends = [(entry.get("start_ns"), entry.get("end_ns")) for entry in plan.rounds]
    whole = [
        Span(start_ns=float(start), end_ns=float(end))
        for start, end in ends
        if start is not None and end is not None
    ]
    return Stretch(
        windows=tuple(Span(start_ns=one.start_ns, end_ns=one.end_ns) for one in windows),
        whole=tuple(whole) if len(whole) == len(ends) else (),
        starts=tuple(
            float(entry["start_ns"])
            for kind in ("levels", "quality_passes")
            for entry in manifest.get(kind) or ()
            if entry.get("start_ns") is not None
        ),
    )


def with_server(
    level: LevelSummary, beside: Beside, *, everything: RunData, stretch: Stretch
) -> LevelSummary:
    """Add the server's figures, the GPUs', and what reconciles them with the client's."""
    spans = stretch.windows
    if beside.gpus is not None:
        tokens = output_tokens(everything)
        level = replace(level, gpu=gpu_figures(beside.gpus, windows=spans, output_tokens=tokens))
    if beside.server is None:
        return level
    figures = server_figures(
        beside.server, windows=spans, whole=stretch.whole, starts=stretch.starts
    )
    sides = Sides(
        everything=everything,
        server=beside.server,
        figures=figures,
        windows=spans,
        connect_ms=_connect_ms(level, everything),
        prompt_overhead=unasked_tokens(everything.manifest),
    )
    others = foreign(sides)
    return replace(
        level,
        server=_limited(figures, everything) if figures != ServerFigures() else None,
        reconciled=reconciled(sides),
        cached_input_share_server=figures.prefix_hit_share,
        others=others if others != Foreign() else None,
    )


def _limited(figures: ServerFigures, run: RunData) -> ServerFigures:
    """Add the most sequences that all engines of the server run at once; each has its own limit."""
    most = _condition(run.manifest, "max_sequences")
    engines = _condition(run.manifest, "data_parallel") or 1.0
    return figures if most is None else replace(figures, max_sequences=most * engines)


def _condition(manifest: Mapping[str, Any], key: str) -> float | None:
    """Return a number above 0: as the server told it, else as declared."""
    scenario = manifest.get("scenario")
    declared = scenario.get("conditions") if isinstance(scenario, dict) else None
    for told in (manifest.get("conditions"), declared):
        value = told.get(key) if isinstance(told, dict) else None
        if isinstance(value, int | float) and value > 0:
            return float(value)
    return None


def _connect_ms(level: LevelSummary, run: RunData) -> float | None:
    """Return the time to connect in this level, else in the preflight."""
    if level.connect.p50.value is not None:
        return level.connect.p50.value
    preflight = run.manifest.get("preflight")
    told = preflight.get("connect_ns") if isinstance(preflight, dict) else None
    return float(told) / NS_PER_MS if isinstance(told, int | float) else None
