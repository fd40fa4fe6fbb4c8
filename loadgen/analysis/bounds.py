"""Holding a value against bounds: pass, warn, fail."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.analysis.summary import Check

PASS, WARN, FAIL = "pass", "warn", "fail"
CLIENT, MEASUREMENT = "client", "measurement"
_WORST = (FAIL, WARN, PASS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The value above which a check warns, and the one above which it fails (None: never)."""

    warn: float
    fail: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A check's name, the value found, its unit, and what it means and what to do."""

    name: str
    value: float
    text: str
    unit: str = "ms"
    about: str = CLIENT


def held(found: Found, bounds: Bounds) -> Check:
    """Hold one value against its bounds; on a bound it is still within."""
    verdict, bound = PASS, bounds.warn
    if bounds.fail is not None and found.value > bounds.fail:
        verdict, bound = FAIL, bounds.fail
    elif found.value > bounds.warn:
        verdict = WARN
    return Check(
        name=found.name,
        verdict=verdict,
        value=found.value,
        bound=bound,
        unit=found.unit,
        text=found.text if verdict != PASS else "",
        about=found.about,
    )


def worst(checks: Sequence[Check]) -> str:
    """Return the worst verdict; pass where nothing was checked."""
    return next((verdict for verdict in _WORST if any(c.verdict == verdict for c in checks)), PASS)
