"""The one door to what is sent: a scenario's prompts, whatever they are made of.

Every source answers the same questions, purely: the same arguments give the same prompt in any
process, so any worker can make any prompt.
"""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from loadgen.scenario.model import Scenario
from loadgen.scenario.prompts import Prompts
from loadgen.workload.dataset import DatasetPrompts, Use, read_pairs
from loadgen.workload.prompt import Conversation, Prompt
from loadgen.workload.quality import with_canaries
from loadgen.workload.replay.follow import replay_source
from loadgen.workload.seeds import derive
from loadgen.workload.synthetic import Given, Overhead, SyntheticPrompts

Classes = npt.NDArray[np.int64]

_BLOCK = 1024


class PromptSource(Protocol):
    """Makes what a run sends."""

    def prompt(self, *, level: int, round_: int, number: int) -> Prompt:
        """Return the request of one arrival; where there are conversations, its first turn."""

    def conversation(self, *, level: int, round_: int, number: int) -> Conversation:
        """Return the conversation that one arrival begins; of one turn where none is asked for."""

    def facts(self) -> dict[str, Any]:
        """Say, for the manifest, what the prompts are made of."""


def prompt_source(
    scenario: Scenario, *, nonce: str, overhead: Overhead | None = None
) -> PromptSource:
    """Return the source of a scenario's prompts.

    nonce: hex text drawn for the run, or "fixed". overhead: what was found out about the server's
    tokens; None sends as many words as tokens are asked for. Reads the files the scenario names;
    raises UsageError where one cannot be used, MissingExtra where one needs a package.
    """
    sources = [
        _source(scenario, prompts, class_=name, nonce=nonce, overhead=overhead or Overhead())
        for name, prompts in scenario.classes
    ]
    if scenario.one_kind is not None:
        return with_canaries(sources[0], scenario)
    named = {part.name: source for part, source in zip(scenario.mix, sources, strict=True)}
    weights = [part.weight for part in scenario.mix]
    return with_canaries(MixedPrompts(named, weights, seed=scenario.seed), scenario)


def _source(
    scenario: Scenario, prompts: Prompts, *, class_: str | None, nonce: str, overhead: Overhead
) -> PromptSource:
    endpoint = scenario.target.endpoint
    if prompts.source == "replay":
        return replay_source(scenario, prompts, nonce=nonce, overhead=overhead, class_=class_)
    if prompts.source == "dataset":
        use = Use(
            seed=scenario.seed,
            endpoint=endpoint,
            levels=len(scenario.levels),
            rounds=scenario.rounds,
            class_=class_,
        )
        return DatasetPrompts(prompts, scenario.file(prompts.file or ""), use)
    pairs = read_pairs(scenario.file(prompts.lengths)) if prompts.lengths else None
    given = Given(class_=class_, overhead=overhead, pairs=pairs)
    return SyntheticPrompts(
        prompts, seed=scenario.seed, nonce=nonce, endpoint=endpoint, given=given
    )


class Drawn(NamedTuple):
    """A class of the mix, and how many of it came before: its own number."""

    class_index: int
    number: int


class MixedPrompts:
    """Several sources; which one a request comes from is drawn by weight from a seed of its own.

    The n-th requests of all levels are of the same class; each round draws its own. A source counts
    only the requests that are its own, so that a dataset in a mix leaves out no row.
    """

    def __init__(
        self, sources: dict[str, PromptSource], weights: list[float], *, seed: int
    ) -> None:
        self._sources = list(sources.values())
        self._names = list(sources)
        self._shares = np.array(weights) / sum(weights)
        self._seed = seed
        self._before: dict[int, list[Classes]] = {}
        self._last: tuple[tuple[int, int], Classes] | None = None

    def prompt(self, *, level: int, round_: int, number: int) -> Prompt:
        """Return the prompt of one arrival, of the class drawn for it."""
        drawn = self.drawn(round_=round_, number=number)
        source = self._sources[drawn.class_index]
        return source.prompt(level=level, round_=round_, number=drawn.number)

    def conversation(self, *, level: int, round_: int, number: int) -> Conversation:
        """Return the conversation of one arrival, of the class drawn for it."""
        drawn = self.drawn(round_=round_, number=number)
        source = self._sources[drawn.class_index]
        return source.conversation(level=level, round_=round_, number=drawn.number)

    def facts(self) -> dict[str, Any]:
        """Say, for each class, what its prompts are made of."""
        facts = {name: made.facts() for name, made in zip(self._names, self._sources, strict=True)}
        return {"source": "mix", "classes": facts}

    def drawn(self, *, round_: int, number: int) -> Drawn:
        """Return the class of one request and its number within the class."""
        block, within = divmod(number, _BLOCK)
        classes = self._classes(round_, block)
        index = int(classes[within])
        earlier = int(np.count_nonzero(classes[:within] == index))
        return Drawn(index, int(self._counts(round_, block)[index]) + earlier)

    def _classes(self, round_: int, block: int) -> Classes:
        if self._last is None or self._last[0] != (round_, block):
            rng = np.random.default_rng(derive(self._seed, "classes", round_, block))
            drawn = rng.choice(len(self._shares), size=_BLOCK, p=self._shares)
            self._last = ((round_, block), drawn)  # requests come in order: one block is enough
        return self._last[1]

    def _counts(self, round_: int, block: int) -> Classes:
        """Return how many of each class come before a block; counted once, then remembered."""
        none = np.zeros(len(self._shares), dtype=np.int64)
        known = self._before.setdefault(round_, [none])
        while len(known) <= block:
            drawn = self._classes(round_, len(known) - 1)
            known.append(known[-1] + np.bincount(drawn, minlength=len(self._shares)))
        return known[block]
