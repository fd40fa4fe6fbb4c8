"""The simulator, and how long each chunk took from its stamp to the socket; flags as `simulate`.

The stamp stands inside the text, so it is taken before the chunk is framed and, over https,
encrypted. What comes between is the simulator's own delay, and no client can be held to it.
"""

import asyncio.selector_events
import json
import sys
import time

import numpy as np

from loadgen.cli.simulate import command
from loadgen.simulator.framing import ChoiceFrames

delays_ns: list[int] = []
stamped_ns = 0


def watch() -> None:
    """Note the instant of each stamp, and of the write to the raw socket that follows it."""
    transport = asyncio.selector_events._SelectorSocketTransport  # type: ignore[attr-defined]
    frame, write = ChoiceFrames.stamped, transport.write

    def noted_frame(self: ChoiceFrames, body: bytes, sent_ns: int) -> bytes:
        global stamped_ns
        stamped_ns = sent_ns
        return frame(self, body, sent_ns)

    def noted_write(self: object, data: bytes) -> None:
        global stamped_ns
        if stamped_ns:
            delays_ns.append(time.monotonic_ns() - stamped_ns)
            stamped_ns = 0
        write(self, data)

    ChoiceFrames.stamped = noted_frame  # type: ignore[method-assign]
    transport.write = noted_write


def main() -> None:
    watch()
    try:
        command(sys.argv[1:], standalone_mode=False)
    finally:
        middle, tail = np.percentile(delays_ns or [0], [50, 99]) / 1e3
        print(json.dumps({"n": len(delays_ns), "p50": middle, "p99": tail}), flush=True)


if __name__ == "__main__":
    main()
