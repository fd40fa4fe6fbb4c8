"""Time: the one place that reads clocks, sleeps and wakes.

All instants are nanoseconds of CLOCK_MONOTONIC. The kernel stamps arriving packets with
CLOCK_REALTIME; ``RealtimeMap`` translates, by pairs of readings with the tightest bracket of many.
``Alarm`` wakes the loop at an absolute instant: a timerfd on Linux, where loop timers round to
milliseconds or fire early.
"""

import asyncio
import ctypes
import heapq
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime

now_ns = time.monotonic_ns

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = 0o4000 | 0o2000000
_TFD_TIMER_ABSTIME = 1
_PAIRS = 60
_STEP_NS = 1_000_000  # what a clock is stepped by; slewing takes seconds for as much
LONG_LAG_NS = 50_000_000  # a read this late is rare enough to look at the clock
_LOOK_AGAIN_NS = 10_000_000


def utc_now() -> datetime:
    """Read the wall clock; a run does so once."""
    return datetime.now(UTC)


async def sleep_s(seconds: float) -> None:
    """Wait; for pauses that nothing is measured by."""
    await asyncio.sleep(seconds)


async def breathe() -> None:
    """Let the loop serve its sockets before going on."""
    await asyncio.sleep(0)


def _wall_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_REALTIME)


class RealtimeMap:
    """The offset CLOCK_REALTIME − CLOCK_MONOTONIC, measured and kept up to date.

    A pair of readings is known as well as its bracket is tight: the offset comes from the tightest
    of 60. ``bracket_ns`` is that bracket, so the offset's error is at most half of it. A wall
    clock that is stepped while requests are in flight shows in stamps that cannot be: then the
    offset is measured again at once.
    """

    __slots__ = ("_calibrated_ns", "_monotonic", "_wall", "bracket_ns", "offset_ns")

    def __init__(
        self,
        *,
        wall: Callable[[], int] = _wall_ns,
        monotonic: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._calibrated_ns = 0
        self.offset_ns = 0
        self.bracket_ns = 0
        self.calibrate()

    def calibrate(self) -> None:
        """Measure the offset anew (the wall clock may be slewed or stepped during a run)."""
        best = sys.maxsize
        for _ in range(_PAIRS):
            before = self._monotonic()
            wall = self._wall()
            after = self._monotonic()
            if after - before < best:
                best = after - before
                self.offset_ns = wall - (before + after) // 2
        self.bracket_ns = best
        self._calibrated_ns = after

    def monotonic_of(self, wall_ns: int, read_ns: int) -> int:
        """Return the instant of a kernel stamp that was read at ``read_ns``; never a later one.

        The mapping errs by tens of ns, and bytes cannot be in hand before they arrive.
        """
        stamp_ns = wall_ns - self.offset_ns
        lag_ns = read_ns - stamp_ns
        if not -_STEP_NS < lag_ns < LONG_LAG_NS and self._stepped(read_ns):
            stamp_ns = wall_ns - self.offset_ns
            if read_ns - stamp_ns > LONG_LAG_NS:  # it arrived before the step: only this is known
                return read_ns
        return min(stamp_ns, read_ns)

    def _stepped(self, now_ns: int) -> bool:
        """Look whether the wall clock was stepped; not more often than every 10 ms."""
        if now_ns - self._calibrated_ns < _LOOK_AGAIN_NS:
            return False
        before = self.offset_ns
        self.calibrate()
        return abs(self.offset_ns - before) > _STEP_NS


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: interval, then first expiry (s, ns each)."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Alarm:
    """Call ``wake`` on the running loop at absolute instants set one at a time.

    One timerfd serves the alarm for its life (Python 3.11 has no ``os.timerfd_create``, hence
    ctypes); elsewhere than on Linux a loop timer does, with the loop's own precision.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._handle: asyncio.TimerHandle | None = None
        self._fd = _timerfd()
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._expired)

    def set(self, at_ns: int) -> None:
        """Wake at ``at_ns`` (at once if that is past), in place of any instant set before."""
        if self._fd >= 0:
            at_ns = max(at_ns, 1)  # zero would disarm the timer
            spec = _TimerSpec(0, 0, at_ns // 1_000_000_000, at_ns % 1_000_000_000)
            _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None)
            return
        if self._handle:
            self._handle.cancel()
        delay_s = max(at_ns - now_ns(), 0) / 1e9
        self._handle = self._loop.call_later(delay_s, self._wake)

    def close(self) -> None:
        """Give the descriptor back; no wake comes after this."""
        if self._handle:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew between expiry and this call
            return
        self._wake()


class Sleepers:
    """Many who sleep until instants of their own, woken by one alarm, precisely."""

    def __init__(self) -> None:
        self._alarm = Alarm(self._wake)
        self._heap: list[tuple[int, int, asyncio.Future[None]]] = []
        self._count = 0

    async def until(self, at_ns: int) -> None:
        """Sleep until an instant, never waking before it."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        heapq.heappush(self._heap, (at_ns, self._count, future))
        self._alarm.set(self._heap[0][0])
        await future

    def wake_all(self) -> None:
        """Wake everybody now."""
        for _, _, future in self._heap:
            if not future.done():
                future.set_result(None)
        self._heap = []

    def close(self) -> None:
        """Wake everybody and give the alarm back."""
        self.wake_all()
        self._alarm.close()

    def _wake(self) -> None:
        while self._heap and (self._heap[0][0] <= now_ns() or self._heap[0][2].done()):
            future = heapq.heappop(self._heap)[2]
            if not future.done():
                future.set_result(None)
        if self._heap:
            self._alarm.set(self._heap[0][0])


_libc = ctypes.CDLL(None, use_errno=True)


def _timerfd() -> int:
    if not sys.platform.startswith("linux"):
        return -1
    return int(_libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC))


class LoopLag:
    """How late the loop serves a timer, sampled every 10 ms: the client's own busyness.

    ``largest_ns`` and ``samples_ns`` cover the time since ``reset``.
    """

    PERIOD_NS = 10_000_000

    def __init__(self) -> None:
        self.samples_ns: list[int] = []
        self._due_ns = now_ns() + self.PERIOD_NS
        self._alarm = Alarm(self._sample)
        self._alarm.set(self._due_ns)

    @property
    def largest_ns(self) -> int:
        """The longest time the loop kept a timer waiting; 0 before the first sample."""
        return max(self.samples_ns, default=0)

    def reset(self) -> None:
        """Forget what was sampled."""
        self.samples_ns = []

    def close(self) -> None:
        """Stop sampling."""
        self._alarm.close()

    def _sample(self) -> None:
        now = now_ns()
        self.samples_ns.append(max(now - self._due_ns, 0))
        self._due_ns = now + self.PERIOD_NS
        self._alarm.set(self._due_ns)
