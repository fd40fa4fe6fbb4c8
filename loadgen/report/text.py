"""Text and numbers as every report writes them; no control character survives.

Whatever a server said passes ``plain`` once, on its way into a ``Cell`` or a ``Fact``; a renderer
then escapes for its own markup only.
"""

import math
import unicodedata
from dataclasses import dataclass

from loadgen.analysis.distribution import QUANTILES
from loadgen.analysis.stats import least_for_interval
from loadgen.analysis.summary import Distribution, Quantile

NONE = "–"
SAMPLES_NEEDED = {"p50": 1, "p90": 1, "p95": 20, "p99": 100}
"""How many samples a percentile needs before it is printed (metrics: percentiles)."""

_LONGEST = 400  # a server's message is cut to 200 already; this guards everything else


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of a table: what stands there, what a pointer resting on it says, how it feels.

    tone: "good", "warn", "bad", "quiet" or "" (ordinary). small: a second, lesser text. link:
    where a page leads to from here, relative to it.
    """

    text: str
    title: str = ""
    tone: str = ""
    small: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """One condition of the run: "model" / "tiny"."""

    label: str
    text: str


def plain(value: object) -> str:
    """Return one line of text without anything that could steer a terminal or hide what it says.

    Line breaks and tabs become blanks; other control and format characters (escape sequences,
    changes of writing direction) and lone surrogates become U+FFFD.
    """
    pieces = []
    for character in str(value)[: _LONGEST + 1]:
        category = unicodedata.category(character)
        if character in "\r\n\t\v\f\x85\u2028\u2029":
            pieces.append(" ")
        elif category in ("Cc", "Cf", "Cs"):
            pieces.append("\ufffd")
        else:
            pieces.append(character)
    return " ".join("".join(pieces).split()) if len(pieces) <= _LONGEST else _cut(pieces)


def _cut(pieces: list[str]) -> str:
    return " ".join("".join(pieces[:_LONGEST]).split()) + "…"


def number(value: float | None) -> str:
    """Write a number with three significant digits: 0.042, 4.20, 42.0, 420, 4,200."""
    if value is None or not math.isfinite(value):
        return NONE
    size = abs(float(f"{value:.3g}"))
    if size == 0:
        return "0"
    if size < 0.001:
        return "< 0.001" if value > 0 else "> -0.001"
    decimals = 3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0
    return f"{value:,.{decimals}f}"


def count(value: float | None) -> str:
    """Write a count with separators; a mean that is no whole number keeps one decimal."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def percent(share: float | None) -> str:
    """Write a share of 1 as per cent: 0 %, 0.25 %, 12.5 %, 100 %."""
    if share is None or not math.isfinite(share):
        return NONE
    value = share * 100
    if 0 < value < 0.01:
        return "< 0.01 %"
    if value and value < 1:
        return f"{value:.2g} %"
    if 99.9 < value < 100:
        return "> 99.9 %"
    return f"{value:.1f}".removesuffix(".0") + " %"


def shares(counts: dict[str, int]) -> str:
    """Write what a whole is made of, the largest first: "stop 70 %, length 30 %"."""
    total = sum(counts.values())
    if not total:
        return NONE
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{plain(word)} {percent(n / total)}" for word, n in ordered)


def quantile(distribution: Distribution, name: str) -> str:
    """Write one percentile: "83.1", "> 1,200" where censored, "n < 20" where n is too small.

    "withheld" where the queue grew as long as the level lasted.
    """
    found: Quantile = getattr(distribution, name)
    if distribution.withheld:
        return "withheld"
    if found.value is not None:
        return f"> {number(found.value)}" if found.above else number(found.value)
    if found.above:
        return "∞"  # it falls among failures counted as +∞
    if 0 < distribution.n < SAMPLES_NEEDED[name]:
        return f"n < {SAMPLES_NEEDED[name]}"
    return NONE


def interval(found: Quantile) -> str:
    """Write the 95 % interval of a percentile, that it is open above, or that n is too small."""
    if found.low is None:
        return "n too small"
    high = number(found.high) if found.high is not None else "∞"
    return f"{number(found.low)} … {high}{' (by rounds)' if found.by_rounds else ''}"


def interval_or_needed(distribution: Distribution, name: str) -> str:
    """Write a percentile's interval, or how many samples it would take."""
    found: Quantile = getattr(distribution, name)
    if found.low is None and distribution.n:
        return f"n too small, {needed(distribution, name):,} needed"
    return interval(found)


def needed(distribution: Distribution, name: str) -> int:
    """Return the samples from which a percentile has an interval: 6, 36, 72, 368.

    Where neighbours resemble one another, each is worth less and more are needed: an estimate,
    rounded up to two digits.
    """
    least = least_for_interval(QUANTILES[name])
    worth = distribution.effective_n
    if not worth or worth >= distribution.n:
        return least
    return in_two_digits(least * distribution.n / worth)


def in_two_digits(wanted: float) -> int:
    """Round an estimate of what is needed up to two digits."""
    step: int = 10 ** max(0, len(f"{wanted:.0f}") - 2)
    return int(math.ceil(wanted / step) * step)


def bound(value: float | None, *, censored: int) -> str:
    """Write a mean or a largest value; "> x" where censored samples make it a lower bound."""
    text = number(value)
    return f"> {text}" if censored and value is not None else text


def quantile_cell(
    distribution: Distribution, name: str, *, unit: str, intervals: bool = True
) -> Cell:
    """Return a percentile whose title holds its n and, where one is computed, its interval."""
    text = quantile(distribution, name)
    found: Quantile = getattr(distribution, name)
    if found.value is None:
        title = f"n {distribution.n:,}" if distribution.n else "nothing was observed"
        return Cell(text, title, "quiet")
    title = f"{text} {unit}, n {distribution.n:,}"
    if not intervals:
        return Cell(text, title)
    return Cell(text, f"{title}, 95 % interval: {interval_or_needed(distribution, name)}")
