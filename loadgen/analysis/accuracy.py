"""How sure an accuracy is: it counts questions, however often each was asked.

Answers to one question resemble one another (at temperature 0 they are mostly the same), so asking
it again tells next to nothing of the questions that were not asked.
"""

import math
from collections.abc import Mapping

import numpy as np

from loadgen.analysis.stats import CONFIDENCE, Floats, Interval, wilson

Asked = Mapping[str, tuple[int, int]]
"""By a question's id: how many of its answers passed, and how many there were."""


def worth(asked: Asked) -> float:
    """Return how many questions the answers are worth: (Σ m)² / Σ m², m the answers to each.

    As many as there are where each was asked equally often, fewer where some came more often.
    """
    times = _times(asked)
    return float(times.sum() ** 2 / (times**2).sum()) if len(times) else 0.0


def accuracy_interval(asked: Asked) -> Interval | None:
    """Return Wilson's interval of passed / answered, for as many questions as they are worth."""
    if not asked:
        return None
    n = worth(asked)
    return wilson(_share(asked) * n, n)


def change_of_accuracy(baseline: Asked, candidate: Asked) -> Interval | None:
    """Return the interval of the difference of two accuracies, paired by question.

    Each question moves its side's accuracy by e = its share of the answers × (its own accuracy less
    the side's); one that both sides were asked moves the difference by what its e differ, so that
    what is hard for both counts for nothing. Half width: z · √(Σ (e_c - e_b)² + 1/n_b² + 1/n_c²), n
    the questions of a side: as if one more had gone the other way on each, for what few questions
    that all agree cannot rule out.
    """
    from scipy.special import ndtri

    if not baseline or not candidate:
        return None
    ids = sorted({*baseline, *candidate})
    moves = _moves(candidate, ids) - _moves(baseline, ids)
    unseen = sum(1 / worth(side) ** 2 for side in (baseline, candidate))
    half = float(ndtri((1 + CONFIDENCE) / 2)) * math.sqrt(float((moves**2).sum()) + unseen)
    change = _share(candidate) - _share(baseline)
    return Interval(low=max(-1.0, change - half), high=min(1.0, change + half))


def _share(asked: Asked) -> float:
    return sum(passed for passed, _ in asked.values()) / sum(n for _, n in asked.values())


def _times(asked: Asked) -> Floats:
    return np.array([n for _, n in asked.values()], dtype=np.float64)


def _moves(asked: Asked, ids: list[str]) -> Floats:
    """Return by how much each question moves its side's accuracy; 0 where it was not asked."""
    answers, share = _times(asked).sum(), _share(asked)
    told = (asked.get(one, (0, 0)) for one in ids)
    return np.array([(passed - n * share) / answers for passed, n in told], dtype=np.float64)
