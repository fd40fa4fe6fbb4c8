"""Client and server, side by side: what both counted or timed, the gap, and what explains it.

Counts are over the whole level, drain included, as the server cannot tell phases apart. Times are
over whole readings inside W, so that both sides speak of the same first tokens and the same gaps:
the client's are those that came to it in that stretch, whatever their request's phase or end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from loadgen.analysis.histograms import time_over
from loadgen.analysis.per_request import legal_gaps
from loadgen.analysis.rates import tokens_per_chunk
from loadgen.analysis.server_side import Foreign, Reconciled, ServerFigures, ServerTime
from loadgen.analysis.table import RunData
from loadgen.analysis.telemetry import Server
from loadgen.analysis.tracks import Floats, Span, aligned, risen
from loadgen.record import Outcome
from loadgen.units import NS_PER_MS

TOKENS_SHARE = 0.005
"""Of the client's count. Where every request ended ok the two are equal; what was cut is not."""
LEAST_TOKENS = 2.0
TIME_SHARE, LEAST_MS = 0.02, 1.0
"""How much longer than the client's a server's time may be: its readings take time themselves."""
REST_SHARE, REST_MS = 0.10, 10.0
"""Of the client's TTFT: what may stay unexplained between the two."""
FOREIGN_SHARE, LEAST_FOREIGN = 0.02, 2.0
FOREIGN_TOKENS = 64.0
"""Tokens beyond what was sent for, below which nothing is said of others."""
PER_CHUNK = 1.005
"""Tokens per chunk above which a gap is no longer one token's."""
BURSTS = 0.5
LEAST_SAID_MS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """One level from both sides; ``requests`` are of all its phases.

    connect_ms: time to connect, one round trip; user_stamps: the client's own lag is in its times.
    """

    everything: RunData
    server: Server
    figures: ServerFigures
    windows: Sequence[Span]
    connect_ms: float | None = None
    prompt_overhead: float | None = None

    @property
    def requests(self) -> pd.DataFrame:
        """The requests of the level, all phases."""
        return self.everything.requests

    @property
    def user_stamps(self) -> bool:
        """Whether arrivals were stamped in user space."""
        client = self.everything.manifest.get("client")
        return isinstance(client, dict) and client.get("stamps") == "user"


def reconciled(sides: Sides) -> list[Reconciled]:
    """Return everything that both sides know, in the order of the report."""
    return [*_output_tokens(sides), *_input_tokens(sides), *_requests(sides), *_ttft(sides),
            *_itl(sides)]  # fmt: skip


def foreign(sides: Sides) -> Foreign:
    """Return the requests, else the output tokens, that cannot be this level's own."""
    done, generated = sides.figures.requests_done, sides.figures.generation_tokens
    sent = sides.requests[sides.requests["sent_ns"].notna()]
    if done is not None:
        ours = float(np.maximum(sent["choices"].clip(lower=1), sent["attempts"]).sum())
        extra = done - ours
        return Foreign(requests=extra if extra > max(LEAST_FOREIGN, FOREIGN_SHARE * ours) else 0.0)
    if generated is None:
        return Foreign()
    ours = _client_output(sent) + _unseen_output(sent)
    extra = generated - ours
    return Foreign(output_tokens=extra if extra > max(FOREIGN_TOKENS, FOREIGN_SHARE * ours) else 0)


def _output_tokens(sides: Sides) -> Iterator[Reconciled]:
    if sides.figures.generation_tokens is not None:
        client = _client_output(sides.requests)
        yield _count("output tokens", client, sides.figures.generation_tokens, sides=sides)


def _input_tokens(sides: Sides) -> Iterator[Reconciled]:
    """Prompts as the server reported them; one cut before its usage came counts as it was asked."""
    requests, told = sides.requests, sides.figures.prompt_tokens
    if told is None or requests["reported_input"].isna().all():
        return
    asked = requests["asked_input"] + (sides.prompt_overhead or 0.0)
    begun = requests["first_ns"].notna()
    client = requests["reported_input"].fillna(asked.where(begun)).fillna(0).sum()
    yield _count("input tokens", float(client), told, sides=sides)


def _requests(sides: Sides) -> Iterator[Reconciled]:
    done = sides.figures.requests_done
    if done is None:
        return
    ok = sides.requests[sides.requests["outcome"] == Outcome.OK]
    answers = float(ok["choices"].clip(lower=1).sum())
    yield _count("requests done", answers, done, sides=sides)


def _count(what: str, client: float, server: float, *, sides: Sides) -> Reconciled:
    gap = client - server
    unit = "requests" if what == "requests done" else "tokens"
    least = 0.0 if unit == "requests" else LEAST_TOKENS
    agrees = abs(gap) <= max(least, TOKENS_SHARE * client)
    return Reconciled(
        what=what, client=client, server=server, gap=gap, unit=unit, agrees=agrees,
        text=_why_counts_differ(gap, client, unit=unit, sides=sides),
    )  # fmt: skip


def _why_counts_differ(gap: float, client: float, *, unit: str, sides: Sides) -> str:
    if abs(gap) < 0.5:
        return "equal"
    sent = sides.requests["sent_ns"].notna()
    cut = int((sent & (sides.requests["outcome"] != Outcome.OK)).sum())
    share = f" ({abs(gap) / client:.2%})" if client else ""
    side = "server" if gap < 0 else "client"
    said = f"{abs(gap):,.0f} more at the {side}{share}"
    if gap < 0 and foreign(sides) != Foreign():
        return f"{said}: it also served others"
    if cut and gap < 0:
        went_on = "and it went on" if unit == "tokens" else "and it may have finished them"
        return f"{said}: {_n(cut)} not received whole here, {went_on}"
    if cut:
        return f"{said}: {_n(cut)} did not end ok; servers leave aborted ones out"
    if sides.figures.restarts:
        return f"{said}: the server restarted, and what it counted last is lost"
    if gap > max(LEAST_FOREIGN, FOREIGN_SHARE * client):
        return f"{said}: not all of them reached the server whose page was read"
    return said


def _ttft(sides: Sides) -> Iterator[Reconciled]:
    """From sent to the first token, against the server's, which begins when it has the request."""
    spans = aligned(sides.windows, sides.server.sweeps)
    told = _time(sides, "ttft", spans)
    mine = _first_tokens_in(sides.requests, spans)
    if told is None or mine.empty:
        return
    client = float((mine["first_ns"] - mine["sent_ns"]).mean()) / NS_PER_MS
    gap = client - told.mean
    wrote = float((mine["written_ns"] - mine["sent_ns"]).mean()) / NS_PER_MS
    known = (sides.connect_ms or 0.0) + (0.0 if np.isnan(wrote) else max(wrote, 0.0))
    backwards = -gap > max(LEAST_MS, TIME_SHARE * told.mean)
    odd = gap - known > max(REST_MS, REST_SHARE * client)
    text = _larger_at_the_server(sides) if backwards else _parts(gap, wrote, sides=sides)
    if float(mine["buffered"].mean()) > BURSTS:
        text += "; most answers came in one burst (buffered on the way), and with it their TTFT"
    yield Reconciled(
        what="TTFT mean", client=client, server=told.mean, gap=gap, unit="ms",
        agrees=not backwards and not odd,
        text="; ".join([text, *_of_the_servers(sides, spans), *_unlike_n(len(mine), told.n)]),
    )  # fmt: skip


def _parts(gap: float, wrote: float, *, sides: Sides) -> str:
    """Name what lies between the two TTFTs, as far as it was measured and fits into the gap."""
    named = (
        (sides.connect_ms or 0.0, "round trip (time to connect)"),
        (float(np.nan_to_num(wrote)), "sending the prompt"),
    )
    parts, rest = [], gap
    for part, word in named:
        if LEAST_SAID_MS <= part <= rest:
            parts.append(f"{_ms(part)} {word}")
            rest -= part
    whose = ["HTTP", "any wait before the server's clock starts"]
    if sides.user_stamps:
        whose.append("the client's own lag (user-space stamps)")
    if rest >= LEAST_SAID_MS:
        parts.append(f"{_ms(rest)} that remain: {', '.join(whose)}")
    return f"{_ms(gap)} between them: {' + '.join(parts)}" if parts else f"{_ms(gap)} between them"


def _of_the_servers(sides: Sides, spans: Sequence[Span]) -> Iterator[str]:
    """Say what the server's own TTFT is made of."""
    named = (("queue_time", "queue"), ("prefill_time", "prefill"))
    told = [(word, _time(sides, key, spans)) for key, word in named]
    parts = [f"{_ms(time.mean)} {word}" for word, time in told if time is not None]
    if parts:
        yield f"of the server's: {', '.join(parts)}"


def _larger_at_the_server(sides: Sides) -> str:
    if foreign(sides) != Foreign():
        return "the server's holds requests that are not ours"
    return (
        "the server's is longer, which cannot be for the same requests: it timed others too, or a"
        " retry, or its clock starts before the request is sent (a proxy that answers first)"
    )


def _itl(sides: Sides) -> Iterator[Reconciled]:
    """The mean gap; of chunks that hold several tokens, per token.

    A server that notes one gap for all tokens of a step has them undivided, as the client has.
    """
    spans = aligned(sides.windows, sides.server.sweeps)
    told = _time(sides, "itl", spans)
    gaps = legal_gaps(sides.everything)
    mine = gaps["gap_ns"][_inside(gaps["at_ns"].to_numpy(dtype=np.float64), spans)]
    if told is None or mine.empty:
        return
    per_chunk = max(1.0, tokens_per_chunk(sides.requests) or 1.0)
    steps = "itl" in sides.server.per_step and _drafted(sides, spans)
    client = float(mine.mean()) / NS_PER_MS / (1.0 if steps else per_chunk)
    gap = client - told.mean
    text = f"{_ms(gap)} between them"
    if steps:
        text += f"; both are gaps between steps, of {per_chunk:.3g} tokens each (drafts taken)"
    elif per_chunk > PER_CHUNK:
        text += f"; the client's are gaps between chunks / {per_chunk:.3g} tokens per chunk"
    yield Reconciled(
        what="ITL mean", client=client, server=told.mean, gap=gap, unit="ms", text=text,
        agrees=abs(gap) <= max(LEAST_MS, 2 * TIME_SHARE * told.mean),
    )  # fmt: skip


def _drafted(sides: Sides, spans: Sequence[Span]) -> bool:
    """Say whether the server decoded speculatively."""
    return (risen(sides.server.counters.get("spec_drafted", ()), spans) or 0.0) > 0


def _time(sides: Sides, key: str, spans: Sequence[Span]) -> ServerTime | None:
    histogram = sides.server.histograms.get(key)
    return None if histogram is None else time_over(histogram, spans)


def _first_tokens_in(requests: pd.DataFrame, spans: Sequence[Span]) -> pd.DataFrame:
    known = requests[requests["sent_ns"].notna() & requests["first_ns"].notna()]
    return known[_inside(known["first_ns"].to_numpy(dtype=np.float64), spans)]


def _inside(at_ns: Floats, spans: Sequence[Span]) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    found = np.zeros(len(at_ns), dtype=bool)
    for span in spans:
        found |= (at_ns > span.start_ns) & (at_ns <= span.end_ns)
    return found


def _client_output(requests: pd.DataFrame) -> float:
    return float(requests["output_tokens"].fillna(0).sum())


def _unseen_output(sent: pd.DataFrame) -> float:
    """Return the tokens that the server may have made for requests that did not end ok."""
    cut = sent[sent["outcome"] != Outcome.OK]
    return float((cut["asked_output"] - cut["output_tokens"].fillna(0)).clip(lower=0).sum())


def _unlike_n(mine: int, theirs: int) -> Iterator[str]:
    if abs(mine - theirs) > max(1.0, 0.1 * mine):
        yield f"{theirs:,} first tokens at the server, {mine:,} here"


def _n(requests: int) -> str:
    return "1 request" if requests == 1 else f"{requests:,} requests"


def _ms(value: float) -> str:
    if abs(value) < LEAST_SAID_MS:
        return "0 ms"
    return f"{value:.3g} ms" if abs(value) < 100 else f"{value:,.0f} ms"
