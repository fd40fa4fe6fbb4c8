"""Whose turn it is: most chat templates refuse messages whose roles do not alternate."""

from collections.abc import Sequence

from loadgen.workload.prompt import Message

_HEAD = ("system", "developer")


def alternate(messages: Sequence[Message]) -> bool:
    """Say whether user and assistant take turns, the user first; the answers of tools come between.

    Instructions stand before all else.
    """
    before = ""
    for message in messages:
        role = message["role"]
        if role in _HEAD and not before:
            continue
        if role == "tool" and before in ("assistant", "tool"):
            before = "tool"
            continue
        follows = {"user": ("", "assistant"), "assistant": ("user", "tool")}.get(role, ())
        if before not in follows:
            return False
        before = role
    return bool(before)


def merged(messages: Sequence[Message]) -> list[Message]:
    """Join what one role says in a row, where both are plain text; leave out a leading answer."""
    made: list[Message] = []
    for message in messages:
        said = [one for one in made if one["role"] not in _HEAD]
        if message["role"] == "assistant" and not said:
            continue
        if made and _joins(made[-1], message):
            made[-1] = {**made[-1], "content": f"{made[-1]['content']}\n\n{message['content']}"}
        else:
            made.append(message)
    return made


def _joins(one: Message, other: Message) -> bool:
    plain = all(
        isinstance(message.get("content"), str) and not message.get("tool_calls")
        for message in (one, other)
    )
    return plain and one["role"] == other["role"] and one["role"] != "tool"
