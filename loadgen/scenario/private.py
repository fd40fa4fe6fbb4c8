"""What must not be written out: values of variables that hold secrets, and keys inside texts."""

import re
from collections.abc import Iterable, Mapping, Sequence

from loadgen.scenario.url import MASK

SHORTEST_SECRET = 6
"""Masking shorter values would only garble the text around them."""

_SECRET_NAME = re.compile(
    r"(?i)(?:^|[_-])(?:token|secret|password|passwd|credentials?|api[_-]?key|key)(?:$|[_-])"
)
_ASSIGNED = re.compile(
    r"(?i)((?:^|[\s\"'{,(-])(?:[\w-]*[_-])?(?:token|secret|password|passwd|api[_-]?key)['\"]?"
    r"(?:\s*[:=]\s*|(?<=key)\s+|(?<=token)\s+(?=\S*\d))['\"]?)(?!\$\{|\*\*\*|bearer\b)[^\s'\",;&})]+"
)
_KEYS = (
    (re.compile(r"(://)[^/\s@]+@"), rf"\1{MASK}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+(?!auth)[^\s'\",;]{4,}"), rf"\1 {MASK}"),
    # a digit must follow the prefix, or words like hf_hub_download would go
    (re.compile(r"\b(?:sk|pk|rk|hf|gsk|xai|nvapi|ghp)[-_](?=[\w-]*\d)[\w*-]{4,}"), MASK),
)


def is_secret_name(name: str) -> bool:
    """Tell whether a variable of this name (HF_TOKEN, API_KEY) holds a secret."""
    return bool(_SECRET_NAME.search(name))


def secrets_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of the variables that hold secrets, longest first."""
    found = {value.strip() for name, value in environ.items() if is_secret_name(name)}
    return tuple(sorted((v for v in found if len(v) >= SHORTEST_SECRET), key=len, reverse=True))


def mask(text: str, secrets: Iterable[str] = ()) -> str:
    """Mask the given secrets and whatever else looks like a key, a password or a token."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    for pattern, replacement in _KEYS:
        text = pattern.sub(replacement, text)
    return _ASSIGNED.sub(rf"\1{MASK}", text)


def mask_command(words: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """Mask the words of a command: also the one after ``--api-key`` and its like."""
    secrets = tuple(secrets)
    masked: list[str] = []
    for before, word in zip(("", *words), words, strict=False):
        flag = before.lstrip("-")
        hidden = before.startswith("-") and "=" not in before and is_secret_name(flag)
        masked.append(MASK if hidden and not word.startswith("${") else mask(word, secrets))
    return masked
