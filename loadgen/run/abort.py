"""Stop a run that does harm: rules over a sliding window of what just ended."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loadgen.record import FAILED_OUTCOMES, Outcome, Record
from loadgen.scenario.abort import AbortRule
from loadgen.units import NS_PER_MS, NS_PER_S

_FEWEST = 10  # requests that are judged: the last of them, where fewer ended within the window


class Age(NamedTuple):
    """How long a request has been in flight, and whether its first token has come."""

    ms: float
    answered: bool


@dataclass(frozen=True, slots=True)
class _Ended:
    at_ns: int
    failed: bool
    record: Record

    def ms(self, metric: str) -> float | None:
        """Return TTFT, TTFO or E2E in ms: infinite where it failed, None where there is none.

        An answer may be whole without a first token of its own (it came at once, or was empty).
        """
        record = self.record
        if self.failed:
            return float(np.inf)
        instants = {
            "ttft": record.first_ns,
            "ttfo": record.first_output_ns,
            "e2e": record.end_ns if "non_stream_response" in record.flags else record.last_ns,
        }
        until = instants[metric]
        if until is None or record.sent_ns is None:
            return None
        return (until - record.sent_ns) / NS_PER_MS


class Watch:
    """Takes records as they end; ``judge`` says which rule was broken, and by how much.

    A request in flight counts as soon as it is slower than the bound, whatever becomes of it: a
    server that hangs is not waited for. Where fewer than ten ended within a window, the last ten
    are judged: few slots and a long limit would else never be enough.
    """

    def __init__(self, rules: Sequence[AbortRule]) -> None:
        self._rules = rules
        self._longest_ns = round(max((rule.window_s for rule in rules), default=0) * NS_PER_S)
        self._ended: deque[_Ended] = deque()

    def take(self, record: Record) -> None:
        """Count one record."""
        if not self._rules or record.end_ns is None:
            return
        failed = record.outcome in FAILED_OUTCOMES
        if not failed and record.outcome is not Outcome.OK:
            return
        self._ended.append(_Ended(record.end_ns, failed, record))

    def judge(self, now_ns: int, in_flight: Iterable[Age] = ()) -> str | None:
        """Judge the windows that end now (ns from the run's epoch)."""
        ages = list(in_flight) if self._rules else []
        since_ns = now_ns - self._longest_ns
        while len(self._ended) > _FEWEST and self._ended[0].at_ns < since_ns:
            self._ended.popleft()
        for rule in self._rules:
            rows, span = self._rows(rule, now_ns)
            value = _value(rule, rows, ages)
            if value is not None and value > rule.bound:
                return f"{rule.text}: {_said(rule, value, span)}"
        return None

    def _rows(self, rule: AbortRule, now_ns: int) -> tuple[list[_Ended], str]:
        """Return what is judged, and what to call it."""
        since_ns = now_ns - round(rule.window_s * NS_PER_S)
        within = [row for row in self._ended if row.at_ns >= since_ns]
        last = list(self._ended)[-_FEWEST:]
        if len(within) >= len(last):
            return within, f"the last {rule.window_s:g} s"
        return last, f"the last {len(last)} requests"


def _value(rule: AbortRule, rows: list[_Ended], ages: list[Age]) -> float | None:
    if rule.metric == "errors":
        return sum(row.failed for row in rows) / len(rows) if len(rows) >= _FEWEST else None
    values = [ms for row in rows if (ms := row.ms(rule.metric)) is not None]
    values += [age.ms for age in ages if age.ms > rule.bound and _awaited(rule.metric, age)]
    if len(values) < _FEWEST:
        return None
    quantile = 0.5 if rule.quantile is None else rule.quantile
    return float(np.quantile(values, quantile, method="lower"))


def _awaited(metric: str, age: Age) -> bool:
    return metric == "e2e" or not age.answered


def _said(rule: AbortRule, value: float, span: str) -> str:
    if rule.metric == "errors":
        return f"{value:.0%} of {span}"
    if np.isinf(value):
        return f"requests failed, which counts as infinitely slow, over {span}"
    return f"{value:,.0f} ms over {span}"
