"""What is wrong with a scenario, one line for each problem: where, what, what to write instead."""

import difflib
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from loadgen.scenario.model import Level, Scenario, level_conflicts
from loadgen.scenario.settings import Path

Problem = tuple[Path, str]

_MISSING = {
    "target": "is missing; say which server, like {url: http://localhost:8000}",
    "url": "is missing; write the server's address, like http://localhost:8000",
    "prompts": "is missing; say what is sent, like {input_tokens: 512, output_tokens: 128}",
    "levels": "is missing; say which load, like [{concurrency: 1}, {concurrency: 8}]",
    "input_tokens": "is missing; write a number of tokens, like 512",
    "output_tokens": "is missing; write a number of tokens, like 128",
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
    found = [_problem(item) for item in error.errors(include_url=False, include_input=False)]
    if raw.get("levels"):  # entries that failed do not count as entries: not the user's mistake
        found = [problem for problem in found if problem != (("levels",), _NO_LEVELS)]
    return sorted(dict.fromkeys([*found, *_conflicts_beside_errors(raw)]), key=_order)


def misnamed_keys(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield keys that are the program's names (``idle_s``) in place of the file's (``idle``)."""
    for part, model in _parts(Scenario):
        entries = raw.get(part)
        if not isinstance(entries, Mapping):
            continue
        for name, field in model.model_fields.items():
            if field.validation_alias and name in entries:
                yield (part, name), f"unknown key; did you mean '{field.validation_alias}'?"


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
    elif get_origin(annotation) in (tuple, Annotated, Union, types.UnionType):
        for inner in get_args(annotation):
            yield from _models_in(inner)


def _parts(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name in model.model_fields:
        for part in _models_of(model, name):
            yield name, part


def _order(problem: Problem) -> tuple[int, int]:
    path = problem[0]
    parts = list(Scenario.model_fields)
    part = parts.index(path[0]) if path and path[0] in parts else len(parts)
    return part, path[1] if len(path) > 1 and isinstance(path[1], int) else 0


def _conflicts_beside_errors(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the conflicts of levels that have other errors too: pydantic stops before these."""
    levels = raw.get("levels")
    for index, level in enumerate(levels if isinstance(levels, list) else []):
        if isinstance(level, Mapping) and {"concurrency", "rate"} & level.keys():
            given = {key for key in level if key in Level.model_fields and level[key] is not None}
            if conflicts := level_conflicts(given):
                yield ("levels", index), "; ".join(conflicts)
