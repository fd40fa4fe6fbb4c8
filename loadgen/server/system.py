"""What can be asked of a system under test, however it was started."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

Status = Literal["missing", "starting", "running", "restarting", "ended"]
Say = Callable[[str], None]
"""Tells the user one line."""

TAIL_LINES = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """How a system is doing, as its host tells.

    exit_code: of its last end; 128 + the signal's number where one killed it.
    restarts: how often its host started it anew by itself.
    health: what its own health check says, where it has one: "starting", "healthy", "unhealthy".
    detail: the host's words on what went wrong, or the health check's.
    """

    status: Status
    exit_code: int | None = None
    restarts: int = 0
    out_of_memory: bool = False
    health: str | None = None
    detail: str = ""


@dataclass(slots=True, kw_only=True)
class Held:
    """A server that is up for a while; ready_s is None where it was up before.

    ending: how it ended by itself meanwhile, and why; known after it was taken down.
    """

    ready_s: float | None = None
    ending: str | None = None


class System(Protocol):
    """A system under test: a container or a process.

    started: this call started it, and has not ended it yet.
    """

    name: str

    @property
    def started(self) -> bool:
        """Whether there is something to end."""

    async def start(self, say: Say) -> None:
        """Start it; raises ServerNotReady or EnvironmentFault where that fails."""

    async def state(self) -> State:
        """Ask how it is."""

    async def tail(self, lines: int = TAIL_LINES) -> list[str]:
        """Return the last lines of its log, with secrets masked."""

    async def stop(self) -> None:
        """End what was started, and nothing else."""
