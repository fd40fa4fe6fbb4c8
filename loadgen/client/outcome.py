"""What came of one exchange: the outcome, a finer error class, and the server's words, scrubbed.

    outcome    error_class                whose    when
    refused    rate_limited               server   429
    refused    overloaded                 server   503, 529
    refused    server_error               server   any other 5xx
    refused    gateway_error              server   408, 502, 504
    refused    auth                       request  401, 403, 407
    refused    model_not_found            request  the text or its code names the model as unknown
    refused    not_found                  request  404, 405 of the path
    refused    redirect                   request  3xx: the URL is not the server's own
    refused    context_length             request  prompt or output beyond the context (any status)
    refused    bad_request_template       request  the chat template refused the messages
    refused    bad_request                request  any other 4xx
    broken     server_error_in_stream     server   an error object or a failing finish in a 200
    broken     event_too_large            server   one event beyond the cap
    broken     unexpected_content_type    server   a body that is neither events nor an answer
    broken     no_tokens                  server   an event stream with neither token nor finish
    broken     connection_reset           server   the connection broke before the answer ended
    broken     protocol_error             server   the HTTP framing broke before the answer ended
    truncated  truncated                  server   closed without finish reason and without [DONE]

Connections that never carried a byte (connection_refused, tls, dns, client_fd_limit, …) are
classified in ``failures``; limits (connect, first_token, idle, total) where they run out. Whose
fault a class is says ``record.fault_of``: a class that is not the request's is the server's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Literal

from loadgen.client import wire
from loadgen.client.answer import Answer, AnswerFacts
from loadgen.record import Outcome

MAX_ERROR_CHARS = 200

EndedBy = Literal["done", "eof", "reset", "protocol_error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The outcome of one exchange, in the words of ``record``."""

    outcome: Outcome
    error_class: str | None = None
    error: str | None = None
    retry_after_s: float | None = None


_OK = Verdict(outcome=Outcome.OK)


def of_status(
    status: int, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str] = ()
) -> Verdict:
    """Classify a refusal: an HTTP status of 300 or more, its headers and (the head of) its body.

    ``secrets`` (the key, header values) are masked before the server's words are cut to length.
    """
    low = {key.lower(): value for key, value in headers.items()}
    error = _read_refusal(body)
    message = error.message
    if 300 <= status < 400 and low.get("location"):
        message = f"redirected to {low['location']}"
    error_class = _class_of_status(status, error)
    if error_class == "context_length":
        message = _with_numbers(error)
    return Verdict(
        outcome=Outcome.REFUSED,
        error_class=error_class,
        error=scrub(message, secrets) or f"HTTP {status}",
        retry_after_s=read_retry_after(low),
    )


def of_stream(
    answer: Answer,
    *,
    ended: EndedBy,
    content_type: str | None,
    body_head: bytes,
    secrets: Sequence[str] = (),
) -> Verdict:
    """Classify the end of a 2xx answer; its flags are in ``answer.facts()``."""
    if answer.error is not None:
        return Verdict(
            outcome=Outcome.BROKEN,
            error_class=answer.error.error_class,
            error=scrub(answer.error.message, secrets) or "the server sent an error without words",
        )
    tokens = answer.chunks > 0
    if answer.complete and (tokens or answer.finished):
        return _OK
    if answer.finished or (answer.non_stream and tokens):
        return _OK
    if ended in ("reset", "protocol_error"):
        return _broken_off(ended, answer.chunks)
    if tokens:
        return Verdict(
            outcome=Outcome.TRUNCATED,
            error_class="truncated",
            error=f"closed after {answer.chunks} chunks without a finish reason or [DONE]",
        )
    return _without_tokens(answer, content_type, scrub(_plain_text(body_head), secrets))


def length_flags(facts: AnswerFacts, asked_output: int | None) -> list[str]:
    """Flag an answer longer than was asked for: the server did not heed the limit (over_length)."""
    if asked_output is None or facts.reported_output is None:
        return []
    return ["over_length"] if facts.reported_output > asked_output * max(facts.choices, 1) else []


def scrub(text: str, secrets: Sequence[str] = ()) -> str:
    """Make one line of at most 200 characters that may be stored and shown.

    Control characters go, and so do the given secrets, bearer tokens, keys and URL credentials.
    Best effort: what else a server quotes of a prompt cannot be told from its own words.
    """
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, "***")
    text = text[: 8 * MAX_ERROR_CHARS]
    text = _CONTROLS.sub(" ", text)
    for pattern, replacement in _MASKS:
        text = pattern.sub(replacement, text)
    text = " ".join(text.split())
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 1] + "…"


_SHORTEST_SECRET = 4  # masking shorter values would only garble the text

# C0, DEL, C1, line and paragraph separators, bidirectional controls, lone surrogates.
_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_MASKS = (
    (re.compile(r"(://)[^/\s@]+@"), r"\1***@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[^\s'\",;]{4,}"), r"\1 ***"),
    # Known key prefixes; a digit or a star must follow, or words like hf_hub_download would go.
    (re.compile(r"\b(?:sk|pk|rk|hf|gsk|xai|nvapi|ghp)[-_](?=[\w*-]*[\d*])[\w*-]{6,}"), "***"),
    (re.compile(r"\b(?:AKIA|AIza)[\w-]{12,}"), "***"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.?[\w-]*"), "***"),
    (
        re.compile(
            r"(?i)(\b[\w-]*(?:api[-_ ]?key|access[-_]?token|secret|password|authorization)\b"
            r"[\w ]*?['\"]?\s*[:=]\s*['\"]?)(?!(?:bearer|basic)\b)[^\s'\",;&}]+"
        ),
        r"\1***",
    ),
    (re.compile(r"(?i)(incorrect api key provided:?\s*)[^\s'\",;]+"), r"\1***"),
)


def _read_refusal(body: bytes) -> wire.ServerError:
    try:
        error = wire.read_error(wire.read_json(body)) if body.strip() else None
    except wire.NotJSONError:
        error = None
    if error is None:
        return wire.ServerError(message=_plain_text(body))
    return replace(error, message=_readable(error.message[:_READ_CHARS]))


def _plain_text(body: bytes) -> str:
    """Return the words of a text or HTML page, as far as an error needs them."""
    text = body[:_READ_CHARS].decode("utf-8", "replace")
    return _HTML_TAGS.sub(" ", text) if text.lstrip().startswith("<") else text


_READ_CHARS = 4000  # of an error body; bounds the work of the patterns below
_HTML_TAGS = re.compile(r"(?s)<(script|style)\b.*?</\1>|<[^>]*>")
_VALIDATION = re.compile(
    r"""'loc': (?P<loc>\([^)]*\)|\[[^\]]*\]|'[^']*'), 'msg': (?P<msg>'[^']*'|"[^"]*")"""
)


def _readable(message: str) -> str:
    """Shorten a printed validation report to what is wrong and where.

    What is left out is the part that quotes the request (it may hold a prompt) and server paths.
    """
    findings = [
        f"{found['msg'][1:-1]} ({_dotted(found['loc'])})" for found in _VALIDATION.finditer(message)
    ]
    return "; ".join(dict.fromkeys(findings)) or message


def _dotted(location: str) -> str:
    return ".".join(part.strip(" '\"") for part in location.strip("()[]").split(","))


_CONTEXT = re.compile(
    r"(?i)context[ _](?:length|size|window)|max_model_len|max_seq_len|exceed_context|"
    r"maximum (?:input|sequence|prompt) length|max_input_len|max_num_tokens|"
    r"(?:prompt|input) is too long"
)
_MODEL = re.compile(
    r"(?i)model\b[^.]{0,120}?\b(?:does not exist|not found|not exist|is not available|is unknown)|"
    r"(?:unknown|no such|invalid|unsupported) model\b|pinned to .{1,200}?; requested|"
    r"model_not_found"
)
_TEMPLATE = re.compile(
    r"(?i)chat[ _]template|roles? must alternate|must alternate|jinja|"
    r"(?:first|last) message must be|only (?:user|system|assistant)\b.{0,40} roles? are supported"
)
_STATUS_CLASSES = {
    401: "auth",
    403: "auth",
    407: "auth",
    408: "gateway_error",
    429: "rate_limited",
    502: "gateway_error",
    503: "overloaded",
    504: "gateway_error",
    529: "overloaded",
}


def _class_of_status(status: int, error: wire.ServerError) -> str:
    if status < 400:
        return "redirect"
    if status in _STATUS_CLASSES:
        return _STATUS_CLASSES[status]
    words = f"{error.message} {error.type} {error.code}"
    if _CONTEXT.search(words):  # some servers answer 500 to a prompt that is too long
        return "context_length"
    if status >= 500:
        return "server_error"
    if status != 405 and (_MODEL.search(words) or (status == 404 and error.param == "model")):
        return "model_not_found"
    if _TEMPLATE.search(words):
        return "bad_request_template"
    return "not_found" if status in (404, 405) else "bad_request"


_LIMIT = (
    re.compile(r"(?i)(?:context[ _](?:length|size|window)|max_model_len|max_seq_len|limit)"
               r"\D{0,20}?(\d+)"),
    re.compile(r"(?i)maximum\D{0,40}?(\d+)"),
)  # fmt: skip
_GOT = (
    re.compile(r"(?i)requested a total of (\d+)"),
    re.compile(
        r"(?i)(?:requested|request|input|prompt|got|contains)\D{0,40}?(\d+)\s*(?:input )?tok"
    ),
    re.compile(r"(?i)(\d+) (?:input |prompt )?tokens?\)? (?:in|from|is longer|exceeds)"),
    re.compile(r"(?i)max_tokens=(\d+)"),
    re.compile(r"(?i)(\d+)\s*(?:input|prompt) tokens"),
)


def context_numbers(message: str) -> tuple[int | None, int | None]:
    """Return (limit, got) in tokens as a message about the context length states them."""
    limit = _first_number(_LIMIT, message)
    rest = message if limit is None else re.sub(rf"\b{limit}\b", "", message)
    return limit, _first_number(_GOT, rest)


def _first_number(patterns: Sequence[re.Pattern[str]], text: str) -> int | None:
    for pattern in patterns:
        found = pattern.search(text)
        if found:
            return int(found[1])
    return None


def _with_numbers(error: wire.ServerError) -> str:
    """Put the limit and what was asked for before the message, where they are known."""
    limit, got = context_numbers(error.message)
    limit = error.limit if error.limit is not None else limit
    got = error.got if error.got is not None else got
    if limit is None:
        return error.message
    said = f"limit {limit} tokens" if got is None else f"limit {limit}, got {got} tokens"
    return f"{said}: {error.message}"


def read_retry_after(low: Mapping[str, str]) -> float | None:
    """Read Retry-After: seconds, or a date, counted from the answer's own Date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if re.fullmatch(r"\s*\d{1,9}(?:\.\d{1,9})?\s*", low.get(name, "")):
            return float(low[name]) * unit
    try:
        until = parsedate_to_datetime(low.get("retry-after", ""))
        now = parsedate_to_datetime(low.get("date", ""))
        return max((until - now).total_seconds(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return None  # absent, not a date, or a date without zone beside one with


def _broken_off(ended: EndedBy, chunks: int) -> Verdict:
    reset = ended == "reset"
    return Verdict(
        outcome=Outcome.BROKEN,
        error_class="connection_reset" if reset else "protocol_error",
        error=f"{'the connection' if reset else 'the HTTP framing'} broke after {chunks} chunks",
    )


def _without_tokens(answer: Answer, content_type: str | None, words: str) -> Verdict:
    """Judge a 2xx body, of which ``words`` are the first, without any token or finish reason."""
    kind = (content_type or "").split(";")[0].strip().lower()
    if answer.events or kind == "text/event-stream" or not words:
        what = "[DONE] alone" if answer.complete else f"{answer.events} events"
        return Verdict(
            outcome=Outcome.BROKEN,
            error_class="no_tokens",
            error=f"status 200 without a token or a finish reason ({what})",
        )
    return Verdict(
        outcome=Outcome.BROKEN,
        error_class="unexpected_content_type",
        error=scrub(f"{kind or 'no content type'}: {words}"),
    )
