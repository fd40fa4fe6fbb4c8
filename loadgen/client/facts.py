"""What one exchange amounts to, in the fields of ``record.Record``; instants still absolute ns."""

from typing import Any

from loadgen.client.answer import AnswerFacts
from loadgen.client.outcome import Verdict
from loadgen.client.stamps import Stamps
from loadgen.client.trace import Trace
from loadgen.record import Outcome


def on_the_wire(trace: Trace) -> dict[str, Any]:
    """Return what the transport noted; connecting counts only where this request did it."""
    own = trace.connection == "new"
    return {
        "connect_start_ns": trace.connect_start_ns if own else None,
        "connected_ns": trace.connected_ns if own else None,
        "tls_done_ns": trace.tls_done_ns if own else None,
        "sent_ns": trace.sent_ns,
        "written_ns": trace.written_ns,
        "headers_ns": trace.headers_ns,
        "connection": trace.connection,
        "peer": trace.peer,
        "reconnects": trace.reconnects,
        "http_status": trace.status,
    }


def connecting_ns(trace: Trace) -> int:
    """Return how much of connecting lies before the send; 0 where none does."""
    ready_ns = trace.tls_done_ns or trace.connected_ns
    if trace.connect_start_ns is None or ready_ns is None or trace.sent_ns is None:
        return 0
    return max(min(ready_ns, trace.sent_ns) - trace.connect_start_ns, 0)


def of_chunks(stamps: Stamps, *, tokens_known: bool) -> dict[str, Any]:
    """Return when tokens came; what never came is None."""
    at_ns = stamps.at_ns
    return {
        "first_ns": at_ns[0] if at_ns else None,
        "first_output_ns": stamps.first_output_ns,
        "last_ns": at_ns[-1] if at_ns else None,
        "chunks": stamps.chunks(tokens_known=tokens_known),
    }


def of_answer(said: AnswerFacts) -> dict[str, Any]:
    """Return what the server said, and how many tokens that was."""
    return {
        "finish_reasons": said.finish_reasons,
        "reported_input": said.reported_input,
        "cached_input": said.cached_input,
        "reported_output": said.reported_output,
        "reasoning": said.reasoning,
        "counted_output": said.counted_output,
        "token_source": said.token_source,
        "first_chunk_tokens": said.first_chunk_tokens,
        "output_chars": said.output_chars,
        "output_hash": said.output_hash,
    }


def of_verdict(verdict: Verdict) -> dict[str, Any]:
    """Return what came of it."""
    return {
        "retry_after_s": verdict.retry_after_s,
        "outcome": Outcome(verdict.outcome),
        "error_class": verdict.error_class,
        "error": verdict.error,
    }
