"""What a reader needs to trust a level: how it went, what was left out, its checks, its rounds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.analysis.course import FILLING, STEADY, UNKNOWN, UNSETTLED
from loadgen.analysis.distribution import QUANTILES
from loadgen.analysis.stats import least_clusters, least_for_interval, t_interval
from loadgen.analysis.steady import LEAST_TO_CUT, TOO_FEW
from loadgen.analysis.summary import (
    Check,
    Distribution,
    LevelSummary,
    RoundFigures,
    Steadiness,
)
from loadgen.report.grid import Column, Table, load_cell, load_column
from loadgen.report.text import (
    NONE,
    Cell,
    count,
    in_two_digits,
    needed,
    number,
    percent,
    plain,
    quantile_cell,
    shares,
)


def course_table(levels: Sequence[LevelSummary]) -> Table:
    """How each level went: its end, its window, what was in flight, where token counts are from."""
    load = load_column(levels)
    columns = (
        load,
        Column(label="ended by", left=True),
        Column(label="window", unit="s", title="length of the steady interval statistics use"),
        Column(label="left out", left=True, title="before the window, in no figure"),
        Column(
            label="warm-up",
            unit="s / max TTFT ms",
            title="how long it took and its slowest first token: what a cold server compiles",
        ),
        Column(
            label="course",
            left=True,
            title="steady, not settled, still filling, drift, or saturated: the queue grew",
        ),
        Column(label="in flight", unit="mean / peak"),
        Column(label="tokens", unit="per chunk"),
        Column(label="token source", left=True, title="whose count the output tokens are"),
        Column(label="finish reasons", left=True),
        Column(label="coalesced", unit="chunks", title="chunks whose stamp is an upper bound"),
    )
    rows = tuple(
        (
            load_cell(level, load),
            Cell(plain(level.stop_reason or NONE)),
            Cell(number(level.window_s)),
            Cell(left_out(level.steadiness, warmup=level.warmup_requests)),
            Cell(_warmup(level)),
            course_cell(level.steadiness),
            Cell(f"{number(level.in_flight_mean)} / {count(level.in_flight_peak)}"),
            Cell(number(level.tokens_per_chunk)),
            Cell(shares(level.token_sources)),
            Cell(shares(level.finish_reasons)),
            Cell(percent(level.coalesced_share)),
        )
        for level in levels
    )
    return Table(title="How each level went", columns=columns, rows=rows)


def left_out(found: Steadiness, *, warmup: int) -> str:
    """Say what lies before the window: the warm-up's requests, and what MSER-5 cut off."""
    warm = f"warm-up: {_requests(warmup)}" if warmup else "no warm-up"
    if found.cut_s:
        cut = f"cut: {number(found.cut_s)} s, {_requests(found.cut_requests)}"
    else:
        cut = {
            "off": "nothing cut (truncate: off)",
            "too few": "nothing cut (under 50 requests)",
            "load varies": "nothing cut (the load itself varies)",
        }.get(found.truncation, "nothing cut")
    rest = "what is left is not steady" if found.cut_s else "no steady beginning was found"
    unsettled = "" if found.settled else f"; {rest}"
    return f"{warm}; {cut}{unsettled}"


def _warmup(level: LevelSummary) -> str:
    if not level.warmup_requests:
        return NONE
    return f"{number(level.warmup_s)} / {number(level.warmup_ttft_max)}"


def _requests(n: int) -> str:
    return f"{n:,} request{'' if n == 1 else 's'}"


def course_cell(found: Steadiness) -> Cell:
    """Say how a level went in a word or two."""
    drift = f"drift: {', '.join(found.drifting)}" if found.drifting else ""
    text = "; ".join(filter(None, (UNSETTLED if found.verdict == UNSETTLED else "", drift)))
    text = text or found.verdict
    if text == STEADY and not found.settled:
        text = "no drift"
    if text == UNKNOWN and found.truncation == TOO_FEW:
        text = f"unknown (under {LEAST_TO_CUT} requests)"
    tones = {
        "saturated": "bad", "drift": "warn", UNSETTLED: "warn", FILLING: "warn", UNKNOWN: "quiet",
    }  # fmt: skip
    thirds = ", ".join(number(rate) for rate in found.thirds)
    return Cell(
        plain(text),
        f"output tok/s by thirds: {thirds}" if thirds else "",
        tones.get(found.verdict, ""),
    )


def check_table(levels: Sequence[LevelSummary]) -> Table:
    """The checks that did not pass; empty where all did."""
    load = load_column(levels)
    columns = (
        load,
        Column(label="check", left=True),
        Column(label="verdict", left=True),
        Column(label="value"),
        Column(label="bound"),
        Column(label="what to do", left=True),
    )
    rows = tuple(
        (
            load_cell(level, load),
            Cell(plain(check.name)),
            Cell(check.verdict, tone="bad" if check.verdict == "fail" else "warn"),
            Cell(check_value(check)),
            Cell(in_unit(check.bound, check.unit)),
            Cell(plain(check.text)),
        )
        for level in levels
        for check in level.checks
        if check.verdict != "pass"
    )
    return Table(title="Checks", columns=columns, rows=rows)


def check_value(check: Check) -> str:
    """Write what a check found, with its unit."""
    return in_unit(check.value, check.unit)


def in_unit(value: float, unit: str) -> str:
    """Write a share per cent, a count of things whole, a time with three digits."""
    if not unit:
        return percent(value)
    if unit in ("ms", "s"):
        return f"{number(value)} {unit}"
    word = unit.removesuffix("s") if value == 1 else unit
    return f"{count(value)} {word}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A percentile of one distribution: its field, "p95", and the label of its column."""

    field: str
    name: str
    label: str = ""


NEEDS = "needs N: about so many requests like these would allow a 95 % interval."
_INTERVALS = (
    Shown(field="ttft", name="p50", label="TTFT p50"),
    Shown(field="ttft", name="p95", label="TTFT p95"),
    Shown(field="itl", name="p95", label="ITL p95"),
    Shown(field="e2e", name="p50", label="E2E p50"),
    Shown(field="e2e", name="p95", label="E2E p95"),
)


def interval_table(levels: Sequence[LevelSummary]) -> Table:
    """The 95 % intervals of the main percentiles, or how many requests one needs."""
    load = load_column(levels)
    columns = (load, Column(label="n"), *(Column(label=one.label, unit="ms") for one in _INTERVALS))
    rows = tuple(
        (
            load_cell(level, load),
            Cell(count(level.ttft.n)),
            *(_interval_cell(level, one) for one in _INTERVALS),
        )
        for level in levels
        if level.ttft.n or level.e2e.n
    )
    by_rounds = any(cell.text.endswith("*") for row in rows for cell in row)
    needs = any(cell.text.startswith("needs ") for row in rows for cell in row)
    title = "95 % intervals (*: by rounds)" if by_rounds else "95 % intervals"
    return Table(title=title, columns=columns, rows=rows, note=NEEDS if needs else "")


def _interval_cell(level: LevelSummary, shown: Shown) -> Cell:
    distribution = getattr(level, shown.field)
    found = getattr(distribution, shown.name)
    if distribution.withheld:
        return Cell("withheld", tone="quiet")
    if found.low is None:
        text = f"needs {requests_needed(distribution, shown):,}" if distribution.n else NONE
        return Cell(text, "n too small for an interval", "quiet")
    high = number(found.high) if found.high is not None else "∞"
    return Cell(f"{number(found.low)} to {high}{'*' if found.by_rounds else ''}")


def requests_needed(distribution: Distribution, shown: Shown) -> int:
    """Return how many requests an interval takes; of gaps, which come many to a request, too."""
    if shown.field != "itl":
        return needed(distribution, shown.name)
    quantile, worth = QUANTILES[shown.name], distribution.effective_n
    least = least_clusters(quantile)
    if not (worth and distribution.requests):
        return least
    return max(least, in_two_digits(least_for_interval(quantile) * distribution.requests / worth))


def uncut_table(levels: Sequence[LevelSummary]) -> Table:
    """The figures of levels that MSER-5 cut, with and without the cut."""
    cut = [level for level in levels if level.uncut is not None]
    load = load_column(cut)
    columns = (
        load,
        Column(label="figures", left=True),
        Column(label="window", unit="s"),
        Column(label="n"),
        Column(label="requests", unit="/s"),
        Column(label="output", unit="tok/s"),
        Column(label="TTFT p50", unit="ms"),
        Column(label="TTFT p95", unit="ms"),
        Column(label="E2E p50", unit="ms"),
        Column(label="E2E p95", unit="ms"),
    )
    rows = []
    for level in cut:
        for word, one in (("of the window", level), ("of all of measure", level.uncut)):
            if one is None:
                continue
            cells = [load_cell(level, load), Cell(word), Cell(number(one.window_s))]
            cells += [Cell(count(one.e2e.n)), Cell(number(one.requests_per_s))]
            cells.append(Cell(number(one.output_tokens_per_s)))
            cells += [
                quantile_cell(distribution, name, unit="ms")
                for distribution in (one.ttft, one.e2e)
                for name in ("p50", "p95")
            ]
            rows.append(tuple(cells))
    title = "With and without what was cut off the beginning"
    return Table(title=title, columns=columns, rows=tuple(rows))


_OF_ROUNDS = (
    ("requests_per_s", "requests", "/s"),
    ("output_tokens_per_s", "output", "tok/s"),
    ("ttft_p50", "TTFT p50", "ms"),
    ("ttft_p95", "TTFT p95", "ms"),
    ("tpot_p50", "TPOT p50", "ms"),
    ("e2e_p95", "E2E p95", "ms"),
)


def round_table(levels: Sequence[LevelSummary]) -> Table:
    """Each level's rounds one by one, then their mean ± spread with its t interval (from 3)."""
    several = [level for level in levels if level.by_round]
    load = load_column(several)
    columns = (
        load,
        Column(label="round", left=True),
        Column(label="n"),
        *(Column(label=label, unit=unit) for _, label, unit in _OF_ROUNDS),
    )
    rows: list[tuple[Cell, ...]] = []
    for level in several:
        rows += [_round_row(load_cell(level, load), one) for one in level.by_round]
        rows.append(_spread_row(load_cell(level, load), level.by_round))
    return Table(title="Rounds", columns=columns, rows=tuple(rows))


def _round_row(load: Cell, one: RoundFigures) -> tuple[Cell, ...]:
    figures = (Cell(number(getattr(one, field))) for field, _, _ in _OF_ROUNDS)
    return (load, Cell(f"{one.round + 1}"), Cell(count(one.arrivals)), *figures)


def _spread_row(load: Cell, rounds: Sequence[RoundFigures]) -> tuple[Cell, ...]:
    cells = [load, Cell("mean ± spread"), Cell(count(sum(one.arrivals for one in rounds)))]
    for field, _, _ in _OF_ROUNDS:
        known = [getattr(one, field) for one in rounds if getattr(one, field) is not None]
        if len(known) < 2:
            cells.append(Cell(NONE))
            continue
        values = np.array(known)
        between = t_interval(values)
        small = f"{number(between.low)} … {number(between.high)}" if between else ""
        text = f"{number(float(values.mean()))} ± {number(float(values.std(ddof=1)))}"
        cells.append(
            Cell(text, "95 % interval of the mean, by Student's t" if small else "", small=small)
        )
    return tuple(cells)
