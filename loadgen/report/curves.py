"""The curves of several runs in one picture each: a line for a run, over the levels of all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loadgen.analysis.summary import LevelSummary, Quantile, Summary
from loadgen.report.grid import itl_word
from loadgen.report.series import Axis, Chart, Line, Place, place_levels
from loadgen.report.text import interval, number, plain, quantile

_COLOURS = ("first", "second", "third", "fourth", "fifth", "sixth")
_CAPTION = "Bars: 95 % interval, where n allows one. An open triangle: the truth is above."

Levels = Mapping[tuple[str, int], LevelSummary]
"""A run's levels by label, and which of those with that label it is."""


def comparison_charts(runs: Mapping[str, Summary]) -> tuple[Chart, ...]:
    """Draw runs, given by name, over all their levels; nothing of one run or one level alone."""
    each = {plain(name): _by_label(summary.levels) for name, summary in runs.items()}
    union: dict[tuple[str, int], LevelSummary] = {}
    for levels in each.values():
        union = {**levels, **union}
    if len(each) < 2 or len(union) < 2:
        return ()
    place = place_levels(list(union.values()))
    itl = itl_word(list(union.values()))
    keys = [key for level in place.levels for key, known in union.items() if known is level]
    lined = {name: [levels.get(key) for key in keys] for name, levels in each.items()}
    charts = [
        Chart(
            key="output",
            title="Output tokens per second",
            x=place.axis,
            y=Axis(title="output tok/s (all users)", low=0),
            lines=_lines(place, lined, _output_line),
            caption="Each token counts when it arrived.",
        )
    ]
    for metric, name, title, word in (
        ("ttft", "p50", "Time to first token (TTFT), p50", "TTFT"),
        ("ttft", "p95", "Time to first token (TTFT), p95", "TTFT"),
        ("itl", "p95", f"Gap between token chunks ({itl}), p95", itl),
    ):
        charts.append(
            Chart(
                key=f"{metric}-{name}",
                title=title,
                x=place.axis,
                y=Axis(title=f"{word}, ms", low=0),
                lines=_lines(place, lined, _quantile_line(metric, name)),
                caption=_CAPTION,
            )
        )
    return tuple(c for c in charts if any(y is not None for line in c.lines for y in line.y))


LineOf = Callable[[Place, str, Sequence[LevelSummary | None]], Line]


def _by_label(levels: Sequence[LevelSummary]) -> Levels:
    labels = [level.label for level in levels]
    return {(label, labels[:i].count(label)): levels[i] for i, label in enumerate(labels)}


def _lines(
    place: Place, runs: Mapping[str, Sequence[LevelSummary | None]], line_of: LineOf
) -> tuple[Line, ...]:
    each = enumerate(runs.items())
    return tuple(_coloured(line_of(place, name, levels), i) for i, (name, levels) in each)


def _coloured(line: Line, index: int) -> Line:
    """Give each run its colour; when all are used, again with dashes."""
    turn, step = divmod(index, len(_COLOURS))
    return replace(line, colour=_COLOURS[step], dashed=turn % 2 == 1)


def _output_line(place: Place, name: str, levels: Sequence[LevelSummary | None]) -> Line:
    values = [None if level is None else level.output_tokens_per_s for level in levels]
    return Line(
        name=name,
        x=place.x,
        y=tuple(values),
        hover=tuple(
            (name, plain(known.label), f"{number(value)} tok/s")
            for known, value in zip(place.levels, values, strict=True)
        ),
        marks=tuple("invalid" if level and level.invalid else "" for level in levels),
    )


def _quantile_line(metric: str, word: str) -> LineOf:
    def line(place: Place, name: str, levels: Sequence[LevelSummary | None]) -> Line:
        spread = [None if level is None else getattr(level, metric) for level in levels]
        found = [Quantile() if one is None else getattr(one, word) for one in spread]
        return Line(
            name=name,
            x=place.x,
            y=tuple(q.value for q in found),
            low=tuple(q.low for q in found),
            high=tuple(q.high for q in found),
            hover=tuple(
                (name, plain(known.label))
                if one is None
                else (name, plain(known.label), f"{word}: {quantile(one, word)} ms",
                      f"95 % interval: {interval(q)}", f"n {one.n:,}")
                for known, one, q in zip(place.levels, spread, found, strict=True)
            ),
            marks=tuple(
                "invalid" if level and level.invalid else "above" if q.above else ""
                for level, q in zip(levels, found, strict=True)
            ),
        )  # fmt: skip

    return line
