"""A simulator as a process of its own, for tests, the demo and the self-test.

As a command, ``python -m loadgen.simulator.process SIMULATE-FLAGS -- COMMAND …`` runs the command
while a simulator serves, and ends with the command's exit code.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from loadgen.errors import EnvironmentFault

_LINE = re.compile(r"simulator: (\S+) model")
_END_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorHandle:
    """Where it listens and which process it is."""

    url: str
    pid: int


@contextmanager
def simulator_process(*args: str) -> Iterator[SimulatorHandle]:
    """Start ``loadgen simulate --port 0 ARGS…``, wait until it listens, end it at exit.

    Raises EnvironmentFault with its own words where it does not come up.
    """
    line = [sys.executable, "-m", "loadgen.cli.main", "simulate", "--port", "0", *args]
    with subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C at the terminal is for the client: it still has to drain
    ) as child:
        assert child.stdout is not None
        try:
            match = _LINE.match(child.stdout.readline())
            if match is None:
                _, said = child.communicate(timeout=_END_S)
                raise EnvironmentFault(f"simulate: did not start: {said.strip()}")
            yield SimulatorHandle(url=match[1], pid=child.pid)
        finally:
            child.terminate()
            try:
                child.communicate(timeout=_END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.communicate()


def main(arguments: list[str]) -> int:
    """Serve while the command after ``--`` runs; return its exit code."""
    place = arguments.index("--")
    try:
        with simulator_process(*arguments[:place]):
            return _run(arguments[place + 1 :])
    except EnvironmentFault as fault:
        sys.stderr.write(f"loadgen: {fault}\n")
        return fault.exit_code


def _run(command: list[str]) -> int:
    with subprocess.Popen(command) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:  # the command heard it, too, and ends in its own way
                continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
