"""Makers of logs for tests, and what a replay of one amounts to."""

import json
from pathlib import Path
from typing import Any

import pytest
from dataset_make import as_lines, written
from scenario_make import ROOT, make_scenario

from loadgen.scenario.model import Scenario
from loadgen.scenario.prompts import Columns, Prompts
from loadgen.workload.prompt import Prompt
from loadgen.workload.prompts import PromptSource, prompt_source
from loadgen.workload.replay.entry import Entry, Reading
from loadgen.workload.replay.formats import FORMATS, format_of
from loadgen.workload.replay.index import Log

Row = dict[str, Any]

TRACES = ROOT.parent / "shared" / "traces"
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="../shared/traces is absent")


def mooncake(at_ms: float, ids: list[int] | None = None, **more: Any) -> Row:
    """A row of Mooncake's format, of one block for each id."""
    tokens = 512 * len(ids) if ids else 20
    row = {"timestamp": at_ms, "input_length": tokens, "output_length": 4, "hash_ids": ids or []}
    return {**row, **more}


def chat(*texts: str) -> list[Row]:
    """Messages that alternate, the user first."""
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


def litellm(at_s: float, messages: list[Row], **more: Any) -> Row:
    """A row of LiteLLM's payload log."""
    row = {"call_type": "acompletion", "startTime": 1764480000 + at_s, "messages": messages}
    return {**row, "stream": True, "model_parameters": {}, **more}


def sessions(number: int, turns: int, *, every_s: float = 1.0) -> list[Row]:
    """Conversations, turn by turn: each row holds all that was said before."""
    rows = []
    for turn in range(turns):
        for one in range(number):
            said = [f"{one}.{at}" for at in range(2 * turn + 1)]
            at_s = turn * every_s * number + one * every_s
            rows.append(litellm(at_s, chat(*said), session_id=f"s{one}", endTime=None))
    return rows


def log_file(directory: Path, rows: list[Row] | bytes | str, name: str = "log.jsonl") -> Path:
    """Write a log."""
    return written(directory, as_lines(rows) if isinstance(rows, list) else rows, name)


def read(path: Path, *, chat: bool = True, **keys: Any) -> Log:
    """Go through a log as the prompts with these keys."""
    keys = {"source": "replay", "file": path.name, **keys}
    return Log(path, Prompts.model_validate(keys), chat=chat)


def entry(row: object, format_: str | None = None, **columns: str) -> Entry:
    """Read one row, of whatever format it is."""
    named = Columns(**columns)
    found = FORMATS[format_ or format_of(row, named)].entries(row, Reading(columns=named))
    assert len(found) == 1
    return found[0]


def replaying(
    path: Path, level: dict[str, Any] | None = None, *, parts: dict[str, Any] | None = None,
    **keys: Any,
) -> Scenario:  # fmt: skip
    """A scenario that replays a log."""
    prompts = {"source": "replay", "file": str(path), **keys}
    return make_scenario(prompts=prompts, levels=[level or {"speed": 1}], **(parts or {}))


def source(path: Path, level: dict[str, Any] | None = None, **keys: Any) -> PromptSource:
    """What a replay of a log sends."""
    return prompt_source(replaying(path, level, **keys), nonce="ab")


def first(path: Path, **keys: Any) -> Prompt:
    """The first request of a replay."""
    return source(path, **keys).prompt(level=0, round_=0, number=0)


def body_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
