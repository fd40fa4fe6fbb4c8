"""Client and server side by side, by hand: equal, or unequal for a reason that is named."""

from collections.abc import Sequence
from typing import Any

import pytest
from make import level, make_run, record
from telemetry_make import S, histogram, series, span, with_readings

from loadgen.analysis.metrics import summarise
from loadgen.analysis.server_side import Foreign, Reconciled
from loadgen.analysis.summary import LevelSummary
from loadgen.analysis.tracks import aligned
from loadgen.record import Outcome, Record

W = level(window=(0, 10_000), start_ns=0, end_ns=12_000_000_000)
TTFT, ITL = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
BOUNDS = (0.05, 0.1, 0.5, 1.0)


def ours(n: int = 10, **facts: Any) -> list[Record]:
    """Requests half a second apart: 16 tokens in, TTFT 100 ms, then 3 more tokens 10 ms apart."""
    told = {"reported_input": 16, "reported_output": 4, **facts}
    return [record(i, sent=500.0 * i + 100, at=[100, 110, 120, 130], **told) for i in range(n)]


def server(
    *, done: float = 10, output: float = 40, ttft: Sequence[float] = (), itl: Sequence[float] = ()
) -> list[Any]:
    """What the page rose by from before the level to after it."""
    return [
        series("vllm:request_success_total", {0: 3, 12: 3 + done}, finished_reason="length"),
        series("vllm:generation_tokens_total", {0: 9, 12: 9 + output}),
        series("vllm:prompt_tokens_total", {0: 1, 12: 161}),
        histogram(TTFT, 0, [5.0], bounds=BOUNDS), histogram(TTFT, 10, [5.0, *ttft], bounds=BOUNDS),
        histogram(ITL, 0, [], bounds=BOUNDS), histogram(ITL, 10, [*itl], bounds=BOUNDS),
    ]  # fmt: skip


def of(records: Sequence[Record], *parts: Any, **facts: Any) -> LevelSummary:
    return summarise(with_readings(make_run(records, [W], **facts), *parts)).levels[0]


def named(found: LevelSummary) -> dict[str, Reconciled]:
    return {one.what: one for one in found.reconciled}


def test_counts_that_are_equal_agree() -> None:
    found = named(of(ours(), *server()))
    for what, value in (("output tokens", 40), ("input tokens", 160), ("requests done", 10)):
        one = found[what]
        assert (one.client, one.server, one.gap, one.text, one.agrees) == (
            value, value, 0, "equal", True)  # fmt: skip


def test_warm_up_and_what_failed_count_as_the_server_counts_them() -> None:
    warm = record(10, sent=0, at=[100, 110], phase="warmup", reported_input=16, reported_output=2)
    cut = record(11, sent=9000, at=[100, 110, 120], outcome=Outcome.BROKEN, asked_input=16)
    found = named(of([*ours(), warm, cut], *server(output=45)))
    assert (found["output tokens"].client, found["output tokens"].gap) == (45, 0)
    assert found["input tokens"].client == 192


def test_what_the_server_made_after_a_cut_is_named() -> None:
    cut = record(10, sent=9000, at=[100], outcome=Outcome.UNFINISHED, end_ms=9900, asked_output=64)
    found = of([*ours(), cut], *server(output=71))
    one = named(found)["output tokens"]
    assert (one.gap, one.agrees) == (-30, False)
    assert one.text == (
        "30 more at the server (73.17%): 1 request not received whole here, and it went on"
    )
    assert found.others is None


def test_requests_that_are_not_ours_are_other_traffic() -> None:
    found = of(ours(), *server(done=60, output=900))
    assert found.others == Foreign(requests=50)
    assert "it also served others" in named(found)["output tokens"].text
    check = {one.name: one for one in found.checks}["other traffic at the server"]
    assert (check.verdict, check.value, check.unit) == ("warn", 50, "requests")


def test_what_others_cannot_explain_is_not_laid_at_their_door() -> None:
    """More requests at the server and fewer tokens: its counters are not those of this level."""
    found = named(of(ours(40), *server(done=90, output=20)))
    assert "it also served others" in found["requests done"].text
    assert found["output tokens"].text == (
        "140 more at the client (87.50%): not all of them reached the server whose page was read"
    )


def test_without_a_count_of_requests_the_tokens_tell_of_others() -> None:
    tokens = series("llamacpp:tokens_predicted_total", {0: 0, 12: 1040})
    assert of(ours(), tokens).others == Foreign(output_tokens=1000)
    cut = record(10, sent=9000, at=[100], outcome=Outcome.TIMEOUT, asked_output=2000)
    assert of([*ours(), cut], tokens).others is None


def test_retries_and_choices_are_our_own() -> None:
    tried = ours(attempts=3)
    assert of(tried, *server(done=30)).others is None


def test_the_gap_between_the_ttfts_is_explained_by_its_parts() -> None:
    sent = [record(i, sent=500.0 * i, at=[100, 110], written_ms=500.0 * i + 2) for i in range(9)]
    queue = "vllm:request_queue_time_seconds"
    waits = [histogram(queue, at, [0.06] * n, bounds=BOUNDS) for at, n in ((0, 0), (10, 9))]
    parts = [*server(ttft=[0.094] * 9), *waits]
    found = named(of(sent, *parts, preflight={"connect_ns": 1_000_000}))["TTFT mean"]
    assert (found.client, found.server, found.gap) == pytest.approx((100, 94, 6))
    assert found.agrees
    assert found.text == (
        "6 ms between them: 1 ms round trip (time to connect) + 2 ms sending the prompt + 3 ms"
        " that remain: HTTP, any wait before the server's clock starts;"
        " of the server's: 60 ms queue"
    )


def test_a_ttft_far_longer_here_does_not_agree() -> None:
    found = named(of(ours(), *server(ttft=[0.04] * 10)))["TTFT mean"]
    assert (round(found.gap), found.agrees) == (60, False)


def test_a_ttft_longer_at_the_server_cannot_be_of_the_same_requests() -> None:
    found = named(of(ours(), *server(ttft=[0.3] * 10)))["TTFT mean"]
    assert (round(found.gap), found.agrees) == (-200, False)
    assert found.text.startswith("the server's is longer, which cannot be for the same requests")


def test_unlike_numbers_of_first_tokens_are_said() -> None:
    assert named(of(ours(), *server(ttft=[0.1] * 10)))["TTFT mean"].text == "0 ms between them"
    found = named(of(ours(), *server(done=30, ttft=[0.1] * 30)))["TTFT mean"]
    assert found.text.endswith("30 first tokens at the server, 10 here")


def test_the_clients_own_lag_is_named_where_stamps_are_user_space() -> None:
    found = of(ours(), *server(ttft=[0.09] * 10), client={"stamps": "user"})
    assert "the client's own lag (user-space stamps)" in named(found)["TTFT mean"].text


def test_gaps_are_compared_token_by_token() -> None:
    found = named(of(ours(), *server(itl=[0.01] * 30)))["ITL mean"]
    assert (found.client, found.server, found.agrees) == (
        pytest.approx(10),
        pytest.approx(10),
        True,
    )
    fours = named(of(ours(reported_output=16), *server(output=160, itl=[0.0025] * 120)))["ITL mean"]
    assert (fours.client, fours.agrees) == (pytest.approx(2.5), True)
    assert "gaps between chunks / 4 tokens per chunk" in fours.text


def drafts(name: str) -> list[Any]:
    return [*series(f"vllm:spec_decode_num_{name}_tokens_total", {0: 0, 10: 90})]


def test_gaps_between_steps_are_compared_undivided_where_drafts_were_taken() -> None:
    """vLLM notes a gap once for all tokens of a step; a chunk here is such a step."""
    told = [*server(output=100, itl=[0.01] * 30), drafts("draft"), drafts("accepted")]
    one = named(of(ours(reported_output=10), *told))["ITL mean"]
    assert (one.client, one.server, one.agrees) == (pytest.approx(10), pytest.approx(10), True)
    assert one.text.endswith("both are gaps between steps, of 2.5 tokens each (drafts taken)")


def test_gaps_of_an_engine_that_notes_them_token_by_token_are_divided() -> None:
    itl = "sglang:inter_token_latency_seconds"
    told = [histogram(itl, 0, [], bounds=BOUNDS), histogram(itl, 10, [0.0025] * 120, bounds=BOUNDS),
            series("sglang:spec_accept_length", dict.fromkeys(range(12), 4.0))]  # fmt: skip
    one = named(of(ours(reported_output=16), *told))["ITL mean"]
    assert (one.client, one.agrees) == (pytest.approx(2.5), True)


def test_times_are_compared_over_whole_readings() -> None:
    import numpy as np

    sweeps = np.array([0.4, 1.0, 2.0, 3.0, 4.2]) * S
    assert aligned([span(0.5, 4)], sweeps) == [span(1, 3)]
    assert aligned([span(0.5, 1.9), span(2, 3)], sweeps) == [span(2, 3)]


def test_the_servers_own_table_and_the_comparison_speak_of_the_same_stretch() -> None:
    """Whole readings from 1 to 9 s; one before them saw a first token of 400 ms."""
    slow, quick = [0.4], [0.1] * 9
    told = [(-0.5, []), (1, slow), (9, [*slow, *quick]), (10.5, [*slow, *quick, 0.9])]
    queue = "vllm:request_queue_time_seconds"
    readings = [histogram(name, at, seen, bounds=BOUNDS) for name in (TTFT, queue)
                for at, seen in told]  # fmt: skip
    found = of(ours(), *readings)
    assert found.server is not None
    assert found.server.ttft_ms is not None
    assert found.server.ttft_ms == found.server.queue_ms
    assert named(found)["TTFT mean"].server == found.server.ttft_ms.mean == pytest.approx(100)


def test_nothing_heard_reconciles_nothing() -> None:
    found = of(ours())
    assert (found.server, found.reconciled, found.others) == (None, [], None)
