"""When a run that does harm is to stop by itself: "errors > 50% over 10s"."""

import difflib
import re
from dataclasses import dataclass

from loadgen.scenario.objective import read_bound, read_quantile
from loadgen.units import parse_duration_s

ABORT_METRICS = ("errors", "ttft", "ttfo", "e2e")
"""What is known of every request the moment it ends, or before."""

_EXAMPLES = "write it like 'errors > 50% over 10s' or 'ttft p95 > 10s over 30s'"
_FORM = re.compile(
    r"([a-z][a-z0-9_]*)(?:\s+(?:at\s+)?(p[0-9.]+))?\s*(>=|≥|>|<=|≤|<|==?)\s*(\S.*?)\s+over\s+(\S.*)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRule:
    """A level is stopped when ``metric`` exceeds ``bound`` over the last ``window_s`` seconds.

    metric: one of ABORT_METRICS. quantile: 0.95 for p95; None for errors.
    bound: milliseconds for times, a share (0.5) for errors. text: as written.
    """

    metric: str
    quantile: float | None
    bound: float
    window_s: float
    text: str


def parse_abort_rule(text: str) -> AbortRule:
    """Read one rule; ValueError says what is wrong and what to write instead."""
    match = _FORM.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"'{text}' is not a rule to abort by; {_EXAMPLES}")
    metric, percentile, op, bound, window = match.groups()
    if metric not in ABORT_METRICS:
        close = difflib.get_close_matches(metric, ABORT_METRICS, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known are {', '.join(ABORT_METRICS)}"
        raise ValueError(f"'{metric}' is not a metric to abort by; {hint}")
    if op != ">":
        raise ValueError(f"'{op}' will not do: a run is stopped above a bound; write >")
    window_s = parse_duration_s(window)
    if window_s < 1:
        raise ValueError(f"a window of {window} says nothing; write 1s or more, like over 10s")
    return AbortRule(
        metric=metric,
        quantile=read_quantile(metric, percentile, example=f"> {bound} over {window}"),
        bound=read_bound(metric, bound, op=">"),
        window_s=window_s,
        text=" ".join(text.split()),
    )
