"""One prompt: what a request will say, before any server's dialect is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What is sent. Exactly one of ``messages`` (chat) and ``text`` (completions) is set.

    asked_input, asked_output: tokens asked for; None where the text was not made to a length, or
        the answer may take its natural length.
    hash: short hash of the whole text, stored in its place (prompts are private).
    extra: further body fields of this prompt alone (tools, sampling parameters of a log).
    """

    messages: list[dict[str, Any]] | None = None
    text: str | None = None
    asked_input: int | None = None
    asked_output: int | None = None
    hash: str
    class_: str | None = None
    conversation: str | None = None
    turn: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
