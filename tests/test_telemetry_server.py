"""Which metrics page is asked, with what, and what it means that one is not there."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from scenario_make import make_scenario

from loadgen.engines import ENGINES, LLAMACPP, OPENAI, TRTLLM, UNKNOWN, VLLM, Engine
from loadgen.run.headers import credentials_of
from loadgen.run.telemetry.asked import asked_of, spec_of
from loadgen.run.telemetry.fetch import FetchError, Page
from loadgen.run.telemetry.sampler import next_due_ns
from loadgen.run.telemetry.server import Candidate, ServerSource
from loadgen.run.telemetry.source import FAILED

RUNNING = b"vllm:num_requests_running 3\n"
ROOT = "http://127.0.0.1:8000"


def server(engine: Engine, *answers: Page | FetchError, kind: str = "prometheus") -> ServerSource:
    """A source whose pages answer like this, one after another; then the last again."""
    return served([Candidate(url=f"{ROOT}/metrics", kind=kind)], engine, answers)


def served(
    pages: list[Candidate], engine: Engine, answers: Iterable[Page | FetchError]
) -> ServerSource:
    left = list(answers)

    def fetch(url: str) -> Page:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, FetchError):
            raise answer
        return answer

    return ServerSource(pages, engine=engine, fetch=fetch)


def page(body: bytes = b"", status: int = 200) -> Page:
    return Page(status=status, body=body, at_ns=5)


def why(source: ServerSource) -> object:
    return source.facts()["why_not"]


@pytest.mark.parametrize(
    ("engine", "paths"),
    [
        ("vllm", ["/metrics"]),
        ("sglang", ["/metrics"]),  # never /health, which generates
        ("llamacpp", ["/metrics"]),
        ("trtllm", ["/prometheus/metrics", "/metrics"]),
        ("unknown", ["/metrics"]),
        ("openai", []),
        ("transformers", []),
    ],
)
def test_each_engine_is_asked_for_the_pages_it_is_known_to_have(
    engine: str, paths: list[str]
) -> None:
    scenario = make_scenario(target={"url": "http://user:pw@h:8000/gate/v1?key=x"})
    asked = asked_of(scenario, ENGINES[engine])
    assert [url for url, _ in asked.pages] == [f"http://h:8000/gate{path}" for path in paths]


def test_an_engine_without_a_page_says_so_and_a_page_can_be_named() -> None:
    assert asked_of(make_scenario(), OPENAI).no_server == "OpenAI has no metrics page"
    named = make_scenario(telemetry={"server": "http://h:9/m"})
    assert asked_of(named, OPENAI).pages == [("http://h:9/m", "prometheus")]
    assert asked_of(make_scenario(telemetry="off"), VLLM).nothing


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:1", True),
        ("http://[::1]:1", True),
        ("http://localhost", True),
        ("http://10.0.0.7", False),
        ("http://gpu-host", False),
    ],
)
def test_gpus_of_this_machine_are_those_of_a_server_on_it(url: str, here: bool) -> None:
    asked = asked_of(make_scenario(target={"url": url}), VLLM)
    assert asked.gpu == ("nvml" if here else None)
    assert (asked.no_gpu is None) == here


def test_a_key_goes_to_the_target_alone() -> None:
    def headers(page: str) -> dict[str, str]:
        scenario = make_scenario(
            target={"url": ROOT, "headers": {"X-Team": "t"}}, telemetry={"server": page}
        )
        credentials = credentials_of(scenario.target, {"LOADGEN_API_KEY": "sesame"})
        spec = spec_of(
            scenario,
            asked_of(scenario, VLLM),
            credentials=credentials,
            proxy_for=lambda url: None,
        )
        found: dict[str, str] = spec["access"]["headers"]
        return found

    own = headers("auto")
    assert (own["authorization"], own["x-team"]) == ("Bearer sesame", "t")
    assert "content-type" not in own
    for other in ("http://127.0.0.1:8001/metrics", "https://127.0.0.1:8000/metrics", "http://h/m"):
        assert {*headers(other)} == {"accept", "user-agent"}


def test_a_page_that_is_there_is_read_at_each_sweep() -> None:
    source = server(VLLM, page(RUNNING))
    assert [one.value for one in (*source.sweep(), *source.sweep())] == [3, 3]
    facts = source.facts()
    assert (facts["url"], facts["kind"]) == (f"{ROOT}/metrics", "prometheus")
    assert (facts["why_not"], facts["clears_on_read"], source.at_ns) == (None, False, 5)


@pytest.mark.parametrize(
    ("engine", "status", "reason"),
    [
        (LLAMACPP, 501, "llama-server was started without --metrics"),
        (LLAMACPP, 404, "llama-server was started without --metrics"),
        (VLLM, 404, "no such page (HTTP 404)"),
        (VLLM, 401, "its page wants a key (HTTP 401)"),
    ],
)
def test_a_page_that_is_refused_is_not_asked_again(
    engine: Engine, status: int, reason: str
) -> None:
    source = server(engine, page(status=status), page(RUNNING))
    assert (source.sweep(), source.sweep()) == ([], [])
    assert why(source) == reason


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (FetchError("no answer within 2 s"), "no answer within 2 s"),
        (page(status=503), "HTTP 503"),
        (page(b"<html>"), "the page has no metrics of vLLM"),
    ],
)
def test_what_may_pass_is_a_failed_sweep(answer: Page | FetchError, reason: str) -> None:
    source = server(VLLM, answer, page(RUNNING))
    (sample,) = source.sweep()
    assert (sample.name, sample.labels) == (FAILED, {"why": reason})
    assert why(source) == reason
    assert [one.value for one in source.sweep()] == [3]
    assert why(source) is None


def test_a_page_that_goes_away_during_a_run_is_a_failed_sweep() -> None:
    source = server(VLLM, page(RUNNING), page(status=404), page(RUNNING))
    assert [[one.name for one in source.sweep()] for _ in range(3)] == [
        ["vllm:num_requests_running"], [FAILED], ["vllm:num_requests_running"]]  # fmt: skip


def test_an_unknown_engine_is_known_by_its_metrics() -> None:
    source = server(UNKNOWN, page(RUNNING))
    assert [one.name for one in source.sweep()] == ["vllm:num_requests_running"]
    assert source.facts()["engine"] == "vllm"
    nameless = server(UNKNOWN, page(b"python_info 1\n"))
    assert nameless.sweep() == []
    assert why(nameless) == "the engine is not known, and its page names none"


def test_counts_within_an_iteration_add_up_over_the_sweeps() -> None:
    body = orjson.dumps([{"numCompletedRequests": 2, "numActiveRequests": 1}])
    pages = [Candidate(url="p", kind="prometheus"), Candidate(url="m", kind="trtllm_json")]
    gone = page(status=404)
    source = served(pages, TRTLLM, [gone, page(body), page(b"[]"), page(body)])
    swept = [{one.name: one.value for one in source.sweep()} for _ in range(3)]
    done = "trtllm:numCompletedRequests"
    assert [values.get(done) for values in swept] == [2, None, 4]
    assert source.facts()["clears_on_read"]


def test_a_page_that_stays_empty_says_how_to_fill_it() -> None:
    source = server(TRTLLM, page(b"[]"), kind="trtllm_json")
    assert source.sweep() == []
    assert "enable_iter_perf_stats" in str(why(source))


def test_sweeps_lie_on_a_grid_and_those_that_were_missed_are_left_out() -> None:
    due = [next_due_ns(100, 10, now_ns=now) for now in (100, 109, 110, 137)]
    assert due == [110, 110, 120, 140]
    assert all(later >= sooner for sooner, later in pairwise(due))


def test_no_secret_stands_in_what_is_told(tmp_path: Path) -> None:
    url = "http://user:sesame@h/metrics?key=sesame"
    source = served([Candidate(url=url, kind="prometheus")], VLLM, [page(RUNNING)])
    source.sweep()
    assert "sesame" not in str(source.facts())
