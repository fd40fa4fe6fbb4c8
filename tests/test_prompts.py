from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dataset_make import as_lines, written
from scenario_make import load_text, make_scenario

from loadgen.scenario.model import Scenario
from loadgen.workload.prompts import MixedPrompts, PromptSource, prompt_source
from loadgen.workload.synthetic import Overhead

SHORT = {"input_tokens": 10, "output_tokens": 4}
LONG = {"input_tokens": 40, "output_tokens": 4}
MIX = [{"name": "chat", "weight": 70, "prompts": SHORT},
       {"name": "long", "weight": 30, "prompts": LONG}]  # fmt: skip


def mixed(mix: object = MIX, **parts: object) -> MixedPrompts:
    source = prompt_source(make_scenario(prompts=None, mix=mix, seed=3, **parts), nonce="ab")
    assert isinstance(source, MixedPrompts)
    return source


def classes(source: PromptSource, number: int, *, round_: int = 0) -> list[str | None]:
    return [source.prompt(level=0, round_=round_, number=n).class_ for n in range(number)]


@pytest.mark.slow
def test_classes_come_by_their_weights_and_each_in_its_own_length() -> None:
    prompts = [mixed().prompt(level=0, round_=0, number=n) for n in range(4000)]
    share = np.mean([prompt.class_ == "chat" for prompt in prompts])
    assert share == pytest.approx(0.7, abs=3 * (0.7 * 0.3 / 4000) ** 0.5)
    assert {(prompt.class_, prompt.asked_input) for prompt in prompts} == {
        ("chat", 10), ("long", 40)}  # fmt: skip


def test_levels_are_the_same_mix_and_rounds_draw_their_own() -> None:
    source = mixed()
    other_level = [source.prompt(level=1, round_=0, number=n).class_ for n in range(50)]
    assert classes(source, 50) == other_level != classes(source, 50, round_=1)


def test_a_class_counts_only_the_requests_that_are_its_own() -> None:
    source = mixed()
    drawn = [source.drawn(round_=0, number=n) for n in range(5000)]
    for class_index in (0, 1):
        own = [one.number for one in drawn if one.class_index == class_index]
        assert own == list(range(len(own)))


def test_a_mix_is_the_same_in_whatever_order_it_is_asked() -> None:
    numbers = [4999, 0, 1500, 1023, 1024, 7]
    ahead, back = mixed(), mixed()
    first = [ahead.prompt(level=0, round_=0, number=n) for n in numbers]
    second = [back.prompt(level=0, round_=0, number=n) for n in reversed(numbers)]
    assert first == second[::-1]


def test_a_class_of_one_turn_is_a_conversation_of_one_turn() -> None:
    mix = [MIX[0], {**MIX[1], "prompts": {**LONG, "turns": 3}}]
    turns = {
        (one.class_, len(one.turns))
        for n in range(60)
        for one in [mixed(mix).conversation(level=0, round_=0, number=n)]
    }
    assert turns == {("chat", 1), ("long", 3)}


def scenario_of(directory: Path, prompts: str, data: str) -> Scenario:
    written(directory, data, "rows.csv")
    return load_text(
        f"target: {{url: http://h}}\nprompts: {prompts}\nlevels: [{{concurrency: 1}}]", directory
    )


def test_files_of_a_scenario_are_found_beside_it(tmp_path: Path) -> None:
    data = scenario_of(tmp_path, "{source: dataset, file: rows.csv}", "prompt,n\nsay a,1\n")
    assert prompt_source(data, nonce="ab").prompt(level=0, round_=0, number=0).messages == [
        {"role": "user", "content": "say a"}]  # fmt: skip
    pairs = scenario_of(tmp_path, "{lengths: rows.csv}", "input_tokens,output_tokens\n30,7\n")
    prompt = prompt_source(pairs, nonce="ab").prompt(level=0, round_=0, number=0)
    assert (prompt.asked_input, prompt.asked_output) == (30, 7)


def test_a_dataset_in_a_mix_leaves_out_no_row(tmp_path: Path) -> None:
    path = written(tmp_path, as_lines([{"prompt": f"say {n}"} for n in range(20)]))
    mix = [MIX[0], {"name": "file", "weight": 30, "prompts": {"source": "dataset",
                                                              "file": str(path)}}]  # fmt: skip
    source = mixed(mix)
    prompts = [source.prompt(level=0, round_=0, number=n) for n in range(200)]
    texts = [p.messages[0]["content"] for p in prompts if p.class_ == "file" and p.messages]
    assert len(set(texts[:20])) == 20
    assert set(source.facts()["classes"]) == {"chat", "file"}


@pytest.mark.parametrize("parts", [{}, {"prompts": None, "mix": MIX}], ids=["one", "mix"])
def test_f07_the_overhead_is_taken_off_every_prompt(parts: dict[str, Any]) -> None:
    scenario = make_scenario(**parts)
    plain, less = (
        prompt_source(scenario, nonce="ab", overhead=overhead).prompt(level=0, round_=0, number=0)
        for overhead in (None, Overhead(tokens=5))
    )
    words = [len(str((p.messages or [{}])[0]["content"]).split(" ")) for p in (plain, less)]
    assert words == [plain.asked_input, (less.asked_input or 0) - 5]


def test_f04_no_two_prompts_of_a_run_are_alike_from_the_start() -> None:
    source = prompt_source(make_scenario(), nonce="ab")
    openings = {
        tuple(str((prompt.messages or [{}])[0]["content"]).split(" ")[:3])
        for level in range(3)
        for round_ in range(3)
        for n in range(100)
        for prompt in [source.prompt(level=level, round_=round_, number=n)]
    }
    assert len(openings) == 900
