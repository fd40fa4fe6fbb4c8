"""What a run asks of its sampler, decided from the scenario and the engine that was found."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loadgen.client.stock import Proxy
from loadgen.engines import CLEARS_ON_READ, UNKNOWN, Endpoint, Engine
from loadgen.run.conditions import is_here, visible_to_server
from loadgen.run.headers import Credentials
from loadgen.run.preflight import Found
from loadgen.run.telemetry.fetch import Access
from loadgen.run.told import SIMULATED, models_page
from loadgen.scenario.model import Scenario, Target, Telemetry
from loadgen.scenario.telemetry import AUTO, NVML, OFF
from loadgen.scenario.url import join_url, port_of

Page = tuple[str, str]
"""The address of a metrics page, and what it speaks: "prometheus", "trtllm_json"."""

_USUAL = Endpoint(path="/metrics", kind="prometheus")
_OFF = "switched off"
_ELSEWHERE = "the server is not on this machine; telemetry.gpu takes the address of a DCGM exporter"
_SIMULATED = "the server is simulated: it uses none"
_ABOUT_A_BODY = frozenset({"content-type", "accept"})
_ACCEPT = "text/plain, application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The server's page, and the GPUs ("nvml", or a URL); or why there are none."""

    engine: Engine
    page: Page | None
    gpu: str | None
    no_server: str | None = None
    no_gpu: str | None = None

    @property
    def nothing(self) -> bool:
        """Say that there is nothing to sample."""
        return self.page is None and self.gpu is None

    @property
    def drained(self) -> bool:
        """Say whether reading the page takes away what is read, and holds the server up."""
        return self.page is not None and self.page[1] in CLEARS_ON_READ


def asked_of(scenario: Scenario, found: Found) -> Asked:
    """Decide what to sample: what the scenario names, or what the engine is known to have."""
    told, target = scenario.telemetry, scenario.target
    page, no_server = _page(told, target, found.engine)
    here = is_here(found, urlsplit(target.base_url).hostname or "")
    gpu, no_gpu = _gpu(told, here=here)
    if told.gpu == AUTO and _simulated(found):
        gpu, no_gpu = None, _SIMULATED
    return Asked(engine=found.engine, page=page, gpu=gpu, no_server=no_server, no_gpu=no_gpu)


def spec_of(
    scenario: Scenario,
    asked: Asked,
    *,
    credentials: Credentials,
    proxy_for: Callable[[str], Proxy | None],
) -> dict[str, Any]:
    """Return the sampler's first message but for where to write; it may carry a key."""
    return {
        "every_s": scenario.telemetry.every_s,
        "engine": asked.engine.name,
        "page": asked.page,
        "access": asdict(_access(scenario.target, asked.page, credentials, proxy_for)),
        "gpu": asked.gpu,
        "visible": visible_to_server(scenario),
    }


def samples_path(directory: Path) -> Path:
    """Return the file of the samples."""
    return directory / "samples.jsonl"


def _page(told: Telemetry, target: Target, engine: Engine) -> tuple[Page | None, str | None]:
    if told.server == OFF:
        return None, _OFF
    if told.server != AUTO:
        return (told.server, _kind_of(told.server, engine)), None
    known = _USUAL if engine is UNKNOWN else engine.metrics
    if known is None:
        return None, f"{engine.label} has no metrics page"
    return (join_url(target.root_url, known.path), known.kind), None


def _kind_of(url: str, engine: Engine) -> str:
    """Return what a page speaks that the user names: by how the engine's own are called."""
    path = urlsplit(url).path
    own = [page for page in (engine.metrics, engine.drained) if page and path.endswith(page.path)]
    # of /prometheus/metrics and /metrics both fit the first: the longer one is meant
    return max(own, key=lambda page: len(page.path), default=_USUAL).kind


def _gpu(told: Telemetry, *, here: bool) -> tuple[str | None, str | None]:
    if told.gpu == OFF:
        return None, _OFF
    if told.gpu != AUTO:
        return told.gpu, None
    return (NVML, None) if here else (None, _ELSEWHERE)


def _simulated(found: Found) -> bool:
    body = found.models_body
    return body is not None and models_page(body, found.model).get("hardware") == SIMULATED


def _access(
    target: Target,
    page: Page | None,
    credentials: Credentials,
    proxy_for: Callable[[str], Proxy | None],
) -> Access:
    """Send the target's headers to the target alone: another host gets no key."""
    url = page[0] if page else target.root_url
    headers = {"accept": _ACCEPT, "user-agent": "loadgen"}
    if _origin(url) == _origin(target.base_url):
        kept = {k: v for k, v in credentials.headers.items() if k.lower() not in _ABOUT_A_BODY}
        headers = {**kept, "accept": _ACCEPT}
    proxy = proxy_for(url)
    return Access(
        headers=headers,
        ca_file=target.ca_file,
        insecure=target.insecure,
        proxy=proxy.url if proxy else None,
    )


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, port_of(url)
