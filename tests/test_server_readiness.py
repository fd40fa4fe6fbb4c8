"""A server is ready when it lives and a token came; never before, and never by a page alone."""

import asyncio
import time

import pytest
from server_make import RUNNING, Told, after_s, engine, prober, within

from loadgen.errors import PreflightFailed, ServerNotReady
from loadgen.server.probe import Prober
from loadgen.server.readiness import ending_of, wait_until_ready
from loadgen.server.start import bring_up
from loadgen.server.system import State

ENDED = State(status="ended", exit_code=1)


async def wait(asking: Prober, system: Told | None = None, *, within_s: float = 5.0) -> list[str]:
    """Wait; return what was told meanwhile."""
    told: list[str] = []
    try:
        await wait_until_ready(asking, system, patience=within(within_s), say=told.append)
    finally:
        await asking.aclose()
    return told


async def failing(asking: Prober, system: Told | None = None, *, within_s: float = 5.0) -> str:
    with pytest.raises(ServerNotReady) as caught:
        await wait(asking, system, within_s=within_s)
    return str(caught.value)


async def test_e01_a_health_page_and_a_list_of_models_are_not_ready_yet() -> None:
    with engine(completions=after_s(0.3)) as server:
        began = time.monotonic()
        await wait(prober(server.url))
        assert time.monotonic() - began >= 0.3
        assert server.asked[:3] == ["GET /health", "GET /v1/models", "POST /v1/chat/completions"]


async def test_e02_a_server_that_dies_on_its_first_prompt_is_not_ready() -> None:
    system = Told(log=["CUDA out of memory. Tried to allocate 2.00 GiB"])
    with engine(completions=lambda _: 0) as server:
        system.states = [RUNNING, RUNNING, State(status="ended", exit_code=137)]
        said = await failing(prober(server.url), system)
    assert said.startswith("vllm: ended with exit code 137 after ")
    assert "(wanted: 2.00 GiB)" in said


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (["usage", "no option --speeed; did you mean --seed?", ""],
         "its log ends: no option --speeed; did you mean --seed?"),
        ([], "it said nothing; the last probe: "),
    ],
    ids=["a cause nobody knows here", "not a word"],
)  # fmt: skip
async def test_e02_a_death_without_a_known_cause_has_its_exit_code_and_last_words(
    log: list[str], why: str
) -> None:
    with engine(health=503) as server:
        said = await failing(prober(server.url), Told(states=[RUNNING, ENDED], log=log))
    assert said.startswith("vllm: ended with exit code 1 after ")
    assert why in said


async def test_e15_at_the_deadline_the_logs_last_words_are_told_too() -> None:
    with engine(health=503) as server:
        said = await failing(prober(server.url), Told(log=["loading: 40%"]), within_s=0.2)
    assert said.endswith("; its log ends: loading: 40%")


async def test_e02_a_token_from_a_server_that_is_gone_by_then_does_not_count() -> None:
    with engine() as server:
        said = await failing(prober(server.url), Told(states=[ENDED]))
    assert "ended with exit code 1" in said


async def test_e03_a_long_wait_gives_signs_of_life_with_the_logs_last_line() -> None:
    system = Told(log=["loading weights: 40%"])
    with engine(health=503) as server:
        asking = prober(server.url)
        told: list[str] = []
        with pytest.raises(ServerNotReady):
            await wait_until_ready(asking, system, patience=within(0.3), say=told.append)
        await asking.aclose()
    assert len(told) >= 3
    assert "vllm: not ready after " in told[-1]
    assert "GET /health: HTTP 503; its log: loading weights: 40%" in told[-1]


async def test_e04_a_death_ends_the_wait_at_once_and_shows_at_most_80_lines() -> None:
    system = Told(states=[RUNNING, ENDED], log=[f"line {n}" for n in range(500)])
    began = time.monotonic()
    with engine(health=503) as server, pytest.raises(ServerNotReady) as caught:
        await wait(prober(server.url), system, within_s=60)
    assert time.monotonic() - began < 1
    assert (len(caught.value.log), caught.value.log[-1]) == (80, "line 499")
    assert caught.value.exit_code == 3


async def test_e15_a_wait_ends_at_its_deadline_with_the_last_probes_error() -> None:
    began = time.monotonic()
    with engine(health=503) as server:
        said = await failing(prober(server.url), Told(), within_s=0.5)
    assert 0.5 <= time.monotonic() - began < 1.5
    assert said.startswith("vllm: not ready within 500ms: GET /health: HTTP 503")


async def test_a_request_that_never_answers_hides_neither_death_nor_deadline() -> None:
    slow = after_s(0.0)

    def stalls(number: int) -> int:
        time.sleep(0.5)  # noqa: TID251 - a server that hangs, in a thread of its own
        return slow(number)

    with engine(completions=stalls) as server:
        began = time.monotonic()
        system = Told(states=[RUNNING, RUNNING, ENDED])
        await failing(prober(server.url), system, within_s=60)
        assert time.monotonic() - began < 0.4


async def test_e13_another_servers_models_end_the_wait() -> None:
    with engine(models=("old-model",)) as server:
        said = await failing(prober(server.url, model="tiny"), Told(), within_s=60)
    assert "it serves old-model, not tiny" in said


async def test_models_that_come_late_are_waited_for() -> None:
    with engine(models=()) as server:
        asyncio.get_running_loop().call_later(0.2, lambda: setattr(server, "models", ("tiny",)))
        await wait(prober(server.url, model="tiny"), Told())


async def test_a_refused_key_ends_the_wait_and_is_never_repeated() -> None:
    with engine(key="sk-right-0001") as server, pytest.raises(PreflightFailed) as caught:
        await wait(prober(server.url, key="sk-wrong-0002"), Told(), within_s=60)
    assert "LOADGEN_API_KEY" in str(caught.value)
    assert "sk-" not in str(caught.value)


async def test_the_key_is_sent_with_every_question() -> None:
    with engine(key="sk-right-0001") as server:
        await wait(prober(server.url, key="sk-right-0001"), Told())


async def test_a_request_that_is_refused_three_times_is_not_asked_for_half_an_hour() -> None:
    with engine(completions=lambda _: 400) as server:
        said = await failing(prober(server.url), Told(), within_s=60)
        assert server.posts == 3
    assert "a request for one token: bad_request (the engine is loading)" in said


async def test_nothing_that_listens_is_a_reason_to_wait() -> None:
    with engine() as server:
        gone = server.url
    said = await failing(prober(gone), None, within_s=0.2)
    assert said.startswith("the server: not ready within 200ms: no answer (")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (RUNNING, None),
        (State(status="starting"), None),
        (State(status="running", health="starting"), None),
        (State(status="ended", exit_code=0), "ended with exit code 0"),
        (State(status="missing"), "is gone"),
        (State(status="restarting", exit_code=1, restarts=3), "(restarted 3 times by"),
        (State(status="running", restarts=1), "(restarted 1 time by"),
        (
            State(status="running", health="unhealthy", detail="curl: (7)"),
            "health check (curl: (7)",
        ),
    ],
    ids=["runs", "starts", "no-health-yet", "ended", "gone", "loop", "came-back", "unhealthy"],
)
def test_what_counts_as_an_end(state: State, words: str | None) -> None:
    ending = ending_of(state)
    assert ending is None if words is None else words in (ending or "")


@pytest.mark.parametrize(("keep", "done"), [(False, ["start", "stop"]), (True, ["start"])],
                         ids=["taken-down", "kept"])  # fmt: skip
async def test_e18_what_fails_is_taken_down_once_unless_it_is_to_be_kept(
    keep: bool, done: list[str]
) -> None:
    system = Told(states=[ENDED])
    with engine(health=503) as server, pytest.raises(ServerNotReady):
        await bring_up(
            system, prober(server.url), patience=within(5), say=lambda _: None, keep=keep
        )
    assert system.done == done


async def test_e18_a_wait_that_is_cancelled_takes_down_what_was_started() -> None:
    system = Told()
    with engine(health=503) as server:
        asking = prober(server.url)
        task = asyncio.create_task(
            bring_up(system, asking, patience=within(60), say=lambda _: None)
        )
        asyncio.get_running_loop().call_later(0.1, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
    assert system.done == ["start", "stop"]
