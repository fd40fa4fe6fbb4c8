"""What a scenario amounts to before anything is sent: levels, first prompts, and a hash of all."""

import hashlib
import json
from dataclasses import dataclass

import numpy as np

from loadgen.scenario.fields import Span
from loadgen.scenario.model import Level, Scenario
from loadgen.units import NS_PER_S
from loadgen.workload.arrivals import Schedule, open_schedule
from loadgen.workload.seeds import derive
from loadgen.workload.synthetic import FIXED_NONCE, OPENING_WORDS, SyntheticPrompts

HASHED_PROMPTS = 50
"""Of each level and round; the rest follows from the same seed and lengths, hashed as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLevel:
    """One level of one round. None: known only once the server has answered.

    requests, input_tokens, output_tokens: of ``measure``; tokens are the expected ones.
    seconds: the known part of warm-up and measure, without the drain; timed: nothing but time
        ends the level, so that seconds is all of it.
    """

    label: str
    warmup: Span
    measure: Span
    requests: int | None
    input_tokens: float | None
    output_tokens: float | None
    seconds: float
    timed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPrompt:
    """A prompt that will be sent; ``text`` shows its first words."""

    level: int
    number: int
    input_tokens: int
    output_tokens: int
    text: str


def plan_level(scenario: Scenario, index: int) -> PlannedLevel:
    """Work out one level of the first round."""
    level, each = scenario.levels[index], scenario.each_level
    requests, seconds, timed = _extent(scenario, index)
    prompts = scenario.prompts
    return PlannedLevel(
        label=level.label,
        warmup=each.warmup_of(level),
        measure=each.measure,
        requests=requests,
        input_tokens=None if requests is None else requests * prompts.input_tokens.mean,
        output_tokens=None if requests is None else requests * prompts.output_tokens.mean,
        seconds=seconds,
        timed=timed,
    )


def first_prompts(scenario: Scenario, *, number: int = 2, words: int = 12) -> list[PlannedPrompt]:
    """Make the first prompts of each level; words drawn for each run are named, not shown."""
    source = _prompts_without_nonce(scenario)
    return [
        _first_words(scenario, source, place=(level, arrival), words=words)
        for level in range(len(scenario.levels))
        for arrival in range(number)
    ]


def plan_hash(scenario: Scenario) -> str:
    """Return one SHA-256 over lengths, words, arrivals and order; the nonce is left out."""
    digest = hashlib.sha256()
    source = _prompts_without_nonce(scenario)
    digest.update(_canonical(scenario.prompts.model_dump()))
    for round_ in range(scenario.rounds):
        for index, level in enumerate(scenario.levels):
            digest.update(_canonical(_load_of(scenario, level)))
            if level.rate is not None:
                digest.update(schedule_of(scenario, index, round_=round_).due_ns.tobytes())
            for number in range(HASHED_PROMPTS):
                prompt = source.prompt(level=index, round_=round_, number=number)
                sent = [prompt.hash, prompt.asked_input, prompt.asked_output]
                digest.update(_canonical(sent))
    return digest.hexdigest()


def schedule_of(scenario: Scenario, level: int, *, round_: int) -> Schedule:
    """Draw the arrivals of one open level of one round: what ``run`` will follow."""
    seed = derive(scenario.seed, "arrivals", round_, level)
    return open_schedule(scenario.levels[level], scenario.each_level, seed=seed)


def _extent(scenario: Scenario, index: int) -> tuple[int | None, float, bool]:
    level, measure = scenario.levels[index], scenario.each_level.measure
    if level.rate is not None:
        schedule = schedule_of(scenario, index, round_=0)
        warm = int(np.searchsorted(schedule.due_ns, schedule.measure_start_ns, side="left"))
        return len(schedule.due_ns) - warm, schedule.measure_end_ns / NS_PER_S, True
    requests = measure.requests if measure.seconds is None else None
    warmup = scenario.each_level.warmup_of(level)
    timed = warmup.requests is None and measure.requests is None
    return requests, (warmup.seconds or 0.0) + (measure.seconds or 0.0), timed


def _first_words(
    scenario: Scenario, source: SyntheticPrompts, *, place: tuple[int, int], words: int
) -> PlannedPrompt:
    level, number = place
    prompt = source.prompt(level=level, round_=0, number=number)
    text = prompt.text if prompt.messages is None else prompt.messages[0]["content"]
    asked_input, asked_output = source.lengths(round_=0, number=number)
    shown, parts = str(text).split(" "), []
    if scenario.nonce == "fresh":
        shared = source.shared_words(asked_input)
        opening = min(OPENING_WORDS, asked_input - shared)
        parts += [f"[{shared} words all prompts of the run share]"] if shared else []
        parts += [f"[{opening} words drawn for the run]"]
        shown = shown[shared + opening :]
    parts += [*shown[:words], *(["…"] if len(shown) > words else [])]
    return PlannedPrompt(
        level=level,
        number=number,
        input_tokens=asked_input,
        output_tokens=asked_output,
        text=" ".join(parts),
    )


def _prompts_without_nonce(scenario: Scenario) -> SyntheticPrompts:
    return SyntheticPrompts(
        scenario.prompts, seed=scenario.seed, nonce=FIXED_NONCE, endpoint=scenario.target.endpoint
    )


def _load_of(scenario: Scenario, level: Level) -> list[object]:
    each = scenario.each_level
    spans = [each.warmup_of(level).model_dump(), each.measure.model_dump()]
    return [level.model_dump(), *spans]


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
