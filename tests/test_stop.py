"""A level that is stopped: which phases it goes through, and which it announces."""

import asyncio

import pytest
from scenario_make import make_scenario
from test_follow import Held, Told, call, until_sent

from loadgen.client.clock import now_ns
from loadgen.client.limits import Limits
from loadgen.record import Outcome, Phase
from loadgen.run.carrier import Way
from loadgen.run.dispatch import Dispatch, Load
from loadgen.run.phases import Phases
from loadgen.run.supply import Supply
from loadgen.scenario.model import Span


class Heard(Told):
    def __init__(self) -> None:
        super().__init__()
        self.phases: list[Phase] = []

    def phase(self, phase: Phase) -> None:
        self.phases.append(phase)


@pytest.mark.parametrize(
    ("warmup", "phases"),
    [(100, [Phase.DRAIN]), (0, [Phase.MEASURE, Phase.DRAIN])],
    ids=["in the warm-up", "in measure"],
)
async def test_a_stop_announces_no_phase_that_never_comes(warmup: int, phases: list[Phase]) -> None:
    held, heard = Held(), Heard()
    load = Load(
        level=make_scenario(levels=[{"concurrency": 1}]).levels[0],
        phases=Phases(warmup=Span(requests=warmup), measure=Span(requests=9), start_ns=now_ns()),
        supply=Supply(call, ahead=0, most=None),
        drain_s=5.0,
        slots=(0,),
    )
    way = Way(transport=held, limits=Limits(), endpoint="chat", epoch_ns=0, level=0, round=0)
    dispatch = Dispatch(load, way, heard, first_id=0)
    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(dispatch.run())
        await until_sent(held, 1)
        dispatch.stop("interrupted")
        dispatch.cut(Outcome.CANCELLED)
    assert heard.phases == phases
    assert dispatch.measured_peak == (0 if warmup else 1)
