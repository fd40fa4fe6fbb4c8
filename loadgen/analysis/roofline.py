"""How fast a decode step could be at all: the bytes that it must read, over the bandwidth.

step ≥ (active weight bytes without the input embedding + Σ context · kv bytes per token)
       / bandwidth

Where ``conditions.roofline`` does not give them, the bandwidth follows from the GPU's name and how
many serve, the bytes of the weights from the number of parameters and their format. Whatever is not
known makes the bound looser or takes it away; only a size that counts the input embedding makes it
stricter, by some 7 % of an 8B model, which the bound of the check allows for.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from loadgen.analysis.datasheet import bandwidth_of, bytes_of_weight, count_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What must be known of model and GPU; bytes, and bytes per second."""

    weight_bytes: float
    kv_bytes_per_token: float
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences decoded together, and the mean length of their contexts in tokens."""

    sequences: float
    context_tokens: float


def kv_bytes_per_token(*, layers: int, kv_heads: int, head_dim: int, value_bytes: float) -> float:
    """Return 2 · layers · kv heads · head dim · bytes of a value: keys and values."""
    return 2 * layers * kv_heads * head_dim * value_bytes


def facts_of(manifest: Mapping[str, Any]) -> Facts | None:
    """Return what is known of the run's model and GPUs; None where that is not enough.

    ``kv_bytes_per_token`` may be given as layers, kv_heads, head_dim and kv_value_bytes (2).
    """
    found = _mapping(manifest, "conditions")
    declared = _mapping(_mapping(manifest, "scenario"), "conditions")
    told = {**_mapping(declared, "roofline"), **_mapping(found, "roofline")}
    known = {**declared, **found}
    names = (_mapping(manifest, "target").get("model"), known.get("model"))
    weights = _number(told, "weight_bytes") or _weight_bytes(known, names=names)
    bandwidth = _number(told, "bandwidth_bytes_per_s") or _bandwidth(
        known, gpu=_gpu(found) or _gpu(declared)
    )
    if weights is None or bandwidth is None:
        return None
    return Facts(
        weight_bytes=weights,
        kv_bytes_per_token=_kv_bytes_per_token(told),
        bandwidth_bytes_per_s=bandwidth,
    )


def least_step_s(facts: Facts, batch: Batch) -> float:
    """Return the least time of one decode step of a batch."""
    context = batch.sequences * batch.context_tokens * facts.kv_bytes_per_token
    return (facts.weight_bytes + context) / facts.bandwidth_bytes_per_s


def most_tokens_per_s(facts: Facts, batch: Batch) -> float:
    """Return the output tok/s that the batch could reach at most."""
    return batch.sequences / least_step_s(facts, batch)


_GPU = ("gpu", "gpus", "hardware", "device")
_FORMATS = ("quantisation", "quantization", "weights", "dtype")
_PARALLEL = (
    ("tensor_parallel", "tensor_parallel_size", "tp"),
    ("pipeline_parallel", "pipeline_parallel_size", "pp"),
    ("data_parallel", "data_parallel_size", "dp"),
)
_EXPERTS = re.compile(
    r"(?i)\d+x\d+(?:\.\d+)?b|[-_]a\d+(?:\.\d+)?b|-\d+e(?![a-z0-9])|moe|mixtral|gpt-oss|"
    r"deepseek-(?:v[23]|r1)(?!.*distill)"
)
"""Names of models that read a part of their weights for each token: the whole bounds nothing."""

_AMOUNT = re.compile(r"(?i)\s*(\d+(?:\.\d+)?)\s*([kmbt]?)\s*")
_TIMES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def _gpu(conditions: Mapping[str, Any]) -> str:
    return next((str(conditions[key]) for key in _GPU if conditions.get(key)), "")


def _bandwidth(known: Mapping[str, Any], *, gpu: str) -> float | None:
    """Return what the GPUs that serve read per second together; None where one is not known.

    Of several GPUs that are there all serve only where the server's parallelism says so.
    """
    each = bandwidth_of(gpu)
    sizes = [next((size for key in keys if (size := _number(known, key))), None)
             for keys in _PARALLEL]  # fmt: skip
    if each is None or (sizes[0] is None and count_of(gpu) > 1):
        return None
    serving = 1.0
    for size in sizes:
        serving *= size or 1.0
    return each * serving


def _weight_bytes(known: Mapping[str, Any], *, names: Iterable[object]) -> float | None:
    """Return the bytes of the weights that each token reads; None where that is not known."""
    each = _bytes_of_weight(known)
    active = _amount(known.get("active_parameters"))
    if active is not None:
        return None if each is None else active * each
    if any(_EXPERTS.search(str(name)) for name in names):
        return None
    if (told := _number(known, "weight_bytes")) is not None:
        return told
    parameters = _amount(known.get("parameters"))
    return None if parameters is None or each is None else parameters * each


def _bytes_of_weight(known: Mapping[str, Any]) -> float | None:
    """Return the bytes of one weight: of its quantisation, or of its type where it has none."""
    untold = (None, "", "none", "unknown")
    words = [str(known[key]) for key in _FORMATS if known.get(key) not in untold]
    return bytes_of_weight(words[0]) if words else None


def _kv_bytes_per_token(told: Mapping[str, Any]) -> float:
    """Return what is told of it; 0 where nothing is: the bound is looser then."""
    if (kv := _number(told, "kv_bytes_per_token")) is not None:
        return kv
    shape = [_number(told, key) for key in ("layers", "kv_heads", "head_dim")]
    if None in shape:
        return 0.0
    layers, heads, dim = (int(size or 0) for size in shape)
    value_bytes = _number(told, "kv_value_bytes") or 2.0
    return kv_bytes_per_token(layers=layers, kv_heads=heads, head_dim=dim, value_bytes=value_bytes)


def _amount(value: object) -> float | None:
    """Read a number of parameters: 8030261248, "8B", "500M"."""
    found = None if isinstance(value, bool) else _AMOUNT.fullmatch(str(value))
    return float(found[1]) * _TIMES[found[2].lower()] if found else None


def _number(told: Mapping[str, Any], key: str) -> float | None:
    value = told.get(key)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if usable and value is not None else None


def _mapping(outer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = outer.get(key)
    return found if isinstance(found, Mapping) else {}
