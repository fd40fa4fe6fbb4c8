"""One alarm on the monotonic clock's absolute time, with tens of microseconds of lateness.

``call_at`` of the standard event loop rounds up to whole milliseconds, which is as long as a
decode step. Linux has timerfd for this; Python wraps it only from 3.13 on, hence ctypes.
Elsewhere the loop's own ``call_at`` must do.
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_TFD_TIMER_ABSTIME = 1
_NS_PER_S = 1_000_000_000


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Alarm:
    """Calls back once at the instant set last; ``close`` gives its descriptor back."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[[], None],
        *,
        precise: bool = sys.platform == "linux",
    ) -> None:
        self._loop = loop
        self._callback = callback
        self._handle: asyncio.TimerHandle | None = None
        self._fd = _timerfd() if precise else None
        if self._fd is not None:
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._spec = _TimerSpec()
            loop.add_reader(self._fd, self._ring)

    def set(self, at_ns: int) -> None:
        """Ring at this CLOCK_MONOTONIC instant (at once if it has passed)."""
        if self._fd is None:
            if self._handle:
                self._handle.cancel()
            wait_s = (at_ns - time.monotonic_ns()) / _NS_PER_S
            self._handle = self._loop.call_later(max(0.0, wait_s), self._callback)
            return
        at_ns = max(at_ns, 1)  # all zero would switch it off
        self._spec.value.seconds, self._spec.value.nanoseconds = divmod(at_ns, _NS_PER_S)
        spec = ctypes.byref(self._spec)
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, spec, None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Stop ringing."""
        if self._handle:
            self._handle.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _ring(self) -> None:
        assert self._fd is not None
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set anew between the wake-up and this read
        self._callback()


def _timerfd() -> int | None:
    create = getattr(ctypes.CDLL(None, use_errno=True), "timerfd_create", None)
    if create is None:
        return None
    descriptor = int(create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC))
    return descriptor if descriptor >= 0 else None
