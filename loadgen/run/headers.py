"""The headers every request carries, and the secrets in them."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass

from loadgen.errors import UsageError
from loadgen.scenario.model import Target

KEY_VARIABLES = ("LOADGEN_API_KEY", "OPENAI_API_KEY")
_KEY_HEADERS = frozenset({"authorization", "api-key", "x-api-key"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Headers to send; ``secrets`` are the texts that must be stored nowhere.

    key_from: the variable the key came from; None where none is sent from one.
    """

    headers: dict[str, str]
    secrets: tuple[str, ...]
    key_from: str | None = None


def _key(environ: Mapping[str, str], variable: str) -> str:
    """Return a key as the environment has it; raises UsageError where no header could carry it."""
    key = environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{variable}: holds a line break or a letter not in ASCII; is it the key?")
    return key


def credentials_of(target: Target, environ: Mapping[str, str]) -> Credentials:
    """Build the headers of a target: the key, what the scenario adds, and what measuring needs.

    A key of the environment is not sent where the scenario's own headers carry one.
    """
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream, application/json",
        # compressed streams hold small events back; say that none is wanted
        "accept-encoding": "identity",
        "user-agent": "loadgen",
    }
    secrets: list[str] = []
    key_from = None
    basic = target.basic_auth
    if basic:
        pair = base64.b64encode(f"{basic.user}:{basic.password}".encode()).decode()
        headers["authorization"] = f"Basic {pair}"
        secrets += [pair, basic.password]
    elif not any(name.lower() in _KEY_HEADERS for name in target.headers):
        for variable in KEY_VARIABLES:
            if key := _key(environ, variable):
                headers["authorization"] = f"Bearer {key}"
                secrets.append(key)
                key_from = variable
                break
    for name, value in target.headers.items():
        headers[name.lower()] = value
        secrets.append(value)
        secrets += value.split()[1:]  # the token of "Bearer TOKEN"
    return Credentials(
        headers=headers, secrets=tuple(text for text in secrets if text), key_from=key_from
    )
