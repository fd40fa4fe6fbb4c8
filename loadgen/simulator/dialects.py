"""How each engine words its answers: framing, field names, placement of usage, as data.

Built from captures of the servers themselves (vLLM 0.32, SGLang 0.5.23, llama.cpp, transformers
5.24) and, for TensorRT-LLM and Azure, from their published sources and documentation. Pure: a
``Head`` and a ``Piece`` go in, a JSON object in the engine's own key order comes out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Json = dict[str, Any]
Kind = Literal["role", "token", "last", "finish"]
"""What an event is: the role alone, a token, the last token with its finish, a finish alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What all events of one answer share."""

    id: str
    created: int
    model: str
    chat: bool
    asked_usage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One choice's share of one event."""

    index: int
    kind: Kind
    text: str = ""
    finish: str | None = None

    @property
    def says_text(self) -> bool:
        """Whether the event carries a text field at all."""
        return self.kind in ("token", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Tokens of one answer, or of one choice of it."""

    prompt: int
    completion: int
    cached: int | None = None  # None: not named


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Facts about one engine's wire format."""

    name: str
    event: Callable[[Head, Piece | None, Json | None], Json]
    usage: Callable[[Counts], Json]
    headers: tuple[tuple[str, str], ...] = (("server", "uvicorn"),)
    stream_type: str = "text/event-stream; charset=utf-8"
    id_style: str = "prefixed"  # prefixed, number, hex (one for each choice), uuid
    # The role event: as soon as accepted, just before the first token, or in one write with it.
    opening: Literal["early", "first", "with_token"] = "first"
    finish_on_last: bool = True  # in a chat: on the last token's event, not in one of its own
    finish_on_last_text: bool = True  # the same in a completion
    usage_in: Literal["own", "each_choice", "finish"] = "own"
    usage_by_default: bool = False
    running_usage: bool = False  # takes continuous_usage_stats
    running_usage_on_role: bool = False
    event_end: bytes = b"\n\n"
    done: bool = True
    done_after_error: bool = False
    cached_named: bool = True  # cached tokens in usage without being told to
    unknown_fields: int | None = None  # the status they are refused with
    checks_model: bool = False
    context: Literal["total", "prompt", "none"] = "total"  # what must fit into the context
    metrics: Literal["vllm", "json", "llamacpp", "sglang", "none"] = "none"
    version: str | None = None
    owned_by: str = "loadgen"


def _usage(counts: Counts) -> Json:
    return {
        "prompt_tokens": counts.prompt,
        "total_tokens": counts.prompt + counts.completion,
        "completion_tokens": counts.completion,
    }


def _cached(counts: Counts) -> Json | None:
    return None if counts.cached is None else {"cached_tokens": counts.cached}


def _usage_detailed(counts: Counts) -> Json:
    details = _cached(counts)
    return _usage(counts) | ({"prompt_tokens_details": details} if details else {})


def _usage_sorted(counts: Counts) -> Json:
    return dict(sorted(_usage_detailed(counts).items(), key=lambda item: _SORTED.index(item[0])))


_SORTED = ("completion_tokens", "prompt_tokens", "total_tokens", "prompt_tokens_details")


def _usage_sglang(counts: Counts) -> Json:
    details = {"prompt_tokens_details": _cached(counts), "reasoning_tokens": 0}
    return _usage(counts) | details | {"completion_tokens_details": None}


def _usage_azure(counts: Counts) -> Json:
    return _usage_detailed(counts) | {"completion_tokens_details": {"reasoning_tokens": 0}}


def _envelope(head: Head, choices: list[Json]) -> Json:
    kind = "chat.completion.chunk" if head.chat else "text_completion"
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "choices": choices,
    }


def _with_usage(event: Json, usage: Json | None) -> Json:
    return event if usage is None else event | {"usage": usage}


_FINGERPRINT_VLLM = {"system_fingerprint": "vllm-0.32.0-sim"}


def _vllm(head: Head, piece: Piece | None, usage: Json | None) -> Json:
    if piece is None:
        return _with_usage(_envelope(head, []), usage) | _FINGERPRINT_VLLM
    ended = piece.kind == "last"
    rest: Json = {"logprobs": None, "finish_reason": piece.finish}
    if not head.chat:
        ids = {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}
        choice = {"index": piece.index, "text": piece.text} | rest | ids
        return _with_usage(_envelope(head, [choice]), usage)
    if piece.kind == "role":
        delta: Json = {"role": "assistant", "content": ""}
        event = _envelope(head, [{"index": piece.index, "delta": delta} | rest])
        return _with_usage(event, usage) | {"prompt_token_ids": None, "prompt_text": None}
    rest |= ({"stop_reason": None} if ended else {}) | {"token_ids": None}
    choice = {"index": piece.index, "delta": {"content": piece.text}} | rest
    event = _with_usage(_envelope(head, [choice]), usage)
    return event | _FINGERPRINT_VLLM if ended and not head.asked_usage else event


def _trtllm(head: Head, piece: Piece | None, usage: Json | None) -> Json:
    if piece is None:
        return _with_usage(_envelope(head, []), usage)
    choice: Json = {"index": piece.index}
    if piece.kind == "role":
        choice["delta"] = {"role": "assistant"}
    elif head.chat:
        choice["delta"] = {"content": piece.text}
    else:
        choice["text"] = piece.text
    if piece.finish is not None:  # fields without a value are left out
        choice["finish_reason"] = piece.finish
    if piece.says_text:
        choice["avg_decoded_tokens_per_iter"] = 1.0
    return _with_usage(_envelope(head, [choice]), usage)


def _sglang(head: Head, piece: Piece | None, usage: Json | None) -> Json:
    if piece is None:
        return _with_usage(_envelope(head, []), usage)
    rest: Json = {"logprobs": None, "finish_reason": piece.finish, "matched_stop": None}
    if not head.chat:
        choice = {"index": piece.index, "text": piece.text} | rest
        return _envelope(head, [choice]) | {"usage": usage}
    delta: Json = {"reasoning_content": None}
    if piece.kind == "role":
        delta |= {"role": "assistant", "content": ""}
    elif piece.says_text:
        delta["content"] = piece.text
    choice = {"index": piece.index, "delta": delta} | rest
    return _with_usage(_envelope(head, [choice]), usage)


def _llamacpp(head: Head, piece: Piece | None, usage: Json | None) -> Json:
    choices: list[Json] = []
    if piece is not None and head.chat:
        deltas: dict[str, Json] = {"role": {"role": "assistant", "content": None}, "finish": {}}
        delta = deltas.get(piece.kind, {"content": piece.text})
        choices = [{"finish_reason": piece.finish, "index": piece.index, "delta": delta}]
    elif piece is not None:
        choice = {"text": piece.text, "index": piece.index, "logprobs": None}
        choices = [choice | {"finish_reason": piece.finish}]
    identity = {"id": head.id}
    event: Json = {"choices": choices, "created": head.created}
    event |= identity if head.chat else {}
    event |= {"model": head.model, "system_fingerprint": "b0-sim"}
    event["object"] = "chat.completion.chunk" if head.chat else "text_completion"
    return _with_usage(event, usage) | identity  # the id stands last in a completion


def _transformers(head: Head, piece: Piece | None, usage: Json | None) -> Json:
    choices: list[Json] = []
    if piece is not None:
        finish = {"finish_reason": piece.finish} if piece.finish else {}
        if head.chat:
            deltas: dict[str, Json] = {"role": {"role": "assistant"}, "finish": {}}
            delta = deltas.get(piece.kind, {"content": piece.text})
            choices = [{"delta": delta, "index": piece.index} | finish]
        else:
            choices = [finish | {"index": piece.index, "text": piece.text}]
    event: Json = {
        "id": head.id,
        "choices": choices,
        "created": head.created,
        "model": head.model,
        "object": "chat.completion.chunk" if head.chat else "text_completion",
    }
    return _with_usage(event | ({"system_fingerprint": ""} if head.chat else {}), usage)


_UNFILTERED = {"hate": {"filtered": False, "severity": "safe"}}


def _azure(head: Head, piece: Piece | None, usage: Json | None) -> Json:
    fingerprint = {"system_fingerprint": "fp_sim"}
    running = {"usage": usage} if head.asked_usage else {}  # null until the last event
    if piece is None:
        return _envelope(head, []) | fingerprint | running
    rest: Json = {"index": piece.index, "logprobs": None, "finish_reason": piece.finish}
    filters = {"content_filter_results": _UNFILTERED if piece.says_text else {}}
    if not head.chat:
        choice = {"text": piece.text} | rest | filters
    elif piece.kind == "role":
        choice = rest | {"delta": {"role": "assistant", "content": "", "refusal": None}} | filters
    else:
        delta = {"content": piece.text} if piece.says_text else {}
        choice = rest | {"delta": delta} | filters
    return _envelope(head, [choice]) | fingerprint | running


def azure_opening(head: Head) -> Json:
    """Return Azure's first event: no choice, the prompt's content filter."""
    results = [{"prompt_index": 0, "content_filter_results": _UNFILTERED}]
    return _envelope(head, []) | {"prompt_filter_results": results}


DIALECTS: dict[str, Dialect] = {
    "vllm": Dialect(
        name="vllm", event=_vllm, usage=_usage_detailed, running_usage=True,
        running_usage_on_role=True, done_after_error=True, cached_named=False, checks_model=True,
        metrics="vllm", version="0.32.0", owned_by="vllm",
    ),
    "trtllm": Dialect(
        name="trtllm", event=_trtllm, usage=_usage_detailed, id_style="number",
        running_usage=True, running_usage_on_role=True, event_end=b" \n\n", unknown_fields=400,
        metrics="json", version="1.3.0", owned_by="tensorrt_llm",
    ),
    "sglang": Dialect(
        name="sglang", event=_sglang, usage=_usage_sglang, id_style="hex", finish_on_last=False,
        running_usage=True, done_after_error=True, cached_named=False, metrics="sglang",
        owned_by="sglang",
    ),
    "llamacpp": Dialect(
        name="llamacpp", event=_llamacpp, usage=_usage_sorted, opening="with_token",
        headers=(("Server", "llama.cpp"), ("Access-Control-Allow-Origin", "")),
        stream_type="text/event-stream", finish_on_last=False, finish_on_last_text=False,
        usage_in="each_choice", context="prompt", metrics="llamacpp", owned_by="llamacpp",
    ),
    "transformers": Dialect(
        name="transformers", event=_transformers, usage=_usage_sorted, id_style="uuid",
        opening="early",
        finish_on_last=False, finish_on_last_text=False, usage_in="finish", usage_by_default=True,
        done=False, cached_named=False, unknown_fields=422, checks_model=True, context="none",
        owned_by="local",
    ),
    "azure": Dialect(
        name="azure", event=_azure, usage=_usage_azure, opening="early", finish_on_last=False,
        checks_model=True,
        headers=(("server", "istio-envoy"), ("x-ms-region", "Simulated")), owned_by="azure",
    ),
}  # fmt: skip
