"""What each side of a comparison stands on: its samples, what its windows left out, its checks."""

from dataclasses import dataclass
from typing import Any

from loadgen.analysis.bounds import FAIL, PASS
from loadgen.analysis.summary import Check, LevelSummary, Steadiness, Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelAbout:
    """One level of one run.

    n: requests behind the percentiles; due: requests due in ``measure``. checks: those that failed
    or warn.
    """

    label: str
    n: int
    due: int
    window_s: float | None
    warmup_requests: int
    steadiness: Steadiness
    checks: list[Check]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """One run of a comparison."""

    name: str
    status: str
    started_at: str
    target: dict[str, Any]
    levels: list[LevelAbout]

    @property
    def failed(self) -> bool:
        """Whether a check of any level failed."""
        return any(check.verdict == FAIL for level in self.levels for check in level.checks)


def about(name: str, summary: Summary) -> About:
    """Tell of one run what a reader of a comparison needs before its figures."""
    return About(
        name=name,
        status=summary.status,
        started_at=summary.started_at,
        target=summary.target,
        levels=[_level(level) for level in summary.levels],
    )


def _level(level: LevelSummary) -> LevelAbout:
    return LevelAbout(
        label=level.label,
        n=max(level.ttft.n, level.e2e.n),
        due=level.arrivals,
        window_s=level.window_s,
        warmup_requests=level.warmup_requests,
        steadiness=level.steadiness,
        checks=[check for check in level.checks if check.verdict != PASS],
    )
