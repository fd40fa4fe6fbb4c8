"""What each word of a report means: the formulas, as metrics are computed, and how to read them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Formula:
    """A word, its formula, and when there is no such number."""

    word: str
    formula: str
    missing: str = ""


FORMULAS = (
    Formula("TTFT", "first − sent: from the first byte of the request handed to the kernel to the"
            " first chunk that carries a generated token", "no token came"),
    Formula("TTFO", "first output − sent: as TTFT, to the first visible output (content, refusal,"
            " tool call; not reasoning)", "no visible output"),
    Formula("E2E", "last − sent: to the last chunk that carries a token; the rest of the stream is"
            " \"stream end\" = end − sent", "no token came"),
    Formula("ITL", "gaps between consecutive token chunks of one choice, pooled over requests;"
            " \"per chunk\" where a chunk carries more than 1.05 tokens", "fewer than 2 chunks"),
    Formula("TPOT", "(last − first) / (n streamed − tokens in the first chunk), one value per"
            " request",
            "fewer than 2 chunks, no later token, or several choices without their counts"),
    Formula("decode rate", "1 / TPOT: tokens per second as one user sees them", "as TPOT"),
    Formula("prefill rate", "(reported − cached prompt tokens) / TTFT; apparent: it includes the"
            " wait in the server's queue", "no usage reported"),
    Formula("tok/s of each request", "output tokens / E2E; their mean is not the system's rate",
            "no token came"),
    Formula("time to headers", "headers − sent: the answer's head, never called TTFT",
            "no answer came"),
    Formula("output tokens", "reported by the server's usage; else one tokenisation of the joined"
            " text (counted); else the number of chunks. The token source says which"),
    Formula("output tok/s", "tokens that arrived in the window / length of the window, each token"
            " by its own arrival, whatever became of its request; \"ok\" counts ok requests only"),
    Formula("requests/s", "ok requests that ended in the window / length of the window"),
    Formula("in flight", "time average over the window of the requests sent and not yet ended"),
    Formula("implied concurrency", "output tok/s × mean TPOT: reconciles the system's rate with one"
            " user's"),
    Formula("errors", "failed / (ok + failed), failed = refused + timeout + broken + truncated;"
            " client faults are never counted against the server"),
    Formula("accuracy", "answers to questions of the golden set that passed / all answers to them."
            " The interval (Wilson's) counts questions, not answers: n = (Σ m)² / Σ m², m the times"
            " each was answered. Questions count in the load and in no time",
            "no golden set was asked"),
    Formula("broken answers", "answers that are garbled (noise in place of language), empty or"
            " blank, looping (one piece over and over to the end), or truncated (cut off by the"
            " server) / all answers looked at"),
    Formula("lateness", "sent − due = slot wait (slot − due: the cap held it back) + send lag (the"
            " client's own delay, connecting apart)"),
    Formula("from due", "TTFT and E2E counted from the moment the schedule asked for the request:"
            " what a user of an open system feels"),
    Formula("connect, TLS", "connected − connect start, TLS done − connected; never part of TTFT."
            " TTFT cold = first − connect start", "a reused connection"),
    Formula("each failure as +∞", "the same percentile with every failed request counted as"
            " infinitely slow"),
    Formula("attainment", "requests that met all objectives / (ok + failed + dropped + unfinished"
            " that already missed); cancelled ones are left out"),
    Formula("goodput", "requests per second that met all objectives"),
    Formula("coalesced", "chunks that shared a read with a later one: their stamps are upper"
            " bounds"),
    Formula("percentile", "linear interpolation over all samples of a level. p50 and p90 from n ="
            " 1, p95 from n = 20, p99 from n = 100; 95 % intervals by order statistics from n = 6,"
            " 36, 72, 368, where samples that are alike count for what they are worth. In simulated"
            " runs those of ITL hold the truth in 96 to 100 % at 1, 16 and 32 in flight, in 89 to"
            " 96 % where the batch grows and shrinks for seconds on end", "n too small"),
    Formula("window", "measure less what MSER-5 cuts off its beginning: with Y the means of batches"
            " of 5, d* = the smallest argmin over d ≤ m/2 of Σ(Y_j − mean)² / (m − d)², j > d; the"
            " later of TTFT in order of due and of in flight each 100 ms. Where d* = m/2, only a"
            " beginning is cut that brings 99 % of what d* would by 0.4 m, and the rest is judged"
            " by itself. Nothing is cut under 50 requests, where no place is steady, or with"
            " truncate: off. \"Not settled\": TTFT falls by over 30 % inside the window, and one"
            " step explains over 70 % of how the means of its 20 batches differ"),
    Formula("by rounds", "from 3 rounds on an interval holds the order-statistic one and mean ±"
            " t·s/√k over the rounds' own percentiles; where these widen it, marked *, or"
            " \"by rounds\""),
    Formula("worth", "n(1 − ρ₁)/(1 + ρ₁), or fewer where means of longer batches still resemble one"
            " another: how many independent samples n correlated ones are. Of pooled gaps"
            " q(1 − q)/V, V the largest variance of the share below the percentile q: over"
            " requests, or over 5 or 10 stretches of time, as streams of one batch share each step;"
            " shown is the least"),
    Formula("saturated", "an open level whose queue (what waits for a first token) grew from slice"
            " to slice by more than a queue at its capacity would wander, TTFT with it: its"
            " percentiles would tell only how long the level lasted, and are withheld"),
    Formula("still filling", "of a level at one rate over 20 % of the window lie in the first p95"
            " of end − due since its first request: what was in flight had to grow until then"),
    Formula("drift", "where the load stays the same: a line through TTFT or TPOT over the window"
            " that rises by more than 5 % and more than its scatter explains, or one late step of"
            " over 43 % that explains over 70 %; or, closed, output tok/s of the last third more"
            " than 5 % below the first"),
    Formula("running, waiting, KV cache", "the server's own gauges over the window: means weighted"
            " by time, straight between readings of its metrics page; \"too few\": under 3"
            " readings", "the server shows none"),
    Formula("the server's TTFT, queue, ITL", "what its histograms rose by between whole readings in"
            " the window: mean = sum / count; percentiles straight within a bucket. Its TTFT begins"
            " when it has the request, the client's when the first byte is sent",
            "the server keeps none"),
    Formula("client and server", "tokens and requests of the whole level, drain included, as the"
            " server cannot tell phases apart; it leaves out aborted requests, and an end-of-text"
            " token counts as a token. Times over whole readings in the window, of the first"
            " tokens and gaps that came in them"),
    Formula("queue-bound", "more than 1 request waited at the server on average (requests done per"
            " second × its mean time in queue; where it keeps no such times, its gauge, from 5"
            " readings on), and most of its TTFT was queue, or they were over 10 % of those there"
            " while its KV cache was full or it ran the most it takes: more load only waits"
            " longer. Of the server, never of the client"),
    Formula("energy per output token", "joules of all GPUs seen over the window (the device's"
            " counter, else power over time) / output tokens that arrived in it"),
    Formula("first end to last", "(n − k) / (last end − kth end): requests per second without the"
            " time before the first answer. k = 1; where clients go in step, so that ends come in"
            " waves, k is the first wave: with G the gap such that gaps as long make up half of the"
            " time, hardly any gap lies between G/5 and G/2, and the first of G/2 ends the wave"),
    Formula("> x", "the percentile falls among requests that were cut while still waiting: the"
            " truth is above x"),
)  # fmt: skip

READING = (
    "A level is one load setting held for a while; a request belongs to it when it was due in its"
    " measure phase. Warm-up is recorded but not counted; what it took is told beside: a cold"
    " server compiles then.",
    "Throughput that stops rising while TTFT climbs marks the knee: past it, more requests in"
    " flight only wait longer.",
    "System rates (output tok/s) are sums over all users; the decode rate is one user's. They"
    " answer different questions; neither follows from the other without the concurrency.",
    "Percentiles come from ok and unfinished requests. A request cut while waiting counts with the"
    " age it had reached, as a lower bound. Failed requests never improve a latency figure; they"
    " stand in the errors.",
    "An interval says how far the percentile itself could be off with this many samples; it does"
    " not cover a server that behaves differently tomorrow. One round cannot show that: compare"
    " rounds or runs.",
)
