"""What can go wrong for the person at the terminal, each kind with its exit code.

    LoadgenError                      1
    ├── UsageError                    2   a flag or a file is wrong
    │   └── ScenarioError             2   problems of one scenario, all at once
    ├── EnvironmentFault              3   the world is not as it must be
    │   ├── ServerUnreachable         3
    │   ├── PreflightFailed           3   wrong key, wrong model, bad certificate
    │   ├── ServerNotReady            3   the server to be started did not start, or died
    │   └── MissingExtra              3   an optional package is not installed
    └── Interrupted                 130   the user stopped the run

A failure of the *server under load* is none of these: it is an outcome (see ``record``).
Messages read "where: what is wrong; what to do".
"""

from collections.abc import Sequence
from pathlib import Path


class LoadgenError(Exception):
    """Base of everything the command line reports as one clear line."""

    exit_code = 1


class UsageError(LoadgenError):
    """A flag, an argument or an input file is wrong."""

    exit_code = 2


class ScenarioError(UsageError):
    """All problems of one scenario; ``str()`` gives one line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


class EnvironmentFault(LoadgenError):
    """The server, the machine or the installation is not as the run needs it."""

    exit_code = 3


class ServerUnreachable(EnvironmentFault):
    """No connection to the target could be made."""


class PreflightFailed(EnvironmentFault):
    """The one-token probe before a run was answered, but not with a token."""


class ServerNotReady(EnvironmentFault):
    """A server did not become ready; ``log`` holds its last lines, without secrets."""

    def __init__(self, message: str, *, log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.log = tuple(log)


class MissingExtra(EnvironmentFault):
    """An optional package is needed and not installed."""

    def __init__(self, extra: str) -> None:
        super().__init__(f"'{extra}' is not installed; run: pip install 'loadgen[{extra}]'")
        self.extra = extra


class Interrupted(LoadgenError):
    """The user stopped the run; what was measured is in ``directory`` (None: nothing yet)."""

    exit_code = 130

    def __init__(self, message: str, *, directory: Path | None = None) -> None:
        super().__init__(message)
        self.directory = directory
