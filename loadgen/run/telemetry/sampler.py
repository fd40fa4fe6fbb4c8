"""The sampling process: asks each source on an absolute schedule and appends what it said.

It hears JSON lines on stdin: first what to do (``Spec``), then ``{"mark": n}``, which samples at
once and is answered by ``{"marked": n, "facts": {…}}``; the end of stdin is the end. So it ends
with its parent, however that ends. Waiting is waiting for stdin.
"""

import os
import select
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from loadgen.engines import ENGINES
from loadgen.run.telemetry.fetch import Access, Page, fetch
from loadgen.run.telemetry.server import Candidate, ServerSource
from loadgen.run.telemetry.source import FAILED, Sample, Source
from loadgen.units import NS_PER_S

Tell = Callable[[dict[str, Any]], None]
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What to sample; sent as JSON over stdin, since ``access`` may carry a key.

    page: (url, kind) of the server's metrics page; None: the server is not asked.
    first: what it said before the load: status, body, at_ns.
    gpu: "nvml" or a DCGM exporter's URL; None: GPUs are not asked.
    """

    path: str
    epoch_ns: int
    every_s: float
    engine: str
    page: tuple[str, str] | None
    first: dict[str, Any] | None
    access: dict[str, Any]
    gpu: str | None
    visible: str | None


class Commands:
    """Lines from a file descriptor, waited for with a limit."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN | select.POLLHUP)
        self._bytes = b""
        self.ended = False

    def next(self, limit_ns: int | None) -> dict[str, Any] | None:
        """Return the next command, or None when the time is over or the end is reached."""
        end_ns = None if limit_ns is None else time.monotonic_ns() + limit_ns
        while b"\n" not in self._bytes and not self.ended:
            left_ms = None if end_ns is None else max(0, end_ns - time.monotonic_ns()) / 1e6
            if not self._poll.poll(left_ms):
                return None
            data = os.read(self._descriptor, _READ_BYTES)
            self.ended = not data
            self._bytes += data
        line, newline, self._bytes = self._bytes.partition(b"\n")
        return orjson.loads(line) if newline else None


class Sampler:
    """Sweeps the sources of a spec and keeps count."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._file = os.open(spec.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._access = Access(**spec.access)
        first = spec.first
        self._first = Page(**{**first, "body": first["body"].encode()}) if first else None
        self._server: ServerSource | None = None
        if spec.page is not None:
            page = Candidate(url=spec.page[0], kind=spec.page[1])
            self._server = ServerSource(page, engine=ENGINES[spec.engine], fetch=self._page)
        self._gpu: Source | None = None
        self._gpu_facts: dict[str, Any] = {}
        self._gpu_asked = spec.gpu is None
        self.sweeps = 0
        self.failed = 0

    def sweep_server(self) -> None:
        """Ask the server, whose counts have to stand beside the client's; this goes first."""
        self.sweeps += 1
        if self._server is None:
            return
        began_ns = time.monotonic_ns()
        samples = self._server.sweep()
        self._write(self._server.name, samples, self._server.at_ns or _midway_ns(began_ns))

    def sweep_gpu(self) -> None:
        """Ask the GPUs; the first time finds them, which may take seconds."""
        if not self._gpu_asked:
            self._gpu_asked = True
            self._open_gpu()
        if self._gpu is not None:
            began_ns = time.monotonic_ns()
            samples = self._gpu.sweep()
            self._write(self._gpu.name, samples, _midway_ns(began_ns))

    def facts(self) -> dict[str, Any]:
        """Return what is known so far: server, gpu, sweeps, failed."""
        return {
            "server": self._server.facts() if self._server is not None else None,
            "gpu": self._gpu_facts or None,
            "sweeps": self.sweeps,
            "failed": self.failed,
        }

    def close(self) -> None:
        """Let go of everything."""
        for source in (self._server, self._gpu):
            if source is not None:
                source.close()
        os.close(self._file)

    def _page(self, url: str, within_s: float) -> Page:
        """Return a page: what the run had before the load, once; then what the server says now."""
        first, self._first = self._first, None
        return first or fetch(url, self._access, within_s=within_s)

    def _open_gpu(self) -> None:
        from loadgen.run.telemetry.gpu import open_gpu

        opened = open_gpu(self._spec.gpu or "off", visible=self._spec.visible)
        self._gpu = opened.source
        self._gpu_facts = {"by": None, "devices": [], "driver": None, "why_not": opened.why_not}
        if self._gpu is not None:
            self._gpu_facts |= self._gpu.facts()

    def _write(self, source: str, samples: list[Sample], at_ns: int) -> None:
        self.failed += sum(one.name == FAILED for one in samples)
        data = memoryview(b"".join(_lines(samples, source, at_ns - self._spec.epoch_ns)))
        while data:
            data = data[os.write(self._file, data) :]


def serve(commands: Commands, tell: Tell) -> None:
    """Sample as told until the end of the commands."""
    told = commands.next(None)
    if told is None:
        return
    spec = Spec(**told)
    sampler = Sampler(spec)
    every_ns = round(spec.every_s * NS_PER_S)
    start_ns = time.monotonic_ns()
    due_ns = start_ns
    try:
        if spec.first:
            sampler.sweep_server()
        while not commands.ended:
            command = commands.next(max(0, due_ns - time.monotonic_ns()))
            if command is not None and "mark" in command:
                sampler.sweep_server()
                tell({"marked": command["mark"], "facts": sampler.facts()})
                sampler.sweep_gpu()
            elif command is None and not commands.ended:
                sampler.sweep_server()
                sampler.sweep_gpu()
                due_ns = next_due_ns(start_ns, every_ns, now_ns=time.monotonic_ns())
        tell({"ended": True, "facts": sampler.facts()})
    finally:
        sampler.close()


def next_due_ns(start_ns: int, every_ns: int, *, now_ns: int) -> int:
    """Return the first instant of the grid after now; those that were missed are left out."""
    return start_ns + ((now_ns - start_ns) // every_ns + 1) * every_ns


def _midway_ns(began_ns: int) -> int:
    return (began_ns + time.monotonic_ns()) // 2


def _lines(samples: list[Sample], source: str, at_ns: int) -> Iterator[bytes]:
    for one in samples:
        row = {
            "at_ns": at_ns,
            "source": source,
            "name": one.name,
            "labels": dict(one.labels),
            "value": one.value,
        }
        yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
