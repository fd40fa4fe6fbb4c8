import pytest

from loadgen.scenario.objective import Objective, effective_objectives, parse_objective


@pytest.mark.parametrize(
    ("text", "metric", "quantile", "bound"),
    [
        ("ttft p95 <= 500ms", "ttft", 0.95, 500.0),
        ("ITL  p99<=80ms", "itl", 0.99, 80.0),
        ("e2e p50 <= 2s", "e2e", 0.5, 2000.0),
        ("tpot p99.9 <= 50ms", "tpot", 0.999, 50.0),
        ("ttfo at p90 <= 1m", "ttfo", 0.9, 60000.0),
        ("errors <= 1%", "errors", None, 0.01),
        ("errors <= 0.005", "errors", None, 0.005),
        ("errors <= 0", "errors", None, 0.0),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else None,
)
def test_an_objective_is_read(text: str, metric: str, quantile: float | None, bound: float) -> None:
    objective = parse_objective(text)
    assert (objective.metric, objective.quantile, objective.op) == (metric, quantile, "<=")
    assert objective.bound == pytest.approx(bound)
    assert objective.text == " ".join(text.split())


def test_a_strict_bound_stays_strict() -> None:
    assert parse_objective("errors < 2%") == Objective(
        metric="errors", quantile=None, op="<", bound=0.02, text="errors < 2%"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is not an objective; write it like 'ttft p95 <= 500ms'"),
        ("ttft p95", "'ttft p95' is not an objective"),
        ("ttft <= 500ms", "ttft needs a percentile; did you mean 'ttft p95 <= 500ms'?"),
        ("ttfx p95 <= 1s", "'ttfx' is not a metric of an objective; did you mean 'ttft'?"),
        ("latency p95 <= 1s", "'latency' is not a metric of an objective; known are ttft"),
        ("ttft p95 >= 500ms", "'>=' will not do: an objective is an upper bound"),
        ("ttft p95 <= 500", "'500' has no unit; write 500ms or 500s"),
        ("ttft p95 <= soon", "'soon' is not a duration"),
        ("ttft p95 <= 0ms", "a bound must be above 0"),
        ("ttft p5 <= 1s", "'p5' will not do: percentiles go from p50 to p99.9"),
        ("ttft p100 <= 1s", "'p100' will not do"),
        ("ttft p9.9.9 <= 1s", "'p9.9.9' will not do"),
        ("errors p95 <= 1%", "errors is a plain share and has no percentile"),
        ("errors <= 1", "'errors <= 1' allows every request to fail; write 1%"),
        ("errors <= 101%", "a share lies between 0 and 100 %"),
        ("errors <= 1.2.3", "'1.2.3' is not a share"),
        ("errors <= few", "'few' is not a share"),
    ],
    ids=lambda value: value or "empty",
)
def test_an_objective_that_will_not_do_says_why(text: str, problem: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        parse_objective(text)
    assert str(caught.value).startswith(problem)


def test_errors_are_an_objective_unless_another_on_errors_is_given() -> None:
    assert [o.text for o in effective_objectives(("ttft p95 <= 1s",))][1:] == ["errors <= 1%"]
    assert [o.text for o in effective_objectives(("errors <= 5%",))] == ["errors <= 5%"]
