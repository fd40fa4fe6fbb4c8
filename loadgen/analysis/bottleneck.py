"""What holds a level back at the server, in words with its numbers; never the client's fault."""

from loadgen.analysis.server_side import GpuFigures, ServerFigures

LEAST_WAITING = 1.0
WAITING_SHARE = 0.10
"""Of the requests at the server; below that, a queue is what any server has now and then."""
QUEUE_OF_TTFT = 0.5
FULL = 0.90
AT_ITS_CAP = 0.95
"""Of the most that ran at once: where that many run on average, it is a limit and not chance."""
POWER_CAP_SHARE = 0.05
"""A GPU under load touches its power cap now and then; that is no finding."""


def queue_bound(server: ServerFigures | None) -> str | None:
    """Say that requests waited at the server, how many, and for what; None where few did.

    A substantial share of what was at the server waited, or most of its TTFT was queue. Its KV
    cache was full where one more request of the same size would not have fit.
    """
    if server is None or not _waits(server):
        return None
    waiting = f"on average {_n(server.waiting_mean)} requests waited at the server"
    if kv_full(server):
        use = server.kv_usage_mean or 0.0
        room = "" if use >= FULL else ", without room for one more of them"
        cause = f"while its KV cache was {_percent(use)} full{room}"
    elif _capped(server):
        kv = _percent(server.kv_usage_mean)
        also = "" if server.kv_usage_mean is None else f" (KV cache {kv} full)"
        cause = f"while {_n(server.running_mean)} ran, the most it takes at once{also}"
    elif server.kv_usage_mean is None:
        cause = "for a place in its batch"
    else:
        cause = f"though its KV cache was only {_percent(server.kv_usage_mean)} full"
    return f"queue-bound: {waiting} {cause}{_of_ttft(server)}"


def kv_full(server: ServerFigures) -> bool:
    """Say whether the KV cache had no room for one more request like those that ran."""
    use, running = server.kv_usage_mean, server.running_mean
    if use is None:
        return False
    return use >= FULL or bool(running and use * (1 + 1 / running) > 1)


def throttled(gpu: GpuFigures | None) -> str | None:
    """Name the reasons for which the GPU lowered its clock, with their shares of the time."""
    if gpu is None:
        return None
    told = [
        f"{word} in {_percent(share)} of the readings"
        for word, share in gpu.throttle.items()
        if "power" not in word or share > POWER_CAP_SHARE
    ]
    if not told:
        return None
    lowest = gpu.sm_clock_min_hz
    down = f" (SM clock down to {lowest / 1e6:,.0f} MHz)" if lowest else ""
    return ", ".join(told) + down


def _waits(server: ServerFigures) -> bool:
    waiting, running = server.waiting_mean, server.running_mean or 0.0
    queued = server.queue_ms is not None and server.ttft_ms is not None and (
        server.queue_ms.mean > QUEUE_OF_TTFT * server.ttft_ms.mean)  # fmt: skip
    if waiting is None or waiting < LEAST_WAITING:
        return False
    return waiting > WAITING_SHARE * (waiting + running) or queued


def _capped(server: ServerFigures) -> bool:
    mean, most = server.running_mean, server.running_max
    return mean is not None and bool(most) and mean >= AT_ITS_CAP * (most or 0.0)


def _of_ttft(server: ServerFigures) -> str:
    queue, ttft = server.queue_ms, server.ttft_ms
    if queue is None or ttft is None or not ttft.mean:
        return ""
    share = min(1.0, queue.mean / ttft.mean)
    return f"; {_percent(share)} of its TTFT was queue" if share > QUEUE_OF_TTFT else ""


def _n(value: float | None) -> str:
    return f"{value or 0:.3g}" if (value or 0) < 100 else f"{value:,.0f}"


def _percent(share: float | None) -> str:
    return f"{(share or 0):.0%}".replace("%", " %")
