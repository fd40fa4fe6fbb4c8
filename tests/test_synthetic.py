import json
from importlib.resources import files
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.scenario.lengths import ThinkTime
from loadgen.scenario.model import Prompts
from loadgen.workload.prompt import Conversation, Prompt
from loadgen.workload.synthetic import OPENING_WORDS, Given, Overhead, SyntheticPrompts

WORDS = frozenset(json.loads(files("loadgen.workload").joinpath("words.json").read_text()))


def source(
    *,
    seed: int = 7,
    nonce: str = "ab12",
    endpoint: str = "chat",
    given: Given | None = None,
    **lengths: object,
) -> SyntheticPrompts:
    prompts = Prompts.model_validate({"input_tokens": 20, "output_tokens": 8, **lengths})
    return SyntheticPrompts(
        prompts, seed=seed, nonce=nonce, endpoint=endpoint, given=given or Given()
    )


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


def overhead(tokens: int, **more: object) -> Given:
    return Given(overhead=Overhead(tokens=tokens, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "words"), [(128, 116), (16, 4), (15, 3), (14, 3), (3, 3), (2, 2), (1, 1)]
)
def test_f07_what_the_template_adds_is_taken_off_but_never_the_opening(
    asked: int, words: int
) -> None:
    prompt = source(input_tokens=asked, given=overhead(12)).prompt(level=0, round_=0, number=4)
    assert (len(words_of(prompt)), prompt.asked_input) == (words, asked)


@pytest.mark.parametrize(
    ("known", "words"),
    [({"tokens": 12, "per_word": 1.25}, 93), ({"tokens": 9, "per_word": 1e-17}, 119),
     ({"tokens": -80}, 128)],
    ids=["two-for-some", "counts-no-words", "counts-too-few"],
)  # fmt: skip
def test_f06_more_tokens_than_words_send_fewer_and_never_more_than_asked(
    known: dict[str, float], words: int
) -> None:
    given = Given(overhead=Overhead(**known))  # type: ignore[arg-type]
    prompt = source(input_tokens=128, given=given).prompt(level=0, round_=0, number=0)
    assert len(words_of(prompt)) == words


def test_only_words_that_are_one_token_there_are_used() -> None:
    usable = frozenset(sorted(WORDS)[:150])
    made = source(given=overhead(0, words=usable | {"unheard-of"}))
    assert {word for words in sent(made, n=200) for word in words} == usable


def test_too_few_usable_words_are_said_to_be_so() -> None:
    with pytest.raises(ValueError, match="2 usable words are too few"):
        source(given=overhead(0, words=frozenset(sorted(WORDS)[:2])))


def test_a_share_of_each_prompt_is_a_prefix_that_all_have() -> None:
    made = source(input_tokens={"mean": 200, "spread": 60}, cache_hit_share="30%")
    prompts = sent(made, n=60)
    longest = max(prompts, key=len)
    for words in prompts:
        shared = round(0.3 * len(words))
        assert words[:shared] == longest[:shared]
        assert words[shared : shared + OPENING_WORDS] != longest[shared : shared + OPENING_WORDS] \
            or words is longest  # fmt: skip
    ahead = source(input_tokens={"mean": 200, "spread": 60}, cache_hit_share="30%")
    assert words_of(ahead.prompt(level=0, round_=0, number=59)) == prompts[59]


def test_pairs_of_lengths_are_drawn_together_and_all_of_them() -> None:
    pairs = np.array([[10, 1], [20, 2], [30, 3]], dtype=np.int32)
    prompts = Prompts.model_validate({"lengths": "pairs.csv"})
    made = SyntheticPrompts(prompts, seed=1, nonce="ab", endpoint="chat", given=Given(pairs=pairs))
    drawn = [tuple(made.lengths(round_=0, number=n)) for n in range(300)]
    assert set(drawn) == {(10, 1), (20, 2), (30, 3)}
    assert min(drawn.count(pair) for pair in set(drawn)) > 60


def test_a_natural_answer_is_asked_for_by_no_number() -> None:
    made = source(output_tokens="natural", max_output_tokens=99)
    prompt = made.prompt(level=0, round_=0, number=0)
    assert (prompt.asked_output, prompt.max_output) == (None, 99)


def test_classes_of_a_mix_draw_words_and_prefixes_of_their_own() -> None:
    one, other = (
        words_of(
            source(given=Given(class_=name), shared_prefix_tokens=8).prompt(
                level=0, round_=0, number=0
            )
        )
        for name in ("a", "b")
    )
    assert one[:8] != other[:8]
    assert one[8:] != other[8:]


TALK = {"turns": {"mean": 4, "spread": 1}, "think_time": {"mean": "2s", "spread": "1s"},
        "input_tokens": {"mean": 20, "spread": 4}}  # fmt: skip


def talk(number: int = 0, *, level: int = 0, **more: object) -> Conversation:
    made = source(**{**TALK, **more})  # type: ignore[arg-type]
    return made.conversation(level=level, round_=0, number=number)


def test_a_conversation_opens_with_what_prompt_says_and_its_turns_differ() -> None:
    first = source(**TALK).prompt(level=0, round_=0, number=5)  # type: ignore[arg-type]
    turns = talk(5).turns
    assert list(turns[0].messages) == first.messages
    texts = [turn.messages[0]["content"] for turn in turns]
    assert len(set(texts)) == len(texts) > 1
    assert [len(text.split(" ")) for text in texts] == [turn.input_tokens for turn in turns]


def test_conversations_have_the_asked_turns_and_think_times() -> None:
    talks = [talk(number) for number in range(400)]
    turns = np.array([len(one.turns) for one in talks])
    pauses = np.array([turn.think_s for one in talks for turn in one.turns[1:]])
    assert turns.mean() == pytest.approx(4, abs=0.2)
    assert pauses.mean() == pytest.approx(ThinkTime(mean_s=2, spread_s=1).expected_s, abs=0.1)
    assert {one.turns[0].think_s for one in talks} == {0.0}
    assert pauses.min() >= 0


def test_levels_hold_the_same_conversations_in_other_words() -> None:
    one, other = talk(3), talk(3, level=1)
    assert [turn.input_tokens for turn in one.turns] == [turn.input_tokens for turn in other.turns]
    assert one.turns[0].messages != other.turns[0].messages
    assert one.id != other.id


@pytest.mark.parametrize(
    ("history", "said"), [("live", "L0"), ("recorded", "the reply that was made for it")]
)
def test_d27_the_second_turn_repeats_the_history_that_was_chosen(history: str, said: str) -> None:
    one = talk(history=history)
    prompt = one.prompt(1, replies=["L0"])
    assert prompt.messages is not None
    assert [message["role"] for message in prompt.messages] == ["user", "assistant", "user"]
    recorded = one.turns[0].reply
    told = "L0" if recorded is None else recorded[0]["content"]
    assert prompt.messages[1]["content"] == told
    assert (told == "L0") is (said == "L0")
    assert (prompt.conversation, prompt.turn) == (one.id, 1)


def test_a_recorded_history_is_as_long_as_was_asked_for_and_a_live_one_is_not_known() -> None:
    given = overhead(12, turn=7)
    made = source(**TALK, given=given, history="recorded")  # type: ignore[arg-type]
    one = made.conversation(level=0, round_=0, number=0)
    own = [turn.input_tokens or 0 for turn in one.turns]
    words = " ".join(m["content"] for m in one.prompt(2).messages or []).split(" ")
    assert one.prompt(2).asked_input == sum(own[:3]) + 2 * 8 + 2 * 7
    assert len(words) == sum(own[:3]) - 12 + 2 * 8
    assert talk().prompt(1, replies=["L0"]).asked_input is None
