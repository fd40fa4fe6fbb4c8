"""One answer while it is made: tokens from the engine in, bytes to the connection out."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from loadgen.simulator.ask import Ask
from loadgen.simulator.dialects import Counts, Dialect, Head
from loadgen.simulator.engine import Sequence
from loadgen.simulator.framing import (
    COMMENT,
    DONE,
    GARBAGE,
    ChoiceFrames,
    opening,
    whole_answer,
)
from loadgen.simulator.http import Connection
from loadgen.simulator.refusals import stream_error
from loadgen.simulator.stats import Served, Stats

TRIP_TOKENS = 3  # tokens that are sent before a failure in mid-stream
KEEPALIVE_S = 0.1


@dataclass(slots=True, kw_only=True)
class Choice:
    """One choice of an answer."""

    sequence: Sequence
    word: Callable[[int], bytes]
    finish: str
    sent: int = 0  # tokens, the end token among them
    held: bytes = b""  # text that waits for its chunk to fill
    first_ns: int = 0
    last_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """All that an answer is made from."""

    ask: Ask
    dialect: Dialect
    heads: tuple[Head, ...]  # one for each choice; they differ in their id where the dialect's do
    choices: tuple[Choice, ...]
    served: Served
    stream_interval: int
    report_cached: bool


class _Ledger:
    """Counting that streamed and whole answers share."""

    def __init__(self, order: Order, stats: Stats) -> None:
        self._order = order
        self._stats = stats
        self.open_choices = len(order.choices)

    def token(self, choice: Choice, *, last: bool, now_ns: int) -> None:
        served, stats = self._order.served, self._stats
        if choice.sent == 0:
            served.prompt_tokens += choice.sequence.prompt_tokens
            served.cached_tokens += choice.sequence.cached_tokens
            stats.prompt_tokens += choice.sequence.prompt_tokens
            stats.ttft.observe((now_ns - served.read_ns) / 1e9)
            choice.first_ns = now_ns
        else:
            stats.itl.observe((now_ns - choice.last_ns) / 1e9)
        choice.last_ns = now_ns
        choice.sent += 1
        served.completion_tokens += 1
        stats.generation_tokens += 1
        if last:
            stats.finished[choice.finish] += 1
            stats.finish(choice.sequence, first_ns=choice.first_ns, last_ns=now_ns)
            self.open_choices -= 1

    def counts(self, *choices: Choice) -> Counts:
        order = self._order
        named = order.dialect.cached_named or order.report_cached
        # n choices of one prompt share it: it is counted once.
        own = choices if len(choices) == 1 else choices[:: order.ask.choices]
        return Counts(
            prompt=sum(choice.sequence.prompt_tokens for choice in own),
            completion=sum(choice.sent for choice in choices),
            cached=sum(choice.sequence.cached_tokens for choice in own) if named else None,
        )

    def end(self, how: str) -> None:
        self._stats.end(self._order.served, how=how, now_ns=time.monotonic_ns())


class StreamedAnswer:
    """A server-sent event stream."""

    def __init__(self, order: Order, connection: Connection, stats: Stats) -> None:
        self._order = order
        self._connection = connection
        self._stats = stats
        self._ledger = _Ledger(order, stats)
        running = order.ask.running_usage
        self._frames = [
            ChoiceFrames(order.dialect, head, index=index, running=running)
            for index, head in enumerate(order.heads)
        ]
        self._write = connection.transport.write
        self._lead = [b""] * len(order.choices)  # goes out in one write with the first token
        self._begun = False
        self._burst: list[tuple[ChoiceFrames | None, bytes]] | None = None
        self._trip_at: int | None = None
        self._tokens = 0
        self._comments: asyncio.TimerHandle | None = None
        self._set_fault(order.served.fault)

    def begin(self) -> None:
        """Send the headers, and what the dialect sends before it has a token."""
        dialect = self._order.dialect
        headers = (*dialect.headers, ("content-type", dialect.stream_type))
        chunked = (*headers, ("transfer-encoding", "chunked"))
        self._write(self._connection.head(200, chunked))
        if dialect.opening == "early":
            self._open()
        if self._order.served.fault == "keepalive":
            self._comment()

    def token(self, index: int, *, number: int, last: bool) -> bool:
        """Send token ``number`` of a choice. False: nothing more is wanted, cancel the rest."""
        if self._trip_at is not None and self._tokens >= self._trip_at and not self._trip():
            return False
        if not self._begun:
            self._open()
        order, choice, frames = self._order, self._order.choices[index], self._frames[index]
        is_end = last and choice.finish == "stop"  # the end token has no text
        text = choice.held + (b"" if is_end else choice.word(number))
        self._tokens += 1
        self._ledger.token(choice, last=last, now_ns=time.monotonic_ns())
        if not last and number % order.stream_interval:
            choice.held = text
            return True
        choice.held = b""
        counts = self._ledger.counts(choice) if order.ask.running_usage else None
        if not last:
            self._send(frames, self._led(index), frames.token(text, counts))
            return True
        self._end_choice(index, text, counts)
        if self._ledger.open_choices == 0:
            self._close()
        return True

    def fail(self, event: bytes) -> None:
        """End the stream with an error event."""
        self._plain(event + (DONE if self._order.dialect.done_after_error else b""))
        self._finish("fault")

    def empty(self) -> None:
        """End the stream without a token or a finish reason."""
        if not self._begun:
            self._open()
        self._plain(DONE)
        self._finish("fault")

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Its choices, with the engine's sequences."""
        return self._order.choices

    def drop(self) -> None:
        """Break off: the connection is closed."""
        self._connection.on_lost = None
        self.lost()
        self._connection.transport.abort()

    def lost(self) -> None:
        """Take note that the client is gone."""
        self._stop_comments()
        self._stats.finished["abort"] += self._ledger.open_choices
        self._ledger.end("aborted")

    # -- within

    def _set_fault(self, fault: str | None) -> None:
        if fault in ("stream_error", "cut", "reset", "stall", "garbage"):
            least = min(choice.sequence.output_tokens for choice in self._order.choices)
            self._trip_at = max(0, min(TRIP_TOKENS, least - 1))
        if fault == "burst":
            self._burst = []

    def _open(self) -> None:
        self._begun = True
        self._stop_comments()
        order = self._order
        with_token = order.dialect.opening == "with_token"
        first = opening(order.dialect, order.heads[0], prompts=len(order.ask.prompts))
        for index, choice in enumerate(order.choices):
            counts = self._ledger.counts(choice)
            event = (first if index == 0 else b"") + self._frames[index].role(counts)
            if with_token:
                self._lead[index] = event
            elif event:
                self._plain(event)

    def _led(self, index: int) -> bytes:
        lead, self._lead[index] = self._lead[index], b""
        return lead

    def _end_choice(self, index: int, text: bytes, counts: Counts | None) -> None:
        order, choice, frames = self._order, self._order.choices[index], self._frames[index]
        lead = self._led(index)
        dialect = order.dialect
        if dialect.finish_on_last if order.ask.chat else dialect.finish_on_last_text:
            self._send(frames, lead, frames.last(text, finish=choice.finish, counts=counts))
            return
        if text:
            self._send(frames, lead, frames.token(text, counts))
        elif lead:
            self._plain(lead)
        # llama.cpp names a choice's usage beside its finish in a chat, within it in a completion.
        own = self._ledger.counts(choice) if order.ask.usage else None
        beside = order.dialect.usage_in == "each_choice" and order.ask.chat
        within = order.dialect.usage_in != "own" and not beside
        finish = frames.finish(choice.finish, counts=own if within else None)
        if beside and own is not None:
            finish += frames.usage(own)
        self._plain(finish)

    def _close(self) -> None:
        order = self._order
        if order.ask.usage and order.dialect.usage_in == "own":
            self._plain(self._frames[0].usage(self._ledger.counts(*order.choices)))
        if order.dialect.done and order.served.fault != "no_done":
            self._plain(DONE)
        if self._burst is not None:
            self._flush_burst()
        self._finish("complete")

    def _trip(self) -> bool:
        self._trip_at = None
        match self._order.served.fault:
            case "garbage":
                self._plain(GARBAGE)
                return True
            case "reset":
                self._ledger.end("fault")
                self._connection.on_lost = None
                self._connection.reset()
            case "stall":
                pass  # until the client gives up; its leaving is noted as aborted
            case "stream_error" if (event := stream_error(self._order.dialect)) is not None:
                self.fail(event)
            case _:
                self._ledger.end("fault")
                self._connection.on_lost = None
                self._connection.transport.close()
        return False

    def _finish(self, how: str) -> None:
        self._stop_comments()
        self._write(b"0\r\n\r\n")
        self._ledger.end(how)
        self._connection.done()

    def _send(self, frames: ChoiceFrames, lead: bytes, body: bytes) -> None:
        if self._burst is not None:
            self._burst += [(None, lead)] if lead else []
            self._burst.append((frames, body))
            return
        served, transport = self._order.served, self._connection.transport
        if transport.get_write_buffer_size():
            served.late_writes += 1
        self._stats.chunks += 1
        sent_ns = time.monotonic_ns()
        served.sent_ns.append(sent_ns)
        event = lead + frames.stamped(body, sent_ns)
        self._write(b"%x\r\n%s\r\n" % (len(event), event))

    def _plain(self, event: bytes) -> None:
        if self._burst is not None:
            self._burst.append((None, event))
        else:
            self._write(b"%x\r\n%s\r\n" % (len(event), event))

    def _flush_burst(self) -> None:
        parts, self._burst = self._burst or [], None
        sent_ns = time.monotonic_ns()
        events = [frames.stamped(body, sent_ns) if frames else body for frames, body in parts]
        count = sum(frames is not None for frames, _ in parts)
        self._order.served.sent_ns.extend([sent_ns] * count)
        self._stats.chunks += count
        self._write(b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events))

    def _comment(self) -> None:
        self._plain(COMMENT)
        loop = asyncio.get_running_loop()
        self._comments = loop.call_later(KEEPALIVE_S, self._comment)

    def _stop_comments(self) -> None:
        if self._comments:
            self._comments.cancel()
            self._comments = None


class WholeAnswer:
    """One JSON body when all is done."""

    def __init__(self, order: Order, connection: Connection, stats: Stats) -> None:
        self._order = order
        self._connection = connection
        self._stats = stats
        self._ledger = _Ledger(order, stats)
        self._texts = [bytearray() for _ in order.choices]

    def begin(self) -> None:
        """Do nothing: all is sent at the end."""

    def token(self, index: int, *, number: int, last: bool) -> bool:
        """Keep token ``number`` of a choice. False: nothing more is wanted, cancel the rest."""
        choice = self._order.choices[index]
        if not (last and choice.finish == "stop"):
            self._texts[index] += choice.word(number)
        self._ledger.token(choice, last=last, now_ns=time.monotonic_ns())
        if self._ledger.open_choices == 0:
            self._send()
        return True

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Its choices, with the engine's sequences."""
        return self._order.choices

    def drop(self) -> None:
        """Break off: the connection is closed."""
        self._connection.on_lost = None
        self.lost()
        self._connection.transport.abort()

    def lost(self) -> None:
        """Take note that the client is gone."""
        self._stats.finished["abort"] += self._ledger.open_choices
        self._ledger.end("aborted")

    def _send(self) -> None:
        order, connection = self._order, self._connection
        texts = [
            (text.decode(), choice.finish)
            for text, choice in zip(self._texts, order.choices, strict=True)
        ]
        counts = self._ledger.counts(*order.choices)
        body = whole_answer(order.dialect, order.heads[0], texts=texts, counts=counts)
        headers = (*order.dialect.headers, ("content-type", "application/json"))
        fault = order.served.fault
        if fault == "stall":
            return
        self._ledger.end("fault" if fault in ("cut", "reset") else "complete")
        if fault == "reset":
            connection.on_lost = None
            connection.reset()
        elif fault == "cut":
            sized = (*headers, ("content-length", str(len(body))))
            connection.on_lost = None
            connection.transport.write(connection.head(200, sized) + body[: len(body) // 2])
            connection.transport.close()
        else:
            connection.respond(200, headers, body)
