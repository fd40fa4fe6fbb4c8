"""What the requests of a scenario say: made texts or the rows of a file, alone or in a mix."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from loadgen.scenario.fields import Count, CountOrZero, Objective, Part, Positive, Share
from loadgen.scenario.lengths import Length, ThinkTime

FileName = Annotated[str, Field(min_length=1)]
Found = tuple[str, str]
"""A key of one part (dots lead further in), and what is wrong there; "" for the part itself."""

MISSING_INPUT = "is missing; write a number of tokens, like 512"
MISSING_OUTPUT = "is missing; write a number of tokens, like 128"

_ONLY_DATASET = ("file", "format", "columns", "order")
_ONLY_SYNTHETIC = ("input_tokens", "lengths", "shared_prefix_tokens", "cache_hit_share")
_ONLY_TURNS = ("think_time", "history")


class ConflictsError(ValueError):
    """Things that do not go together, each with the key it is about."""

    def __init__(self, found: list[Found]) -> None:
        super().__init__("; ".join(text for _, text in found))
        self.found = found


class Columns(Part):
    """Which columns (CSV) or keys (JSON) of a row hold what."""

    prompt: FileName | None = None
    messages: FileName | None = None
    output_tokens: FileName | None = None


class Prompts(Part):
    """What one kind of request says.

    lengths: a file of input_tokens and output_tokens, drawn in pairs in place of both.
    output_tokens: natural sends no limit; max_output_tokens then is one.
    cache_hit_share: this share of each prompt's asked length is a prefix that all have in common.
    history: live repeats the server's own replies in later turns, recorded those of the dataset.
    """

    source: Literal["synthetic", "dataset"] = "synthetic"
    input_tokens: Length | None = None
    output_tokens: Length | None = None
    max_output_tokens: Count | None = None
    lengths: FileName | None = None
    shared_prefix_tokens: CountOrZero = 0
    cache_hit_share: Share | None = None
    file: FileName | None = None
    format: Literal["auto", "jsonl", "json", "csv", "sharegpt", "openai_batch"] = "auto"
    columns: Columns = Columns()
    order: Literal["shuffled", "file"] = "shuffled"
    turns: Length = Length(mean=1)
    think_time: ThinkTime = ThinkTime(mean_s=0.0)
    history: Literal["live", "recorded"] = "live"

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        given = {key: getattr(self, key) for key in self.model_fields_set}
        if found := list(prompt_conflicts(given)):
            raise ConflictsError(found)
        expected = self.input_tokens.expected if self.input_tokens else None
        if expected is not None and 0 < expected <= self.shared_prefix_tokens:
            raise ValueError(
                f"shared_prefix_tokens ({self.shared_prefix_tokens}) must be below input_tokens "
                f"({expected:g}): something must differ"
            )
        return self

    @property
    def conversational(self) -> bool:
        """Say that a conversation may have more than one turn."""
        return not self.turns.always_one

    @property
    def files(self) -> dict[str, str]:
        """The files that these prompts need, by key."""
        named = {"file": self.file, "lengths": self.lengths}
        return {key: name for key, name in named.items() if name is not None}


def prompt_conflicts(given: Mapping[str, Any]) -> Iterator[Found]:
    """Say which keys of some prompts, checked or as the file has them, do not go together."""
    keys = {key for key, value in given.items() if value is not None}
    source = given.get("source", "synthetic")
    dataset = source == "dataset"
    if source in ("synthetic", "dataset"):
        yield from _conflicts_of_source(keys, dataset=dataset)
    for key in ("input_tokens", "turns"):
        if _natural(given.get(key)):
            yield key, "must be a number; only output_tokens can be natural"
    natural = _natural(given.get("output_tokens"))
    free = natural or (dataset and "output_tokens" not in keys)
    if "max_output_tokens" in keys and not free:
        yield "", "max_output_tokens goes with output_tokens: natural; leave it out"
    if {"shared_prefix_tokens", "cache_hit_share"} <= keys:
        yield "", "both shared_prefix_tokens and cache_hit_share are given; keep one"
    if _one(given.get("turns", 1)):
        for key in _ONLY_TURNS:
            if key in keys:
                yield "", f"{key} goes with turns; add turns: 3, or leave it out"
    elif given.get("history") == "recorded" and natural and not dataset:
        yield "", "history: recorded makes replies of output_tokens, so these cannot be natural"


def _conflicts_of_source(keys: set[str], *, dataset: bool) -> Iterator[Found]:
    if dataset:
        for key in _ONLY_SYNTHETIC:
            if key in keys:
                yield "", f"{key} goes with source: synthetic; a dataset's prompts are as they are"
        if "file" not in keys:
            yield "file", "is missing; name the dataset, like prompts.jsonl"
        return
    for key in _ONLY_DATASET:
        if key in keys:
            yield "", f"{key} goes with source: dataset; add that, or leave {key} out"
    for key, missing in (("input_tokens", MISSING_INPUT), ("output_tokens", MISSING_OUTPUT)):
        if key not in keys and "lengths" not in keys:
            yield key, missing
        elif key in keys and "lengths" in keys:
            yield "", f"both lengths and {key} are given; keep one"


def _natural(value: object) -> bool:
    if isinstance(value, Length):
        return value.natural
    return isinstance(value, str) and value.strip().lower() == "natural"


def _one(value: object) -> bool:
    return value.always_one if isinstance(value, Length) else value == 1


class MixPart(Part):
    """One class of a mix: a share of the requests, with prompts and objectives of its own."""

    name: str
    weight: Positive = 1.0
    prompts: Prompts
    objectives: tuple[Objective, ...] = ()

    @field_validator("name")
    @classmethod
    def _short_and_plain(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,31}", name):
            raise ValueError("names a class: up to 32 letters, digits, dots, dashes or spaces")
        return name
