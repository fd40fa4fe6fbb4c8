"""What requests will say, before any server's dialect is known: prompts and conversations."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from loadgen.scenario.expect import Expectation

Message = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A question of a golden set: its id there, and what its answer must be.

    in_pass: asked in a pass of its own, not among the load.
    """

    id: str
    expect: Expectation
    in_pass: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What is sent. Exactly one of ``messages`` (chat) and ``text`` (completions) is set.

    asked_input, asked_output: tokens asked for; None where the text was not made to a length, or
        the answer may take its natural length.
    max_output: the most tokens of an answer of natural length; None where nothing limits it.
    hash: short hash of the whole text, stored in its place (prompts are private).
    extra: further body fields of this prompt alone (tools, sampling parameters of a log).
    canary: where it is a question of the golden set, and no part of what is measured.
    model: the one to ask in place of the run's (of a log whose models are kept).
    """

    messages: list[Message] | None = None
    text: str | None = None
    asked_input: int | None = None
    asked_output: int | None = None
    max_output: int | None = None
    hash: str
    class_: str | None = None
    conversation: str | None = None
    turn: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    canary: Canary | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a user says next, and what was once answered.

    messages: new in this turn (a system message may come before the user's).
    input_tokens: tokens asked for these messages alone, not for the history before them.
    think_s: the pause between the end of the reply before and this turn; 0 for the first.
    reply: the recorded messages that follow, None where none are known.
    whole: the messages are the whole request, all that was said before included.
    extra, model: further body fields, and the model to ask, of this turn alone.
    """

    messages: tuple[Message, ...]
    input_tokens: int | None = None
    asked_output: int | None = None
    max_output: int | None = None
    think_s: float = 0.0
    reply: tuple[Message, ...] | None = None
    reply_tokens: int | None = None
    whole: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Linked requests, sent one after another; each repeats all that was said before.

    history: "live" repeats the server's own replies, "recorded" those of the turns.
    turn_overhead: tokens that a template adds for each reply and turn after the first.
    """

    id: str
    turns: tuple[Turn, ...]
    history: Literal["live", "recorded"] = "live"
    class_: str | None = None
    turn_overhead: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)
    canary: Canary | None = None

    def prompt(self, turn: int, replies: Sequence[str] = ()) -> Prompt:
        """Return the request of one turn; replies: what the server answered to the earlier ones."""
        now = self.turns[turn]
        messages: list[Message] = []
        for number, earlier in enumerate(self.turns[:turn]):
            messages = [*([] if earlier.whole else messages), *earlier.messages]
            if self.history == "recorded" and earlier.reply is not None:
                messages += earlier.reply
            else:
                messages.append({"role": "assistant", "content": replies[number]})
        messages = [*([] if now.whole else messages), *now.messages]
        return Prompt(
            messages=messages,
            asked_input=self._asked_input(turn),
            asked_output=now.asked_output,
            max_output=now.max_output,
            hash=hash_of(messages),
            class_=self.class_,
            conversation=self.id,
            turn=turn,
            extra={**self.extra, **now.extra},
            canary=self.canary,
            model=now.model,
        )

    def _asked_input(self, turn: int) -> int | None:
        """Sum what was asked for; None where the server's own replies are part of it."""
        if self.turns[turn].whole:
            return self.turns[turn].input_tokens
        own = [one.input_tokens for one in self.turns[: turn + 1]]
        said = [one.reply_tokens for one in self.turns[:turn]]
        live = turn > 0 and self.history == "live"
        if live or None in own or None in said:
            return None
        return sum(filter(None, [*own, *said])) + turn * self.turn_overhead


def hash_of(said: str | Sequence[Message]) -> str:
    """Return the short hash of a text or of messages; one user's plain text hashes as the text."""
    if not isinstance(said, str) and len(said) == 1 and said[0].keys() == {"role", "content"}:
        only = said[0]
        if only["role"] == "user" and isinstance(only["content"], str):
            said = only["content"]
    plain = said.encode("utf-8", "surrogatepass") if isinstance(said, str) else orjson.dumps(said)
    return hashlib.sha256(plain).hexdigest()[:16]
