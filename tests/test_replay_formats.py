"""Each format, from a row to what is sent of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from replay_make import (
    body_text,
    chat,
    entry,
    first,
    litellm,
    log_file,
    mooncake,
    read,
    replaying,
    source,
)

from loadgen.errors import UsageError
from loadgen.scenario.prompts import Columns
from loadgen.workload.replay.formats import format_of
from loadgen.workload.replay.found import facts_of
from loadgen.workload.rows import BadRow

HI = chat("hi")
AZURE = {"TIMESTAMP": "2024-05-10 00:00:00.0099300", "ContextTokens": "512",
         "GeneratedTokens": "64"}  # fmt: skip
BURST = {"Timestamp": "5", "Model": "ChatGPT", "Request tokens": "400", "Response tokens": "20",
         "Total tokens": "420", "Log Type": "Conversation log"}  # fmt: skip
BURST_3 = {**BURST, "Timestamp": "19440110.0", "Session ID": "7", "Elapsed time": "2.5"}
BAILIAN = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20,
           "output_length": 5, "type": "text", "turn": 1, "hash_ids": [1, 2]}  # fmt: skip
SPEND = {"request_id": "r", "call_type": "acompletion", "spend": 0.1, "prompt_tokens": 50,
         "completion_tokens": 20, "startTime": "2026-01-01T00:00:00.5Z", "model": "prod-x",
         "endTime": "2026-01-01T00:00:02Z", "session_id": "s", "messages": json.dumps(HI),
         "proxy_server_request": json.dumps({"temperature": 0.2, "max_tokens": 64})}  # fmt: skip
LANGFUSE = {"id": "o", "type": "GENERATION", "start_time": "2026-01-01 00:00:00.100000",
            "end_time": "2026-01-01 00:00:02", "session_id": "s", "input": json.dumps(HI),
            "usage_details": {"input": 50, "output": 20}, "provided_model_name": "prod-x",
            "model_parameters": {"temperature": "0.2", "max_tokens": "64"}}  # fmt: skip
LITELLM = litellm(0.25, HI, prompt_tokens=50, completion_tokens=20)
BODY = {"model": "prod-x", "messages": HI, "max_tokens": 9, "temperature": 0}
BATCH = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
         "body": BODY}  # fmt: skip


def span(**told: Any) -> dict[str, Any]:
    """One line of OTLP-JSON with one generation."""
    values = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "prod-x", **told}
    attributes = [{"key": key, "value": _typed(value)} for key, value in values.items()]
    made = {"name": "chat", "startTimeUnixNano": "1764480000000000001",
            "endTimeUnixNano": "1764480002000000000", "attributes": attributes}  # fmt: skip
    return {"resourceSpans": [{"scopeSpans": [{"spans": [made]}]}]}


def _typed(value: object) -> dict[str, object]:
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}


PARTS = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "hi"}]}])
NEW = span(**{"gen_ai.usage.input_tokens": 50, "gen_ai.usage.output_tokens": 20,
              "gen_ai.input.messages": PARTS, "gen_ai.conversation.id": "s",
              "gen_ai.request.max_tokens": 64})  # fmt: skip
OLD = span(**{"gen_ai.usage.prompt_tokens": 50, "gen_ai.usage.completion_tokens": 20,
              "gen_ai.prompt": json.dumps(HI)})  # fmt: skip


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (mooncake(0), "mooncake"),
        (AZURE, "azure"),
        (BURST, "burstgpt"),
        (BURST_3, "burstgpt"),
        (BAILIAN, "bailian"),
        ({"conversations": [], "id": "x"}, "sharegpt"),
        (BATCH, "openai_batch"),
        (litellm(0, HI), "litellm"),
        (SPEND, "litellm_spend"),
        (LANGFUSE, "langfuse"),
        (NEW, "otel"),
        ({"trace_id": "t", "spans": []}, "otel"),
        ({"ts": 1, "prompt": "x"}, "columns"),
    ],
)
def test_a_format_is_told_by_its_names(row: dict[str, Any], name: str) -> None:
    assert format_of(row, Columns()) == name
    assert format_of(row, Columns(time="t")) == "columns"


@pytest.mark.parametrize(
    ("row", "arrival_ns", "tokens"),
    [
        (mooncake(27482, [1, 2]), 27_482_000_000, (1024, 4)),
        (AZURE, 1_715_299_200_009_930_000, (512, 64)),
        (BURST, 5 * 10**9, (400, 20)),
        (BURST_3, 19_440_110 * 10**9, (400, 20)),
        (BAILIAN, 500_000_000, (20, 5)),
        (LITELLM, 1_764_480_000_250_000_000, (50, 20)),
        (SPEND, 1_767_225_600_500_000_000, (50, 20)),
        (LANGFUSE, 1_767_225_600_100_000_000, (50, 20)),
        (NEW, 1_764_480_000_000_000_001, (50, 20)),
        (OLD, 1_764_480_000_000_000_001, (50, 20)),
    ],
    ids=["mooncake", "azure", "burstgpt", "burstgpt-3", "bailian", "litellm", "spend", "langfuse",
         "otel", "otel-old"],
)  # fmt: skip
def test_times_and_lengths_are_read(
    row: dict[str, Any], arrival_ns: int, tokens: tuple[int, int]
) -> None:
    read_ = entry(row)
    assert read_.arrival is not None
    assert (read_.arrival.ns, (read_.input_tokens, read_.output_tokens)) == (arrival_ns, tokens)


@pytest.mark.parametrize(
    "row", [litellm(0, HI), SPEND, LANGFUSE, NEW, OLD, BATCH],
    ids=["litellm", "spend", "langfuse", "otel", "otel-old", "batch"],
)  # fmt: skip
def test_what_was_said_is_read(row: dict[str, Any]) -> None:
    assert entry(row).messages == HI


@pytest.mark.parametrize(
    "row", [SPEND, LANGFUSE, NEW, BATCH], ids=lambda row: format_of(row, Columns())
)
def test_the_limit_and_the_parameters_are_read(row: dict[str, Any]) -> None:
    read_ = entry(row)
    assert read_.max_output in (64, 9)
    assert set(read_.params) <= {"temperature"}
    assert read_.params.get("temperature", 0.2) in (0.2, 0)
    assert read_.model == "prod-x"


def test_a_failed_request_is_known() -> None:
    assert entry({**BURST, "Response tokens": "0"}).failed
    assert entry(litellm(0, HI, status="failure")).failed
    assert entry(span(**{"error.type": "timeout", "gen_ai.usage.input_tokens": 5})).failed
    assert not entry(litellm(0, HI, status="success")).failed


def test_a_sharegpt_conversation_is_a_request_for_each_question(tmp_path: Path) -> None:
    said = [("system", "be kind"), ("human", "a"), ("gpt", "b!"), ("human", "c"), ("gpt", "d")]
    row = {"id": "x", "conversations": [{"from": who, "value": text} for who, text in said]}
    made = source(log_file(tmp_path, [row]), {"concurrency": 1})
    turns = made.conversation(level=0, round_=0, number=0).turns
    assert [[one["content"] for one in turn.messages] for turn in turns] == [
        ["be kind", "a"], ["be kind", "a", "b!", "c"]]  # fmt: skip
    assert [turn.messages[-1]["role"] for turn in turns] == ["user", "user"]


def test_tools_of_a_span_become_calls_and_answers() -> None:
    said = [
        {"role": "user", "parts": [{"type": "text", "content": "time?"}]},
        {"role": "assistant",
         "parts": [{"type": "tool_call", "id": "c", "name": "now", "arguments": {"z": 1}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "9:00"}]},
    ]  # fmt: skip
    messages = entry(span(**{"gen_ai.input.messages": json.dumps(said)})).messages
    assert messages is not None
    call = {"id": "c", "type": "function", "function": {"name": "now", "arguments": '{"z":1}'}}
    assert messages[1]["tool_calls"] == [call]
    assert messages[2] == {"role": "tool", "tool_call_id": "c", "content": "9:00"}


def test_spans_and_events_that_are_no_generations_are_no_requests(tmp_path: Path) -> None:
    other = span(**{"gen_ai.operation.name": "execute_tool"})
    found = facts_of(read(log_file(tmp_path, [NEW, other, NEW])))
    assert (found["requests"], found["other_rows"], found["bad_rows"]) == (2, 1, 0)
    rows = [LANGFUSE, {**LANGFUSE, "type": "SPAN"}]
    assert facts_of(read(log_file(tmp_path, rows)))["other_rows"] == 1


def test_any_log_is_read_by_its_columns(tmp_path: Path) -> None:
    text = "when;n_in;n_out\n".replace(";", ",") + "10.5,30,4\n12,40,5\n"
    columns = {"time": "when", "input_tokens": "n_in", "output_tokens": "n_out"}
    prompt = first(log_file(tmp_path, text, "my.csv"), columns=columns)
    assert (prompt.asked_input, prompt.asked_output) == (30, 4)
    assert len(str(prompt.messages[0]["content"]).split()) == 30


def test_the_unit_may_stand_in_the_name_of_the_column() -> None:
    for row in ({"timestamp_ms": 1500}, {"time": 1.5}, {"ts": 1.5}):
        arrival = entry({**row, "prompt": "x"}).arrival
        assert arrival is not None
        assert arrival.ns == 1_500_000_000


def test_a_row_may_be_a_body_itself() -> None:
    read_ = entry({"time": 0, "messages": HI, "temperature": 0.3, "max_tokens": 9, "n": 2,
                   "stream": False, "team": "x", "top_p": None})  # fmt: skip
    assert (dict(read_.params), read_.max_output) == ({"temperature": 0.3}, 9)
    assert read_.overridden == ("stream", "n")
    csv_row = {"time": "0", "prompt": "x", "temperature": "0.3", "max_tokens": "9", "stop": ""}
    assert (dict(entry(csv_row).params), entry(csv_row).max_output) == ({"temperature": 0.3}, 9)


def test_other_calls_of_a_gateway_are_no_chats(tmp_path: Path) -> None:
    rows = [LITELLM, litellm(1, HI, call_type="aembedding"), litellm(2, HI)]
    facts = facts_of(read(log_file(tmp_path, rows)))
    assert (facts["requests"], facts["other_rows"]) == (2, 1)


def test_a_log_that_a_gateway_redacted_is_one_of_lengths() -> None:
    hidden = [{"role": "user", "content": "redacted-by-litellm"}]
    read_ = entry({**LITELLM, "messages": hidden})
    assert (read_.has_text, read_.input_tokens) == (False, 50)
    with pytest.raises(BadRow, match="neither messages"):
        entry(litellm(0, hidden))


def test_a_column_that_is_not_there_is_said(tmp_path: Path) -> None:
    path = log_file(tmp_path, "a,b\n1,2\n", "my.csv")
    with pytest.raises(UsageError, match="has no column that says what was asked"):
        read(path)
    with pytest.raises(UsageError, match="has no column 'when'"):
        read(path, columns={"time": "when", "input_tokens": "a"})


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (litellm(0, []), "neither messages nor a number of input tokens"),
        ({**BATCH, "body": {"model": "m"}}, "a body without messages"),
        ({"custom_id": "1", "response": {"status_code": 200}}, "is an answer of a batch"),
        (mooncake(0, input_length=-1), "an input_length"),
        (mooncake(0, hash_ids=["a"]), "hash_ids"),
        (mooncake(0, message_mode="delta"), "delta"),
        (litellm(0, [{"content": "x"}]), "a message without a role"),
        ({"id": "x", "conversations": [{"from": "gpt", "value": "a"}]}, "begins with an answer"),
    ],
    ids=["no-messages", "no-body", "batch-output", "negative", "ids", "delta", "role", "sharegpt"],
)
def test_what_cannot_be_replayed_says_why(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        entry(row)


def test_d31_what_we_decide_is_overridden_and_listed(tmp_path: Path) -> None:
    body = {"messages": HI, "stream": False, "model": "prod-x", "n": 4, "temperature": 0.3}
    path = log_file(tmp_path, [{**BATCH, "body": body}])
    made = source(path, {"concurrency": 1})
    prompt = made.prompt(level=0, round_=0, number=0)
    assert (dict(prompt.extra), prompt.model) == ({"temperature": 0.3}, None)
    assert made.facts()["overridden"] == {"stream": 1, "n": 1, "model": 1}


def test_the_models_of_a_log_are_kept_on_request(tmp_path: Path) -> None:
    path = log_file(tmp_path, [BATCH])
    made = source(path, {"concurrency": 1}, keep_model=True)
    assert made.prompt(level=0, round_=0, number=0).model == "prod-x"
    assert "model" not in made.facts()["overridden"]


def test_h08_logged_headers_and_keys_are_dropped_and_counted(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer prod", "Cookie": "id=ZEBRA-77"}
    rows = [
        {"time": 0, "messages": HI, "headers": headers},
        {"time": 2, "body": {"messages": HI, "api_key": "ZEBRA-77", "extra_headers": headers}},
        {"time": 3, "messages": HI, "proxy_server_request": json.dumps({"headers": headers})},
    ]
    path = log_file(tmp_path, rows)
    made = source(path)
    prompts = [made.prompt(level=0, round_=0, number=n) for n in range(3)]
    assert made.facts()["headers_dropped"] == {"authorization": 3, "cookie": 3}
    assert [dict(prompt.extra) for prompt in prompts] == [{}, {}, {}]
    said = body_text([made.facts(), [str(prompt) for prompt in prompts]])
    assert "ZEBRA-77" not in said
    assert "Bearer" not in said


def test_h08_the_headers_of_a_run_are_not_those_of_the_log(tmp_path: Path) -> None:
    path = log_file(tmp_path, [{"time": 0, "messages": HI, "headers": {"authorization": "x"}}])
    assert replaying(path).target.headers == {}
