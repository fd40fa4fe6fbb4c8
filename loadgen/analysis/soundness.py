"""Can a level's figures be trusted? What was asked against what was sent, and how steadily.

Each rule tells the number it found, the bound it held it against, and what to do. None of these
blames the client: see ``checks``.
"""

from collections.abc import Callable, Iterator, Sequence
from math import ceil

import numpy as np

from loadgen.analysis.bottleneck import throttled
from loadgen.analysis.bounds import FAIL, MEASUREMENT, PASS, WARN, Bounds, Found, held
from loadgen.analysis.quality import quality_checks
from loadgen.analysis.server_side import Foreign
from loadgen.analysis.stats import least_for_interval, least_n, spread_by_chance
from loadgen.analysis.steady import FALL_SHARE, FILLING_SHARE
from loadgen.analysis.summary import Check, LevelSummary
from loadgen.record import FAILED_OUTCOMES

DROPPED_SHARE = (0.0, 0.05)
IN_FLIGHT_SHARE = 0.05
ERROR_RATE = (0.01, 0.5)
"""Where most requests failed, the times describe the few that did not."""
INPUT_SHARE = 0.01
OUTPUT_SHARE = 0.05
CACHED_SHARE = 0.05
BLOCK_TOKENS = 16
"""What a cache may hold of any prompt besides the asked prefix: the template, the run's nonce and
the rest of a block."""
REPEATED_SHARE = 0.01
DRIFT_SHARE = 0.05
RISES_FAR = 2.0
"""A rise by more than this is told as from what to what: "by 1,300 %" says nothing to a reader."""
ROUNDS_APART = 0.05
ROOFLINE_SHARE = 1.10

SHARE, REQUESTS = "", "requests"


def measurement_checks(level: LevelSummary) -> Iterator[Check]:
    """Yield the checks of the measurement that this level's figures allow."""
    for rule in _RULES:
        yield from rule(level)


def _check(name: str, value: float, bounds: Bounds, *, text: str, unit: str = SHARE) -> Check:
    found = Found(name=name, value=value, text=text, unit=unit, about=MEASUREMENT)
    return held(found, bounds)


def _conservation(level: LevelSummary) -> Iterator[Check]:
    if level.arrivals_told is None:
        return
    yield _check(
        "arrivals without a record",
        abs(level.arrivals_told - level.records),
        Bounds(warn=0, fail=0),
        unit=REQUESTS,
        text=f"the run counted {level.arrivals_told:,} arrivals and requests.jsonl holds"
        f" {level.records:,}; the run directory is damaged or incomplete: measure again",
    )


def _internal_errors(level: LevelSummary) -> Iterator[Check]:
    yield _check(
        "negative durations",
        level.internal_errors,
        Bounds(warn=0, fail=0),
        unit="times",
        text="found and withheld: an error of the measurement itself; do not use this level",
    )


def _client_faults(level: LevelSummary) -> Iterator[Check]:
    if level.invalid is None:
        return
    n = level.outcomes.get("client_fault", 0)
    yield Check(
        name="client faults",
        verdict=FAIL,
        value=n,
        bound=0,
        unit=REQUESTS,
        text=f"{level.invalid}; do not use this level",
        about=MEASUREMENT,
    )


def _errors(level: LevelSummary) -> Iterator[Check]:
    if level.error_rate is None:
        return
    most = max(level.errors, key=lambda error: error.n, default=None)
    named = f", most often {most.error_class} ({most.n:,})" if most else ""
    n = sum(level.outcomes.get(outcome, 0) for outcome in FAILED_OUTCOMES)
    yield _check(
        "error rate",
        level.error_rate,
        Bounds(warn=ERROR_RATE[0], fail=ERROR_RATE[1]),
        text=f"{n:,} requests failed{named}; the times describe only the others",
    )


def _dropped(level: LevelSummary) -> Iterator[Check]:
    dropped = level.outcomes.get("dropped", 0)
    if not level.arrivals or (level.rate is None and not dropped):
        return
    yield _check(
        "dropped",
        dropped / level.arrivals,
        Bounds(warn=DROPPED_SHARE[0], fail=DROPPED_SHARE[1]),
        text=f"{dropped:,} of {level.arrivals:,} arrivals found no free slot, so less load was"
        " sent than asked; raise max_in_flight, or lower the rate",
    )


def _unfinished(level: LevelSummary) -> Iterator[Check]:
    if not level.arrivals:
        return
    unfinished = level.outcomes.get("unfinished", 0)
    yield _check(
        "unfinished",
        unfinished / level.arrivals,
        Bounds(warn=0.0),
        text=f"{unfinished:,} requests were cut when the drain ended; percentiles that fall among"
        " them read '> x': lengthen each_level.drain",
    )


def _in_flight(level: LevelSummary) -> Iterator[Check]:
    asked, mean = level.concurrency, level.in_flight_mean
    if not asked or mean is None or level.sessions is not None:
        return
    yield _check(
        "in flight, off by",
        abs(mean / asked - 1),
        Bounds(warn=IN_FLIGHT_SHARE),
        text=f"{mean:.3g} requests were in flight on average, where {asked} were asked for;"
        " measure for longer, or see what kept the slots from sending",
    )


def _window(level: LevelSummary) -> Iterator[Check]:
    """A level of one wave of requests is over, as a window, before its first answer."""
    typical = level.e2e.p50.value
    if level.window_s is None or typical is None:
        return
    short = level.window_s < typical / 1000
    text = f"shorter than one request ({typical / 1000:.3g} s), so the rates of this level mean"
    yield Check(
        name="window",
        verdict=WARN if short else PASS,
        value=level.window_s,
        bound=typical / 1000,
        least=True,
        unit="s",
        text=f"{text} little; ask for more requests or for a time" if short else "",
        about=MEASUREMENT,
    )


def _sample(level: LevelSummary) -> Iterator[Check]:
    """Too few for a p95; how many an interval needs grows where neighbours resemble each other."""
    n = max(level.ttft.n, level.e2e.n)
    least, whole = least_n(0.95), least_for_interval(0.95)
    verdict = WARN if n < least else PASS
    text = f"p95 is printed from {least} requests and has an interval from {whole}; measure more"
    yield Check(
        name="sample size",
        verdict=verdict,
        value=n,
        bound=least,
        least=True,
        unit=REQUESTS,
        text=text if verdict == WARN else "",
        about=MEASUREMENT,
    )


def _unclear(level: LevelSummary) -> Iterator[Check]:
    for result in level.objectives:
        if result.verdict != "unclear" or result.needed is None:
            continue
        yield Check(
            name=f"requests for {result.objective}",
            verdict=WARN,
            value=result.n,
            bound=result.needed,
            least=True,
            unit=REQUESTS,
            text=f"too few to say; with {result.misses or 0:,} misses {result.needed:,} requests"
            " would prove it met",
            about=MEASUREMENT,
        )


def _input_length(level: LevelSummary) -> Iterator[Check]:
    asked, told = level.asked_input_mean, level.input_told
    if not asked or told is None:
        return
    overhead = level.unasked_tokens
    template = f", {overhead:.3g} of them the template's" if overhead else ""
    yield _check(
        "input length, off by",
        abs((told - overhead) / asked - 1),
        Bounds(warn=INPUT_SHARE),
        text=f"{told:.4g} prompt tokens reported on average{template}, where {asked:.4g} were"
        " asked for: the server's tokenizer counts otherwise; read the reported length",
    )


def _output_length(level: LevelSummary) -> Iterator[Check]:
    asked, told = level.asked_output_mean, level.output_told
    if not asked or told is None:
        return
    off = abs(told / asked - 1)
    name = "answers stop early by" if told < asked else "answers too long by"
    ended = ", ".join(f"{word} {n:,}" for word, n in level.finish_reasons.items())
    yield _check(
        name if off > OUTPUT_SHARE else "output length, off by",
        off,
        Bounds(warn=OUTPUT_SHARE),
        text=f"{told:.4g} output tokens on average where {asked:.4g} were asked for (finish"
        f" reasons: {ended or 'none'}); compare only with runs of equal length, or fix the length"
        " on the server (ignore_eos, min_tokens)",
    )


def _prefix_cache(level: LevelSummary) -> Iterator[Check]:
    """Beyond the prefix that was asked to be shared, nothing should have been met before."""
    mean = level.input_tokens.mean
    common = ((level.prompt_overhead or 0.0) + BLOCK_TOKENS) / mean if mean else 0.0
    bound = max(CACHED_SHARE, level.asked_cached_share + common)
    for name, share in (
        ("prefix-cache hits", level.cached_input_share),
        ("prefix-cache hits, by the server's counters", level.cached_input_share_server),
    ):
        if share is not None:
            yield _check(
                name,
                share,
                Bounds(warn=min(1.0, bound)),
                text="the server had met these prompt tokens before, so TTFT is the cache's, not"
                " the prefill's; use nonce: fresh and unlike prompts",
            )


def _repeated(level: LevelSummary) -> Iterator[Check]:
    if level.repeated_prompts is None:
        return
    yield _check(
        "repeated prompts",
        level.repeated_prompts,
        Bounds(warn=REPEATED_SHARE),
        text="this run had sent these prompts before, and a server that remembers answers them"
        " faster; use more prompts, or read TTFT as the cache's",
    )


def _steady(level: LevelSummary) -> Iterator[Check]:
    found = level.steadiness
    if found.verdict == "saturated":
        served = level.requests_per_s
        less = "lower the rate" if level.rate is not None else "send less (segments, speed)"
        rate = f" of {level.rate:.3g}/s offered, {served:.3g}/s were served;" if (
            level.rate is not None and served is not None) else ""  # fmt: skip
        yield Check(
            name="queue grew by",
            verdict=WARN,
            value=round(found.in_system_growth or 0),
            bound=0,
            unit=REQUESTS,
            text=f"saturated:{rate} percentiles would tell only how long the level lasted and are"
            f" withheld; {less}",
            about=MEASUREMENT,
        )
        return
    yield from _filling(level)
    yield from _drift(level)


def _filling(level: LevelSummary) -> Iterator[Check]:
    found = level.steadiness
    if found.takes_s is None:
        return
    window_s = (level.window_s or 0.0) / level.rounds
    takes = f"{ceil(found.takes_s):,} s" if found.takes_s > 10 else f"{found.takes_s:.2g} s"
    yield Check(
        name="still filling for",
        verdict=WARN,
        value=found.filling_s,
        bound=FILLING_SHARE * window_s,
        unit="s",
        about=MEASUREMENT,
        text=f"requests take {takes} (p95) and the level measured {window_s:.3g} s, so more were in"
        " flight at its end than at its beginning: the figures are of a server not yet as busy as"
        f" this rate makes it, if it keeps up at all; warm up for {takes} or more"
        " (each_level.warmup), or measure for longer",
    )


def _drift(level: LevelSummary) -> Iterator[Check]:
    found = level.steadiness
    if found.ttft_fall > FALL_SHARE:
        yield _check(
            "TTFT fell by",
            found.ttft_fall,
            Bounds(warn=FALL_SHARE),
            text="within the window, from its beginning to what followed: the level had not settled"
            " (a cold start, caches that fill, a backlog), so its figures tell of both; warm up for"
            " longer (each_level.warmup) and measure again",
        )
    near = ", or one near its capacity, whose queue comes and goes" if level.rate else ""
    text = (
        f"from the first to the last request; a server that slows down (heat, memory, other work)"
        f"{near}: look at its clocks, rest between levels, measure again"
    )
    heat = throttled(level.gpu)
    if heat:
        text = f"{text}; the GPU lowered its clock: {heat}"
    for word, change, ends in (
        ("TTFT", found.ttft_change, found.ttft_ends),
        ("TPOT", found.tpot_change, found.tpot_ends),
    ):
        if word in found.drifting and change is not None:
            yield _rise(word, change, ends, text=text)
    if "output tok/s" in found.drifting and found.thirds_change is not None:
        fell = -found.thirds_change
        yield _check("output tok/s fell by", fell, Bounds(warn=DRIFT_SHARE), text=text)
    if not found.drifting and found.verdict == "steady":
        yield _check("drift", 0.0, Bounds(warn=DRIFT_SHARE), text=text)


def _rise(word: str, change: float, ends: Sequence[float], *, text: str) -> Check:
    """Tell a rise as a share, or as from what to what (ms) where that is many times as much."""
    if change <= RISES_FAR or not ends:
        return _check(f"{word} rose by", change, Bounds(warn=DRIFT_SHARE), text=text)
    start, end = ends
    bounds = Bounds(warn=(1 + DRIFT_SHARE) * start)
    text = f"{end / start:.2g} times as much, {text}"
    return _check(f"{word} rose from {start:.3g} ms to", end, bounds, text=text, unit="ms")


def _other_traffic(level: LevelSummary) -> Iterator[Check]:
    """What the server counted and this level did not send; where it counts requests, by these."""
    if level.server is None or level.server.generation_tokens is None:
        return
    others = level.others or Foreign()
    unit, value = REQUESTS, others.requests
    if others.output_tokens:
        unit, value = "output tokens", others.output_tokens
    yield _check(
        "other traffic at the server",
        value,
        Bounds(warn=0),
        unit=unit,
        text=f"the server also served others: {value:,.0f} {unit} not ours, which shared its"
        " batches and its cache; measure a server that nobody else uses",
    )


def _rounds(level: LevelSummary) -> Iterator[Check]:
    """Hold the rounds' output against each other; of a schedule, which decides that, a time.

    A time's bound allows for what differs by the requests drawn.
    """
    if level.concurrency is not None or level.sessions is not None:
        rates = [one.output_tokens_per_s for one in level.by_round]
        yield from _apart("output tok/s", [rate for rate in rates if rate is not None])
        return
    for word, median, error in (
        ("TPOT p50 (ms)", "tpot_p50", "tpot_p50_error"),
        ("E2E p50 (ms)", "e2e_p50", "e2e_p50_error"),
    ):
        known = [one for one in level.by_round if getattr(one, error) is not None]
        if len(known) > 1:
            errors = np.array([getattr(one, error) for one in known])
            values = [getattr(one, median) for one in known]
            yield from _apart(word, values, chance=spread_by_chance(errors))
            return


def _apart(word: str, rounds: Sequence[float], *, chance: float = 0.0) -> Iterator[Check]:
    if len(rounds) < 2 or not sum(rounds):
        return
    mean, spread = float(np.mean(rounds)), float(np.std(rounds, ddof=1))
    yield _check(
        "rounds apart by",
        spread / mean,
        Bounds(warn=max(ROUNDS_APART, chance / mean)),
        text=f"{word} is {mean:.4g} ± {spread:.3g} over {len(rounds)} rounds; what changed"
        " between them is no part of any one interval: find it, or measure more rounds",
    )


def _roofline(level: LevelSummary) -> Iterator[Check]:
    if level.roofline_share is None:
        return
    yield _check(
        "share of the decode roofline",
        level.roofline_share,
        Bounds(warn=ROOFLINE_SHARE),
        text="more tokens than the memory could give: tokens are counted wrongly, the facts of"
        " model and GPU are wrong (a mixture of experts needs conditions.active_parameters), or"
        " the server decodes speculatively",
    )


_RULES: tuple[Callable[[LevelSummary], Iterator[Check]], ...] = (
    _conservation,
    _internal_errors,
    _client_faults,
    _errors,
    _steady,
    _dropped,
    _in_flight,
    _unfinished,
    _window,
    _sample,
    _unclear,
    _repeated,
    _prefix_cache,
    _input_length,
    _output_length,
    _other_traffic,
    _rounds,
    _roofline,
    quality_checks,
)
