"""Work that can wait keeps clear of sends: it is done after one, not in the moments before.

Decoding, records, files: on one thread each such piece holds up whatever falls due meanwhile. In
an open loop the next due instant is known, so the piece waits for it. Nothing waits for ever: with
no gap left between sends, or with much to be done, it goes on.
"""

import asyncio

from loadgen.client.clock import breathe, now_ns

_ROOM_NS = 400_000  # what an ordinary piece of work may take, cold
_LONGEST_NS = 50_000_000


class Calm:
    """When the next request is due, as the one who sends tells it; others ask for ``room``."""

    def __init__(self) -> None:
        self._due_ns: int | None = None
        self._sent = asyncio.Event()

    def expect(self, due_ns: int | None) -> None:
        """Tell when the next request is due; None: none is known of."""
        self._due_ns = due_ns
        self._sent.set()
        self._sent.clear()

    async def room(self, takes_ns: int = 0) -> None:
        """Return when there is time for a piece of work; lets the loop serve its sockets first.

        takes_ns: what it takes, where that is known and may be long.
        """
        await breathe()
        room_ns = max(takes_ns, _ROOM_NS)
        since_ns = now_ns()
        while self._due_ns is not None and self._due_ns - (now := now_ns()) < room_ns:
            if now - since_ns > _LONGEST_NS:
                return
            await self._sent.wait()
