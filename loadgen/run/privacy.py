"""What must not be stored although a server says it back: keys, header values, prompts."""

from collections.abc import Sequence
from typing import Any

from loadgen.client.outcome import scrub
from loadgen.workload.prompt import Prompt

_QUOTE = 16  # characters in a row that count as a quotation of the prompt


def storable(message: str | None, *, secrets: Sequence[str], prompt: Prompt) -> str | None:
    """Return a server's message without secrets and without what it quotes of the prompt."""
    if not message:
        return message
    for text in _texts(prompt):
        message = _without_quotes(message, text)
    return scrub(message, secrets)


def _without_quotes(message: str, text: str) -> str:
    kept: list[str] = []
    message = _without_cut_quote(message, text)
    position = 0
    while position < len(message):
        if message[position : position + _QUOTE] not in text or position + _QUOTE > len(message):
            kept.append(message[position])
            position += 1
            continue
        end = position + _QUOTE
        while end < len(message) and message[position : end + 1] in text:
            end += 1
        kept.append("[prompt]")
        position = end
    return "".join(kept)


def _without_cut_quote(message: str, text: str) -> str:
    """Take a quotation off the end that the cut of the message made short."""
    body, cut, _ = message.rpartition("…")
    if not cut or not message.endswith("…"):
        return message
    for length in range(_QUOTE, 3, -1):
        if body[-length:] in text:
            return f"{body[:-length]}[prompt]…"
    return message


def _texts(prompt: Prompt) -> list[str]:
    if prompt.text is not None:
        return [prompt.text]
    found: list[str] = []
    for message in prompt.messages or []:
        content: Any = message.get("content")
        if isinstance(content, str):
            found.append(content)
        elif isinstance(content, list):
            found += [part["text"] for part in content if isinstance(part.get("text"), str)]
    return found
