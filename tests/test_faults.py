"""A whole run against a server that fails half of its requests, in each way it can."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from drive import loadgen, measure, read, strict_json
from serve import Asked, Out, content, scripted
from sites import Open, sites

from loadgen.analysis.summary import LevelSummary, Summary
from loadgen.cli.run import exit_code
from loadgen.report.write import summarise_run
from loadgen.simulator.engine import EngineSpec
from loadgen.simulator.faults import FAULTS, Fault
from loadgen.simulator.process import simulator_process
from loadgen.simulator.spec import SimulatorSpec

pytestmark = pytest.mark.slow  # whole runs: seconds each

ANSWER = 6
PARTIAL = 3  # tokens that come before a failure in mid-stream
REQUESTS = 100  # the simulator deals faults in hundreds: exactly half of these fail
MEASURED = 48  # of them: under 50, all that is measured counts, and nothing is cut as a ramp


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What becomes of the requests that a kind of fault hits."""

    outcome: str
    error_class: str
    chunks: int = 0
    status: int = 200
    retry_after_s: float | None = None
    says: str = ""


FAILURES = {
    "status_429": Expected(outcome="refused", error_class="rate_limited", status=429,
                           retry_after_s=1.0, says="Rate limit reached"),
    "status_500": Expected(outcome="refused", error_class="server_error", status=500,
                           says="Internal server error"),
    "status_503": Expected(outcome="refused", error_class="overloaded", status=503,
                           says="The server is overloaded"),
    "stream_error": Expected(outcome="broken", error_class="server_error_in_stream",
                             chunks=PARTIAL, says="The engine died while generating"),
    "cut": Expected(outcome="truncated", error_class="truncated", chunks=PARTIAL,
                    says="closed after 3 chunks"),
    "reset": Expected(outcome="broken", error_class="connection_reset", chunks=PARTIAL,
                      says="the connection broke after 3 chunks"),
    "stall": Expected(outcome="timeout", error_class="idle", chunks=PARTIAL),
    "empty": Expected(outcome="broken", error_class="no_tokens", says="status 200 without a token"),
    "html": Expected(outcome="broken", error_class="unexpected_content_type",
                     says="text/html: 502 Bad Gateway"),
}  # fmt: skip
HARMLESS: dict[str, tuple[str, ...]] = {
    "no_done": ("no_done",),
    "keepalive": (),
    "garbage": ("degraded",),
    "burst": ("buffered",),
}
IDS = {"stream_error": "A13", "html": "A17", "empty": "A18", "cut": "A30-ii", "no_done": "A30-i",
       "garbage": "A54", "stall": "C06", "keepalive": "A07", "burst": "B26"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run and what the simulator says of it."""

    directory: Path
    records: list[dict[str, Any]]
    truth: dict[str, Any]

    @cached_property
    def summary(self) -> Summary:
        return summarise_run(self.directory)

    @property
    def level(self) -> LevelSummary:
        return self.summary.levels[0]

    def of(self, outcome: str) -> list[dict[str, Any]]:
        return [row for row in self.records if row["outcome"] == outcome]


def named(*kinds: str) -> list[Any]:
    """Cases with the id of the problem they stand for."""
    return [pytest.param(kind, id=f"{kind}-{IDS[kind]}" if kind in IDS else kind) for kind in kinds]


def spec(kind: str | None = None, *, dialect: str = "vllm", **more: Any) -> SimulatorSpec:
    faults = (Fault(kind=kind, share=0.5),) if kind else ()
    return SimulatorSpec(dialect=dialect, faults=faults, engine=EngineSpec(speed=4), **more)


def run(url: str, out: Path, **parts: Any) -> Ran:
    given = {
        "prompts": {"source": "synthetic", "input_tokens": 8, "output_tokens": ANSWER},
        "levels": [{"concurrency": 32}],
        "each_level": {
            "warmup": f"{REQUESTS - MEASURED} requests",
            "measure": f"{MEASURED} requests",
        },
        "limits": {"idle": 0.5},
        "objectives": ["errors <= 1%"],
    }
    _, records = measure(url, out, **{**given, **parts})
    truth = httpx.get(f"{url}/sim/stats", trust_env=False).json()
    return Ran(directory=out, records=records, truth=truth)


@pytest.fixture(scope="module")
def start() -> Iterator[Open]:
    with sites() as open_:
        yield open_


@pytest.fixture(scope="module")
def ran(start: Open, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """A run under each kind of fault, made when it is first looked at."""
    made: dict[str, Ran] = {}

    def ran(kind: str) -> Ran:
        if kind not in made:
            made[kind] = run(start(spec(kind)), tmp_path_factory.mktemp(kind) / "run")
        return made[kind]

    return ran


Runs = Callable[[str], Ran]


def test_every_kind_of_fault_stands_in_a_table() -> None:
    assert {*FAILURES, *HARMLESS, "slow_connect"} == set(FAULTS)


@pytest.mark.parametrize("kind", named(*FAILURES))
def test_a_failure_has_its_outcome_and_class_and_hits_no_other_request(
    ran: Runs, kind: str
) -> None:
    found, expected = ran(kind), FAILURES[kind]
    outcomes = Counter((row["outcome"], row.get("error_class")) for row in found.records)
    assert outcomes == {("ok", None): 50, (expected.outcome, expected.error_class): 50}
    assert found.truth["faults"] == {kind: 50}
    for row in found.of(expected.outcome):
        assert row["http_status"] == expected.status
        assert row.get("retry_after_s") == expected.retry_after_s
    assert {row["attempts"] for row in found.records} == {1}


@pytest.mark.parametrize("kind", named(*FAILURES))
def test_a_failed_request_keeps_the_tokens_that_came(ran: Runs, kind: str) -> None:
    expected = FAILURES[kind]
    for row in ran(kind).of(expected.outcome):
        assert len(row.get("chunks", {}).get("at_ns", [])) == expected.chunks
        assert (row.get("reported_output") or 0) == expected.chunks
        assert ("first_ns" in row, "last_ns" in row) == (expected.chunks > 0,) * 2
    assert all(len(row["chunks"]["at_ns"]) == ANSWER for row in ran(kind).of("ok"))


@pytest.mark.parametrize("kind", named(*FAILURES))
def test_a_class_of_failures_is_counted_with_one_sample_and_misses_the_objective(
    ran: Runs, kind: str
) -> None:
    found, expected = ran(kind), FAILURES[kind]
    [errors] = found.level.errors
    failed = [row for row in found.of(expected.outcome) if row["phase"] == "measure"]
    assert (errors.outcome, errors.error_class) == (expected.outcome, expected.error_class)
    assert (errors.n, errors.fault) == (len(failed), "server")
    assert found.level.error_rate == len(failed) / MEASURED
    assert (errors.sample or "").startswith(expected.says)
    assert exit_code(found.summary) == 1


@pytest.mark.parametrize("kind", named(*FAILURES))
def test_percentiles_are_of_the_requests_that_were_answered(ran: Runs, kind: str) -> None:
    level = ran(kind).level
    answered = [row for row in ran(kind).of("ok") if row["phase"] == "measure"]
    for metric, key in ((level.ttft, "first_ns"), (level.e2e, "last_ns")):
        took_ms = [(row[key] - row["sent_ns"]) / 1e6 for row in answered]
        assert metric.n == len(answered)
        assert metric.p50.value == pytest.approx(float(np.percentile(took_ms, 50)))
    assert level.ttft_failures_infinite.p90.above
    assert level.e2e_failures_infinite.p90.above


@pytest.mark.parametrize("kind", named(*HARMLESS))
def test_an_oddity_that_loses_nothing_is_ok_and_flagged(ran: Runs, kind: str) -> None:
    found = ran(kind)
    assert Counter(row["outcome"] for row in found.records) == {"ok": REQUESTS}
    assert all(len(row["chunks"]["at_ns"]) == ANSWER for row in found.records)
    assert all(row["reported_output"] == ANSWER for row in found.records)
    flags = Counter(flag for row in found.records for flag in row.get("flags", []))
    if kind == "burst":  # a busy machine may read a few more answers at once
        assert flags["buffered"] >= 50
    else:
        del flags["buffered"]
        assert flags == dict.fromkeys(HARMLESS[kind], 50)
    assert exit_code(found.summary) == 0


@pytest.mark.parametrize(
    ("dialect", "error_class", "says"),
    [
        ("sglang", "server_error_in_stream", "The engine died"),
        ("llamacpp", "server_error_in_stream", "The engine died"),
        ("transformers", "server_error_in_stream", "The engine died"),
        ("azure", "server_error_in_stream", "The engine died"),
        ("trtllm", "truncated", "closed after 3 chunks"),  # this one says nothing and hangs up
    ],
)
def test_every_other_dialects_error_in_the_stream_is_a_failure(
    start: Open, dialect: str, error_class: str, says: str, tmp_path: Path
) -> None:
    found = run(start(spec("stream_error", dialect=dialect)), tmp_path / "run")
    failed = [row for row in found.records if row["outcome"] != "ok"]
    assert (len(failed), found.truth["faults"]) == (50, {"stream_error": 50})
    assert {row["error_class"] for row in failed} == {error_class}
    assert all(row["error"].startswith(says) for row in failed)
    assert all(len(row["chunks"]["at_ns"]) == PARTIAL for row in failed)


@pytest.mark.parametrize("kind", ["cut", "reset"])
def test_the_stock_transport_finds_a_broken_stream_as_broken_as_our_own(
    start: Open, kind: str, tmp_path: Path
) -> None:
    url, expected = start(spec(kind)), FAILURES[kind]
    found = run(url, tmp_path / "run", target={"url": url, "transport": "stock"})
    outcomes = Counter((row["outcome"], row.get("error_class")) for row in found.records)
    assert outcomes == {("ok", None): 50, (expected.outcome, expected.error_class): 50}
    assert all(row["error"].startswith(expected.says) for row in found.of(expected.outcome))


def slowly_connected(start: Open, out: Path, **limits: float) -> Ran:
    """A run of which every request has a connection of its own; half of them are held."""
    url = start(spec("slow_connect", slow_connect_s=0.3))
    target = {"url": url, "connections": "per_request"}
    found = run(url, out, target=target, limits=limits)
    assert found.truth["faults"]["slow_connect"] >= 45
    return found


@pytest.mark.slow
def test_a_connection_left_unserved_is_waited_for(start: Open, tmp_path: Path) -> None:
    found = slowly_connected(start, tmp_path / "run")
    held = [row for row in found.records if row["first_ns"] - row["sent_ns"] >= 0.25e9]
    assert Counter(row["outcome"] for row in found.records) == {"ok": REQUESTS}
    assert 45 <= len(held) <= 60  # the preflight's own connections are held, too
    assert all(row["connected_ns"] - row["connect_start_ns"] < 0.25e9 for row in held)


@pytest.mark.slow
def test_a_connection_left_unserved_is_given_up_at_the_limit(start: Open, tmp_path: Path) -> None:
    found = slowly_connected(start, tmp_path / "run", first_token=0.15)
    held = [row for row in found.records if row["outcome"] != "ok"]
    assert {(row["outcome"], row["error_class"]) for row in held} == {("timeout", "first_token")}
    assert 45 <= len(held) <= 60
    assert all(0.14e9 <= row["end_ns"] - row["sent_ns"] < 0.3e9 for row in held)
    assert all("first_ns" not in row for row in held)


def test_a_refusal_is_tried_again_only_when_asked_to_and_each_try_is_counted(
    start: Open, tmp_path: Path
) -> None:
    found = run(start(spec("status_503")), tmp_path / "run", limits={"retries": 20})
    assert Counter(row["outcome"] for row in found.records) == {"ok": REQUESTS}
    tries = sum(row["attempts"] for row in found.records)
    assert tries == found.truth["arrivals"] - 5  # the preflight's, and four of the calibration
    assert tries - REQUESTS == found.truth["faults"]["status_503"] > 50


def least_ms(truth: dict[str, Any], key: str) -> float:
    """The least time to this instant of a whole answer, by the simulator's clock."""
    whole = [row for row in truth["requests"] if row["completion_tokens"] == ANSWER]
    return min(row[key] - row["arrived_ns"] for row in whole) / 1e6


def test_failures_do_not_make_the_server_look_faster(start: Open, tmp_path: Path) -> None:
    alone = {"levels": [{"concurrency": 1}], "each_level": {"measure": "24 requests"}}
    clean, *failing = (
        run(start(spec(kind)), tmp_path / str(kind), **alone)
        for kind in (None, "status_500", "stream_error")
    )
    first_ms, last_ms = (least_ms(clean.truth, key) for key in ("first_ns", "last_ns"))
    before = clean.level
    for level in (found.level for found in failing):
        assert level.error_rate == pytest.approx(0.5, abs=0.3)
        assert level.ttft.p50.value == pytest.approx(before.ttft.p50.value, rel=1)
        assert level.e2e.p50.value == pytest.approx(before.e2e.p50.value, rel=1)
        # a failure is over sooner than any answer: were one counted, these would be undercut
        assert level.ttft.min >= 0.9 * first_ms
        assert level.e2e.min >= 0.9 * last_ms


async def reset_at_once(asked: Asked, out: Out) -> None:
    if asked.json["max_tokens"] == 1:  # the preflight
        await out.stream("a")
        return
    await out.head()
    await out.send(content("a"))
    out.reset()


def test_a_reset_that_comes_with_the_last_bytes_is_seen_at_once(tmp_path: Path) -> None:
    with scripted(reset_at_once) as server:
        _, records = measure(
            server.url,
            tmp_path / "run",
            levels=[{"concurrency": 20}],
            each_level={"measure": "60 requests"},
            limits={"idle": 0.5},
        )
    outcomes = Counter((row["outcome"], row.get("error_class")) for row in records)
    assert outcomes == {("broken", "connection_reset"): 80}
    assert all(row["end_ns"] - row["sent_ns"] < 0.4e9 for row in records)


SHORT = ("--input-tokens", "32", "--output-tokens", "16")


@pytest.mark.parametrize(
    ("speed", "lengths"),
    [("20", SHORT), pytest.param("1", (), marks=pytest.mark.slow)],
    ids=["in short", "as a user types it"],
)
def test_a_run_against_a_failing_server_says_how_much_failed_and_exits_with_1(
    speed: str, lengths: tuple[str, ...], tmp_path: Path
) -> None:
    faults = ("--dialect", "vllm", "--fault", "stream_error:0.3", "--speed", speed)
    with simulator_process(*faults) as simulator:
        done = loadgen("run", "--url", simulator.url, "-c", "8", "--requests", "200", *lengths,
                       "--out", str(tmp_path / "run"))  # fmt: skip
        truth = httpx.get(f"{simulator.url}/sim/stats", trust_env=False).json()
    _, records = read(tmp_path / "run")
    level = strict_json((tmp_path / "run" / "summary.json").read_text())["levels"][0]
    [errors] = level["errors"]
    assert done.returncode == 1, done.stderr
    measured = [row["outcome"] for row in records if row["phase"] == "measure"]
    assert measured.count("broken") / len(measured) == pytest.approx(0.3, abs=0.04)
    assert level["error_rate"] == pytest.approx(0.3, abs=0.1)  # of the window, which may be shorter
    assert (errors["error_class"], errors["sample"]) == (
        "server_error_in_stream",
        "The engine died while generating, simulated.",
    )
    assert sum(row["outcome"] == "broken" for row in records) == truth["faults"]["stream_error"]
    assert "server_error_in_stream" in done.stdout
