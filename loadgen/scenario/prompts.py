"""What the requests of a scenario say: made texts or the rows of a file, alone or in a mix."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from loadgen.scenario.fields import Count, CountOrZero, Objective, Part, Positive, Share, Switch
from loadgen.scenario.lengths import Length, ThinkTime
from loadgen.scenario.window import WindowText

FileName = Annotated[str, Field(min_length=1)]
Found = tuple[str, str]
"""A key of one part (dots lead further in), and what is wrong there; "" for the part itself."""

MISSING_INPUT = "is missing; write a number of tokens, like 512"
MISSING_OUTPUT = "is missing; write a number of tokens, like 128"

DATASET_FORMATS = ("auto", "jsonl", "json", "csv", "sharegpt", "openai_batch")
LOG_FORMATS = ("mooncake", "azure", "burstgpt", "bailian", "litellm", "litellm_spend", "langfuse",
               "otel", "columns")  # fmt: skip
"""Beside those of a dataset: what only ``source: replay`` reads."""

_ONLY_FILES = ("file", "format", "columns")
_ONLY_DATASET = ("order",)
_ONLY_SYNTHETIC = ("input_tokens", "lengths", "shared_prefix_tokens", "cache_hit_share")
ONLY_REPLAY = ("time_unit", "window", "sample", "max_context", "over_context", "roles", "failed",
                "match_output_length", "keep_model", "strict_input")  # fmt: skip
_NOT_REPLAY = ("output_tokens", "max_output_tokens", "turns", "think_time")
_ONLY_TURNS = ("think_time", "history")
_ONLY_REPLAY_COLUMNS = ("time", "end", "session", "input_tokens", "hash_ids", "model", "body")


class ConflictsError(ValueError):
    """Things that do not go together, each with the key it is about."""

    def __init__(self, found: list[Found]) -> None:
        super().__init__("; ".join(text for _, text in found))
        self.found = found


class Columns(Part):
    """Which columns (CSV) or keys (JSON) of a row hold what; those from ``time`` on of a log.

    body: a whole request body. hash_ids: prefix blocks, as in Mooncake's traces.
    """

    prompt: FileName | None = None
    messages: FileName | None = None
    output_tokens: FileName | None = None
    time: FileName | None = None
    end: FileName | None = None
    session: FileName | None = None
    input_tokens: FileName | None = None
    hash_ids: FileName | None = None
    model: FileName | None = None
    body: FileName | None = None


class Prompts(Part):
    """What one kind of request says.

    lengths: a file of input_tokens and output_tokens, drawn in pairs in place of both.
    output_tokens: natural sends no limit; max_output_tokens then is one.
    cache_hit_share: this share of each prompt's asked length is a prefix that all have in common.
    history: live repeats the server's own replies in later turns, recorded those of the dataset
        or log (of a log unless told).

    Of a log (source: replay): time_unit of numbers, where the format has no one unit. window: only
    what came in it. sample: a share of its conversations. max_context: requests longer than this
    are over_context: left out, cut, or sent. roles: what to do with messages that do not alternate.
    failed: what to do with requests that the log says have failed. match_output_length: ask for
    answers as long as the recorded ones. keep_model: ask for the models of the log. strict_input:
    refuse a log with a bad row.
    """

    source: Literal["synthetic", "dataset", "replay"] = "synthetic"
    input_tokens: Length | None = None
    output_tokens: Length | None = None
    max_output_tokens: Count | None = None
    lengths: FileName | None = None
    shared_prefix_tokens: CountOrZero = 0
    cache_hit_share: Share | None = None
    file: FileName | None = None
    format: Literal[
        "auto", "jsonl", "json", "csv", "sharegpt", "openai_batch",
        "mooncake", "azure", "burstgpt", "bailian", "litellm", "litellm_spend", "langfuse", "otel",
        "columns",
    ] = "auto"  # fmt: skip
    columns: Columns = Columns()
    order: Literal["shuffled", "file"] = "shuffled"
    turns: Length = Length(mean=1)
    think_time: ThinkTime = ThinkTime(mean_s=0.0)
    history: Literal["live", "recorded"] = "live"
    time_unit: Literal["auto", "s", "ms", "us", "ns"] = "auto"
    window: WindowText | None = None
    sample: Share | None = None
    max_context: Count | None = None
    over_context: Literal["skip", "truncate", "send"] = "skip"
    roles: Literal["send", "merge", "skip"] = "send"
    failed: Literal["skip", "send"] = "skip"
    match_output_length: Switch = False
    keep_model: Switch = False
    strict_input: Switch = False

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
        """Say that a conversation may have more than one turn; of a log the file says that."""
        return not self.turns.always_one

    @property
    def repeats(self) -> Literal["live", "recorded"]:
        """Whose replies later turns repeat: a log's own, unless told."""
        recorded = self.source == "replay" and "history" not in self.model_fields_set
        return "recorded" if recorded else self.history

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
    if source in _CONFLICTS:
        yield from _CONFLICTS[source](keys)
    yield from _misread(given, source)
    if source == "replay":
        return
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


def _conflicts_of_synthetic(keys: set[str]) -> Iterator[Found]:
    for key in (*_ONLY_FILES, *_ONLY_DATASET):
        if key in keys:
            yield "", f"{key} goes with source: dataset; add that, or leave {key} out"
    yield from _of_replay_alone(keys)
    for key, missing in (("input_tokens", MISSING_INPUT), ("output_tokens", MISSING_OUTPUT)):
        if key not in keys and "lengths" not in keys:
            yield key, missing
        elif key in keys and "lengths" in keys:
            yield "", f"both lengths and {key} are given; keep one"


def _conflicts_of_dataset(keys: set[str]) -> Iterator[Found]:
    for key in _ONLY_SYNTHETIC:
        if key in keys:
            yield "", f"{key} goes with source: synthetic; a dataset's prompts are as they are"
    yield from _of_replay_alone(keys)
    if "file" not in keys:
        yield "file", "is missing; name the dataset, like prompts.jsonl"


def _conflicts_of_replay(keys: set[str]) -> Iterator[Found]:
    for key in (*_ONLY_SYNTHETIC, *_ONLY_DATASET, *_NOT_REPLAY):
        if key in keys:
            yield "", f"{key} does not go with source: replay; the log says it"
    if "file" not in keys:
        yield "file", "is missing; name the log, like requests.jsonl"
    if "over_context" in keys and "max_context" not in keys:
        yield "", "over_context goes with max_context, like max_context: 8192"


_CONFLICTS: Mapping[object, Callable[[set[str]], Iterator[Found]]] = {
    "synthetic": _conflicts_of_synthetic,
    "dataset": _conflicts_of_dataset,
    "replay": _conflicts_of_replay,
}


def _of_replay_alone(keys: set[str]) -> Iterator[Found]:
    for key in ONLY_REPLAY:
        if key in keys:
            yield "", f"{key} goes with source: replay; add that, or leave {key} out"


def _misread(given: Mapping[str, Any], source: object) -> Iterator[Found]:
    """Say which format or column only a log has, or cannot have."""
    if source != "dataset":
        if given.get("sample") == 0:
            yield "sample", "must be above 0"
        return
    if given.get("format") in LOG_FORMATS:
        yield "format", f"'{given['format']}' is the format of a log; read it with source: replay"
    columns = given.get("columns")
    named = columns if isinstance(columns, Mapping) else {}
    if isinstance(columns, Columns):
        named = columns.model_dump(exclude_none=True)
    for name in _ONLY_REPLAY_COLUMNS:
        if name in named:
            yield f"columns.{name}", "goes with source: replay"


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
