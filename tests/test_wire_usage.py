"""Token accounting: running totals, one usage per choice, tokens per chunk."""

import pytest
from wire_cases import DONE, Case, Seen, at, chunk, d, event, fin, play, reads, tokens, usage

from loadgen.client.answer import Endpoint


def running(text: str, total: int, index: int = 0) -> bytes:
    return d(text, index, usage=tokens(5, total))


def ids(text: str, *token_ids: int) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "token_ids": list(token_ids)}
    return event({"choices": [choice]})


def seen(*parts: bytes, many: bool = False, endpoint: Endpoint = "chat") -> Seen:
    return play(Case(reads=reads(*parts), many=many, endpoint=endpoint, expect={}))


@pytest.mark.parametrize(
    ("parts", "output"),
    [
        pytest.param([running("a", 1), running("b", 2)], 2, id="running"),
        pytest.param([running("a", 1), usage(5, 1)], 1, id="running-then-final"),
        pytest.param([running("a", 3), usage(5, 0)], 3, id="a-final-0-says-nothing"),
        pytest.param([d("a"), usage(5, 1), usage(5, 2)], 2, id="two-finals-are-not-summed"),
        pytest.param([d("a"), usage(5, 0)], 0, id="0-is-kept-as-0"),
        pytest.param([d("a")], None, id="none"),
    ],
)
def test_one_choices_usage_is_the_last(parts: list[bytes], output: int | None) -> None:
    assert seen(*parts).usage[1] == output


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([usage(5, 4), usage(5, 3)], (5, 7), id="one-final-each"),
        pytest.param([usage(5, 7)], (5, 7), id="one-final-for-all"),
        pytest.param(
            [running("a", 1), running("x", 1, 1), running("b", 2)], (5, 3), id="running-each"
        ),
        pytest.param(
            [running("a", 1), running("x", 2, 1), running("b", 3)], (5, 3), id="running-over-all"
        ),
        pytest.param([running("a", 3), running("x", 4, 1)], (5, 7), id="once-each-at-the-finish"),
        pytest.param([running("a", 1), running("x", 1, 1), usage(5, 2)], (5, 2), id="final-wins"),
        pytest.param(
            [event({"choices": [{"index": 0}, {"index": 1}], "usage": tokens(5, 7)})], (5, 7),
            id="one-event-for-all",
        ),
    ],
)  # fmt: skip
def test_the_usage_of_several_choices_counts_each_once(
    parts: list[bytes], expected: tuple[int, int]
) -> None:
    assert seen(*parts, many=True).usage == expected


def test_several_prompts_add_their_prompt_tokens_too() -> None:
    assert seen(usage(5, 4), usage(6, 4), many=True, endpoint="completions").usage == (11, 8)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([ids("a", 1, 2), ids("b", 3)], [2, 1], id="token-ids"),
        pytest.param([ids("", 1), ids("b", 2)], [2], id="textless-ids-go-to-the-next"),
        pytest.param([running("", 1), running("b", 2)], [2], id="so-do-its-totals"),
        pytest.param([d("a"), running("b", 2)], [None, None], id="unknown-stays-unknown"),
        pytest.param([running("a", 2), running("b", 1)], [2, None], id="a-total-that-falls"),
        pytest.param([running("a", 1), running("x", 1, 1)], [1, 1], id="per-choice"),
    ],
)  # fmt: skip
def test_a_chunks_tokens_are_known_only_where_the_server_says(
    parts: list[bytes], expected: list[int | None]
) -> None:
    assert seen(*parts, many=True).chunk_tokens == expected


@pytest.mark.parametrize(
    ("parts", "known"),
    [
        pytest.param([running("a", 1), running("b", 2)], True, id="running"),
        pytest.param([running("a", 1), d("b"), usage(5, 2)], False, id="one-unknown"),
        pytest.param([running("a", 5), usage(5, 2)], False, id="more-than-the-total"),
        pytest.param(
            [running("a", 1), running("x", 2, 1), running("b", 3)], False, id="one-total-over-all"
        ),
        pytest.param([fin("stop")], False, id="no-chunk"),
    ],
)
def test_chunk_tokens_that_do_not_add_up_are_not_trusted(parts: list[bytes], known: bool) -> None:
    found = seen(*parts, many=True)
    assert found.tokens_known is known
    assert (found.first_chunk_tokens is not None) is known


@pytest.mark.parametrize(
    ("details", "reasoning", "flags"),
    [
        ({"completion_tokens_details": {"reasoning_tokens": 4}}, 4, ["hidden_reasoning"]),
        ({"reasoning_tokens": 4}, 4, ["hidden_reasoning"]),
        ({"completion_tokens_details": {"reasoning_tokens": 0}}, 0, []),
        ({"completion_tokens_details": None}, None, []),
    ],
)
def test_reasoning_that_never_streamed_is_flagged(
    details: dict[str, object], reasoning: int | None, flags: list[str]
) -> None:
    found = seen(d("a"), fin("stop"), usage(5, 9, **details), DONE)
    assert (found.reasoning, found.flags) == (reasoning, flags)


def test_reasoning_that_streamed_is_not_hidden() -> None:
    found = seen(chunk({"reasoning": "hm"}), fin("stop"), usage(5, 9, reasoning_tokens=4), DONE)
    assert found.flags == []


@pytest.mark.parametrize(("n", "flags"), [(1, ["usage_below_chunks"]), (2, []), (3, [])])
def test_a_usage_far_below_the_chunks_is_flagged(n: int, flags: list[str]) -> None:
    assert seen(d("a"), d("b"), d("c"), fin("stop"), usage(5, n), DONE).flags == flags


def test_cached_prompt_tokens_are_kept() -> None:
    found = seen(d("a"), usage(5, 1, prompt_tokens_details={"cached_tokens": 4}))
    assert found.cached_input == 4


@pytest.mark.parametrize("n", [True, 2.0, "2", None, -1, [2]])
def test_a_count_that_is_not_a_whole_number_is_no_count(n: object) -> None:
    body = {"choices": [], "usage": {"prompt_tokens": n, "completion_tokens": n}}
    assert play(Case(reads=[at(1, d("a"), event(body))], expect={})).usage == (None, None)
