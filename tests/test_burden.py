"""What a level costs its client is told of the time it measured, not of the waiting around it."""

import asyncio
import time
from pathlib import Path

import pytest
from drive import measure
from serve import Asked, Out, scripted

from loadgen.client.clock import now_ns, sleep_s
from loadgen.record import Phase
from loadgen.run.burden import Burden, Moment, cpu_share


@pytest.mark.parametrize(
    ("cpu_ns", "wall_ns", "share"),
    [(500, 1000, 0.5), (2000, 1000, 2.0), (0, 1000, 0.0), (5, 0, None)],
    ids=["half a core", "several threads", "idle", "no time"],
)
def test_the_share_is_of_one_core(cpu_ns: int, wall_ns: int, share: float | None) -> None:
    begin = Moment(at_ns=100, cpu_ns=7)
    assert cpu_share(begin, Moment(at_ns=100 + wall_ns, cpu_ns=7 + cpu_ns)) == share


def busy(seconds: float) -> None:
    until = now_ns() + round(seconds * 1e9)
    while now_ns() < until:
        pass


def work(cpu_s: float) -> None:
    until = time.process_time() + cpu_s
    while time.process_time() < until:
        pass


@pytest.mark.slow
async def test_neither_an_idle_warm_up_nor_an_idle_drain_dilutes_what_measuring_cost() -> None:
    began_ns = now_ns()
    burden = Burden()
    await sleep_s(0.5)
    burden.enter(Phase.MEASURE)
    work(0.1)
    burden.enter(Phase.DRAIN)
    await sleep_s(0.5)
    burden.close()
    found = burden.figures()
    assert found["cpu_ns"] >= 100_000_000
    assert found["cpu_share"] > 1.3 * found["cpu_ns"] / (now_ns() - began_ns)


@pytest.mark.parametrize(
    "phases", [(), (Phase.DRAIN,), (Phase.MEASURE,)], ids=["none", "stopped early", "failed"]
)
async def test_a_level_without_all_its_phases_has_figures(phases: tuple[Phase, ...]) -> None:
    burden = Burden()
    work(0.05)
    for phase in phases:
        burden.enter(phase)
        work(0.05)
    burden.close()
    assert 0 < burden.figures()["cpu_share"] <= 1.5


@pytest.mark.slow
async def test_the_tail_of_the_loops_lag_is_that_of_measure_and_the_largest_of_all() -> None:
    burden = Burden()
    burden.enter(Phase.MEASURE)
    await sleep_s(0.1)
    burden.enter(Phase.DRAIN)
    busy(0.4)
    await asyncio.sleep(0)  # noqa: TID251 - one turn, in which the lag is noticed
    await sleep_s(0.02)
    burden.close()
    found = burden.figures()
    assert found["loop_lag_p99_ns"] < found["loop_lag_max_ns"]
    assert found["loop_lag_max_ns"] >= 350_000_000


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_request_that_hangs_does_not_make_a_busy_client_look_idle(
    workers: int, tmp_path: Path
) -> None:
    hung = []

    async def script(asked: Asked, out: Out) -> None:
        if asked.number > 20 and not hung:
            hung.append(asked)
            await asyncio.sleep(60)  # noqa: TID251 - longer than the drain
        await out.stream("a", "b")

    with scripted(script) as server:
        manifest, _ = measure(
            server.url,
            tmp_path / "run",
            levels=[{"concurrency": 4}],
            each_level={"warmup": "4 requests", "measure": "0.5s", "drain": "2s"},
            workers=workers,
        )
    level = manifest["levels"][0]
    assert level["end_ns"] - level["measure_end_ns"] > 1.5e9
    for client in level["client"].get("workers", [level["client"]]):
        diluted = client["cpu_ns"] / (level["end_ns"] - level["start_ns"])
        assert client["cpu_share"] > 1.3 * diluted
