"""Request bodies: what a prompt becomes in the dialect of one engine.

The order of precedence, from weak to strong: what the engine and the scenario's lengths imply,
``RequestOptions.extra`` (the scenario's ``request:``), ``Prompt.extra`` (the fields of this prompt
alone, as a log had them). A null in either ``extra`` removes a field. Not theirs to change are
model, messages or prompt, ``stream``, and ``include_usage``: a run measures streams of the model
it names, and counts tokens as the server does.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import orjson

from loadgen.engines import Engine
from loadgen.workload.prompt import Prompt

HEADERS: Mapping[str, str] = {
    "content-type": "application/json",
    "accept": "text/event-stream, application/json",
    # Compression would hold small events back: never ask for it.
    "accept-encoding": "identity",
}

PATHS: Mapping[str, str] = {"chat": "/chat/completions", "completions": "/completions"}
"""Path of each endpoint below the base URL (which ends in /v1)."""

TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")

_OURS = frozenset({"model", "messages", "prompt", "stream"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """What holds for all requests of a run.

    fixed_output: the answer should have exactly the length asked for: ``ignore_eos`` and
        ``min_tokens`` are sent where the engine is known to take them.
    include_usage: ask for the server's own token count, where the engine does not refuse it.
    """

    endpoint: Literal["chat", "completions"] = "chat"
    fixed_output: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    include_usage: bool = True


def body(prompt: Prompt, *, model: str, engine: Engine, options: RequestOptions) -> bytes:
    """Return the JSON body of one streaming request."""
    return orjson.dumps(fields(prompt, model=model, engine=engine, options=options))


def fields(
    prompt: Prompt, *, model: str, engine: Engine, options: RequestOptions
) -> dict[str, Any]:
    """Return the body's fields; see the head of this file for who wins."""
    extra = {**options.extra, **prompt.extra}
    wanted = {**_implied(prompt, engine, options), **extra}
    if any(extra.get(limit) is not None for limit in TOKEN_LIMITS):
        # The user names a limit of their own. Beside a second one most servers refuse both, and a
        # minimum made for the other length could lie above it.
        implied = (*TOKEN_LIMITS, "min_tokens")
        wanted = {k: v for k, v in wanted.items() if k not in implied or k in extra}
    text: dict[str, Any] = (
        {"messages": prompt.messages} if options.endpoint == "chat" else {"prompt": prompt.text}
    )
    kept = {k: v for k, v in wanted.items() if k not in _OURS and v is not None}
    made = {"model": model, **text, **kept, "stream": True}
    stream_options = _stream_options(engine, options, extra.get("stream_options"))
    made.pop("stream_options", None)
    return {**made, "stream_options": stream_options} if stream_options else made


def probe_body(*, model: str, engine: Engine, options: RequestOptions) -> bytes:
    """Return the preflight's request: the run's own dialect and extra fields, one output token.

    A field that the server would refuse in the run it refuses here. The prompt is a fixed word, so
    it warms no prompt of the run.
    """
    kept = {k: v for k, v in options.extra.items() if k not in (*TOKEN_LIMITS, "min_tokens")}
    prompt = Prompt(
        messages=[{"role": "user", "content": "Hello"}] if options.endpoint == "chat" else None,
        text="Hello" if options.endpoint == "completions" else None,
        asked_output=1,
        hash="probe",
    )
    probing = replace(options, extra=kept)
    return body(prompt, model=model, engine=engine, options=probing)


def expects_many(sent: Mapping[str, Any]) -> bool:
    """Say whether a body asks for several choices: ``n`` above 1, or a list of prompts."""
    many = sent.get("n")
    return several_prompts(sent) or (isinstance(many, int) and many > 1)


def several_prompts(sent: Mapping[str, Any]) -> bool:
    """Say whether a body carries a list of prompts (a list of token ids is one)."""
    prompt = sent.get("prompt")
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


def overridden(extra: Mapping[str, Any]) -> list[str]:
    """Name the fields of an extra body that a run does not let through (for a warning)."""
    names = sorted(_OURS & extra.keys())
    stream_options = extra.get("stream_options")
    if isinstance(stream_options, Mapping) and stream_options.get("include_usage") is False:
        names.append("stream_options.include_usage")
    return names


_FIELD_REFUSED = re.compile(
    r"(?i)unsupported|unrecognized|unknown|unexpected|\bextra\b|"
    r"not (?:supported|permitted|allowed)"
)


def token_limit_hint(message: str) -> str | None:
    """Say which token limit field a server wants that refused the one we sent; None if unrelated.

    A limit that is out of range ("max_tokens must be at least 1") is not about the field.
    """
    named = sorted(
        (found.start(), limit)
        for limit in TOKEN_LIMITS
        if (found := re.search(rf"\b{limit}\b", message))
    )
    if not named or not _FIELD_REFUSED.search(message):
        return None
    # "'max_tokens' is not supported ... Use 'max_completion_tokens' instead": the first is refused.
    first = named[0][1]
    other = TOKEN_LIMITS[1 - TOKEN_LIMITS.index(first)]
    engine = "openai" if other == "max_completion_tokens" else "unknown"
    return f"this server takes {other}, not {first}: use --engine {engine}"


def _implied(prompt: Prompt, engine: Engine, options: RequestOptions) -> dict[str, Any]:
    """Return the fields that the lengths asked for mean in this dialect."""
    if prompt.asked_output is None:
        if prompt.max_output is None:
            return {}
        return {engine.token_limit_field(options.endpoint): prompt.max_output}
    implied: dict[str, Any] = {engine.token_limit_field(options.endpoint): prompt.asked_output}
    if options.fixed_output and "min_tokens" in engine.accepts:
        implied["min_tokens"] = prompt.asked_output
    if options.fixed_output and "ignore_eos" in engine.accepts:
        implied["ignore_eos"] = True
    return implied


def _stream_options(engine: Engine, options: RequestOptions, extra: object) -> dict[str, Any]:
    """Return ``stream_options``: the user's, with the usage that the measurement needs on top.

    ``continuous_usage_stats`` puts a running total on every chunk: the only way to know how many
    tokens a chunk holds when a server sends several at once (speculative decoding, stream
    intervals), and with it TPOT and tokens per second by arrival.
    """
    made = dict(extra) if isinstance(extra, Mapping) else {}
    if not options.include_usage or "include_usage" not in engine.accepts:
        return made
    made["include_usage"] = True
    if "continuous_usage" in engine.accepts:
        made.setdefault("continuous_usage_stats", True)
    return made
