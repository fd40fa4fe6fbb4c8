"""Requests that fail in the client itself: each has its record, and the loop stays alive."""

import asyncio
import errno
import os
import resource
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from drive import command, read, started, until_said
from scenario_make import make_scenario
from serve import DONE, ROLE, Asked, Out, content, finish, scripted
from test_follow import Told, call

from loadgen.client.clock import now_ns, sleep_s
from loadgen.client.limits import Limits
from loadgen.record import Outcome
from loadgen.run.carrier import Way
from loadgen.run.descriptors import provide_descriptors
from loadgen.run.dispatch import Dispatch, Load
from loadgen.run.phases import Phases
from loadgen.run.supply import Supply
from loadgen.scenario.model import Span

SLOTS = 4


class Failing(httpx.AsyncBaseTransport):
    """Fails each request at once, without a turn of the loop."""

    stamps = True

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    async def handle_async_request(self, _: httpx.Request) -> httpx.Response:
        raise self.failure


def refused_by_the_system(number: int) -> httpx.ConnectError:
    error = httpx.ConnectError(f"127.0.0.1:1: {os.strerror(number)}")
    error.__cause__ = OSError(number, os.strerror(number))
    return error


async def held(failure: Exception, *, seconds: float) -> tuple[Told, int]:
    """Hold a closed level that only fails; return its records, and others' turns meanwhile."""
    told = Told()
    load = Load(
        level=make_scenario(levels=[{"concurrency": SLOTS}]).levels[0],
        phases=Phases(warmup=Span(requests=0), measure=Span(seconds=seconds), start_ns=now_ns()),
        supply=Supply(call, ahead=0, most=None),
        drain_s=1.0,
        slots=tuple(range(SLOTS)),
    )
    way = Way(transport=Failing(failure), limits=Limits(), endpoint="chat", epoch_ns=0, level=0,
              round=0)  # fmt: skip
    dispatch = Dispatch(load, way, told, first_id=0)
    running, turns = asyncio.create_task(dispatch.run()), 0
    async with asyncio.timeout(30):
        while not running.done():
            await sleep_s(0.01)
            turns += now_ns() < load.phases.start_ns + 1e9 * seconds
        await running
    assert [record.id for record in told.records] == list(range(dispatch.arrivals))
    return told, turns


@pytest.mark.parametrize(
    "number",
    [errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM],
    ids=errno.errorcode.get,
)
async def test_a_client_without_means_pauses_before_it_tries_again(number: int) -> None:
    told, _ = await held(refused_by_the_system(number), seconds=0.4)
    assert {record.outcome for record in told.records} == {Outcome.CLIENT_FAULT}
    assert len(told.records) <= 3 * SLOTS  # at 0, 0.1 and 0.3 s


async def test_what_fails_without_a_turn_of_the_loop_does_not_starve_it() -> None:
    told, turns = await held(httpx.ReadError("connection lost"), seconds=1.0)
    assert len(told.records) > 10 * SLOTS  # these do not pause
    assert turns > 5  # starved, it had the first alone


# --- descriptors


@pytest.fixture
def soft_limit() -> Iterator[None]:
    """Put the limit of this process back after a test that sets it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("soft_limit")
@pytest.mark.parametrize("soft", [300, 1500])
def test_there_is_room_for_several_sockets_a_slot(soft: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    provide_descriptors(500)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(2064, hard)


@pytest.mark.usefixtures("soft_limit")
def test_a_limit_that_is_high_already_stays() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    provide_descriptors(1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


@pytest.mark.slow
@pytest.mark.parametrize("end_after_s", [0.05, 2.0], ids=["late", "too late"])
def test_an_end_of_framing_that_is_late_costs_no_request_its_descriptor(
    end_after_s: float, tmp_path: Path
) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head()
        await out.send(ROLE + content("a") + content("b") + finish() + DONE)
        await sleep_s(end_after_s)
        await out.end()

    def just_enough() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 96))

    with scripted(script) as server:
        line = command("run", "--url", server.url, "-c", "32", "--requests", "300",
                       "--input-tokens", "8", "--output-tokens", "2",
                       "--out", str(tmp_path / "run"))  # fmt: skip
        done = subprocess.run(
            line, capture_output=True, text=True, check=False, preexec_fn=just_enough
        )
    assert Counter(row["outcome"] for row in read(tmp_path / "run")[1]) == {"ok": 332}
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_run_without_descriptors_hears_its_user(tmp_path: Path) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.head(connection="close")
        await out.send(ROLE + content("a") + finish() + DONE)
        out.close()

    with scripted(script) as server:
        line = command("run", "--url", server.url, "-c", "8", "--duration", "20s",
                       "--input-tokens", "8", "--output-tokens", "2",
                       "--out", str(tmp_path / "run"))  # fmt: skip
        with started(line, stdout=subprocess.PIPE) as child:
            until_said(child.stderr, ": measure")
            before = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (4, before[1]))
            until_said(child.stderr, "client_fd_limit")
            child.send_signal(signal.SIGINT)
            until_said(child.stderr, ": drain")
            resource.prlimit(child.pid, resource.RLIMIT_NOFILE, before)  # for its report
            child.communicate(timeout=30)
    manifest, records = read(tmp_path / "run")
    found = Counter(row.get("error_class") for row in records)
    assert 0 < found["client_fd_limit"] < 200
    assert manifest["levels"][0]["measure_end_ns"] - manifest["levels"][0]["measure_start_ns"] < 9e9
    assert len(records) == manifest["levels"][0]["arrivals"]
