"""Were two runs measured under the same conditions? Each difference is named before any figure."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.analysis.conditions import HARDWARE, SETTINGS, WEIGHTS
from loadgen.analysis.table import RunData
from loadgen.analysis.window import LevelPlan, levels_of
from loadgen.scenario.problems import known_keys
from loadgen.units import NS_PER_MS

ABSENT = "not told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """One condition that the runs do not share: what each has, the baseline first.

    expected: the user said that it is what is compared.
    """

    what: str
    values: list[str]
    expected: bool = False


_SCENARIO = ("prompts", "mix", "each_level", "rounds", "seed", "nonce", "limits", "request",
             "conditions", "quality", "workers")  # fmt: skip
_TARGET = ("model", "engine", "engine_version", "endpoint", "transport", "connections", "proxy")
_CLIENT = ("platform", "cpus", "loop", "stamps", "python")
_FOLLOWS = ("kv_cache_tokens",)  # what memory was left: it varies a little between two starts
_HINT = "the model's name"
_DISTANCE = "client.distance"
_NEAR_MS, _NEAR_TIMES = 10.0, 2.0
"""Times to connect are alike within so many ms, or so many times the shortest: of 300 connects from
a busy host to itself, a tenth took 2 ms or more and two over 10."""
_LOAD = ("max_in_flight", "at_cap", "arrivals", "burstiness", "max_starts_per_s")


def mismatches(runs: Sequence[RunData], *, varies: Sequence[str] = ()) -> list[Mismatch]:
    """Name every condition that is not the same in all runs, those of the server first.

    varies: beginnings of names ("conditions", "target.model") that are meant to differ.
    """
    told = [
        {**dict(_conditions(run)), **far} for run, far in zip(runs, _distances(runs), strict=True)
    ]
    names = list(dict.fromkeys(name for one in told for name in one))
    asked = {_DISTANCE, *(name for run in runs for name, _ in _found(run))}
    for one, run in zip(told, runs, strict=True):
        asked |= _never_reached(one, run, [other for other in runs if other is not run])
    found = []
    for name in names:
        values = [one.get(name, ABSENT) for one in told]
        # what one server tells and another does not is unknown there, which is no difference
        if len({one for one in values if one != ABSENT or name not in asked}) > 1:
            meant = any(_begins(name, word) for word in varies)
            found.append(Mismatch(what=name, values=values, expected=meant))
    return found


def misnamed(varies: Sequence[str], runs: Sequence[RunData]) -> list[str]:
    """Say of each name in ``varies`` that no condition has or begins with what is meant, maybe.

    A condition that these runs do not tell is one as well, where others could; of what is free in a
    scenario (``conditions``, ``request``) only what one of them tells, or the card asks for.
    """
    told = list(dict.fromkeys(name for run in runs for name in _told(run)))
    known = list(dict.fromkeys([*told, *_could_differ()]))
    return [
        f"{word}: no such condition; {_meant(word, told, known)}"
        for word in varies
        if not any(_begins(name, word) for name in known)
    ]


def same_plan(baseline: RunData, candidate: RunData) -> bool:
    """Say whether request k of a level is the same request in both: same seed, prompts, load."""
    first, second = (_mapping(run.manifest, "scenario") for run in (baseline, candidate))
    keys = ("seed", "prompts", "mix", "quality", "levels")
    if not first.get("prompts") and not first.get("mix"):
        return False
    contents = [_mapping(run.manifest, "prompts").get("hash") for run in (baseline, candidate)]
    return all(first.get(key) == second.get(key) for key in keys) and contents[0] == contents[1]


def _begins(name: str, word: str) -> bool:
    return name == word or name.startswith(f"{word}.")


def _told(run: RunData) -> Iterator[str]:
    yield from (name for name, _ in _conditions(run))
    yield from (f"{level}: {key}" for level in names_of(levels_of(run)) for key in _LOAD)


def _could_differ() -> Iterator[str]:
    """Name the conditions that a run can have, whether or not one at hand has them."""
    yield from (f"target.{key}" for key in _TARGET)
    yield from (f"conditions.{key}" for key in (*WEIGHTS, *HARDWARE, *SETTINGS))
    yield from (name for key in _SCENARIO for name in _in_scenario(key))
    yield from ("prompts.contents", "quality.contents", "levels", "loadgen", _DISTANCE)
    yield from (f"client.{key}" for key in _CLIENT)


def _in_scenario(*path: str) -> Iterator[str]:
    yield ".".join(path)
    for key in known_keys(path) if path != ("mix",) else ():  # a list is one value
        yield from _in_scenario(*path, key)


def _meant(word: str, told: Sequence[str], known: Sequence[str]) -> str:
    """Suggest names by their last part: of the same group, then those told; else list the known."""
    heads = list(dict.fromkeys(name.split(".")[0] for name in known if ": " not in name))
    head, _, last = word.lower().rpartition(".")
    group = [name for name in known if head and _begins(name, head)]
    for names in (group, [*heads, *told], known):
        parts = {name: name.split(".")[-1].lower() for name in names}
        for close in difflib.get_close_matches(last, parts.values(), n=1, cutoff=0.7):
            found = [name for name, part in parts.items() if part == close]
            return f"did you mean {' or '.join(found[:2])}?"
    return f"known are {', '.join([name for name in told if name in group] or heads)}"


def _conditions(run: RunData) -> Iterator[tuple[str, str]]:
    manifest = run.manifest
    scenario = _mapping(manifest, "scenario")
    for key in _TARGET:
        yield from _flat(_mapping(manifest, "target").get(key), f"target.{key}")
    found = list(_found(run))
    yield from found
    for key in _SCENARIO:
        yield from _flat(scenario.get(key), key)
    yield from found  # the server's own word stands, not what was declared
    prompts = _mapping(manifest, "prompts")
    yield from _flat(prompts.get("hash"), "prompts.contents")
    yield from _flat(_mapping(prompts, "golden").get("hash"), "quality.contents")
    yield from _levels(run, scenario)
    for key in _CLIENT:
        yield from _flat(_mapping(manifest, "client").get(key), f"client.{key}")
    yield from _flat(manifest.get("loadgen"), "loadgen")


def _distances(runs: Sequence[RunData]) -> list[dict[str, str]]:
    """Tell of each run how far its server was, where they were not about as far; else nothing."""
    told = [_connect_ms(run) for run in runs]
    known = [one for one in told if one is not None]
    near = max(min(known, default=0.0) + _NEAR_MS, min(known, default=0.0) * _NEAR_TIMES)
    if max(known, default=0.0) <= near:
        return [{} for _ in runs]
    return [{} if one is None else {_DISTANCE: f"{one:.3g} ms to connect"} for one in told]


def _connect_ms(run: RunData) -> float | None:
    """Return the quickest connect: of the preflight, or of a request that opened one."""
    took = run.requests["connected_ns"] - run.requests["connect_start_ns"]
    known = [float(took.min())]  # NaN where none did
    told = _mapping(run.manifest, "preflight").get("connect_ns")
    if isinstance(told, int | float):
        known.append(float(told))
    return min((one / NS_PER_MS for one in known if one >= 0), default=None)


def _found(run: RunData) -> Iterator[tuple[str, str]]:
    """Yield the conditions found by asking; no hints, and nothing that only follows from others."""
    conditions = _mapping(run.manifest, "conditions")
    by = _mapping(conditions, "found_by")
    for key, value in conditions.items():
        if key not in ("found_by", *_FOLLOWS) and by.get(key) != _HINT:
            yield from _flat(value, f"conditions.{key}")


def _never_reached(told: dict[str, str], run: RunData, others: Sequence[RunData]) -> set[str]:
    """Forget which levels a run cut short has, where it only lacks some; name what it cannot tell.

    That it lacks them is no condition of the levels that it has.
    """
    own = names_of(levels_of(run))
    all_names = [name for other in others for name in names_of(levels_of(other))]
    if run.manifest.get("status", "complete") == "complete" or not set(own) <= set(all_names):
        return set()
    told.pop("levels", None)
    lacking = set(all_names) - set(own)
    return {"levels", *(f"{name}: {key}" for name in lacking for key in _LOAD)}


def _levels(run: RunData, scenario: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the labels of all levels together, and what a label leaves out of each."""
    plans = levels_of(run)
    yield "levels", ", ".join(plan.label for plan in plans)
    listed = scenario.get("levels")
    asked = listed if isinstance(listed, list) else []
    for name, plan in zip(names_of(plans), plans, strict=True):
        said = asked[plan.level] if plan.level < len(asked) else None
        for key in _LOAD:
            if isinstance(said, Mapping) and key in said:
                yield f"{name}: {key}", str(said[key])


def names_of(plans: Sequence[LevelPlan]) -> list[str]:
    """Return the levels' labels; one that comes again is counted: "concurrency 8 (2)"."""
    names: list[str] = []
    for plan in plans:
        again = sum(earlier.label == plan.label for earlier in plans[: len(names)])
        names.append(f"{plan.label} ({again + 1})" if again else plan.label)
    return names


def _flat(value: object, name: str) -> Iterator[tuple[str, str]]:
    """Yield nested values under dotted names; nothing for null."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}")
    elif isinstance(value, list):
        yield name, ", ".join(str(item) for item in value)
    elif value is not None:
        yield name, str(value)


def _mapping(outer: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = outer.get(key)
    return found if isinstance(found, Mapping) else {}
