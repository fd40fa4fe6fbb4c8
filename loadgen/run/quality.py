"""Questions of a golden set on the wire: answers judged, and a pass of their own at a level."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from loadgen.analysis.answers import judge
from loadgen.run.supply import Call
from loadgen.scenario.model import EachLevel, Level, Scenario, Span
from loadgen.workload.prompt import Canary, Prompt
from loadgen.workload.quality import GoldenSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """The questions of a run's set: how many, and the call of each, by its place."""

    questions: int
    call: Callable[[int], Call]


def golden_calls(golden: GoldenSet, call: Callable[[Prompt], Call]) -> Golden:
    """Make calls of a set's questions, for a pass of their own."""
    return Golden(
        questions=len(golden),
        call=lambda number: call(golden.question(number).prompt(in_pass=True)),
    )


def canary_facts(canary: Canary | None, answer: str | None) -> dict[str, Any] | None:
    """Return what a record keeps of a question: its id, whether it passed, and why not.

    passed is left out where no whole answer came. The answer itself is not kept.
    """
    if canary is None:
        return None
    facts: dict[str, Any] = {"id": canary.id}
    if canary.in_pass:
        facts["pass"] = True
    if answer is not None:
        found = judge(answer, canary.expect)
        facts["passed"] = found.passed
        if found.detail:
            facts["detail"] = found.detail
    return facts


def scenario_of_pass(scenario: Scenario, questions: int) -> Scenario:
    """Return a scenario whose levels ask each question once, at their own load, without warm-up.

    A changing rate stands at its peak; a load that has no rate of its own becomes one at a time.
    """
    each = EachLevel(
        warmup=Span(requests=0),
        measure=Span(requests=questions),
        drain_s=scenario.each_level.drain_s,
    )
    changed = {"levels": tuple(map(_steady, scenario.levels)), "each_level": each, "abort_if": ()}
    return scenario.model_copy(update=changed)


def _steady(level: Level) -> Level:
    if level.closed or level.rate is not None:
        return level
    if not level.peak_rate:
        return Level(concurrency=1)
    kept = level.model_dump(include={"arrivals", "burstiness", "max_in_flight", "at_cap"},
                            exclude_none=True)  # fmt: skip
    return Level(rate=level.peak_rate, **kept)
