"""Metrics pages of real engines, as captured, become samples under the engines' own names."""

import orjson
import pytest
from wire_cases import body_reads, load

from loadgen.engines import ENGINES, LLAMACPP, SGLANG, SIGNALS, STARTED, TRTLLM, VLLM, Engine
from loadgen.run.telemetry.page import (
    NoneOfItsOwnError,
    PageError,
    iteration_samples,
    prometheus_samples,
)
from loadgen.run.telemetry.source import Sample

ITERATIONS = [
    {
        "iter": 7,
        "numActiveRequests": 3,
        "numQueuedRequests": 9,
        "numCompletedRequests": 1,
        "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": 40, "reusedBlocks": 5},
        "specDecodingStats": {"numDraftTokens": 20, "numAcceptedTokens": 15},
    },
    {
        "iter": 8,
        "timestamp": "11-30-2026 05:42:34.1",
        "numActiveRequests": 2,
        "numQueuedRequests": 0,
        "numCompletedRequests": 2,
        "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": 25, "reusedBlocks": 6},
        "specDecodingStats": {"numDraftTokens": 10, "numAcceptedTokens": 4},
    },
]


def body_of(capture: str) -> bytes:
    return b"".join(read.data for read in body_reads(load(capture)))


def total(samples: list[Sample], engine: Engine, key: str) -> float:
    """What a signal says: the first of its names that is there, all series added."""
    signal = engine.signals[key]
    part = "_count" if signal.kind == "histogram" else ""
    present = [name + part for name in signal.names if name + part in {s.name for s in samples}]
    names = {*present[:1], *signal.plus}
    return sum(one.value for one in samples if one.name in names)


# numbers as they stand in the captured pages
@pytest.mark.parametrize(
    ("engine", "capture", "said"),
    [
        (VLLM, "vllm-get-metrics",
         {"running": 0, "requests_done": 20, "prompt_tokens": 157, "generation_tokens": 130,
          "prefix_queries": 157, "prefix_hits": 0, "ttft": 20, "queue_time": 20, "e2e": 20}),
        (SGLANG, "sglang-get-metrics",
         {"requests_done": 24, "prompt_tokens": 1230, "generation_tokens": 280,
          "prefix_hits": 840, "cached_tokens": 840, "ttft": 24, "tpot": 22, "queue_time": 27,
          "spec_length": 0, "spec_rate": 0}),
        (LLAMACPP, "llamacpp-get-metrics",
         {"running": 0, "waiting": 0, "prompt_tokens": 161, "generation_tokens": 152,
          "prefix_queries": 161, "prefix_hits": 124, "spec_drafted": 0}),
    ],
    ids=["vllm", "sglang", "llamacpp"],
)  # fmt: skip
def test_a_captured_page_says_what_stands_on_it(
    engine: Engine, capture: str, said: dict[str, float]
) -> None:
    samples = prometheus_samples(body_of(capture), engine)
    assert {key: total(samples, engine, key) for key in said} == said


def test_only_what_signals_name_is_kept_and_shared_labels_are_left_out() -> None:
    samples = prometheus_samples(body_of("vllm-get-metrics"), VLLM)
    names = {one.name for one in samples}
    assert "vllm:time_to_first_token_seconds_bucket" in names
    others = {name for name in names if name.startswith(("python_", "process_", "http_"))}
    assert others == {STARTED}
    assert not {name for name in names if name.endswith("_created")}
    assert {key for one in samples for key in one.labels} == {"le", "finished_reason"}


def test_a_label_with_several_values_stays() -> None:
    page = b'vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 2\n'
    samples = prometheus_samples(page, VLLM)
    assert [(one.labels, one.value) for one in samples] == [
        ({"engine": "0"}, 1.0),
        ({"engine": "1"}, 2.0),
    ]


def test_info_gauges_are_kept_when_asked_for() -> None:
    body = body_of("vllm-get-metrics")
    told = [one for one in prometheus_samples(body, VLLM, info=True) if "info" in one.name]
    assert [one.name for one in told] == ["vllm:cache_config_info"]
    assert told[0].labels["enable_prefix_caching"] == "True"
    assert len(prometheus_samples(body, VLLM, info=True)) - 1 == len(prometheus_samples(body, VLLM))


@pytest.mark.parametrize(
    ("old", "key"),
    [
        ("vllm:gpu_cache_usage_perc 0.5", "kv_usage"),
        ("vllm:gpu_prefix_cache_queries_total 0.5", "prefix_queries"),
        ("vllm:time_per_output_token_seconds_count 0.5", "itl"),
    ],
)
def test_older_pages_of_vllm_are_read_by_their_names(old: str, key: str) -> None:
    assert total(prometheus_samples(old.encode(), VLLM), VLLM, key) == 0.5


def test_what_is_not_a_number_is_no_sample() -> None:
    page = b"vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running 3\n"
    assert [one.name for one in prometheus_samples(page, VLLM)] == ["vllm:num_requests_running"]


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (b"", "has no metrics of vLLM"),
        (b"<html><body>502 Bad Gateway</body></html>", "has no metrics of vLLM"),
        (b"\xff\xfe\x00", "has no metrics of vLLM"),
        (b"sglang:num_running_reqs 1", "has no metrics of vLLM"),
        (b"vllm:num_requests_running one", "cannot be read as a Prometheus page"),
        (b'vllm:num_requests_running{engine="0', "cannot be read as a Prometheus page"),
        (b"vllm:num_requests_running", "cannot be read as a Prometheus page"),
    ],
    ids=["empty", "html", "bytes", "other-engine", "no-number", "cut", "cut-before-value"],
)
def test_a_page_that_cannot_be_used_says_why(page: bytes, why: str) -> None:
    with pytest.raises(PageError, match=why):
        prometheus_samples(page, VLLM)


def test_a_page_of_others_alone_says_what_to_look_at() -> None:
    others = b"python_info 1\nprocess_start_time_seconds 1.7e9\nhttp_requests_total 3\n"
    with pytest.raises(NoneOfItsOwnError, match="was it started with --disable-log-stats"):
        prometheus_samples(others, VLLM)
    with pytest.raises(NoneOfItsOwnError, match="enable_iter_perf_stats"):
        prometheus_samples(others, TRTLLM)


def test_iterations_give_the_latest_state_and_the_sum_of_what_they_count() -> None:
    samples = iteration_samples(orjson.dumps(ITERATIONS), TRTLLM)
    assert {one.name: one.value for one in samples} == {
        "trtllm:numActiveRequests": 2,
        "trtllm:numQueuedRequests": 0,
        "trtllm:numCompletedRequests": 3,
        "trtllm:kvCacheStats.usedNumBlocks/maxNumBlocks": 0.25,
        "trtllm:kvCacheStats.reusedBlocks": 6,
        "trtllm:specDecodingStats.numDraftTokens": 30,
        "trtllm:specDecodingStats.numAcceptedTokens": 19,
    }


def test_each_rank_of_iterations_is_a_series_of_its_own() -> None:
    rows = [{"numActiveRequests": number, "attentionDpRank": number % 2} for number in range(4)]
    samples = iteration_samples(orjson.dumps(rows), TRTLLM)
    assert [(one.labels, one.value) for one in samples] == [({"rank": "0"}, 2), ({"rank": "1"}, 3)]


def test_an_empty_list_of_iterations_says_nothing() -> None:
    assert iteration_samples(b"[]", TRTLLM) == []


@pytest.mark.parametrize("page", [b"<html>", b'{"detail":"x"}', b"[1]"], ids=["html", "no", "int"])
def test_what_is_no_list_of_iterations_says_so(page: bytes) -> None:
    with pytest.raises(PageError, match=r"is not (JSON|a list of iterations)"):
        iteration_samples(page, TRTLLM)


def test_the_prometheus_page_of_trtllm_is_read_by_its_names() -> None:
    page = (
        'trtllm_num_requests_running{model_name="m"} 4\ntrtllm_kv_cache_utilization 0.5\n'
        'trtllm_time_to_first_token_seconds_bucket{le="0.01",model_name="m"} 7\n'
        'trtllm_request_success_total{model_name="m",finished_reason="stop"} 7\n'
        'trtllm_model_config_info{model_name="m",quantization="FP8"} 1\n'
    )
    samples = prometheus_samples(page.encode(), TRTLLM, info=True)
    assert total(samples, TRTLLM, "running") == 4
    assert total(samples, TRTLLM, "requests_done") == 7
    assert [one.labels for one in samples if one.name.endswith("_info")] == [
        {"quantization": "FP8"}
    ]


def test_every_engine_uses_the_words_that_are_known_for_signals() -> None:
    for engine in ENGINES.values():
        assert set(engine.signals) <= set(SIGNALS)
        assert bool(engine.signals) == (engine.metrics is not None)
