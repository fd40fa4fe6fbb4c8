"""Engines as data: recognition by what they say, names, and facts that requests rely on."""

import pytest
from wire_cases import load

from loadgen import engines
from loadgen.engines import ENGINES, UNKNOWN, by_name, engine_version, model_names, recognise
from loadgen.errors import UsageError


def body(name: str) -> bytes:
    return load(name).raw.split(b"\r\n\r\n", 1)[1]


def models(owner: str) -> bytes:
    return b'{"object":"list","data":[{"id":"m","owned_by":"%s"}]}' % owner.encode()


VLLM_METRICS = b"# HELP python_gc_objects_collected_total Objects\n# HELP vllm:num_requests_running"
SGLANG_METRICS = b"# HELP sglang:num_retracted_reqs The number of retracted requests.\n"


@pytest.mark.parametrize(
    ("signs", "name"),
    [
        pytest.param({"models_body": models("vllm")}, "vllm", id="vllm-models"),
        pytest.param({"metrics_head": VLLM_METRICS}, "vllm", id="vllm-metrics"),
        pytest.param({"metrics_head": SGLANG_METRICS}, "sglang", id="sglang-metrics"),
        pytest.param({"models_body": models("tensorrt_llm")}, "trtllm", id="trtllm-models"),
        pytest.param({"metrics_head": b"trtllm_e2e_count 1"}, "trtllm", id="trtllm-metrics"),
        pytest.param({"models_body": models("system")}, "openai", id="openai-models"),
        pytest.param({"server_header": "llama.cpp"}, "llamacpp", id="llamacpp-header"),
        pytest.param(
            {"server_header": "uvicorn", "models_body": body("vllm-get-models"),
             "version_body": body("vllm-get-version")}, "vllm", id="vllm-all"),
        pytest.param(
            {"server_header": "llama.cpp", "models_body": body("llamacpp-get-models"),
             "metrics_head": body("llamacpp-get-metrics")}, "llamacpp", id="llamacpp-all"),
        pytest.param(
            {"server_header": "llama.cpp", "models_body": models("vllm")}, "unknown",
            id="signs-disagree"),
        pytest.param({"version_body": b'{"version":"0.32.0"}'}, "unknown", id="version-alone"),
        pytest.param({"server_header": "uvicorn"}, "unknown", id="uvicorn-says-nothing"),
        pytest.param({"models_body": models("local")}, "unknown", id="local-says-nothing"),
        pytest.param(
            {"models_body": b"<html>", "metrics_head": b"\xff\xfe", "version_body": b"[1]"},
            "unknown", id="junk"),
        pytest.param({"models_body": b'{"data":[1,{"id":2}]}'}, "unknown", id="odd-models"),
        pytest.param({}, "unknown", id="nothing"),
    ],
)  # fmt: skip
def test_an_engine_is_what_all_its_signs_say(signs: dict[str, object], name: str) -> None:
    assert recognise(**signs).name == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("vllm", "vllm"),
        (" VLLM ", "vllm"),
        ("llama.cpp", "llamacpp"),
        ("TensorRT-LLM", "trtllm"),
        ("unknown", "unknown"),
    ],
)
def test_an_engine_can_be_named(text: str, name: str) -> None:
    assert by_name(text).name == name


@pytest.mark.parametrize(
    ("text", "advice"),
    [("vlm", "did you mean 'vllm'?"), ("zzz", "known are vllm, trtllm, sglang")],
)
def test_an_unknown_name_says_what_is_meant_or_known(text: str, advice: str) -> None:
    with pytest.raises(UsageError, match=f"engine: '{text}' is not known; ") as fault:
        by_name(text)
    assert advice in str(fault.value)


def test_versions_and_models_are_read_from_their_pages() -> None:
    assert engine_version(body("vllm-get-version")) == "0.32.0"
    assert engine_version(b"<html>") is engine_version(None) is None
    assert model_names(body("llamacpp-get-models")) == ["tiny"]
    assert model_names(b'{"data":null}') == model_names(None) == []


def test_the_table_is_keyed_by_its_own_names_and_each_engine_has_a_label() -> None:
    assert all(name == engine.name and engine.label for name, engine in ENGINES.items())


def test_an_unknown_engine_is_asked_for_usage_and_for_nothing_of_its_own() -> None:
    assert UNKNOWN.accepts == {"include_usage"}
    assert UNKNOWN.token_limit_field("chat") == "max_tokens"


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_completions_are_limited_by_max_tokens_everywhere(engine: engines.Engine) -> None:
    assert engine.token_limit_field("completions") == "max_tokens"


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("vllm-chat-stream-ignoreeos", True),
        ("sglang-chat-stream-ignoreeos", True),
        ("llamacpp-chat-stream-ignoreeos", True),
        ("transformers-chat-stream-ignoreeos", False),
    ],
)
def test_what_the_table_says_of_ignore_eos_is_what_the_server_did(name: str, takes: bool) -> None:
    engine = ENGINES[name.split("-")[0]]
    assert (load(name).status == 200) is takes
    assert ("ignore_eos" in engine.accepts) is takes


@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp", "transformers"])
def test_what_the_table_says_of_done_is_what_the_server_did(name: str) -> None:
    done = b"data: [DONE]" in load(f"{name}-chat-stream").raw
    assert ENGINES[name].sends_done is done


@pytest.mark.parametrize("name", ["vllm", "sglang", "llamacpp"])
def test_what_the_table_says_of_running_usage_is_what_the_server_did(name: str) -> None:
    raw = load(f"{name}-chat-stream-contusage").raw
    running = raw.count(b'"usage":{') > 1
    assert ("continuous_usage" in ENGINES[name].accepts) is running
