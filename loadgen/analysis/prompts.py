"""What the prompts were, beyond what was asked: repeats, the template's tokens, a shared prefix."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

CALIBRATED = frozenset({"linear", "filtered", "scaled"})
PROBE_TOKENS = 1
"""The preflight's probe is one word; whatever else its usage counts, the template added."""


def repeats(requests: pd.DataFrame) -> "pd.Series[bool]":
    """Say which requests sent a prompt that the run had sent before, by its hash."""
    known = requests["prompt_hash"].notna()
    order = np.argsort(requests["due_ns"].to_numpy(), kind="stable")
    again = requests["prompt_hash"].iloc[order].duplicated()
    return again.reindex(requests.index) & known


def template_tokens(manifest: Mapping[str, Any]) -> float | None:
    """Return the tokens that the server adds to each prompt; None where no probe told.

    From the calibration's first probe (words sent, tokens counted), else from the preflight's.
    """
    probes = _mapping(manifest, "prompts").get("probes")
    if isinstance(probes, list) and probes and isinstance(probes[0], list | tuple):
        sent, counted = probes[0]
        return float(counted - sent)
    told = _mapping(manifest, "preflight").get("reported_input")
    usable = isinstance(told, int | float) and told >= PROBE_TOKENS
    return float(told - PROBE_TOKENS) if usable and told is not None else None


def unasked_tokens(manifest: Mapping[str, Any]) -> float:
    """Return what the template adds beyond the length asked for.

    Nothing where the prompts were calibrated: then the length asked for includes the template.
    """
    if _mapping(manifest, "prompts").get("calibration") in CALIBRATED:
        return 0.0
    return template_tokens(manifest) or 0.0


def asked_cached_share(manifest: Mapping[str, Any], requests: pd.DataFrame) -> float:
    """Return the share of prompt tokens that the scenario itself makes a cache meet again.

    A wanted cache-hit share or a shared prefix, of a mix by the prompt tokens of each class, as
    hits are counted; later turns of a conversation repeat all that was said before.
    """
    if (requests["turn"] >= 1).any():
        return 1.0
    tokens = requests["reported_input"].fillna(requests["asked_input"])
    mix = _mapping(manifest, "scenario").get("mix")
    if not isinstance(mix, list):
        return _asked_share(_mapping(manifest, "scenario"), tokens)
    parts = [part for part in mix if isinstance(part, Mapping)]
    sent = [tokens[(requests["class_"] == part.get("name")).to_numpy()] for part in parts]
    whole = sum(float(of_class.sum()) for of_class in sent)
    if whole <= 0:
        return 0.0
    shared = (
        _asked_share(part, of) * float(of.sum()) for part, of in zip(parts, sent, strict=True)
    )
    return min(1.0, sum(shared) / whole)


def _asked_share(part: Mapping[str, Any], tokens: "pd.Series[float]") -> float:
    """Return what one class, or a scenario without, asks to be shared of prompts so long."""
    prompts, mean = _mapping(part, "prompts"), float(tokens.mean())
    wanted, prefix = prompts.get("cache_hit_share"), prompts.get("shared_prefix_tokens")
    if isinstance(wanted, int | float):
        return min(1.0, float(wanted))
    return min(1.0, float(prefix or 0) / mean) if mean > 0 else 0.0


def _mapping(outer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = outer.get(key)
    return found if isinstance(found, Mapping) else {}
