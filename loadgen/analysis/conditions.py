"""The card of conditions: six questions without which a token rate means nothing, answered.

An answer is discovered (the server or the machine told: manifest ``conditions`` and ``target``),
declared (the scenario's ``conditions``), measured, or "unknown".
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadgen.analysis.summary import Answer, LevelSummary

UNKNOWN = "unknown"
DISCOVERED, DECLARED, MEASURED = "discovered", "declared", "measured"

WEIGHTS = ("quantisation", "quantization", "weights", "dtype", "kv_cache_dtype", "kv_cache")
HARDWARE = ("hardware", "gpu", "gpus", "machine", "device", "driver")


def answers(levels: Sequence[LevelSummary], manifest: Mapping[str, Any]) -> list[Answer]:
    """Answer the six questions from what the run recorded and what it measured."""
    scenario = _mapping(manifest, "scenario")
    return [
        _measured("prefill, decode or whole?", _parts(levels)),
        _measured("one request or many at once?", _load(levels, scenario)),
        _told("quantisation, weights and KV?", WEIGHTS, manifest),
        _told("which hardware?", HARDWARE, manifest),
        _measured("context lengths, asked and actual?", _lengths(levels, scenario)),
        _measured("warm-ups, rounds, how long?", _course(levels, scenario)),
    ]


def measured_from(levels: Sequence[LevelSummary], manifest: Mapping[str, Any]) -> str:
    """Say what the client ran on, and how far it is from the server (time to connect)."""
    client, preflight = _mapping(manifest, "client"), _mapping(manifest, "preflight")
    parts = []
    if client.get("cpus"):
        parts.append(f"{client['cpus']} CPUs")
    parts += [str(client[key]) for key in ("platform", "loop") if client.get(key)]
    if client.get("stamps"):
        parts.append(f"{client['stamps']} stamps")
    times = [level.connect.p50.value for level in levels if level.connect.p50.value is not None]
    told = preflight.get("connect_ns")
    if isinstance(told, int | float):
        times.append(told / 1e6)
    distance = f"{min(times):.3g} ms to connect" if times else "time to connect unknown"
    return ", ".join([*parts, distance]) if parts else distance


def _parts(levels: Sequence[LevelSummary]) -> str:
    known = [
        level.ttft.mean / level.e2e.mean
        for level in levels
        if level.ttft.mean is not None and level.e2e.mean
    ]
    share = ""
    if known:
        low, high = f"{min(known):.0%}", f"{max(known):.0%}"
        span = low if low == high else f"{low} to {high}"
        share = f"; TTFT is {span} of E2E, by means"
    return (
        "whole requests: TTFT holds queue and prefill, ITL and decode rate hold decode, E2E"
        f" both{share}"
    )


def _load(levels: Sequence[LevelSummary], scenario: Mapping[str, Any]) -> str:
    """Name the levels of each kind of loop together; of open ones with the cap."""
    if not levels:
        return UNKNOWN
    asked = scenario.get("levels")
    told = asked if isinstance(asked, list) else []
    kinds: dict[str, list[str]] = {}
    for level in levels:
        how = _how(level, told[level.level] if level.level < len(told) else None)
        kinds.setdefault(how, []).append(level.label)
    return "; ".join(f"{_together(labels)}{how}" for how, labels in kinds.items())


def _together(labels: Sequence[str]) -> str:
    """Say the common word once: "concurrency 1, 8, 16"."""
    word = "concurrency "
    if all(label.startswith(word) for label in labels):
        return word + ", ".join(label.removeprefix(word) for label in labels)
    return ", ".join(labels)


def _how(level: LevelSummary, asked: object) -> str:
    """Say what a label leaves out: closed loop, or the cap and what happens at it."""
    if level.concurrency is not None:
        return " (closed loop)"
    if not isinstance(asked, Mapping) or "max_in_flight" not in asked:
        return ""
    return f" (open loop, at most {asked['max_in_flight']} in flight, then {asked.get('at_cap')})"


def _told(question: str, keys: Iterable[str], manifest: Mapping[str, Any]) -> Answer:
    """Answer from what was discovered, else from what was declared; both where both are known."""
    scenario = _mapping(manifest, "scenario")
    found, source = [], UNKNOWN
    for group, word in ((_mapping(scenario, "conditions"), DECLARED),
                        (_mapping(manifest, "conditions"), DISCOVERED)):  # fmt: skip
        said = [_words(group[key]) for key in keys if group.get(key) not in (None, "", [], {})]
        if said:
            found.append(f"{', '.join(said)} ({word})")
            source = word
    return Answer(question=question, text="; ".join(found) or UNKNOWN, source=source)


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_words(inner) for inner in value)
    return str(value)


def _lengths(levels: Sequence[LevelSummary], scenario: Mapping[str, Any]) -> str:
    asked_in = _range(level.asked_input_mean for level in levels)
    asked_out = _range(level.asked_output_mean for level in levels)
    if not scenario.get("prompts") and asked_in == asked_out == UNKNOWN:
        return UNKNOWN
    told_in = _range(level.input_tokens.mean for level in levels)
    told_out = _range(level.output_tokens.mean for level in levels)
    return (
        f"input asked {asked_in}, reported {told_in}; output asked {asked_out}, counted {told_out}"
        " (means of the levels, tokens)"
    )


def _course(levels: Sequence[LevelSummary], scenario: Mapping[str, Any]) -> str:
    warmup = _warmup(scenario)
    rounds = max((level.rounds for level in levels), default=1)
    single = " (a single run: how far rounds differ is unknown)" if rounds == 1 else ""
    lengths = _range(level.window_s for level in levels)
    return (
        f"warm-up: {warmup}; rounds: {rounds}{single}; window: {lengths} s; drift: {_drift(levels)}"
    )


def _warmup(scenario: Mapping[str, Any]) -> str:
    asked = _mapping(scenario, "each_level").get("warmup")
    if asked in (None, "", [], {}):
        return "one request per slot, at least 2"
    return _words(asked)


def _drift(levels: Sequence[LevelSummary]) -> str:
    told = [
        f"{level.label}: {', '.join(level.steadiness.drifting) or level.steadiness.verdict}"
        for level in levels
        if level.steadiness.verdict in ("drift", "saturated")
    ]
    if told:
        return "; ".join(told)
    known = [level for level in levels if level.steadiness.verdict != UNKNOWN]
    if not known:
        return UNKNOWN
    return "none" if len(known) == len(levels) else f"none in {len(known)} of {len(levels)} levels"


def _range(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN
    low, high = _number(min(known)), _number(max(known))
    return low if low == high else f"{low} to {high}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def _measured(question: str, text: str) -> Answer:
    return Answer(question=question, text=text, source=UNKNOWN if text == UNKNOWN else MEASURED)


def _mapping(outer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = outer.get(key)
    return found if isinstance(found, Mapping) else {}
