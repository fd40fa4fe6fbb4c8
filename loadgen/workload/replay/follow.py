"""From a scenario to its log: what is read, what is kept of it, and the arrivals it makes."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from loadgen.scenario.fields import Span
from loadgen.scenario.model import Scenario
from loadgen.scenario.prompts import Prompts
from loadgen.units import seconds_to_ns
from loadgen.workload.arrivals import Schedule
from loadgen.workload.replay.found import check_span
from loadgen.workload.replay.index import (
    ESTIMATED_INPUT,
    ESTIMATED_OUTPUT,
    NO_COUNT,
    TEXT,
    Log,
    Numbers,
    read_log,
)
from loadgen.workload.replay.select import Kept, due_offsets, keep, part_of
from loadgen.workload.replay.source import Replay, ReplayPrompts
from loadgen.workload.replay.words import LogWords
from loadgen.workload.seeds import derive
from loadgen.workload.synthetic import Overhead

_AGAIN = "what is sent again meets the server's prefix cache"


def log_of(scenario: Scenario, prompts: Prompts) -> Log:
    """Return the log of some prompts, gone through."""
    chat = scenario.target.endpoint == "chat"
    return read_log(scenario.file(prompts.file or ""), prompts, chat=chat)


def kept_of(scenario: Scenario, prompts: Prompts, *, class_: str | None = None) -> Kept:
    """Return what of a log is replayed; which conversations are sampled is drawn from the seed."""
    seed = derive(scenario.seed, f"sample{_of(class_)}")
    grouped = scenario.target.endpoint == "chat"
    return keep(log_of(scenario, prompts), prompts, seed=seed, grouped=grouped)


def replay_source(
    scenario: Scenario, prompts: Prompts, *, nonce: str, overhead: Overhead, class_: str | None
) -> ReplayPrompts:
    """Open a log as the source of a scenario's prompts, or of one class of its mix."""
    replay = Replay(
        log=log_of(scenario, prompts),
        kept=kept_of(scenario, prompts, class_=class_),
        levels=scenario.levels,
        rounds=scenario.rounds,
        chat=scenario.target.endpoint == "chat",
        class_=class_,
    )
    words = LogWords(seed=scenario.seed, nonce=nonce, overhead=overhead, name=_of(class_))
    return ReplayPrompts(prompts, replay, words)


def converses(scenario: Scenario) -> bool:
    """Say that some conversation has more than one turn, by the scenario or by its logs."""
    return scenario.conversational or any(
        prompts.source == "replay" and kept_of(scenario, prompts, class_=name).conversational
        for name, prompts in scenario.classes
    )


def made_of_words(scenario: Scenario) -> bool:
    """Say that some prompts are made of words: synthetic ones, and those of logs without text."""
    for _, prompts in scenario.classes:
        if prompts.source == "synthetic":
            return True
        if prompts.source == "replay" and not (log_of(scenario, prompts).flags & TEXT).all():
            return True
    return False


def check_logs(scenario: Scenario) -> None:
    """Read the logs of a scenario; raise UsageError where one cannot be sent, or followed."""
    for name, prompts in scenario.classes:
        if prompts.source == "replay":
            kept_of(scenario, prompts, class_=name)
    for index, level in enumerate(scenario.levels):
        if level.speed is not None:
            log_schedule(scenario, index, round_=0)


def natural_answers(scenario: Scenario) -> list[str]:
    """Say of which logs the answers' lengths are known and not asked for: those of text."""
    return [
        said
        for name, prompts in scenario.classes
        if prompts.source == "replay" and not prompts.match_output_length
        for said in _natural(log_of(scenario, prompts), kept_of(scenario, prompts, class_=name))
    ]


def _natural(log: Log, kept: Kept) -> Iterator[str]:
    members = kept.members
    free = members[((log.flags[members] & TEXT) > 0) & (log.output_tokens[members] != NO_COUNT)]
    if len(free):
        about = "about " if (log.flags[free] & ESTIMATED_OUTPUT).any() else ""
        yield (
            "answers may take their natural length (recorded: mean "
            f"{about}{log.output_tokens[free].mean():.1f} tokens); "
            "--match-output-length asks for the recorded ones"
        )


def course_through(scenario: Scenario) -> Iterator[str]:
    """Say where levels without the log's times send a conversation again, or leave slots empty."""
    if scenario.one_kind is None or scenario.one_kind.source != "replay":
        return
    for index, level in enumerate(scenario.levels):
        turns = log_turns(scenario, index, round_=0)
        span = scenario.each_level.measure_of(level)
        if level.once and level.slots > len(turns):
            of_them = f"{len(turns):,} conversation{'s'[: len(turns) > 1]}"
            yield f"{level.label}: {of_them} to send, so that the other slots stay empty"
        elif level.lasts_as_the_log:
            continue
        elif span.seconds is not None:
            yield f"{level.label}: where the log ends before the level, it begins again: {_AGAIN}"
        elif (span.requests or 0) > turns.sum():
            yield (
                f"{level.label}: asks for {span.requests:,} requests, its part of the log has "
                f"{turns.sum():,}; where the log ends, it begins again: {_AGAIN}"
            )


class Means(NamedTuple):
    """What one conversation of a log amounts to, on average; None: not known beforehand."""

    requests: float
    input_tokens: float | None
    output_tokens: float | None


def log_means(scenario: Scenario) -> Means:
    """Average over all that is replayed of a scenario's log."""
    log, kept = log_of(scenario, scenario.prompts), kept_of(scenario, scenario.prompts)
    asked, answered = log.input_tokens[kept.members], log.output_tokens[kept.members]
    flags = log.flags[kept.members]
    natural = bool((flags & TEXT).any()) and not scenario.prompts.match_output_length
    unknown = natural or bool((answered == NO_COUNT).any())
    estimated = bool((flags & ESTIMATED_INPUT).any())
    return Means(
        requests=len(kept.members) / kept.conversations,
        input_tokens=None if estimated else float(asked.sum()) / kept.conversations,
        output_tokens=None if unknown else float(answered.sum()) / kept.conversations,
    )


def log_turns(scenario: Scenario, level: int, *, round_: int) -> Numbers:
    """Return how many turns each conversation has that one level sends of a log, once."""
    kept = kept_of(scenario, scenario.prompts)
    share, shares = round_ * len(scenario.levels) + level, len(scenario.levels) * scenario.rounds
    part = part_of(kept.conversations, share=share, shares=shares)
    turns: Numbers = np.diff(kept.starts)[part.start : part.stop]
    return turns


def log_schedule(scenario: Scenario, level: int, *, round_: int) -> Schedule:
    """Return the arrivals of one level that follows the log; each begins a conversation.

    Without a measure of its own the level lasts until all of the log was sent. Raises UsageError
    where the log cannot be followed.
    """
    prompts, each = scenario.prompts, scenario.each_level
    log, kept = log_of(scenario, prompts), kept_of(scenario, prompts)
    check_span(log, unit_given=prompts.time_unit != "auto")
    asked = scenario.levels[level]
    seed = derive(scenario.seed, "jitter", round_, level)
    due = due_offsets(log, kept, asked, seed=seed)
    measure = each.measure_of(asked)
    start_ns = _end_of(each.warmup_of(asked), due, from_ns=0)
    if measure == Span():
        turns = np.diff(kept.starts) if kept.conversational else None
        end_ns = max(int(due[-1]) + 1, start_ns + 1)
        return Schedule(due_ns=due, measure_start_ns=start_ns, measure_end_ns=end_ns, turns=turns)
    end_ns = _end_of(measure, due, from_ns=start_ns)
    return Schedule(due_ns=due[due < end_ns], measure_start_ns=start_ns, measure_end_ns=end_ns)


def _end_of(span: Span, due: Numbers, *, from_ns: int) -> int:
    """Return when a phase that begins at an instant ends: by time, by count, or by both."""
    end_ns = from_ns + seconds_to_ns(span.seconds or 0.0)
    if span.requests:
        last = int(np.searchsorted(due, from_ns, side="left")) + span.requests - 1
        end_ns = max(end_ns, int(due[min(last, len(due) - 1)]) + 1)
    return end_ns


def _of(class_: str | None) -> str:
    return "" if class_ is None else f" of {class_}"
