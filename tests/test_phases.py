"""When a level warms up, measures and drains: tables of instants, no clock."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from loadgen.record import Phase
from loadgen.run.phases import LogPhases, Phases, PlannedPhases, reason_of
from loadgen.scenario.model import Span

S = 1_000_000_000
LETTER = {Phase.WARMUP: "w", Phase.MEASURE: "m", Phase.DRAIN: "d", None: "-"}
NONE = Span(requests=0)


def span(seconds: float | None = None, requests: int | None = None) -> Span:
    return Span(seconds=seconds, requests=requests)


def admitted(phases: Phases | PlannedPhases, *due_s: float) -> str:
    """A letter for each arrival: its phase, or a dash where arrivals are over."""
    return "".join(LETTER[phases.admit(round(due * S))] for due in due_s)


def edges_s(phases: Phases | PlannedPhases) -> tuple[float | None, float | None]:
    found = (phases.measure_start_ns, phases.measure_end_ns)
    return tuple(None if at is None else at / S for at in found)


@pytest.mark.parametrize(
    ("warmup", "due_s", "letters", "start_s"),
    [
        (span(requests=2), (0, 1, 2, 3), "wwmm", 2),
        (span(1.0), (0, 0.5, 1.0, 1.5), "wwmm", 1),
        (span(1.0), (0, 2.0), "wm", 2),
        (span(1.0), (0, 0, 0, 7.0), "wwwm", 7),
        (span(1.0, 3), (0, 0.2, 0.4, 0.6, 1.2), "wwwwm", 1.2),
        (span(1.0, 3), (0, 0.9, 1.5, 1.8), "wwwm", 1.8),
        (NONE, (0, 1), "mm", 0),
    ],
    ids=[
        "count",
        "time",
        "time-between-arrivals",
        "no-slot-is-through-in-time",
        "both-time-last",
        "both-count-last",
        "none",
    ],
)
def test_measure_begins_when_the_warm_up_is_over(
    warmup: Span, due_s: tuple[float, ...], letters: str, start_s: float
) -> None:
    phases = Phases(warmup=warmup, measure=span(requests=100), start_ns=0)
    assert admitted(phases, *due_s) == letters
    assert edges_s(phases) == (start_s, None)


@pytest.mark.parametrize(
    ("measure", "due_s", "letters", "end_s"),
    [
        (span(requests=3), (0, 1, 2, 3), "mmm-", 2),
        (span(2.0), (0, 1, 1.9, 2.0, 5), "mmm--", 2),
        (span(1.0, 3), (0, 0.2, 0.4, 0.6, 1.0), "mmmm-", 1),
        (span(1.0, 3), (0, 0.9, 1.5, 1.6), "mmm-", 1.5),
        (span(1.0, 3), (0, 0.9, 1.0, 1.0), "mmm-", 1),
    ],
    ids=["count", "time", "both-time-last", "both-count-last", "both-at-once"],
)
def test_measure_ends_when_its_time_and_its_count_are_reached(
    measure: Span, due_s: tuple[float, ...], letters: str, end_s: float
) -> None:
    phases = Phases(warmup=NONE, measure=measure, start_ns=0)
    assert admitted(phases, *due_s) == letters
    assert edges_s(phases) == (0, end_s)
    assert phases.stop_reason == reason_of(measure)


def test_time_alone_ends_measure_but_no_warm_up() -> None:
    phases = Phases(warmup=span(1.0), measure=span(2.0), start_ns=0)
    assert admitted(phases, 0) == "w"
    phases.advance(4 * S)  # a server that compiles: no answer yet
    assert (phases.phase, phases.next_change_ns()) == (Phase.WARMUP, None)
    assert admitted(phases, 5) == "m"
    assert phases.next_change_ns() == 7 * S
    phases.advance(9 * S)
    assert (phases.phase, phases.next_change_ns()) == (Phase.DRAIN, None)
    assert edges_s(phases) == (5, 7)


def test_a_counted_phase_waits_for_its_arrivals_however_long() -> None:
    phases = Phases(warmup=span(requests=2), measure=span(requests=2), start_ns=0)
    phases.advance(1000 * S)
    assert (phases.phase, phases.next_change_ns()) == (Phase.WARMUP, None)
    assert admitted(phases, 1000, 1001, 1002, 1003, 1004) == "wwmm-"


@pytest.mark.parametrize(
    ("before_s", "edges"),
    [((0,), (None, None)), ((0, 1, 2), (1, 2.5))],
    ids=["in-warmup", "in-measure"],
)
def test_a_stop_ends_arrivals_from_whatever_phase(
    before_s: tuple[float, ...], edges: tuple[float | None, float | None]
) -> None:
    phases = Phases(warmup=span(requests=1), measure=span(60.0), start_ns=0)
    admitted(phases, *before_s)
    phases.stop(round(2.5 * S), "interrupted")
    phases.stop(3 * S, "abort: later")
    assert admitted(phases, 2.6) == "-"
    assert (phases.phase, phases.stop_reason) == (Phase.DRAIN, "interrupted")
    assert edges_s(phases) == edges


spans = some.builds(
    span, some.none() | some.floats(0.5, 3), some.none() | some.integers(1, 5)
).filter(lambda one: one.plain)


@given(spans, spans, some.lists(some.integers(0, 10 * S), min_size=30, max_size=30).map(sorted))
def test_phases_follow_one_another_and_hold_what_was_asked(
    warmup: Span, measure: Span, due_ns: list[int]
) -> None:
    phases = Phases(warmup=warmup, measure=measure, start_ns=0)
    letters = "".join(LETTER[phases.admit(due)] for due in due_ns)
    assert all("wm-".index(a) <= "wm-".index(b) for a, b in pairwise(letters))
    if "-" in letters:
        assert letters.count("w") >= (warmup.requests or 0)
        assert letters.count("m") >= (measure.requests or 0)
        took = phases.measure_end_ns - phases.measure_start_ns
        assert took >= round((measure.seconds or 0) * S)


# --- a schedule drawn beforehand


def planned() -> PlannedPhases:
    return PlannedPhases(start_ns=0, measure_start_ns=2 * S, measure_end_ns=5 * S, reason="time")


def test_of_a_schedule_the_due_instant_alone_decides_the_phase() -> None:
    phases = planned()
    phases.advance(9 * S)  # the client comes late
    assert admitted(phases, 0, 1.9, 2.0, 4.9, 5.0) == "wwmm-"
    assert phases.phase is Phase.DRAIN


def test_a_schedule_changes_phase_at_its_own_instants_however_late_it_is_told() -> None:
    phases = planned()
    assert phases.next_change_ns() == 2 * S
    phases.advance(round(2.7 * S))
    assert (phases.phase, phases.next_change_ns()) == (Phase.MEASURE, 5 * S)
    phases.advance(8 * S)
    assert edges_s(phases) == (2, 5)
    assert (phases.stop_reason, phases.next_change_ns()) == ("time", None)


@pytest.mark.parametrize(
    ("now_s", "edges"),
    [(1.0, (None, None)), (3.0, (2, 3)), (6.0, (2, 5))],
    ids=["in-warmup", "in-measure", "in-drain"],
)
def test_a_stopped_schedule_sends_nothing_more(
    now_s: float, edges: tuple[float | None, float | None]
) -> None:
    phases = planned()
    phases.advance(round(now_s * S))
    phases.stop(round(now_s * S), "interrupted")
    assert admitted(phases, 0, 3.5) == "--"
    assert edges_s(phases) == edges
    assert phases.stop_reason == ("time" if now_s > 5 else "interrupted")


@pytest.mark.parametrize(
    ("measure", "reason"),
    [(span(30.0), "time"), (span(requests=5), "count"), (span(1.0, 5), "time and count")],
)
def test_what_ends_a_phase_has_a_name(measure: Span, reason: str) -> None:
    assert reason_of(measure) == reason


@pytest.mark.parametrize(
    ("warmup", "letters", "edges"),
    [(NONE, "mmm--", (0, 2)), (span(requests=1), "wmm--", (1, 2)), (span(9.0), "www--", (2, 2))],
    ids=["none", "of the log's own", "longer than the log"],
)
def test_a_log_that_is_sent_once_ends_its_level(
    warmup: Span, letters: str, edges: tuple[float, float]
) -> None:
    phases = LogPhases(warmup=warmup, expected=3, start_ns=0)
    assert admitted(phases, 0, 1, 2, 3, 4) == letters
    assert (edges_s(phases), phases.stop_reason) == (edges, "log")


def test_what_a_failed_turn_cuts_off_is_not_waited_for() -> None:
    phases = LogPhases(warmup=NONE, expected=5, start_ns=0)
    assert admitted(phases, 0, 1) == "mm"
    phases.forgo(3)
    assert (phases.phase, edges_s(phases)) == (Phase.DRAIN, (0, 1))


def test_a_worker_without_a_conversation_is_over_at_once() -> None:
    phases = LogPhases(warmup=NONE, expected=0, start_ns=0)
    phases.advance(0)
    assert (phases.phase, phases.stop_reason) == (Phase.DRAIN, "log")
