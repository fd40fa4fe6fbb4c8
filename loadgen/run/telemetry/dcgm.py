"""The GPUs of a server elsewhere, from the page of a DCGM exporter.

Its names are those of DCGM's fields (dcgm-exporter, etc/default-counters.csv): MiB, MHz, mJ and
per cent become the units of NVML's samples. A GPU that is split (MIG) has a row for each instance:
memory adds up, what the whole board has (power, clock) is taken once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.run.telemetry.fetch import Access, fetch
from loadgen.run.telemetry.source import Sample, failed
from loadgen.scenario.url import masked_url

_MIB = 1 << 20
_BLANK = 2.0**47  # DCGM's word for "no value", as a number; its integer ones are larger still
_START = "DCGM_FI_DEV_"
_NAMES: Mapping[str, tuple[str, float]] = {
    "GPU_UTIL": ("utilization", 0.01),
    "POWER_USAGE": ("power_w", 1.0),
    "GPU_TEMP": ("temperature_c", 1.0),
    "SM_CLOCK": ("sm_clock_hz", 1e6),
    "TOTAL_ENERGY_CONSUMPTION": ("energy_j", 0.001),
    "CLOCKS_EVENT_REASONS": ("throttle", 1.0),
    "CLOCK_THROTTLE_REASONS": ("throttle", 1.0),  # its name before DCGM 3.3
}
_FRAME_BUFFER = ("FB_USED", "FB_FREE", "FB_RESERVED", "FB_TOTAL")

Fetch = Callable[[str], str]
"""Returns a page; raises OSError with a short clause where there is none."""


@dataclass(slots=True, kw_only=True)
class Gpu:
    """What a page says of one GPU; memory in MiB by instance and field."""

    values: dict[str, float] = field(default_factory=dict)
    memory: dict[tuple[str, str], float] = field(default_factory=dict)
    name: str | None = None
    uuid: str | None = None
    driver: str | None = None

    def memory_bytes(self) -> tuple[float | None, float | None]:
        """Return used and total; the total is told, or used + free + reserved."""
        sums: dict[str, float] = {}
        for (_, what), mib in self.memory.items():
            sums[what] = sums.get(what, 0.0) + mib * _MIB
        used, free = sums.get("FB_USED"), sums.get("FB_FREE")
        total = sums.get("FB_TOTAL")
        if total is None and used is not None and free is not None:
            total = used + free + sums.get("FB_RESERVED", 0.0)
        return used, total

    def samples(self, number: str) -> Iterable[Sample]:
        """Yield the samples, named and scaled as NVML's."""
        used, total = self.memory_bytes()
        told = {"memory_used_bytes": used, "memory_total_bytes": total, **self.values}
        for name, value in told.items():
            if value is not None:
                yield Sample(name=name, value=value, labels={"gpu": number})


class DcgmSource:
    """Samples from an exporter's page; raises OSError at once where it has no GPU to tell of."""

    def __init__(self, url: str, *, fetch: Fetch | None = None) -> None:
        self._url = url
        self._fetch = fetch or fetched
        found = gpus_of(self._fetch(url))
        if not found:
            raise OSError(f"no {_START}… on its page; is it a DCGM exporter?")
        self._facts = _facts(found)

    @property
    def name(self) -> str:
        """Return "gpu"."""
        return "gpu"

    def sweep(self) -> list[Sample]:
        """Read the page once."""
        try:
            found = gpus_of(self._fetch(self._url))
        except OSError as error:
            return [failed(str(error))]
        samples = [sample for number, gpu in found.items() for sample in gpu.samples(number)]
        return samples or [failed(f"no {_START}… on the page")]

    def facts(self) -> dict[str, Any]:
        """Return by, driver, and of each GPU index, name, memory_bytes and uuid."""
        return {"by": "dcgm", "url": masked_url(self._url), **self._facts}

    def close(self) -> None:
        """Hold nothing."""


def gpus_of(page: str) -> dict[str, Gpu]:
    """Return the GPUs that a page tells of, by number; raises OSError for another kind of page."""
    from prometheus_client.parser import text_string_to_metric_families

    # without their types: the parser would rename a counter that does not end in _total
    rows = "\n".join(line for line in page.splitlines() if line.startswith(_START))
    found: dict[str, Gpu] = {}
    try:
        for family in text_string_to_metric_families(rows):
            for row in family.samples:
                if abs(row.value) < _BLANK:  # NaN is not, either
                    gpu = found.setdefault(row.labels.get("gpu", "0"), Gpu())
                    _take(gpu, row.name.removeprefix(_START), row.labels, row.value)
    except (ValueError, KeyError, IndexError) as error:
        raise OSError(f"its page cannot be read ({error})") from error
    return found


def _take(gpu: Gpu, what: str, labels: Mapping[str, str], value: float) -> None:
    gpu.name = gpu.name or labels.get("modelName")
    gpu.uuid = gpu.uuid or labels.get("UUID")
    gpu.driver = gpu.driver or labels.get("DCGM_FI_DRIVER_VERSION")
    if what in _FRAME_BUFFER:
        # pods that share a GPU each have its row: the same value, which must not add up
        gpu.memory[(labels.get("GPU_I_ID", ""), what)] = value
    elif what in _NAMES:
        name, scale = _NAMES[what]
        gpu.values.setdefault(name, value * scale)


def _facts(found: Mapping[str, Gpu]) -> dict[str, Any]:
    devices = [
        {
            "index": int(number) if number.isdigit() else number,
            "name": gpu.name,
            "memory_bytes": gpu.memory_bytes()[1],
            "uuid": gpu.uuid,
        }
        for number, gpu in found.items()
    ]
    return {"driver": next((gpu.driver for gpu in found.values() if gpu.driver), None),
            "devices": devices}  # fmt: skip


def fetched(url: str) -> str:
    """Fetch a page; raises OSError where that fails within the time of a sweep."""
    page = fetch(url, Access())
    if page.status != 200:
        raise OSError(f"HTTP {page.status}")
    return page.body.decode("utf-8", "replace")
