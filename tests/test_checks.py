"""A client that was the bottleneck is told of; a slow server never is."""

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from drive import scenario
from report_make import level, summary
from serve import Asked, Out, scripted

from loadgen.analysis.checks import checks_of, with_checks, worst
from loadgen.analysis.distribution import distribution
from loadgen.analysis.summary import Check, Distribution, LevelSummary, Quantile
from loadgen.cli.report import command as report
from loadgen.cli.run import exit_code
from loadgen.client.clock import now_ns
from loadgen.report.checklist import check_figure
from loadgen.report.terminal import render_terminal
from loadgen.report.view import build_view
from loadgen.report.write import render, summarise_run
from loadgen.run.events import Event, Tick
from loadgen.run.runner import run_scenario

SOUND = {"cpu_share": 0.4, "loop_lag_p99_ns": 3_000_000, "loop_lag_max_ns": 12_000_000}


TOLD = re.compile(r"the client (spoiled|disturbed) concurrency 4: .*loop lag max 2\d\d ms")


OPEN = {"rate": 4.0, "concurrency": None}


def tail(p99: float, *, p90: float | None = None, n: int = 400) -> Distribution:
    """A distribution that matters by its tail."""
    at = Quantile(value=p99)
    low = Quantile(value=p99 / 10 if p90 is None else p90)
    return Distribution(n=n, max=p99, p50=low, p90=low, p95=at, p99=at)


def sound(**changes: object) -> LevelSummary:
    """TTFT 74 ms, E2E about 1.4 s, and a client that did its part."""
    load = {"concurrency": 8} if "rate" not in changes else {}
    made = {"user_lag": tail(0.2), "send_lag": tail(0.1), "client": SOUND, **changes}
    return level(0, **load, **made)


def found(made: LevelSummary) -> dict[str, Check]:
    return {check.name: check for check in checks_of(made)}


def verdicts(made: LevelSummary) -> dict[str, str]:
    return {name: check.verdict for name, check in found(made).items() if check.verdict != "pass"}


@pytest.mark.parametrize(
    ("spoilt", "expected"),
    [
        ({"user_lag": tail(40)}, {"user lag p99": "warn"}),
        ({"user_lag": tail(400)}, {"user lag p99": "fail"}),
        ({"send_lag": tail(4), **OPEN}, {"send lag p99": "warn"}),
        ({"send_lag": tail(40), **OPEN}, {"send lag p99": "fail"}),
        ({"send_lag": tail(4)}, {}),  # of a closed level it costs 0.3 % of the load
        ({"send_lag": tail(40)}, {"send lag p99": "warn"}),
        ({"send_lag": tail(400)}, {"send lag p99": "fail"}),
        ({"client": {**SOUND, "cpu_share": 0.8}}, {"CPU": "warn"}),
        ({"client": {**SOUND, "cpu_share": 0.97}}, {"CPU": "fail"}),
        ({"client": {**SOUND, "loop_lag_max_ns": 204_000_000}}, {"loop lag max": "warn"}),
        ({"user_lag": tail(8, p90=3), "coalesced_share": 0.3}, {"coalesced": "warn"}),
    ],
    ids=["user lag", "much user lag", "send lag", "much send lag", "closed", "closed, late",
         "closed, very late", "busy", "full core", "stall",
         "reads too late"],
)  # fmt: skip
def test_each_figure_by_itself_spoils_a_level(spoilt: dict, expected: dict[str, str]) -> None:
    made = sound(**spoilt)
    assert verdicts(made) == expected
    assert all(check.text for check in checks_of(made) if check.verdict != "pass")


@pytest.mark.parametrize(
    "harmless",
    [
        {},
        {"ttft": tail(9_000), "e2e": tail(60_000), "ttfb": tail(8_000)},
        {"slot_wait": tail(9_000), "lateness": tail(9_000), "ttft_from_due": tail(20_000)},
        {"connect": tail(2_000), "tls": tail(900), "ttft_cold": tail(3_000)},
        {"coalesced_share": 0.9},
        {"user_lag": Distribution(), "send_lag": Distribution(), "client": {}},
    ],
    ids=["sound", "slow", "slots full", "slow connect", "sent together", "nothing came"],
)
def test_a_slow_server_trips_nothing(harmless: dict) -> None:
    assert verdicts(sound(**harmless)) == {}


def test_long_requests_bear_more_lag() -> None:
    assert verdicts(sound(user_lag=tail(40), e2e=tail(30_000, p90=30_000))) == {}


def test_user_space_stamps_are_as_late_as_the_loop() -> None:
    stamps = {"user_lag": tail(0), "client": {**SOUND, "loop_lag_p99_ns": 8_000_000}}
    assert verdicts(sound(**stamps)) == {"loop lag p99": "fail"}
    assert "user lag p99" not in found(sound(**stamps))


def test_a_level_shorter_than_a_second_has_no_cpu_share() -> None:
    assert "CPU" not in found(sound(window_s=0.5, client={**SOUND, "cpu_share": 1.0}))


def test_a_value_on_its_bound_is_within() -> None:
    assert verdicts(sound(client={**SOUND, "cpu_share": 0.7, "loop_lag_max_ns": 150e6})) == {}


@pytest.mark.parametrize(
    ("n", "used"),
    [(2, None), (8, "p50"), (11, "p90"), (20, "p90"), (21, "p95"), (100, "p95"), (101, "p99")],
    ids=str,
)
def test_one_late_send_alone_spoils_nothing(n: int, used: str | None) -> None:
    """999 ms once among n sends: the percentile that is used says its name."""
    sends = distribution(np.array([0.1] * (n - 1) + [999.0]))
    checks = found(sound(send_lag=sends, **OPEN))
    assert verdicts(sound(send_lag=sends, **OPEN)) == {}
    assert [name for name in checks if name.startswith("send lag")] == (
        [f"send lag {used}"] if used else []
    )


def test_two_late_sends_of_twenty_are_found() -> None:
    sends = distribution(np.array([0.1] * 19 + [400.0, 400.0]))
    assert verdicts(sound(send_lag=sends, **OPEN)) == {"send lag p95": "fail"}


def test_a_spoiled_level_is_in_the_first_line_and_in_a_table() -> None:
    told = with_checks(summary(sound(), sound(send_lag=tail(400), label="concurrency 64")))
    text = render_terminal(build_view(told))
    assert text.startswith("the client spoiled concurrency 64: send lag p99 400 ms")
    assert "\nChecks\n" in text
    assert build_view(told).verdict.tone == "bad"


def test_a_sound_client_is_one_line() -> None:
    text = render_terminal(build_view(with_checks(summary(sound()))), width=300)
    assert "client fine (user lag p99 0.200 ms, send lag p99 0.100 ms" in text
    assert "\nChecks\n" not in text
    assert text.startswith("all good")


def test_levels_of_unlike_n_do_not_contradict_one_another_in_one_line() -> None:
    """The larger level's p99 is the smaller one's p95 and less: each figure stands once."""
    sends = [distribution(np.array([0.1] * (n - 4) + [late] * 4)) for n, late in
             ((30, 0.443), (200, 0.2))]  # fmt: skip
    levels = [sound(send_lag=one, label=f"concurrency {i}") for i, one in enumerate(sends)]
    text = render_terminal(build_view(with_checks(summary(*levels))), width=400)
    assert "send lag 0.443 ms (p95 or p99 by n), " in text
    assert "send lag p9" not in text[: text.index("Levels")]
    assert "loop lag max 12.0 ms" in text


def test_a_bound_that_nothing_can_cross_is_not_shown() -> None:
    idle = found(sound(user_lag=tail(0.2, p90=0.1), coalesced_share=0.0))["coalesced"]
    late = found(sound(user_lag=tail(8, p90=3), coalesced_share=0.02))["coalesced"]
    assert check_figure(idle) == "coalesced 0 %"
    assert check_figure(late) == "coalesced 2 % (at most 10 %)"


@pytest.mark.parametrize(
    ("least", "value", "said"),
    [(True, 19, "at least"), (True, 20, "at least"), (True, 21, "at least"),
     (False, 19, "at most"), (False, 20, "at most"), (False, 21, "at most")],
)  # fmt: skip
def test_a_bound_is_a_floor_or_a_ceiling_whatever_was_found(
    least: bool, value: int, said: str
) -> None:
    within = value >= 20 if least else value <= 20
    check = Check(name="sample size", verdict="pass" if within else "warn", value=value, bound=20,
                  unit="requests", least=least)  # fmt: skip
    assert check_figure(check) == f"sample size {value} requests ({said} 20 requests)"


def test_the_worst_verdict_is_found() -> None:
    assert worst([]) == "pass"
    assert worst(list(checks_of(sound(user_lag=tail(40), send_lag=tail(400))))) == "fail"


async def steady(asked: Asked, out: Out) -> None:
    await out.stream("a", "b", "c", every_s=0.02)


def stalled_run(url: str, directory: Path) -> Path:
    """A run whose loop is blocked once, for 220 ms."""
    blocked = []

    def block(event: Event) -> None:
        if isinstance(event, Tick) and not blocked:
            blocked.append(event)
            until = now_ns() + 220_000_000
            while now_ns() < until:
                pass

    each = {"warmup": "2 requests", "measure": "1.2s"}
    made = scenario(url, each_level=each, levels=[{"concurrency": 4}])
    return run_scenario(made, out=directory, on_event=block)


@pytest.mark.parametrize("id_", ["C08"])
def test_a_loop_that_stood_still_is_told(id_: str, tmp_path: Path) -> None:
    with scripted(steady) as server:
        directory = stalled_run(server.url, tmp_path / "run")
    told = summarise_run(directory).levels[0]
    assert told.client["loop_lag_max_ns"] >= 200_000_000
    assert found(told)["loop lag max"].verdict == "warn"
    for kind in ("terminal", "markdown", "html"):
        assert TOLD.search(render(directory, kind))
    assert CliRunner().invoke(report, [str(directory), "--strict"]).exit_code == 1
    assert CliRunner().invoke(report, [str(directory)]).exit_code == 0


def test_a_spoiled_level_fails_a_run_only_under_strict() -> None:
    for made, strict in ((sound(send_lag=tail(40)), 1), (sound(), 0)):
        told = with_checks(summary(made))
        assert exit_code(told) == 0
        assert exit_code(told, strict=True) == strict
