"""What the answer to a question of a golden set must be: one expectation, read and checked.

A golden file writes it as a mapping with one of the kinds as its key:

    {"exact": "Paris"}                              the whole answer, blanks at its ends apart
    {"contains": "Paris"}, {"contains": ["a", "b"]} all of these, in any case of letters
    {"regex": "^\\\\d{4}$"}                           found somewhere in the answer
    {"choice": "B", "of": ["A", "B", "C", "D"]}     the last option that stands alone in it
    {"number": 42, "tolerance": 0.5}                the last number in it
    {"json_schema": {"type": "object", ...}}        JSON that fits (a subset, see SCHEMA_KEYS)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ValueError(f"expect.{path}: must be a mapping, like {{'type': 'object'}}")
    for key in schema:
        if key not in SCHEMA_KEYS | _NOTES:
            known = ", ".join(sorted(SCHEMA_KEYS))
            raise ValueError(f"expect.{path}.{key}: is not tested here; known are {known}")
    types = schema.get("type", ())
    for name in [types] if isinstance(types, str) else types:
        if name not in SCHEMA_TYPES:
            raise ValueError(f"expect.{path}.type: must be one of {', '.join(SCHEMA_TYPES)}")
    if "pattern" in schema:
        _check_pattern(schema["pattern"], f"{path}.pattern")
    for inner, where in _inner_schemas(schema):
        check_schema(inner, f"{path}.{where}")


def _inner_schemas(schema: Mapping[str, Any]) -> list[tuple[object, str]]:
    found = [(schema[key], key) for key in ("additionalProperties", "items", "not")
             if key in schema]  # fmt: skip
    for key in ("anyOf", "allOf", "oneOf"):
        found += [(one, f"{key}[{i}]") for i, one in enumerate(schema.get(key, ()))]
    properties = schema.get("properties", {})
    if not isinstance(properties, Mapping):
        raise ValueError("expect.json_schema: properties must be a mapping of schemas")
    return found + [(one, f"properties.{key}") for key, one in properties.items()]


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
    for key, value in (("number", wanted), ("tolerance", tolerance)):
        finite = isinstance(value, int | float) and not isinstance(value, bool)
        if not finite or value - value != 0:  # type: ignore[operator]
            raise ValueError(f"expect.{key}: must be a number")
    if tolerance < 0:  # type: ignore[operator]
        raise ValueError("expect.tolerance: must be 0 or more")
    return Expectation(kind="number", wanted=wanted, tolerance=float(tolerance))  # type: ignore[arg-type]


def _check_pattern(pattern: object, path: str) -> None:
    if not isinstance(pattern, str) or not pattern:
        raise ValueError(f"expect.{path}: must be a text")
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"expect.{path}: is no regular expression: {error}") from None
