import json
from importlib.resources import files
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.scenario.model import Prompts
from loadgen.workload.prompt import Prompt
from loadgen.workload.synthetic import OPENING_WORDS, SyntheticPrompts

WORDS = frozenset(json.loads(files("loadgen.workload").joinpath("words.json").read_text()))


def source(
    *, seed: int = 7, nonce: str = "ab12", endpoint: str = "chat", **lengths: object
) -> SyntheticPrompts:
    prompts = Prompts.model_validate({"input_tokens": 20, "output_tokens": 8, **lengths})
    return SyntheticPrompts(prompts, seed=seed, nonce=nonce, endpoint=endpoint)


def words_of(prompt: Prompt) -> list[str]:
    assert prompt.messages is not None
    text: str = prompt.messages[0]["content"]
    return text.split(" ")


def sent(
    made: SyntheticPrompts, *, level: int = 0, round_: int = 0, n: int = 50
) -> list[list[str]]:
    return [words_of(made.prompt(level=level, round_=round_, number=i)) for i in range(n)]


@given(length=st.integers(1, 300), prefix=st.integers(0, 50), number=st.integers(0, 10**9))
def test_n_tokens_asked_are_n_words_of_the_list(length: int, prefix: int, number: int) -> None:
    made = source(input_tokens=length, shared_prefix_tokens=min(prefix, length - 1))
    prompt = made.prompt(level=0, round_=0, number=number)
    assert len(words_of(prompt)) == length == prompt.asked_input
    assert set(words_of(prompt)) <= WORDS


def test_the_same_arguments_make_the_same_prompt_in_any_order() -> None:
    places = list(product((0, 1), (0, 1), (0, 5, 9)))
    first, second = source(), source()
    ahead = [first.prompt(level=a, round_=b, number=c) for a, b, c in places]
    back = [second.prompt(level=a, round_=b, number=c) for a, b, c in reversed(places)]
    assert ahead == back[::-1]
    assert len({prompt.hash for prompt in ahead}) == len(places)


def test_no_two_prompts_of_a_run_begin_alike() -> None:
    made = source()
    openings = [
        tuple(words[:OPENING_WORDS])
        for level in range(3)
        for words in sent(made, level=level, n=200)
    ]
    assert len(set(openings)) == len(openings)
    assert len({opening[0] for opening in openings}) > 400


def test_a_second_run_opens_every_prompt_differently_and_keeps_the_rest() -> None:
    first, second = sent(source(nonce="ab12")), sent(source(nonce="cd34"))
    pairs = list(zip(first, second, strict=True))
    assert all(a[:OPENING_WORDS] != b[:OPENING_WORDS] for a, b in pairs)
    assert all(a[OPENING_WORDS:] == b[OPENING_WORDS:] for a, b in pairs)


def test_a_fixed_nonce_makes_every_run_send_the_same() -> None:
    assert sent(source(nonce="fixed")) == sent(source(nonce="fixed"))
    assert sent(source(nonce="fixed", seed=8)) != sent(source(nonce="fixed", seed=7))


def test_a_shared_prefix_is_equal_within_a_run_and_new_in_the_next() -> None:
    prefix = {"shared_prefix_tokens": 12}
    made, other = sent(source(**prefix)), sent(source(nonce="cd34", **prefix))
    assert len({tuple(words[:12]) for words in made}) == 1
    assert len({words[12] for words in made}) > 40
    assert made[0][:12] != other[0][:12]


def test_a_prompt_shorter_than_the_prefix_still_has_a_word_of_its_own() -> None:
    made = source(input_tokens={"mean": 6, "spread": 4}, shared_prefix_tokens=5)
    shared = max((words[:5] for words in sent(made)), key=len)
    short = [words for words in sent(made, n=300) if 1 < len(words) <= 5]
    assert short
    assert all(words[:-1] == shared[: len(words) - 1] for words in short)
    assert len({words[-1] for words in short if len(words) == 4}) > 5


def test_lengths_have_the_asked_mean_and_spread_and_never_fall_below_one() -> None:
    made = source(input_tokens={"mean": 512, "spread": 128}, output_tokens={"mean": 2, "spread": 3})
    lengths = np.array([made.lengths(round_=0, number=n) for n in range(4000)])
    assert lengths[:, 0].mean() == pytest.approx(512, abs=8)
    assert lengths[:, 0].std() == pytest.approx(128, rel=0.05)
    assert lengths[:, 1].min() == 1


def test_levels_ask_for_the_same_lengths_and_rounds_for_others() -> None:
    made = source(input_tokens={"mean": 50, "spread": 10})
    lengths = {
        (level, round_): [len(words) for words in sent(made, level=level, round_=round_, n=20)]
        for level, round_ in product((0, 1), (0, 1))
    }
    assert lengths[0, 0] == lengths[1, 0] != lengths[0, 1]


def test_completions_get_the_text_that_chat_gets_as_a_message() -> None:
    chat = source().prompt(level=0, round_=0, number=3)
    plain = source(endpoint="completions").prompt(level=0, round_=0, number=3)
    assert plain.messages is None
    assert plain.text == " ".join(words_of(chat))
    assert plain.hash == chat.hash
