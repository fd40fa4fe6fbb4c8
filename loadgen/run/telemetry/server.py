"""The server's metrics page as a source: what it says, why there is none, when it is left alone."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from loadgen.engines import CLEARS_ON_READ, UNKNOWN, Engine, recognise
from loadgen.run.telemetry.fetch import FetchError, FetchTimeoutError, Page
from loadgen.run.telemetry.page import (
    PER_ITERATION,
    NoneOfItsOwnError,
    PageError,
    iteration_samples,
    prometheus_samples,
)
from loadgen.run.telemetry.source import DRAINED_TIMEOUT_S, SWEEP_TIMEOUT_S, Sample, failed
from loadgen.scenario.url import masked_url

_NO_SUCH_PAGE = (404, 405, 501)
_NOT_FOR_US = (401, 403)
PATIENCE = 5
"""Sweeps of a page without a metric of the engine's own; some engines have none before a load."""

Fetch = Callable[[str, float], Page]
"""Returns the page at a URL, within so many seconds; FetchError where none came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What may be the server's page: its address, and what it speaks."""

    url: str
    kind: str

    @property
    def drained(self) -> bool:
        """Say whether reading it takes away what is read, and holds the server up."""
        return self.kind in CLEARS_ON_READ

    @property
    def within_s(self) -> float:
        """How long it is waited for."""
        return DRAINED_TIMEOUT_S if self.drained else SWEEP_TIMEOUT_S


class GoneError(Exception):
    """A page that is not there and will not be; the text is one clause."""


@dataclass(slots=True, kw_only=True)
class _State:
    """What became of the asking so far."""

    there: bool = False  # a page came that could be read
    told: bool = False  # a sweep gave samples
    left: bool = False  # it is not asked again
    strange: int = 0  # pages without a metric of the engine's own
    why_not: str | None = None
    totals: dict[tuple[str, str], float] = field(default_factory=dict)


class ServerSource:
    """The server's page, asked at each sweep as long as that may bring something.

    Left alone is one that is refused for good (no such page, a key is wanted), one that shows
    nothing of the engine's own ``PATIENCE`` times, and one that holds the server up (``drained``)
    and does not come in time. What else may pass (a timeout, a broken page) is a failed sweep.
    """

    def __init__(self, page: Candidate, *, engine: Engine, fetch: Fetch) -> None:
        self._page = page
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
        if state.left:
            return []
        try:
            samples = self._read()
        except GoneError as gone:
            state.left, state.why_not = not state.there, str(gone)
            return [] if state.left else [failed(str(gone))]
        except NoneOfItsOwnError as wrong:
            state.strange += 1
            state.left = not state.there and state.strange >= PATIENCE
            return self._failed(f"the page {wrong}")
        except PageError as wrong:
            return self._failed(f"the page {wrong}")
        except FetchTimeoutError as fault:
            state.left = self._page.drained
            again = "; not asked again, as each read may hold the server up" if state.left else ""
            return self._failed(f"{fault}{again}")
        except FetchError as fault:
            return self._failed(str(fault))
        state.there, state.told = True, state.told or bool(samples)
        return samples

    def facts(self) -> dict[str, Any]:
        """Return url, kind, engine, clears_on_read, and why there are no samples if there are none.

        The reason is the engine's own where a page is there but stays empty. stopped: why there
        are none from some sweep on.
        """
        state = self._state
        page = self._page if state.there else None
        empty = self._engine.without_figures or "its page stays empty"
        return {
            "url": masked_url(page.url) if page else None,
            "kind": page.kind if page else None,
            "engine": self._engine.name,
            "clears_on_read": page is not None and page.drained,
            "why_not": None if state.told else (empty if page else state.why_not),
            "stopped": state.why_not if state.told and state.left else None,
        }

    def close(self) -> None:
        """Hold nothing."""

    def _failed(self, why: str) -> list[Sample]:
        self._state.why_not = why
        return [failed(why)]

    def _read(self) -> list[Sample]:
        page = self._fetch(self._page.url, self._page.within_s)
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
        if self._page.drained:
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
