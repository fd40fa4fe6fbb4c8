"""Recordings for the tests of GPU sources: NVML's answers of two GPUs, an exporter's page."""

from dataclasses import dataclass, field
from typing import Any

from loadgen.run.telemetry.nvml import Memory, NvmlFault

MIB = 1 << 20

# two H100 as NVML tells of them: the first decodes, the second waits
RECORDED: tuple[dict[str, Any], ...] = (
    {
        "device_name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-6f1a1c52-1f0e-47a5-9d6e-2f4f4f0b6a01",
        "memory": Memory(used=73_412 * MIB, total=81_559 * MIB),
        "utilization": 97,
        "power_mw": 612_340,
        "temperature_c": 61,
        "sm_clock_mhz": 1755,
        "throttle_reasons": 0x4,
        "energy_mj": 81_234_567_890,
    },
    {
        "device_name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-0b7d2c9e-88a3-4c57-a4c1-77d1c6f3be02",
        "memory": Memory(used=4 * MIB, total=81_559 * MIB),
        "utilization": 0,
        "power_mw": 71_002,
        "temperature_c": 34,
        "sm_clock_mhz": 345,
        "throttle_reasons": 0x1,
        "energy_mj": 40_000_000_500,
    },
)


@dataclass
class RecordedNvml:
    """Answers every call of the seam from a recording; what it lacks, the device does not say."""

    gpus: tuple[dict[str, Any], ...] = RECORDED
    lost: bool = False
    closed: bool = field(default=False, init=False)

    def driver(self) -> str | None:
        return "570.86.15"

    def count(self) -> int:
        return len(self.gpus)

    def close(self) -> None:
        self.closed = True

    def _told(self, gpu: int, what: str) -> Any:
        if self.lost:
            raise NvmlFault("a GPU is lost: it fell off the bus")
        return self.gpus[gpu].get(what)

    def device_name(self, gpu: int) -> str | None:
        return self._told(gpu, "device_name")

    def uuid(self, gpu: int) -> str | None:
        return self._told(gpu, "uuid")

    def memory(self, gpu: int) -> Memory | None:
        return self._told(gpu, "memory")

    def utilization(self, gpu: int) -> int | None:
        return self._told(gpu, "utilization")

    def power_mw(self, gpu: int) -> int | None:
        return self._told(gpu, "power_mw")

    def temperature_c(self, gpu: int) -> int | None:
        return self._told(gpu, "temperature_c")

    def sm_clock_mhz(self, gpu: int) -> int | None:
        return self._told(gpu, "sm_clock_mhz")

    def throttle_reasons(self, gpu: int) -> int | None:
        return self._told(gpu, "throttle_reasons")

    def energy_mj(self, gpu: int) -> int | None:
        return self._told(gpu, "energy_mj")


def without(*what: str) -> RecordedNvml:
    """A machine whose GPUs do not support some calls."""
    left = [{key: value for key, value in gpu.items() if key not in what} for gpu in RECORDED]
    return RecordedNvml(gpus=tuple(left))


_H100 = (
    'UUID="GPU-6f1a1c52",pci_bus_id="00000000:19:00.0",device="nvidia0",'
    'modelName="NVIDIA H100 80GB HBM3",Hostname="node-1",DCGM_FI_DRIVER_VERSION="570.86.15"'
)

DCGM_PAGE = f"""\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{{gpu="0",{_H100}}} 1755
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{{gpu="0",{_H100}}} 61
# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{{gpu="0",{_H100}}} 612.340000
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="0",{_H100}}} 81234567890
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{{gpu="0",{_H100}}} 97
# HELP DCGM_FI_DEV_MEM_COPY_UTIL Memory utilization (in %).
# TYPE DCGM_FI_DEV_MEM_COPY_UTIL gauge
DCGM_FI_DEV_MEM_COPY_UTIL{{gpu="0",{_H100}}} 58
# HELP DCGM_FI_DEV_FB_FREE Framebuffer memory free (in MiB).
# TYPE DCGM_FI_DEV_FB_FREE gauge
DCGM_FI_DEV_FB_FREE{{gpu="0",{_H100}}} 7667
# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).
# TYPE DCGM_FI_DEV_FB_USED gauge
DCGM_FI_DEV_FB_USED{{gpu="0",{_H100}}} 73412
# HELP DCGM_FI_DEV_FB_RESERVED Framebuffer memory reserved (in MiB).
# TYPE DCGM_FI_DEV_FB_RESERVED gauge
DCGM_FI_DEV_FB_RESERVED{{gpu="0",{_H100}}} 480
# HELP DCGM_FI_DEV_CLOCK_THROTTLE_REASONS Current clock throttle reasons (bitmask).
# TYPE DCGM_FI_DEV_CLOCK_THROTTLE_REASONS gauge
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{{gpu="0",{_H100}}} 4
# HELP DCGM_FI_PROF_GR_ENGINE_ACTIVE Ratio of time the graphics engine is active.
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="0",{_H100}}} 0.958
"""
"""The page of a DCGM exporter 4 for the first of the GPUs above, in its own words and order."""
