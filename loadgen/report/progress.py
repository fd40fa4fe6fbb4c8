"""What a run shows while it goes on: one live line on a terminal, plain lines elsewhere.

Everything goes to stderr (or the stream given); stdout belongs to results.
"""

import sys
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadgen.report.text import count, number, plain
from loadgen.run.events import Event, LevelEnded, Notice, PhaseChanged, RunStarted, Tick
from loadgen.units import format_duration

_LONG_S = 10  # a schedule that takes longer is told of


class Progress:
    """Renders the events of one run: ``with Progress() as tell: run(..., on_event=tell)``.

    of: what each line begins with, where the run is one of several: the server's name.
    """

    def __init__(self, stream: TextIO | None = None, *, of: str = "") -> None:
        self._of = f"{plain(of)}: " if of else ""
        self._console = Console(
            file=stream or sys.stderr, highlight=False, markup=False, emoji=False, soft_wrap=True
        )
        self._live: Live | None = None
        self._phase: PhaseChanged | None = None
        self._levels = 0
        self._started = 0  # levels entered so far

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                Text(""),
                console=self._console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case RunStarted():
                self._levels = event.levels
                levels = f"{event.levels} level{'' if event.levels == 1 else 's'}"
                self._say(f"model {plain(event.model)} on {plain(event.engine)}, {levels}"
                          f" → {plain(event.directory)}")  # fmt: skip
            case PhaseChanged():
                self._enter_phase(event)
            case Tick():
                self._update(self._tick_line(event))
            case LevelEnded():
                self._update("")
                self._say(f"{plain(event.label)}: done ({plain(event.stop_reason)})")
            case Notice():
                self._say(plain(event.text))

    def _enter_phase(self, event: PhaseChanged) -> None:
        new_level = self._phase is None or self._phase.level != event.level
        if new_level or event.phase == "warmup":
            self._started += 1
        self._phase = event
        planned = _planned(event)
        line = f"{plain(event.label)}: {event.phase}{f', {planned}' if planned else ''}"
        if self._live is not None:
            self._update(line)
        elif planned != "0 requests":  # a quality pass has no warm-up
            self._say(line)

    def _tick_line(self, event: Tick) -> str:
        of = f"/{self._levels}" if self._levels else ""
        parts = [
            f"level {max(self._started, 1)}{of} · {plain(event.label)} · {event.phase}",
            _elapsed(event, self._phase),
            f"{event.in_flight:,} in flight",
            f"{event.done:,} done",
            *([f"{event.failed:,} failed"] if event.failed else []),
            f"{number(event.output_tokens_per_s)} output tok/s",
        ]
        return " · ".join(parts)

    def _say(self, line: str) -> None:
        self._console.print(Text(f"{self._of}{line}"))

    def _update(self, line: str) -> None:
        if self._live is not None:
            line = f"{self._of}{line}" if line else ""
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)


def _planned(event: PhaseChanged) -> str:
    parts = []
    if event.planned_s is not None:
        most = "at most " if event.phase == "drain" else ""
        parts.append(most + format_duration(event.planned_s))
    if event.planned_requests is not None:
        word = "request" if event.planned_requests == 1 else "requests"
        parts.append(f"{count(event.planned_requests)} {word}")
    planned, scheduled_s = " and ".join(parts), _scheduled_s(event)
    if scheduled_s is None:
        return planned
    by_schedule = f"{format_duration(scheduled_s)} by its schedule"
    return f"{planned}, {by_schedule}" if planned else by_schedule


def _scheduled_s(event: PhaseChanged) -> int | None:
    """Return in whole seconds how long its arrivals make a phase; None where nobody waits long."""
    if event.scheduled_s is None or event.scheduled_s < _LONG_S:
        return None
    return round(event.scheduled_s)


def _elapsed(event: Tick, phase: PhaseChanged | None) -> str:
    """Write "12 s", or "12 of 30 s" where the phase says how long it should last."""
    seconds = f"{event.elapsed_s:.0f}"
    if phase is None or phase.phase != event.phase:
        return f"{seconds} s"
    lasts_s = _scheduled_s(phase) or phase.planned_s
    return f"{seconds} s" if lasts_s is None else f"{seconds} of {lasts_s:.10g} s"
