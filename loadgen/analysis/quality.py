"""What the answers of a level were worth: accuracy on a golden set, and broken outputs.

Questions among the load are marked and left out of the figures on time (``samples.of_load``);
those of a pass of their own are no part of the load at all.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.accuracy import accuracy_interval
from loadgen.analysis.bounds import MEASUREMENT, Bounds, Found, held
from loadgen.analysis.summary import Check, LevelSummary, Quality
from loadgen.analysis.table import RunData, select
from loadgen.record import Outcome

SHOWN_FAILING = 10

UNSEEN_SHARE = 0.05
"""Of the answers to questions: an accuracy is off by as much as failed for want of room."""

CUT_REASONS = frozenset({"length", "max_tokens"})

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
    asked = both[np.array([isinstance(one, dict) for one in both["canary"]], bool)]
    judged = [isinstance(one.get("passed"), bool) for one in asked["canary"]]
    answered = asked[np.array(judged, bool)]
    ids = [str(one.get("id")) for one in answered["canary"]]
    failed = ~np.array([one["passed"] for one in answered["canary"]], bool)
    failing = Counter(name for name, bad in zip(ids, failed, strict=True) if bad)
    by_question = {name: (n - failing[name], n) for name, n in sorted(Counter(ids).items())}
    between, passed = accuracy_interval(by_question), int((~failed).sum())
    return Quality(
        questions=len(asked),
        answered=len(answered),
        passed=passed,
        accuracy=passed / len(answered) if len(answered) else None,
        low=between.low if between else None,
        high=between.high if between else None,
        by_question=by_question,
        failing=_most_frequent(failing),
        unseen=int((failed & answered["first_output_ns"].isna().to_numpy()).sum()),
        cut=int((failed & _cut(answered)).sum()),
        **_broken(both),
    )


def quality_checks(level: LevelSummary) -> Iterator[Check]:
    """Warn where questions failed for want of room: that is the limit's accuracy, not a model's."""
    found = level.quality
    if not found.answered:
        return
    told = Found(
        name="questions failed unseen or cut",
        value=max(found.unseen, found.cut) / found.answered,
        unit="",
        about=MEASUREMENT,
        text=f"of {found.answered:,} answers to questions {found.unseen:,} failed without a visible"
        f" word and {found.cut:,} at max_tokens, so the accuracy tells of this limit; raise"
        " max_tokens in the golden set, or switch thinking off (request: {chat_template_kwargs:"
        " {enable_thinking: false}}, for models that know it)",
    )
    yield held(told, Bounds(warn=UNSEEN_SHARE))


_COLUMNS = ["canary", "outcome", "flags", "finish_reasons", "first_output_ns"]


def _cut(answered: pd.DataFrame) -> Flags:
    """Say which answers found no room to end; one that broke would have found none in any."""
    broken = _holding(answered["flags"], frozenset({"garbled", "looping"}))
    return _holding(answered["finish_reasons"], CUT_REASONS) & ~broken


def _broken(requests: pd.DataFrame) -> dict[str, int]:
    truncated = (requests["outcome"] == Outcome.TRUNCATED).to_numpy()
    seen = truncated | (requests["outcome"] == Outcome.OK).to_numpy()
    found = {"truncated": truncated}
    for word, flags in _DEFECTS.items():
        found[word] = seen & _holding(requests["flags"], frozenset(flags))
    counts = {word: int(rows.sum()) for word, rows in found.items()}
    broken = np.logical_or.reduce(list(found.values()))
    return {"outputs": int(seen.sum()), "broken": int(broken.sum()), **counts}


def _holding(lists: "pd.Series[Any]", wanted: frozenset[str]) -> Flags:
    """Say which lists hold one of these words."""
    return np.array([not wanted.isdisjoint(words) for words in lists], bool)


def _most_frequent(counts: Counter[str]) -> dict[str, int]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return dict(ordered[:SHOWN_FAILING])


def _told(canary: object) -> dict[str, Any]:
    return canary if isinstance(canary, dict) else {}
