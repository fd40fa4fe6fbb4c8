"""Conditions found by asking: the server's own pages, its GPUs, how we started it, its name.

Asked once, between the preflight and the first load: a few bounded GETs of pages that generate
nothing. What the server says itself goes before how it was started, and that before what its name
suggests. Only known keys are kept (``told``), as plain values, with whoever told each.
"""

import asyncio
import ipaddress
import os
import shlex
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loadgen.errors import EnvironmentFault
from loadgen.run.preflight import Found, Preflight
from loadgen.run.spelling import KEYS, contradictions, named_quantisation
from loadgen.run.started import of_command, of_service, visible_gpus
from loadgen.run.telemetry.gpu import Opened, open_gpu
from loadgen.run.told import ENGINE_VERSION, PAGES, SIMULATED, Told, counted, models_page
from loadgen.scenario.model import Scenario
from loadgen.scenario.private import SHORTEST_SECRET, mask, secrets_in
from loadgen.scenario.server import Server, variables_for
from loadgen.scenario.telemetry import AUTO, NVML, OFF
from loadgen.server.compose import compose_files
from loadgen.server.docker import docker
from loadgen.server.preview import rendered_service

NAME = "the model's name"
COMMAND, SERVICE = "the command", "the compose file"
THIS_MACHINE = "this machine"

_LIMIT_S = 2.0
_LONGER_S = {"/server_info?config_format=json": 6.0}  # the first time vLLM looks its machine over
_CPUS = Path("/proc/cpuinfo")
_GPU_SIGNS = (Path("/proc/driver/nvidia"), Path("/dev/kfd"))  # also seen from a container without


@dataclass(slots=True, kw_only=True)
class Conditions:
    """What was found: values by the card's keys, and who told each; the first to tell stands."""

    values: dict[str, Any] = field(default_factory=dict)
    found_by: dict[str, str] = field(default_factory=dict)

    def take(self, told: Told, source: str) -> None:
        """Add what is not known yet."""
        for key, value in told.items():
            if key not in self.values:
                self.values[key] = value
                self.found_by[key] = source

    def masked(self, secrets: Iterable[str]) -> "Conditions":
        """Return them without any secret that a path or a name may carry."""
        hidden = [text for text in secrets if len(text) >= SHORTEST_SECRET]
        return Conditions(
            values={
                key: mask(value, hidden) if isinstance(value, str) else value
                for key, value in self.values.items()
            },
            found_by=self.found_by,
        )

    @property
    def engine_version(self) -> str | None:
        """The version that a page told, where /version does not."""
        version = self.values.get(ENGINE_VERSION)
        return None if version is None else str(version)

    def plain(self) -> dict[str, Any]:
        """Return what the manifest keeps; the engine's version stands with the target there."""
        values = {key: value for key, value in self.values.items() if key != ENGINE_VERSION}
        by = {key: source for key, source in self.found_by.items() if key in values}
        return {**values, "found_by": by} if values else {}

    def against(self, declared: Mapping[str, Any]) -> list[str]:
        """Say of each declared condition that cannot be true what was found instead."""
        lines = []
        for name in contradictions(declared, self.values):
            key = KEYS.get(name, name)
            if key == "quantisation" and self.values[key] == "none" and "dtype" in self.values:
                key = "dtype"
            value, source = self.values[key], self.found_by[key]
            who = f"{source} says" if not source.startswith("/") else "the server says"
            shown = str(value).removesuffix(f" (by {NAME})")
            lines.append(f"conditions.{name}: declared {declared[name]}, but {who} {shown}")
        return lines


async def found_conditions(
    scenario: Scenario, preflight: Preflight, found: Found, *, secrets: Iterable[str]
) -> Conditions:
    """Ask everyone who may know; nobody's silence is an error."""
    made = Conditions()
    await _ask_pages(made, preflight, found)
    if found.models_body is not None:
        made.take(models_page(found.models_body, found.model), "/v1/models")
    started = Started(scenario.server, scenario, os.environ) if scenario.server else None
    if made.values.get("hardware") != SIMULATED:
        here = is_here(found, urlsplit(scenario.target.base_url).hostname or "")
        await _ask_gpus(made, scenario, here=here, started=started)
        if here:
            _ask_machine(made)
    if started is not None:
        made.take(await started.image_id(), "docker inspect")
        made.take(started.told(found.engine.name), started.source)
    if made.values.get("hardware") != SIMULATED:
        _read_name(made, found.model)
    return made.masked([*secrets, *secrets_in(os.environ)])


@dataclass(frozen=True, slots=True)
class Started:
    """The server that this scenario starts, as its command or its compose file has it."""

    server: Server
    scenario: Scenario
    environ: Mapping[str, str] = field(repr=False)

    @property
    def source(self) -> str:
        """Who tells it."""
        return COMMAND if self.server.command is not None else SERVICE

    def told(self, engine: str) -> Told:
        """Return what its words say."""
        if self.server.command is not None:
            return of_command(self.server.command, engine)
        return of_service(self._rendered(), engine)

    def visible(self) -> str | None:
        """Return the GPUs that it may see, as CUDA_VISIBLE_DEVICES names them; None: not said."""
        if self.server.command is not None:
            own = [f"{name}={text}" for name, text in self.server.variables.items()]
            return visible_gpus(own, self.environ)
        return visible_gpus(shlex.split(self._rendered().get("environment", "")), {})

    async def image_id(self) -> Told:
        """Return the digest of the image that its container runs; nothing where Docker is silent.

        The digest of a registry where it has one, else the id of what was built here.
        """
        if self.server.command is not None:
            return {}
        label = "label=com.docker.compose"
        ours = ("--filter", f"{label}.project={self.server.project_name}",
                "--filter", f"{label}.service={self.server.profile}")  # fmt: skip
        image = await self._docker("ps", "--quiet", *ours)
        image = image and await self._docker("inspect", "--format", "{{.Image}}", image)
        named = "{{range .RepoDigests}}{{println .}}{{end}}"
        digest = image and await self._docker("image", "inspect", "--format", named, image)
        identity = digest.rpartition("@")[2] if digest else image
        return {"image_digest": identity} if identity else {}

    async def _docker(self, *args: str) -> str:
        """Return the first line that Docker says; empty where it does not."""
        try:
            said = await docker(*args, environ=self.environ, limit_s=_LIMIT_S)
        except EnvironmentFault:
            return ""
        return next(iter(said.out.split()), "") if said.code == 0 else ""

    def _rendered(self) -> dict[str, str]:
        target = self.scenario.target
        variables = variables_for(self.server, port=target.port, model=target.model)
        files = compose_files(self.scenario, self.server)
        return rendered_service(self.server, files, environ={**self.environ, **variables})


def visible_to_server(scenario: Scenario) -> str | None:
    """Return which of this machine's GPUs a server of ours may see; None: not known."""
    server = scenario.server
    return None if server is None else Started(server, scenario, os.environ).visible()


def is_here(found: Found, host: str) -> bool:
    """Say whether the target is on this machine: all its addresses are addresses of ours.

    A forwarded port (ssh -L, kubectl port-forward) is on this machine, too, whatever is behind it.
    """
    addresses = [peer.rpartition(":")[0].strip("[]") for peer in found.peers]
    return all(_is_ours(address) for address in addresses) if addresses else _names_us(host)


def _names_us(host: str) -> bool:
    """Say whether a host that nobody has looked up is this machine."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return _is_ours(host)


def _is_ours(address: str) -> bool:
    """Say whether an address is of this machine: only such a one can be bound to."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address.partition("%")[0], 0))
    except OSError:
        return False
    return True


async def _ask_pages(made: Conditions, preflight: Preflight, found: Found) -> None:
    """Ask the engine's pages in order, until one of them tells something."""
    for path, read in PAGES.get(found.engine.name, ()):
        body = await preflight.page(path, within_s=_LONGER_S.get(path, _LIMIT_S))
        if body is not None and (told := read(body)):
            made.take(told, path.partition("?")[0])
            return


async def _ask_gpus(
    made: Conditions, scenario: Scenario, *, here: bool, started: Started | None
) -> None:
    how = scenario.telemetry.gpu
    if how == OFF or (how == AUTO and not here):
        return
    visible = started.visible() if started is not None else None
    local = how in (AUTO, NVML)
    opened = await asyncio.to_thread(open_gpu, NVML if local else how, visible=visible)
    made.take(gpu_facts(opened), "NVML" if local else "the DCGM exporter")


def gpu_facts(opened: Opened) -> Told:
    """Return name × count, memory and driver of the GPUs, and let go of them."""
    if opened.source is None:
        return {}
    facts = opened.source.facts()
    opened.source.close()
    names = [device["name"] or "a GPU without a name" for device in facts["devices"]]
    memory = {device["memory_bytes"] for device in facts["devices"]} - {None}
    told: Told = {"gpu": counted(names)}
    if len(memory) == 1:
        told["gpu_memory_bytes"] = memory.pop()
    if facts.get("driver"):
        told["driver"] = facts["driver"]
    return told


def _ask_machine(made: Conditions) -> None:
    """Name this machine's CPU where no GPU is known, nor one there that we may not see."""
    if {"gpu", "machine"} & made.values.keys() or any(sign.exists() for sign in _GPU_SIGNS):
        return
    try:
        lines = _CPUS.read_text("utf-8", "replace").splitlines()
    except OSError:
        return
    model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    if model:
        made.take({"machine": f"{model}, {os.cpu_count()} CPUs"}, THIS_MACHINE)


def _read_name(made: Conditions, served_as: str) -> None:
    """Take the name's hint at the quantisation, marked as one, where nobody told better."""
    for name in (str(made.values.get("model", "")), served_as):
        if hint := named_quantisation(name):
            made.take({"quantisation": f"{hint} (by {NAME})"}, NAME)
