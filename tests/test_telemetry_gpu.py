"""What GPUs say of themselves: NVML through its seam, a DCGM exporter by its page."""

import pytest
from gpu_make import DCGM_PAGE, MIB, RECORDED, RecordedNvml, without
from serve import Asked, Out, scripted

from loadgen.run.telemetry.dcgm import DcgmSource, gpus_of
from loadgen.run.telemetry.gpu import Opened, open_gpu
from loadgen.run.telemetry.nvml import NvmlFault
from loadgen.run.telemetry.source import Sample, Source

BUSY = {
    "utilization": 0.97,
    "memory_used_bytes": 73_412 * MIB,
    "memory_total_bytes": 81_559 * MIB,
    "power_w": 612.34,
    "temperature_c": 61.0,
    "sm_clock_hz": 1.755e9,
    "energy_j": 81_234_567.89,
    "throttle": 4.0,
}


def opened(nvml: RecordedNvml, visible: str | None = None) -> Source:
    source = open_gpu("nvml", visible=visible, nvml=lambda: nvml).source
    assert source is not None
    return source


def told(samples: list[Sample], gpu: str = "0") -> dict[str, float]:
    return {one.name: one.value for one in samples if one.labels == {"gpu": gpu}}


def test_nvmls_units_become_those_that_the_names_say() -> None:
    samples = opened(RecordedNvml()).sweep()
    assert told(samples) == pytest.approx(BUSY)
    assert told(samples, "1")["power_w"] == pytest.approx(71.002)
    assert len(samples) == 16


@pytest.mark.parametrize(
    ("lacking", "absent"),
    [
        ("energy_mj", {"energy_j"}),
        ("memory", {"memory_used_bytes", "memory_total_bytes"}),
        ("throttle_reasons", {"throttle"}),
    ],
)
def test_what_a_device_does_not_support_is_absent_and_not_0(lacking: str, absent: set) -> None:
    assert set(BUSY) - set(told(opened(without(lacking)).sweep())) == absent


def test_an_idle_gpu_says_0_and_is_heard() -> None:
    assert told(opened(RecordedNvml()).sweep(), "1")["utilization"] == 0.0


def test_a_lost_gpu_is_a_failed_sweep_that_says_so() -> None:
    nvml = RecordedNvml()
    source = opened(nvml)
    nvml.lost = True
    (only,) = source.sweep()
    assert (only.name, only.labels["why"]) == ("failed", "a GPU is lost: it fell off the bus")


def test_the_manifest_learns_of_each_device() -> None:
    facts = opened(RecordedNvml()).facts()
    assert (facts["by"], facts["driver"]) == ("nvml", "570.86.15")
    assert facts["devices"][1] == {
        "index": 1,
        "name": "NVIDIA H100 80GB HBM3",
        "memory_bytes": 81_559 * MIB,
        "uuid": RECORDED[1]["uuid"],
    }


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [(None, ["0", "1"]), ("1", ["1"]), ("0,1", ["0", "1"]), ("all", ["0", "1"]),
     ("GPU-0b7d2c9e", ["1"]), ("7", ["0", "1"])],
    ids=["not set", "one", "both", "all", "a uuid's beginning", "none of these"],
)  # fmt: skip
def test_only_the_servers_gpus_are_asked(visible: str | None, gpus: list[str]) -> None:
    samples = opened(RecordedNvml(), visible).sweep()
    assert list(dict.fromkeys(one.labels["gpu"] for one in samples)) == gpus


def test_without_a_gpu_the_reason_is_one_clause() -> None:
    def no_driver() -> RecordedNvml:
        raise NvmlFault("no NVIDIA driver on this machine")

    empty = RecordedNvml(gpus=())
    assert open_gpu("auto", nvml=no_driver).why_not == "no NVIDIA driver on this machine"
    assert open_gpu("off") == Opened(why_not="switched off")
    none = open_gpu("nvml", nvml=lambda: empty)
    assert none.why_not == "the NVIDIA driver finds no GPU on this machine"
    assert empty.closed


def test_the_library_itself_gives_gpus_or_a_reason() -> None:
    found = open_gpu("nvml")
    assert (found.source is None) == ("NVIDIA" in (found.why_not or ""))


# --- a DCGM exporter


def exporter(page: str) -> DcgmSource:
    return DcgmSource("http://node-1:9400/metrics", fetch=lambda _: page)


def test_an_exporters_page_gives_the_same_names_and_units() -> None:
    assert told(exporter(DCGM_PAGE).sweep()) == pytest.approx(BUSY)


def test_an_exporters_labels_name_the_device() -> None:
    facts = exporter(DCGM_PAGE).facts()
    assert (facts["by"], facts["driver"]) == ("dcgm", "570.86.15")
    (device,) = facts["devices"]
    assert (device["index"], device["name"]) == (0, "NVIDIA H100 80GB HBM3")
    assert device["memory_bytes"] == 81_559 * MIB


def test_newer_exporters_call_the_reasons_events() -> None:
    page = DCGM_PAGE.replace("CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS")
    assert told(exporter(page).sweep())["throttle"] == 4.0


def test_a_value_that_dcgm_does_not_have_is_absent() -> None:
    blank = DCGM_PAGE.replace("81234567890", "9223372036854775794").replace(" 61\n", " NaN\n")
    assert set(BUSY) - set(told(exporter(blank).sweep())) == {"energy_j", "temperature_c"}


def test_instances_of_a_split_gpu_add_up_their_memory_alone() -> None:
    rows = [
        f'DCGM_FI_DEV_{name}{{gpu="0",GPU_I_ID="{instance}",pod="{pod}"}} {value}'
        for instance, pod in ((7, "a"), (7, "b"), (8, ""))
        for name, value in (("FB_USED", 1000), ("FB_FREE", 9000), ("POWER_USAGE", 300))
    ]
    made = told(list(gpus_of("\n".join([*rows, ""]))["0"].samples("0")))
    assert made == {
        "memory_used_bytes": 2000 * MIB, "memory_total_bytes": 20_000 * MIB, "power_w": 300.0
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "page", "why"),
    [
        (200, b"# TYPE up gauge\nup 1\n", "no DCGM_FI_DEV_… on its page; is it a DCGM exporter?"),
        (200, b"DCGM_FI_DEV_GPU_UTIL{gpu=0} high\n", "its page cannot be read ("),
        (503, b"", "HTTP 503"),
    ],
    ids=["another exporter", "garbled", "unwell"],
)
def test_an_address_without_an_exporter_is_said(status: int, page: bytes, why: str) -> None:
    async def answer(_: Asked, out: Out) -> None:
        await out.whole(status, page)

    with scripted(answer, gets=answer) as server:
        told_ = open_gpu(f"{server.url}/metrics").why_not or ""
    assert told_.startswith(f"DCGM exporter {server.url}/metrics: ")
    assert why in told_


def test_an_exporter_is_read_over_a_real_socket() -> None:
    async def answer(_: Asked, out: Out) -> None:
        await out.whole(200, DCGM_PAGE.encode(), kind="text/plain")

    with scripted(answer, gets=answer) as server:
        source = open_gpu(f"{server.url}/metrics").source
        assert source is not None
        assert told(source.sweep()) == pytest.approx(BUSY)
    (only,) = source.sweep()  # it is gone now
    assert only.name == "failed"
