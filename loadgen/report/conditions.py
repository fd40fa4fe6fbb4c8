"""Under which conditions the numbers were taken; "unknown" where the manifest is silent."""

from collections.abc import Mapping
from typing import Any

from loadgen.analysis.conditions import answers, measured_from
from loadgen.analysis.summary import Summary
from loadgen.report.text import Fact, plain

_SAMPLING = ("temperature", "top_p", "top_k")
_SAID_ABOVE = {("telemetry", "server.why_not")}
"""Under the title, or among the warnings where the server's page was asked for by name."""


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
        ("levels", f"{levels}, a single run" if rounds == 1 else f"{levels} × {rounds} rounds"),
        ("seed", seeds.get("seed", _mapping(manifest, "scenario").get("seed"))),
        ("started", summary.started_at),
        ("measured from", measured_from(summary.levels, manifest)),
    )
    return tuple(
        Fact(label, plain(value)) for label, value in facts if value is not None and value != ""
    )


def card(summary: Summary, manifest: Mapping[str, Any]) -> tuple[Fact, ...]:
    """Answer the questions without which a token rate means nothing."""
    return tuple(
        Fact(answer.question, plain(answer.text)) for answer in answers(summary.levels, manifest)
    )


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
    if manifest.get("plan_hash"):
        facts.append(Fact("plan", plain(manifest["plan_hash"])))
    facts += _found(_mapping(manifest, "conditions"))
    for group in ("seeds", "client", "preflight", "telemetry"):
        facts += [
            Fact(f"{group}: {key}", value)
            for key, value in _flat(manifest.get(group))
            if (group, key) not in _SAID_ABOVE
        ]
    if manifest.get("loadgen"):
        facts.append(Fact("loadgen", plain(manifest["loadgen"])))
    return tuple(facts)


def _found(conditions: Mapping[str, Any]) -> list[Fact]:
    """List what was found by asking, each with who told it."""
    by = _mapping(conditions, "found_by")
    facts = []
    for key, value in _flat({key: one for key, one in conditions.items() if key != "found_by"}):
        source = by.get(key)
        told = f" ({plain(source)})" if source and plain(source) not in value else ""
        facts.append(Fact(f"conditions: {key}", f"{value}{told}"))
    return facts


def _mapping(outer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = outer.get(key)
    return found if isinstance(found, Mapping) else {}


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
