"""A request body → what is asked for, or why it is refused. Pure; the rules of each dialect.

``stop`` strings, sampling parameters, tools and logprobs are taken and change nothing: what is
simulated is time, not language.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from loadgen.simulator.dialects import Dialect
from loadgen.simulator.engine import block_hashes
from loadgen.simulator.words import digest

MAX_CHOICES = 128

Facts = Mapping[str, Any]

# Fields of the request schema that the strict servers accept. Others are "unknown" to them.
_KNOWN = frozenset(
    (
        "model", "messages", "prompt", "stream", "stream_options", "max_tokens",
        "max_completion_tokens", "n", "temperature", "top_p", "seed", "stop", "presence_penalty",
        "frequency_penalty", "logprobs", "top_logprobs", "logit_bias", "user", "tools",
        "tool_choice", "response_format", "echo", "suffix", "best_of",
    )
)  # fmt: skip
_EXTRA = {
    "trtllm": frozenset(
        ("top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens", "stop_token_ids")
    ),
    "transformers": frozenset(("generation_config",)),
}


class Refused(Exception):
    """The request is answered with an error; ``kind`` is what a dialect words."""

    def __init__(
        self, kind: str, message: str = "", *, status: int = 400, facts: Facts | None = None
    ) -> None:
        super().__init__(message or kind)
        self.kind = kind
        self.message = message
        self.status = status
        self.facts: Facts = facts or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptText:
    """One prompt as the engine sees it."""

    tokens: int
    blocks: tuple[int, ...]
    digest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One accepted request."""

    chat: bool
    stream: bool
    prompts: tuple[PromptText, ...]
    choices: int  # for each prompt
    max_tokens: int | None
    to_the_limit: bool  # ignore_eos without a maximum: on to the end of the context
    usage: bool
    running_usage: bool

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(prompt.tokens for prompt in self.prompts)

    @property
    def is_probe(self) -> bool:
        """Whether a single token is asked for."""
        return self.max_tokens == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a server checks a request against."""

    dialect: Dialect
    model: str
    context: int
    template_tokens: int


def read_ask(body: bytes, *, chat: bool, rules: Rules) -> Ask:
    """Read and check a request. Raises Refused."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused("malformed", f"JSON decode error: {error}") from None
    if not isinstance(fields, dict):
        raise Refused("malformed", "the body must be a JSON object")
    _check_fields(fields, rules.dialect)
    _check_model(fields.get("model"), rules)
    prompts = _messages(fields, rules) if chat else _prompts(fields)
    maximum = _maximum(fields, rules)
    _check_context(prompts, maximum, rules)
    options = fields.get("stream_options")
    options = options if isinstance(options, Mapping) else None
    stream = fields.get("stream") is True
    asked = rules.dialect.usage_by_default
    if options is not None and stream:
        # An empty stream_options asks TensorRT-LLM for usage.
        asked |= bool(options.get("include_usage", rules.dialect.name == "trtllm"))
    running = bool(options and options.get("continuous_usage_stats"))
    return Ask(
        chat=chat,
        stream=stream,
        prompts=prompts,
        choices=1 if rules.dialect.name == "transformers" else _integer(fields, "n", 1),
        max_tokens=maximum,
        to_the_limit=fields.get("ignore_eos") is True,
        usage=asked,
        running_usage=running and asked and rules.dialect.running_usage,
    )


def _check_fields(fields: Mapping[str, Any], dialect: Dialect) -> None:
    if dialect.unknown_fields is not None:
        unknown = fields.keys() - _KNOWN - _EXTRA.get(dialect.name, frozenset())
        if unknown:
            status = dialect.unknown_fields
            raise Refused("unknown_fields", status=status, facts={"names": sorted(unknown)})
    for name in ("temperature", "top_p"):
        value = fields.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise Refused("wrong_type", "Input should be a valid number", facts={"field": name})
    count = _integer(fields, "n", 1)
    if not 1 <= count <= MAX_CHOICES:
        raise Refused(
            "wrong_value", f"n must lie between 1 and {MAX_CHOICES}", facts={"field": "n"}
        )


def _check_model(model: object, rules: Rules) -> None:
    named = isinstance(model, str) and model != ""
    if rules.dialect.checks_model and named and model != rules.model:
        facts = {"asked": model, "served": rules.model, "field": "model"}
        raise Refused("unknown_model", status=404, facts=facts)


def _integer(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise Refused("wrong_type", "Input should be a valid integer", facts={"field": name})
    return value


def _maximum(fields: Mapping[str, Any], rules: Rules) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        if fields.get(name) is not None:
            value = _integer(fields, name, 0)
            if value == -1 and rules.dialect.name == "llamacpp":
                return None  # no maximum
            if value < 1:
                raise Refused("negative_max", facts={"field": name, "value": value})
            return value
    return None


def _messages(fields: Mapping[str, Any], rules: Rules) -> tuple[PromptText, ...]:
    messages = fields.get("messages")
    if messages is None:
        raise Refused("missing", "Field required", facts={"field": "messages"})
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise Refused("wrong_type", "Input should be a valid list", facts={"field": "messages"})
    if not messages and rules.dialect.name != "llamacpp":
        raise Refused("empty_messages")
    text = "\n".join(_content(message.get("content")) for message in messages)
    return (_prompt(text, extra_tokens=rules.template_tokens),)


def _content(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""


def _prompts(fields: Mapping[str, Any]) -> tuple[PromptText, ...]:
    prompt = fields.get("prompt")
    match prompt:
        case None:
            raise Refused("missing", "Field required", facts={"field": "prompt"})
        case str():
            return (_prompt(prompt),)
        case [int(), *_]:
            return (_prompt(" ".join(map(str, prompt))),)
        case [*parts] if parts and all(isinstance(one, str | list) for one in parts):
            texts = [one if isinstance(one, str) else " ".join(map(str, one)) for one in parts]
            return tuple(_prompt(text) for text in texts)
        case _:
            raise Refused(
                "wrong_type", "Input should be a string or a list", facts={"field": "prompt"}
            )


def _prompt(text: str, *, extra_tokens: int = 0) -> PromptText:
    words = text.split()
    tokens = max(1, len(words) + extra_tokens)
    return PromptText(tokens=tokens, blocks=block_hashes(words), digest=digest(text))


def _check_context(prompts: tuple[PromptText, ...], maximum: int | None, rules: Rules) -> None:
    if rules.dialect.context == "none":
        return
    longest = max(prompt.tokens for prompt in prompts)
    facts = {"prompt": longest, "maximum": maximum, "context": rules.context}
    if longest >= rules.context:
        raise Refused("prompt_too_long", facts=facts)
    if rules.dialect.context == "total" and maximum is not None:
        if maximum > rules.context:
            raise Refused("max_too_large", facts=facts | {"field": "max_tokens"})
        if longest + maximum > rules.context:
            raise Refused("total_too_long", facts=facts)
