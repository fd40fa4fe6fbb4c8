"""What the answer to a question of a golden set must be: one expectation, read and checked.

A golden file writes it as a mapping with one of the kinds as its key:

    {"exact": "Paris"}                              the whole answer, blanks at its ends apart
    {"contains": "Paris"}, {"contains": ["a", "b"]} all of these, in any case of letters
    {"regex": "^\\\\d{4}$"}                           found somewhere in the answer
    {"choice": "B", "of": ["A", "B", "C", "D"]}     the last option that stands alone in it
    {"number": 42, "tolerance": 0.5}                the last number in it
    {"json_schema": {"type": "object", ...}}        JSON that fits (a subset, see SCHEMA_KEYS)
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import regex

KINDS = ("exact", "contains", "regex", "choice", "number", "json_schema")
_BESIDE = {"choice": ("of",), "number": ("tolerance",)}

SCHEMA_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
SCHEMA_KEYS = frozenset(
    {
        "type", "enum", "const", "properties", "required", "additionalProperties", "items",
        "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        "minLength", "maxLength", "pattern", "anyOf", "allOf", "oneOf", "not",
    }
)  # fmt: skip
"""The keywords of JSON Schema that are tested; any other is refused, never passed over."""

_NOTES = frozenset({"$schema", "$id", "title", "description", "default", "examples"})

DEEPEST = 64
"""Levels of lists and mappings in one another: no schema of use needs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """kind: one of KINDS; wanted: as its kind has it; options of a choice; tolerance of a number.

    A wanted ``contains`` is a tuple of texts.
    """

    kind: str
    wanted: Any
    options: tuple[str, ...] = ()
    tolerance: float = 0.0


def parse_expectation(raw: object) -> Expectation:
    """Read one expectation; ValueError says what is wrong and what to write instead."""
    if not isinstance(raw, Mapping):
        raise ValueError('expect must be a mapping, like {"exact": "Paris"}')
    kinds = [kind for kind in KINDS if kind in raw]
    if len(kinds) != 1:
        raise ValueError(f"expect needs exactly one of {', '.join(KINDS)}")
    kind = kinds[0]
    unknown = [str(key) for key in raw if key not in (kind, *_BESIDE.get(kind, ()))]
    if unknown:
        raise ValueError(f"expect.{unknown[0]}: unknown beside {kind}")
    wanted = raw[kind]
    match kind:
        case "contains":
            return Expectation(kind=kind, wanted=_texts(wanted, "contains"))
        case "choice":
            return _choice(wanted, raw.get("of"))
        case "number":
            return _number(wanted, raw.get("tolerance", 0.0))
        case "json_schema":
            check_schema(wanted)
        case "regex":
            _check_pattern(wanted, "regex")
        case _ if not isinstance(wanted, str) or not wanted.strip():
            raise ValueError(f"expect.{kind}: must be a text")
    return Expectation(kind=kind, wanted=wanted)


def check_schema(schema: object, path: str = "json_schema") -> None:
    """Raise ValueError for what is no schema, or says more than is tested here."""
    if _nests_deeper(schema, DEEPEST):
        raise ValueError(f"expect.{path}: nests deeper than {DEEPEST} levels; make it flatter")
    _check_part(schema, path)


def _check_part(schema: object, path: str) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ValueError(f"expect.{path}: must be a schema, like {{'type': 'object'}}")
    for key, wanted in schema.items():
        if key in _NOTES:
            continue
        if key not in SCHEMA_KEYS:
            known = ", ".join(sorted(SCHEMA_KEYS))
            raise ValueError(f"expect.{path}.{key}: is not tested here; known are {known}")
        fits, expected = _WANTED.get(key, _ANYTHING)
        if not fits(wanted):
            raise ValueError(f"expect.{path}.{key}: must be {expected}")
        if key == "pattern":
            _check_pattern(wanted, f"{path}.pattern")
        for inner, where in _inner_schemas(key, wanted):
            _check_part(inner, f"{path}.{where}")


def _inner_schemas(key: str, wanted: Any) -> Iterator[tuple[object, str]]:  # noqa: ANN401
    """Yield the schemas that a keyword holds, each with where it stands."""
    if key in ("additionalProperties", "items", "not"):
        yield wanted, key
    elif key in ("anyOf", "allOf", "oneOf"):
        yield from ((one, f"{key}[{i}]") for i, one in enumerate(wanted))
    elif key == "properties":
        yield from ((one, f"properties.{name}") for name, one in wanted.items())


def _nests_deeper(value: object, levels: int) -> bool:
    """Say whether lists and mappings stand in one another deeper than so many levels.

    Judging goes as deep as the schema does, whatever an answer looks like.
    """
    layer = [value]
    for _ in range(levels):
        inner = [one.values() if isinstance(one, Mapping) else one for one in layer
                 if isinstance(one, Mapping | list)]  # fmt: skip
        layer = [part for one in inner for part in one]
    return any(isinstance(one, Mapping | list) for one in layer)


def _is_number(value: object) -> TypeGuard[float]:
    """Say whether a value is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max


def _is_count(value: object) -> bool:
    return _is_number(value) and value >= 0 and value % 1 == 0


def _is_list(value: object) -> bool:
    return isinstance(value, list) and bool(value)


def _are_types(value: object) -> bool:
    names = value if isinstance(value, list) and value else [value]
    return all(name in SCHEMA_TYPES for name in names)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


Wanted = tuple[Callable[[object], bool], str]
_ANYTHING: Wanted = (lambda _: True, "")
_COUNT: Wanted = (_is_count, "a whole number of 0 or more")
_NUMBER: Wanted = (_is_number, "a number")
_SCHEMAS: Wanted = (_is_list, "a list of schemas, one at least")
_WANTED: Mapping[str, Wanted] = {
    "type": (_are_types, f"one of {', '.join(SCHEMA_TYPES)}, or a list of these"),
    "enum": (_is_list, "a list of values, one at least"),
    "properties": (lambda value: isinstance(value, Mapping), "a mapping of names to schemas"),
    "required": (_are_names, 'a list of names, like ["age"]'),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), _COUNT),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("anyOf", "allOf", "oneOf"), _SCHEMAS),
}
"""What a keyword's value must be, and how that is said. ``const`` may be anything; a pattern and
the schemas inside are checked by themselves."""


def _texts(wanted: object, kind: str) -> tuple[str, ...]:
    listed = wanted if isinstance(wanted, list) else [wanted]
    if not listed or not all(isinstance(text, str) and text for text in listed):
        raise ValueError(f"expect.{kind}: must be a text, or a list of them")
    return tuple(listed)


def _choice(wanted: object, of: object) -> Expectation:
    if of is None:
        raise ValueError('expect.of: is missing; name the options, like ["A", "B", "C", "D"]')
    options = _texts(of, "of")
    if wanted not in options:
        raise ValueError("expect.choice: must be one of the options in 'of'")
    return Expectation(kind="choice", wanted=wanted, options=options)


def _number(wanted: object, tolerance: object) -> Expectation:
    if not _is_number(wanted):
        raise ValueError("expect.number: must be a number")
    if not _is_number(tolerance) or tolerance < 0:
        raise ValueError("expect.tolerance: must be a number of 0 or more")
    return Expectation(kind="number", wanted=wanted, tolerance=float(tolerance))


def _check_pattern(pattern: object, path: str) -> None:
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(f"expect.{path}: must be a text")
    try:
        with warnings.catch_warnings():  # Python warns of what may mean something else one day
            warnings.simplefilter("ignore")
            regex.compile(pattern)
    except (regex.error, OverflowError, RecursionError) as error:  # too often, nested too deeply
        raise ValueError(f"expect.{path}: is no regular expression: {error}") from None
