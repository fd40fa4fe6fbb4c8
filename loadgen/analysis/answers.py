"""What an answer's text says of its quality: whether it fits an expectation, and whether it broke.

Pure functions of one text; what they return may be stored: it quotes nothing of the text.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import regex

from loadgen.scenario.expect import Expectation

GARBLED, LOOPING, BLANK = "garbled", "looping", "blank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether an answer passed, and in a few words why not."""

    passed: bool
    detail: str = ""


_SEARCH_S = 0.05
_TOOK_TOO_LONG = Judgement(passed=False, detail="the pattern takes too long to search for")


def judge(text: str, expect: Expectation) -> Judgement:
    """Hold an answer against what it must be."""
    return _RULES[expect.kind](text, expect)


def exact(text: str, expect: Expectation) -> Judgement:
    """The whole answer is the wanted text, blanks at its ends apart."""
    return _said(text.strip() == expect.wanted.strip(), "another text")


def contains(text: str, expect: Expectation) -> Judgement:
    """Every wanted text stands somewhere in the answer, in any case of letters."""
    folded = text.casefold()
    missing = sum(wanted.casefold() not in folded for wanted in expect.wanted)
    return _said(not missing, f"{missing} of {len(expect.wanted)} wanted texts are missing")


def matches(text: str, expect: Expectation) -> Judgement:
    """The pattern is found somewhere in the answer, within 50 ms."""
    try:
        return _said(is_found(expect.wanted, text), "the pattern is not found")
    except TimeoutError:
        return _TOOK_TOO_LONG


def is_found(pattern: str, text: str) -> bool:
    """Search a text; TimeoutError after 50 ms: answers are judged while others are stamped."""
    return regex.search(pattern, text, timeout=_SEARCH_S) is not None


def choice(text: str, expect: Expectation) -> Judgement:
    """The last option that stands alone in the answer is the wanted one."""
    spots = {option: _last_alone(text, option) for option in expect.options}
    chosen = max(spots, key=lambda option: (spots[option], len(option)))
    if spots[chosen] < 0:
        return Judgement(passed=False, detail="no option is named")
    return _said(chosen == expect.wanted, f"chose {chosen}")


def number(text: str, expect: Expectation) -> Judgement:
    """The last number in the answer is the wanted one, within the tolerance.

    Commas between groups of three digits are read over; "−" is a minus sign.
    """
    found = _NUMBER.findall(text)
    if not found:
        return Judgement(passed=False, detail="no number")
    off = float(found[-1].replace(",", "").replace("−", "-")) - expect.wanted
    slack = max(expect.tolerance, 1e-9 * abs(expect.wanted))
    return _said(abs(off) <= slack, f"off by {off:+.4g}")


def json_schema(text: str, expect: Expectation) -> Judgement:
    """The answer, a code fence around it apart, is JSON that fits the schema."""
    fenced = _FENCE.fullmatch(text.strip())
    try:
        value = orjson.loads(fenced[1] if fenced else text)
    except orjson.JSONDecodeError:
        return Judgement(passed=False, detail="not JSON")
    try:
        problem = schema_problem(value, expect.wanted)
    except TimeoutError:
        return _TOOK_TOO_LONG
    return _said(problem is None, problem or "")


def schema_problem(value: object, schema: Any, path: str = "$") -> str | None:  # noqa: ANN401
    """Return the first place where a value does not fit a schema; None where it does.

    The keywords are those of ``scenario.expect.SCHEMA_KEYS``. A path names keys of the schema and
    places in lists, never a key that only the value has.
    """
    if isinstance(schema, bool):
        return None if schema else f"{path}: not allowed"
    for keyword, wanted in schema.items():
        rule = _SCHEMA_RULES.get(keyword)
        if rule is not None and not rule(value, wanted):
            return f"{path}: {keyword}"
    for keyword, enough in _JOINED.items():
        if keyword in schema:
            each = [schema_problem(value, one) is None for one in schema[keyword]]
            if not enough(each):
                return f"{path}: {keyword}"
    if "not" in schema and schema_problem(value, schema["not"]) is None:
        return f"{path}: not"
    return _inner_problem(value, schema, path)


def defects(text: str) -> list[str]:
    """Name what is broken in an answer, whatever was asked: garbled, looping, blank.

    blank: nothing but white space. For the others see ``is_garbled`` and ``is_looping``.
    """
    if not text:
        return []
    if text.isspace():
        return [BLANK]
    return [word for word, broken in ((GARBLED, is_garbled), (LOOPING, is_looping)) if broken(text)]


BAD_CHARACTERS = 0.02
LEAST_WORDS, VOWELLESS = 8, 0.3


def is_garbled(text: str) -> bool:
    """Say whether a text is noise rather than language.

    More than 2 % of its characters are replacement, control, private-use or unassigned ones; or it
    has 8 plain lower-case words of 4 letters and more, and over 30 % of these have no vowel.
    """
    if not text.isascii():
        bad = sum(unicodedata.category(one) in _NO_LANGUAGE and one not in "\t\n\r" for one in text)
        bad += text.count("\ufffd")
        if bad > BAD_CHARACTERS * len(text):
            return True
    words = len(_PLAIN_WORD.findall(text))
    return words >= LEAST_WORDS and len(_VOWELLESS_WORD.findall(text)) > VOWELLESS * words


LOOP_LENGTH = 160
LOOP_TIMES = 4
_LONGEST_LOOP = 2048
_SIGN = 16


def is_looping(text: str) -> bool:
    """Say whether a text ends in one piece over and over: 160 characters of it, 4 times at least.

    The end is compared with itself moved by each distance at which its last 16 characters came
    before; the nearest such place is where the loop, if it is one, came round.
    """
    tail = text.rstrip()[-_LONGEST_LOOP:]
    at = tail.rfind(tail[-_SIGN:], 0, len(tail) - 1) if len(tail) >= LOOP_LENGTH else -1
    if at < 0:
        return False
    period = len(tail) - _SIGN - at
    loop = tail[-max(LOOP_LENGTH, LOOP_TIMES * period) :]
    return len(loop) >= LOOP_TIMES * period and loop[period:] == loop[:-period]


_NO_LANGUAGE = frozenset({"Cc", "Co", "Cn", "Cs"})
_PLAIN_WORD = re.compile(r"\b[a-z]{4,}\b")
_VOWELLESS_WORD = re.compile(r"\b[b-df-hj-np-tv-xz]{4,}\b")
_NUMBER = re.compile(
    r"(?<![\w.])[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?<=\d)(?:[eE][-+]?\d+)?"
)
_FENCE = re.compile(r"```[a-zA-Z]*\s*\n(.*?)\n?```", re.DOTALL)


def _said(passed: bool, otherwise: str) -> Judgement:
    return Judgement(passed=passed, detail="" if passed else otherwise)


def _last_alone(text: str, option: str) -> int:
    """Return where an option last stands by itself, no letter or digit beside it; -1 for never."""
    found = list(re.finditer(rf"(?<!\w){re.escape(option)}(?!\w)", text))
    return found[-1].start() if found else -1


def _inner_problem(value: object, schema: Mapping[str, Any], path: str) -> str | None:
    if isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            if problem := schema_problem(item, schema["items"], f"{path}[{index}]"):
                return problem
    if not isinstance(value, dict):
        return None
    properties = schema.get("properties", {})
    for key, inner in properties.items():
        if key in value and (problem := schema_problem(value[key], inner, f"{path}.{key}")):
            return problem
    others = schema.get("additionalProperties", True)
    if others is not True:
        for key in value.keys() - properties.keys():
            if problem := schema_problem(value[key], others, f"{path}.*"):
                return problem
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_type(value: object, wanted: Any) -> bool:  # noqa: ANN401 - a name or a list of names
    return any(_TYPES[name](value) for name in ([wanted] if isinstance(wanted, str) else wanted))


def _equal(value: object, other: object) -> bool:
    """Compare as JSON does: true is not 1, nor is it inside of lists and objects."""
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_equal, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(
            _equal(one, other[key]) for key, one in value.items()
        )
    return isinstance(value, bool) == isinstance(other, bool) and value == other


_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "integer": lambda value: _is_number(value) and float(value).is_integer(),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_SCHEMA_RULES: Mapping[str, Callable[[Any, Any], bool]] = {
    "type": _is_type,
    "enum": lambda value, wanted: any(_equal(value, one) for one in wanted),
    "const": _equal,
    "required": lambda value, wanted: (
        not isinstance(value, dict) or all(key in value for key in wanted)
    ),
    "minItems": lambda value, wanted: not isinstance(value, list) or len(value) >= wanted,
    "maxItems": lambda value, wanted: not isinstance(value, list) or len(value) <= wanted,
    "minimum": lambda value, wanted: not _is_number(value) or value >= wanted,
    "maximum": lambda value, wanted: not _is_number(value) or value <= wanted,
    "exclusiveMinimum": lambda value, wanted: not _is_number(value) or value > wanted,
    "exclusiveMaximum": lambda value, wanted: not _is_number(value) or value < wanted,
    "minLength": lambda value, wanted: not isinstance(value, str) or len(value) >= wanted,
    "maxLength": lambda value, wanted: not isinstance(value, str) or len(value) <= wanted,
    "pattern": lambda value, wanted: not isinstance(value, str) or is_found(wanted, value),
}
_JOINED: Mapping[str, Callable[[list[bool]], bool]] = {
    "allOf": all,
    "anyOf": any,
    "oneOf": lambda each: sum(each) == 1,
}
_RULES: Mapping[str, Callable[[str, Expectation], Judgement]] = {
    "exact": exact,
    "contains": contains,
    "regex": matches,
    "choice": choice,
    "number": number,
    "json_schema": json_schema,
}
