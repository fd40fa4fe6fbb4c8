"""Each dialect over a real socket: framing, roles, finishes, usage, ids."""

from collections.abc import Iterator
from typing import Any

import pytest
from simulator_make import Reply, call, chat_body, open_socket, read_to_end, request_bytes, stream

from loadgen.simulator.dialects import DIALECTS
from loadgen.simulator.process import simulator_process

pytestmark = pytest.mark.slow  # seconds in all

USAGE = {"include_usage": True}
FAST = ("--step-base", "1ms", "--step-per-sequence", "0ms", "--max-context", "400")


@pytest.fixture(scope="module", params=list(DIALECTS))
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Yield a dialect and the URL of a simulator that speaks it."""
    with simulator_process("--dialect", request.param, *FAST) as handle:
        yield request.param, handle.url


@pytest.fixture(scope="module")
def vllm() -> Iterator[str]:
    with simulator_process(*FAST) as handle:
        yield handle.url


def deltas(reply: Reply) -> list[Any]:
    return [choice.get("delta") for event in reply.events for choice in event["choices"]]


def finishes(reply: Reply) -> list[str]:
    choices = [choice for event in reply.events for choice in event["choices"]]
    return [one["finish_reason"] for one in choices if one.get("finish_reason")]


def usages(reply: Reply) -> list[Any]:
    return [event["usage"] for event in reply.events if event.get("usage")]


def test_a_stream_has_the_tokens_asked_for_and_one_finish(served: tuple[str, str]) -> None:
    dialect, url = served
    reply = stream(url, stream_options=USAGE)
    assert reply.headers["content-type"] == DIALECTS[dialect].stream_type
    assert (len(reply.stamps), len(reply.text.split())) == (5, 5)
    assert finishes(reply) == ["length"]
    assert [usage["completion_tokens"] for usage in usages(reply)] == [5]
    assert [usage["prompt_tokens"] for usage in usages(reply)] == [3 + 8]


def test_a_stream_ends_with_done_but_in_transformers(served: tuple[str, str]) -> None:
    dialect, url = served
    assert (stream(url).raw_events[-1] == "[DONE]") is (dialect != "transformers")


ROLES: dict[str, object] = {
    "vllm": {"role": "assistant", "content": ""},
    "trtllm": {"role": "assistant"},
    "sglang": {"reasoning_content": None, "role": "assistant", "content": ""},
    "llamacpp": {"role": "assistant", "content": None},
    "transformers": {"role": "assistant"},
    "azure": {"role": "assistant", "content": "", "refusal": None},
}


def test_the_first_delta_is_the_role_without_text(served: tuple[str, str]) -> None:
    dialect, url = served
    assert deltas(stream(url))[0] == ROLES[dialect]


def test_the_finish_stands_where_the_dialect_puts_it(served: tuple[str, str]) -> None:
    dialect, url = served
    ending = [one for one in stream(url).events if one["choices"]][-1]
    on_last = bool(ending["choices"][0]["delta"].get("content"))
    assert on_last is (dialect in ("vllm", "trtllm"))
    assert ("sent_ns" in ending) is on_last


def test_usage_stands_where_the_dialect_puts_it(served: tuple[str, str]) -> None:
    dialect, url = served
    reply = stream(url, stream_options=USAGE)
    carrier = next(event for event in reply.events if event.get("usage"))
    assert (carrier["choices"] == []) is (dialect != "transformers")
    unasked = usages(stream(url))
    assert bool(unasked) is (dialect == "transformers")


def test_usage_counts_every_choice_and_the_prompt_once(served: tuple[str, str]) -> None:
    dialect, url = served
    reply = stream(url, n=2, stream_options=USAGE)
    counted = [(one["prompt_tokens"], one["completion_tokens"]) for one in usages(reply)]
    expected = {"transformers": [(11, 5)], "llamacpp": [(11, 5), (11, 5)]}
    assert counted == expected.get(dialect, [(11, 10)])
    ids = {event["id"] for event in reply.events if event["choices"]}
    assert len(ids) == (2 if dialect == "sglang" else 1)


def test_a_completion_streams_text(served: tuple[str, str]) -> None:
    _, url = served
    body = {"model": "sim", "prompt": "a b", "max_tokens": 4, "stream": True}
    reply = call(url, "/v1/completions", body | {"stream_options": USAGE})
    assert reply.events[0]["object"] == "text_completion"
    assert len(reply.text.split()) == len(reply.stamps) == 4
    assert [one["completion_tokens"] for one in usages(reply)] == [4]
    assert finishes(reply) == ["length"]


def test_the_whole_answer_says_what_the_stream_says(served: tuple[str, str]) -> None:
    _, url = served
    whole = call(url, body=chat_body()).json
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["content"] == stream(url).text
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["total_tokens"] == 3 + 8 + 5


def test_the_model_is_listed(served: tuple[str, str]) -> None:
    _, url = served
    assert [one["id"] for one in call(url, "/v1/models").json["data"]] == ["sim"]


def test_a_wrong_path_is_404(served: tuple[str, str]) -> None:
    assert call(served[1], "/v1/nothing", {}).status == 404


def test_only_some_dialects_have_a_version_and_metrics(served: tuple[str, str]) -> None:
    dialect, url = served
    has_version = dialect in ("vllm", "trtllm")
    assert call(url, "/version").status == (200 if has_version else 404)
    has_metrics = dialect not in ("transformers", "azure")
    assert call(url, "/metrics").status == (200 if has_metrics else 404)


def test_tensorrt_llm_has_a_space_before_the_blank_line() -> None:
    with simulator_process("--dialect", "trtllm", *FAST) as handle:
        body = stream(handle.url).body
        assert call(handle.url, "/metrics").json[0]["numActiveRequests"] == 0
        assert call(handle.url, "/metrics").json == []  # drained by reading
    assert body.count(b"} \n\n") == 6


def test_llamacpp_sends_the_role_and_the_first_token_in_one_chunk() -> None:
    with (
        simulator_process("--dialect", "llamacpp", *FAST) as handle,
        open_socket(handle.url) as raw,
    ):
        raw.sendall(request_bytes(chat_body(stream=True)))
        received = read_to_end(raw)
    first = received.split(b"\r\n\r\n", 1)[1].split(b"\r\n")[1]
    assert first.count(b"data: ") == 2


def test_llamacpp_opens_several_prompts_with_null() -> None:
    with simulator_process("--dialect", "llamacpp", *FAST) as handle:
        body = {"prompt": ["a", "b"], "max_tokens": 2, "stream": True}
        assert call(handle.url, "/v1/completions", body).raw_events[0] == "null"


def test_azure_is_reached_by_its_own_path_and_filters_the_prompt_first() -> None:
    path = "/openai/deployments/sim/chat/completions?api-version=2024-10-21"
    with simulator_process("--dialect", "azure", *FAST) as handle:
        reply = call(handle.url, path, chat_body(stream=True))
    assert reply.events[0]["choices"] == []
    assert "prompt_filter_results" in reply.events[0]


def test_transformers_tells_a_bad_maximum_within_the_stream() -> None:
    with simulator_process("--dialect", "transformers", *FAST) as handle:
        reply = stream(handle.url, max_tokens=-5)
    assert reply.status == 200
    assert reply.events[-1] == {"error": "`max_new_tokens` must be greater than 0, but is -5."}


def test_running_usage_counts_up_from_the_role(vllm: str) -> None:
    options = USAGE | {"continuous_usage_stats": True}
    reply = stream(vllm, stream_options=options)
    assert [one["completion_tokens"] for one in usages(reply)] == [0, 1, 2, 3, 4, 5, 5]


def test_an_unbounded_answer_ends_by_itself_with_an_end_token_that_usage_counts(vllm: str) -> None:
    reply = stream(vllm, max_tokens=None, stream_options=USAGE)
    assert finishes(reply) == ["stop"]
    assert usages(reply)[0]["completion_tokens"] == len(reply.text.split()) + 1


def test_ignore_eos_without_a_maximum_goes_on_to_the_end_of_the_context(vllm: str) -> None:
    reply = stream(vllm, max_tokens=None, ignore_eos=True, stream_options=USAGE)
    assert usages(reply)[0]["total_tokens"] == 400
    assert finishes(reply) == ["length"]


def test_several_tokens_can_share_a_chunk_after_the_first() -> None:
    with simulator_process("--stream-interval", "4", *FAST) as handle:
        reply = stream(handle.url, max_tokens=11)
    sizes = [len(one["content"].split()) for one in deltas(reply)[1:]]
    assert sizes == [1, 4, 4, 2]


def test_the_same_question_gets_the_same_answer_and_another_one_another(vllm: str) -> None:
    assert stream(vllm).text == stream(vllm).text != stream(vllm, words=4).text


def test_a_share_of_answers_can_be_garbled() -> None:
    with simulator_process("--garble", "50%", "--speed", "10", *FAST) as handle:
        texts = [stream(handle.url).text for _ in range(100)]
    assert sorted(texts.count(text) for text in set(texts)) == [50, 50]


def test_cached_tokens_are_named_when_asked_to() -> None:
    with simulator_process("--report-cached", *FAST) as handle:
        found = [usages(stream(handle.url, words=70, stream_options=USAGE))[0] for _ in range(2)]
    assert [one["prompt_tokens_details"]["cached_tokens"] for one in found] == [0, 64]


def test_tokenize_counts_as_usage_does(vllm: str) -> None:
    assert call(vllm, "/tokenize", {"prompt": "a b c"}).json["count"] == 3
    messages = chat_body(words=3)["messages"]
    assert call(vllm, "/tokenize", {"messages": messages}).json["count"] == 11
    assert call(vllm, "/tokenize", {}).status == 400
