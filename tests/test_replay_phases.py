from pathlib import Path

import numpy as np
import pytest
from replay_make import chat, litellm, log_file, mooncake, replaying, sessions, source
from scenario_make import load_text, make_scenario, problems_in

from loadgen.record import Phase
from loadgen.run.phases import CountedPhases
from loadgen.scenario.model import Scenario
from loadgen.workload.arrivals import Schedule, busiest_second
from loadgen.workload.plan import plan_hash, plan_levels, schedule_of, source_without_nonce
from loadgen.workload.replay.follow import course_through, natural_answers

TARGET = "target: {url: http://h}\n"


def counted(expected: int, *, measure_ns: int = 0) -> CountedPhases:
    return CountedPhases(start_ns=0, measure_start_ns=measure_ns, expected=expected)


def test_a_level_that_counts_ends_when_its_last_request_is_due() -> None:
    phases = counted(2)
    phases.advance(0)
    assert [phases.admit(5), phases.phase] == [Phase.MEASURE, Phase.MEASURE]
    assert [phases.admit(9), phases.phase] == [Phase.MEASURE, Phase.DRAIN]
    assert (phases.measure_start_ns, phases.measure_end_ns, phases.stop_reason) == (0, 10, "log")
    assert phases.admit(11) is None


def test_what_is_not_expected_any_more_ends_the_level_as_well() -> None:
    phases = counted(4)
    assert phases.admit(5) is Phase.MEASURE
    phases.forgo(3)
    assert (phases.phase, phases.measure_end_ns) == (Phase.DRAIN, 6)


def test_arrivals_before_measure_are_warm_up_and_a_stop_is_one() -> None:
    phases = counted(3, measure_ns=10)
    assert [phases.admit(5), phases.next_change_ns()] == [Phase.WARMUP, 10]
    phases.advance(10)
    assert [phases.admit(12), phases.next_change_ns()] == [Phase.MEASURE, None]
    phases.stop(15, "interrupted")
    assert (phases.measure_end_ns, phases.stop_reason, phases.admit(16)) == (
        15,
        "interrupted",
        None,
    )


def log_of(directory: Path) -> Path:
    return log_file(directory, [mooncake(1000 * at, [1, 2 + at]) for at in range(10)])


def test_a_log_without_levels_is_followed_at_its_own_speed(tmp_path: Path) -> None:
    log_of(tmp_path)
    made = load_text(f"{TARGET}prompts: {{source: replay, file: log.jsonl}}", tmp_path)
    assert [level.label for level in made.levels] == ["log at speed 1"]
    assert len(schedule_of(made, 0, round_=0).due_ns) == 10


def test_a_replay_is_measured_to_its_end_without_a_warm_up(tmp_path: Path) -> None:
    schedule = schedule_of(replaying(log_of(tmp_path)), 0, round_=0)
    assert (schedule.measure_start_ns, schedule.measure_end_ns) == (0, 9 * 10**9 + 1)
    assert schedule.turns is None


@pytest.mark.parametrize(
    ("each", "warm", "all_"),
    [
        ({"warmup": "2s", "measure": "3s"}, 2, 5),
        ({"warmup": "2 requests", "measure": "4 requests"}, 2, 6),
        ({"warmup": "3s"}, 3, 10),
        ({"measure": "1h"}, 0, 10),
        ({"measure": "99 requests"}, 0, 10),
    ],
    ids=["times", "counts", "warm-up", "longer", "more"],
)
def test_phases_may_be_laid_over_a_log(
    each: dict[str, str], warm: int, all_: int, tmp_path: Path
) -> None:
    schedule = schedule_of(replaying(log_of(tmp_path), parts={"each_level": each}), 0, round_=0)
    assert int((schedule.due_ns < schedule.measure_start_ns).sum()) == warm
    assert len(schedule.due_ns) == all_


def test_conversations_are_scheduled_by_their_first_turns(tmp_path: Path) -> None:
    schedule = schedule_of(replaying(log_file(tmp_path, sessions(3, 4))), 0, round_=0)
    assert (schedule.due_ns / 1e9).tolist() == [0, 1, 2]
    assert schedule.turns is not None
    assert schedule.turns.tolist() == [4, 4, 4]


def test_pauses_are_those_of_the_log_as_the_speed_has_it(tmp_path: Path) -> None:
    rows = [litellm(at, chat(*"abcde"[: 2 * turn + 1]), session_id="s", endTime=1764480000 + at + 1)
            for turn, at in enumerate((0, 4, 100))]  # fmt: skip
    path = log_file(tmp_path, rows)

    def pauses(level: dict[str, object]) -> list[float]:
        made = source(path, level).conversation(level=0, round_=0, number=0)
        return [turn.think_s for turn in made.turns]

    assert pauses({"speed": 1}) == [0, 3, 95]
    assert pauses({"speed": 2, "max_gap": "60s"}) == [0, 1.5, 30]
    assert pauses({"concurrency": 1}) == [0, 0, 0]


def test_pauses_go_from_start_to_start_where_a_log_has_no_ends(tmp_path: Path) -> None:
    made = source(log_file(tmp_path, sessions(1, 3)))
    turns = made.conversation(level=0, round_=0, number=0).turns
    assert [turn.think_s for turn in turns] == [0, 1, 1]


def test_what_plan_says_of_a_log_is_a_scenario_with_the_same_plan(tmp_path: Path) -> None:
    log_of(tmp_path)
    text = (f"{TARGET}prompts: {{source: replay, file: log.jsonl, window: 1s..9s, sample: 50%}}\n"
            "levels: [{speed: 2, max_gap: 10s, jitter: true}, {rate: 2/s}]")  # fmt: skip
    made = load_text(text, tmp_path)
    again = Scenario.model_validate(made.public_dict()).located(tmp_path)
    assert plan_hash(again) == plan_hash(made)
    assert again.each_level.measure_of(again.levels[1]).seconds == 30
    planned = plan_levels(made, source_without_nonce(made))[0]
    assert (planned.requests, planned.input_tokens, planned.output_tokens) == (4, 4096, 16)


def test_a_log_that_is_sent_once_is_split_between_levels_and_all_of_it_is_planned(
    tmp_path: Path,
) -> None:
    log_file(tmp_path, sessions(5, 3))
    text = (f"{TARGET}prompts: {{source: replay, file: log.jsonl}}\n"
            "levels: [{concurrency: 1, once: true}, {concurrency: 9, once: true}]")  # fmt: skip
    made = load_text(text, tmp_path)
    planned = plan_levels(made, source_without_nonce(made))
    assert [(level.arrivals, level.requests) for level in planned] == [(2, 6), (3, 9)]
    again = Scenario.model_validate(made.public_dict()).located(tmp_path)
    assert plan_hash(again) == plan_hash(made)


@pytest.mark.parametrize(
    ("level", "measure", "said"),
    [
        ({"concurrency": 1, "once": True}, None, []),
        ({"concurrency": 4, "once": True}, None, ["2 conversations to send"]),
        ({"concurrency": 1}, "6 requests", []),
        ({"concurrency": 1}, "7 requests", ["asks for 7 requests, its part of the log has 6"]),
        ({"concurrency": 1}, "9s", ["where the log ends before the level, it begins again"]),
        ({"speed": 1}, None, []),
    ],
    ids=["once", "empty slots", "as many", "more", "a time", "its own times"],
)
def test_what_is_sent_again_or_not_at_all_is_said_first(
    level: dict[str, object], measure: str | None, said: list[str], tmp_path: Path
) -> None:
    parts = {"each_level": {"measure": measure}} if measure else {}
    made = replaying(log_file(tmp_path, sessions(2, 3)), level, parts=parts)
    assert [text in line for text, line in zip(said, course_through(made), strict=True)] == [
        True for _ in said
    ]


@pytest.mark.parametrize(
    ("keys", "said"),
    [({}, ["answers may take their natural length (recorded: mean 6.0 tokens)"]),
     ({"match_output_length": True}, [])],
    ids=["natural", "matched"],
)  # fmt: skip
def test_answers_that_do_not_get_their_recorded_length_are_told(
    keys: dict[str, object], said: list[str], tmp_path: Path
) -> None:
    rows = [litellm(at, chat("a"), completion_tokens=4 * at + 4) for at in range(2)]
    told = natural_answers(replaying(log_file(tmp_path, rows), **keys))
    assert [line.partition("; ")[0] for line in told] == said
    assert not natural_answers(replaying(log_of(tmp_path)))  # of words: they get it


def test_another_log_another_plan(tmp_path: Path) -> None:
    one = replaying(log_of(tmp_path))
    other = replaying(log_file(tmp_path, [mooncake(1000 * at, [1]) for at in range(10)], "o.jsonl"))
    assert plan_hash(one) != plan_hash(other)


def test_equal_blocks_are_equal_words_and_levels_share_none(tmp_path: Path) -> None:
    path = log_file(tmp_path, [mooncake(0, [1, 2]), mooncake(2000, [1, 3], input_length=900)])
    made = source(path)
    words = [made.prompt(level=0, round_=0, number=n).messages[0]["content"].split()
             for n in (0, 1)]  # fmt: skip
    assert [len(one) for one in words] == [1024, 900]
    assert words[0][:512] == words[1][:512]
    assert words[0][512:520] != words[1][512:520]
    other_round = made.prompt(level=0, round_=1, number=0).messages[0]["content"].split()
    assert other_round[:3] != words[0][:3]


def test_the_busiest_second_is_found() -> None:
    due = np.array([0, 1, 2, 10**9 - 1, 10**9, 5 * 10**9])
    schedule = Schedule(due_ns=due, measure_start_ns=0, measure_end_ns=1)
    assert busiest_second(schedule) == 4
    assert busiest_second(Schedule(due_ns=due[:0], measure_start_ns=0, measure_end_ns=1)) == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prompts: {input_tokens: 5, output_tokens: 5}\nlevels: [{speed: 2}]",
         "s.yaml: levels[0].speed: follows a log; it needs prompts: {source: replay}"),
        ("prompts: {source: replay, file: log.jsonl}\nlevels: [{rate: 2/s, jitter: true}]",
         "jitter goes with speed"),
        ("prompts: {source: replay, file: log.jsonl}\nlevels: [{speed: 2, once: true}]",
         "once goes with concurrency or sessions"),
        ("prompts: {source: replay, file: log.jsonl}\nlevels: [{concurrency: 2, once: true}]\n"
         "each_level: {measure: 9s}", "is as long as a log that is sent once"),
        ("prompts: {input_tokens: 5, output_tokens: 5}\nlevels: [{concurrency: 2, once: true}]",
         "is of a log; it needs prompts: {source: replay}"),
        ("prompts: {source: replay, file: log.jsonl}\nlevels: [{speed: 2, rate: 2/s}]",
         "both rate and speed are given"),
        ("prompts: {source: replay, file: log.jsonl, turns: 3}", "turns does not go with"),
        ("prompts: {source: replay, file: log.jsonl, over_context: skip}", "goes with max_context"),
        ("prompts: {source: replay, file: log.jsonl, sample: 0}", "must be above 0"),
        ("prompts: {source: replay}", "name the log"),
        ("prompts: {source: dataset, file: log.jsonl, format: mooncake}\n"
         "levels: [{concurrency: 1}]", "read it with source: replay"),
        ("prompts: {source: dataset, file: log.jsonl, columns: {time: t}}\n"
         "levels: [{concurrency: 1}]", "prompts.columns.time: goes with source: replay"),
        ("prompts: {input_tokens: 5, output_tokens: 5, window: 1s..2s}\nlevels: [{concurrency: 1}]",
         "window goes with source: replay"),
    ],
    ids=["speed", "jitter", "once-open", "once-long", "once-made", "two-loads", "turns", "over",
         "sample", "file", "format", "columns", "window"],
)  # fmt: skip
def test_what_does_not_go_together_is_said(text: str, problem: str, tmp_path: Path) -> None:
    log_of(tmp_path)
    assert [line for line in problems_in(TARGET + text, tmp_path) if problem in line]


def test_a_scenario_knows_whether_it_replays() -> None:
    assert not make_scenario().replays
