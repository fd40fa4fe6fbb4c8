"""What the server's page and the GPUs told of a level, by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make import level, make_run, record, write_run
from report_make import level as summed
from telemetry_make import gpu, histogram, lines_of, reading, series, span, with_readings

from loadgen.analysis.bottleneck import queue_bound, throttled
from loadgen.analysis.metrics import summarise
from loadgen.analysis.readings import label_of, readings_of, without_label
from loadgen.analysis.remarks import not_heard, remarks
from loadgen.analysis.server_side import Foreign, GpuFigures, ServerFigures, ServerTime
from loadgen.analysis.soundness import measurement_checks
from loadgen.analysis.summary import LevelSummary, Quality, Steadiness
from loadgen.analysis.table import RunData, merge, read_run, select
from loadgen.analysis.telemetry import server_figures, server_of

W = level(window=(2_000, 8_000), start_ns=0, end_ns=10_000_000_000)
"""Ten seconds, of which six are measured."""


ALONG = (0, 3, 5, 7, 10)
"""Instants of readings, three of them in the window."""


def figures(*parts: Any, engine: str = "vllm") -> ServerFigures:
    """The figures of that level; its marks are the readings at 0 and at 10 s."""
    server = server_of(readings_of(lines_of(*parts))[0], engine=engine)
    assert server is not None
    return server_figures(server, windows=[span(2, 8)], whole=[span(0, 10)])


def test_gauges_and_counters_of_a_level() -> None:
    found = figures(
        series("vllm:num_requests_running", {0: 0, 2: 16, 5: 16, 8: 16, 10: 0}),
        series("vllm:num_requests_waiting", {0: 0, 2: 0, 5: 6, 8: 12, 10: 0}),
        series("vllm:kv_cache_usage_perc", {0: 0, 2: 0.9, 5: 0.95, 8: 1.0, 10: 0}),
        series("vllm:num_preemptions_total", {0: 4, 2: 4, 8: 7, 10: 7}),
        series("vllm:prefix_cache_queries_total", {0: 0, 2: 100, 8: 300, 10: 300}),
        series("vllm:prefix_cache_hits_total", {0: 0, 2: 0, 8: 50, 10: 50}),
        series("vllm:generation_tokens_total", {0: 1000, 10: 5096}),
        series("vllm:prompt_tokens_total", {0: 10, 10: 8202}),
    )
    assert (found.running_mean, found.running_max, found.samples) == (16, 16, 3)
    assert (found.waiting_mean, found.waiting_max) == (6, 12)
    assert found.kv_usage_mean == pytest.approx(0.95)
    assert (found.preemptions, found.prefix_hit_share) == (3, 0.25)
    assert (found.generation_tokens, found.prompt_tokens) == (4096, 8192)
    assert (found.requests_done, found.ttft_ms, found.spec_acceptance) == (None, None, None)


def test_what_waited_before_the_window_is_no_queue_of_the_window() -> None:
    """Sixteen waited for 5 s in a cold start that was cut off; one reading lies in the window."""
    name = "vllm:request_queue_time_seconds"
    found = figures(
        series(f"{name}_count", {0: 0, 1.9: 0, 5: 16, 10: 40}),
        series(f"{name}_sum", {0: 0, 1.9: 0, 5: 80, 10: 80}),
        series(f"{name}_bucket", {0: 0, 1.9: 0, 5: 16, 10: 40}, le="+Inf"),
    )
    assert (found.queue_ms, found.queued_mean, queue_bound(found)) == (None, None, None)


def test_counts_end_with_the_last_reading_before_the_next_load() -> None:
    """The reading at 10 s was asked for before the end, when a token was still to come."""
    lines = lines_of(series("vllm:generation_tokens_total", {0: 0, 10.1: 99, 10.2: 100, 12: 150}))
    server = server_of(readings_of(lines)[0], engine="vllm")
    assert server is not None
    starts = [span(at, at).start_ns for at in (0, 11)]
    found = server_figures(server, windows=[span(2, 8)], whole=[span(0, 10)], starts=starts)
    assert found.generation_tokens == 100


def test_the_mean_of_two_readings_is_withheld() -> None:
    found = figures(series("vllm:num_requests_waiting", {0: 0, 3: 0, 7: 9, 10: 0}))
    assert (found.samples, found.waiting_mean, found.waiting_max) == (2, None, 9)


def test_the_counts_of_a_level_are_between_the_readings_around_it() -> None:
    counts = {-1: 5, -0.1: 7, 0.5: 8, 9.9: 100, 10.2: 107, 11: 400}
    assert figures(series("vllm:generation_tokens_total", counts)).generation_tokens == 100
    del counts[10.2], counts[11]
    assert figures(series("vllm:generation_tokens_total", counts)).generation_tokens is None


def test_engines_add_up_but_for_their_shares() -> None:
    found = figures(
        *(series("vllm:num_requests_running", dict.fromkeys(ALONG, n), engine=str(n))
          for n in (3, 5)),
        *(series("vllm:kv_cache_usage_perc", dict.fromkeys(ALONG, n / 10), engine=str(n))
          for n in (2, 6)),
    )  # fmt: skip
    assert (found.running_mean, found.kv_usage_mean) == (8, pytest.approx(0.4))


def test_requests_that_the_server_says_were_aborted_are_not_done() -> None:
    name = "vllm:request_success_total"
    found = figures(
        series(name, {0: 0, 10: 6}, finished_reason="stop"),
        series(name, {0: 1, 10: 5}, finished_reason="length"),
        series(name, {0: 0, 10: 3}, finished_reason="abort"),
    )
    assert found.requests_done == 10


def test_a_restarted_server_is_counted_on_and_told() -> None:
    found = figures(series("vllm:generation_tokens_total", {0: 900, 4: 950, 6: 20, 10: 60}))
    assert (found.generation_tokens, found.restarts) == (110, 1)


def test_the_newest_name_stands_and_added_names_add_up() -> None:
    found = figures(
        series("vllm:gpu_cache_usage_perc", dict.fromkeys(ALONG, 0.1)),
        series("vllm:kv_cache_usage_perc", dict.fromkeys(ALONG, 0.7)),
    )
    assert found.kv_usage_mean == pytest.approx(0.7)
    llama = figures(
        series("llamacpp:prompt_tokens_total", {0: 0, 10: 60}),
        series("llamacpp:prompt_tokens_cached_total", {0: 0, 10: 40}),
        engine="unknown",
    )
    assert (llama.prompt_tokens, llama.prefix_hit_share) == (100, pytest.approx(0.4))


def test_the_servers_times_are_what_its_histograms_rose_by() -> None:
    name = "vllm:request_queue_time_seconds"
    found = figures(
        histogram(name, 2, [9.0], bounds=(0.5, 1.0)),
        histogram(name, 8, [9.0, 0.6, 0.8], bounds=(0.5, 1.0)),
    )
    assert found.queue_ms == ServerTime(n=2, mean=pytest.approx(700), p50=750)  # type: ignore[arg-type]
    assert found.queued_mean == pytest.approx(1.4 / 6)  # seconds waited in six


def test_the_most_that_a_server_runs_is_what_it_told_else_what_was_declared() -> None:
    told: dict[str, Any] = {"scenario": {"conditions": {"max_sequences": 8}}}
    for conditions, most in (({}, 8), ({"max_sequences": 16}, 16)):
        made = make_run([record(at=[10])], [W], conditions=conditions, **told)
        running = series("vllm:num_requests_running", dict.fromkeys(ALONG, 3))
        found = summed_of(with_readings(made, running)).server
        assert found is not None
        assert found.max_sequences == most


def test_what_was_drafted_and_taken_is_a_share_of_counters_or_a_gauge() -> None:
    counted = figures(
        series("vllm:spec_decode_num_draft_tokens_total", {0: 0, 10: 300}),
        series("vllm:spec_decode_num_accepted_tokens_total", {0: 0, 10: 225}),
    )
    assert counted.spec_acceptance == pytest.approx(0.75)

    def told(rate: float, length: float) -> float | None:
        return figures(
            series("sglang:spec_accept_rate", dict.fromkeys(ALONG, rate), tp_rank="0"),
            series("sglang:spec_accept_rate", dict.fromkeys(ALONG, rate), tp_rank="1"),
            series("sglang:spec_accept_length", dict.fromkeys(ALONG, length)),
            engine="sglang",
        ).spec_acceptance

    assert told(0.6, 2.8) == pytest.approx(0.6)
    assert told(0.0, 1.0) == 0  # drafted, and nothing taken
    assert told(0.0, 0.0) is None  # no draft


def test_a_page_of_unknown_names_tells_nothing() -> None:
    assert (
        server_of(readings_of(lines_of([reading(0, "other:thing", 1)]))[0], engine="vllm") is None
    )
    assert server_of(readings_of([])[0], engine="vllm") is None


# --- GPUs


def of_gpus(*parts: Any, tokens: int = 60) -> GpuFigures | None:
    """The figures of a level that gave one token in each 100 ms of its window."""
    made = record(
        at=[100 * n for n in range(21, 21 + tokens)], due_ms=2_000, reported_output=tokens
    )
    return summarise(with_readings(make_run([made], [W]), *parts)).levels[0].gpu


def test_the_gpus_figures() -> None:
    found = of_gpus(
        gpu("utilization", {0: 0.5, 10: 0.5}), gpu("utilization", {0: 1, 10: 1}, number=1),
        gpu("power_w", {0: 300, 10: 300}), gpu("power_w", {0: 100, 10: 100}, number=1),
        gpu("memory_used_bytes", {0: 1e9, 10: 3e9}), gpu("memory_used_bytes", {0: 1e9, 10: 1e9},
                                                         number=1),
        gpu("temperature_c", {0: 60, 5: 71, 10: 65}),
        gpu("sm_clock_hz", {0: 2e9, 2: 2e9, 8: 1e9, 10: 2e9}),
        gpu("throttle", {3: 0, 4: 0x24, 5: 0x1, 6: 0x20}),
    )  # fmt: skip
    assert found is not None
    assert (found.gpus, found.utilization_mean, found.power_mean_w) == (2, 0.75, 400)
    assert (found.memory_used_max_bytes, found.temperature_max_c) == (pytest.approx(3.6e9), 71)
    assert (found.sm_clock_mean_hz, found.sm_clock_min_hz) == (1.5e9, 1e9)
    assert found.throttle == {"power cap": 0.25, "thermal (driver)": 0.5}


def test_the_energy_is_the_counters_else_power_over_time() -> None:
    counted = of_gpus(gpu("energy_j", {0: 5000, 10: 8000}), gpu("power_w", {0: 1, 10: 1}))
    assert counted is not None
    assert (counted.energy_j, counted.energy_per_token_j) == (pytest.approx(1800), 30)
    watts = of_gpus(gpu("power_w", {0: 200, 10: 200}))
    assert watts is not None
    assert watts.energy_j == pytest.approx(1200)


def test_half_an_energy_is_none() -> None:
    found = of_gpus(gpu("power_w", {0: 200, 5: 200}))
    assert found is not None
    assert (found.power_mean_w, found.energy_j) == (200, None)


# --- in words

QUEUED = ServerFigures(
    samples=60, running_mean=16.0, running_max=16.0, waiting_mean=11.8, kv_usage_mean=0.97,
    kv_usage_max=1.0,
)  # fmt: skip
NO_ROOM = {"kv_usage_mean": 0.4, "max_sequences": 16.0}


def times(queue_ms: float, ttft_ms: float, waited: float) -> dict[str, Any]:
    """What histograms say: the mean time in the queue, the mean TTFT, how many waited."""
    return {"queue_ms": ServerTime(n=90, mean=queue_ms), "ttft_ms": ServerTime(n=90, mean=ttft_ms),
            "queued_mean": waited}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        pytest.param({}, "queue-bound: on average 11.8 requests waited at the server while its KV"
                     " cache was 97 % full", id="KV full"),
        pytest.param(NO_ROOM, "queue-bound: on average 11.8 requests waited at the"
                     " server while 16 ran, the most it takes at once (KV cache 40 % full)",
                     id="sequences"),
        pytest.param({**NO_ROOM, "max_sequences": 32.0}, None, id="room for more sequences"),
        pytest.param({"kv_usage_mean": 0.4}, None, id="no limit known"),
        pytest.param({"samples": 4}, None, id="too few readings"),
        pytest.param({**times(5.31, 21.9, 0.25), **NO_ROOM}, None, id="its times say otherwise"),
        pytest.param({**times(300, 900, 9), "samples": 2}, None, id="a third of TTFT, no readings"),
        pytest.param({"kv_usage_mean": 0.7, "running_mean": 2.0}, "queue-bound: on average 11.8"
                     " requests waited at the server while its KV cache was 70 % full, without room"
                     " for one more of them", id="long ones"),
        pytest.param({**times(900, 1000, 9.2), "kv_usage_mean": 0.4, "running_mean": 6.0},
                     "queue-bound: on average 9.2 requests waited at the server (by its queue"
                     " times) though its KV cache was only 40 % full; 90 % of its TTFT was queue",
                     id="neither"),
        pytest.param({**times(900, 1000, 9.2), "kv_usage_mean": None, "running_mean": None,
                      "samples": 2}, "queue-bound: on average 9.2 requests waited at the server (by"
                     " its queue times) for a place in its batch; 90 % of its TTFT was queue",
                     id="unknown"),
        pytest.param({**times(900, 1000, 9.2), "kv_usage_mean": 0.4}, "queue-bound: on average 9.2"
                     " requests waited at the server (by its queue times) while 16 ran and never"
                     " more (KV cache 40 % full); 90 % of its TTFT was queue", id="never more"),
        pytest.param(times(900, 1000, 9.2), "queue-bound: on average 9.2 requests waited at the"
                     " server (by its queue times) while its KV cache was 97 % full; 90 % of its"
                     " TTFT was queue", id="TTFT"),
        pytest.param({"waiting_mean": 0.5}, None, id="hardly any"),
        pytest.param({"waiting_mean": 1.2}, None, id="few of many"),
        pytest.param({"waiting_mean": None}, None, id="not told"),
    ],
)  # fmt: skip
def test_a_queue_at_the_server_is_told_with_its_cause(
    changes: dict[str, Any], text: str | None
) -> None:
    assert queue_bound(replace(QUEUED, **changes)) == text


def test_what_the_server_told_is_a_remark_and_no_check_of_the_client() -> None:
    made = summed(
        server=replace(QUEUED, preemptions=3, restarts=1, waiting_mean=9),
        gpu=GpuFigures(throttle={"thermal (driver)": 0.5}, sm_clock_min_hz=9e8),
    )
    told = remarks([made])
    assert told[0] == "concurrency 8: the server restarted once: its counters began anew"
    assert told[1].startswith("concurrency 8: queue-bound: on average 9 requests waited")
    assert "3 requests out of its batch again" in told[2]
    assert told[3].endswith("thermal (driver) in 50 % of the readings (SM clock down to 900 MHz)")


@pytest.mark.parametrize(
    ("quality", "said"),
    [
        (Quality(outputs=30, broken=1, garbled=1), "3.3 % of the answers are broken (garbled)"),
        (Quality(outputs=900, broken=9, looping=7, empty=3),
         "1 % of the answers are broken (looping, empty)"),
        (Quality(outputs=2000, broken=10, truncated=10),
         "0.5 % of the answers are broken (truncated)"),
        (Quality(outputs=40, broken=10, garbled=10), "25 % of the answers are broken (garbled)"),
        (Quality(outputs=2000, broken=2, garbled=2), None),
        (Quality(outputs=2000), None),
        (Quality(), None),
    ],
    ids=["one of few", "a hundredth", "few but surely", "many", "hardly any", "none", "no answers"],
)  # fmt: skip
def test_broken_answers_are_a_remark(quality: Quality, said: str | None) -> None:
    found = remarks([summed(quality=quality)])
    assert found == ([f"concurrency 8: {said}"] if said else [])


ASKED = {"server": "http://127.0.0.1:1/metrics", "gpu": "nvml"}


@pytest.mark.parametrize(
    ("asked", "levels", "said"),
    [
        (ASKED, {}, ["no metrics of the server: HTTP 500", "no figures of a GPU: no NVML"]),
        ({"server": "auto", "gpu": "off"}, {}, []),
        ({}, {}, []),
        (ASKED, {"server": QUEUED, "gpu": GpuFigures(gpus=1)}, []),
    ],
    ids=["by name", "auto and off", "nothing", "heard"],
)  # fmt: skip
def test_what_was_asked_for_by_name_and_not_got_is_a_warning(
    asked: dict[str, Any], levels: dict[str, Any], said: list[str]
) -> None:
    told = {"server": {"why_not": "HTTP 500"}, "gpu": {"why_not": "no NVML"}}
    made = {"scenario": {"telemetry": asked}, "telemetry": told}
    assert not_heard(made, [summed(**levels)]) == said


def test_a_touch_of_the_power_cap_is_no_finding() -> None:
    assert throttled(GpuFigures(throttle={"power cap": 0.03})) is None
    assert throttled(GpuFigures(throttle={"power cap": 0.3})) == "power cap in 30 % of the readings"
    assert throttled(None) is None


def test_a_drift_names_the_heat() -> None:
    drift = Steadiness(verdict="drift", drifting=["TPOT"], tpot_change=0.2)
    made = summed(steadiness=drift, gpu=GpuFigures(throttle={"thermal (driver)": 1.0}))
    found = {one.name: one for one in measurement_checks(made)}["TPOT rose by"]
    assert found.text.endswith(
        "the GPU lowered its clock: thermal (driver) in 100 % of the readings"
    )


@pytest.mark.parametrize(
    ("others", "verdict", "text"),
    [
        (None, "pass", ""),
        (Foreign(requests=40), "warn", "the server also served others: 40 requests not ours"),
        (Foreign(output_tokens=900), "warn", "900 output tokens not ours"),
    ],
    ids=["none", "requests", "tokens"],
)
def test_other_traffic_is_a_warning(others: Foreign | None, verdict: str, text: str) -> None:
    made = summed(server=ServerFigures(generation_tokens=4000), others=others)
    found = {one.name: one for one in measurement_checks(made)}["other traffic at the server"]
    assert found.verdict == verdict
    assert text in found.text


# --- the file


def sampled(directory: Path, *lines: bytes) -> Path:
    write_run(directory, [record(at=[10])])
    (directory / "samples.jsonl").write_bytes(b"".join(lines))
    return directory


def test_readings_are_read_in_order_of_time(tmp_path: Path) -> None:
    late, early = lines_of([reading(2, "b", 2, z="1", a="x,y")], [reading(1, "a", 1)])
    found = read_run(sampled(tmp_path / "run", late, early)).samples
    assert found["at_ns"].tolist() == [1_000_000_000, 2_000_000_000]
    assert found["labels"].tolist() == ["", "a=x\\,y,z=1"]
    assert [label_of(found["labels"][1], key) for key in ("a", "z", "y")] == ["x,y", "1", None]
    assert without_label(found["labels"][1], "a") == "z=1"


def test_unusable_readings_are_left_out_and_counted(tmp_path: Path) -> None:
    good, *_ = lines_of([reading(1, "a", 1)])
    bad = (b"[]\n", b'{"at_ns": 1}\n', b'{"at_ns":1,"source":"server","name":"a","value":null}\n')
    run = read_run(sampled(tmp_path / "run", *bad, good))
    assert len(run.samples) == 1
    assert run.warnings == ["unusable lines of samples.jsonl were left out: 3 (line 1, 2, 3)"]
    cut = read_run(sampled(tmp_path / "cut", good, good[:-9]))
    assert cut.warnings == ["the last line of samples.jsonl was cut off and left out"]


def test_a_run_without_readings_has_none(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", [record(at=[10])]))
    assert (len(run.samples), list(run.samples)) == (
        0,
        ["at_ns", "source", "name", "labels", "value"],
    )
    summary = summarise(run)
    assert (summary.telemetry, summary.levels[0].server, summary.levels[0].gpu) == (
        None,
        None,
        None,
    )


def heard() -> RunData:
    return with_readings(make_run([record(at=[10])]), series("vllm:num_requests_running", {0: 1}))


def test_selecting_and_joining_keep_the_readings() -> None:
    run = heard()
    assert len(select(run, run.requests["id"].to_numpy() < 0).samples) == 1
    assert len(run.with_requests(run.requests).samples) == 1
    assert len(merge([make_run([record(1, at=[5])]), run]).samples) == 1
    assert merge([run, run]).samples["name"].tolist() == ["vllm:num_requests_running"] * 2


def test_why_nothing_was_heard_is_in_the_summary() -> None:
    told = {
        "server": {"url": None, "why_not": "no page"},
        "gpu": {"by": None, "why_not": "no NVML"},
    }
    found = summarise(make_run([record(at=[10])], telemetry=told)).telemetry
    assert found is not None
    assert (found.why_not, found.gpu_why_not, found.sweeps) == ("no page", "no NVML", 0)


def summed_of(run: RunData) -> LevelSummary:
    return summarise(run).levels[0]


def test_the_servers_hits_feed_the_check_of_the_prefix_cache() -> None:
    run = with_readings(
        make_run([record(at=[10])], [W]),
        series("vllm:prefix_cache_queries_total", {0: 0, 10: 100}),
        series("vllm:prefix_cache_hits_total", {0: 0, 10: 40}),
    )
    found = summed_of(run)
    assert found.cached_input_share_server == pytest.approx(0.4)
    assert "prefix-cache hits, by the server's counters" in {one.name for one in found.checks}
