"""Which GPUs are sampled, and by whom; or why none are, in plain words."""

from collections.abc import Callable
from dataclasses import dataclass

from loadgen.run.telemetry.dcgm import DcgmSource
from loadgen.run.telemetry.nvml import LibraryNvml, Nvml, NvmlFault, NvmlSource
from loadgen.run.telemetry.source import Source
from loadgen.scenario.url import masked_url

OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A source of GPU samples, or one clause that says why there is none."""

    source: Source | None = None
    why_not: str | None = None


def open_gpu(
    how: str, *, visible: str | None = None, nvml: Callable[[], Nvml] = LibraryNvml
) -> Opened:
    """Open the GPUs that ``how`` names: "nvml" (or "auto"), a DCGM exporter's URL, or "off".

    visible: of the GPUs of this machine only these, as CUDA_VISIBLE_DEVICES names them ("0,1", or
    UUIDs); None or what names none of them: all.
    """
    if how == OFF:
        return Opened(why_not="switched off")
    if "://" in how:
        return _exporter(how)
    try:
        library = nvml()
        source = NvmlSource(library, chosen(library, visible))
    except NvmlFault as fault:
        return Opened(why_not=str(fault))
    if not library.count():
        library.close()
        return Opened(why_not="the NVIDIA driver finds no GPU on this machine")
    return Opened(source=source)


def chosen(nvml: Nvml, visible: str | None) -> list[int]:
    """Return the numbers of the GPUs that CUDA_VISIBLE_DEVICES leaves; all where it says none."""
    everyone = list(range(nvml.count()))
    named = [word.strip() for word in (visible or "").split(",") if word.strip()]
    if not named or named == ["all"]:
        return everyone
    uuids = {gpu: nvml.uuid(gpu) or "" for gpu in everyone} if not named[0].isdigit() else {}
    found = [
        gpu
        for gpu in everyone
        if any(word == str(gpu) or (uuids and uuids[gpu].startswith(word)) for word in named)
    ]
    return found or everyone


def _exporter(url: str) -> Opened:
    try:
        return Opened(source=DcgmSource(url))
    except OSError as error:
        return Opened(why_not=f"DCGM exporter {masked_url(url)}: {error}")
