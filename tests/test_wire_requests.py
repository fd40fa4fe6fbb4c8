"""Request bodies: each engine's dialect, who wins, what no extra field can change."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from loadgen.client.requests import (
    RequestOptions,
    body,
    expects_many,
    overridden,
    probe_body,
    token_limit_hint,
)
from loadgen.engines import ENGINES
from loadgen.workload.prompt import Prompt

FIXED = RequestOptions(fixed_output=True)


def prompt(asked_output: int | None = 8, extra: Mapping[str, object] | None = None) -> Prompt:
    messages = [{"role": "user", "content": "hi"}]
    return Prompt(messages=messages, asked_output=asked_output, hash="h", extra=extra or {})


def sent(
    engine: str = "unknown", options: RequestOptions = FIXED, made: Prompt | None = None
) -> dict[str, Any]:
    made = made or prompt()
    raw = body(made, model="tiny", engine=ENGINES[engine], options=options)
    return dict(json.loads(raw))


def with_extra(extra: Mapping[str, object], fixed_output: bool = False) -> RequestOptions:
    return RequestOptions(extra=extra, fixed_output=fixed_output)


FULL = {"max_tokens": 8, "min_tokens": 8, "ignore_eos": True}
RUNNING = {"include_usage": True, "continuous_usage_stats": True}
DIALECTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "vllm": (FULL, RUNNING),
    "trtllm": (FULL, RUNNING),
    "sglang": (FULL, RUNNING),
    "llamacpp": ({"max_tokens": 8, "ignore_eos": True}, {"include_usage": True}),
    "transformers": ({"max_tokens": 8}, {"include_usage": True}),
    "azure": ({"max_completion_tokens": 8}, {"include_usage": True}),
    "openai": ({"max_completion_tokens": 8}, {"include_usage": True}),
    "unknown": ({"max_tokens": 8}, {"include_usage": True}),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_chat_is_asked_for_in_the_engines_dialect(engine: str) -> None:
    lengths, stream_options = DIALECTS[engine]
    assert sent(engine) == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": stream_options,
        **lengths,
    }


def test_completions_send_the_text_and_max_tokens() -> None:
    made = Prompt(text="hi", asked_output=8, hash="h")
    body = sent("openai", RequestOptions(endpoint="completions"), made)
    assert body["prompt"] == "hi"
    assert body["max_tokens"] == 8
    assert "messages" not in body


def test_without_a_fixed_length_only_the_limit_is_sent_and_without_a_length_nothing() -> None:
    assert FULL.keys() & sent("vllm", RequestOptions()).keys() == {"max_tokens"}
    assert FULL.keys() & sent("vllm", FIXED, prompt(asked_output=None)).keys() == set()


def test_usage_can_be_left_unasked() -> None:
    assert "stream_options" not in sent("vllm", RequestOptions(include_usage=False))


EXTRAS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "added": ({"temperature": 0, "tools": []}, {"temperature": 0, "tools": []}),
    "stream-stays-on": ({"stream": False}, {"stream": True}),
    "model-stays": ({"model": "prod-x"}, {"model": "tiny"}),
    "messages-stay": ({"messages": []}, {"messages": [{"role": "user", "content": "hi"}]}),
    "no-prompt-in-a-chat": ({"prompt": "x"}, {"prompt": None}),
    "usage-stays": (
        {"stream_options": {"include_usage": False, "x": 1}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True, "x": 1}},
    ),
    "running-usage-can-be-off": (
        {"stream_options": {"continuous_usage_stats": False}},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": False}},
    ),
    "own-limit": (
        {"max_completion_tokens": 3},
        {"max_completion_tokens": 3, "max_tokens": None, "min_tokens": None},
    ),
    "null-removes": ({"ignore_eos": None}, {"ignore_eos": None, "max_tokens": 8}),
    "null-limit": ({"max_tokens": None}, {"max_tokens": None, "min_tokens": 8}),
}


@pytest.mark.parametrize(("extra", "fields"), EXTRAS.values(), ids=EXTRAS)
def test_an_extra_field_wins_over_what_lengths_imply_but_not_over_the_measurement(
    extra: dict[str, object], fields: dict[str, object]
) -> None:
    found = sent("vllm", with_extra(extra, fixed_output=True))
    kept = {key: value for key, value in fields.items() if value is not None}  # None: not sent
    assert {key: found[key] for key in fields if key in found} == kept


def test_a_prompts_own_fields_win_over_the_scenarios() -> None:
    options = with_extra({"temperature": 0, "top_p": 1})
    found = sent("vllm", options, prompt(extra={"temperature": 0.7}))
    assert (found["temperature"], found["top_p"]) == (0.7, 1)


def test_the_probe_asks_for_one_token_with_the_runs_own_fields() -> None:
    options = with_extra({"temperature": 0, "max_tokens": 500, "n": 3}, fixed_output=True)
    found = json.loads(probe_body(model="m", engine=ENGINES["vllm"], options=options))
    assert (found["max_tokens"], found["temperature"], found["stream"]) == (1, 0, True)
    # what the server would refuse in the run it has to refuse here
    assert (found["n"], found["ignore_eos"], found["min_tokens"]) == (3, True, 1)


def test_the_probe_of_completions_sends_a_text() -> None:
    options = RequestOptions(endpoint="completions")
    found = json.loads(probe_body(model="m", engine=ENGINES["openai"], options=options))
    assert (found["prompt"], found["max_tokens"]) == ("Hello", 1)


@pytest.mark.parametrize(
    ("body", "many"),
    [
        ({}, False),
        ({"n": 1}, False),
        ({"n": 2}, True),
        ({"prompt": "x"}, False),
        ({"prompt": ["x"]}, False),
        ({"prompt": ["x", "y"]}, True),
        ({"prompt": [500, 418]}, False),
        ({"prompt": [[500], [418]]}, True),
        ({"n": None}, False),
    ],
)
def test_several_choices_or_prompts_are_noticed(body: dict[str, object], many: bool) -> None:
    assert expects_many(body) is many


def test_overridden_fields_are_named() -> None:
    extra = {"stream": False, "model": "x", "top_p": 1, "stream_options": {"include_usage": False}}
    assert overridden(extra) == ["model", "stream", "stream_options.include_usage"]
    assert overridden({"top_p": 1, "stream_options": {"include_usage": True}}) == []


UNSUPPORTED = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."  # noqa: E501


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        pytest.param(
            UNSUPPORTED, "this server takes max_completion_tokens, not max_tokens", id="C17-i"
        ),
        pytest.param(
            "Unrecognized request argument supplied: max_completion_tokens",
            "this server takes max_tokens, not max_completion_tokens",
            id="C17-i-reversed",
        ),
        pytest.param("max_tokens must be at least 1, got -5.", None, id="range"),
        pytest.param("max_tokens=99 cannot be greater than max_model_len=8", None, id="too-large"),
        pytest.param("Unexpected fields in the request: {'min_tokens'}", None, id="another-field"),
        pytest.param("`max_new_tokens` must be greater than 0", None, id="another-name"),
    ],
)
def test_a_refused_limit_field_gives_the_hint_for_the_other(message: str, hint: str | None) -> None:
    found = token_limit_hint(message)
    assert (found or "").startswith(hint or "")
    assert (found is None) == (hint is None)
