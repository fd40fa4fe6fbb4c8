"""The card of conditions: questions without which a token rate means nothing, answered.

An answer is discovered (the server or the machine told: manifest ``conditions`` and ``target``),
declared (the scenario's ``conditions``), hinted (by the model's name), measured, or "unknown".
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadgen.analysis.summary import Answer, LevelSummary
from loadgen.units import NS_PER_S

UNKNOWN = "unknown"
SLOW_FIRST_TOKEN_S = 1.0
DISCOVERED, DECLARED, MEASURED, HINTED = "discovered", "declared", "measured", "hinted"

WEIGHTS = ("quantisation", "quantization", "weights", "dtype", "kv_cache_dtype", "kv_cache")
HARDWARE = ("hardware", "gpu", "gpus", "gpu_memory_bytes", "machine", "device", "driver")
SETTINGS = ("max_model_len", "tensor_parallel", "pipeline_parallel", "data_parallel",
            "prefix_caching", "speculative_decoding", "max_sequences", "kv_cache_tokens",
            "cuda_graphs", "image", "image_digest")  # fmt: skip

_WORDED = {
    "kv_cache_dtype": "KV {}",
    "driver": "driver {}",
    "max_model_len": "context {} tokens",
    "tensor_parallel": "TP {}",
    "pipeline_parallel": "PP {}",
    "data_parallel": "DP {}",
    "prefix_caching": "prefix caching {}",
    "speculative_decoding": "speculative decoding {}",
    "max_sequences": "at most {} sequences",
    "kv_cache_tokens": "KV cache of {} tokens",
    "cuda_graphs": "CUDA graphs {}",
    "image": "image {}",
    "image_digest": "digest {}",
}
"""How a value is said that means nothing without its name."""

_HINT = "(by the model's name)"


def answers(levels: Sequence[LevelSummary], manifest: Mapping[str, Any]) -> list[Answer]:
    """Answer the questions from what the run recorded and what it measured."""
    scenario = _mapping(manifest, "scenario")
    return [
        _measured("prefill, decode or whole?", _parts(levels)),
        _measured("one request or many at once?", _load(levels, scenario)),
        _told("quantisation, weights and KV?", WEIGHTS, manifest),
        _told("which hardware?", HARDWARE, manifest),
        _server(manifest),
        _measured("context lengths, asked and actual?", _lengths(levels, scenario)),
        _measured("warm-ups, rounds, how long?", _course(levels, scenario, _first_token(manifest))),
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
        said = [_said(key, group[key]) for key in keys if group.get(key) not in (None, "", [], {})]
        hints = [text for text in said if text.endswith(_HINT)]
        if sure := [text for text in said if text not in hints]:
            found.append(f"{', '.join(sure)} ({word})")
            source = word
        if hints:
            found += hints
            source = HINTED if source == UNKNOWN else source
    return Answer(question=question, text="; ".join(found) or UNKNOWN, source=source)


def _server(manifest: Mapping[str, Any]) -> Answer:
    """Name the engine with its version and the model, then the settings that are known."""
    target, found = _mapping(manifest, "target"), _mapping(manifest, "conditions")
    engine = target.get("engine_label") or target.get("engine")
    version = target.get("engine_version")
    names = [" ".join(str(part) for part in (engine, version) if part)] if engine else []
    served, origin = target.get("model"), found.get("model")
    if served or origin:
        apart = f" ({origin})" if served and origin and origin != served else ""
        names.append(f"model {served or origin}{apart}")
    settings = _told("which server, set up how?", SETTINGS, manifest)
    if not engine:
        return settings
    known = [] if settings.source == UNKNOWN else [settings.text]
    source = DISCOVERED if settings.source == UNKNOWN else settings.source
    return Answer(question=settings.question, text="; ".join([", ".join(names), *known]),
                  source=source)  # fmt: skip


def _said(key: str, value: object) -> str:
    """Say one condition: with its name where the value alone would not tell what it is."""
    if key == "quantisation" and value == "none":
        return "not quantised"
    if key == "gpu_memory_bytes" and isinstance(value, int | float):
        return f"{value / 2**30:.0f} GiB each"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = f"{value:,}" if number and key in _WORDED else _words(value)
    return _WORDED.get(key, "{}").format(text)


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
    told_in = _range(level.input_told for level in levels)
    told_out = _range(level.output_told for level in levels)
    return (
        f"input asked {asked_in}, reported {told_in}; output asked {asked_out}, counted {told_out}"
        " (means of the levels, tokens)"
    )


def _first_token(manifest: Mapping[str, Any]) -> str:
    """Tell of a slow first token of the run: it was asked for before any load, like this load."""
    told = _mapping(manifest, "preflight").get("ttft_ns")
    if not isinstance(told, int | float) or told < SLOW_FIRST_TOKEN_S * NS_PER_S:
        return ""
    return f"; the first token of the run, before any load, took {told / NS_PER_S:.3g} s"


def _course(levels: Sequence[LevelSummary], scenario: Mapping[str, Any], first_token: str) -> str:
    warmup = f"{_warmup(scenario)}{_warmup_cost(levels)}{first_token}"
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


def _warmup_cost(levels: Sequence[LevelSummary]) -> str:
    """Say what the warm-ups took: a cold server's first wave, which no other figure contains."""
    took = [level.warmup_s for level in levels if level.warmup_requests and level.warmup_s]
    slowest = [level.warmup_ttft_max for level in levels if level.warmup_ttft_max is not None]
    if not took or not slowest:
        return ""
    return f" (took {_range(took)} s, TTFT up to {_number(max(slowest))} ms)"


def _drift(levels: Sequence[LevelSummary]) -> str:
    told = [
        f"{level.label}: {', '.join(level.steadiness.drifting) or level.steadiness.verdict}"
        for level in levels
        if level.steadiness.verdict in ("drift", "saturated", "not settled", "still filling")
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
