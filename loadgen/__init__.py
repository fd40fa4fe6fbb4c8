"""Load testing for OpenAI-compatible inference servers.

For notebooks: ``loadgen.open_run(DIR)`` gives a run's manifest, tables and summary.
"""

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadgen.notebook import Run

__all__ = ["open_run"]


def open_run(directory: "str | PathLike[str]") -> "Run":
    """Open a run directory for a notebook; UsageError where it is none."""
    from loadgen.notebook import load  # pandas and numpy are loaded only when asked for

    return load(directory)
