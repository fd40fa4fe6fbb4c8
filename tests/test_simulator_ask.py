"""What is asked for, and what each dialect refuses and how it words that."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_make import chat_body, rules

from loadgen.simulator.ask import Ask, Refused, read_ask
from loadgen.simulator.dialects import DIALECTS
from loadgen.simulator.refusals import refusal_body, refused_in_stream, stream_error
from loadgen.simulator.words import GARBLED, WORDS, answer_words, natural_length


def ask(dialect: str = "vllm", *, chat: bool = True, **fields: Any) -> Ask:
    body = chat_body(**fields) if chat else {"model": "sim"} | fields
    return read_ask(json.dumps(body).encode(), chat=chat, rules=rules(dialect))


def refuse(dialect: str, body: bytes) -> tuple[int, str]:
    with pytest.raises(Refused) as caught:
        read_ask(body, chat=True, rules=rules(dialect))
    status, _, answer = refusal_body(caught.value, DIALECTS[dialect])
    return status, answer.decode()


def test_one_word_is_one_token_beside_the_template() -> None:
    assert ask(words=5).prompt_tokens == 5 + 8
    assert ask(chat=False, prompt="a b c", max_tokens=1).prompt_tokens == 3


def test_parts_of_a_message_count_too() -> None:
    parts = [{"type": "text", "text": "a b"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert ask(messages=[{"role": "user", "content": parts}]).prompt_tokens == 2 + 8


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("a b", [2]), (["a", "b c"], [1, 2]), ([5, 6, 7], [3]), ([[5], [6, 7]], [1, 2])],
    ids=["text", "texts", "tokens", "lists of tokens"],
)
def test_completions_take_every_form_of_prompt(prompt: object, tokens: list[int]) -> None:
    asked = ask(chat=False, prompt=prompt, max_tokens=1)
    assert [one.tokens for one in asked.prompts] == tokens


def test_the_newer_name_of_the_maximum_is_taken_as_well() -> None:
    assert ask(max_tokens=None, max_completion_tokens=7).max_tokens == 7


@pytest.mark.parametrize(
    ("dialect", "options", "usage"),
    [
        ("vllm", None, False),
        ("vllm", {"include_usage": True}, True),
        ("vllm", {}, False),
        ("trtllm", {}, True),
        ("transformers", None, True),
    ],
)
def test_usage_is_told_as_the_dialect_does(dialect: str, options: object, usage: bool) -> None:
    assert ask(dialect, stream=True, stream_options=options).usage is usage


@pytest.mark.parametrize(
    ("dialect", "runs"), [("vllm", True), ("sglang", True), ("llamacpp", False), ("azure", False)]
)
def test_usage_runs_along_only_where_the_server_knows_how(dialect: str, runs: bool) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert ask(dialect, stream=True, stream_options=options).running_usage is runs


LONG = chat_body(words=200)
TOO_MUCH = chat_body(max_tokens=95)


@pytest.mark.parametrize(
    ("dialect", "body", "status", "says"),
    [
        ("vllm", chat_body(model="gpt"), 404, '{"error":{"message":"The model `gpt` does not'),
        ("transformers", chat_body(model="gpt"), 400, '{"detail":"Server is pinned to'),
        ("azure", chat_body(model="gpt"), 404, '"code":"DeploymentNotFound"'),
        ("vllm", LONG, 400, "maximum context length is 100 tokens"),
        ("vllm", TOO_MUCH, 400, "maximum context length is 100 tokens"),
        ("vllm", chat_body(max_tokens=500), 400, "greater than max_model_len=100"),
        ("sglang", LONG, 400, '{"object":"error","message":"The input (208 tokens) is longer'),
        ("llamacpp", LONG, 400, '"type":"exceed_context_size_error","n_prompt_tokens":208'),
        ("azure", LONG, 400, '"code":"context_length_exceeded"'),
        ("vllm", chat_body(max_tokens=-5), 400, "max_tokens must be at least 1, got -5."),
        ("vllm", chat_body(messages=[]), 400, "BadRequestError"),
        ("transformers", chat_body(messages=[]), 500, "Internal Server Error"),
        ("vllm", chat_body(temperature="hot"), 400, "body.temperature"),
        ("trtllm", chat_body(return_token_ids=True), 400, "body.return_token_ids: Extra inputs"),
        ("transformers", chat_body(ignore_eos=True), 422, "Unexpected fields in the request"),
        ("vllm", chat_body(n=0), 400, "n must lie between"),
        ("vllm", {"model": "sim"}, 400, "body.messages"),
        ("vllm", chat_body(messages="hi"), 400, "body.messages"),
        ("vllm", chat_body(max_tokens="5"), 400, "body.max_tokens"),
    ],
)
def test_a_refusal_has_the_dialects_status_and_words(
    dialect: str, body: dict[str, Any], status: int, says: str
) -> None:
    found, answer = refuse(dialect, json.dumps(body).encode())
    assert found == status
    assert says in answer


@pytest.mark.parametrize("body", [b'{"model":', b"[1]", b"", b"\xff"], ids=repr)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_no_json_object_is_refused(dialect: str, body: bytes) -> None:
    assert refuse(dialect, body)[0] == (422 if dialect == "transformers" else 400)


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("llamacpp", chat_body(model="gpt")),
        ("sglang", chat_body(model="gpt")),
        ("llamacpp", chat_body(messages=[])),
        ("llamacpp", TOO_MUCH),
        ("llamacpp", chat_body(max_tokens=-1)),
        ("transformers", LONG),
        ("trtllm", chat_body(ignore_eos=True, top_k=3)),
        ("vllm", chat_body(anything=1)),
    ],
)
def test_what_a_dialect_lets_pass_is_served(dialect: str, body: dict[str, Any]) -> None:
    read_ask(json.dumps(body).encode(), chat=True, rules=rules(dialect))


@pytest.mark.parametrize(
    ("dialect", "shape"),
    [
        ("vllm", {"error": {"message", "type", "param", "code"}}),
        ("sglang", {"error": {"object", "message", "type", "param", "code"}}),
        ("llamacpp", {"error": {"code", "message", "type"}}),
        ("transformers", {"error": str}),
        ("azure", {"error": {"message", "type", "param", "code"}}),
    ],
)
def test_an_error_in_the_stream_has_the_dialects_shape(dialect: str, shape: object) -> None:
    event = stream_error(DIALECTS[dialect])
    assert event is not None
    error = json.loads(event.removeprefix(b"data: "))["error"]
    assert {"error": set(error) if isinstance(error, dict) else type(error)} == shape


def test_tensorrt_llm_just_breaks_a_stream() -> None:
    assert stream_error(DIALECTS["trtllm"]) is None


def test_only_a_bad_maximum_is_told_within_a_stream() -> None:
    bad = Refused("negative_max", facts={"field": "max_tokens", "value": -5})
    assert b"but is -5." in (refused_in_stream(bad) or b"")
    assert refused_in_stream(Refused("missing")) is None


def test_an_answer_depends_on_the_seed_the_prompt_and_the_choice_alone() -> None:
    def text(seed: int, prompt: int, choice: int) -> list[bytes]:
        word = answer_words(seed, prompt, choice=choice, garbled=False)
        return [word(number) for number in range(6)]

    assert text(1, 2, 0) == text(1, 2, 0)
    assert len({tuple(text(*one)) for one in ((1, 2, 0), (2, 2, 0), (1, 3, 0), (1, 2, 1))}) == 4


def test_words_are_distinct_and_garbled_ones_are_others() -> None:
    assert len(set(WORDS)) == len(WORDS) == 1021
    assert not set(WORDS) & set(GARBLED)


def test_the_natural_length_has_its_mean() -> None:
    lengths = [natural_length(0, prompt, choice=0, mean=50) for prompt in range(2000)]
    assert min(lengths) >= 2
    assert sum(lengths) / len(lengths) == pytest.approx(50, rel=0.1)  # 4.5 standard errors


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("model", "messages", "prompt", "max_tokens", "n", "stream", "stream_options", "top_p")


@settings(max_examples=200, deadline=None)
@given(
    body=st.dictionaries(st.sampled_from(FIELDS), JSON),
    dialect=st.sampled_from(list(DIALECTS)),
    chat=st.booleans(),
)
def test_any_body_is_taken_or_refused_in_the_dialects_words(
    body: dict[str, Any], dialect: str, chat: bool
) -> None:
    try:
        status = 200 if read_ask(json.dumps(body).encode(), chat=chat, rules=rules(dialect)) else 0
    except Refused as refused:
        status = refusal_body(refused, DIALECTS[dialect])[0]
    assert status in (200, 400, 404, 422, 500)
