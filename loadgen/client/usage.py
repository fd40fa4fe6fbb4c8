"""Tokens as the server counts them: once each, whatever way it reports them.

- Usage that comes with choices is a running total: the last one counts. With several choices asked
  for, each choice has a total of its own (vLLM, SGLang, llama.cpp), unless the totals keep rising
  from choice to choice over repeated reports: then they are one total over all choices.
- Usage with empty choices is final: the last one counts. Only where the request asked for several
  choices or prompts are they summed (llama.cpp sends one for each).
- A chunk's own tokens are the rise of the running total since the choice's last token chunk, or
  the number of its token ids; tokens of events that carried no text belong to the next chunk.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from loadgen.client.wire import count


class UsageLedger:
    """Collects the usage of one answer.

    first_chunk: tokens of the first token chunk (k1), None where unknown.
    """

    __slots__ = (
        "_at_chunk",
        "_chunk_sum",
        "_closing",
        "_highest",
        "_ids",
        "_last",
        "_many",
        "_reports",
        "_rising",
        "_running",
        "_several_prompts",
        "_unknown",
        "_whole",
        "first_chunk",
    )

    def __init__(
        self,
        *,
        endpoint: Literal["chat", "completions"],
        expects_many: bool,
        several_prompts: bool | None = None,
    ) -> None:
        # choices of one prompt share it; only several prompts have a count each
        if several_prompts is None:
            several_prompts = expects_many and endpoint == "completions"
        self.first_chunk: int | None = None
        self._several_prompts = several_prompts
        self._many = expects_many
        self._last: dict[str, Any] | None = None
        self._closing: list[dict[str, Any]] = []  # usages with empty choices
        self._running: dict[int, dict[str, Any]] = {}  # last usage that came with a choice
        self._whole: dict[str, Any] | None = None  # last usage that came with several choices
        self._reports: dict[int, int] = {}  # how many such usages per choice
        self._highest = -1
        self._rising = True  # each running total above all before it
        self._ids: dict[int, int] = {}  # token ids not yet credited to a chunk
        self._at_chunk: dict[int, int] = {}  # running total at the choice's last token chunk
        self._chunk_sum = 0
        self._unknown: set[int] = set()  # choices with a chunk of unknown size

    def take(self, usage: object, choices: Sequence[Any]) -> int | None:
        """Note one usage; return the running total of the single choice it came with, if so."""
        if type(usage) is not dict:
            return None
        tokens = usage.get("completion_tokens")
        if type(tokens) is not int or tokens < 0:
            tokens = None
        if tokens or self._last is None or not self._last.get("completion_tokens"):
            self._last = usage
        if not self._many:
            return tokens if len(choices) == 1 else None
        if not choices:
            self._closing.append(usage)
            return None
        if len(choices) > 1 or type(choices[0]) is not dict:
            self._whole = usage
            return None
        self._take_running(usage, choices[0].get("index"), tokens)
        return tokens

    def _take_running(self, usage: dict[str, Any], index: object, tokens: int | None) -> None:
        choice = index if type(index) is int else 0
        self._running[choice] = usage
        self._reports[choice] = self._reports.get(choice, 0) + 1
        if tokens is not None:
            self._rising = self._rising and tokens > self._highest
            self._highest = max(self._highest, tokens)

    def take_ids(self, choice: int, ids: object) -> None:
        """Note the token ids of an event; they are credited to the choice's next token chunk."""
        if type(ids) is list:
            self._ids[choice] = self._ids.get(choice, 0) + len(ids)

    def chunk_tokens(self, choice: int, running: int | None) -> int | None:
        """Return the tokens of a token chunk; ``running`` is the total that came with it."""
        before = self._at_chunk.get(choice, 0)
        tokens = self._ids.pop(choice, None) if self._ids else None
        if running is not None:
            self._at_chunk[choice] = running
            if tokens is None and choice not in self._unknown:
                tokens = running - before
        elif tokens is not None:
            self._at_chunk[choice] = before + tokens
        if tokens is None or tokens < 0:
            self._unknown.add(choice)  # later totals hold this chunk's tokens too
            return None
        if self.first_chunk is None:
            self.first_chunk = tokens
        self._chunk_sum += tokens
        return tokens

    def chunks_agree(self) -> bool:
        """Say whether every chunk's tokens are known and do not exceed the total."""
        if not self._chunk_sum or self._unknown or (len(self._running) > 1 and self._one_total()):
            return False
        output = self.output()
        return output is None or self._chunk_sum <= output

    def output(self) -> int | None:
        """Tokens generated, as reported; None where no usage said so."""
        return self._sum("completion_tokens")

    def input(self) -> int | None:
        """Tokens of the prompt, as reported."""
        return self._prompt_sum(_prompt_tokens)

    def cached(self) -> int | None:
        """Prompt tokens taken from the server's cache, as reported."""
        return self._prompt_sum(_cached_tokens)

    def reasoning(self) -> int | None:
        """Reasoning tokens among the output, as reported (vLLM says 0 whatever it streamed)."""
        return _total([_reasoning_tokens(usage) for usage in self._counting()])

    def _sum(self, key: str) -> int | None:
        return _total([count(usage.get(key)) for usage in self._counting()])

    def _prompt_sum(self, read: Callable[[dict[str, Any]], int | None]) -> int | None:
        """Add up over prompts; the choices of one prompt share it, so there the last counts."""
        values = [read(usage) for usage in self._counting()]
        return _total(values if self._several_prompts else values[-1:])

    def _counting(self) -> list[dict[str, Any]]:
        """Return the usages that count, each once."""
        if not self._many:
            return [] if self._last is None else [self._last]
        if self._closing:
            return self._closing
        if self._whole is not None:
            return [self._whole]
        if self._one_total():
            return [] if self._last is None else [self._last]
        return list(self._running.values())

    def _one_total(self) -> bool:
        """Say whether running totals span all choices (see the head of this file)."""
        return self._rising and any(reports > 1 for reports in self._reports.values())


def _total(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _prompt_tokens(usage: dict[str, Any]) -> int | None:
    return count(usage.get("prompt_tokens"))


def _cached_tokens(usage: dict[str, Any]) -> int | None:
    details = usage.get("prompt_tokens_details")
    return count(details.get("cached_tokens")) if isinstance(details, dict) else None


def _reasoning_tokens(usage: dict[str, Any]) -> int | None:
    details = usage.get("completion_tokens_details")
    nested = count(details.get("reasoning_tokens")) if isinstance(details, dict) else None
    return nested if nested is not None else count(usage.get("reasoning_tokens"))
