"""Makers for wire tests: a notation for streams, a way to play them, a second reader of captures.

The notation is that of the project's case list: ``d("x")`` is one content event, ``ROLE`` a role
chunk, ``fin("stop")`` a finish chunk, ``usage(p, c)`` a usage chunk, ``DONE`` the end.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import httptools

from loadgen.client.answer import Answer, AnswerFacts, Delta, Endpoint, read_json_answer
from loadgen.client.outcome import EndedBy, Verdict, of_stream

WIRE = Path(__file__).parent / "wire"
SPLITS = {"whole": 0, "bytes": 1, "twos": 2, "threes": 3, "sevens": 7}
CAP = 1 << 20


def event(body: object) -> bytes:
    """One event with this JSON."""
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def chunk(
    delta: dict[str, Any], finish: str | None = None, index: int = 0, **more: object
) -> bytes:
    """One chat chunk."""
    return event({"choices": [{"index": index, "delta": delta, "finish_reason": finish}], **more})


def d(text: str, index: int = 0, **more: object) -> bytes:
    """One content chunk."""
    return chunk({"content": text}, index=index, **more)


def fin(reason: str, index: int = 0) -> bytes:
    """A finish chunk of its own."""
    return chunk({}, finish=reason, index=index)


def tokens(prompt: int, completion: int, **more: object) -> dict[str, Any]:
    """A usage object."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, **more}


def usage(prompt: int, completion: int, **more: object) -> bytes:
    """A usage chunk with empty choices."""
    return event({"choices": [], "usage": tokens(prompt, completion, **more)})


def completion(text: str, finish: str | None = None, **more: object) -> bytes:
    """One chunk of /v1/completions."""
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more})


ROLE = chunk({"role": "assistant", "content": ""})
DONE = b"data: [DONE]\n\n"


class Read(NamedTuple):
    """Bytes that arrive together."""

    at_ms: float
    data: bytes


def at(at_ms: float, *parts: bytes) -> Read:
    """One read."""
    return Read(at_ms, b"".join(parts))


def reads(*parts: bytes) -> list[Read]:
    """Each part in a read of its own, a millisecond apart."""
    return [Read(float(number), part) for number, part in enumerate(parts, 1)]


class Stamped(NamedTuple):
    """A token chunk and when it arrived."""

    at_ms: float
    delta: Delta


@dataclass(frozen=True, kw_only=True)
class Case:
    """One stream and what must come of it; ``expect`` names attributes of ``Seen``."""

    reads: Sequence[Read]
    expect: dict[str, object]
    endpoint: Endpoint = "chat"
    many: bool = False
    content_type: str = "text/event-stream"
    ended: EndedBy = "eof"
    count: Callable[[str], int] | None = None


@dataclass(kw_only=True)
class Seen:
    """What a client saw of one stream, in the words the cases use."""

    answer: Answer
    facts: AnswerFacts
    verdict: Verdict
    end_ms: float
    stamped: list[Stamped] = field(default_factory=list)
    complete_ms: float | None = None

    @cached_property
    def kinds(self) -> str:
        return "".join(stamp.delta.kind for stamp in self.stamped)

    @cached_property
    def chunk_tokens(self) -> list[int | None]:
        return [stamp.delta.tokens for stamp in self.stamped]

    @property
    def times(self) -> list[float]:
        return [stamp.at_ms for stamp in self.stamped]

    @property
    def ttft(self) -> float | None:
        return self.times[0] if self.stamped else None

    @property
    def ttfo(self) -> float | None:
        return next((at for at, delta in self.stamped if delta.kind != "r"), None)

    @property
    def e2e(self) -> float | None:
        return self.times[-1] if self.stamped else None

    @property
    def usage(self) -> tuple[int | None, int | None]:
        return self.facts.reported_input, self.facts.reported_output

    @property
    def outcome(self) -> str:
        return self.verdict.outcome.value

    def __getattr__(self, name: str) -> object:
        for source in (self.facts, self.verdict):
            if hasattr(source, name):
                return getattr(source, name)
        raise AttributeError(name)


def text_hash(*texts: str) -> str:
    """The hash a record stores for these texts, one per choice."""
    return hashlib.sha256("\x00".join(texts).encode()).hexdigest()[:16]


def pieces_of(data: bytes, size: int) -> list[bytes]:
    """Cut bytes into pieces of a size; 0 leaves them whole."""
    return [data[i : i + size] for i in range(0, len(data), size)] if size else [data]


def play(case: Case, split: int = 0) -> Seen:
    """Feed a case to an answer as the exchange does, each read cut into pieces of a size."""
    if case.content_type != "text/event-stream":
        return _play_body(case)
    answer = Answer(endpoint=case.endpoint, max_event_bytes=CAP, expects_many=case.many)
    stamped: list[Stamped] = []
    complete_ms = None
    for at_ms, data in case.reads:
        for piece in pieces_of(data, split):
            stamped += [Stamped(at_ms, delta) for delta in answer.feed(piece)]
        if answer.complete and complete_ms is None:
            complete_ms = at_ms
    end_ms = case.reads[-1].at_ms if case.reads else 0.0
    stamped += [Stamped(end_ms, delta) for delta in answer.close()]
    verdict = _verdict(answer, case)
    return Seen(
        answer=answer,
        facts=answer.facts(case.count),
        verdict=verdict,
        stamped=stamped,
        complete_ms=complete_ms,
        end_ms=end_ms,
    )


def _play_body(case: Case) -> Seen:
    body = b"".join(read.data for read in case.reads)
    answer = read_json_answer(body, case.endpoint)
    answer = answer or Answer(endpoint=case.endpoint, max_event_bytes=CAP)
    verdict = _verdict(answer, case)
    return Seen(
        answer=answer,
        facts=answer.facts(case.count),
        verdict=verdict,
        end_ms=case.reads[-1].at_ms,
    )


def _verdict(answer: Answer, case: Case) -> Verdict:
    head = b"".join(read.data for read in case.reads)[:2000]
    return of_stream(answer, ended=case.ended, content_type=case.content_type, body_head=head)


# --- captures: a second, simpler reader, to compare with


class Capture(NamedTuple):
    """One captured response: raw bytes, the request, and [ms, bytes] per read."""

    name: str
    raw: bytes
    request: str
    asked: dict[str, Any]
    arrivals: list[tuple[float, int]]

    @property
    def status(self) -> int:
        return int(self.raw[9:12])

    @property
    def head(self) -> dict[str, str]:
        lines = self.raw.split(b"\r\n\r\n", 1)[0].decode().split("\r\n")[1:]
        return {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}

    @property
    def endpoint(self) -> Endpoint:
        return "chat" if "chat" in self.request else "completions"

    def arrival_ms(self, offset: int) -> float:
        """When the byte at this offset had arrived."""
        total = 0
        for at_ms, size in self.arrivals:
            total += size
            if offset < total:
                return at_ms
        raise ValueError("beyond the capture")


def load(name: str) -> Capture:
    """Read one capture."""
    meta = json.loads((WIRE / f"{name}.meta.json").read_text())
    try:
        asked = json.loads(meta["body"] or "{}")
    except json.JSONDecodeError:  # the request that was malformed on purpose
        asked = {}
    raw = (WIRE / f"{name}.txt").read_bytes()
    return Capture(name, raw, meta["request"], asked, [(a, b) for a, b in meta["arrivals"]])


class Body:
    """Collects what an HTTP parser finds in the body of each read."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.on_body = self.parts.append


def body_reads(capture: Capture) -> list[Read]:
    """Take the HTTP framing off, read by recorded read; a read of framing alone stays, empty."""
    body, reads, offset = Body(), [], 0
    parser = httptools.HttpResponseParser(body)
    for at_ms, size in capture.arrivals:
        parser.feed_data(capture.raw[offset : offset + size])
        reads.append(Read(at_ms, b"".join(body.parts)))
        body.parts.clear()
        offset += size
    return reads


def names() -> list[str]:
    """All captures."""
    return sorted(path.name.removesuffix(".txt") for path in WIRE.glob("*.txt"))


def read_by_lines(capture: Capture) -> dict[str, Any]:
    """Read a captured stream with string functions alone: what the wire decoder is held against.

    Relies on what holds in all captures: events are "data: {json}" LF LF, none straddles an HTTP
    chunk, so the framing can be ignored.
    """
    texts: dict[int, str] = {}
    finishes: dict[int, str] = {}
    kinds, closing, riding = "", [], {}
    first = last = None
    for found in re.finditer(rb"data: (.*)\n\n", capture.raw):
        if found[1] == b"[DONE]" or (body := json.loads(found[1])) is None:
            continue
        for choice in body.get("choices", []):
            index = choice["index"]
            said, kind = _said(choice)
            texts[index] = texts.get(index, "") + said
            if said:
                kinds += kind
                last = capture.arrival_ms(found.end() - 1)
                first = last if first is None else first
            if choice.get("finish_reason"):
                finishes[index] = choice["finish_reason"]
            if body.get("usage"):
                riding[index] = body["usage"]
        if body.get("usage") and not body["choices"]:
            closing.append(body["usage"])
    several = capture.asked.get("n", 1) > 1 or _prompts(capture.asked) > 1
    counted = closing if closing else list(riding.values())
    counted = counted if several else counted[-1:]
    prompts = counted if _prompts(capture.asked) > 1 else counted[-1:]
    ordered = [texts[index] for index in sorted(texts)]
    return {
        "hash": text_hash(*ordered) if any(ordered) else None,
        "chars": sum(map(len, ordered)),
        "chunks": len(kinds),
        "kinds": "".join(f"{len(list(run[0]))}{run[1]}" for run in re.findall(r"((.)\2*)", kinds)),
        "finish": [finishes[index] for index in sorted(finishes)],
        "output": sum(u["completion_tokens"] for u in counted) if counted else None,
        "input": sum(u["prompt_tokens"] for u in prompts) if prompts else None,
        "cached": sum(map(_cached, prompts))
        if any(_cached(u) is not None for u in prompts)
        else None,
        "done": b"data: [DONE]\n\n" in capture.raw,
        "first_ms": first,
        "last_ms": last,
    }


def _cached(usage: dict[str, Any]) -> int | None:
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens")


def _prompts(asked: dict[str, Any]) -> int:
    prompt = asked.get("prompt")
    return len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], str) else 1


def _said(choice: dict[str, Any]) -> tuple[str, str]:
    """The generated text of a choice and its kind."""
    delta = choice.get("delta", {"content": choice.get("text")})
    calls = [call["function"] for call in delta.get("tool_calls") or []]
    spoken = {
        "c": delta.get("content") or "",
        "t": "".join((call.get("name") or "") + (call.get("arguments") or "") for call in calls),
        "r": delta.get("reasoning_content") or delta.get("reasoning") or "",
    }
    kind = next((kind for kind, said in spoken.items() if said), "")
    return "".join(spoken.values()), kind
