"""What the answers of a level were worth: accuracy on a golden set, and broken outputs.

Questions among the load are marked and left out of the figures on time (``samples.of_load``);
those of a pass of their own are no part of the load at all.
"""

from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.stats import wilson
from loadgen.analysis.summary import Quality
from loadgen.analysis.table import RunData, select
from loadgen.record import Outcome

SHOWN_FAILING = 10

_DEFECTS = {"garbled": ("garbled",), "empty": ("empty", "blank"), "looping": ("looping",)}

Flags = np.ndarray[Any, np.dtype[np.bool_]]


def without_passes(run: RunData) -> tuple[RunData, pd.DataFrame]:
    """Split a run into its load and the requests of its quality passes."""
    in_pass = np.array([_told(one).get("pass") is True for one in run.requests["canary"]], bool)
    if not in_pass.any():
        return run, run.requests[:0]
    return select(run, ~in_pass), run.requests[in_pass]


def quality_of(requests: pd.DataFrame, in_pass: pd.DataFrame) -> Quality:
    """Judge the requests due in ``measure`` and those of the level's quality pass."""
    both = requests if in_pass.empty else pd.concat([requests[_COLUMNS], in_pass[_COLUMNS]])
    asked = [_told(one) for one in both["canary"] if isinstance(one, dict)]
    answered = [one for one in asked if isinstance(one.get("passed"), bool)]
    passed = sum(one["passed"] for one in answered)
    between = wilson(passed, len(answered))
    failing = [str(one.get("id")) for one in answered if not one["passed"]]
    return Quality(
        questions=len(asked),
        answered=len(answered),
        passed=passed,
        accuracy=passed / len(answered) if answered else None,
        low=between.low if between else None,
        high=between.high if between else None,
        failing=_most_frequent(failing),
        **_broken(both),
    )


_COLUMNS = ["canary", "outcome", "flags"]


def _broken(requests: pd.DataFrame) -> dict[str, int]:
    truncated = (requests["outcome"] == Outcome.TRUNCATED).to_numpy()
    seen = truncated | (requests["outcome"] == Outcome.OK).to_numpy()
    found = {"truncated": truncated}
    for word, flags in _DEFECTS.items():
        found[word] = seen & _flagged(requests, flags)
    counts = {word: int(rows.sum()) for word, rows in found.items()}
    broken = np.logical_or.reduce(list(found.values()))
    return {"outputs": int(seen.sum()), "broken": int(broken.sum()), **counts}


def _flagged(requests: pd.DataFrame, wanted: tuple[str, ...]) -> Flags:
    return np.array([any(flag in flags for flag in wanted) for flags in requests["flags"]], bool)


def _most_frequent(names: list[str]) -> dict[str, int]:
    counts = {name: names.count(name) for name in set(names)}
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:SHOWN_FAILING])


def _told(canary: object) -> dict[str, Any]:
    return canary if isinstance(canary, dict) else {}
