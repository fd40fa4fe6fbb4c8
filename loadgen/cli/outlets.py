"""What a verb writes to when its reader may leave first (``| head``)."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

BROKEN_PIPE = 141  # 128 + SIGPIPE: what a shell reports for a program whose reader left


class Outlet(io.FileIO):
    """A descriptor that may lose its reader: what is written after that goes nowhere."""

    left = False

    def write(self, data: "ReadableBuffer") -> int:
        """Write what the system takes; all of it, once nobody reads."""
        try:
            return super().write(data)
        except BrokenPipeError:
            self.left = True
            silence(self.fileno())
            return memoryview(data).nbytes


class Readers:
    """Who reads the standard streams."""

    def __init__(self, outlets: list[Outlet]) -> None:
        self._outlets = outlets

    @property
    def left(self) -> bool:
        """Whether something could not be written, because its reader had left."""
        return any(outlet.left for outlet in self._outlets)


@contextmanager
def outlasting_readers() -> Iterator[Readers]:
    """Go on to the end of the block when a reader of stdout or stderr leaves amid it.

    Only this process's own streams are changed, and no terminal: that one ends by a signal.
    """
    outlets: list[Outlet] = []
    with ExitStack() as stack:
        for own, now, redirect in ((sys.__stdout__, sys.stdout, redirect_stdout),
                                   (sys.__stderr__, sys.stderr, redirect_stderr)):  # fmt: skip
            if now is own and isinstance(now, io.TextIOWrapper) and not now.isatty():
                outlet = Outlet(now.fileno(), "w", closefd=False)
                outlets.append(outlet)
                stream = stack.enter_context(redirect(_text(outlet, now)))
                stack.callback(stream.flush)
        yield Readers(outlets)


def silence(descriptor: int) -> None:
    """Let what is written from now on, and what is still buffered, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _text(outlet: Outlet, like: io.TextIOWrapper) -> TextIO:
    return io.TextIOWrapper(
        io.BufferedWriter(outlet),
        encoding=like.encoding,
        errors=like.errors,
        line_buffering=like.line_buffering,
        write_through=like.write_through,
    )
