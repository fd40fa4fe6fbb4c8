"""What holds a level back at the server, in words with its numbers; never the client's fault."""

from loadgen.analysis.server_side import GpuFigures, ServerFigures

LEAST_WAITING = 1.0
WAITING_SHARE = 0.10
"""Of the requests at the server; below that, a queue is what any server has now and then."""
QUEUE_OF_TTFT = 0.5
LEAST_READINGS = 5
"""Of the server's gauges in W; fewer may have met the queue by chance."""
FULL = 0.90
AT_ITS_CAP = 0.95
"""Of the most that run at once: where that many run on average, it is a limit and not chance."""
POWER_CAP_SHARE = 0.05
"""A GPU under load touches its power cap now and then; that is no finding."""


def queue_bound(server: ServerFigures | None) -> str | None:
    """Say that requests waited at the server, how many, and for what; None where few did.

    How many is told by its histogram of queue times, else by its gauge where that was read often
    enough. They waited for room, its KV cache being full or its batch at its known limit; or most
    of its TTFT was queue, whatever they waited for.
    """
    waited = None if server is None else _waited(server)
    if server is None or waited is None or not _bound(server, waited):
        return None
    by = " (by its queue times)" if server.queue_ms is not None else ""
    waiting = f"on average {_n(waited)} requests waited at the server{by}"
    return f"queue-bound: {waiting} {_cause(server)}{_of_ttft(server)}"


def kv_full(server: ServerFigures) -> bool:
    """Say whether the KV cache had no room for one more request like those that ran."""
    use, running = server.kv_usage_mean, server.running_mean
    if use is None:
        return False
    return use >= FULL or bool(running and use * (1 + 1 / running) > 1)


def throttled(gpu: GpuFigures | None) -> str | None:
    """Name the reasons for which the GPU lowered its clock, with their shares of the time."""
    if gpu is None or gpu.throttle is None:
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


def out_of_date(gpu: GpuFigures | None) -> str | None:
    """Say that figures of the GPU are left out since its exporter refreshes them too seldom."""
    if gpu is None or gpu.refreshed_s is None:
        return None
    times = {0: "never", 1: "once"}.get(gpu.samples, f"{gpu.samples} times")
    return (
        f"its exporter refreshes them about each {gpu.refreshed_s:.0f} s, {times} in the window;"
        " start it with -c 1000 (each second)"
    )


def idle(gpu: GpuFigures | None) -> bool:
    """Say whether no GPU did anything at any reading."""
    return gpu is not None and gpu.samples >= LEAST_READINGS and gpu.utilization_mean == 0


def _waited(server: ServerFigures) -> float | None:
    """Return how many requests waited on average; None where there is not enough to say."""
    if server.queue_ms is not None:
        return server.queued_mean
    return server.waiting_mean if server.samples >= LEAST_READINGS else None


def _bound(server: ServerFigures, waited: float) -> bool:
    if waited < LEAST_WAITING:
        return False
    if _queue_share(server) > QUEUE_OF_TTFT:
        return True
    many = waited > WAITING_SHARE * (waited + (server.running_mean or 0.0))
    return many and server.samples >= LEAST_READINGS and (kv_full(server) or _capped(server))


def _cause(server: ServerFigures) -> str:
    kv = server.kv_usage_mean
    also = "" if kv is None else f" (KV cache {_percent(kv)} full)"
    if kv is not None and kv_full(server):
        room = "" if kv >= FULL else ", without room for one more of them"
        return f"while its KV cache was {_percent(kv)} full{room}"
    if _capped(server):
        return f"while {_n(server.running_mean)} ran, the most it takes at once{also}"
    if _at_most(server):
        return f"while {_n(server.running_mean)} ran and never more{also}"
    if kv is None:
        return "for a place in its batch"
    return f"though its KV cache was only {_percent(kv)} full"


def _capped(server: ServerFigures) -> bool:
    """Say whether it ran as many as it is known to take; a limit that was passed is none of its."""
    mean, most = server.running_mean, server.max_sequences
    if mean is None or most is None or (server.running_max or 0.0) > most:
        return False
    return mean >= AT_ITS_CAP * most


def _at_most(server: ServerFigures) -> bool:
    mean, most = server.running_mean, server.running_max
    return mean is not None and bool(most) and mean >= AT_ITS_CAP * (most or 0.0)


def _queue_share(server: ServerFigures) -> float:
    queue, ttft = server.queue_ms, server.ttft_ms
    if queue is None or ttft is None or not ttft.mean:
        return 0.0
    return min(1.0, queue.mean / ttft.mean)


def _of_ttft(server: ServerFigures) -> str:
    share = _queue_share(server)
    return f"; {_percent(share)} of its TTFT was queue" if share > QUEUE_OF_TTFT else ""


def _n(value: float | None) -> str:
    return f"{value or 0:.3g}" if (value or 0) < 100 else f"{value:,.0f}"


def _percent(share: float | None) -> str:
    return f"{(share or 0):.0%}".replace("%", " %")
