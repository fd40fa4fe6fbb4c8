"""The server's metrics page as a source: which page it is, what it says, why there is none."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loadgen.engines import CLEARS_ON_READ, UNKNOWN, Engine, recognise
from loadgen.run.telemetry.fetch import FetchError, Page
from loadgen.run.telemetry.page import (
    PER_ITERATION,
    PageError,
    iteration_samples,
    prometheus_samples,
)
from loadgen.run.telemetry.source import Sample, failed
from loadgen.scenario.url import masked_url

_NO_SUCH_PAGE = (404, 405, 501)
_NOT_FOR_US = (401, 403)

Fetch = Callable[[str], Page]
"""Returns the page at a URL; FetchError where none came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A page that may be the one: its address, and what it speaks."""

    url: str
    kind: str


class GoneError(Exception):
    """A page that is not there and will not be; the text is one clause."""


@dataclass(slots=True, kw_only=True)
class _State:
    """What became of the asking so far."""

    chosen: Candidate | None = None
    told: bool = False  # a sweep gave samples
    why_not: str | None = None
    totals: dict[tuple[str, str], float] = field(default_factory=dict)


class ServerSource:
    """The first of several pages that is there; asked again at each sweep.

    A page that is refused for good (no such page, a key is wanted) is not asked again; what may
    pass (a timeout, a broken page) is a failed sweep.
    """

    def __init__(self, pages: list[Candidate], *, engine: Engine, fetch: Fetch) -> None:
        self._left = list(pages)
        self._engine = engine
        self._fetch = fetch
        self._state = _State()
        self.at_ns: int | None = None
        """Where the last sweep's samples stand in time; None where no page came."""

    @property
    def name(self) -> str:
        """Return "server"."""
        return "server"

    def sweep(self) -> list[Sample]:
        """Read the page once; nothing where there is none and will be none."""
        self.at_ns = None
        state = self._state
        candidates = [state.chosen] if state.chosen else list(self._left)
        problem: str | None = None
        for candidate in candidates:
            try:
                samples = self._read(candidate)
            except GoneError as gone:
                if state.chosen is None:
                    self._left.remove(candidate)
                    state.why_not = str(gone)
                    continue
                problem = str(gone)
            except PageError as wrong:
                problem = f"the page {wrong}"
                continue
            except FetchError as fault:
                problem = str(fault)
                break  # a page that may be there later goes before one that is less good
            else:
                state.chosen, state.told = candidate, state.told or bool(samples)
                return samples
        if problem is None:
            return []
        state.why_not = problem
        return [failed(problem)]

    def facts(self) -> dict[str, Any]:
        """Return url, kind, engine, clears_on_read, and why there are no samples if there are none.

        The reason is the engine's own where a page is there but stays empty.
        """
        state = self._state
        page = state.chosen
        empty = self._engine.without_metrics or "its page stays empty"
        return {
            "url": masked_url(page.url) if page else None,
            "kind": page.kind if page else None,
            "engine": self._engine.name,
            "clears_on_read": page is not None and page.kind in CLEARS_ON_READ,
            "why_not": None if state.told else (empty if page else state.why_not),
        }

    def close(self) -> None:
        """Hold nothing."""

    def _read(self, candidate: Candidate) -> list[Sample]:
        page = self._fetch(candidate.url)
        self.at_ns = page.at_ns
        if page.status in _NO_SUCH_PAGE:
            raise GoneError(self._engine.without_metrics or f"no such page (HTTP {page.status})")
        if page.status in _NOT_FOR_US:
            raise GoneError(f"its page wants a key (HTTP {page.status})")
        if page.status != 200:
            raise FetchError(f"HTTP {page.status}")
        if self._engine is UNKNOWN:
            self._engine = recognise(metrics_head=page.body)
            if self._engine is UNKNOWN:
                raise GoneError("the engine is not known, and its page names none")
        if candidate.kind in CLEARS_ON_READ:
            return [self._added_up(one) for one in iteration_samples(page.body, self._engine)]
        return prometheus_samples(page.body, self._engine, info=not self._state.told)

    def _added_up(self, sample: Sample) -> Sample:
        """Add to what counts within one iteration all that was read before."""
        if sample.name not in PER_ITERATION:
            return sample
        key = (sample.name, sample.labels.get("rank", ""))
        totals = self._state.totals
        totals[key] = totals.get(key, 0.0) + sample.value
        return Sample(name=sample.name, value=totals[key], labels=sample.labels)
