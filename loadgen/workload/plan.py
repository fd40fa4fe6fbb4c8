"""What a scenario amounts to before anything is sent: levels, first prompts, and a hash of all."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.scenario.fields import Span
from loadgen.scenario.model import Scenario
from loadgen.scenario.prompts import ONLY_REPLAY, Prompts
from loadgen.units import NS_PER_S
from loadgen.workload.arrivals import Schedule, open_schedule
from loadgen.workload.order import order_of_levels
from loadgen.workload.prompt import Conversation, Prompt
from loadgen.workload.prompts import PromptSource, prompt_source
from loadgen.workload.replay.follow import converses, log_means, log_schedule, log_turns
from loadgen.workload.seeds import derive
from loadgen.workload.synthetic import FIXED_NONCE, OPENING_WORDS, SyntheticPrompts

HASHED_PROMPTS = 50
"""Of each level and round; the rest follows from the same seed and lengths, hashed as well."""

_SAMPLED = 200  # arrivals whose tokens are summed to expect those of all


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLevel:
    """One level of one round. None: known only once the server has answered.

    arrivals: of warm-up and measure. requests, input_tokens, output_tokens: of ``measure``; all
        are expected ones, since a conversation may have more turns or fewer.
    seconds: the known part of warm-up and measure, without the drain; timed: nothing but time
        ends the level, so that seconds is all of it.
    """

    label: str
    warmup: Span
    measure: Span
    arrivals: int | None
    requests: int | None
    input_tokens: float | None
    output_tokens: float | None
    seconds: float
    timed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPrompt:
    """A prompt that will be sent; ``text`` shows its first words, or its size for a dataset."""

    level: int
    number: int
    class_: str | None
    input_tokens: int | None
    output_tokens: int | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """What one arrival amounts to, on average. None: not known beforehand."""

    requests: float
    input_tokens: float | None
    output_tokens: float | None


def plan_level(scenario: Scenario, index: int) -> PlannedLevel:
    """Work out one level of the first round."""
    return plan_levels(scenario, source_without_nonce(scenario))[index]


def plan_levels(scenario: Scenario, source: PromptSource) -> list[PlannedLevel]:
    """Work out all levels of the first round."""
    expected = _expected(scenario, source)
    return [_planned(scenario, index, expected) for index in range(len(scenario.levels))]


def source_without_nonce(scenario: Scenario) -> PromptSource:
    """Return what will be sent, but for the words that each run draws for itself."""
    return prompt_source(scenario, nonce=FIXED_NONCE)


def first_prompts(
    scenario: Scenario, source: PromptSource | None = None, *, number: int = 2, words: int = 12
) -> list[PlannedPrompt]:
    """Make the first prompts of each level; words drawn for each run are named, not shown."""
    source = source or source_without_nonce(scenario)
    return [
        _first_words(scenario, source, place=(level, arrival), words=words)
        for level in range(len(scenario.levels))
        for arrival in range(number)
    ]


def plan_warnings(scenario: Scenario, source: PromptSource) -> list[str]:
    """Say what about the plan could spoil the figures, or surprise."""
    levels = plan_levels(scenario, source)
    arrivals = [level.arrivals for level in levels]
    total = None if None in arrivals else sum(filter(None, arrivals)) * scenario.rounds
    facts = source.facts()
    weight = sum(part.weight for part in scenario.mix) or 1.0
    shares = [part.weight / weight for part in scenario.mix] or [1.0]
    each = list(facts["classes"].values()) if "classes" in facts else [facts]
    return [
        warning
        for said, share in zip(each, shares, strict=True)
        if said["source"] in _ABOUT
        for warning in _ABOUT[said["source"]](said, total, share)
    ]


def passes(requests: float, unique: int) -> float:
    """Return how many times a dataset is gone through."""
    return requests / unique


def plan_hash(scenario: Scenario, source: PromptSource | None = None) -> str:
    """Return one SHA-256 over all that is sent: lengths, words, fields, arrivals and order.

    Left out are the nonce, the address and the model, and how many workers share the load.
    """
    digest = hashlib.sha256()
    source = source or source_without_nonce(scenario)
    digest.update(_canonical([_sent(prompts) for _, prompts in scenario.classes]))
    digest.update(_canonical([[part.name, part.weight] for part in scenario.mix]))
    digest.update(_canonical([scenario.target.endpoint, scenario.request, _contents(source)]))
    for round_ in range(scenario.rounds):
        if scenario.level_order != "listed":
            digest.update(_canonical(order_of_levels(scenario, round_=round_)))
        for index, level in enumerate(scenario.levels):
            digest.update(_canonical(_load_of(scenario, index)))
            if not level.closed:
                digest.update(schedule_of(scenario, index, round_=round_).due_ns.tobytes())
            for number in range(HASHED_PROMPTS):
                digest.update(_canonical(_said(scenario, source, (index, round_, number))))
    return digest.hexdigest()


def schedule_of(scenario: Scenario, level: int, *, round_: int) -> Schedule:
    """Draw the arrivals of one open level of one round: what ``run`` will follow."""
    if scenario.levels[level].speed is not None:
        return log_schedule(scenario, level, round_=round_)
    seed = derive(scenario.seed, "arrivals", round_, level)
    return open_schedule(scenario.levels[level], scenario.each_level, seed=seed)


def _planned(scenario: Scenario, index: int, expected: _Expected) -> PlannedLevel:
    level, each = scenario.levels[index], scenario.each_level
    measure, warmup = each.measure_of(level), each.warmup_of(level)
    arrivals = measured = None
    seconds = (warmup.seconds or 0.0) + (measure.seconds or 0.0)
    timed = warmup.requests is None and measure.requests is None
    if not level.closed:
        schedule = schedule_of(scenario, index, round_=0)
        arrivals = len(schedule.due_ns)
        warm = int(np.searchsorted(schedule.due_ns, schedule.measure_start_ns, side="left"))
        measured, seconds = arrivals - warm, schedule.measure_end_ns / NS_PER_S
        timed = schedule.turns is None  # the last turns of conversations end when they end
    elif level.once:
        turns = log_turns(scenario, index, round_=0)
        arrivals = len(turns)
        measured = arrivals - round((warmup.requests or 0) / expected.requests)
        measure = Span(requests=int(turns.sum()) - (warmup.requests or 0))
    elif measure.seconds is None and measure.requests is not None:
        # of a closed level every request counts, whatever its turn
        measured = round(measure.requests / expected.requests)
        arrivals = measured + round((warmup.requests or 0) / expected.requests)
    counted = level.closed and measured is not None
    return PlannedLevel(
        label=level.label,
        warmup=warmup,
        measure=measure,
        arrivals=arrivals,
        requests=measure.requests if counted else _times(measured, expected.requests),
        input_tokens=_tokens(measured, expected.input_tokens),
        output_tokens=_tokens(measured, expected.output_tokens),
        seconds=seconds,
        timed=timed,
    )


def _times(number: int | None, each: float) -> int | None:
    return None if number is None else round(number * each)


def _tokens(number: int | None, each: float | None) -> float | None:
    return None if number is None or each is None else number * each


def _expected(scenario: Scenario, source: PromptSource) -> _Expected:
    """Average over the first arrivals; their lengths are the same in all levels. Of a log, all."""
    if scenario.one_kind is not None and scenario.one_kind.source == "replay":
        whole = log_means(scenario)
        return _Expected(
            requests=whole.requests,
            input_tokens=whole.input_tokens,
            output_tokens=whole.output_tokens,
        )
    if not converses(scenario):
        prompts = [source.prompt(level=0, round_=0, number=n) for n in range(_SAMPLED)]
        prompts = [prompt for prompt in prompts if prompt.canary is None]
        return _Expected(
            requests=1.0,
            input_tokens=_mean([prompt.asked_input for prompt in prompts]),
            output_tokens=_mean([prompt.asked_output for prompt in prompts]),
        )
    begun = [source.conversation(level=0, round_=0, number=n) for n in range(_SAMPLED)]
    begun = [one for one in begun if one.canary is None]
    outputs = [_total([turn.asked_output for turn in one.turns]) for one in begun]
    return _Expected(
        requests=sum(len(one.turns) for one in begun) / len(begun),
        input_tokens=_mean([_input_of(one) for one in begun]),
        output_tokens=_mean(outputs),
    )


def _input_of(conversation: Conversation) -> int | None:
    """Sum the input of all its requests: each repeats what was said before, answers included."""
    before: int | None = 0
    total = 0
    for turn in conversation.turns:
        if before is None or turn.input_tokens is None:
            return None
        total += before + turn.input_tokens
        said = turn.reply_tokens if turn.reply_tokens is not None else turn.asked_output
        before = None if said is None else before + turn.input_tokens + said
    return total


def _total(numbers: list[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _mean(numbers: list[int | None]) -> float | None:
    total = _total(numbers)
    return None if total is None else total / len(numbers)


def _first_words(
    scenario: Scenario, source: PromptSource, *, place: tuple[int, int], words: int
) -> PlannedPrompt:
    level, number = place
    prompt = source.prompt(level=level, round_=0, number=number)
    if prompt.canary is not None:
        return _planned_question(prompt, place)
    classes = dict(scenario.classes)
    prompts = classes[prompt.class_]
    text = prompt.text if prompt.messages is None else prompt.messages[0].get("content")
    if prompts.source == "dataset" or (prompts.source == "replay" and prompt.asked_input is None):
        kind = "dataset" if prompts.source == "dataset" else "log"
        parts = 1 if prompt.messages is None else len(prompt.messages)
        said = len(json.dumps(prompt.messages or prompt.text, ensure_ascii=False))
        shown = f"[{parts} message{'' if parts == 1 else 's'} of the {kind}, {said:,} characters]"
    else:
        shown = _shown_words(scenario, prompts, str(text), words=words)
    return PlannedPrompt(
        level=level,
        number=number,
        class_=prompt.class_,
        input_tokens=prompt.asked_input,
        output_tokens=prompt.asked_output,
        text=shown,
    )


def _planned_question(prompt: Prompt, place: tuple[int, int]) -> PlannedPrompt:
    asked = "" if prompt.canary is None else prompt.canary.id
    return PlannedPrompt(
        level=place[0],
        number=place[1],
        class_=None,
        input_tokens=None,
        output_tokens=None,
        text=f"[the question '{asked}' of the golden set]",
    )


def _shown_words(scenario: Scenario, prompts: Prompts, text: str, *, words: int) -> str:
    shown, parts = text.split(" "), []
    if scenario.nonce == "fresh" and prompts.source == "replay":
        parts, shown = ["[words of the log's lengths, drawn for the run]"], []
    elif scenario.nonce == "fresh":
        made = SyntheticPrompts(prompts, seed=0, nonce=FIXED_NONCE, endpoint="completions")
        shared = made.shared_words(len(shown))
        opening = min(OPENING_WORDS, len(shown) - shared)
        parts += [f"[{shared} words all prompts of the run share]"] if shared else []
        parts += [f"[{opening} words drawn for the run]"]
        shown = shown[shared + opening :]
    return " ".join([*parts, *shown[:words], *(["…"] if len(shown) > words else [])])


def _about_dataset(facts: dict[str, Any], arrivals: int | None, share: float) -> Iterator[str]:
    name, unique, bad = facts["file"], facts["unique"], facts["bad_rows"]
    wanted = None if arrivals is None else arrivals * share
    if wanted is not None and round(wanted) > unique:
        yield (
            f"{name}: about {wanted:,.0f} prompts from {unique:,} different rows, "
            f"{passes(wanted, unique):.1f} passes; what is sent again measures the prefix cache"
        )
    if facts["rows"] > unique:
        yield f"{name}: {facts['rows'] - unique:,} of {facts['rows']:,} rows are repetitions"
    if bad:
        first = facts["bad_examples"][0]
        yield (
            f"{name}: {bad:,} of {facts['rows'] + bad:,} rows cannot be sent; "
            f"line {first['line']} {first['reason']}"
        )


def _about_log(facts: dict[str, Any], arrivals: int | None, share: float) -> Iterator[str]:
    name, told = facts["file"], facts["replayed"]
    begun = told["conversations"]
    wanted = None if arrivals is None else arrivals * share
    if wanted is not None and round(wanted) > begun and facts["with_text"]:
        yield (
            f"{name}: about {wanted:,.0f} arrivals from {begun:,} in the log, "
            f"{passes(wanted, begun):.1f} passes; what is sent again measures the prefix cache"
        )
    if facts["quantum_s"] is not None and not told["jitter"]:
        yield (
            f"{name}: times lie on a grid of {facts['quantum_s']:g} s: many requests are due at "
            "once, which the traffic was not; jitter spreads them"
        )
    if facts["bad_rows"]:
        first = facts["bad_examples"][0]
        rows = "1 bad row" if facts["bad_rows"] == 1 else f"{facts['bad_rows']:,} bad rows"
        yield f"{name}: {rows}; line {first['line']} {first['reason']}"


_ABOUT: Mapping[str, Callable[[dict[str, Any], int | None, float], Iterator[str]]] = {
    "dataset": _about_dataset,
    "replay": _about_log,
}


def _said(scenario: Scenario, source: PromptSource, place: tuple[int, int, int]) -> list[object]:
    level, round_, number = place
    if not converses(scenario):
        prompt = source.prompt(level=level, round_=round_, number=number)
        limits = [prompt.asked_input, prompt.asked_output, prompt.max_output]
        return [prompt.hash, *limits, dict(prompt.extra)]
    conversation = source.conversation(level=level, round_=round_, number=number)
    return [
        [turn.messages, turn.asked_output, turn.max_output, turn.think_s, turn.reply]
        for turn in conversation.turns
    ]


def _sent(prompts: Prompts) -> dict[str, Any]:
    """Return what decides the prompts, but for the names of files: their contents are hashed."""
    own = set() if prompts.source == "replay" else set(ONLY_REPLAY)
    said = prompts.model_dump(exclude={"file", "lengths", "columns", "format", *own})
    return {**said, "history": prompts.repeats}


def _contents(source: PromptSource) -> list[object]:
    facts = source.facts()
    each = facts["classes"].values() if "classes" in facts else [facts]
    return [[said.get("hash"), said.get("length_pairs_hash")] for said in each]


def _load_of(scenario: Scenario, index: int) -> list[object]:
    level, each = scenario.levels[index], scenario.each_level
    spans = [each.warmup_of(level).model_dump(), each.measure_of(level).model_dump()]
    of_a_log = {"speed", "max_gap_s", "jitter"} if level.speed is None else set()
    kept = set() if level.once else {"once"}
    return [level.model_dump(exclude=of_a_log | kept), *spans]


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
