import json
from collections.abc import Callable
from pathlib import Path

import pytest
from dataset_make import DRESSES, Row, as_csv, as_lines, as_list, contents, dataset, written

from loadgen.errors import UsageError
from loadgen.workload.dataset import read_pairs

PLAIN = [{"prompt": f"say {n}", "output_tokens": str(n + 1)} for n in range(9)]
TALK = [
    {"from": "system", "value": "be brief"},
    {"from": "human", "value": "hi"},
    {"from": "gpt", "value": "R1"},
    {"from": "human", "value": "and?"},
    {"from": "gpt", "value": "R2"},
]
PICTURE = [
    {"role": "system", "content": "look"},
    {"role": "user", "content": [
        {"type": "text", "text": "what is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
    ]},
]  # fmt: skip


def lines(*rows: Row) -> bytes:
    return as_lines(list(rows))


def batch(**body: object) -> Row:
    return {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}


@pytest.mark.parametrize("dress", DRESSES.values(), ids=DRESSES)
def test_prompt_columns_are_read_in_every_dress(
    dress: Callable[[list[Row]], bytes], tmp_path: Path
) -> None:
    made = dataset(written(tmp_path, dress(PLAIN)), order="file")
    prompts = [made.prompt(level=0, round_=0, number=n) for n in range(9)]
    assert contents(made, 9) == [row["prompt"] for row in PLAIN]
    assert [prompt.asked_output for prompt in prompts] == list(range(1, 10))


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    rows = [{"prompt": "not this", "question": "this", "n": 5}]
    columns = {"prompt": "question", "output_tokens": "n"}
    made = dataset(written(tmp_path, as_csv(rows)), columns=columns)
    prompt = made.prompt(level=0, round_=0, number=0)
    assert (contents(made, 1), prompt.asked_output) == (["this"], 5)


def test_messages_with_images_pass_through_untouched(tmp_path: Path) -> None:
    for row in ({"messages": PICTURE}, batch(messages=PICTURE, model="x")):
        prompt = dataset(written(tmp_path, lines(row))).prompt(level=0, round_=0, number=0)
        assert prompt.messages == PICTURE
        assert (prompt.asked_input, prompt.text, prompt.extra) == (None, None, {})


def test_messages_in_a_csv_cell_are_json(tmp_path: Path) -> None:
    rows = [{"messages": json.dumps(PICTURE)}]
    made = dataset(written(tmp_path, as_csv(rows)))
    assert made.prompt(level=0, round_=0, number=0).messages == PICTURE


def test_a_batch_body_keeps_its_parameters_and_its_limit_is_a_limit(tmp_path: Path) -> None:
    row = batch(model="m", messages=PICTURE, max_tokens=9, temperature=0.5, tools=[{}], stream=True)
    prompt = dataset(written(tmp_path, lines(row))).prompt(level=0, round_=0, number=0)
    assert prompt.extra == {"temperature": 0.5, "tools": [{}]}
    assert (prompt.asked_output, prompt.max_output) == (None, 9)


@pytest.mark.parametrize(
    ("keys", "asked", "limit"),
    [({}, 5, None), ({"output_tokens": 7}, 7, None), ({"output_tokens": "natural"}, None, None),
     ({"output_tokens": "natural", "max_output_tokens": 3}, None, 3)],
    ids=["the-row's", "the-scenario's", "natural", "natural-with-limit"],
)  # fmt: skip
def test_the_length_of_an_answer_is_the_row_s_unless_told(
    keys: Row, asked: int | None, limit: int | None, tmp_path: Path
) -> None:
    path = written(tmp_path, lines({"prompt": "a", "output_tokens": 5}))
    prompt = dataset(path, **keys).prompt(level=0, round_=0, number=0)
    assert (prompt.asked_output, prompt.max_output) == (asked, limit)


@pytest.mark.parametrize("dress", [as_lines, as_list], ids=["lines", "list"])
def test_of_a_sharegpt_conversation_one_request_is_its_first_turn(
    dress: Callable[[list[Row]], bytes], tmp_path: Path
) -> None:
    made = dataset(written(tmp_path, dress([{"id": "x", "conversations": TALK}])))
    assert made.prompt(level=0, round_=0, number=0).messages == [
        {"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]  # fmt: skip
    assert made.facts()["format"] == "sharegpt"


@pytest.mark.parametrize(("history", "reply"), [("live", "L1"), ("recorded", "R1")])
def test_d27_turn_two_shows_the_reply_that_was_chosen(
    history: str, reply: str, tmp_path: Path
) -> None:
    made = dataset(written(tmp_path, lines({"conversations": TALK})), turns=2, history=history)
    talk = made.conversation(level=0, round_=0, number=0)
    messages = talk.prompt(1, replies=["L1"]).messages or []
    assert len(talk.turns) == 2
    assert [m["content"] for m in messages] == ["be brief", "hi", reply, "and?"]
    assert talk.prompt(0).messages == made.prompt(level=0, round_=0, number=0).messages


def test_tool_calls_and_their_results_stay_with_the_reply(tmp_path: Path) -> None:
    roles = ("user", "assistant", "tool", "assistant", "user")
    messages = [{"role": role, "content": role} for role in roles]
    path = written(tmp_path, lines({"messages": messages}))
    talk = dataset(path, turns=5, history="recorded").conversation(level=0, round_=0, number=0)
    assert len(talk.turns) == 2
    assert talk.prompt(1).messages == messages


def test_a_text_goes_to_completions_and_messages_do_not(tmp_path: Path) -> None:
    path = written(tmp_path, lines({"prompt": "a"}, {"messages": PICTURE}))
    made = dataset(path, endpoint="completions")
    prompt = made.prompt(level=0, round_=0, number=0)
    assert (prompt.messages, prompt.text, made.facts()["bad_rows"]) == (None, "a", 1)
    with pytest.raises(UsageError, match="1 like line 1, which has messages, which need endpoint"):
        dataset(written(tmp_path, lines({"messages": PICTURE})), endpoint="completions")


BAD = [
    '{"prompt": "kept"}',
    '{"prompt": "hush-1",',
    '{"prompt": ""}',
    "[7]",
    '{"prompt": "a", "output_tokens": "hush-2"}',
    '{"prompt": "a", "output_tokens": 0}',
    '{"messages": "hush-3"}',
    '{"messages": [{"content": "hush-4"}]}',
    '{"messages": [], "hush-5": 1}',
    '{"prompt": {"hush-6": 1}}',
]


def test_bad_rows_are_counted_with_their_lines_and_never_shown(tmp_path: Path) -> None:
    facts = dataset(written(tmp_path, "\n\n".join(BAD))).facts()
    assert (facts["rows"], facts["bad_rows"]) == (1, len(BAD) - 1)
    assert [row["line"] for row in facts["bad_examples"]] == [3, 5, 7, 9, 11]
    assert facts["bad_examples"][0]["reason"] == "is not valid JSON"
    assert "hush" not in json.dumps(facts)


@pytest.mark.parametrize(
    ("talk", "reason"),
    [
        (TALK[2:], "begins with an answer"),
        ([{"from": "hush-1", "value": "a"}], "has a turn of nobody known"),
        ([{"from": "human", "value": ""}], "has a turn without text"),
        ([], "has no conversation"),
        (["hush-2"], "has a turn that is not a mapping"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_conversation_that_cannot_be_sent_is_a_bad_row(
    talk: list[Row], reason: str, tmp_path: Path
) -> None:
    path = written(tmp_path, lines({"conversations": TALK}, {"conversations": talk}))
    assert dataset(path).facts()["bad_examples"] == [{"line": 2, "reason": reason}]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("", "holds no rows"),
        ("[]", "holds no rows"),
        ("a,b\n1,2\n", "has no column 'prompt' or 'messages'; it has a, b; name yours, like"),
        ('"say hush, please",x y\n1,2\n', "has no column 'prompt' or 'messages'; it has x y;"),
        ('{"question": "hush"}\n{"x": 1}', "of 2, 2 like line 1, which has no prompt"),
    ],
    ids=["empty", "empty-list", "columns", "no-header", "keys"],
)
def test_a_file_without_a_row_to_send_says_what_is_missing(
    data: str, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"rows\.jsonl: ") as caught:
        dataset(written(tmp_path, data))
    assert problem in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_file_that_changes_while_it_is_in_use_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path, as_lines(PLAIN))
    made = dataset(path)
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(UsageError, match="was changed while it was in use"):
        made.prompt(level=0, round_=0, number=0)


def test_order_is_shuffled_by_the_seed_or_as_the_file_has_it(tmp_path: Path) -> None:
    path = written(tmp_path, as_lines(PLAIN))
    plain = [row["prompt"] for row in PLAIN]
    shuffled = contents(dataset(path), 9)
    assert contents(dataset(path, order="file"), 9) == plain
    assert sorted(shuffled) == sorted(plain) != shuffled == contents(dataset(path), 9)
    assert contents(dataset(path, use={"seed": 8}), 9) != shuffled


def test_each_level_has_a_stretch_of_its_own_and_goes_on_past_it(tmp_path: Path) -> None:
    made = dataset(written(tmp_path, as_lines(PLAIN)), order="file", use={"levels": 3})
    said = [contents(made, 3, level=level) for level in range(3)]
    assert [text for part in said for text in part] == [row["prompt"] for row in PLAIN]
    assert contents(made, 4, level=2)[-1] == "say 0"


def test_rounds_share_the_file_out_as_well(tmp_path: Path) -> None:
    made = dataset(written(tmp_path, as_lines(PLAIN)), use={"levels": 1, "rounds": 3})
    rows = {made.row_of(level=0, round_=r, number=n) for r in range(3) for n in range(3)}
    assert rows == set(range(9))


def test_what_the_file_amounts_to_is_stated(tmp_path: Path) -> None:
    path = written(tmp_path, as_lines([*PLAIN, *PLAIN[:2]]))
    facts = dataset(path).facts()
    assert (facts["file"], facts["format"], facts["rows"], facts["unique"]) == (
        "rows.jsonl", "jsonl", 11, 9)  # fmt: skip
    csv_facts = dataset(written(tmp_path, as_csv([*PLAIN, *PLAIN[:2]]))).facts()
    assert csv_facts["hash"] == facts["hash"]  # what is sent is the same
    assert dataset(written(tmp_path, as_lines(PLAIN))).facts()["hash"] != facts["hash"]


@pytest.mark.parametrize(
    "data",
    ['{"input_tokens": 9, "output_tokens": 2}\n{"input_tokens": 7, "output_tokens": 1}',
     "input_tokens,model,output_tokens\r\n9,m,2\r\n7,m,1\r\n"],
    ids=["jsonl", "csv"],
)  # fmt: skip
def test_pairs_of_lengths_are_read(data: str, tmp_path: Path) -> None:
    assert read_pairs(written(tmp_path, data)).tolist() == [[9, 2], [7, 1]]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("input_tokens,output_tokens\n", "is empty; give it rows of input_tokens"),
        ("input_tokens,output_tokens\n9,2\n9,0\n9,x\n", "line 3: needs input_tokens and output_t"),
        ("a,b\n1,2\n", r"line 2: needs input_tokens and output_tokens, .* \(1 of 1 rows have not"),
    ],
    ids=["empty", "zero", "columns"],
)
def test_pairs_that_are_none_say_which_line(data: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        read_pairs(written(tmp_path, data))
