"""What calibration finds out about servers that count tokens in ways of their own."""

from collections.abc import Callable

import pytest

from loadgen.run.calibrate import Calibration, calibrate
from loadgen.scenario.model import Prompts
from loadgen.workload.prompt import Prompt
from loadgen.workload.synthetic import Given, SyntheticPrompts, universal_words

CONTEXT_SIZES = [8, 8, 64, 257]


def said(prompt: Prompt) -> list[str]:
    """The words of a prompt, of all its messages."""
    texts = [prompt.text or "", *(one["content"] for one in prompt.messages or ())]
    return [word for text in texts for word in text.split()]


class Counting:
    """A server that counts: tokens of a word, of a message's frame, and of the answer's head.

    tokens_of: of a word after a space. first: of one that begins a message, where that differs.
    """

    def __init__(
        self,
        tokens_of: Callable[[str], float] = lambda word: 1,
        *,
        first: Callable[[str], float] | None = None,
        frame: int = 5,
        head: int = 4,
    ) -> None:
        self.tokens_of = tokens_of
        self.first = first or tokens_of
        self.frame, self.head = frame, head
        self.asked: list[Prompt] = []
        self.splits = False

    async def ask(self, prompt: Prompt) -> int | None:
        self.asked.append(prompt)
        frames = self.frame * len(prompt.messages or ()) + self.head
        texts = [prompt.text or "", *(one["content"] for one in prompt.messages or ())]
        words = [text.split() for text in texts if text]
        later = sum(self.tokens_of(word) for one in words for word in one[1:])
        return frames + round(later + sum(self.first(one[0]) for one in words))

    async def pieces(self, text: str) -> list[str] | None:
        """Split words of two tokens into halves, as a tokenizer endpoint would tell."""
        if not self.splits:
            return None
        if text.startswith(" "):
            return [p for word in text.split() for p in halves(word, self.tokens_of, space=" ")]
        lines = [[*halves(word, self.first), "\n"] for word in text.split("\n")]
        return [piece for line in lines for piece in line][:-1]

    def splits_words(self) -> "Counting":
        """Let it tell the pieces of a text."""
        self.splits = True
        return self


def halves(word: str, tokens_of: Callable[[str], float], *, space: str = "") -> list[str]:
    return [space + word[:2], word[2:]] if tokens_of(word) > 1 else [space + word]


async def found(server: Counting, *, chat: bool = True, turns: bool = False) -> Calibration:
    return await calibrate(server.ask, server.pieces, chat=chat, turns=turns)


def longer_than_four(word: str) -> int:
    return 2 if len(word) > 4 else 1


async def test_one_token_for_each_word_is_linear_and_exact() -> None:
    server = Counting(frame=7)
    calibration = await found(server)
    assert (calibration.how, calibration.exact, calibration.note) == ("linear", True, None)
    assert calibration.overhead.tokens == 11
    assert calibration.probes == [(size, size + 11) for size in CONTEXT_SIZES]


async def test_probes_have_the_shape_of_the_runs_prompts_and_words_of_their_own() -> None:
    server = Counting()
    await found(server, chat=False)
    await found(server, chat=False)
    assert all(prompt.messages is None and prompt.asked_output == 1 for prompt in server.asked)
    assert len({prompt.hash for prompt in server.asked}) == 8


async def test_the_words_that_are_one_token_are_kept_by_the_servers_own_word() -> None:
    server = Counting(longer_than_four).splits_words()
    calibration = await found(server)
    assert (calibration.how, calibration.exact) == ("filtered", True)
    assert calibration.overhead.tokens == 9
    assert calibration.overhead.words == {w for w in universal_words() if len(w) <= 4}


async def test_a_piece_that_only_begins_a_word_does_not_pass_for_it() -> None:
    begun = {word[:2] for word in universal_words()} & set(universal_words())
    server = Counting(lambda word: 2 if len(word) > 4 or word in begun else 1).splits_words()
    calibration = await found(server)
    assert calibration.how == "filtered"
    assert not begun & (calibration.overhead.words or set())


async def test_words_that_are_one_token_without_a_space_too_are_preferred() -> None:
    server = Counting(
        longer_than_four, first=lambda word: 2 if word > "m" else longer_than_four(word)
    )
    calibration = await found(server.splits_words())
    assert calibration.how == "filtered"
    assert max(calibration.overhead.words or ()) < "m"


async def test_a_tokenizer_that_has_no_words_without_a_space_keeps_those_with_one() -> None:
    server = Counting(longer_than_four, first=lambda word: 3)
    calibration = await found(server.splits_words())
    assert (calibration.how, calibration.overhead.tokens) == ("filtered", 11)
    assert calibration.overhead.words == {w for w in universal_words() if len(w) <= 4}


async def test_words_that_are_not_tokens_are_scaled_and_said_to_be() -> None:
    calibration = await found(Counting(lambda word: 2.3))
    assert (calibration.how, calibration.exact) == ("scaled", False)
    assert calibration.overhead.per_word == pytest.approx(2.3, abs=0.01)
    assert calibration.overhead.tokens == pytest.approx(9, abs=1)
    assert "2.30 tokens each" in (calibration.note or "")


async def test_the_mean_is_that_of_the_whole_list_however_the_words_were_drawn() -> None:
    def tokens_of(word: str) -> int:
        return 1 + sum(map(ord, word)) % 7  # as uneven as a tiny vocabulary is

    mean = sum(map(tokens_of, universal_words())) / len(universal_words())
    for _ in range(20):
        server = Counting(tokens_of)
        overhead = (await found(server)).overhead
        assert overhead.per_word == pytest.approx(mean, rel=0.015)
        assert overhead.tokens == pytest.approx(9, abs=25)
        counted = [word for prompt in server.asked[4:] for word in said(prompt)]
        assert sorted(counted) == sorted(universal_words())


async def test_a_server_that_counts_slowly_is_not_asked_for_the_whole_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loadgen.run.calibrate._COUNTING_S", 0.0)
    server = Counting(lambda word: 2.3)
    assert (await found(server)).how == "scaled"
    assert len(server.asked) == 5


async def test_too_few_usable_words_are_scaled_too() -> None:
    few = set(universal_words()[:150])
    server = Counting(lambda word: 1 if word in few else 2).splits_words()
    assert (await found(server)).how == "scaled"


async def test_a_small_context_that_refuses_the_longest_probe_is_still_linear() -> None:
    class Small(Counting):
        async def ask(self, prompt: Prompt) -> int | None:
            return await super().ask(prompt) if len(said(prompt)) < 200 else None

    calibration = await found(Small())
    assert (calibration.how, calibration.overhead.tokens) == ("linear", 9)
    assert [size for size, _ in calibration.probes] == [8, 8, 64]


class Mute(Counting):
    """No usage at all."""

    async def ask(self, prompt: Prompt) -> int | None:
        self.asked.append(prompt)
        return None


class Stuck(Counting):
    """The same number for every prompt."""

    async def ask(self, prompt: Prompt) -> int | None:
        self.asked.append(prompt)
        return 17


class Tiny(Counting):
    """Refuses all but the shortest: one size says nothing of a slope."""

    async def ask(self, prompt: Prompt) -> int | None:
        return await super().ask(prompt) if len(said(prompt)) < 10 else None


@pytest.mark.parametrize("server", [Mute(), Stuck(), Tiny()], ids=["mute", "constant", "tiny"])
async def test_a_count_that_tells_nothing_is_unknown_and_leaves_words_as_they_are(
    server: Counting,
) -> None:
    calibration = await found(server)
    assert (calibration.how, calibration.exact) == ("unknown", False)
    assert (calibration.overhead.tokens, calibration.overhead.per_word) == (0, 1.0)
    assert "no usable count" in (calibration.note or "")


async def test_what_a_reply_and_a_further_turn_add_is_asked_for_where_there_are_turns() -> None:
    server = Counting(frame=5, head=4)
    assert (await found(server, turns=True)).overhead.turn == 10  # two more messages
    assert (await found(server, turns=False)).overhead.turn == 0


@pytest.mark.parametrize("row", ["F06", "F07"])
@pytest.mark.parametrize(
    "server",
    [Counting(frame=12), Counting(longer_than_four).splits_words()],
    ids=["linear", "filtered"],
)
async def test_prompts_made_by_it_are_counted_as_they_were_asked_for(
    row: str, server: Counting
) -> None:
    calibration = await found(server, turns=True)
    lengths = {"distribution": "uniform", "min": 20, "max": 1500}
    prompts = Prompts.model_validate(
        {"input_tokens": lengths, "output_tokens": 8, "turns": 3, "history": "recorded"}
    )
    made = SyntheticPrompts(
        prompts, seed=1, nonce="ab", endpoint="chat", given=Given(overhead=calibration.overhead)
    )
    for number in range(20):
        conversation = made.conversation(level=0, round_=0, number=number)
        for turn in range(3):
            prompt = conversation.prompt(turn)
            assert await server.ask(prompt) == prompt.asked_input
