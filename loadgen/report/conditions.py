"""Under which conditions the numbers were taken; "unknown" where the manifest is silent."""

from collections.abc import Iterable, Mapping
from typing import Any

from loadgen.analysis.summary import Summary
from loadgen.report.text import Fact, count, plain

UNKNOWN = "unknown"
_SAMPLING = ("temperature", "top_p", "top_k")


def headline_facts(summary: Summary, manifest: Mapping[str, Any]) -> tuple[Fact, ...]:
    """Return what stands under the title: target, model, engine, levels, seed, when."""
    target = summary.target
    engine = " ".join(
        plain(part) for part in (target.get("engine"), target.get("engine_version")) if part
    )
    levels = f"{len(summary.levels)}"
    rounds = max((level.rounds for level in summary.levels), default=1)
    seeds = _mapping(manifest, "seeds")
    facts = (
        ("target", target.get("url") or target.get("base_url")),
        ("model", target.get("model")),
        ("engine", engine),
        ("levels", levels if rounds == 1 else f"{levels} × {rounds} rounds"),
        ("seed", seeds.get("seed", _mapping(manifest, "scenario").get("seed"))),
        ("started", summary.started_at),
    )
    return tuple(
        Fact(label, plain(value)) for label, value in facts if value is not None and value != ""
    )


def card(summary: Summary, manifest: Mapping[str, Any]) -> tuple[Fact, ...]:
    """Answer the six questions without which a token rate means nothing."""
    scenario, declared = _mapping(manifest, "scenario"), _declared(manifest)
    return (
        Fact("prefill, decode or whole?", "whole requests: TTFT holds queue and prefill, ITL and"
             " decode rate hold decode, E2E both"),
        Fact("one request or many at once?", _load(summary)),
        Fact("quantisation, weights and KV?", _first(declared, "quantisation", "quantization",
                                                     "weights", "dtype", "kv_cache_dtype")),
        Fact("which hardware?", _first(declared, "hardware", "gpu", "gpus", "machine", "device")),
        Fact("context lengths, asked and actual?", _lengths(summary, scenario)),
        Fact("warm-ups, rounds, how long?", _course(summary, scenario)),
    )  # fmt: skip


def conditions(summary: Summary, manifest: Mapping[str, Any]) -> tuple[Fact, ...]:
    """List everything known of target, scenario, client and seeds, one line each."""
    scenario = _mapping(manifest, "scenario")
    request = _mapping(scenario, "request")
    sampling = [f"{key} {plain(request[key])}" for key in _SAMPLING if key in request]
    facts = [Fact(f"target: {key}", value) for key, value in _flat(summary.target)]
    facts.append(Fact("sampling", ", ".join(sampling) or "server default"))
    for group in ("prompts", "each_level", "limits", "request", "conditions"):
        facts += [Fact(f"{group}: {key}", value) for key, value in _flat(scenario.get(group))]
    for key in ("rounds", "nonce"):
        if key in scenario:
            facts.append(Fact(key, plain(scenario[key])))
    for group in ("seeds", "client", "preflight"):
        facts += [Fact(f"{group}: {key}", value) for key, value in _flat(manifest.get(group))]
    if manifest.get("loadgen"):
        facts.append(Fact("loadgen", plain(manifest["loadgen"])))
    return tuple(facts)


def _mapping(outer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = outer.get(key)
    return found if isinstance(found, Mapping) else {}


def _declared(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(_mapping(manifest, "scenario"), "conditions")


def _first(declared: Mapping[str, Any], *keys: str) -> str:
    said = [plain(declared[key]) for key in keys if declared.get(key) not in (None, "")]
    return f"{', '.join(said)} (declared)" if said else UNKNOWN


def _load(summary: Summary) -> str:
    labels = [plain(level.label) for level in summary.levels]
    return "; ".join(labels) if labels else UNKNOWN


def _lengths(summary: Summary, scenario: Mapping[str, Any]) -> str:
    prompts = _mapping(scenario, "prompts")
    levels = summary.levels
    asked_in = _range(level.asked_input_mean for level in levels)
    asked_out = _range(level.asked_output_mean for level in levels)
    told_in = _range(level.input_tokens.mean for level in levels)
    told_out = _range(level.output_tokens.mean for level in levels)
    if not prompts and asked_in == asked_out == UNKNOWN:
        return UNKNOWN
    return (
        f"input asked {asked_in}, reported {told_in}; output asked {asked_out}, counted {told_out}"
        " (means of the levels, tokens)"
    )


def _range(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN
    low, high = count(min(known)), count(max(known))
    return low if low == high else f"{low} … {high}"


def _course(summary: Summary, scenario: Mapping[str, Any]) -> str:
    each = _mapping(scenario, "each_level")
    asked = " ".join(f"{key} {value}".strip() for key, value in _flat(each.get("warmup")))
    warmup = asked or "one request per slot, at least 2"
    rounds = max((level.rounds for level in summary.levels), default=1)
    lengths = _range(level.window_s for level in summary.levels)
    return f"warm-up: {warmup}; rounds: {rounds}; window: {lengths} s; drift: unknown"


def _flat(value: object, prefix: str = "") -> list[tuple[str, str]]:
    """Flatten nested mappings to dotted keys; lists become one text; nothing for null or empty."""
    if value is None or value in ({}, [], ""):
        return []
    if not isinstance(value, Mapping):
        text = ", ".join(plain(item) for item in value) if isinstance(value, list) else plain(value)
        return [(prefix, text)]
    pairs: list[tuple[str, str]] = []
    for key, inner in value.items():
        pairs += _flat(inner, f"{prefix}.{plain(key)}" if prefix else plain(key))
    return pairs
