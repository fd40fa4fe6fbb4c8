"""The run over time as one picture: the client's requests above the server's queue and GPUs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from loadgen.analysis.timelines import GPU_LINES, Band, Moments, Timelines
from loadgen.report.series import Axis, Course, Line, Panel, Shade
from loadgen.report.text import plain

_LABEL_SHARE = 0.012
"""Of the x axis' length: about what one letter of a label needs on a wide page."""
_DECADE = 10.0

_GPU = (
    ("utilization", "GPU, utilisation", "%", 100.0),
    ("power_w", "GPU, power", "W", 1.0),
    ("temperature_c", "GPU, temperature", "°C", 1.0),
    ("sm_clock_hz", "GPU, SM clock", "MHz", 1e-6),
)


def build_course(told: Timelines | None) -> Course | None:
    """Lay out a run over time; None where there is nothing to draw."""
    if told is None:
        return None
    panels = (
        Panel(
            title="client, requests",
            y=Axis(title="in flight", low=0),
            lines=(_line("in flight", told.in_flight, unit=""),),
        ),
        _ttft_panel(told),
        *_server_panels(told),
        *_gpu_panels(told),
    )
    low, high = told.bands[0].start_s, max(band.end_s for band in told.bands)
    margin = 0.01 * (high - low)
    return Course(
        key="course",
        title="The run over time",
        x=Axis(title="seconds since the run began", low=low - margin, high=high + margin),
        panels=tuple(panel for panel in panels if panel.lines),
        shades=tuple(_shades(told.bands)),
        labels=_labels(told.bands, length=high - low),
        caption=_caption(told),
    )


def _ttft_panel(told: Timelines) -> Panel:
    specks = Line(
        name="request",
        x=told.ttft_ms.t_s,
        y=told.ttft_ms.values,
        hover=tuple((f"request {number}",) for number in told.requests),
        colour="quiet",
        draw="specks",
    )
    lines = (specks, _line("median", told.ttft_median_ms, unit="ms", colour="second"))
    known = [value for value in told.ttft_ms.values if value]
    return Panel(
        title="client, TTFT in ms",
        y=_time_axis(known),
        lines=lines if known else (),
    )


def _time_axis(values: Sequence[float]) -> Axis:
    """Choose a logarithmic axis where the values span more than a decade."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low <= 0 or high <= _DECADE * low:
        return Axis(title="TTFT, ms", low=0)
    steps = [factor * 10.0**power for power in range(-2, 7) for factor in (1, 3)]
    ticks = tuple((step, f"{step:,g}") for step in steps if low * 0.8 <= step <= high * 1.2)
    return Axis(title="TTFT, ms", kind="log", ticks=ticks, low=low * 0.8, high=high * 1.25)


def _server_panels(told: Timelines) -> Iterable[Panel]:
    queue = [
        replace(_line(key, told.server[key], unit="", colour=colour), dashed=key == "waiting")
        for key, colour in (("running", "first"), ("waiting", "second"))
        if key in told.server
    ]  # dashes let the other be seen where both are the same
    yield Panel(title="server, requests", y=Axis(title="requests", low=0), lines=tuple(queue))
    if "kv_usage" in told.server:
        use = _scaled(told.server["kv_usage"], 100.0)
        yield Panel(
            title="server, KV cache in %",
            y=Axis(title="%", low=0, high=104),
            lines=(_line("in use", use, unit="%", colour="third"),),
        )


def _gpu_panels(told: Timelines) -> Iterable[Panel]:
    for key, title, unit, scale in _GPU:
        if key in told.gpu:
            how = "mean" if GPU_LINES[key] else "sum"
            name = f"{how} of {told.gpus}" if told.gpus > 1 else "one GPU"
            line = _line(name, _scaled(told.gpu[key], scale), unit=unit, colour="fourth")
            share = key == "utilization"
            yield Panel(
                title=f"{title} in {unit}",
                y=Axis(title=unit, low=0, high=104) if share else Axis(title=unit),
                lines=(line,),
            )


def _line(name: str, moments: Moments, *, unit: str, colour: str = "first") -> Line:
    return Line(
        name=name,
        x=moments.t_s,
        y=moments.values,
        unit=unit,
        colour=colour,
        draw="thread",
    )


def _scaled(moments: Moments, scale: float) -> Moments:
    return Moments(
        t_s=moments.t_s,
        values=tuple(None if value is None else value * scale for value in moments.values),
    )


def _shades(bands: Sequence[Band]) -> Iterable[Shade]:
    for band in bands:
        measure = band.measure_s if band.measure_s is not None else band.end_s
        end = band.measure_end_s if band.measure_end_s is not None else band.end_s
        yield Shade(low=band.start_s, high=measure)
        if band.measure_s is not None:
            yield Shade(low=measure, high=end, strong=True)


def _labels(bands: Sequence[Band], *, length: float) -> tuple[tuple[float, str], ...]:
    """Name the bands; none where it has no room, and words that all share only once."""
    named, free_s = [], float("-inf")
    for band, text in zip(bands, _short([plain(band.label) for band in bands]), strict=True):
        middle = (band.start_s + band.end_s) / 2
        half = len(text) * _LABEL_SHARE * length / 2
        if middle - half > free_s:
            named.append((middle, text))
            free_s = middle + half
    return tuple(named)


def _short(labels: Sequence[str]) -> list[str]:
    """Keep of each label but the first only the words that are its own."""
    words = [label.split() for label in labels]
    least = min(map(len, words), default=0)
    columns = list(zip(*(one[:least] for one in words), strict=True))
    endings = list(zip(*(one[len(one) - least :] for one in words), strict=True))
    before = next((i for i, column in enumerate(columns) if len(set(column)) > 1), 0)
    after = next((i for i, column in enumerate(endings[::-1]) if len(set(column)) > 1), 0)
    own = [" ".join(one[before : len(one) - after]) for one in words]
    return [*labels[:1], *own[1:]]


def _caption(told: Timelines) -> str:
    server = (
        " Below it, at the same instants, what the server said of itself."
        if told.server
        else " The server's own view was not recorded."
    )
    return (
        "Dark bands: measure; light: warm-up; between them: drain and rest."
        f"{server} Drag to zoom all strips at once, double-click to go back."
    )
