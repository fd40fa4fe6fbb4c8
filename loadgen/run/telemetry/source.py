"""What the sampler asks: a source, and the samples that one sweep of it gives.

A source never raises out of ``sweep``: what failed is a sample of its own, ``failed(why)``, so
that the run goes on and the gap in the series says what it was. The sampler stamps: all samples
of one sweep share the instant midway between its beginning and its end.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

FAILED = "failed"
SWEEP_TIMEOUT_S = 2.0
DRAINED_TIMEOUT_S = 5.0
"""For a page that waits 2 s for more before it answers (TensorRT-LLM's JSON)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value as its source names it; labels are strings, units are in the name."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


class Source(Protocol):
    """Something that can be asked again and again: a metrics page, the GPUs."""

    @property
    def name(self) -> str:
        """Return the value of ``source`` in samples.jsonl: "server" or "gpu"."""

    def sweep(self) -> list[Sample]:
        """Ask once, in at most some ``SWEEP_TIMEOUT_S`` (a drained page longer); one ``failed``
        sample where it failed.
        """

    def facts(self) -> dict[str, Any]:
        """Return what does not change during a run (plain JSON), for the manifest."""

    def close(self) -> None:
        """Release what is held."""


def failed(why: str) -> Sample:
    """Return the sample that stands for a failed sweep; ``why`` is one short clause."""
    return Sample(name=FAILED, value=1.0, labels={"why": why})
