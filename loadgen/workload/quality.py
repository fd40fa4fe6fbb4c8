"""Golden sets: questions whose answers are known, asked among the load or in a pass of their own.

A set is a file of JSON lines, one question each:

    {"id": "capital", "prompt": "…", "expect": {"exact": "Paris"}, "max_tokens": 16}

``messages`` may stand in place of ``prompt``; ``request`` holds further body fields (temperature).
The answer takes its natural length, up to max_tokens, whatever is asked of the load's own.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import orjson

from loadgen.errors import UsageError
from loadgen.scenario.expect import parse_expectation
from loadgen.scenario.model import Scenario
from loadgen.workload.prompt import Canary, Conversation, Message, Prompt, Turn, hash_of
from loadgen.workload.rows import BadRow, RowFile, Span
from loadgen.workload.seeds import derive

if TYPE_CHECKING:
    from loadgen.workload.prompts import PromptSource

MOST_TOKENS = 256
"""The most tokens of an answer, unless its question says otherwise."""

_NATURAL: Mapping[str, Any] = {"ignore_eos": None, "min_tokens": None}
"""Takes away what a scenario's ``request`` may force on its answers: it would spoil these."""

_KEYS = ("id", "prompt", "messages", "expect", "max_tokens", "request")
_SHOWN_PROBLEMS = 10
_MIDDLE = 0.5  # of the stretch between two canaries lies before the first one


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One question of a set, for one endpoint."""

    canary: Canary
    messages: tuple[Message, ...] | None
    text: str | None
    max_tokens: int
    extra: Mapping[str, Any]

    def prompt(self, *, in_pass: bool = False) -> Prompt:
        """Return it as a request."""
        messages = None if self.messages is None else list(self.messages)
        return Prompt(
            messages=messages,
            text=self.text,
            max_output=self.max_tokens,
            hash=hash_of(messages if messages is not None else self.text or ""),
            extra=self.extra,
            canary=replace(self.canary, in_pass=in_pass),
        )


class GoldenSet:
    """The questions of one file, in its order."""

    def __init__(self, path: Path, *, endpoint: Literal["chat", "completions"]) -> None:
        rows, self._questions, problems = RowFile(path, "jsonl"), list[Question](), list[str]()
        digest = hashlib.sha256()
        for span in rows.spans():
            try:
                row = rows.read(span)
                self._questions.append(read_question(row, span, endpoint=endpoint))
                digest.update(orjson.dumps(row, option=orjson.OPT_SORT_KEYS))
            except (BadRow, ValueError) as bad:
                problems.append(f"{path}: line {span.line}: {bad}")
        problems += [f"{path}: the id '{name}' is given twice" for name in self._twice()]
        if problems:
            more = len(problems) - _SHOWN_PROBLEMS
            rest = [f"{path}: and {more} more problems"] if more > 0 else []
            raise UsageError("\n".join([*problems[:_SHOWN_PROBLEMS], *rest]))
        if not self._questions:
            raise UsageError(f"{path}: holds no question; write one JSON object on each line")
        self._hash = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._questions)

    def question(self, number: int) -> Question:
        """Return a question by its place, counted on from the beginning past the end."""
        return self._questions[number % len(self._questions)]

    def facts(self) -> dict[str, Any]:
        """Say, for the manifest, how many questions of which kinds; not what they ask."""
        kinds = [question.canary.expect.kind for question in self._questions]
        counts = {kind: kinds.count(kind) for kind in sorted(set(kinds))}
        return {"questions": len(kinds), "kinds": counts, "hash": self._hash}

    def _twice(self) -> list[str]:
        names = [question.canary.id for question in self._questions]
        return sorted({name for name in names if names.count(name) > 1})


def golden_set(scenario: Scenario) -> GoldenSet | None:
    """Read the set a scenario names; None where it asks for no quality."""
    if scenario.quality is None:
        return None
    path = scenario.file(scenario.quality.golden)
    return GoldenSet(path, endpoint=scenario.target.endpoint)


def read_question(row: object, span: Span, *, endpoint: Literal["chat", "completions"]) -> Question:
    """Read one line; ValueError says what is wrong with it."""
    if not isinstance(row, dict):
        raise ValueError('is no question; write it like {"prompt": "…", "expect": {…}}')
    unknown = [key for key in row if key not in _KEYS]
    if unknown:
        raise ValueError(f"{unknown[0]}: unknown key; known are {', '.join(_KEYS)}")
    most, extra = row.get("max_tokens", MOST_TOKENS), row.get("request", {})
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ValueError("max_tokens: must be a whole number of at least 1")
    if not isinstance(extra, dict):
        raise ValueError("request: must be a mapping of body fields")
    said = _messages(row)
    if endpoint == "completions" and row.get("prompt") is None:
        raise ValueError("messages: need target.endpoint: chat; give a prompt")
    expect = parse_expectation(row.get("expect"))
    return Question(
        canary=Canary(id=str(row.get("id", f"line {span.line}"))[:64], expect=expect),
        messages=said if endpoint == "chat" else None,
        text=row["prompt"] if endpoint == "completions" else None,
        max_tokens=most,
        extra={**_NATURAL, **extra},
    )


def _messages(row: Mapping[str, Any]) -> tuple[Message, ...]:
    prompt, messages = row.get("prompt"), row.get("messages")
    if (prompt is None) == (messages is None):
        raise ValueError("give either prompt or messages")
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt.strip():
            raise ValueError("prompt: must be a text")
        return ({"role": "user", "content": prompt},)
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages: must be a list of messages")
    if not all(isinstance(one, dict) and "role" in one for one in messages):
        raise ValueError("messages: each needs a role")
    return tuple(messages)


class WithCanaries:
    """A source that puts the questions of a set among its own prompts, evenly spaced.

    Of n requests, floor(n · share + ½) are questions, in an order that each round draws for itself
    and every level begins anew: levels can be told apart by the same questions. The other source
    counts only the requests that are its own.
    """

    def __init__(
        self, source: "PromptSource", golden: GoldenSet, *, share: float, seed: int
    ) -> None:
        self._source = source
        self._golden = golden
        self._share = share
        self._seed = seed
        self._orders: dict[int, list[int]] = {}

    def prompt(self, *, level: int, round_: int, number: int) -> Prompt:
        """Return the request of one arrival."""
        if question := self._question(round_, number):
            return question.prompt()
        own = number - self._before(number)
        return self._source.prompt(level=level, round_=round_, number=own)

    def conversation(self, *, level: int, round_: int, number: int) -> Conversation:
        """Return the conversation of one arrival; a question is one of a single turn."""
        question = self._question(round_, number)
        if question is None:
            own = number - self._before(number)
            return self._source.conversation(level=level, round_=round_, number=own)
        return Conversation(
            id=f"canary {level} {round_} {number}",
            turns=(Turn(messages=question.messages or (), max_output=question.max_tokens),),
            extra=question.extra,
            canary=question.canary,
        )

    def facts(self) -> dict[str, Any]:
        """Say, for the manifest, what the prompts and the questions among them are."""
        return {**self._source.facts(), "golden": self._golden.facts()}

    def _question(self, round_: int, number: int) -> Question | None:
        before = self._before(number)
        if self._before(number + 1) == before:
            return None
        return self._golden.question(self._order(round_)[before % len(self._golden)])

    def _before(self, number: int) -> int:
        """Count the canaries among the first ``number`` requests."""
        return math.floor(number * self._share + _MIDDLE)

    def _order(self, round_: int) -> list[int]:
        if round_ not in self._orders:
            rng = np.random.default_rng(derive(self._seed, "canaries", round_))
            self._orders[round_] = rng.permutation(len(self._golden)).tolist()
        return self._orders[round_]


def with_canaries(source: "PromptSource", scenario: Scenario) -> "PromptSource":
    """Put a scenario's questions among its prompts; none where they have a pass of their own."""
    quality, golden = scenario.quality, golden_set(scenario)
    if quality is None or golden is None:
        return source
    return WithCanaries(source, golden, share=quality.share or 0.0, seed=scenario.seed)
