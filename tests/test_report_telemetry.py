"""The server's own view in every report; against a simulator with few KV tokens, end to end."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from drive import measure
from report_make import level, summary, view
from sites import sites
from test_report_browser import browse

from loadgen.analysis.server_side import (
    GpuFigures,
    Reconciled,
    ServerFigures,
    ServerTime,
    Telemetry,
)
from loadgen.analysis.summary import LevelSummary
from loadgen.report.grid import Table
from loadgen.report.markdown import render_markdown
from loadgen.report.telemetry import gpu_table, reconciled_table, server_facts, server_table
from loadgen.report.terminal import render_terminal
from loadgen.report.view import build_view, first_line
from loadgen.report.write import render, summarise_run, write_all
from loadgen.simulator.engine import EngineSpec
from loadgen.simulator.spec import SimulatorSpec

SERVER = ServerFigures(
    samples=60, running_mean=15.9, running_max=16, waiting_mean=11.8, waiting_max=16,
    kv_usage_mean=0.97, kv_usage_max=1.0, preemptions=2.0, prefix_hit_share=0.0,
    ttft_ms=ServerTime(n=400, mean=812.4, p50=700.0, p95=1900.0),
)  # fmt: skip
GPU = GpuFigures(
    gpus=1, samples=60, utilization_mean=0.98, memory_used_max_bytes=130 * 2**30,
    memory_total_bytes=140 * 2**30, power_mean_w=612.0, temperature_max_c=71.0,
    sm_clock_mean_hz=1.9e9, sm_clock_min_hz=1.2e9, throttle={"power cap": 0.4}, energy_j=36_720.0,
    energy_per_token_j=0.46,
)  # fmt: skip
SAME = Reconciled(what="output tokens", client=51_200, server=51_200, gap=0, unit="tokens",
                  text="equal", agrees=True)  # fmt: skip
UNLIKE = Reconciled(what="TTFT mean", client=900.0, server=812.4, gap=87.6, unit="ms",
                    text="87.6 ms between them", agrees=False)  # fmt: skip


def heard(**changes: object) -> LevelSummary:
    return level(server=SERVER, gpu=GPU, reconciled=[SAME, UNLIKE], **changes)


def row(table: Table, number: int = 0) -> dict[str, str]:
    return {c.label: cell.text for c, cell in zip(table.columns, table.rows[number], strict=True)}


def test_the_servers_table_holds_what_it_told_and_no_empty_column() -> None:
    found = row(server_table([heard()]))
    assert found == {
        "concurrency": "8", "running": "15.9 / 16", "waiting": "11.8 / 16",
        "KV cache": "97 % / 100 %", "preempted": "2", "prefix hits": "0 %", "TTFT": "812",
        "readings": "60",
    }  # fmt: skip
    waiting = server_table([heard()]).rows[0][2]
    assert (waiting.tone, waiting.title.startswith("queue-bound: on average 11.8")) == (
        "warn",
        True,
    )


def test_means_of_too_few_readings_are_said_to_be_that() -> None:
    few = ServerFigures(samples=2, running_max=8, waiting_max=3)
    found = row(server_table([level(server=few)]))
    assert (found["running"], found["waiting"], found["readings"]) == ("too few", "too few", "2")
    assert "KV cache" not in found


def test_the_gpus_table() -> None:
    assert row(gpu_table([heard()])) == {
        "concurrency": "8", "utilisation": "98 %", "memory": "130 of 140", "power": "612",
        "temperature": "71.0", "SM clock": "1,900 (1,200)", "energy": "0.460",
        "clock lowered by": "power cap 40 %",
    }  # fmt: skip


def test_a_clock_that_nothing_lowered_reads_unlike_one_of_which_nothing_was_told() -> None:
    for throttle, said in (({}, "none"), (None, "not told")):
        table = gpu_table([level(gpu=replace(GPU, throttle=throttle))])
        assert row(table)["clock lowered by"] == said
        assert ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS" in table.note) == (throttle is None)


def test_figures_that_were_left_out_have_no_row() -> None:
    stale = GpuFigures(gpus=1, samples=1, refreshed_s=30.0)
    assert gpu_table([level(gpu=stale)]).rows == ()
    assert len(gpu_table([level(gpu=stale), level(1, gpu=GPU)]).rows) == 1


def test_both_sides_stand_beside_one_another() -> None:
    table = reconciled_table([heard()])
    assert [row(table, i)["what"] for i in (0, 1)] == ["output tokens", "TTFT mean"]
    assert (row(table)["client"], row(table)["server"], row(table)["agrees"]) == (
        "51,200", "51,200", "yes")  # fmt: skip
    assert row(table, 1)["difference"] == "87.6 ms"
    only = reconciled_table([heard()], unlike=True)
    assert [row(only)["what"], len(only.rows)] == ["TTFT mean", 1]


def test_every_report_shows_the_servers_view() -> None:
    shown = view(heard())
    terminal, markdown = render_terminal(shown, width=120), render_markdown(shown)
    for title in ("The server's own view", "GPU"):
        assert title in terminal
        assert f"## {title}" in markdown
    assert "Client and server, where they differ" in terminal
    assert "## Client and server, side by side" in markdown


def test_nothing_is_shown_of_a_server_that_was_never_listened_to() -> None:
    terminal = render_terminal(view(level()), width=120)
    assert "server's own view" not in terminal
    assert "GPU" not in terminal


@pytest.mark.parametrize(
    ("telemetry", "said"),
    [
        pytest.param(Telemetry(why_not="llama-server was started without --metrics"),
                     "none: llama-server was started without --metrics", id="why not"),
        pytest.param(Telemetry(failed=9), "none: every reading failed", id="failed"),
        pytest.param(None, None, id="a run of before"),
    ],
)  # fmt: skip
def test_why_there_is_no_view_of_the_server_is_said_once(
    telemetry: Telemetry | None, said: str | None
) -> None:
    facts = server_facts(summary(level(), level(1, concurrency=16), telemetry=telemetry))
    assert [fact.text for fact in facts] == ([said] if said else [])


def test_a_reason_that_is_among_the_warnings_is_not_said_again() -> None:
    asked = summary(level(), telemetry=Telemetry(why_not="HTTP 500"),
                    warnings=["no metrics of the server: HTTP 500"])  # fmt: skip
    assert server_facts(asked) == ()
    told = {"telemetry": {"server": {"why_not": "no page"}}}
    shown = build_view(summary(telemetry=Telemetry(why_not="no page")), manifest=told)
    for text in (render_terminal(shown), render_markdown(shown)):
        assert text.count("no page") == 1


def test_figures_asked_for_in_vain_are_not_all_good() -> None:
    verdict = first_line(summary(level(), warnings=["no figures of a GPU: no connection"]))
    assert verdict.text.endswith("; mind: no figures of a GPU: no connection")


def test_one_line_says_whether_both_sides_agree() -> None:
    assert server_facts(summary(level(reconciled=[SAME])))[0].text == (
        "agrees with the client's counts and times"
    )
    assert server_facts(summary(heard()))[0].text == "differs from the client's in 1 of 2"


# --- end to end


@pytest.fixture(scope="module")
def few_kv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run at 12 streams of a simulator whose KV cache holds three of them."""
    engine = EngineSpec(kv_tokens=400, prefix_cache_tokens=0)
    out = tmp_path_factory.mktemp("few") / "run"
    with sites() as open_site:
        measure(
            open_site(SimulatorSpec(engine=engine)),
            out,
            prompts={"source": "synthetic", "input_tokens": 80, "output_tokens": 32},
            levels=[{"concurrency": 12}],
            each_level={"warmup": "1s", "measure": "4s"},
            telemetry={"every": "250ms", "gpu": "off"},
        )
    write_all(out)
    return out


@pytest.mark.slow  # six seconds of load
def test_a_server_with_few_kv_tokens_is_found_queue_bound(few_kv: Path) -> None:
    found = summarise_run(few_kv).levels[0]
    assert found.server is not None
    assert found.server.waiting_mean == pytest.approx(9, abs=1)
    assert found.server.running_max == 3
    text = render(few_kv, "terminal")
    assert found.server.queued_mean == pytest.approx(found.server.waiting_mean, rel=0.25)
    waiting = f"queue-bound: on average {found.server.queued_mean:.3g} requests waited"
    assert waiting in " ".join(text.split())
    assert "The server's own view" in text
    assert "client fine" in text
    assert {one.verdict for one in found.checks if one.about == "client"} == {"pass"}


@pytest.mark.slow  # shares that run
def test_the_simulators_counts_and_times_equal_the_clients(few_kv: Path) -> None:
    pairs = {one.what: one for one in summarise_run(few_kv).levels[0].reconciled}
    assert set(pairs) >= {"output tokens", "input tokens", "requests done", "TTFT mean"}
    for what in ("output tokens", "input tokens", "requests done"):
        assert pairs[what].gap == 0, pairs[what]
    assert pairs["TTFT mean"].gap > 0
    assert all(one.agrees for one in pairs.values()), pairs


@pytest.mark.slow  # shares that run
def test_the_figures_are_in_summary_json(few_kv: Path) -> None:
    found = orjson.loads((few_kv / "summary.json").read_bytes())
    assert found["levels"][0]["server"]["kv_usage_max"] > 0.8
    assert found["telemetry"]["why_not"] is None
    assert found["levels"][0]["reconciled"][0]["what"] == "output tokens"


@pytest.mark.browser
def test_the_run_over_time_is_drawn_without_an_error(few_kv: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text((few_kv / "report.html").read_text())
    done = browse(page, "--dump-dom", "--enable-logging=stderr", "--v=0")
    assert 'id="chart-course"' in done.stdout
    assert done.stdout.count('class="overplot"') >= 4
    assert "CONSOLE" not in done.stderr
