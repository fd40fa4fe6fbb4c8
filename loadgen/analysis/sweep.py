"""Several servers measured alike: what became of each, and one row of figures for each.

The figures of a row are those at the highest load that all were to be measured at.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadgen.analysis import differ
from loadgen.analysis.alike import names_of
from loadgen.analysis.bounds import FAIL
from loadgen.analysis.compare import BETTER, SAME, UNKNOWN, WORSE, Comparison, Side
from loadgen.analysis.conditions import WEIGHTS
from loadgen.analysis.summary import Distribution, LevelSummary, Quality, Summary
from loadgen.scenario.model import Scenario

BROKEN = "broken answers"
_ANSWERS = ("errors", "accuracy", BROKEN)  # as ``compare`` names them
MEASURED, FAILED, INTERRUPTED, NOT_RUN = "measured", "failed", "interrupted", "not run"

_OF_THE_START = ("target.model", "target.engine", "target.engine_version",
                 *(f"conditions.{key}" for key in WEIGHTS))  # fmt: skip
"""What a server says of itself, and another start is meant to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerResult:
    """What became of one server; reason: why it was not measured, in one line.

    directory: of its run, within the sweep's; ready_s: from its start to its first token.
    """

    name: str
    status: str = NOT_RUN
    reason: str | None = None
    directory: str | None = None
    ready_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What became of a candidate's figures over all levels: how many are better, which worse.

    only: the levels they are of, where the candidate lacks some of the baseline's.
    """

    better: int = 0
    worse: int = 0
    same: int = 0
    unknown: int = 0
    worse_words: list[str] = field(default_factory=list)
    only: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRow:
    """One server's figures; those from ``ttft`` on are of the level the matrix names.

    output: tok/s at each level, None where it has none. tally: None for the baseline, and where
        nothing was compared. worse_answers: which of errors, accuracy and broken answers are worse
        than the baseline's at some level; of the broken, over all levels together, too.
        failed_checks: their names.
    """

    result: ServerResult
    output: list[float | None]
    ttft: Distribution = field(default_factory=Distribution)
    itl: Distribution = field(default_factory=Distribution)
    tokens_per_chunk: float | None = None
    quality: Quality = field(default_factory=Quality)
    error_rate: float | None = None
    missed: list[str] = field(default_factory=list)
    tally: Tally | None = None
    worse_answers: list[str] = field(default_factory=list)
    failed_checks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A row for each server, in the order they were started in.

    level: the one of the rows' figures; baseline: what the others are held against; both None
    where nothing was measured.
    """

    levels: list[str]
    level: str | None
    baseline: str | None
    rows: list[ServerRow]


def matrix_of(
    results: Sequence[ServerResult], sides: Mapping[str, Side], comparison: Comparison | None
) -> Matrix:
    """Put what was measured side by side; ``sides`` has those that have figures, by name."""
    levels = list(dict.fromkeys(name for side in sides.values() for name in names_of(side.plans)))
    highest = _highest(levels, sides.values())
    rows = [_row(one, sides.get(one.name), levels=levels, highest=highest) for one in results]
    if comparison is not None:
        rows = [_compared(row, sides, comparison) for row in rows]
    return Matrix(levels=levels, level=highest, baseline=next(iter(sides), None), rows=rows)


def meant_to_differ(scenario: Scenario) -> list[str]:
    """Name the conditions in which the servers of a scenario are to differ, for ``compare``."""
    variants = [made for _, made in scenario.variants()]
    found = [
        f"{part}.{key}"
        for part in ("target", "conditions", "request")
        for key in _unlike_keys([_as_mapping(getattr(made, part)) for made in variants])
    ]
    starts = [None if made.server is None else _start(made) for made in variants]
    started_alike = all(start == starts[0] for start in starts)
    return [*found, *(() if started_alike and "target.url" not in found else _OF_THE_START)]


def shared_prompts(sides: Sequence[Side]) -> tuple[int, int]:
    """Count the requests that a server shares with the first (by level, round and number).

    Returns them, and how many of them had the same prompt.
    """
    where, prompt = ["level", "place"], "prompt_hash"
    first, *others = (side.facts.requests[[*where, prompt]].dropna() for side in sides)
    pairs = [first.merge(other, on=where) for other in others]
    same = sum(int((pair[f"{prompt}_x"] == pair[f"{prompt}_y"]).sum()) for pair in pairs)
    return sum(map(len, pairs)), same


def missed_objectives(summary: Summary) -> list[str]:
    """Return the objectives that some level missed."""
    results = [one for level in (*summary.levels, *summary.by_class) for one in level.objectives]
    return list(dict.fromkeys(one.objective for one in results if one.verdict == "missed"))


def _start(scenario: Scenario) -> dict[str, Any]:
    assert scenario.server is not None
    return scenario.server.model_dump(exclude={"project", "ready_within_s"})


def _as_mapping(part: Any) -> Mapping[str, Any]:  # noqa: ANN401 - a Target, or free-form
    return part if isinstance(part, Mapping) else part.model_dump()


def _unlike_keys(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for key in dict.fromkeys(key for part in parts for key in part):
        if any(part.get(key) != parts[0].get(key) for part in parts):
            yield key


def _highest(levels: Sequence[str], sides: Iterable[Side]) -> str | None:
    """Return the level of the highest load: by its slots, or its rate; else the last one listed."""
    first: dict[str, LevelSummary] = {}
    for side in sides:
        for name in levels:
            if name not in first and (found := side.level(name)) is not None:
                first[name] = found.summary
    for load in ("concurrency", "rate"):
        loads = {name: getattr(level, load) for name, level in first.items()}
        if loads and None not in loads.values():
            return max(loads, key=lambda name: loads[name])
    return levels[-1] if levels else None


def _compared(row: ServerRow, sides: Mapping[str, Side], comparison: Comparison) -> ServerRow:
    """Add to a candidate's row what became of its figures; the baseline's has nothing to add."""
    names = list(sides)
    if row.result.name not in names[1:]:
        return row
    side = sides[row.result.name]
    baseline = sides[names[0]]
    tally = _tally(comparison, names.index(row.result.name) - 1)
    if len(tally.only) == len(baseline.plans):
        tally = replace(tally, only=[])
    worse = {*tally.worse_words, *([BROKEN] if _breaks_more(baseline, side) else [])}
    return replace(row, tally=tally, worse_answers=[word for word in _ANSWERS if word in worse])


def _tally(comparison: Comparison, candidate: int) -> Tally:
    """Count the verdicts at the levels that a candidate has figures of, which ``only`` names."""
    had = [
        level
        for level in comparison.levels
        if any(row.changes[candidate].value is not None for row in level.rows)
    ]
    told = [(row.word, row.changes[candidate].verdict) for level in had for row in level.rows]
    count = Counter(verdict for _, verdict in told)
    return Tally(
        better=count[BETTER],
        worse=count[WORSE],
        same=count[SAME],
        unknown=count[UNKNOWN],
        worse_words=list(dict.fromkeys(word for word, said in told if said == WORSE)),
        only=[level.label for level in had],
    )


def _breaks_more(baseline: Side, candidate: Side) -> bool:
    """Say whether more answers are broken over all common levels together.

    A few in a hundred are no significant difference at any one level, and may be one in all. Not
    so the accuracy: each level asks the same questions again, which makes them no more.
    """
    names = [name for name in names_of(baseline.plans) if candidate.level(name) is not None]
    shares = []
    for side in (baseline, candidate):
        found = [at.summary.quality for name in names if (at := side.level(name)) is not None]
        shares.append((sum(one.broken for one in found), sum(one.outputs for one in found)))
    change = differ.of_shares(*shares)
    return change is not None and change.low > 0


def _row(
    result: ServerResult,
    side: Side | None,
    *,
    levels: Sequence[str],
    highest: str | None,
) -> ServerRow:
    if side is None:
        return ServerRow(result=result, output=[None for _ in levels])
    each = [side.level(name) for name in levels]
    output = [None if one is None else one.summary.output_tokens_per_s for one in each]
    top = each[levels.index(highest)] if highest is not None else None
    figures = top.summary if top is not None else LevelSummary(level=0, label="")
    return ServerRow(
        result=result,
        output=output,
        ttft=figures.ttft,
        itl=figures.itl,
        tokens_per_chunk=figures.tokens_per_chunk,
        quality=figures.quality,
        error_rate=figures.error_rate,
        missed=missed_objectives(side.summary),
        failed_checks=_failed_checks(side.summary),
    )


def _failed_checks(summary: Summary) -> list[str]:
    failed = [one.name for level in summary.levels for one in level.checks if one.verdict == FAIL]
    return list(dict.fromkeys(failed))
