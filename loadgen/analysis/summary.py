"""The shape of a run's numbers: what every report is made of, and what ``summary.json`` holds.

Times are milliseconds, rates per second; None means "not known" or "did not happen".
"""

from dataclasses import dataclass, field
from typing import Any

from loadgen.analysis.server_side import (
    Foreign,
    GpuFigures,
    Reconciled,
    ServerFigures,
    Telemetry,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """One percentile. ``above``: it falls among censored requests, so the truth is > value.

    value is None where n is too small to print it (P95 from 20, P99 from 100).
    low, high: the two-sided 95 % interval; both None where n is too small for one, high alone
        None where the interval is open above (it ends among censored requests or failures).
    by_rounds: the interval was widened to hold the t interval over the rounds' own values, too.
    """

    value: float | None = None
    above: bool = False
    low: float | None = None
    high: float | None = None
    by_rounds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Percentiles of one metric over one level, all samples of all rounds and workers pooled.

    censored: how many of the n are known only from below (unfinished requests at their age;
        failures in the set that counts them as +∞); mean and max are then lower bounds, too.
    requests: how many they come from, where one gives many (gaps).
    effective_n: how many independent samples the n are worth; None where it was not asked.
    withheld: the queue grew as long as the level lasted, so that the percentiles, which would
        tell its length and nothing else, are left out.
    """

    n: int = 0
    censored: int = 0
    requests: int | None = None
    effective_n: float | None = None
    withheld: bool = False
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    p50: Quantile = field(default_factory=Quantile)
    p90: Quantile = field(default_factory=Quantile)
    p95: Quantile = field(default_factory=Quantile)
    p99: Quantile = field(default_factory=Quantile)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorClass:
    """One kind of failure in a level, with one scrubbed message as a sample."""

    error_class: str
    outcome: str
    fault: str
    n: int
    http_status: int | None = None
    sample: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveResult:
    """One objective held against one level."""

    objective: str
    verdict: str  # met, missed, unclear
    value: float | None = None  # the metric at the asked percentile, or the rate
    n: int = 0
    misses: int | None = None
    needed: int | None = None  # requests that would settle an unclear verdict at today's misses


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One test of the measurement's soundness on one level.

    bound: what ``value`` was held against: the bound it crossed, or the nearest where it passed.
    least: whether the bound is one that the value must reach, rather than one not to exceed.
    text: what it means and what to do; empty where it passed.
    about: whose part is tested: the client's, or the measurement's as a whole (load, samples,
        prompts, steadiness).
    """

    name: str
    verdict: str  # pass, warn, fail
    value: float
    bound: float
    unit: str  # ms, s, requests; or "" for a share of 1
    text: str = ""
    about: str = "client"  # client, measurement
    least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """Whether a level was steady, and what was left out until it was.

    truncation: mser-5; off (the scenario forbids it); too few (under 50 requests: nothing cut);
        load varies (segments: there is no steady state to find).
    settled: False where MSER-5 found no place from which TTFT and in flight are steady (d* at
        m/2); then it cut nothing for that series, or only what stands out clearly.
    verdict: steady; drift (something rose or fell steadily); saturated (the queue grew as long as
        the level lasted); not settled (W itself begins unlike its rest); still filling (an open
        level began empty, and requests take so long that W lies before it was full); unknown (too
        few requests to tell, or a load that varies by itself).
    ttft_fall: by what share of its beginning TTFT fell inside W, where one step explains it.
    drifting: what drifts, in the words of the report.
    ttft_change, tpot_change: growth of a fitted line as a share of what the series begins with,
        over all of measure where that drifts, else over W; or a step that came late.
    ttft_ends, tpot_ends: from what to what it rose, ms; empty where it did not.
    in_system_growth: how many more requests were in the system at the end of measure.
    takes_s: p95 of end - due, while still filling; filling_s: how much of W lies in it,
        of the round where it is most.
    queue_peak: of a load that varies, how many waited for a first token at most, where a queue came
        and went; queue_peak_ttft: TTFT from due where it was least, and at that peak, ms.
    thirds: output tok/s in each third of measure; thirds_change: (last - first) / first.
    """

    truncation: str = "too few"
    cut_s: float = 0.0
    cut_requests: int = 0
    settled: bool = True
    verdict: str = "unknown"
    drifting: list[str] = field(default_factory=list)
    ttft_fall: float = 0.0
    ttft_change: float | None = None
    tpot_change: float | None = None
    ttft_ends: list[float] = field(default_factory=list)
    tpot_ends: list[float] = field(default_factory=list)
    in_system_growth: float | None = None
    takes_s: float | None = None
    filling_s: float = 0.0
    queue_peak: int | None = None
    queue_peak_ttft: list[float] = field(default_factory=list)
    thirds: list[float] = field(default_factory=list)
    thirds_change: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncut:
    """The figures of a level without MSER-5's cut: all of ``measure``."""

    window_s: float | None = None
    arrivals: int = 0
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    ttft: Distribution = field(default_factory=Distribution)
    tpot: Distribution = field(default_factory=Distribution)
    e2e: Distribution = field(default_factory=Distribution)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFigures:
    """The main figures of one level in one round; times in ms.

    tpot_p50_error, e2e_p50_error: the standard error of that median; None under 2 samples.
    """

    round: int
    window_s: float | None = None
    arrivals: int = 0
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    ttft_p50: float | None = None
    ttft_p95: float | None = None
    tpot_p50: float | None = None
    tpot_p50_error: float | None = None
    itl_p95: float | None = None
    e2e_p50: float | None = None
    e2e_p50_error: float | None = None
    e2e_p95: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What the answers of a level were worth.

    questions: how many of the golden set were due in ``measure`` or asked in a pass of their own,
        one that was asked again counted again; accuracy: passed / answered, with its 95 % interval
        (``accuracy``). by_question: of each that was answered, by its id, how many answers passed,
        and how many there were. failing: those that failed most often.
    unseen, cut: answers to questions that failed without any visible output (reasoning alone), and
        that failed and had been cut at max_tokens, broken ones apart; one may be both.
    outputs: all answers looked at, those to questions among them; broken: those that are garbled,
        empty (blank, too), looping or truncated (cut off by the server).
    """

    questions: int = 0
    answered: int = 0
    passed: int = 0
    accuracy: float | None = None
    low: float | None = None
    high: float | None = None
    by_question: dict[str, tuple[int, int]] = field(default_factory=dict)
    failing: dict[str, int] = field(default_factory=dict)
    unseen: int = 0
    cut: int = 0
    outputs: int = 0
    broken: int = 0
    garbled: int = 0
    empty: int = 0
    looping: int = 0
    truncated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One question of the card of conditions, answered.

    source: discovered (the server or the machine told), declared (the scenario's ``conditions``),
        hinted (by the model's name), measured, or unknown.
    """

    question: str
    text: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelSummary:
    """All figures of one level (over its rounds)."""

    level: int
    label: str  # "concurrency 8", "4/s poisson"
    class_: str | None = None  # a class of a mix; None = all together
    concurrency: int | None = None
    rate: float | None = None
    sessions: int | None = None  # conversations under way at once; concurrency is then a cap
    rounds: int = 1
    window_s: float | None = None  # total length of the windows W
    stop_reason: str | None = None  # time, count, interrupted, abort, ...
    arrivals: int = 0  # due in measure; the n of a percentile are those due in W
    outcomes: dict[str, int] = field(default_factory=dict)  # of these arrivals
    questions: int = 0  # of a golden set, asked among these arrivals
    flags: dict[str, int] = field(default_factory=dict)
    # what W leaves out, and how it went
    warmup_requests: int = 0
    warmup_s: float | None = None  # from the level's start to ``measure``, over all rounds
    warmup_ttft_max: float | None = None  # ms; in no other figure: a cold server compiles here
    records: int = 0  # of all phases
    arrivals_told: int | None = None  # as the run itself counted them, all phases
    steadiness: Steadiness = field(default_factory=Steadiness)
    uncut: Uncut | None = None  # where MSER-5 cut something
    by_round: list[RoundFigures] = field(default_factory=list)  # where there are several
    # rates over W
    requests_per_s: float | None = None
    requests_per_s_between_ends: float | None = None  # (n - k) / (last end - kth end)
    output_tokens_per_s: float | None = None
    output_tokens_per_s_ok: float | None = None
    total_tokens_per_s: float | None = None
    implied_concurrency: float | None = None  # output tok/s × mean TPOT
    in_flight_mean: float | None = None
    in_flight_peak: int | None = None
    # distributions, ms (decode_rate and prefill_rate tok/s)
    ttft: Distribution = field(default_factory=Distribution)
    ttfo: Distribution = field(default_factory=Distribution)
    e2e: Distribution = field(default_factory=Distribution)
    itl: Distribution = field(default_factory=Distribution)
    tpot: Distribution = field(default_factory=Distribution)
    decode_rate: Distribution = field(default_factory=Distribution)
    prefill_rate: Distribution = field(default_factory=Distribution)
    per_request_rate: Distribution = field(default_factory=Distribution)  # output tokens / E2E
    ttfb: Distribution = field(default_factory=Distribution)  # to the headers; never called TTFT
    stream_end: Distribution = field(default_factory=Distribution)
    connect: Distribution = field(default_factory=Distribution)
    tls: Distribution = field(default_factory=Distribution)
    ttft_cold: Distribution = field(default_factory=Distribution)
    ttft_from_due: Distribution = field(default_factory=Distribution)
    e2e_from_due: Distribution = field(default_factory=Distribution)
    lateness: Distribution = field(default_factory=Distribution)
    slot_wait: Distribution = field(default_factory=Distribution)
    send_lag: Distribution = field(default_factory=Distribution)
    # the second set: each failure counted as +infinity (a Quantile may then be above=True)
    ttft_failures_infinite: Distribution = field(default_factory=Distribution)
    e2e_failures_infinite: Distribution = field(default_factory=Distribution)
    # lengths and tokens
    input_tokens: Distribution = field(default_factory=Distribution)  # reported
    output_tokens: Distribution = field(default_factory=Distribution)
    asked_input_mean: float | None = None  # over those that asked for a length
    asked_output_mean: float | None = None
    asked_input_told: float | None = None  # as reported, over the same requests
    asked_output_told: float | None = None
    cached_input_share: float | None = None
    cached_input_share_server: float | None = None  # by the server's own counters
    asked_cached_share: float = 0.0  # by a shared prefix, a wanted share, or turns
    prompt_overhead: float | None = None  # tokens that the template adds, by a probe
    exact_input_share: float | None = None  # prompts counted as long as asked, of those with both
    largest_input_miss: float | None = None  # tokens, of any one prompt
    exact_output_share: float | None = None  # likewise of answers
    conversations_cut: int = 0  # ended early by a turn that failed
    unasked_tokens: float = 0.0  # of these, what the length asked for leaves out
    repeated_prompts: float | None = None  # share of prompts that the run had sent before
    tokens_per_chunk: float | None = None
    roofline_share: float | None = None  # output tok/s over the most that memory allows
    token_sources: dict[str, int] = field(default_factory=dict)
    finish_reasons: dict[str, int] = field(default_factory=dict)
    # the server's own view
    server: ServerFigures | None = None
    gpu: GpuFigures | None = None
    reconciled: list[Reconciled] = field(default_factory=list)
    others: Foreign | None = None  # what the server served that this level did not send
    # failures, quality and objectives
    quality: Quality = field(default_factory=Quality)
    error_rate: float | None = None
    errors: list[ErrorClass] = field(default_factory=list)
    objectives: list[ObjectiveResult] = field(default_factory=list)
    attainment: float | None = None
    goodput: float | None = None
    # the measurement measured
    coalesced_share: float | None = None
    user_lag: Distribution = field(default_factory=Distribution)  # ms, per read
    connections_new: int = 0
    reconnects: int = 0
    internal_errors: int = 0  # negative durations found and withheld
    client: dict[str, Any] = field(default_factory=dict)  # the manifest's figures for this level
    invalid: str | None = None  # why the level must not be used (client_fault)
    checks: list[Check] = field(default_factory=list)  # see ``checks`` and ``soundness``

    @property
    def input_told(self) -> float | None:
        """Mean length of prompts, as reported, to hold against what was asked for."""
        told = self.asked_input_told
        return self.input_tokens.mean if told is None else told

    @property
    def output_told(self) -> float | None:
        """Mean length of answers, to hold against what was asked for."""
        told = self.asked_output_told
        return self.output_tokens.mean if told is None else told


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRequest:
    """One of the slowest requests, for the report's table (times ms)."""

    id: int
    level: int
    label: str
    outcome: str
    ttft: float | None
    e2e: float | None
    largest_gap: float | None
    output_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All figures of one run."""

    schema: int
    name: str
    status: str
    started_at: str
    target: dict[str, Any]
    levels: list[LevelSummary]
    by_class: list[LevelSummary] = field(default_factory=list)
    objectives: list[str] = field(default_factory=list)
    slowest: list[SlowRequest] = field(default_factory=list)
    conditions: list[Answer] = field(default_factory=list)  # the questions of the card
    telemetry: Telemetry | None = None  # None: of before there was any
    warnings: list[str] = field(default_factory=list)
