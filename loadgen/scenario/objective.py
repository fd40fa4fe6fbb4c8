"""Objectives: "ttft p95 <= 500ms", "itl p99 <= 80ms", "errors <= 1%"."""

import difflib
import re
from dataclasses import dataclass

from loadgen.units import parse_duration_s, parse_share

TIME_METRICS = ("ttft", "ttfo", "e2e", "tpot", "itl")
METRICS = (*TIME_METRICS, "errors")
DEFAULT_OBJECTIVE = "errors <= 1%"

_EXAMPLES = "write it like 'ttft p95 <= 500ms' or 'errors <= 1%'"
_FORM = re.compile(r"([a-z][a-z0-9_]*)(?:\s+(?:at\s+)?(p[0-9.]+))?\s*(<=|≤|<|>=|≥|>|==?)\s*(\S.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A bound that a metric must keep.

    metric: one of METRICS. quantile: 0.95 for p95; None for errors.
    op: "<=" or "<". bound: milliseconds for times, a share (0.01) for errors. text: as written.
    """

    metric: str
    quantile: float | None
    op: str
    bound: float
    text: str


def parse_objective(text: str) -> Objective:
    """Read one objective; ValueError says what is wrong and what to write instead."""
    match = _FORM.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"'{text}' is not an objective; {_EXAMPLES}")
    metric, percentile, op, bound = match.groups()
    if metric not in METRICS:
        close = difflib.get_close_matches(metric, METRICS, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(METRICS)}"
        raise ValueError(f"'{metric}' is not a metric of an objective; {hint}")
    if op not in ("<=", "≤", "<"):
        raise ValueError(f"'{op}' will not do: an objective is an upper bound; write <=")
    return Objective(
        metric=metric,
        quantile=read_quantile(metric, percentile, example=f"<= {bound}"),
        op="<" if op == "<" else "<=",
        bound=read_bound(metric, bound, op="<="),
        text=" ".join(text.split()),
    )


def effective_objectives(texts: tuple[str, ...]) -> tuple[Objective, ...]:
    """Parse objectives and add ``errors <= 1%`` unless one on errors is among them."""
    parsed = tuple(parse_objective(text) for text in texts)
    if any(objective.metric == "errors" for objective in parsed):
        return parsed
    return (*parsed, parse_objective(DEFAULT_OBJECTIVE))


def read_quantile(metric: str, percentile: str | None, *, example: str) -> float | None:
    """Read "p95" as 0.95; None for errors. example: the rest of the line, for a correction."""
    if metric == "errors":
        if percentile is not None:
            raise ValueError(f"errors is a plain share and has no percentile; errors {example}")
        return None
    if percentile is None:
        raise ValueError(f"{metric} needs a percentile; did you mean '{metric} p95 {example}'?")
    try:
        share = round(float(percentile[1:]) / 100, 9)  # 99.9 / 100 is 0.9990000000000001
    except ValueError:
        share = 0.0
    if not 0.5 <= share <= 0.999:
        raise ValueError(f"'{percentile}' will not do: percentiles go from p50 to p99.9")
    return share


def read_bound(metric: str, bound: str, *, op: str) -> float:
    """Read a share for errors, a time in milliseconds for all else."""
    number = re.fullmatch(r"[0-9.]+", bound)
    if metric == "errors":
        if number and _bare_number(bound) >= 1:
            said = "never stops a run" if op == ">" else "allows every request to fail"
            raise ValueError(f"'errors {op} {bound}' {said}; write {bound}%")
        return parse_share(bound)
    if number:
        raise ValueError(f"'{bound}' has no unit; write {bound}ms or {bound}s")
    milliseconds = parse_duration_s(bound) * 1000
    if milliseconds <= 0:
        raise ValueError("a bound must be above 0")
    return milliseconds


def _bare_number(text: str) -> float:
    """Read a bare number, which may be a percentage whose sign was forgotten."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a share; write it like 1% or 0.01") from None
