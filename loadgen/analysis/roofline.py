"""How fast a decode step could be at all: the bytes that it must read, over the bandwidth.

step ≥ (active weight bytes without the input embedding + Σ context · kv bytes per token)
       / bandwidth
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    """Return what was discovered or declared under ``conditions.roofline``; None if incomplete.

    ``kv_bytes_per_token`` may be given as layers, kv_heads, head_dim and kv_value_bytes (2).
    """
    scenario = manifest.get("scenario")
    for outer in (manifest, scenario if isinstance(scenario, Mapping) else {}):
        conditions = outer.get("conditions")
        told = conditions.get("roofline") if isinstance(conditions, Mapping) else None
        if isinstance(told, Mapping):
            return _facts(told)
    return None


def least_step_s(facts: Facts, batch: Batch) -> float:
    """Return the least time of one decode step of a batch."""
    context = batch.sequences * batch.context_tokens * facts.kv_bytes_per_token
    return (facts.weight_bytes + context) / facts.bandwidth_bytes_per_s


def most_tokens_per_s(facts: Facts, batch: Batch) -> float:
    """Return the output tok/s that the batch could reach at most."""
    return batch.sequences / least_step_s(facts, batch)


def _facts(told: Mapping[str, Any]) -> Facts | None:
    kv = _number(told, "kv_bytes_per_token")
    shape = [_number(told, key) for key in ("layers", "kv_heads", "head_dim")]
    if kv is None and all(size is not None for size in shape):
        layers, heads, dim = (int(size or 0) for size in shape)
        value_bytes = _number(told, "kv_value_bytes") or 2.0
        kv = kv_bytes_per_token(
            layers=layers, kv_heads=heads, head_dim=dim, value_bytes=value_bytes
        )
    weights, bandwidth = (_number(told, key) for key in ("weight_bytes", "bandwidth_bytes_per_s"))
    if weights is None or bandwidth is None:
        return None
    return Facts(
        weight_bytes=weights, kv_bytes_per_token=kv or 0.0, bandwidth_bytes_per_s=bandwidth
    )


def _number(told: Mapping[str, Any], key: str) -> float | None:
    value = told.get(key)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if usable and value is not None else None
