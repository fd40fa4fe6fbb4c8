"""Which metrics page is asked, with what, and what it means that one is not there."""

import socket
from itertools import pairwise
from pathlib import Path

import orjson
import pytest
from scenario_make import make_scenario

from loadgen.engines import ENGINES, LLAMACPP, OPENAI, TRTLLM, UNKNOWN, VLLM, Engine
from loadgen.run.headers import credentials_of
from loadgen.run.preflight import Found
from loadgen.run.telemetry.asked import Asked, asked_of, spec_of
from loadgen.run.telemetry.fetch import FetchError, FetchTimeoutError, Page
from loadgen.run.telemetry.sampler import next_due_ns
from loadgen.run.telemetry.server import PATIENCE, Candidate, ServerSource
from loadgen.run.telemetry.source import FAILED
from loadgen.scenario.model import Scenario

RUNNING = b"vllm:num_requests_running 3\n"
STRANGE = b"python_info 1\nprocess_start_time_seconds 1.7e9\nhttp_requests_total 3\n"
ITERATION = orjson.dumps([{"numCompletedRequests": 2, "numActiveRequests": 1}])
ROOT = "http://127.0.0.1:8000"


def server(
    engine: Engine,
    *answers: Page | FetchError,
    kind: str = "prometheus",
    url: str = f"{ROOT}/metrics",
) -> ServerSource:
    """A source whose page answers like this, time after time; then the last again."""
    left = list(answers)

    def fetch(url: str, within_s: float) -> Page:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, FetchError):
            raise answer
        return answer

    return ServerSource(Candidate(url=url, kind=kind), engine=engine, fetch=fetch)


def asked(scenario: Scenario, engine: Engine, *peers: str) -> Asked:
    return asked_of(scenario, Found(model="m", engine=engine, peers=list(peers)))


def page(body: bytes = b"", status: int = 200) -> Page:
    return Page(status=status, body=body, at_ns=5)


def why(source: ServerSource) -> object:
    return source.facts()["why_not"]


@pytest.mark.parametrize(
    ("engine", "path"),
    [
        ("vllm", "/metrics"),
        ("sglang", "/metrics"),  # never /health, which generates
        ("llamacpp", "/metrics"),
        ("trtllm", "/prometheus/metrics"),  # never /metrics, which is emptied, and holds it up
        ("unknown", "/metrics"),
        ("openai", None),
        ("transformers", None),
    ],
)
def test_each_engine_is_asked_for_the_page_it_is_known_to_have(
    engine: str, path: str | None
) -> None:
    scenario = make_scenario(target={"url": "http://user:pw@h:8000/gate/v1?key=x"})
    page = asked(scenario, ENGINES[engine]).page
    assert page == (None if path is None else (f"http://h:8000/gate{path}", "prometheus"))


def test_no_engine_is_asked_unnamed_for_a_page_that_its_reading_empties() -> None:
    for engine in ENGINES.values():
        assert not asked(make_scenario(), engine).drained


@pytest.mark.parametrize(
    ("engine", "url", "kind"),
    [
        (TRTLLM, "http://h:8000/metrics", "trtllm_json"),
        (TRTLLM, "http://h:8000/gate/metrics", "trtllm_json"),
        (TRTLLM, "http://h:8000/prometheus/metrics", "prometheus"),
        (TRTLLM, "http://h:9/m", "prometheus"),
        (VLLM, "http://h:8000/metrics", "prometheus"),
        (OPENAI, "http://h:9/m", "prometheus"),
    ],
)
def test_what_a_named_page_speaks_is_told_by_its_path(engine: Engine, url: str, kind: str) -> None:
    assert asked(make_scenario(telemetry={"server": url}), engine).page == (url, kind)


def test_an_engine_without_a_page_says_so_and_nothing_is_asked_where_all_is_off() -> None:
    assert asked(make_scenario(), OPENAI).no_server == "OpenAI has no metrics page"
    assert asked(make_scenario(telemetry="off"), VLLM).nothing


@pytest.mark.parametrize(
    ("url", "peers", "here"),
    [
        ("http://127.0.0.1:1", [], True),
        ("http://[::1]:1", [], True),
        ("http://localhost", [], True),
        ("http://a.localhost", [], True),
        ("http://10.0.0.7", [], False),
        ("http://gpu-host", [], False),
        ("http://gpu-host:1", ["127.0.1.1:1"], True),
        ("http://gpu-host:1", ["192.0.2.7:1"], False),
        ("http://localhost:1", ["192.0.2.7:1"], False),
    ],
)
def test_gpus_of_this_machine_are_those_of_a_server_on_it(
    url: str, peers: list[str], here: bool
) -> None:
    found = asked(make_scenario(target={"url": url}), VLLM, *peers)
    assert found.gpu == ("nvml" if here else None)
    assert (found.no_gpu is None) == here


def test_a_server_under_this_machines_own_name_is_on_it() -> None:
    name = socket.gethostname()
    try:
        (*_, address) = socket.getaddrinfo(name, 1, type=socket.SOCK_STREAM)[0]
    except OSError:
        pytest.skip("this machine does not know its own name")
    found = asked(make_scenario(target={"url": f"http://{name}:1"}), VLLM, f"{address[0]}:1")
    assert found.gpu == "nvml"


def test_a_simulated_server_uses_no_gpu_of_this_machine() -> None:
    body = b'{"data": [{"id": "m", "simulated": true}]}'
    simulated = Found(model="m", engine=VLLM, models_body=body)
    assert asked_of(make_scenario(), simulated).gpu is None
    assert asked_of(make_scenario(telemetry={"gpu": "nvml"}), simulated).gpu == "nvml"


def test_a_key_goes_to_the_target_alone() -> None:
    def headers(page: str) -> dict[str, str]:
        scenario = make_scenario(
            target={"url": ROOT, "headers": {"X-Team": "t"}}, telemetry={"server": page}
        )
        credentials = credentials_of(scenario.target, {"LOADGEN_API_KEY": "sesame"})
        spec = spec_of(
            scenario,
            asked(scenario, VLLM),
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
        (TRTLLM, 404, TRTLLM.without_metrics),
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
        (
            page(STRANGE),
            "the page has no metrics of vLLM; was it started with --disable-log-stats?",
        ),
    ],
)
def test_what_may_pass_is_a_failed_sweep(answer: Page | FetchError, reason: str) -> None:
    source = server(VLLM, answer, page(RUNNING))
    (sample,) = source.sweep()
    assert (sample.name, sample.labels) == (FAILED, {"why": reason})
    assert why(source) == reason
    assert [one.value for one in source.sweep()] == [3]
    assert why(source) is None


@pytest.mark.parametrize("body", [STRANGE, b"<html>", b""], ids=["another's", "no page", "empty"])
def test_a_page_without_a_metric_of_the_engines_is_left_alone_after_a_while(body: bytes) -> None:
    source = server(VLLM, *[page(body)] * PATIENCE, page(RUNNING))
    swept = [source.sweep() for _ in range(PATIENCE + 2)]
    assert [len(samples) for samples in swept] == [1] * PATIENCE + [0, 0]
    assert str(why(source)).endswith("no metrics of vLLM; was it started with --disable-log-stats?")


def test_a_page_that_was_read_is_asked_again_whatever_comes_between() -> None:
    source = server(VLLM, page(RUNNING), *[page(STRANGE)] * 2 * PATIENCE, page(RUNNING))
    assert [source.sweep()[0].value for _ in range(2 * PATIENCE + 2)][-1] == 3


SLOW = FetchTimeoutError("no answer within 5 s")


def test_a_page_that_holds_the_server_up_is_asked_no_more_once_it_did_not_come() -> None:
    source = server(TRTLLM, SLOW, page(ITERATION), kind="trtllm_json")
    assert [len(source.sweep()) for _ in range(3)] == [1, 0, 0]
    assert str(why(source)).startswith("no answer within 5 s; not asked again")
    assert source.facts()["stopped"] is None


def test_a_page_that_holds_the_server_up_says_that_its_figures_stop() -> None:
    source = server(TRTLLM, page(ITERATION), SLOW, page(ITERATION), kind="trtllm_json")
    assert [len(source.sweep()) for _ in range(4)] == [2, 1, 0, 0]
    facts = source.facts()
    assert (facts["why_not"], str(facts["stopped"])[:20]) == (None, "no answer within 5 s")


def test_any_other_page_is_asked_again_after_a_wait_in_vain() -> None:
    source = server(VLLM, FetchTimeoutError("no answer within 2 s"), page(RUNNING))
    assert [source.sweep()[0].name for _ in range(2)] == [FAILED, "vllm:num_requests_running"]


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
    told = (page(ITERATION), page(b"[]"), page(ITERATION))
    source = server(TRTLLM, *told, kind="trtllm_json")
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
    source = server(VLLM, page(RUNNING), url="http://user:sesame@h/metrics?key=sesame")
    source.sweep()
    assert "sesame" not in str(source.facts())
