"""A run that does harm stops by itself: the rules, and the command that keeps them."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from drive import loadgen, measure, read, strict_json
from make import ns, record
from serve import Asked, Out, scripted

from loadgen.record import Outcome, Record
from loadgen.run.abort import Age, Watch
from loadgen.run.events import Event, Notice
from loadgen.scenario.abort import parse_abort_rule

pytestmark = pytest.mark.slow  # whole runs: seconds each


def watch(*rules: str, ended: Iterable[Record] = ()) -> Watch:
    made = Watch([parse_abort_rule(rule) for rule in rules])
    for one in ended:
        made.take(one)
    return made


def good(number: int, *, ttft_ms: float = 100) -> Record:
    """An answer that ends ``number`` times 100 ms into the run, after ``ttft_ms``."""
    end = 100.0 * number
    return record(number, sent=end - ttft_ms, at=[ttft_ms])


def bad(number: int, outcome: Outcome = Outcome.REFUSED) -> Record:
    return record(number, outcome=outcome, end_ms=100.0 * number)


def after(watching: Watch, ms: float) -> str | None:
    return watching.judge(ns(ms))


@pytest.mark.parametrize(
    ("failed", "said"),
    [(5, None), (6, "errors > 50% over 5s: 60% of the last 5 s")],
    ids=["at-the-bound", "above-it"],
)
def test_a_share_of_failures_above_the_bound_is_told(failed: int, said: str | None) -> None:
    rows = [bad(i) if i < failed else good(i) for i in range(10)]
    assert after(watch("errors > 50% over 5s", ended=rows), 1000) == said


def test_fewer_than_ten_requests_say_nothing() -> None:
    nine = watch("errors > 1% over 5s", ended=[bad(i) for i in range(9)])
    assert after(nine, 1000) is None
    nine.take(bad(9))
    assert after(nine, 1000) is not None


def test_few_slots_and_long_limits_are_judged_by_the_last_ten() -> None:
    """Four slots, each given up after 60 s: never more than four within the window."""
    watching = watch("errors > 50% over 10s", "ttft p50 > 90s over 10s")
    for wave in range(1, 4):
        for _ in range(4):
            watching.take(record(wave, outcome=Outcome.TIMEOUT, end_ms=60_000.0 * wave))
        found = after(watching, 60_000 * wave + 500)
        assert (found is not None) == (wave == 3)
    assert found == "errors > 50% over 10s: 100% of the last 10 requests"
    assert watching.judge(ns(190_000)) is not None  # kept, although long ago


def test_only_what_ended_within_the_window_counts() -> None:
    rows = [*(bad(i) for i in range(20)), *(good(i) for i in range(20, 40))]
    watching = watch("errors > 10% over 2s", ended=rows)
    assert after(watching, 3000) is not None
    assert after(watching, 3950) is None


def test_each_rule_has_a_window_of_its_own() -> None:
    rows = [*(bad(i) for i in range(20)), *(good(i) for i in range(20, 40))]
    watching = watch("errors > 10% over 1s", "errors > 45% over 10s", ended=rows)
    assert (after(watching, 3950) or "").startswith("errors > 45% over 10s: 50%")


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("ttft p90 > 300ms over 5s", "400 ms over the last 5 s"),
        ("ttft p50 > 300ms over 5s", None),
        ("e2e p90 > 399ms over 5s", "400 ms over the last 5 s"),
        ("ttfo p90 > 400ms over 5s", None),
    ],
)
def test_a_percentile_above_the_bound_is_told(rule: str, said: str | None) -> None:
    rows = [good(i, ttft_ms=400 if i % 5 == 0 else 100) for i in range(10, 30)]
    found = after(watch(rule, ended=rows), 3000)
    assert found == (said and f"{rule}: {said}")


def test_a_failed_request_is_infinitely_slow() -> None:
    rows = [bad(i) if i % 2 else good(i) for i in range(20)]
    rule = "ttft p95 > 10s over 5s"
    told = "requests failed, which counts as infinitely slow, over the last 5 s"
    assert after(watch(rule, ended=rows), 2000) == f"{rule}: {told}"


def test_an_answer_without_a_first_token_of_its_own_is_not_slow() -> None:
    flags = ["non_stream_response"]
    whole = [record(i, sent=0, end_ms=100.0 * i, flags=flags) for i in range(20)]
    assert after(watch("ttft p50 > 1ms over 5s", ended=whole), 2000) is None
    assert after(watch("e2e p50 > 1ms over 5s", ended=whole), 2000) is not None


@pytest.mark.parametrize("outcome", [Outcome.DROPPED, Outcome.UNFINISHED, Outcome.CANCELLED])
def test_what_the_client_itself_cut_is_no_failure(outcome: Outcome) -> None:
    rows = [*(bad(i, outcome) for i in range(30)), *(good(i) for i in range(10))]
    assert after(watch("errors > 1% over 5s", ended=rows), 2000) is None


@pytest.mark.parametrize(
    ("rule", "in_flight", "broken"),
    [
        ("ttft p50 > 1s over 5s", Age(1001, answered=False), True),
        ("ttft p50 > 1s over 5s", Age(999, answered=False), False),
        ("ttft p50 > 1s over 5s", Age(1001, answered=True), False),
        ("e2e p50 > 1s over 5s", Age(1001, answered=True), True),
        ("errors > 1% over 5s", Age(1001, answered=False), False),
    ],
    ids=["silent", "not-yet-slow", "answering", "answering-for-long", "no-error-yet"],
)
def test_a_request_in_flight_is_slow_before_it_ends(
    rule: str, in_flight: Age, broken: bool
) -> None:
    found = watch(rule).judge(ns(2000), [in_flight] * 12)
    assert (found is not None) == broken


def test_without_rules_nothing_is_kept_nor_told() -> None:
    assert after(watch(ended=[bad(i) for i in range(30)]), 3000) is None


# --- the command


async def refuse(asked: Asked, out: Out) -> None:
    if asked.json["max_tokens"] == 1:  # the preflight's
        await out.stream("a")
    else:
        await out.whole(503, {"error": {"message": "full"}})


async def dawdle(asked: Asked, out: Out) -> None:
    await out.stream("a", every_s=0.0 if asked.json["max_tokens"] == 1 else 0.06)


@pytest.mark.parametrize(
    ("script", "rule"),
    [
        pytest.param(refuse, "errors > 50% over 1s", id="errors"),
        pytest.param(dawdle, "ttft p50 > 30ms over 1s", id="ttft", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_breaks_a_rule_stops_early_says_so_and_exits_1(
    script: object, rule: str, tmp_path: Path
) -> None:
    with scripted(script) as server:
        done = loadgen("run", "--url", server.url, "-c", "4,4", "--duration", "30s",
                       "--input-tokens", "8", "--output-tokens", "4", "--abort-if", rule,
                       "--out", str(tmp_path / "run"), timeout=20)  # fmt: skip
    manifest, records = read(tmp_path / "run")
    (entry,) = manifest["levels"]  # the second level was never begun
    assert done.returncode == 1, done.stderr
    assert manifest["status"] == "failed"
    assert entry["stop_reason"].startswith(f"abort: {rule}: ")
    assert f"aborted: {rule}: " in done.stderr
    assert "Traceback" not in done.stderr
    assert entry["end_ns"] - entry["start_ns"] < 5e9
    assert len(records) == entry["arrivals"]
    summary = strict_json((tmp_path / "run" / "summary.json").read_text())
    assert summary["levels"][0]["stop_reason"] == entry["stop_reason"]


@pytest.mark.slow
def test_a_server_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    async def hang(asked: Asked, out: Out) -> None:
        await out.stream("a", every_s=0.0 if asked.json["max_tokens"] == 1 else 30.0)

    rule, events = "ttft p50 > 300ms over 1s", list[Event]()
    with scripted(hang) as server:
        manifest, records = measure(
            server.url,
            tmp_path / "run",
            events=events,
            abort_if=[rule],
            levels=[{"rate": 40.0}],
            each_level={"warmup": "0 requests", "measure": "20s", "drain": "1.2s"},
        )
    told = [event for event in events if isinstance(event, Notice) and event.stops]
    assert len(told) == 1  # not again and again while it drains
    level = manifest["levels"][0]
    assert level["stop_reason"].startswith(f"abort: {rule}: ")
    assert level["end_ns"] - level["start_ns"] < 4e9
    assert {row["outcome"] for row in records} == {"unfinished"}


@pytest.mark.slow
def test_a_run_that_keeps_its_rules_is_not_touched(tmp_path: Path) -> None:
    rules = ["ttft p95 > 5s over 1s", "errors > 5% over 2s"]
    with scripted(dawdle) as server:
        manifest, records = measure(
            server.url,
            tmp_path / "run",
            abort_if=rules,
            levels=[{"concurrency": 8}],
            each_level={"measure": "0.8s"},
        )
    assert manifest["status"] == "complete"
    assert manifest["levels"][0]["stop_reason"] == "time"
    assert len(records) > 60
