"""The GPUs of this machine through NVML, the driver's own library.

Behind a seam of a dozen calls in NVML's units, so that tests answer from a recording. A call that
a device does not support says None, and its sample is absent, never 0.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from loadgen.errors import LoadgenError
from loadgen.run.telemetry.source import Sample, failed

_MHZ = 1_000_000


class NvmlFault(LoadgenError):
    """NVML is not there, or gave up: a lost GPU, a driver that was replaced; one short clause."""


class Memory(NamedTuple):
    """A GPU's memory in bytes; what is used holds what the driver keeps for itself."""

    used: int
    total: int


class Nvml(Protocol):
    """The calls used, each in NVML's own unit; None: this device does not say."""

    def driver(self) -> str | None:
        """Return the driver's version."""

    def count(self) -> int:
        """Return how many GPUs there are, numbered from 0 as nvidia-smi numbers them."""

    def device_name(self, gpu: int) -> str | None:
        """Return the model's name."""

    def uuid(self, gpu: int) -> str | None:
        """Return what tells this GPU from all others."""

    def memory(self, gpu: int) -> Memory | None:
        """Return used and total bytes."""

    def utilization(self, gpu: int) -> int | None:
        """Return the percentage of time in which a kernel ran, since some 1/6 to 1 s ago."""

    def power_mw(self, gpu: int) -> int | None:
        """Return the draw of the whole board."""

    def temperature_c(self, gpu: int) -> int | None:
        """Return the temperature of the die."""

    def sm_clock_mhz(self, gpu: int) -> int | None:
        """Return the clock of the multiprocessors."""

    def throttle_reasons(self, gpu: int) -> int | None:
        """Return the bit mask of why the clock is not higher."""

    def energy_mj(self, gpu: int) -> int | None:
        """Return what was drawn since the driver was loaded (Volta and newer)."""

    def close(self) -> None:
        """Let go of the library."""


class LibraryNvml:
    """NVML itself, by pynvml (package nvidia-ml-py). Raises NvmlFault where there is none."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise NvmlFault("the package nvidia-ml-py is not installed") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise NvmlFault(self._words(error)) from error
        by_index = pynvml.nvmlDeviceGetHandleByIndex
        count = self._told(pynvml.nvmlDeviceGetCount) or 0
        # one that may not be asked is None, of which every call says that it is no device
        self._handles = [self._told(partial(by_index, gpu)) for gpu in range(count)]

    def driver(self) -> str | None:
        """See Nvml."""
        told = self._told(self._nvml.nvmlSystemGetDriverVersion)
        return None if told is None else str(told)

    def count(self) -> int:
        """See Nvml."""
        return len(self._handles)

    def device_name(self, gpu: int) -> str | None:
        """See Nvml."""
        return self._text("nvmlDeviceGetName", gpu)

    def uuid(self, gpu: int) -> str | None:
        """See Nvml."""
        return self._text("nvmlDeviceGetUUID", gpu)

    def memory(self, gpu: int) -> Memory | None:
        """See Nvml."""
        told = self._asked("nvmlDeviceGetMemoryInfo", gpu)
        return None if told is None else Memory(used=int(told.used), total=int(told.total))

    def utilization(self, gpu: int) -> int | None:
        """See Nvml."""
        told = self._asked("nvmlDeviceGetUtilizationRates", gpu)
        return None if told is None else int(told.gpu)

    def power_mw(self, gpu: int) -> int | None:
        """See Nvml."""
        return self._number("nvmlDeviceGetPowerUsage", gpu)

    def temperature_c(self, gpu: int) -> int | None:
        """See Nvml."""
        return self._number("nvmlDeviceGetTemperature", gpu, self._nvml.NVML_TEMPERATURE_GPU)

    def sm_clock_mhz(self, gpu: int) -> int | None:
        """See Nvml."""
        return self._number("nvmlDeviceGetClockInfo", gpu, self._nvml.NVML_CLOCK_SM)

    def throttle_reasons(self, gpu: int) -> int | None:
        """See Nvml."""
        told = self._number("nvmlDeviceGetCurrentClocksEventReasons", gpu)
        if told is None:  # drivers before 535 know it by its older name alone
            told = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
        return told

    def energy_mj(self, gpu: int) -> int | None:
        """See Nvml."""
        return self._number("nvmlDeviceGetTotalEnergyConsumption", gpu)

    def close(self) -> None:
        """See Nvml."""
        self._told(self._nvml.nvmlShutdown)

    def _number(self, call: str, gpu: int, *more: int) -> int | None:
        told = self._asked(call, gpu, *more)
        return None if told is None else int(told)

    def _text(self, call: str, gpu: int) -> str | None:
        told = self._asked(call, gpu)
        return None if told is None else str(told)

    def _asked(self, call: str, gpu: int, *more: int) -> Any:  # noqa: ANN401 - NVML's own types
        return self._told(lambda: getattr(self._nvml, call)(self._handles[gpu], *more))

    def _told(self, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - NVML's own types
        nvml = self._nvml
        silent = (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_INVALID_ARGUMENT,
        )
        try:
            return call()
        except nvml.NVMLError as error:
            if error.value in silent:
                return None
            raise NvmlFault(self._words(error)) from error

    def _words(self, error: Any) -> str:  # noqa: ANN401 - an NVMLError, whose class is pynvml's
        known = {
            self._nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver on this machine",
            self._nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
            self._nvml.NVML_ERROR_NO_PERMISSION: "no permission to ask the NVIDIA driver",
            self._nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver was replaced while "
            "it was in use; restart the machine",
            self._nvml.NVML_ERROR_GPU_IS_LOST: "a GPU is lost: it fell off the bus",
        }
        return known.get(error.value, f"the NVIDIA driver says: {error}")


class NvmlSource:
    """Samples of some GPUs of this machine; gpus: their numbers."""

    def __init__(self, nvml: Nvml, gpus: list[int]) -> None:
        self._nvml = nvml
        self._gpus = gpus

    @property
    def name(self) -> str:
        """Return "gpu"."""
        return "gpu"

    def sweep(self) -> list[Sample]:
        """Ask each GPU once; what one of them does not say is absent."""
        try:
            return [sample for gpu in self._gpus for sample in samples_of(self._nvml, gpu)]
        except NvmlFault as fault:
            return [failed(str(fault))]

    def facts(self) -> dict[str, Any]:
        """Return by, driver, and of each GPU index, name, memory_bytes and uuid."""
        nvml = self._nvml
        devices = []
        for gpu in self._gpus:
            memory = nvml.memory(gpu)
            devices.append(
                {
                    "index": gpu,
                    "name": nvml.device_name(gpu),
                    "memory_bytes": memory.total if memory else None,
                    "uuid": nvml.uuid(gpu),
                }
            )
        return {"by": "nvml", "driver": nvml.driver(), "devices": devices}

    def close(self) -> None:
        """Let go of NVML."""
        self._nvml.close()


def samples_of(nvml: Nvml, gpu: int) -> list[Sample]:
    """Return what one GPU says at this moment, in the units that the samples' names tell."""
    memory = nvml.memory(gpu)
    percent, power, energy = nvml.utilization(gpu), nvml.power_mw(gpu), nvml.energy_mj(gpu)
    clock = nvml.sm_clock_mhz(gpu)
    told: dict[str, float | None] = {
        "utilization": None if percent is None else percent / 100,
        "memory_used_bytes": memory.used if memory else None,
        "memory_total_bytes": memory.total if memory else None,
        "power_w": None if power is None else power / 1000,
        "temperature_c": nvml.temperature_c(gpu),
        "sm_clock_hz": None if clock is None else clock * _MHZ,
        "energy_j": None if energy is None else energy / 1000,
        "throttle": nvml.throttle_reasons(gpu),
    }
    labels = {"gpu": str(gpu)}
    return [
        Sample(name=name, value=float(value), labels=labels)
        for name, value in told.items()
        if value is not None
    ]
