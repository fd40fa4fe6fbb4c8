"""The run over time: what is kept of long lines, where they break, and the picture's parts."""

from itertools import pairwise

import numpy as np
import pytest
from make import level, make_run, ns, record
from telemetry_make import gpu, series, with_readings

from loadgen.analysis.table import RunData
from loadgen.analysis.timelines import MOST, Moments, Timelines, thinned, timelines
from loadgen.report.html import height_px, strips
from loadgen.report.series import Course
from loadgen.report.timeline import _short, build_course


def two_levels(*parts: object, requests: int = 4) -> RunData:
    """Two levels of 10 s, each with warm-up until 2 s; requests of 3 s, TTFT 100 ms."""
    levels = [
        level(number, window=(begin + 2_000, begin + 9_000), label=f"concurrency {load}",
              concurrency=load, start_ns=ns(begin), end_ns=ns(begin + 10_000))
        for number, begin, load in ((0, 1_000, 1), (1, 12_000, 8))
    ]  # fmt: skip
    records = [
        record(i, level=i % 2, sent=(1_000, 12_000)[i % 2] + 2_000 * (i // 2), at=[100, 3_000])
        for i in range(requests)
    ]
    return with_readings(make_run(records, levels), *parts)


def drawn(run: RunData) -> Timelines:
    found = timelines(run)
    assert found is not None
    return found


def course(run: RunData) -> Course:
    made = build_course(timelines(run))
    assert made is not None
    return made


def test_the_clients_course_stands_without_any_reading() -> None:
    found = drawn(two_levels())
    assert [band.label for band in found.bands] == ["concurrency 1", "concurrency 8"]
    assert (found.bands[1].start_s, found.bands[1].measure_s, found.bands[1].end_s) == (12, 14, 22)
    assert found.ttft_ms == Moments(t_s=(1.0, 3.0, 12.0, 14.0), values=(100, 100, 100, 100))
    assert max(value or 0 for value in found.in_flight.values) == 2
    assert (found.server, found.gpu) == ({}, {})


def test_the_median_breaks_between_levels() -> None:
    found = drawn(two_levels()).ttft_median_ms
    assert found.t_s == (1.0, 3.0, 3.0, 12.0, 14.0, 14.0)
    assert found.values == (100, 100, None, 100, 100, None)


def test_a_long_line_keeps_its_peaks_and_its_breaks() -> None:
    values = np.ones(20_000)
    values[7_777], values[123], values[9_000] = 90, -5, np.nan
    kept = thinned(values)
    assert len(kept) <= MOST + 1
    assert {123, 7_777, 9_000} <= set(kept.tolist())
    assert thinned(np.ones(MOST)).tolist() == list(range(MOST))


def test_a_line_is_broken_where_nothing_was_read() -> None:
    readings = {float(at): 3.0 for at in (1, 2, 3, 4, 14, 15)}
    found = drawn(two_levels(series("vllm:num_requests_waiting", readings))).server["waiting"]
    assert found.t_s == (1, 2, 3, 4, 9, 14, 15)
    assert found.values == (3, 3, 3, 3, None, 3, 3)


def test_many_requests_are_thinned_and_the_slowest_stay() -> None:
    records = [record(i, sent=i, at=[5_000.0 if i == 777 else 10]) for i in range(2_000)]
    found = drawn(make_run(records, [level(start_ns=0)]))
    assert len(found.ttft_ms.t_s) <= MOST
    assert 777 in found.requests


def test_a_run_that_sent_nothing_has_no_course() -> None:
    assert timelines(make_run([])) is None
    assert timelines(make_run([record(sent=None, due_ms=5, outcome="dropped")])) is None
    assert build_course(None) is None


def test_strips_stand_in_order_client_server_gpu() -> None:
    run = two_levels(
        series("vllm:num_requests_running", {1: 1, 22: 8}),
        series("vllm:num_requests_waiting", {1: 0, 22: 4}),
        series("vllm:kv_cache_usage_perc", {1: 0.1, 22: 0.97}),
        gpu("power_w", {1: 100, 22: 300}), gpu("power_w", {1: 100, 22: 300}, number=1),
    )  # fmt: skip
    made = course(run)
    assert [panel.title for panel in made.panels] == [
        "client, requests", "client, TTFT in ms", "server, requests", "server, KV cache in %",
        "GPU, power in W",
    ]  # fmt: skip
    assert [(line.name, line.dashed) for line in made.panels[2].lines] == [
        ("running", False), ("waiting", True)]  # fmt: skip
    assert made.panels[3].lines[0].y == (10, 97)
    assert (made.panels[4].lines[0].name, made.panels[4].lines[0].y) == ("sum of 2", (200, 600))
    assert made.labels == ((6.0, "concurrency 1"), (17.0, "8"))
    assert [(one.low, one.high, one.strong) for one in made.shades[:2]] == [
        (1, 3, False), (3, 10, True)]  # fmt: skip


def test_all_strips_share_one_x_axis() -> None:
    made = course(two_levels(series("vllm:num_requests_waiting", {1: 0, 22: 4})))
    figure = strips(made)
    layout = figure["layout"]
    assert {trace.get("xaxis", "x") for trace in figure["data"]} == {"x"}
    assert {trace["yaxis"] for trace in figure["data"]} == {"y", "y2", "y3"}
    assert (layout["xaxis"]["anchor"], layout["hoversubplots"]) == ("y3", "axis")
    domains = [layout[name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3")]
    assert all(upper[0] > lower[1] for upper, lower in pairwise(domains))
    assert (domains[0][1] < 1, domains[2][0]) == (True, pytest.approx(0))
    assert height_px(made) > 3 * 90


@pytest.mark.parametrize(
    ("labels", "short"),
    [
        (["concurrency 1", "concurrency 8"], ["concurrency 1", "8"]),
        (["4/s poisson", "10/s poisson", "4/s poisson"], ["4/s poisson", "10/s", "4/s"]),
        (["concurrency 1", "4/s poisson"], ["concurrency 1", "4/s poisson"]),
        (["concurrency 1", "concurrency 1"], ["concurrency 1", "concurrency 1"]),
        (["one", ""], ["one", ""]),
    ],
    ids=["closed", "open", "both", "alike", "empty"],
)
def test_words_that_all_labels_share_are_said_once(labels: list[str], short: list[str]) -> None:
    assert _short(labels) == short


def test_labels_that_have_no_room_are_left_out() -> None:
    levels = [
        level(n, start_ns=ns(100 * n), end_ns=ns(100 * n + 90), label=f"concurrency {n + 1}")
        for n in range(100)
    ]
    made = course(make_run([record(sent=1, at=[5])], levels))
    assert 10 < len(made.labels) < 60
