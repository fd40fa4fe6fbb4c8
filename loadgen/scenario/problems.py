"""What is wrong with a scenario, one line for each problem: where, what, what to write instead."""

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from loadgen.scenario.levels import LOADS, Level, level_conflicts
from loadgen.scenario.model import (
    MISSING_PROMPTS,
    Scenario,
    what_is_sent_conflicts,
)
from loadgen.scenario.prompts import (
    MISSING_INPUT,
    MISSING_OUTPUT,
    ConflictsError,
    Found,
    Prompts,
    prompt_conflicts,
)
from loadgen.scenario.server import COMPOSE_FILE
from loadgen.scenario.settings import Path
from loadgen.scenario.target import names_a_file

Problem = tuple[Path, str]

_MISSING = {
    "target": "is missing; say which server, like {url: http://localhost:8000}",
    "url": "is missing; write the server's address, like http://localhost:8000",
    "prompts": MISSING_PROMPTS,
    "levels": "is missing; say which load, like [{concurrency: 1}, {concurrency: 8}]",
    "input_tokens": MISSING_INPUT,
    "output_tokens": MISSING_OUTPUT,
    "for": "is missing; say how long, like for: 30s",
    "set": "is missing; name the golden set, like golden.jsonl",
    "name": "is missing; give it a short name",
}
_NO_LEVELS = "no levels; add one, like {concurrency: 8}"
_KINDS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text; put it in quotes",
    "dict_type": "must be a mapping of keys and values",
    "model_type": "must be a mapping of keys and values",
    "tuple_type": "must be a list",
    "string_too_short": "must not be empty",
    "invalid_key": "the key must be text; put it in quotes",
    "recursion_loop": "refers to itself",
}


def problems_of(error: ValidationError, raw: Mapping[str, Any]) -> list[Problem]:
    """Turn a validation error into problems, ordered as the parts of a scenario are."""
    items = error.errors(include_url=False, include_input=False)
    found = [problem for item in items for problem in _problems(item)]
    if raw.get("levels"):  # entries that failed do not count as entries: not the user's mistake
        found = [problem for problem in found if problem != (("levels",), _NO_LEVELS)]
    found += _conflicts_beside_errors(raw)
    if raw.get("prompts") is not None and raw.get("mix") is not None:
        found = [problem for problem in found if problem[0][:1] != ("prompts",)]  # has to go anyway
    return sorted(dict.fromkeys(found), key=_order)


def misnamed_keys(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield keys that are the program's names (``idle_s``) in place of the file's (``idle``)."""
    yield from _misnamed(Scenario, raw, ())


def named_files(raw: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the files that a scenario names, each with its place."""
    parts: list[tuple[Path, object]] = [(("prompts",), raw.get("prompts"))]
    for index, entry in enumerate(_list(raw.get("mix"))):
        if isinstance(entry, Mapping):
            parts.append((("mix", index, "prompts"), entry.get("prompts")))
    places: list[tuple[Path, object]] = [
        ((*path, key), part[key])
        for path, part in parts
        if isinstance(part, Mapping)
        for key in ("file", "lengths")
        if key in part
    ]
    quality = raw.get("quality")
    if isinstance(quality, Mapping) and "set" in quality:
        places.append((("quality", "set"), quality["set"]))
    for path, whole in [((), raw), *_servers(raw)]:
        target = whole.get("target")
        if isinstance(target, Mapping) and names_a_file(target.get("tokenizer")):
            places.append(((*path, "target", "tokenizer"), target["tokenizer"]))
        places += [((*path, *at), name) for at, name in _compose_files(whole.get("server"))]
    yield from ((path, name) for path, name in places if isinstance(name, str) and name)


def _servers(raw: Mapping[str, Any]) -> list[tuple[Path, Mapping[str, Any]]]:
    """Return each of several servers with its place."""
    servers = raw.get("servers")
    each = servers.items() if isinstance(servers, Mapping) else ()
    return [(("servers", name), one) for name, one in each if isinstance(one, Mapping)]


def _compose_files(server: object) -> list[tuple[Path, object]]:
    """Return the compose files of a server; the usual one where a profile names none."""
    if not isinstance(server, Mapping) or "profile" not in server or "command" in server:
        return []
    if "file" not in server:
        return [(("server", "file"), COMPOSE_FILE)]
    if isinstance(server["file"], list):
        return [(("server", "file", index), name) for index, name in enumerate(server["file"])]
    return [(("server", "file"), server["file"])]


def _misnamed(model: type[BaseModel], entries: object, path: Path) -> Iterator[Problem]:
    if isinstance(entries, list):
        for index, entry in enumerate(entries):
            yield from _misnamed(model, entry, (*path, index))
    if not isinstance(entries, Mapping):
        return
    for name, field in model.model_fields.items():
        key = str(field.validation_alias or name)
        if key != name and name in entries:
            yield (*path, name), f"unknown key; did you mean '{key}'?"
        for inner in _models_in(field.annotation):
            if get_origin(field.annotation) is not dict:
                yield from _misnamed(inner, entries.get(key), (*path, key))
            elif isinstance(entries.get(key), Mapping):
                for own, entry in entries[key].items():
                    yield from _misnamed(inner, entry, (*path, key, own))


def _problems(item: Any) -> list[Problem]:  # noqa: ANN401 - pydantic's ErrorDetails
    error = item.get("ctx", {}).get("error")
    if not isinstance(error, ConflictsError):
        return [_problem(item)]
    return _placed(error.found, tuple(item["loc"]))


def _placed(found: Iterable[Found], path: Path) -> list[Problem]:
    return [((*path, *_split(key)) if key else path, text) for key, text in found]


def _split(key: str) -> Path:
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))


def _problem(item: Any) -> Problem:  # noqa: ANN401 - pydantic's ErrorDetails
    path: Path = tuple(part for part in item["loc"] if part != "[key]")
    kind, context = item["type"], item.get("ctx", {})
    match kind:
        case "extra_forbidden":
            return path, _unknown_key(path)
        case "missing":
            return path, _MISSING.get(str(path[-1]), "is missing")
        case "value_error":
            return path, str(context["error"])
        case "literal_error":
            return path, f"must be one of {context['expected'].replace(' or ', ', ')}"
        case "greater_than":
            return path, f"must be above {context['gt']:g}"
        case "greater_than_equal":
            return path, f"must be {context['ge']:g} or more"
        case "too_short":
            return path, _NO_LEVELS
    return path, _KINDS.get(kind, item["msg"])


def _unknown_key(path: Path) -> str:
    known = known_keys(path[:-1])
    close = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
    if close:
        return f"unknown key; did you mean '{close[0]}'?"
    return f"unknown key; known here are {', '.join(known)}"


def known_keys(path: Path) -> list[str]:
    """List the keys that a file may use at a path."""
    if path[:1] == ("servers",):
        path = ("servers", *path[2:])  # the name of a server is no key
    models: list[type[BaseModel]] = [Scenario]
    for key in path:
        if isinstance(key, str):
            models = [found for model in models for found in _models_of(model, key)]
    return [key for model in models for key in _file_keys(model)]


def _file_keys(model: type[BaseModel]) -> list[str]:
    return [str(field.validation_alias or name) for name, field in model.model_fields.items()]


def _models_of(model: type[BaseModel], key: str) -> list[type[BaseModel]]:
    for name, field in model.model_fields.items():
        if key in (name, field.validation_alias):
            return list(_models_in(field.annotation))
    return []


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (tuple, dict, Annotated, Union, types.UnionType):
        for inner in get_args(annotation):
            yield from _models_in(inner)


def _order(problem: Problem) -> tuple[int, int]:
    path = problem[0]
    parts = _file_keys(Scenario)
    part = parts.index(path[0]) if path and path[0] in parts else len(parts)
    return part, path[1] if len(path) > 1 and isinstance(path[1], int) else 0


def _conflicts_beside_errors(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the conflicts of parts that have other errors too: pydantic stops before these."""
    for index, level in enumerate(_list(raw.get("levels"))):
        if isinstance(level, Mapping) and set(LOADS) & level.keys():
            given = {key: level[key] for key in level if key in Level.model_fields}
            if conflicts := list(level_conflicts(given)):
                yield ("levels", index), "; ".join(conflicts)
    yield from _of_prompts(raw.get("prompts"), ("prompts",))
    mix = _list(raw.get("mix"))
    for index, part in enumerate(mix):
        if isinstance(part, Mapping):
            yield from _of_prompts(part.get("prompts"), ("mix", index, "prompts"))
    names = [str(part.get("name")) for part in mix if isinstance(part, Mapping)]
    given = {"prompts": raw.get("prompts"), "mix": None if raw.get("mix") is None else names or mix}
    yield from _placed(what_is_sent_conflicts(given), ())


def _of_prompts(prompts: object, path: Path) -> Iterator[Problem]:
    if isinstance(prompts, Mapping):
        given = {key: prompts[key] for key in prompts if key in Prompts.model_fields}
        yield from _placed(prompt_conflicts(given), path)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
