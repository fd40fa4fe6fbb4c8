"""Quality beside speed: expectations, broken answers, golden sets, and canaries among the load."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from drive import measure, scenario
from make import level, make_run, record
from report_make import view
from serve import Asked, Out, scripted
from sites import sites

from loadgen.analysis.answers import defects, judge, schema_problem
from loadgen.analysis.metrics import summarise
from loadgen.analysis.summary import LevelSummary
from loadgen.client.requests import RequestOptions, fields
from loadgen.engines import by_name
from loadgen.errors import UsageError
from loadgen.report.quality import quality_table
from loadgen.report.view import build_view
from loadgen.report.write import render, summarise_run
from loadgen.scenario.expect import SCHEMA_KEYS, parse_expectation
from loadgen.scenario.model import Scenario
from loadgen.simulator.spec import SimulatorSpec
from loadgen.simulator.words import answer_words
from loadgen.workload.plan import first_prompts, plan_hash
from loadgen.workload.prompts import prompt_source
from loadgen.workload.quality import GoldenSet

pytestmark = pytest.mark.slow  # whole runs: seconds each

SPEAKS = "^([bdfgklmnprstvz][aeiou]){1,2}( ([bdfgklmnprstvz][aeiou]){2})*$"
"""What the simulator's language looks like; its garbled answers have no vowel."""

LETTERS = ["A", "B", "C", "D"]
PERSON = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}


def passes(expect: dict[str, Any], text: str) -> bool:
    return judge(text, parse_expectation(expect)).passed


@pytest.mark.parametrize(
    ("expect", "right", "wrong"),
    [
        ({"exact": "Paris"}, "  Paris\n", "paris"),
        ({"contains": "Paris"}, "It is PARIS.", "It is London."),
        ({"contains": ["red", "blue"]}, "Blue and red", "red alone"),
        ({"regex": r"^\d{4}-\d\d$"}, "2024-03", "in 2024-03"),
        ({"choice": "B", "of": LETTERS}, "A is wrong, so (B).", "B is wrong, so A"),
        ({"choice": "B", "of": LETTERS}, "b? No: B", "ABBA"),
        ({"number": 42}, "6 · 7 = 42.", "42 or 43"),
        ({"number": 1234.5}, "1,234.50 €", "1,234"),
        ({"number": -3}, "x = −3", "3"),
        ({"number": 7}, "pages 3-7", "pages 7-3"),
        ({"number": 28.3, "tolerance": 0.05}, "28.27", "28.2"),
        ({"json_schema": PERSON}, '```json\n{"age": 3}\n```', '{"age": "3"}'),
        ({"json_schema": PERSON}, '{"age": 3.0}', "my age is 3"),
    ],
    ids=["exact", "contains", "contains all", "regex", "choice", "choice alone", "number",
         "thousands", "minus", "no minus", "tolerance", "fenced JSON", "JSON"],
)  # fmt: skip
def test_an_answer_passes_where_it_fits(expect: dict[str, Any], right: str, wrong: str) -> None:
    assert passes(expect, right)
    assert not passes(expect, wrong)
    assert not passes(expect, "")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": ["string", "null"]}, None, 3),
        ({"type": "number"}, 1.5, True),
        ({"enum": [1, "a"]}, "a", True),
        ({"const": [1, 2]}, [1, 2], [2, 1]),
        ({"properties": {"a": {"type": "string"}}}, {"b": 1}, {"a": 1}),
        ({"required": ["a"]}, {"a": None}, {}),
        ({"additionalProperties": False, "properties": {"a": True}}, {"a": 1}, {"b": 1}),
        ({"items": {"type": "integer"}}, [1, 2], [1, "2"]),
        ({"minItems": 2}, [1, 2], [1]),
        ({"maxItems": 1}, [1], [1, 2]),
        ({"minimum": 3}, 3, 2.9),
        ({"maximum": 3}, 3, 3.1),
        ({"exclusiveMinimum": 3}, 3.1, 3),
        ({"exclusiveMaximum": 3}, 2.9, 3),
        ({"minLength": 2}, "ab", "a"),
        ({"maxLength": 1}, "a", "ab"),
        ({"pattern": "^a"}, "ab", "ba"),
        ({"anyOf": [{"type": "string"}, {"minimum": 5}]}, 6, 4),
        ({"allOf": [{"minimum": 1}, {"maximum": 3}]}, 2, 4),
        ({"oneOf": [{"minimum": 1}, {"maximum": 3}]}, 4, 2),
        ({"not": {"type": "string"}}, 1, "a"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) and value else "",
)  # fmt: skip
def test_each_keyword_of_a_schema_is_tested(schema: dict[str, Any], good: Any, bad: Any) -> None:
    assert schema_problem(good, schema) is None
    assert schema_problem(bad, schema) is not None


def test_every_known_keyword_does_something() -> None:
    """A keyword that is let through and tested nowhere would pass everything."""
    told = test_each_keyword_of_a_schema_is_tested.pytestmark[0].args[1]
    assert {key for schema, _, _ in told for key in schema} == SCHEMA_KEYS


@pytest.mark.parametrize(
    ("expect", "named"),
    [
        ("Paris", "must be a mapping"),
        ({}, "exactly one of exact"),
        ({"exact": "a", "regex": "b"}, "exactly one of exact"),
        ({"exact": "a", "of": ["a"]}, "expect.of: unknown beside exact"),
        ({"exact": "  "}, "expect.exact: must be a text"),
        ({"contains": []}, "expect.contains"),
        ({"regex": "("}, "no regular expression"),
        ({"choice": "E", "of": LETTERS}, "one of the options"),
        ({"choice": "A"}, "expect.of: is missing"),
        ({"number": True}, "expect.number: must be a number"),
        ({"number": 1, "tolerance": -1}, "0 or more"),
        ({"json_schema": {"$ref": "#/a"}}, "expect.json_schema.$ref: is not tested here"),
        ({"json_schema": {"items": {"format": "date"}}}, "json_schema.items.format"),
        ({"json_schema": {"type": "text"}}, "must be one of object"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_expectation_is_refused_with_its_place(expect: object, named: str) -> None:
    with pytest.raises(ValueError, match="expect") as refused:
        parse_expectation(expect)
    assert named in str(refused.value)


def words(*, garbled: bool, count: int = 64) -> str:
    word = answer_words(0, 99, choice=0, garbled=garbled)
    return b"".join(word(number) for number in range(count)).decode()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (words(garbled=True), ["garbled"]),
        (words(garbled=False), []),
        ("fine \ufffd\ufffd\ufffd text", ["garbled"]),
        ("Über große Größen läßt sich streiten, naïve façade. " * 2, []),
        ("zkrz čtvrt prst vlk strč krk skrz, a to je celá česká věta s vlkem", []),
        ("!" * 200, ["looping"]),
        ("Well. " + "I do not know what to say. " * 12, ["looping"]),
        ("ha ha ha ha", []),
        (" \n ", ["blank"]),
        ("", []),
        ("for i in range(10):\n    print(i)\n" * 3, []),
    ],
    ids=["garbled", "language", "replaced", "accents", "few vowels", "marks", "sentence",
         "short", "blank", "nothing", "code"],
)  # fmt: skip
def test_broken_answers_are_told_from_language(text: str, found: list[str]) -> None:
    assert defects(text) == found


def golden(directory: Path, *lines: dict[str, Any]) -> Path:
    """A set in a file; of the simulator's language unless told."""
    speaks = {"expect": {"regex": SPEAKS}, "max_tokens": 12}
    rows = lines or [{"id": f"q{i}", "prompt": f"Speak, {i}.", **speaks} for i in range(10)]
    path = directory / "golden.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_problem_of_a_golden_set_is_told_with_its_line(tmp_path: Path) -> None:
    fits = {"expect": {"exact": "a"}}
    lines = [{"prompt": "x"}, {"prompt": " ", **fits}, {"promt": "x", **fits}, {**fits},
             {"id": "n", "prompt": "x", **fits}, {"id": "n", "prompt": "y", **fits},
             {"prompt": "x", "max_tokens": 0, **fits}]  # fmt: skip
    with pytest.raises(UsageError) as refused:
        GoldenSet(golden(tmp_path, *lines), endpoint="chat")
    said = str(refused.value)
    assert [f"line {i}:" in said for i in range(1, 8)] == [i not in (5, 6) for i in range(1, 8)]
    assert "the id 'n' is given twice" in said


def test_a_question_ends_by_itself_whatever_the_loads_answers_are_made_to_do(
    tmp_path: Path,
) -> None:
    line = {"id": "a", "prompt": "x", "expect": {"exact": "a"}, "max_tokens": 99}
    path = golden(tmp_path, line, {**line, "id": "b", "request": {"min_tokens": 2}})
    forced = RequestOptions(fixed_output=True, extra={"ignore_eos": True, "min_tokens": 50})
    sent = [
        fields(question.prompt(), model="m", engine=by_name("vllm"), options=forced)
        for question in map(GoldenSet(path, endpoint="chat").question, range(2))
    ]
    assert [body["max_tokens"] for body in sent] == [99, 99]
    assert all("ignore_eos" not in body for body in sent)
    assert [body.get("min_tokens") for body in sent] == [None, 2]


def test_messages_need_the_chat_endpoint(tmp_path: Path) -> None:
    line = {"messages": [{"role": "user", "content": "x"}], "expect": {"exact": "a"}}
    path = golden(tmp_path, line)
    assert GoldenSet(path, endpoint="chat").question(0).messages == tuple(line["messages"])
    with pytest.raises(UsageError, match=r"target\.endpoint: chat"):
        GoldenSet(path, endpoint="completions")


def test_the_shipped_set_has_each_kind_of_expectation() -> None:
    path = Path(__file__).parents[1] / "scenarios" / "golden-example.jsonl"
    shipped = GoldenSet(path, endpoint="chat")
    kinds = shipped.facts()["kinds"]
    assert set(kinds) == {"exact", "contains", "regex", "choice", "number", "json_schema"}
    questions = map(shipped.question, range(len(shipped)))
    assert {question.max_tokens for question in questions} == {1024}, "room to think first"


def asking(directory: Path, **parts: Any) -> Scenario:
    """A scenario with canaries among its load; 5 % unless told."""
    quality = {"set": str(golden(directory)), "share": "5%"}
    return scenario("http://127.0.0.1:1", **{"quality": quality, **parts})


def test_canaries_stand_evenly_among_the_load_and_leave_no_prompt_out(tmp_path: Path) -> None:
    made, plain = asking(tmp_path), scenario("http://127.0.0.1:1")
    source, other = (prompt_source(one, nonce="fixed") for one in (made, plain))
    sent = [source.prompt(level=0, round_=0, number=n) for n in range(200)]
    places = [n for n, prompt in enumerate(sent) if prompt.canary]
    assert places == list(range(9, 200, 20))
    assert sorted(sent[n].canary.id for n in places) == sorted(f"q{i}" for i in range(10))
    own = [prompt.hash for prompt in sent if not prompt.canary]
    assert own == [other.prompt(level=0, round_=0, number=n).hash for n in range(190)]


def test_rounds_ask_in_another_order_and_levels_in_the_same(tmp_path: Path) -> None:
    source = prompt_source(asking(tmp_path), nonce="fixed")

    def order(level: int, round_: int) -> list[str]:
        sent = (source.prompt(level=level, round_=round_, number=n) for n in range(200))
        return [prompt.canary.id for prompt in sent if prompt.canary]

    assert order(0, 0) == order(1, 0) != order(0, 1)


def test_a_plan_shows_and_hashes_the_questions(tmp_path: Path) -> None:
    made = asking(tmp_path)
    assert plan_hash(made) != plan_hash(scenario("http://127.0.0.1:1"))
    told = [prompt.text for prompt in first_prompts(made, number=12)]
    assert sum("of the golden set" in text for text in told) == 1


def judged(number: int, passed: bool | None, *, of: int = 3, **facts: object) -> Any:
    told = {"id": f"q{number % of}"} | ({} if passed is None else {"passed": passed})
    return record(number, sent=100.0 * number, canary=told, **facts)


def only(records: list[Any], **facts: object) -> LevelSummary:
    (found,) = summarise(make_run(records, [level(window=(0, 60_000))], **facts)).levels
    return found


def test_canaries_count_in_the_load_and_not_in_its_times() -> None:
    own = [record(n, sent=100.0 * n, at=[50, 60]) for n in range(10)]
    asked = [judged(n, n != 10, at=[900, 950], prompt_hash="x") for n in range(10, 14)]
    found = only([*own, *asked])
    assert (found.arrivals, found.outcomes, found.ttft.n, found.ttft.max) == (
        14,
        {"ok": 14},
        10,
        50,
    )
    assert found.itl.n == 10
    assert found.output_tokens_per_s == pytest.approx(28 / 60)
    assert found.repeated_prompts is None
    assert found.quality.questions == 4


def test_accuracy_has_wilsons_interval_and_names_what_failed() -> None:
    asked = [judged(n, n >= 2, of=10, at=[50]) for n in range(10)]
    unanswered = [judged(10, None, of=11, outcome="broken", error_class="connection_reset")]
    found = only([*asked, *unanswered]).quality
    assert (found.questions, found.answered, found.passed, found.accuracy) == (11, 10, 8, 0.8)
    assert (found.low, found.high) == (pytest.approx(0.490, abs=1e-3), pytest.approx(0.943, 1e-3))
    assert found.failing == {"q0": 1, "q1": 1}
    assert found.by_question == {f"q{n}": (int(n >= 2), 1) for n in range(10)}


def test_a_question_that_is_asked_again_makes_an_accuracy_no_surer() -> None:
    once = only([judged(n, n >= 2, of=10, at=[50]) for n in range(10)]).quality
    often = only([judged(n, n % 10 >= 2, of=10, at=[50]) for n in range(300)]).quality
    assert (often.accuracy, often.low, often.high) == (once.accuracy, once.low, once.high)
    assert (often.answered, often.by_question["q0"]) == (300, (0, 30))


def unheard(number: int, *, passed: bool = False, **facts: object) -> Any:
    """A question whose answer was reasoning alone, until it was cut."""
    told = {"at": [50], "first_output_ns": None, "finish_reasons": ["length"], **facts}
    return judged(number, passed, of=40, **told)


def test_questions_that_failed_for_want_of_room_are_counted_and_warned_of() -> None:
    thinking = [unheard(n) for n in range(5)]
    rambling = [unheard(n, first_output_ms=50) for n in range(5, 12)]
    known = [unheard(n, passed=True, first_output_ms=50) for n in range(12, 20)]
    wrong = [judged(n, False, of=40, at=[50]) for n in range(20, 23)]
    broken = [unheard(n, first_output_ms=50, flags=["looping"]) for n in range(23, 25)]
    right = [judged(n, True, of=40, at=[50]) for n in range(25, 40)]
    load = [record(n, sent=100.0 * n, at=[50], finish_reasons=["length"]) for n in range(40, 60)]
    found = only([*thinking, *rambling, *known, *wrong, *broken, *right, *load])
    assert (found.quality.unseen, found.quality.cut) == (5, 12)
    (check,) = [one for one in found.checks if one.name.startswith("questions failed")]
    assert (check.verdict, check.value) == ("warn", 12 / 40)
    assert "max_tokens" in check.text
    assert "enable_thinking" in check.text
    labels = [column.label for column in quality_table([found]).columns]
    assert {"unseen", "cut"} <= set(labels)
    assert quality_table([found]).rows[0][labels.index("cut")].text == "12"


def test_without_questions_or_want_of_room_nothing_is_said_of_it() -> None:
    plain = only([record(n, sent=100.0 * n, at=[50]) for n in range(20)])
    fine = only([judged(n, n > 0, at=[50]) for n in range(20)])
    verdicts = [{one.name: one.verdict for one in found.checks} for found in (plain, fine)]
    assert "questions failed unseen or cut" not in verdicts[0]
    assert verdicts[1]["questions failed unseen or cut"] == "pass"
    assert "unseen" not in [column.label for column in quality_table([fine]).columns]


def test_broken_outputs_are_counted_on_all_requests_each_once() -> None:
    flags = [["garbled"], ["looping", "garbled"], ["blank"], ["empty"], []]
    broken = [record(n, sent=100.0 * n, at=[50], flags=one) for n, one in enumerate(flags)]
    cut = record(5, sent=500, at=[50], outcome="truncated", error_class="truncated")
    found = only([*broken, cut]).quality
    assert (found.outputs, found.broken) == (6, 5)
    assert (found.garbled, found.empty, found.looping, found.truncated) == (2, 2, 1, 1)


def test_a_level_without_questions_or_broken_answers_has_no_table() -> None:
    whole = only([record(0, at=[50])])
    assert quality_table([whole]).rows == ()
    broken = only([record(0, at=[50], flags=["garbled"])])
    table = quality_table([whole, broken])
    place = [column.label for column in table.columns].index("broken")
    assert table.rows[1][place].text == "100 % (1)"
    assert view().quality.rows == ()


@pytest.fixture(scope="module")
def garbling() -> Iterator[str]:
    with sites() as start:
        yield start(SimulatorSpec(garble=0.25, seed=3))


def test_a_run_asks_among_the_load_and_stores_no_answer(garbling: str, tmp_path: Path) -> None:
    quality = {"set": str(golden(tmp_path)), "share": "20%"}
    out = tmp_path / "run"
    manifest, rows = measure(garbling, out, quality=quality, each_level={"measure": "60 requests"})
    asked = [row["canary"] for row in rows if "canary" in row]
    assert (manifest["scenario"]["quality"], len(asked)) == (quality, 12)
    assert all(set(one) <= {"id", "passed", "detail"} for one in asked)
    assert {one["passed"] for one in asked} == {True, False}
    (found,) = summarise_run(out).levels
    assert 0 < found.quality.accuracy < 1
    assert found.ttft.n == 60 - 12 + sum(
        row["phase"] == "warmup" for row in rows if "canary" in row
    )
    assert manifest["prompts"]["golden"]["questions"] == 10


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_pass_asks_each_question_once_after_the_level(
    garbling: str, tmp_path: Path, workers: int
) -> None:
    quality = {"set": str(golden(tmp_path)), "pass": True}
    out = tmp_path / "run"
    levels = [{"concurrency": 2}, {"rate": 200, "arrivals": "constant"}]
    manifest, rows = measure(garbling, out, quality=quality, levels=levels, workers=workers)
    told = [(row["level"], row["canary"]["id"]) for row in rows if "canary" in row]
    assert sorted(told) == [(n, f"q{i}") for n in (0, 1) for i in range(10)]
    assert len({row["id"] for row in rows}) == len(rows)
    assert [entry["arrivals"] for entry in manifest["quality_passes"]] == [10, 10]
    for found in summarise_run(out).levels:
        assert (found.arrivals, found.quality.answered, found.ttft.n) == (8, 10, 8)
        lost = {check.name: check.value for check in found.checks}["arrivals without a record"]
        assert lost == 0


def test_every_report_shows_quality(garbling: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    measure(garbling, out, quality={"set": str(golden(tmp_path)), "share": "50%"})
    for form in ("terminal", "markdown", "html"):
        assert "Quality of the answers" in render(out, form)
    assert json.loads(render(out, "json"))["levels"][0]["quality"]["questions"] == 4


@pytest.mark.slow
def test_a_replayed_log_is_asked_in_a_pass_and_never_shifted(garbling: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"timestamp": 300 * n, "input_length": 20, "output_length": 4} for n in range(8)]
    log.write_text(
        "".join(json.dumps(row | {"hash_ids": [row["timestamp"]]}) + "\n" for row in rows)
    )
    parts = {"prompts": {"source": "replay", "file": str(log)}, "levels": [{"speed": 4}]}
    quality = {"set": str(golden(tmp_path))}
    with pytest.raises(ValueError, match="shift a log's requests"):
        scenario(garbling, **parts, quality={**quality, "share": 0.1}, each_level={})
    out = tmp_path / "run"
    measure(garbling, out, **parts, quality={**quality, "pass": True}, each_level={})
    (found,) = summarise_run(out).levels
    assert (found.arrivals, found.quality.answered) == (8, 10)


def test_a_canary_of_a_conversation_is_one_turn(garbling: str, tmp_path: Path) -> None:
    prompts = {"input_tokens": 8, "output_tokens": 4, "turns": 3}
    quality = {"set": str(golden(tmp_path)), "share": "50%"}
    _, rows = measure(garbling, tmp_path / "run", prompts=prompts, quality=quality)
    asked = [row for row in rows if "canary" in row]
    assert asked
    assert {row["turn"] for row in asked} == {0}


def test_a_question_whose_request_failed_has_no_verdict(tmp_path: Path) -> None:
    async def answer(asked: Asked, out: Out) -> None:
        if "max_tokens" in asked.json and asked.json["max_tokens"] == 3:
            await out.whole(500, {"error": {"message": "no"}})
        else:
            await out.stream("Par", "is")

    wanted = {"expect": {"exact": "Paris"}}
    lines = [{"id": "right", "prompt": "x", **wanted},
             {"id": "fails", "prompt": "y", "max_tokens": 3, **wanted}]  # fmt: skip
    quality = {"set": str(golden(tmp_path, *lines)), "pass": True}
    with scripted(answer) as server:
        _, rows = measure(server.url, tmp_path / "run", quality=quality)
    told = {row["canary"]["id"]: row["canary"] for row in rows if "canary" in row}
    assert told["right"] == {"id": "right", "pass": True, "passed": True}
    assert told["fails"] == {"id": "fails", "pass": True}


def test_the_view_of_a_run_without_quality_is_as_before() -> None:
    assert build_view(summarise(make_run([record(0, at=[50])]))).quality.rows == ()
