"""The engine in virtual time: known answers and laws, no socket and no clock."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator_make import MS, PLAIN, closed_loop, run_out, sequence

from loadgen.simulator.engine import (
    BLOCK_TOKENS,
    Engine,
    EngineSpec,
    PrefixCache,
    block_hashes,
)


def test_a_lone_request_gets_prefill_then_steps_of_base_plus_one_sequence() -> None:
    engine, one = Engine(PLAIN), sequence(100, 4)
    engine.submit(one, now_ns=0)
    assert run_out(engine)[one.key] == pytest.approx([20, 31, 42, 53])  # 10 + 100/10; then 10 + 1


def test_each_token_of_context_lengthens_the_step() -> None:
    engine, one = Engine(replace(PLAIN, step_per_context_token_s=0.0001)), sequence(100, 3)
    engine.submit(one, now_ns=0)
    times = run_out(engine)[one.key]
    assert np.diff(times) == pytest.approx([11 + 10.1, 11 + 10.2])


def test_a_request_that_comes_within_a_step_waits_for_the_next() -> None:
    engine, first, second = Engine(PLAIN), sequence(100, 3), sequence(100, 1)
    engine.submit(first, now_ns=0)
    engine.submit(second, now_ns=5 * MS)
    assert run_out(engine)[second.key] == pytest.approx([20 + 10 + 1 + 10])


def test_a_late_caller_gets_the_same_steps() -> None:
    def ends(lateness_ns: int) -> list[int]:
        engine = Engine(replace(PLAIN, noise=0.2), seed=3)
        engine.submit(sequence(50, 6), now_ns=0)
        found = []
        while (at_ns := engine.next_event_ns()) is not None:
            step = engine.step(at_ns + lateness_ns)
            assert step is not None
            found.append(step.end_ns)
        return found

    assert ends(0) == ends(7 * MS)


def test_a_late_caller_does_not_let_a_request_into_a_step_before_its_arrival() -> None:
    engine, early, late = Engine(PLAIN), sequence(100, 3), sequence(100, 1)
    engine.submit(early, now_ns=0)  # steps end at 20, 31, 42 ms
    engine.submit(late, now_ns=30 * MS)  # handed in before the step of 20 ms was asked for
    assert run_out(engine)[late.key] == pytest.approx([31 + 10 + 1 + 10])


def test_nothing_is_due_early_and_an_idle_engine_has_no_event() -> None:
    engine = Engine(PLAIN)
    assert engine.next_event_ns() is None
    engine.submit(sequence(100, 1), now_ns=0)
    assert engine.step(20 * MS - 1) is None
    assert engine.step(20 * MS) is not None
    assert engine.next_event_ns() is None


def test_throughput_has_a_knee_at_the_limit_of_running_sequences() -> None:
    rates = {slots: closed_loop(EngineSpec(), slots).tokens_per_s for slots in (1, 8, 16, 32)}
    assert rates[8] > 4 * rates[1]
    assert rates[16] > 1.4 * rates[8]
    assert rates[32] < 1.1 * rates[16]


def test_ttft_rises_past_the_knee() -> None:
    before, after = closed_loop(EngineSpec(), 16), closed_loop(EngineSpec(), 32)
    assert after.ttft_ms > 5 * before.ttft_ms


def test_a_long_prompt_is_taken_in_chunks_while_others_go_on_decoding() -> None:
    engine, short, long = Engine(PLAIN), sequence(10, 8), sequence(1000, 1)
    engine.submit(short, now_ns=0)
    engine.submit(long, now_ns=1)
    times = run_out(engine)
    assert sum(at < times[long.key][0] for at in times[short.key]) == 2  # 511 + 489 tokens
    assert np.diff(times[short.key])[0] == pytest.approx(10 + 1 + 51.1)


def test_the_queue_is_first_come_first_served_even_if_a_later_one_would_fit() -> None:
    engine = Engine(replace(PLAIN, kv_tokens=300))
    first, big, small = sequence(200, 5), sequence(250, 5), sequence(10, 5)
    for one in (first, big, small):
        engine.submit(one, now_ns=0)
    assert (engine.running, engine.waiting) == (1, 2)
    times = run_out(engine)
    assert times[big.key][0] > times[first.key][-1]
    assert times[small.key][0] >= times[big.key][0]


def test_kv_tokens_are_given_back() -> None:
    engine = Engine(PLAIN)
    engine.submit(sequence(100, 4), now_ns=0)
    assert engine.kv_held == 104
    run_out(engine)
    assert (engine.kv_held, engine.running) == (0, 0)


def test_what_can_never_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        Engine(replace(PLAIN, kv_tokens=100)).submit(sequence(100, 1), now_ns=0)


@pytest.mark.parametrize("running", [True, False], ids=["running", "waiting"])
def test_a_cancelled_sequence_gives_up_its_place_and_its_tokens(running: bool) -> None:
    engine = Engine(replace(PLAIN, max_running=1))
    first, second = sequence(100, 50), sequence(100, 2)
    engine.submit(first, now_ns=0)
    engine.submit(second, now_ns=0)
    engine.cancel(first if running else second)
    times = run_out(engine)
    assert set(times) == {second.key if running else first.key}
    assert (engine.kv_held, engine.running, engine.waiting) == (0, 0, 0)


def test_cancelling_twice_is_harmless() -> None:
    engine, one = Engine(PLAIN), sequence()
    engine.submit(one, now_ns=0)
    engine.cancel(one)
    engine.cancel(one)
    assert run_out(engine) == {}


def test_a_known_prefix_shortens_the_prefill() -> None:
    blocks = block_hashes([str(number) for number in range(96)])
    engine = Engine(PLAIN)
    for start_ms in (0, 1000):
        engine.submit(one := sequence(100, 1, blocks=blocks), now_ns=start_ms * MS)
        times = run_out(engine)[one.key]
    assert one.cached_tokens == 96
    assert times == pytest.approx([1000 + 10 + 0.4])
    assert (engine.prefix_queries, engine.prefix_hits) == (200, 96)


def test_the_last_prompt_token_is_computed_even_if_all_are_known() -> None:
    blocks = block_hashes([str(number) for number in range(32)])
    engine = Engine(PLAIN)
    for start_ms in (0, 1000):
        engine.submit(one := sequence(32, 1, blocks=blocks), now_ns=start_ms * MS)
        run_out(engine)
    assert one.cached_tokens == 31


def test_a_block_is_known_by_all_that_stands_before_it() -> None:
    words = [str(number) for number in range(3 * BLOCK_TOKENS)]
    other = ["x", *words[1:]]
    assert block_hashes(words)[:2] == block_hashes(words[: 2 * BLOCK_TOKENS])
    assert not set(block_hashes(words)) & set(block_hashes(other))


def test_the_cache_forgets_what_was_used_least_recently() -> None:
    cache = PrefixCache(2 * BLOCK_TOKENS)
    cache.store((1, 2))
    cache.match((1,))
    cache.store((3,))
    assert (cache.match((1,)), cache.match((2,))) == (BLOCK_TOKENS, 0)


def test_a_cache_of_no_tokens_knows_nothing() -> None:
    cache = PrefixCache(0)
    cache.store((1, 2))
    assert cache.match((1, 2)) == 0


def test_only_the_first_step_is_cold_and_a_probe_does_not_take_it_away() -> None:
    engine = Engine(replace(PLAIN, cold_start_s=5))
    firsts = []
    for start_ms, tokens in ((0, 1), (1000, 2), (10_000, 2)):
        engine.submit(one := sequence(100, tokens), now_ns=start_ms * MS)
        firsts.append(run_out(engine)[one.key][0])
    assert firsts == pytest.approx([20, 6020, 10_020])


def test_speed_divides_every_duration() -> None:
    engine, one = Engine(replace(PLAIN, speed=10)), sequence(100, 4)
    engine.submit(one, now_ns=0)
    assert run_out(engine)[one.key] == pytest.approx([2.0, 3.1, 4.2, 5.3])


def test_a_chip_that_heats_up_slows_down_by_the_minute() -> None:
    engine = Engine(replace(PLAIN, drift_per_min=0.1))
    for start_ms, lasts in ((0, 20), (60_000, 22), (120_000, 24)):
        engine.submit(one := sequence(100, 1), now_ns=start_ms * MS)
        assert run_out(engine)[one.key] == pytest.approx([start_ms + lasts])


def test_noise_is_seeded_and_keeps_the_mean() -> None:
    def gaps(seed: int) -> list[float]:
        engine, one = Engine(replace(PLAIN, noise=0.3), seed=seed), sequence(1, 4000)
        engine.submit(one, now_ns=0)
        return list(np.diff(run_out(engine)[one.key]))

    assert gaps(1) == gaps(1) != gaps(2)
    assert np.mean(gaps(1)) == pytest.approx(11, rel=0.02)  # 4 standard errors
    assert np.std(np.log(gaps(1))) == pytest.approx(0.3, rel=0.05)


@settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(
        st.tuples(st.integers(1, 900), st.integers(1, 40), st.integers(0, 300)),
        min_size=1,
        max_size=25,
    )
)
def test_every_sequence_gets_exactly_its_tokens_in_order(
    asked: list[tuple[int, int, int]],
) -> None:
    engine = Engine(replace(PLAIN, max_running=4, kv_tokens=1500))
    sequences = [sequence(prompt, output) for prompt, output, _ in asked]
    for one, arrival in zip(sequences, sorted(at for _, _, at in asked), strict=True):
        engine.submit(one, now_ns=arrival * MS)
        assert engine.running <= 4
        assert engine.kv_held <= 1500
    times = run_out(engine)
    for one in sequences:
        assert len(times[one.key]) == one.output_tokens
        assert all(gap > 0 for gap in np.diff(times[one.key]))
