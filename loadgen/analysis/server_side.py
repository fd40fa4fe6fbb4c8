"""The shape of what the server and its GPUs told of themselves, beside the client's numbers.

Times are milliseconds; None means that it was not told. W is the level's window(s).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTime:
    """One of the server's own histograms over W.

    mean is exact (sum / count); p50 and p95 are linear within their bucket, None where they fall
    into the first or the last, open one, and p95 under 20 observations.
    """

    n: int
    mean: float
    p50: float | None = None
    p95: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFigures:
    """What the server's metrics page told over one level.

    samples: readings of the page in W. Means are weighted by time, straight lines between
    readings, and withheld under 3 of them. queued_mean: requests that waited, by Little's law,
    Σ queue times / length; max_sequences: the most it runs at once, where that is known. Times are
    of whole readings in W, none where it holds fewer than two (``tracks.aligned``). prompt_tokens,
    generation_tokens, requests_done: what the server counted over the whole level, from the last
    reading before it to the first after its drain; requests_done without those that it says were
    aborted. prefix_hit_share: cached / looked up prompt tokens.
    restarts: how often its counters began anew.
    """

    samples: int = 0
    running_mean: float | None = None
    running_max: float | None = None
    waiting_mean: float | None = None
    waiting_max: float | None = None
    queued_mean: float | None = None
    max_sequences: float | None = None
    kv_usage_mean: float | None = None
    kv_usage_max: float | None = None
    preemptions: float | None = None
    prefix_hit_share: float | None = None
    spec_acceptance: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    requests_done: float | None = None
    ttft_ms: ServerTime | None = None
    itl_ms: ServerTime | None = None
    tpot_ms: ServerTime | None = None
    queue_ms: ServerTime | None = None
    prefill_ms: ServerTime | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """The GPUs over W: memory, power and energy of all that were seen together.

    utilization is their mean, temperature and clock are those of the hottest and the slowest.
    throttle: reason → share of the readings in which some GPU named it; None where none told of
    reasons at all. energy_j: by the device's counter where it has one, else power over time; None
    where W is not covered by readings. refreshed_s: how often the source renews what it says, where
    that is too seldom for W (``gpus.LEAST_REFRESHES``): all but gpus, samples and memory_total is
    None. samples: readings in W, of such a source those that were new.
    """

    gpus: int = 0
    samples: int = 0
    utilization_mean: float | None = None
    memory_used_max_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_mean_w: float | None = None
    temperature_max_c: float | None = None
    sm_clock_mean_hz: float | None = None
    sm_clock_min_hz: float | None = None
    throttle: dict[str, float] | None = None
    energy_j: float | None = None
    energy_per_token_j: float | None = None
    refreshed_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """One thing that client and server both counted or timed.

    gap: client - server. agrees: equal but for what ``text`` explains.
    """

    what: str
    client: float
    server: float
    gap: float
    unit: str  # tokens, requests, ms
    text: str
    agrees: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """What the server served that this level did not send; 0 where nothing stands out."""

    requests: float = 0.0
    output_tokens: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Whether the server was listened to, and if not, why (``why_not``)."""

    kind: str | None = None
    why_not: str | None = None
    sweeps: int = 0
    failed: int = 0
    gpu_by: str | None = None
    gpu_why_not: str | None = None
