"""The sampler as a process of its own: ``python -m loadgen.run.telemetry``, started by a run."""

import os
import signal
import sys

# the terminal sends it to the whole group; the run decides when the sampler ends
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.nice(10)  # what measures goes first

import orjson  # noqa: E402

from loadgen.run.telemetry.sampler import Commands, serve  # noqa: E402


def main() -> None:
    """Serve the parent; what ends the sampler early is said in one line, never a traceback."""
    try:
        serve(Commands(sys.stdin.fileno()), _tell)
    except BrokenPipeError:
        return  # the parent is gone
    except Exception as error:  # whatever it was, the run goes on without
        _tell({"failed": f"{type(error).__name__}: {error}"})


def _tell(message: dict[str, object]) -> None:
    data = orjson.dumps(message) + b"\n"
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


if __name__ == "__main__":
    main()
