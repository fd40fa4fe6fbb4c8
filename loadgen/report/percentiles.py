"""The distributions of a run's levels as tables: n, mean, percentiles and their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.analysis.summary import Distribution, LevelSummary, Quantile
from loadgen.report.grid import Column, Table, failed, itl_word, load_cell, load_column
from loadgen.report.soundness import Shown, requests_needed
from loadgen.report.text import Cell, bound, count, interval_or_needed, number, quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A distribution of the summary: its field, its word and its unit.

    intervals: False where none is computed (reads of one stream are not independent samples).
    """

    field: str
    word: str
    unit: str = "ms"
    intervals: bool = True


MAIN_METRICS = (
    Metric(field="ttft", word="TTFT"),
    Metric(field="itl", word="ITL"),
    Metric(field="tpot", word="TPOT", unit="ms per token"),
    Metric(field="decode_rate", word="decode rate", unit="tok/s per user"),
    Metric(field="e2e", word="E2E"),
)
MORE_METRICS = (
    Metric(field="ttfo", word="TTFO"),
    Metric(field="ttft_from_due", word="TTFT from due"),
    Metric(field="e2e_from_due", word="E2E from due"),
    Metric(field="ttft_failures_infinite", word="TTFT, each failure as +∞"),
    Metric(field="e2e_failures_infinite", word="E2E, each failure as +∞"),
    Metric(field="per_request_rate", word="output tokens / E2E of each request", unit="tok/s"),
    Metric(field="prefill_rate", word="prefill rate (apparent)", unit="tok/s"),
    Metric(field="stream_end", word="stream end"),
    Metric(field="ttfb", word="time to headers"),
    Metric(field="connect", word="connect"),
    Metric(field="tls", word="TLS"),
    Metric(field="ttft_cold", word="TTFT cold"),
    Metric(field="lateness", word="lateness"),
    Metric(field="slot_wait", word="slot wait"),
    Metric(field="send_lag", word="send lag"),
    Metric(field="user_lag", word="user-space lag per read", intervals=False),
)
_WORDS = (
    ("worth ", "worth N: the n count for so many independent samples, since neighbours are alike."),
    ("needed", "N needed: about so many requests like these would allow a 95 % interval."),
)
_NAMES = ("p50", "p90", "p95", "p99")


def percentile_tables(
    levels: Sequence[LevelSummary], metrics: Sequence[Metric]
) -> tuple[Table, ...]:
    """One table for each metric that was observed anywhere: n, mean, percentiles, intervals."""
    tables = []
    for metric in metrics:
        found = [(level, _distribution(level, metric)) for level in levels]
        if any(distribution.n for _, distribution in found):
            tables.append(_percentile_table(metric, found))
    return tuple(tables)


def _distribution(level: LevelSummary, metric: Metric) -> Distribution:
    distribution: Distribution = getattr(level, metric.field)
    if metric.field.endswith("failures_infinite") and not failed(level):
        return Distribution()  # without a failure it only repeats the first set
    return distribution


def _percentile_table(metric: Metric, found: list[tuple[LevelSummary, Distribution]]) -> Table:
    levels = [level for level, _ in found]
    load = load_column(levels)
    word = itl_word(levels) if metric.field == "itl" else metric.word
    columns = [load, Column(label="n"), *(Column(label=x) for x in ("mean", "min", "max"))]
    columns += [
        Column(label=name, unit="95 % interval" if metric.intervals else "") for name in _NAMES
    ]
    rows = []
    for level, distribution in found:
        censored = distribution.censored
        cells = [
            load_cell(level, load),
            Cell(count(distribution.n), small=_about_n(distribution)),
            Cell(bound(distribution.mean, censored=censored)),
            Cell(number(distribution.min)),
            Cell(bound(distribution.max, censored=censored)),
        ]
        cells += [_percentile_cell(distribution, name, metric) for name in _NAMES]
        rows.append(tuple(cells))
    title = f"{word}, {metric.unit}"
    return Table(title=title, columns=tuple(columns), rows=tuple(rows), note=_note(rows))


def _note(rows: Sequence[tuple[Cell, ...]]) -> str:
    """Explain the words that stand in some cell of a table."""
    small = " ".join(cell.small for row in rows for cell in row)
    return " ".join(text for word, text in _WORDS if word in small)


def _about_n(distribution: Distribution) -> str:
    """Say how many samples are lower bounds, and how many independent ones the n are worth."""
    told = []
    if distribution.censored:
        told.append(f"{distribution.censored:,} known as > x")
    worth = distribution.effective_n
    if worth is not None and worth < distribution.n:
        told.append(f"worth {worth:,.0f}")
    return ", ".join(told)


def _percentile_cell(distribution: Distribution, name: str, metric: Metric) -> Cell:
    found: Quantile = getattr(distribution, name)
    text = quantile(distribution, name)
    if found.value is None:
        return Cell(text, tone="quiet")
    return Cell(text, small=_interval(distribution, name, metric) if metric.intervals else "")


def _interval(distribution: Distribution, name: str, metric: Metric) -> str:
    found: Quantile = getattr(distribution, name)
    if found.low is not None or metric.field != "itl":
        return interval_or_needed(distribution, name)
    wanted = requests_needed(distribution, Shown(field=metric.field, name=name))
    return f"n too small, {wanted:,} requests needed"
