"""Who listens on a port: asked before a server is started, so that no old one is measured."""

import errno
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"  # TCP_LISTEN in /proc/net/tcp
_TRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Something that has a port. process: "python (pid 123)", where this machine tells."""

    port: int
    process: str | None = None

    def __str__(self) -> str:
        return self.process or "something that does not say what it is"


def listener_on(host: str, port: int) -> Listener | None:
    """Return who has the port of this host; None if it is free.

    Asked by trying to have it: what is bound and does not listen yet is found, too.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return None  # not a host of ours: nothing to start there, and the wait will say so
    for family, kind, protocol, _, address in addresses:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return Listener(port=port, process=_process_on(port))
    return None


def accepts(host: str, port: int) -> bool:
    """Say whether something accepts connections there."""
    try:
        socket.create_connection((host, port), timeout=_TRY_S).close()
    except OSError:
        return False
    return True


def _process_on(port: int) -> str | None:
    """Find the process by its socket, as far as /proc may be read; Linux alone has it."""
    inodes = {f"socket:[{inode}]" for inode in _listening(port)}
    if not inodes:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone meanwhile, or another user's
            if any(str(link.readlink()) in inodes for link in (process / "fd").iterdir()):
                name = (process / "comm").read_text("utf-8", "replace").strip()
                return f"{name} (pid {process.name})"
    return None


def _listening(port: int) -> list[str]:
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            for line in Path(table).read_text("ascii", "replace").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found.append(fields[9])
    return found
