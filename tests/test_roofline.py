"""The decode roofline: its facts are taken from names and numbers, and what is unknown stays so."""

from typing import Any

import pytest
from make import level, make_run, record

from loadgen.analysis.datasheet import bandwidth_of, bytes_of_weight, count_of
from loadgen.analysis.metrics import summarise
from loadgen.analysis.roofline import Facts, facts_of

H100 = "1 × NVIDIA H100 80GB HBM3"


def declared(**conditions: Any) -> Facts | None:
    return facts_of({"scenario": {"conditions": conditions}})


def discovered(**conditions: Any) -> Facts | None:
    return facts_of({"conditions": conditions})


@pytest.mark.parametrize(
    ("gpu", "gb_per_s"),
    [
        ("NVIDIA A100-SXM4-40GB", 1555),
        ("NVIDIA A100-PCIE-40GB", 1555),
        ("NVIDIA A100 80GB PCIe", 1935),
        ("NVIDIA A100-SXM4-80GB", 2039),
        ("NVIDIA H100 PCIe", 2039),
        ("NVIDIA H100 80GB HBM3", 3350),
        ("H100-SXM5", 3350),
        ("NVIDIA H100 NVL", 3938),
        ("H100", 3938),
        ("8 × NVIDIA H200", 4800),
        ("NVIDIA B200", 8000),
        ("NVIDIA L4", 300),
        ("2x NVIDIA L40S", 864),
        ("NVIDIA A10", 600),
        ("NVIDIA A10G", 600),
        ("Tesla T4", 320),
        ("Tesla V100-SXM2-16GB", 900),
        ("NVIDIA GeForce RTX 3090", 936),
        ("NVIDIA GeForce RTX 3090 Ti", 1008),
        ("rtx4090", 1008),
        ("NVIDIA GeForce RTX 5090", 1792),
        ("AMD Instinct MI300X", 5300),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("1 × NVIDIA H100 PCIe, 1 × Tesla T4", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA RTX A4000", None),
        ("simulated", None),
        ("", None),
    ],
)
def test_a_gpus_bandwidth_by_its_name(gpu: str, gb_per_s: float | None) -> None:
    assert bandwidth_of(gpu) == (None if gb_per_s is None else gb_per_s * 1e9)


def test_gpus_are_counted_by_the_number_before_their_name() -> None:
    assert [count_of(gpu) for gpu in ("8 × H200", "2x L4", "H100", "3090")] == [8, 2, 1, 1]


@pytest.mark.parametrize(
    ("word", "size"),
    [
        ("bfloat16", 2), ("bf16", 2), ("torch.float16", 2), ("half", 2), ("F32", 4),
        ("fp8", 1), ("fp8_e4m3", 1), ("fp8 dynamic", 1), ("int8 w8a8", 1), ("W4A16", 0.5),
        ("awq", 0.5), ("AWQ (by the model's name)", 0.5), ("GPTQ-Int4", 0.5), ("nvfp4", 0.5),
        ("mxfp4", 0.5), ("nf4", 0.5), ("bnb-4bit", 0.5), ("Q4_K_M", 0.5), ("IQ3_XS", 0.375),
        ("Q8_0", 1), ("gptq", None), ("bitsandbytes", None), ("none", None), ("auto", None),
    ],
)  # fmt: skip
def test_the_bytes_of_a_weight_by_the_name_of_its_format(word: str, size: float | None) -> None:
    assert bytes_of_weight(word) == size


@pytest.mark.parametrize(
    ("conditions", "weights", "bandwidth"),
    [
        ({"gpu": H100, "parameters": "8B", "dtype": "bfloat16"}, 16e9, 3.35e12),
        ({"hardware": "H200", "parameters": 8e9, "weights": "fp8"}, 8e9, 4.8e12),
        ({"gpu": "L4", "parameters": "1.5b", "quantisation": "awq", "dtype": "half"}, 0.75e9, 3e11),
        ({"gpu": "L4", "parameters": "500M", "quantisation": "none", "dtype": "bf16"}, 1e9, 3e11),
        ({"gpu": "L4", "parameters": "500M", "quantisation": "unknown", "dtype": "bf16"},
         1e9, 3e11),
        ({"gpu": H100, "weight_bytes": 15e9}, 15e9, 3.35e12),
        ({"gpu": H100, "weight_bytes": 60e9, "model": "org/Some-30B-A3B", "dtype": "bf16",
          "active_parameters": "3B"}, 6e9, 3.35e12),
        ({"gpu": "8 × H200", "parameters": "70B", "dtype": "bf16", "tp": 4}, 140e9, 19.2e12),
        ({"gpu": "H200", "parameters": "70B", "dtype": "bf16", "tensor_parallel": 2,
          "data_parallel": 2}, 140e9, 19.2e12),
        ({"gpu": H100, "parameters": "8B", "dtype": "bf16", "roofline": {"weight_bytes": 15e9}},
         15e9, 3.35e12),
        ({"gpu": H100, "parameters": "8B", "dtype": "bf16",
          "roofline": {"bandwidth_bytes_per_s": 3e12}}, 16e9, 3e12),
    ],
    ids=["parameters and type", "other names", "quantised", "not quantised", "not told",
         "bytes known", "a mixture of experts", "of eight four", "two replicas", "weights told",
         "bandwidth told"],
)  # fmt: skip
def test_the_facts_follow_from_what_is_known(
    conditions: dict[str, Any], weights: float, bandwidth: float
) -> None:
    expected = Facts(weight_bytes=weights, kv_bytes_per_token=0.0, bandwidth_bytes_per_s=bandwidth)
    assert declared(**conditions) == expected
    assert discovered(**conditions) == expected


@pytest.mark.parametrize(
    "conditions",
    [
        {},
        {"gpu": H100},
        {"gpu": H100, "parameters": "8B"},
        {"gpu": H100, "dtype": "bf16"},
        {"gpu": H100, "parameters": "8B", "dtype": "auto"},
        {"gpu": H100, "parameters": "8B", "quantisation": "gptq", "dtype": "half"},
        {"gpu": H100, "parameters": "many", "dtype": "bf16"},
        {"gpu": H100, "parameters": True, "dtype": "bf16"},
        {"gpu": "a GPU without a name", "parameters": "8B", "dtype": "bf16"},
        {"gpu": "8 × H200", "parameters": "8B", "dtype": "bf16"},
        {"gpu": H100, "weight_bytes": 60e9, "dtype": "bf16", "model": "org/Some-30B-A3B"},
        {"gpu": H100, "weight_bytes": 90e9, "model": "Mixtral-8x7B-v0.1"},
        {"parameters": "8B", "dtype": "bf16", "machine": "a CPU"},
        {"gpu": H100, "weight_bytes": "16 GB"},
        {"gpu": ["H100"], "parameters": [8], "dtype": {"a": 1}, "roofline": "x"},
    ],
    ids=str,
)
def test_what_is_not_known_makes_no_roofline(conditions: dict[str, Any]) -> None:
    assert declared(**conditions) is None
    assert discovered(**conditions) is None


def test_what_the_server_told_goes_before_what_was_declared() -> None:
    known = {"parameters": "8B", "dtype": "bf16", "gpu": "H200"}
    told = {"gpu": "1 × NVIDIA L4", "parameters": 7_000_000_000}
    facts = facts_of({"conditions": told, "scenario": {"conditions": known}})
    assert facts is not None
    assert (facts.weight_bytes, facts.bandwidth_bytes_per_s) == (14e9, 3e11)
    simulated = {"conditions": {"hardware": "simulated"}, "scenario": {"conditions": known}}
    assert facts_of(simulated) is None


def test_a_run_with_declared_parameters_is_checked_against_its_gpu() -> None:
    """One stream at 100 tok/s, where 4e9 weights of 1 byte on 300 GB/s allow 75."""
    records = [
        record(n, sent=1000.0 * n, at=[10 * i for i in range(1, 101)], reported_output=100,
               reported_input=10)
        for n in range(20)
    ]  # fmt: skip
    plan = level(window=(0, 20_000), concurrency=1)
    conditions = {"gpu": "NVIDIA L4", "parameters": "4B", "weights": "fp8"}
    found = summarise(make_run(records, [plan], scenario={"conditions": conditions})).levels[0]
    (check,) = [one for one in found.checks if one.name == "share of the decode roofline"]
    assert (check.verdict, check.value) == ("warn", pytest.approx(4 / 3, rel=0.02))
