"""One quick try of a source that the user named, before the load: why it gives nothing, or None.

The sampler's own code asks, in a thread; it may go on a moment longer than it is waited for.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from loadgen.run.telemetry.fetch import Access, FetchError, fetch

TRY_S = 1.0


async def page_problem(url: str, access: dict[str, Any]) -> str | None:
    """Say why there is no page at the address."""
    return await _within(lambda: _page(url, Access(**access)))


async def gpu_problem(how: str, *, visible: str | None) -> str | None:
    """Say why there are no figures of a GPU; how: "nvml", or a DCGM exporter's address."""
    return await _within(lambda: _gpu(how, visible))


async def _within(ask: Callable[[], str | None]) -> str | None:
    try:
        async with asyncio.timeout(TRY_S):
            return await asyncio.to_thread(ask)
    except TimeoutError:
        return f"no answer within {TRY_S:g} s"


def _page(url: str, access: Access) -> str | None:
    try:
        status = fetch(url, access, within_s=TRY_S).status
    except FetchError as fault:
        return str(fault)
    return None if status == 200 else f"HTTP {status}"


def _gpu(how: str, visible: str | None) -> str | None:
    from loadgen.run.telemetry.gpu import open_gpu

    opened = open_gpu(how, visible=visible)
    if opened.source is not None:
        opened.source.close()
    return opened.why_not
