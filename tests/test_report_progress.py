"""What a run shows while it goes on."""

import io
from dataclasses import replace

import pytest

from loadgen.report.progress import Progress
from loadgen.run.events import Event, LevelEnded, Notice, PhaseChanged, RunStarted, Tick

PHASE = PhaseChanged(
    level=0, label="concurrency 8", phase="measure", planned_s=30.0, planned_requests=200
)
TICK = Tick(
    level=0, label="concurrency 8", phase="measure", elapsed_s=12.2, in_flight=8, done=120,
    failed=3, output_tokens_per_s=812.4,
)  # fmt: skip
EVENTS: list[Event] = [
    RunStarted(directory="runs/x", model="tiny", engine="vllm", levels=4),
    PHASE,
    TICK,
    Notice(text="look here"),
    LevelEnded(level=0, label="concurrency 8", stop_reason="time"),
]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, events: list[Event]) -> str:
    with Progress(stream) as tell:
        for event in events:
            tell(event)
    return stream.getvalue()


def test_without_a_terminal_each_phase_and_level_is_one_plain_line() -> None:
    assert shown(io.StringIO(), EVENTS).splitlines() == [
        "model tiny on vllm, 4 levels → runs/x",
        "concurrency 8: measure, 30s and 200 requests",
        "look here",
        "concurrency 8: done (time)",
    ]


def test_a_drain_lasts_at_most_its_limit() -> None:
    drain = PhaseChanged(level=0, label="4/s", phase="drain", planned_s=60, planned_requests=None)
    assert shown(io.StringIO(), [drain]) == "4/s: drain, at most 1m\n"


@pytest.mark.parametrize(
    ("planned_s", "scheduled_s", "line"),
    [
        (None, 1864.2, "4/s: warmup, 2 requests, 31m4s by its schedule"),
        (3, 1864.2, "4/s: warmup, 3s and 2 requests, 31m4s by its schedule"),
        (None, 9.9, "4/s: warmup, 2 requests"),
    ],
)
def test_a_count_that_takes_its_schedule_long_is_told_with_the_time(
    planned_s: float | None, scheduled_s: float, line: str
) -> None:
    phase = PhaseChanged(level=0, label="4/s", phase="warmup", planned_s=planned_s,
                         planned_requests=2, scheduled_s=scheduled_s)  # fmt: skip
    assert shown(io.StringIO(), [phase]) == f"{line}\n"


def test_each_line_of_one_run_of_several_begins_with_the_servers_name() -> None:
    stream = io.StringIO()
    with Progress(stream, of="int8") as tell:
        for event in EVENTS:
            tell(event)
    assert [line.split(": ")[0] for line in stream.getvalue().splitlines()] == ["int8"] * 4


def test_a_warm_up_of_nothing_is_not_announced() -> None:
    none = PhaseChanged(level=0, label="c", phase="warmup", planned_s=None, planned_requests=0)
    assert shown(io.StringIO(), [none]) == ""


def test_a_terminal_shows_the_running_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    text = shown(Terminal(), EVENTS)
    assert "level 1/4 · concurrency 8 · measure · 12 of 30 s · 8 in flight · 120 done" in text
    assert "3 failed · 812 output tok/s" in text


def test_a_terminal_counts_up_to_the_end_of_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    text = shown(Terminal(), [replace(PHASE, scheduled_s=1864.2), TICK])
    assert "measure · 12 of 1864 s" in text


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(Terminal(), EVENTS)


def test_nothing_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as tell:
        for event in EVENTS:
            tell(event)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "concurrency 8: done" in captured.err


@pytest.mark.parametrize("stream", [io.StringIO, Terminal], ids=["pipe", "terminal"])
def test_a_servers_words_cannot_steer_the_terminal(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    text = shown(stream(), [Notice(text="bad\x1b[2Jname\r\nx [red]y[/red]")])
    assert "\x1b[2J" not in text
    assert "x [red]y[/red]" in text


def stopped(stream: io.StringIO) -> None:
    with Progress(stream) as tell:
        tell(TICK)
        raise KeyboardInterrupt


def test_the_terminal_is_restored_when_the_run_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt):
        stopped(stream)
    hidden, shown_again = "\x1b[?25l", "\x1b[?25h"
    assert stream.getvalue().rfind(shown_again) > stream.getvalue().rfind(hidden) >= 0
