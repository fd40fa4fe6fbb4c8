"""Which pictures a report draws of its levels, and from which figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, floor, log10

import numpy as np

from loadgen.analysis.summary import Distribution, LevelSummary, Quantile
from loadgen.record import Outcome
from loadgen.report.grid import itl_word
from loadgen.report.series import Axis, Chart, Line, Place, Samples, level_names, place_levels
from loadgen.report.text import count, interval, number, percent, plain, quantile

_MOST_STEPS = 300  # points of one CDF: finer than a screen shows

Figure = Callable[[LevelSummary], float | None]


def build_charts(levels: Sequence[LevelSummary], ttft: Mapping[int, Samples]) -> tuple[Chart, ...]:
    """Draw what the levels hold; a chart without a single number is left out.

    Of one level no curve over the levels: each would be a dot. ttft: samples of the TTFT by level
    number, for its CDF.
    """
    if not levels:
        return ()
    place = place_levels(levels)
    drawn = [_cdf_chart(place.levels, ttft)]
    if len(levels) > 1:
        drawn = [
            _output_chart(place),
            _request_chart(place),
            _quantile_chart(place, "ttft", "Time to first token (TTFT)"),
            _quantile_chart(place, "itl", f"Gap between token chunks ({itl_word(levels)})"),
            _quantile_chart(place, "e2e", "Whole request (E2E)"),
            *drawn,
            _trade_chart(place.levels),
            _in_flight_chart(place),
        ]
    drawn.append(_outcome_chart(levels))
    return tuple(c for c in drawn if any(y is not None for line in c.lines for y in line.y))


def _hover(level: LevelSummary, *lines: str) -> tuple[str, ...]:
    invalid = (f"invalid: {plain(level.invalid)}",) if level.invalid else ()
    return (plain(level.label), *lines, *invalid)


def _marks(levels: Sequence[LevelSummary]) -> tuple[str, ...]:
    return tuple("invalid" if level.invalid else "" for level in levels)


def _figure_line(place: Place, pick: Figure, *, name: str, unit: str, colour: str) -> Line:
    values = [pick(level) for level in place.levels]
    return Line(
        name=name,
        x=place.x,
        y=tuple(values),
        hover=tuple(
            _hover(level, f"{name}: {number(value)} {unit}")
            for level, value in zip(place.levels, values, strict=True)
        ),
        marks=_marks(place.levels),
        colour=colour,
    )


def _output_chart(place: Place) -> Chart:
    def every(level: LevelSummary) -> float | None:
        return level.output_tokens_per_s

    def ok(level: LevelSummary) -> float | None:
        return level.output_tokens_per_s_ok

    lines = [_figure_line(place, every, name="all output", unit="tok/s", colour="first")]
    if any(number(every(level)) != number(ok(level)) for level in place.levels):
        lines.append(_figure_line(place, ok, name="of ok requests", unit="tok/s", colour="second"))
    return Chart(
        key="output",
        title="Output tokens per second",
        x=place.axis,
        y=Axis(title="output tok/s (all users)", low=0),
        lines=tuple(lines),
        caption="Each token counts when it arrived. Where the curve flattens, the server is full.",
    )


def _request_chart(place: Place) -> Chart:
    lines = [
        _figure_line(place, pick, name=name, unit="requests/s", colour=colour)
        for name, pick, colour in (
            ("ok", lambda level: level.requests_per_s, "first"),
            ("offered", lambda level: level.rate, "quiet"),
        )
    ]
    ok, offered = lines
    open_loop = any(rate is not None for rate in offered.y)
    return Chart(
        key="requests",
        title="Requests per second",
        x=place.axis,
        y=Axis(title="requests/s", low=0),
        lines=(replace(offered, dashed=True), ok) if open_loop else (ok,),
        caption="Requests that ended ok inside the window.",
    )


def _quantile_chart(place: Place, metric: str, title: str) -> Chart:
    word = title[title.index("(") + 1 : -1]
    lines = tuple(
        _quantile_line(place, metric, name, colour=colour)
        for name, colour in (("p50", "first"), ("p95", "second"))
    )
    drawn = tuple(line for line in lines if any(y is not None for y in line.y))
    return Chart(
        key=metric,
        title=title,
        x=place.axis,
        y=Axis(title=f"{word}, ms", low=0),
        lines=drawn,
        caption="Bars: 95 % interval, where n allows one. An open triangle: the truth is above.",
    )


def _quantile_line(place: Place, metric: str, name: str, *, colour: str) -> Line:
    distributions: list[Distribution] = [getattr(level, metric) for level in place.levels]
    found: list[Quantile] = [getattr(distribution, name) for distribution in distributions]
    return Line(
        name=name,
        x=place.x,
        y=tuple(q.value for q in found),
        low=tuple(q.low for q in found),
        high=tuple(q.high for q in found),
        hover=tuple(
            _hover(
                level,
                f"{name}: {quantile(distribution, name)} ms",
                f"95 % interval: {interval(q)}",
                f"n {distribution.n:,}",
            )
            for level, distribution, q in zip(place.levels, distributions, found, strict=True)
        ),
        marks=tuple(
            "invalid" if level.invalid else "above" if q.above else ""
            for level, q in zip(place.levels, found, strict=True)
        ),
        colour=colour,
        dashed=name == "p95",
    )


def _cdf_chart(levels: Sequence[LevelSummary], ttft: Mapping[int, Samples]) -> Chart:
    shown = [level for level in levels if ttft.get(level.level) and ttft[level.level].values]
    asked = [count(level.concurrency) for level in shown if level.concurrency is not None]
    by_number = len(set(asked)) == len(shown)
    names = tuple(asked) if by_number else level_names(shown)
    lines = tuple(
        replace(
            _cdf_line(plain(level.label), ttft[level.level]),
            name=name,
            colour=f"ramp {i / max(len(shown) - 1, 1):.3f}",
        )
        for i, (name, level) in enumerate(zip(names, shown, strict=True))
    )
    return Chart(
        key="ttft-cdf",
        title="TTFT: share of requests answered by then",
        x=_time_axis([value for level in shown for value in ttft[level.level].values]),
        y=Axis(title="share of requests", low=0, high=1.02, as_percent=True),
        lines=lines,
        legend="concurrency" if by_number else "",
        caption="A curve that ends below 100 %: the rest was cut while waiting for a first token.",
    )


def _time_axis(values_ms: Sequence[float]) -> Axis:
    """Choose a logarithmic axis, ticks at 1, 2, 5, 10 …, where the values span a decade."""
    low, high = min(values_ms, default=0), max(values_ms, default=0)
    if low <= 0 or high <= 10 * low:
        return Axis(title="TTFT, ms")
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    steps = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
    ticks = tuple((step, f"{step:,g}") for step in steps if low * 0.9 <= step <= high * 1.1)
    return Axis(
        title="TTFT, ms (log scale)", kind="log", ticks=ticks, low=low * 0.9, high=high * 1.1
    )


def _cdf_line(name: str, samples: Samples) -> Line:
    values = np.sort(np.asarray(samples.values, dtype=float))
    ranks = np.unique(
        np.linspace(1, len(values), min(len(values), _MOST_STEPS)).round().astype(int)
    )
    total = len(values) + samples.censored
    x = [float(values[0]), *(float(values[rank - 1]) for rank in ranks)]
    y = [0.0, *(float(rank / total) for rank in ranks)]
    return Line(
        name=name,
        x=tuple(x),
        y=tuple(y),
        hover=tuple(
            (name, f"{percent(share)} of {total:,} requests within {number(value)} ms")
            for value, share in zip(x, y, strict=True)
        ),
        draw="step",
    )


def _trade_chart(levels: Sequence[LevelSummary]) -> Chart:
    shown = [level for level in levels if level.output_tokens_per_s is not None]
    rates = [level.decode_rate.p50.value for level in shown]
    line = Line(
        name="level",
        x=tuple(level.output_tokens_per_s for level in shown),
        y=tuple(rates),
        labels=tuple(
            count(level.concurrency) if level.concurrency else plain(level.label) for level in shown
        ),
        hover=tuple(
            _hover(
                level,
                f"one user: {number(rate)} tok/s (p50, n {level.decode_rate.n:,})",
                f"all users: {number(level.output_tokens_per_s)} tok/s",
            )
            for level, rate in zip(shown, rates, strict=True)
        ),
        marks=_marks(shown),
    )
    return Chart(
        key="trade",
        title="What one user gets, against what the system gives",
        x=Axis(title="output tok/s (all users)", low=0),
        y=Axis(title="tok/s per user (decode p50)", low=0),
        lines=(line,),
        caption="Up and to the right is better; each point is a level.",
    )


def _in_flight_chart(place: Place) -> Chart:
    measured = [
        replace(_figure_line(place, pick, name=name, unit="in flight", colour=colour), draw="dots")
        for name, pick, colour in (
            ("mean", lambda level: level.in_flight_mean, "first"),
            ("peak", lambda level: level.in_flight_peak, "second"),
        )
    ]
    asked = _figure_line(
        place, lambda level: level.concurrency, name="asked", unit="in flight", colour="quiet"
    )
    known = any(value is not None for value in asked.y)
    return Chart(
        key="in-flight",
        title="Requests in flight" + (", asked and measured" if known else ""),
        x=place.axis,
        y=Axis(title="requests in flight", low=0),
        lines=((replace(asked, dashed=True),) if known else ()) + tuple(measured),
        caption="Mean over the window, and the most at any moment.",
    )


def _outcome_chart(levels: Sequence[LevelSummary]) -> Chart:
    """Shares of outcomes; drawn only where something was not ok."""
    totals = [sum(level.outcomes.values()) for level in levels]
    seen = [o.value for o in Outcome if any(level.outcomes.get(o.value) for level in levels)]
    names = level_names(levels)
    colours = {"ok": "quiet", "refused": "second", "timeout": "third", "broken": "fourth",
               "truncated": "fifth", "unfinished": "sixth"}  # fmt: skip
    lines = tuple(
        Line(
            name=outcome,
            x=names,
            y=tuple(
                level.outcomes.get(outcome, 0) / total if total else None
                for level, total in zip(levels, totals, strict=True)
            ),
            hover=tuple(
                _hover(level, f"{outcome}: {level.outcomes.get(outcome, 0):,} of {total:,}")
                for level, total in zip(levels, totals, strict=True)
            ),
            colour=colours.get(outcome, "first"),
            draw="bar",
        )
        for outcome in seen
    )
    return Chart(
        key="outcomes",
        title="Outcomes",
        x=Axis(title="level", kind="category"),
        y=Axis(title="share of arrivals", low=0, high=1, as_percent=True),
        lines=() if seen == [Outcome.OK] else lines,
        caption="What came of every request due in the measure phase.",
    )
