import re

import pytest

from loadgen.scenario.abort import AbortRule, parse_abort_rule


@pytest.mark.parametrize(
    ("text", "metric", "quantile", "bound", "window_s"),
    [
        ("errors > 50% over 10s", "errors", None, 0.5, 10.0),
        ("errors > 0.5 over 1m30s", "errors", None, 0.5, 90.0),
        ("ttft p95 > 10s over 30s", "ttft", 0.95, 10_000.0, 30.0),
        ("E2E  at p50>250ms  over 1s", "e2e", 0.5, 250.0, 1.0),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else None,
)
def test_a_rule_is_a_metric_a_bound_and_a_window(
    text: str, metric: str, quantile: float | None, bound: float, window_s: float
) -> None:
    rule = parse_abort_rule(text)
    words = " ".join(text.split())
    assert rule == AbortRule(
        metric=metric, quantile=quantile, bound=bound, window_s=window_s, text=words
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("errors > 50%", "is not a rule to abort by; write it like 'errors > 50% over 10s'"),
        ("", "is not a rule to abort by"),
        ("errors <= 50% over 10s", "'<=' will not do: a run is stopped above a bound; write >"),
        ("errors > 50 over 10s", "'errors > 50' never stops a run; write 50%"),
        ("errors p95 > 50% over 10s", "errors is a plain share and has no percentile"),
        ("ttft > 10s over 30s", "did you mean 'ttft p95 > 10s over 30s'?"),
        ("ttft p95 > 10 over 30s", "'10' has no unit; write 10ms or 10s"),
        ("tttf p95 > 10s over 30s", "is not a metric to abort by; did you mean 'ttft'?"),
        ("itl p95 > 10s over 30s", "is not a metric to abort by"),
        ("ttft p95 > 10s over 100ms", "a window of 100ms says nothing"),
        ("ttft p95 > 10s over soon", "'soon' is not a duration"),
    ],
    ids=lambda value: value if ">" in value or not value else None,
)
def test_a_rule_that_cannot_be_kept_says_what_to_write(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse_abort_rule(text)
