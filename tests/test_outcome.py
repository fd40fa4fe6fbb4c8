"""Refusals, ends of streams, and what may be stored of a server's words."""

import json

import pytest
from wire_cases import CAP, DONE, chunk, d, fin

from loadgen.client import outcome
from loadgen.client.answer import Answer, AnswerFacts
from loadgen.client.outcome import EndedBy, of_status, of_stream, scrub
from loadgen.record import FAILED_OUTCOMES, REQUEST_FAULT_CLASSES, Fault, fault_of


def refusal(status: int, message: str = "", **fields: object) -> outcome.Verdict:
    body = json.dumps({"error": {"message": message, **fields}}).encode()
    return of_status(status, {"Content-Type": "application/json"}, body)


@pytest.mark.parametrize(
    ("status", "message", "error_class"),
    [
        (301, "", "redirect"),
        (400, "max_tokens must be at least 1, got -5.", "bad_request"),
        (400, "context_length exceeded", "context_length"),
        (400, "Prompt is too long", "context_length"),
        (400, "Conversation roles must alternate user/assistant/...", "bad_request_template"),
        (400, "Invalid model name passed in model=x", "model_not_found"),
        (401, "Unauthorized", "auth"),
        (403, "model does not exist", "auth"),
        (404, "The model `x` does not exist.", "model_not_found"),
        (404, "Not Found", "not_found"),
        (405, "Method Not Allowed", "not_found"),
        (408, "", "gateway_error"),
        (413, "Payload too large", "bad_request"),
        (422, "Unexpected fields", "bad_request"),
        (429, "slow down", "rate_limited"),
        (500, "Internal Server Error", "server_error"),
        (500, "the model worker ended: unknown error in the chat template", "server_error"),
        (500, "the request exceeds the available context size", "context_length"),
        (502, "Bad Gateway", "gateway_error"),
        (503, "model is overloaded", "overloaded"),
        (504, "", "gateway_error"),
        (529, "Overloaded", "overloaded"),
    ],
)
def test_a_refusal_has_a_class(status: int, message: str, error_class: str) -> None:
    verdict = refusal(status, message)
    assert (verdict.outcome, verdict.error_class) == ("refused", error_class)
    assert verdict.error == (message or f"HTTP {status}")


def test_a_code_alone_can_name_the_class() -> None:
    assert refusal(400, "no", code="context_length_exceeded").error_class == "context_length"
    assert refusal(404, "no", code="model_not_found").error_class == "model_not_found"
    assert refusal(404, "no", param="model").error_class == "model_not_found"


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        pytest.param(
            "maximum context length is 196608 … 264175 input tokens", (196608, 264175), id="D20"
        ),
        ("maximum context length is 4097 tokens, however you requested 5000 tokens", (4097, 5000)),
        ("maximum context length is 2048 tokens, your request has 20480 input tokens",
         (2048, 20480)),
        ("max_tokens=999 cannot be greater than max_model_len=20", (20, 999)),
        ("context length exceeded", (None, None)),
    ],
)  # fmt: skip
def test_the_numbers_of_a_context_error_are_read(
    message: str, numbers: tuple[int | None, int | None]
) -> None:
    assert outcome.context_numbers(message) == numbers


def test_a_refusals_numbers_stand_before_a_message_that_may_be_cut() -> None:
    verdict = refusal(400, "x" * 500, type="exceed_context_size_error", n_ctx=8, n_prompt_tokens=9)
    assert str(verdict.error).startswith("limit 8, got 9 tokens: xxx")
    assert len(str(verdict.error)) == 200


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"Date": "Mon, 30 Nov 2026 06:20:00 GMT", "Retry-After": "Mon, 30 Nov 2026 06:20:30 GMT"},
         30.0),
        ({"Date": "Mon, 30 Nov 2026 06:20:30 GMT", "Retry-After": "Mon, 30 Nov 2026 06:20:00 GMT"},
         0.0),
        ({"Retry-After": "Mon, 30 Nov 2026 06:20:30 GMT"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-1"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_retry_after_is_kept(headers: dict[str, str], seconds: float | None) -> None:
    assert of_status(429, headers, b"").retry_after_s == seconds


def test_where_a_redirect_points_is_said() -> None:
    assert of_status(308, {"Location": "https://h/v1"}, b"").error == "redirected to https://h/v1"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "HTTP 500"),
        (b"<html><style>p{}</style><h1>502</h1> nginx</html>", "502 nginx"),
        (b'{"error":"boom"}', "boom"),
        (b'{"detail":[{"loc":["body","n"],"msg":"too big","input":"a secret prompt"}]}',
         "too big (body.n)"),
        (b'{"message":"x","code":1}', "x"),
        (b'{"unheard":1}', '{"unheard":1}'),
        (b"\xff\xfe", "��"),
        (b'{"error":{"message":{"deep":1}}}', "HTTP 500"),
    ],
)  # fmt: skip
def test_the_words_of_any_body_are_found(body: bytes, error: str) -> None:
    assert of_status(500, {}, body).error == error


def test_a_validation_report_does_not_quote_the_request() -> None:
    message = "1 error: {'type': 'x', 'loc': ('body', 'n'), 'msg': 'too big', 'input': 'my prompt'}"
    assert refusal(400, message).error == "too big (body.n)"


def answer(*parts: bytes) -> Answer:
    made = Answer(endpoint="chat", max_event_bytes=CAP)
    made.feed(b"".join(parts))
    return made


@pytest.mark.parametrize(
    ("parts", "ended", "expected"),
    [
        pytest.param([d("a"), fin("stop"), DONE], "done", ("ok", None), id="whole"),
        pytest.param([d("a"), DONE], "done", ("ok", None), id="done-only"),
        pytest.param([d("a"), fin("stop")], "eof", ("ok", None), id="finish-only"),
        pytest.param([fin("stop"), DONE], "done", ("ok", None), id="empty"),
        pytest.param([d("a"), fin("stop")], "reset", ("ok", None), id="reset-after-the-finish"),
        pytest.param([d("a")], "eof", ("truncated", "truncated"), id="cut"),
        pytest.param([d("a")], "reset", ("broken", "connection_reset"), id="reset"),
        pytest.param([], "reset", ("broken", "connection_reset"), id="reset-at-once"),
        pytest.param([d("a")], "protocol_error", ("broken", "protocol_error"), id="framing"),
        pytest.param([DONE], "done", ("broken", "no_tokens"), id="done-alone"),
        pytest.param([chunk({"role": "x"})], "eof", ("broken", "no_tokens"), id="role-alone"),
        pytest.param([b"data: x\n\n"], "eof", ("broken", "no_tokens"), id="unreadable"),
        pytest.param(
            [d("a"), d("b", 1), fin("stop")], "eof", ("truncated", "truncated"), id="half-finished"
        ),
    ],
)
def test_the_end_of_a_stream_has_an_outcome(
    parts: list[bytes], ended: EndedBy, expected: tuple[str, str | None]
) -> None:
    verdict = of_stream(
        answer(*parts), ended=ended, content_type="text/event-stream", body_head=b""
    )
    assert (verdict.outcome, verdict.error_class) == expected
    assert (verdict.error is None) == (verdict.outcome == "ok")


@pytest.mark.parametrize(
    ("content_type", "head", "error_class"),
    [
        ("text/html", b"<p>hi", "unexpected_content_type"),
        (None, b"hi", "unexpected_content_type"),
        ("application/json", b'{"ok":true}', "unexpected_content_type"),
        ("text/html", b"", "no_tokens"),
        ("text/event-stream; charset=utf-8", b"", "no_tokens"),
    ],
)
def test_a_200_that_is_no_answer_is_broken(
    content_type: str | None, head: bytes, error_class: str
) -> None:
    verdict = of_stream(answer(), ended="eof", content_type=content_type, body_head=head)
    assert (verdict.outcome, verdict.error_class) == ("broken", error_class)


def table_of_classes() -> dict[str, tuple[str, str]]:
    """Read the table at the head of the module: class → (outcome, whose)."""
    rows = [line.split() for line in str(outcome.__doc__).splitlines() if line.startswith("    ")]
    return {row[1]: (row[0], row[2]) for row in rows[1:]}


def test_the_table_of_classes_says_whose_fault_record_says() -> None:
    table = table_of_classes()
    assert {name: fault_of(kind, name) for name, (kind, _) in table.items()} == {
        name: Fault(whose) for name, (_, whose) in table.items()
    }
    assert set(table) >= REQUEST_FAULT_CLASSES
    assert {kind for kind, _ in table.values()} <= FAILED_OUTCOMES


KEY = "sk-test-0000-abcdef"


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        ("one\ntwo\r\n\tthree\x1b[31m\u2028four", "one two three [31m four"),
        (f"Incorrect API key provided: {KEY}.", "Incorrect API key provided: ***"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("at https://user:pass@host/v1", "at https://***@host/v1"),
        ('{"api_key": "0123456789"}', '{"api_key": "***"}'),
        ("X-Api-Key=abc123&x=1", "X-Api-Key=***&x=1"),
        ("token eyJhbGciOiJI.eyJzdWIi.sig", "token ***"),
        ("hf_hub_download failed; skipped_tokens=3", "hf_hub_download failed; skipped_tokens=3"),
        ("the bearer of news", "the bearer of news"),
        ("x" * 300, "x" * 199 + "…"),
        ("half a pair \ud83d", "half a pair"),
    ],
)
def test_stored_words_are_one_short_line_without_secrets(text: str, scrubbed: str) -> None:
    assert scrub(text) == scrubbed


def test_given_secrets_are_masked_wherever_they_stand() -> None:
    assert scrub("team hush and hush", ["hush", ""]) == "team *** and ***"


def test_a_secret_is_masked_before_the_text_is_cut() -> None:
    verdict = of_status(400, {}, b"x" * 195 + b"hush-0000", secrets=["hush-0000"])
    assert str(verdict.error).endswith("x***")


def test_a_page_that_quotes_a_secret_is_kept_without_it() -> None:
    verdict = of_stream(
        answer(),
        ended="eof",
        content_type="text/html",
        body_head=b"<p>token hush-0000</p>",
        secrets=["hush-0000"],
    )
    assert verdict.error == "text/html: token ***"


@pytest.mark.parametrize(
    ("asked", "reported", "choices", "flags"),
    [
        pytest.param(8, 136, 1, ["over_length"], id="C17-ii"),
        (8, 8, 1, []),
        (8, 16, 2, []),
        (None, 136, 1, []),
        (8, None, 1, []),
    ],
)
def test_an_answer_longer_than_asked_for_is_flagged(
    asked: int | None, reported: int | None, choices: int, flags: list[str]
) -> None:
    facts = AnswerFacts(reported_output=reported, choices=choices)
    assert outcome.length_flags(facts, asked) == flags
