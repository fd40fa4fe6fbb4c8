"""Files as they come: broken, packed, large, in disorder."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner
from dataset_make import in_members
from replay_make import chat, first, litellm, log_file, mooncake, read, replaying, sessions, source

from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.workload.plan import plan_warnings, source_without_nonce
from loadgen.workload.replay.follow import kept_of
from loadgen.workload.replay.found import facts_of
from loadgen.workload.replay.roles import alternate, merged

GOOD = json.dumps(mooncake(0))


def test_d12_a_bad_line_is_counted_by_its_number_and_a_blank_one_ignored(tmp_path: Path) -> None:
    path = log_file(tmp_path, f"{GOOD}\n\n{{bad ZEBRA-77\n{GOOD}\n")
    facts = facts_of(read(path))
    assert (facts["requests"], facts["bad_rows"]) == (2, 1)
    assert facts["bad_examples"] == [{"line": 3, "reason": "is not valid JSON"}]
    assert "ZEBRA-77" not in str(facts)


@pytest.mark.parametrize(
    ("bad", "said"),
    [(0, "3 in 3 rows, 0 bad rows\n"), (1, "3 in 4 rows, 1 bad row (line 2 "),
     (2, "3 in 5 rows, 2 bad rows (line 2 ")],
)  # fmt: skip
def test_d12_rows_are_all_that_were_read(bad: int, said: str, tmp_path: Path) -> None:
    rows = ["time,input_tokens", *["x,10"] * bad, *(f"{at},10" for at in range(3))]
    path = log_file(tmp_path, "\n".join(rows), "log.csv")
    done = CliRunner().invoke(main, ["plan", "--log", str(path)])
    assert f"Requests  {said}" in done.stdout


def test_d12_strict_input_refuses_a_log_with_a_bad_line(tmp_path: Path) -> None:
    path = log_file(tmp_path, f"{GOOD}\n\n{{bad\n{GOOD}\n")
    done = CliRunner().invoke(main, ["plan", "--log", str(path), "--strict-input"])
    assert done.exit_code == 2
    assert "1 bad row: line 3 is not valid JSON" in done.stderr


def test_d13_json_that_is_no_object_is_refused_with_its_line(tmp_path: Path) -> None:
    path = log_file(tmp_path, f'{GOOD}\n[1]\n"x"\nnull\n42\n')
    found = read(path).found
    assert [row["line"] for row in found.bad_rows] == [2, 3, 4, 5]
    assert dict(found.bad) == {"is not a mapping of names and values": 4}


def test_d15_a_log_from_windows_is_one_record(tmp_path: Path) -> None:
    assert len(read(log_file(tmp_path, b'\xef\xbb\xbf{"prompt":"a"}\r\n'))) == 1


@pytest.mark.slow
def test_d16_memory_follows_the_longest_line(tmp_path: Path) -> None:
    long = json.dumps({"time": 5000, "prompt": "x" * 20_000_000})
    lines = [json.dumps({"time": at, "prompt": "a"}) for at in range(10_000)]
    path = log_file(tmp_path, "\n".join([*lines[:5000], long, *lines[5000:]]))
    tracemalloc.start()
    assert len(read(path)) == 10_001
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * 20_000_000  # the line as bytes, as text, and twice to be hashed


def test_d17_packed_logs_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    rows = [mooncake(at) for at in (0, 1000, 2000)]
    assert len(read(log_file(tmp_path, in_members(rows), "t.jsonl"))) == 3
    zstandard = pytest.importorskip("zstandard", reason="the extra 'zstd' is not installed")
    packed = zstandard.ZstdCompressor().compress(gzip.decompress(in_members(rows)))
    assert len(read(log_file(tmp_path, packed, "t.zst"))) == 3


@pytest.mark.parametrize(
    ("roles", "good"),
    [
        ("user", True),
        ("system user assistant user", True),
        ("user assistant tool tool assistant user", True),
        ("user user", False),
        ("assistant user", False),
        ("system assistant", False),
        ("user system", False),
        ("user tool", False),
        ("system", False),
    ],
)
def test_d19_roles_alternate_or_not(roles: str, good: bool) -> None:
    assert alternate([{"role": role, "content": "x"} for role in roles.split()]) is good


def test_d19_roles_that_do_not_alternate_are_told_with_their_line(tmp_path: Path) -> None:
    rows = [litellm(0, chat("a")), litellm(2, [*chat("b"), *chat("c")])]
    path = log_file(tmp_path, rows)
    facts = facts_of(read(path))
    assert (facts["roles_wrong"], facts["roles_wrong_lines"]) == (1, [2])
    sent = source(path).prompt(level=0, round_=0, number=1)
    assert sent.messages == rows[1]["messages"]
    merging = source(path, roles="merge").prompt(level=0, round_=0, number=1)
    assert merging.messages == [{"role": "user", "content": "b\n\nc"}]
    skipping = replaying(path, roles="skip")
    assert len(kept_of(skipping, skipping.prompts).members) == 1


def test_d19_merging_leaves_out_an_answer_that_comes_first() -> None:
    said = [{"role": "assistant", "content": "welcome"}, *chat("a", "b"), *chat("c"), *chat("d")]
    assert [one["content"] for one in merged(said)] == ["a", "b", "c\n\nd"]


def test_d20_what_is_over_the_context_is_left_out_cut_or_sent(tmp_path: Path) -> None:
    path = log_file(tmp_path, [mooncake(0, [1] * 4), mooncake(2000, input_length=90)])
    skipping = replaying(path, max_context=100)
    assert kept_of(skipping, skipping.prompts).left_out == {"over the context": 1}
    cut = source(path, max_context=100, over_context="truncate")
    assert cut.prompt(level=0, round_=0, number=0).asked_input == 96  # and 4 of the answer
    assert cut.facts()["replayed"]["truncated"] == 1
    sent = source(path, max_context=100, over_context="send")
    assert sent.prompt(level=0, round_=0, number=0).asked_input == 2048
    assert sent.facts()["replayed"]["over_context"] == 1


def test_d20_a_text_is_cut_at_its_end(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "s" * 40}, *chat("u" * 360)]
    path = log_file(tmp_path, [litellm(0, said, prompt_tokens=100, completion_tokens=0)])
    prompt = first(path, max_context=50, over_context="truncate")
    assert prompt.messages is not None
    assert [len(one["content"]) for one in prompt.messages] == [40, 160]


def test_d23_a_log_shorter_than_the_run_is_said(tmp_path: Path) -> None:
    path = log_file(tmp_path, [litellm(at, chat(f"q{at}")) for at in range(100)])
    each = {"each_level": {"warmup": "0 requests", "measure": "250 requests"}}
    scenario = replaying(path, {"concurrency": 4}, parts=each)
    made = source_without_nonce(scenario)
    assert made.facts()["unique"] == 100
    assert [text for text in plan_warnings(scenario, made) if "2.5 passes" in text]
    again = [made.prompt(level=0, round_=0, number=n).hash for n in (7, 107)]
    assert again[0] == again[1]


def test_d23_words_made_for_a_second_pass_are_new(tmp_path: Path) -> None:
    path = log_file(tmp_path, [mooncake(1000 * at, [1, 10 + at]) for at in range(3)])
    made = source(path, {"concurrency": 1})
    prompts = [made.prompt(level=0, round_=0, number=n) for n in range(6)]
    assert len({prompt.hash for prompt in prompts}) == 6


def test_d29_the_recorded_length_of_an_answer_is_asked_for(tmp_path: Path) -> None:
    path = log_file(tmp_path, [litellm(0, chat("a"), completion_tokens=44,
                                       model_parameters={"max_tokens": 90})])  # fmt: skip
    asked = first(path, match_output_length=True)
    assert (asked.asked_output, asked.max_output, dict(asked.extra)) == (44, None, {})
    natural = first(path)
    assert (natural.asked_output, natural.max_output) == (None, 90)


def test_d29_a_log_of_lengths_has_answers_of_its_lengths(tmp_path: Path) -> None:
    assert first(log_file(tmp_path, [mooncake(0, output_length=44)])).asked_output == 44


def test_d32_whole_conversations_are_sampled_the_same_for_a_seed(tmp_path: Path) -> None:
    path = log_file(tmp_path, sessions(10, 5))
    kept = [
        kept_of(one, one.prompts)
        for one in (replaying(path, sample=0.2, parts={"seed": seed}) for seed in (1, 1, 2))
    ]
    assert (kept[0].conversations, len(kept[0].members)) == (2, 10)
    assert kept[0].members.tolist() == kept[1].members.tolist() != kept[2].members.tolist()
    assert kept[0].left_out == {"not sampled": 40}


@pytest.mark.parametrize("data", [b"", b"\n\n", b"{}\n", b"a,b\n"], ids=["0", "blank", "{}", "csv"])
def test_a_log_without_a_request_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read(log_file(tmp_path, data))


def test_a_log_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["plan", "--log", str(tmp_path / "no.jsonl")])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "no.jsonl" in done.stderr


def test_a_log_that_is_not_there_is_named_as_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "no.jsonl"
    done = CliRunner().invoke(main, ["replay", str(path), "--url", "http://127.0.0.1:9"])
    assert done.stderr == f"loadgen: LOG: '{path}': no such file\n"


def test_messages_need_the_chat_endpoint(tmp_path: Path) -> None:
    path = log_file(tmp_path, [litellm(0, chat("a"))])
    with pytest.raises(UsageError, match="endpoint: chat"):
        read(path, chat=False)


def test_a_text_is_sent_as_a_message_or_as_it_is(tmp_path: Path) -> None:
    path = log_file(tmp_path, [{"time": 0, "prompt": "say a"}])
    assert first(path).messages == [{"role": "user", "content": "say a"}]
    completions = {"target": {"url": "http://h", "endpoint": "completions"}}
    assert first(path, parts=completions).text == "say a"
