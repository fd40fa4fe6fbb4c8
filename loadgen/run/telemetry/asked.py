"""What a run asks of its sampler, decided from the scenario and the engine that was found."""

import ipaddress
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loadgen.engines import CLEARS_ON_READ, UNKNOWN, Endpoint, Engine
from loadgen.run.conditions import visible_to_server
from loadgen.run.headers import Credentials
from loadgen.run.telemetry.fetch import Access
from loadgen.scenario.model import Scenario, Target, Telemetry
from loadgen.scenario.telemetry import AUTO, NVML, OFF
from loadgen.scenario.url import join_url, port_of

Page = tuple[str, str]
"""The address of a metrics page, and what it speaks: "prometheus", "trtllm_json"."""

_OFF = "switched off"
_ELSEWHERE = "the server is not on this machine; telemetry.gpu takes the address of a DCGM exporter"
_ABOUT_A_BODY = frozenset({"content-type", "accept"})
_ACCEPT = "text/plain, application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The server's pages, best first, and the GPUs ("nvml", or a URL); or why there are none."""

    engine: Engine
    pages: list[Page]
    gpu: str | None
    no_server: str | None = None
    no_gpu: str | None = None

    @property
    def nothing(self) -> bool:
        """Say that there is nothing to sample."""
        return not self.pages and self.gpu is None


def asked_of(scenario: Scenario, engine: Engine) -> Asked:
    """Decide what to sample: what the scenario names, or what the engine is known to have."""
    told, target = scenario.telemetry, scenario.target
    pages, no_server = _pages(told, target, engine)
    gpu, no_gpu = _gpu(told, target)
    return Asked(engine=engine, pages=pages, gpu=gpu, no_server=no_server, no_gpu=no_gpu)


def spec_of(
    scenario: Scenario,
    asked: Asked,
    *,
    credentials: Credentials,
    proxy_for: Callable[[str], str | None],
) -> dict[str, Any]:
    """Return the sampler's first message but for where to write; it may carry a key."""
    return {
        "every_s": scenario.telemetry.every_s,
        "engine": asked.engine.name,
        "pages": asked.pages,
        "access": asdict(_access(scenario.target, asked.pages, credentials, proxy_for)),
        "gpu": asked.gpu,
        "visible": visible_to_server(scenario),
    }


def samples_path(directory: Path) -> Path:
    """Return the file of the samples."""
    return directory / "samples.jsonl"


def _pages(told: Telemetry, target: Target, engine: Engine) -> tuple[list[Page], str | None]:
    if told.server == OFF:
        return [], _OFF
    if told.server != AUTO:
        own = engine.metrics is not None and engine.metrics.kind in CLEARS_ON_READ
        path = urlsplit(told.server).path
        drained = own and engine.metrics is not None and path == engine.metrics.path
        return [(told.server, "trtllm_json" if drained else "prometheus")], None
    if engine is UNKNOWN:
        known: tuple[Endpoint, ...] = (Endpoint(path="/metrics", kind="prometheus"),)
    else:
        known = (*engine.metrics_first, *((engine.metrics,) if engine.metrics else ()))
    if not known:
        return [], f"{engine.label} has no metrics page"
    return [(join_url(target.root_url, page.path), page.kind) for page in known], None


def _gpu(told: Telemetry, target: Target) -> tuple[str | None, str | None]:
    if told.gpu == OFF:
        return None, _OFF
    if told.gpu != AUTO:
        return told.gpu, None
    return (NVML, None) if _is_here(target.root_url) else (None, _ELSEWHERE)


def _access(
    target: Target,
    pages: list[Page],
    credentials: Credentials,
    proxy_for: Callable[[str], str | None],
) -> Access:
    """Send the target's headers to the target alone: another host gets no key."""
    url = pages[0][0] if pages else target.root_url
    headers = {"accept": _ACCEPT, "user-agent": "loadgen"}
    if _origin(url) == _origin(target.base_url):
        kept = {k: v for k, v in credentials.headers.items() if k.lower() not in _ABOUT_A_BODY}
        headers = {**kept, "accept": _ACCEPT}
    return Access(
        headers=headers, ca_file=target.ca_file, insecure=target.insecure, proxy=proxy_for(url)
    )


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, port_of(url)


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
