"""Expectations of a golden set: all that is wrong with one is told when it is read, never later."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.answers import judge, schema_problem
from loadgen.cli.main import main
from loadgen.scenario.expect import DEEPEST, SCHEMA_KEYS, parse_expectation

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
PLAIN |= st.sampled_from(["object", "name", "^a", "(", "[[a]", "a{99999999999999999999}", 10**400])
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
SCHEMAS = st.recursive(
    st.booleans() | VALUES,
    lambda inner: st.dictionaries(
        st.sampled_from(sorted(SCHEMA_KEYS)),
        inner | st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
        max_size=3,
    ),
    max_leaves=12,
)
"""Mostly wrong: a keyword's value is anything at all."""

GOOD: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(["object", "array", "string", "number", "integer"]),
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "const": VALUES,
    "required": st.lists(st.sampled_from("ab"), max_size=2),
    "minItems": st.integers(0, 3),
    "maxLength": st.sampled_from([0, 2, 3.0]),
    "minimum": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    "exclusiveMaximum": st.integers(),
    "pattern": st.sampled_from(["^a", "b+$", "\\d"]),
}
FITTING = st.recursive(
    st.fixed_dictionaries({}, optional=GOOD) | st.booleans(),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner),
            "additionalProperties": inner,
            "items": inner,
            "not": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=8,
)
"""Right ones, of every kind of keyword."""

ANSWERS = st.text() | st.recursive(
    PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("ab"), inner)
).map(json.dumps)
KINDS = st.sampled_from(["exact", "contains", "regex", "choice", "number", "json_schema"])
BESIDE = st.fixed_dictionaries({}, optional={"of": VALUES, "tolerance": VALUES})


def judged(raw: object, answer: str) -> None:
    """Either the expectation is refused when it is read, or any answer can be held against it."""
    try:
        expect = parse_expectation(raw)
    except ValueError:
        return
    assert judge(answer, expect).passed in (True, False)


@given(kind=KINDS, wanted=VALUES, beside=BESIDE, answer=ANSWERS)
def test_what_is_let_through_judges_any_answer(
    kind: str, wanted: object, beside: dict[str, object], answer: str
) -> None:
    judged({kind: wanted} | beside, answer)
    judged({kind: wanted}, answer)


@given(schema=SCHEMAS, answer=ANSWERS)
def test_any_schema_is_refused_or_judges_any_answer(schema: object, answer: str) -> None:
    judged({"json_schema": schema}, answer)


@given(schema=FITTING, answer=ANSWERS)
def test_a_right_schema_is_let_through_and_judges_any_answer(schema: object, answer: str) -> None:
    assert judge(answer, parse_expectation({"json_schema": schema})).passed in (True, False)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": 5}, "type: must be one of object, array"),
        ({"type": []}, "type: must be one of object, array"),
        ({"anyOf": 5}, "anyOf: must be a list of schemas"),
        ({"oneOf": []}, "oneOf: must be a list of schemas"),
        ({"allOf": {"type": "string"}}, "allOf: must be a list of schemas"),
        ({"anyOf": [True, 5]}, "anyOf[1]: must be a schema"),
        ({"enum": 5}, "enum: must be a list of values"),
        ({"enum": "abc"}, "enum: must be a list of values"),
        ({"required": 5}, "required: must be a list of names"),
        ({"required": "name"}, "required: must be a list of names"),
        ({"required": [1]}, "required: must be a list of names"),
        ({"minItems": "3"}, "minItems: must be a whole number of 0 or more"),
        ({"maxItems": -1}, "maxItems: must be a whole number of 0 or more"),
        ({"minLength": 1.5}, "minLength: must be a whole number of 0 or more"),
        ({"minimum": "3"}, "minimum: must be a number"),
        ({"exclusiveMaximum": True}, "exclusiveMaximum: must be a number"),
        ({"properties": [1]}, "properties: must be a mapping of names to schemas"),
        ({"properties": {"a": None}}, "properties.a: must be a schema"),
        ({"additionalProperties": "no"}, "additionalProperties: must be a schema"),
        ({"items": [{"type": "string"}]}, "items: must be a schema"),
        ({"items": {"pattern": "("}}, "items.pattern: is no regular expression"),
        ({"pattern": "a{99999999999999999999}"}, "pattern: is no regular expression"),
    ],
    ids=str,
)
def test_a_keyword_of_the_wrong_type_is_named_with_its_place(schema: object, named: str) -> None:
    with pytest.raises(ValueError, match=r"must be|is no regular") as refused:
        parse_expectation({"json_schema": schema})
    assert str(refused.value).startswith(f"expect.json_schema.{named}")


def test_every_keyword_but_const_refuses_some_value() -> None:
    """One that took anything could not have been checked."""
    for key in SCHEMA_KEYS - {"const"}:
        with pytest.raises(ValueError, match=f"json_schema.{key}"):
            parse_expectation({"json_schema": {key: None}})


@pytest.mark.parametrize(
    "grown",
    [
        lambda inner: {"items": inner},
        lambda inner: {"not": inner},
        lambda inner: {"const": [inner]},
    ],
    ids=["items", "not", "const"],
)
def test_a_schema_that_nests_too_deeply_is_refused(grown: Any) -> None:
    schema: object = {"type": "string"}
    for _ in range(DEEPEST // 2 - 1):
        schema = grown(schema)
    deep = "[" * 900 + "]" * 900
    assert judge(deep, parse_expectation({"json_schema": schema})).passed in (True, False)
    for _ in range(2000):
        schema = grown(schema)
    with pytest.raises(ValueError, match="nests deeper than"):
        parse_expectation({"json_schema": schema})


@pytest.mark.parametrize(
    ("value", "other", "same"),
    [
        ([1], [True], False),
        ({"a": [0]}, {"a": [False]}, False),
        ([1, [True]], [1.0, [True]], True),
        ({"a": 1, "b": None}, {"b": None, "a": 1}, True),
        ([1], [1, 1], False),
        ({"a": 1}, [1], False),
    ],
    ids=str,
)
def test_truth_is_no_number_anywhere_inside(value: object, other: object, same: bool) -> None:
    assert (schema_problem(value, {"const": other}) is None) is same
    assert (schema_problem(value, {"enum": [other]}) is None) is same


@pytest.mark.parametrize(
    ("expect", "named"),
    [
        ({"number": 10**400}, "expect.number: must be a number"),
        ({"number": "42"}, "expect.number: must be a number"),
        ({"number": 1, "tolerance": "0.5"}, "expect.tolerance: must be a number"),
        ({"number": 1, "tolerance": None}, "expect.tolerance: must be a number"),
        ({"number": 1, "tolerance": 10**400}, "expect.tolerance: must be a number"),
        ({"regex": "(" * 2000 + ")" * 2000}, "expect.regex: is no regular expression"),
        ({"regex": "[z-a]"}, "expect.regex: is no regular expression"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_other_kinds_are_checked_as_well(expect: object, named: str) -> None:
    with pytest.raises(ValueError, match="expect") as refused:
        parse_expectation(expect)
    assert str(refused.value).startswith(named)


@pytest.mark.parametrize("schema", [{"type": 5}, {"enum": 5}, {"anyOf": 5}, {"required": "name"}])
def test_a_plan_names_the_file_and_line_of_a_wrong_schema(schema: object, tmp_path: Path) -> None:
    rows = [{"prompt": "x", "expect": {"exact": "a"}},
            {"prompt": "y", "expect": {"json_schema": schema}}]  # fmt: skip
    path = tmp_path / "golden.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = tmp_path / "made.yaml"
    made.write_text(
        "target: {url: http://127.0.0.1:1, model: m}\n"
        "prompts: {input_tokens: 8, output_tokens: 4}\n"
        "levels: [{concurrency: 1}]\n"
        "quality: {set: golden.jsonl, share: 5%}\n"
    )
    done = CliRunner().invoke(main, ["plan", str(made)])
    assert done.exit_code == 2, done.output
    assert f"{path}: line 2: expect.json_schema.{next(iter(schema))}: must be" in done.output
    assert "Traceback" not in done.output


ENDLESS = "(a|a)*$b?(?<!a)"
"""Tries both halves of each a anew: 2^n ways through n of them."""


@pytest.mark.parametrize(
    ("expect", "answer"),
    [
        ({"regex": ENDLESS}, "a" * 60 + "b!"),
        ({"json_schema": {"items": {"pattern": ENDLESS}}}, '["' + "a" * 60 + 'b!"]'),
        ({"json_schema": {"not": {"pattern": ENDLESS}}}, '"' + "a" * 60 + 'b!"'),
    ],
    ids=["regex", "schema", "schema not"],
)
def test_a_pattern_without_end_fails_the_answer_and_holds_nothing_up(
    expect: dict[str, Any], answer: str
) -> None:
    began = time.perf_counter()
    found = judge(answer, parse_expectation(expect))
    assert time.perf_counter() - began < 2
    assert (found.passed, found.detail) == (False, "the pattern takes too long to search for")
