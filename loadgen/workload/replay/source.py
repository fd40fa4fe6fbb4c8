"""A log as the prompts of a run: requests as they were, conversations, or words of the same length.

A level that follows the log gets its requests in their order, from the first on. Any other level
walks through the log as through a dataset: each level of each round has its own equal stretch of
it, is over where that ends (``once``), or goes on, from the beginning where the log ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.errors import UsageError
from loadgen.scenario.levels import Level
from loadgen.scenario.prompts import Prompts
from loadgen.units import NS_PER_S
from loadgen.workload.prompt import Conversation, Message, Prompt, Turn, hash_of
from loadgen.workload.replay.entry import Entry, chars_of
from loadgen.workload.replay.found import facts_of
from loadgen.workload.replay.index import CHARS_PER_TOKEN, Log
from loadgen.workload.replay.roles import merged
from loadgen.workload.replay.select import Kept, gaps_capped, over_context, part_of, think_ns
from loadgen.workload.replay.words import LogWords, Place
from loadgen.workload.synthetic import conversation_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What of a log a run replays, and how. class_: of a mix."""

    log: Log
    kept: Kept
    levels: Sequence[Level]
    rounds: int
    chat: bool
    class_: str | None = None


class ReplayPrompts:
    """The requests of one log."""

    def __init__(self, prompts: Prompts, replay: Replay, words: LogWords) -> None:
        self._prompts = prompts
        self._replay = replay
        self._words = words

    def prompt(self, *, level: int, round_: int, number: int) -> Prompt:
        """Return the request of one arrival; of a conversation its first turn."""
        conversation, place = self._which(level, round_, number)
        first = int(self._replay.kept.firsts[conversation])
        entry = self._replay.log.entry(first)
        chat = self._replay.chat
        said = self._messages(entry, first, place) if chat else None
        text = None if chat else self._text(entry, first, place)
        output, limit = self._answer(entry)
        return Prompt(
            messages=said,
            text=text,
            asked_input=self._asked(entry),
            asked_output=output,
            max_output=limit,
            hash=hash_of(said if said is not None else text or ""),
            class_=self._replay.class_,
            extra=entry.params,
            model=self._model(entry),
        )

    def conversation(self, *, level: int, round_: int, number: int) -> Conversation:
        """Return the turns of one conversation of the log."""
        conversation, place = self._which(level, round_, number)
        members = [int(one) for one in self._replay.kept.of(conversation)]
        turns: list[Turn] = []
        before: list[Message] | None = None
        for at, member in enumerate(members):
            entry = self._replay.log.entry(member)
            messages = self._messages(entry, member, place)
            new = self._added(messages, before) if self._prompts.repeats == "live" else None
            pause = self._think_s(level, members[at - 1], member) if at else 0.0
            turns.append(self._turn(entry, new, messages, pause))
            before = messages
        return Conversation(
            id=conversation_id(self._replay.class_, (level, round_, number)),
            turns=tuple(turns),
            history=self._prompts.repeats,
            class_=self._replay.class_,
        )

    def facts(self) -> dict[str, Any]:
        """Say, for the manifest, what the log holds and what of it is replayed."""
        prompts, replay = self._prompts, self._replay
        facts = facts_of(replay.log)
        if not prompts.keep_model and facts["models"]:
            facts["overridden"] = {**facts["overridden"], "model": facts["models"]}
        return {
            "source": "replay",
            "file": prompts.file,
            "format_told": prompts.format != "auto",
            **facts,
            "history": prompts.repeats,
            "replayed": {
                "requests": len(replay.kept.members),
                "conversations": replay.kept.conversations,
                "left_out": replay.kept.left_out,
                "jitter": any(level.jitter for level in replay.levels),
                "gaps_capped": [gaps_capped(replay.log, replay.kept, one) for one in replay.levels],
                **self._cut(),
            },
        }

    # --- which

    def _which(self, level: int, round_: int, number: int) -> tuple[int, Place]:
        """Return the conversation of an arrival, and the place of its words."""
        replay = self._replay
        total = replay.kept.conversations
        start = 0
        if replay.levels[level].speed is None:
            shares = len(replay.levels) * replay.rounds
            start = part_of(total, share=round_ * len(replay.levels) + level, shares=shares).start
        passed, conversation = divmod(start + number, total)
        return conversation, (level, round_, passed)

    def _cut(self) -> dict[str, int]:
        prompts, replay = self._prompts, self._replay
        if prompts.max_context is None:
            return {}
        over = over_context(replay.log, prompts.max_context)[replay.kept.members]
        return {
            "truncated" if prompts.over_context == "truncate" else "over_context": int(sum(over))
        }

    # --- what

    def _turn(
        self, entry: Entry, new: list[Message] | None, messages: list[Message], pause: float
    ) -> Turn:
        """new: what the turn adds to the one before, where that can be told apart."""
        output, limit = self._answer(entry)
        return Turn(
            messages=tuple(messages if new is None else new),
            input_tokens=self._asked(entry) if new is None else None,
            asked_output=output,
            max_output=limit,
            think_s=pause,
            whole=new is None,
            extra=entry.params,
            model=self._model(entry),
        )

    def _messages(self, entry: Entry, member: int, place: Place) -> list[Message]:
        if entry.messages is None:
            return [{"role": "user", "content": self._text(entry, member, place)}]
        messages = entry.messages
        if self._prompts.roles == "merge":
            messages = merged(messages)
            if not messages:
                raise UsageError(
                    f"{self._replay.log.path}: line {self._replay.log.line[member]}: has nothing "
                    "but an answer; leave such requests out with roles: skip"
                )
        return _shortened(messages, self._allowed(entry), entry)

    def _text(self, entry: Entry, member: int, place: Place) -> str:
        size = entry.input_tokens or 1
        allowed = self._allowed(entry)
        if entry.text is None:
            fits = size if allowed is None else min(size, allowed)
            return self._words.text(entry, member, place, size=max(fits, 1))
        if allowed is None:
            return entry.text
        return entry.text[: round(len(entry.text) * _kept_share(entry, allowed))] or entry.text[:1]

    def _allowed(self, entry: Entry) -> int | None:
        """Return the most tokens that a request may have; None where nothing is cut."""
        most = self._prompts.max_context
        if most is None or self._prompts.over_context != "truncate":
            return None
        return max(most - (entry.output_tokens or 0), 1)

    def _asked(self, entry: Entry) -> int | None:
        """Return the tokens asked for: only words are made to a length."""
        if entry.has_text or not entry.input_tokens:
            return None
        allowed = self._allowed(entry)
        return entry.input_tokens if allowed is None else min(entry.input_tokens, allowed)

    def _answer(self, entry: Entry) -> tuple[int | None, int | None]:
        """Return the length an answer is to have, and the most it may have."""
        recorded = entry.output_tokens
        if recorded is None and self._prompts.match_output_length and entry.reply_chars:
            recorded = max(1, entry.reply_chars // CHARS_PER_TOKEN)
        if recorded is not None and (not entry.has_text or self._prompts.match_output_length):
            return max(recorded, 1), None
        return None, entry.max_output

    def _model(self, entry: Entry) -> str | None:
        return entry.model if self._prompts.keep_model else None

    def _think_s(self, level: int, earlier: int, later: int) -> float:
        """Return the pause before a turn; none where a level does not follow the log's times."""
        asked = self._replay.levels[level]
        if asked.speed is None:
            return 0.0
        pause = think_ns(self._replay.log, earlier, later) / NS_PER_S
        if asked.max_gap_s is not None:
            pause = min(pause, asked.max_gap_s)
        return pause / asked.speed

    @staticmethod
    def _added(messages: list[Message], before: list[Message] | None) -> list[Message] | None:
        """Return what follows the recorded reply; None where the request does not go on from it."""
        if before is None or messages[: len(before)] != before:
            return None
        reply, new = messages[len(before) : len(before) + 1], messages[len(before) + 1 :]
        return new if new and reply[0]["role"] == "assistant" else None


def _kept_share(entry: Entry, allowed: int) -> float:
    chars = chars_of(entry.messages, entry.text)
    return min(1.0, allowed / (entry.input_tokens or max(1, chars // CHARS_PER_TOKEN)))


def _shortened(messages: list[Message], allowed: int | None, entry: Entry) -> list[Message]:
    """Cut the end off the longest text, so far as the request's share of tokens asks for."""
    if allowed is None or (share := _kept_share(entry, allowed)) == 1.0:
        return messages
    texts = [len(one["content"]) if isinstance(one.get("content"), str) else 0 for one in messages]
    longest = max(range(len(texts)), key=texts.__getitem__)
    gone = round(sum(texts) * (1 - share))
    kept = max(texts[longest] - gone, min(texts[longest], 1))
    cut = {**messages[longest], "content": messages[longest]["content"][:kept]}
    return [*messages[:longest], cut, *messages[longest + 1 :]] if texts[longest] else messages
