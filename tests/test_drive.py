"""What the tests themselves stand on: a command that is started ends, whatever becomes of it."""

import signal
import sys

import pytest
from drive import started, until_said

SLEEPS = [sys.executable, "-c", """
import sys, time
print("up", file=sys.stderr, flush=True)
time.sleep(60)
"""]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT], ids=lambda n: n.name)
def test_a_signal_acts_though_the_tests_were_started_with_it_ignored(
    number: signal.Signals,
) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with started(SLEEPS, limit_s=10) as process:
            until_said(process.stderr, "up")
            process.send_signal(number)
    finally:
        signal.signal(number, before)
    assert process.returncode == -number


def test_a_command_that_does_not_end_is_a_failure_and_not_a_hang() -> None:
    with pytest.raises(AssertionError, match="still ran after"), started(SLEEPS, limit_s=0.1):
        pass


def test_a_test_that_fails_leaves_nothing_running() -> None:
    with pytest.raises(ZeroDivisionError), started(SLEEPS) as process:
        raise ZeroDivisionError
    assert process.returncode == -signal.SIGTERM
