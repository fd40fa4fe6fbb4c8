"""How sure an accuracy is, and a change of it: by hand, and how often the intervals are right."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from compare_make import changes, compared
from make import level, make_run, record

from loadgen.analysis.accuracy import Asked, accuracy_interval, change_of_accuracy, worth
from loadgen.analysis.compare import SAME, WORSE
from loadgen.analysis.metrics import summarise
from loadgen.analysis.stats import Floats, wilson
from loadgen.analysis.table import RunData
from loadgen.report.compare import compare_view
from loadgen.report.quality import quality_table

RNG = np.random.Generator
LEAST_HELD = 0.93


def asked(passed: list[int], times: list[int]) -> Asked:
    pairs = zip(passed, times, strict=True)
    return {f"q{i}": pair for i, pair in enumerate(pairs) if pair[1]}


@pytest.mark.parametrize(
    ("times", "questions"),
    [([1] * 18, 18), ([33] * 18, 18), ([7], 1), ([2] * 20 + [1] * 20, 36), ([], 0)],
    ids=["once", "often", "one question", "half of them twice", "none"],
)
def test_repeats_make_no_more_questions(times: list[int], questions: float) -> None:
    assert worth(asked([0] * len(times), times)) == pytest.approx(questions)


def test_the_interval_is_wilsons_for_the_questions() -> None:
    assert accuracy_interval({}) is None
    found = accuracy_interval(asked([30] * 8 + [0] * 2, [30] * 10))
    once = wilson(8, 10)
    assert found is not None
    assert once is not None
    assert (found.low, found.high) == pytest.approx((once.low, once.high))
    sure = accuracy_interval(asked([2] * 20 + [1] * 20, [2] * 20 + [1] * 20))
    assert sure is not None
    assert sure.high == 1.0


def test_a_change_by_hand() -> None:
    """Of eight questions one is lost: e differ by -7/64 there and by 1/64 elsewhere."""
    found = change_of_accuracy(asked([1] * 8, [1] * 8), asked([0] + [1] * 7, [1] * 8))
    half = 1.959964 * math.sqrt((7**2 + 7) / 64**2 + 2 / 8**2)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((-0.125 - half, -0.125 + half), abs=1e-6)


def test_what_is_hard_for_both_makes_a_change_no_less_sure() -> None:
    hard, easy = asked([1] * 50 + [0] * 50, [1] * 100), asked([1] * 100, [1] * 100)
    for side in (hard, easy):
        found = change_of_accuracy(side, side)
        assert found is not None
        assert found.high == -found.low == pytest.approx(1.959964 * math.sqrt(2) / 100)


def test_other_questions_on_either_side_count_as_they_are() -> None:
    """Nothing is paired then: the parts of both add up."""
    first = {f"a{i}": (int(i < 80), 1) for i in range(100)}
    other = {f"b{i}": (int(i < 80), 1) for i in range(100)}
    found = change_of_accuracy(first, other)
    assert found is not None
    assert found.high == pytest.approx(1.96 * math.sqrt(2 * 0.16 / 100 + 2e-4), rel=1e-3)


def test_a_side_without_answers_has_no_change() -> None:
    assert change_of_accuracy({}, asked([1], [1])) is None
    assert change_of_accuracy(asked([1], [1]), {}) is None


# --- how often they are right, over questions drawn from many


def always(rng: RNG, share: float, n: int) -> Floats:
    """Temperature 0: each question passes always, or never."""
    return (rng.random(n) < share).astype(float)


def by_chance(_: RNG, share: float, n: int) -> Floats:
    """Every answer is drawn anew, alike for all questions."""
    return np.full(n, share)


def mixed(rng: RNG, share: float, n: int) -> Floats:
    """Some questions are sure, some are not."""
    return rng.beta(2 * share, 2 * (1 - share), n)


def hard_ones(rng: RNG, share: float, n: int) -> Floats:
    """Nearly always right, but for a few questions that never are."""
    return np.where(rng.random(n) < 1 - share, 0.0, 0.998)


MODELS = [always, by_chance, mixed, hard_ones]
Model = Callable[[RNG, float, int], Floats]


def spread(answers: int, questions: int) -> list[int]:
    return [answers // questions + (i < answers % questions) for i in range(questions)]


def answered(rng: RNG, chances: Floats, times: list[int]) -> Asked:
    return asked(rng.binomial(times, chances).tolist(), times)


@pytest.mark.slow
@pytest.mark.parametrize("answers", [40, 60, 1320], ids=["once", "some twice", "each 33 times"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_an_accuracys_interval_holds_the_truth_in_93_of_100(model: Model, answers: int) -> None:
    """At 40 questions; where each is asked once it is Wilson's own, which dips to 92 at some n."""
    rng, held = np.random.default_rng(17), []
    for share in (0.5, 0.8, 0.95):
        truth = share * (0.998 if model is hard_ones else 1.0)
        for _ in range(300):
            found = accuracy_interval(answered(rng, model(rng, share, 40), spread(answers, 40)))
            assert found is not None
            held.append(found.low <= truth <= found.high)
    assert np.mean(held) >= LEAST_HELD


@pytest.mark.slow
@pytest.mark.parametrize(
    "answers", [(40, 40), (60, 48), (400, 400)], ids=["once", "unlike", "each 10 times"]
)
@pytest.mark.parametrize("lost", [0.0, 0.03, 0.2], ids=["equal", "3 % lost", "20 % lost"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_changes_interval_holds_the_truth_in_93_of_100(
    model: Model, lost: float, answers: tuple[int, int]
) -> None:
    """The candidate never knows a share of the questions that the baseline may know."""
    rng, held = np.random.default_rng(19), []
    for share in (0.8, 0.97):
        truth = -lost * share * (0.998 if model is hard_ones else 1.0)
        for _ in range(300):
            before = model(rng, share, 40)
            after = np.where(rng.random(40) < lost, 0.0, before)
            sides = [
                answered(rng, chances, spread(n, 40))
                for chances, n in zip((before, after), answers, strict=True)
            ]
            found = change_of_accuracy(*sides)
            assert found is not None
            held.append(found.low <= truth <= found.high)
    assert np.mean(held) >= LEAST_HELD


# --- where it is shown


def run_of(passing: int, *, questions: int = 18, times: int = 20) -> RunData:
    """Each question asked so often, and answered alike each time."""
    records = [
        record(n, sent=10.0 * n, at=[5, 6],
               canary={"id": f"q{n % questions}", "passed": n % questions < passing})
        for n in range(questions * times)
    ]  # fmt: skip
    return make_run(records, [level(window=(0, 4000))])


def test_two_questions_lost_are_no_surer_for_being_asked_again() -> None:
    found = compared(run_of(16), run_of(14))
    change = changes(found)["accuracy"]
    assert (change.verdict, change.n, change.questions) == (SAME, 360, 18)
    lost = [line for line in compare_view(found).warnings if "cannot tell from chance" in line]
    assert "which 360 answers to 18 questions cannot tell" in lost[0]
    assert "add questions to the set" in lost[0]
    cells = next(row for row in compare_view(found).changes[0].rows if row[0].text == "accuracy")
    assert cells[2].title == "n 360 to 18 questions"


def test_half_of_the_questions_lost_are_worse() -> None:
    assert changes(compared(run_of(16), run_of(8)))["accuracy"].verdict == WORSE


def test_a_report_shows_questions_beside_answers() -> None:
    (found,) = summarise(run_of(14)).levels
    table = quality_table([found])
    shown = dict(zip([column.label for column in table.columns], table.rows[0], strict=True))
    assert (shown["passed"].text, shown["questions"].text) == ("280 of 360", "18")
    once = wilson(14, 18)
    assert once is not None
    assert (found.quality.low, found.quality.high) == pytest.approx((once.low, once.high))
