"""``loadgen run`` starts vLLM, waits for a token, measures it and ends it; cold, on purpose.

The load asks for log probabilities: a fresh server compiles for them, ten seconds and more, when
they are asked for first (E17).
"""

import pytest
from load import Measured
from servers import free_port
from serving import Vllm, scenario

from loadgen.server.ports import accepts

pytestmark = pytest.mark.vllm

COMPILES_S = 3.0  # at the least; seen were 8 to 17


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def cold(vllm: Vllm, port: int, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    url = f"http://127.0.0.1:{port}"
    asked = scenario(
        url,
        server=vllm.server(url),
        request={"logprobs": True, "top_logprobs": 2},
        levels=[{"concurrency": 8}],
        each_level={"measure": "100 requests"},
    )
    return vllm.run(tmp_path_factory.mktemp("cold") / "own", asked)


def test_the_server_is_started_waited_for_and_ended(cold: Measured, port: int) -> None:
    assert cold.status == 0, cold.err
    assert cold.outcomes == {("ok", None)}
    told = [line.partition(":")[2] for line in cold.err.splitlines() if line.startswith("vllm: ")]
    assert any("ready after" in line and "a token came" in line for line in told), cold.err
    assert any("taking it down" in line for line in told)
    assert not accepts("127.0.0.1", port)


def test_lengths_are_exact(cold: Measured) -> None:
    assert {record["reported_input"] for record in cold.records} == {64}
    assert {record["reported_output"] for record in cold.records} == {16}
    assert {record["token_source"] for record in cold.records} == {"reported"}


def test_the_card_says_what_the_command_line_asks_for(cold: Measured) -> None:
    card = {one["question"]: one["text"] for one in cold.summary["conditions"]}
    assert card["quantisation, weights and KV?"] == "float32, KV auto (discovered)"
    assert "vLLM 0.32.0, model tiny" in card["which server, set up how?"]
    assert "context 2,048 tokens" in card["which server, set up how?"]


@pytest.mark.parametrize("row", ["E17"])
def test_what_a_cold_server_compiles_is_in_no_figure_and_is_told(cold: Measured, row: str) -> None:
    """The run's first token asks for what the load asks for, and the warm-up at its shape."""
    (level,) = cold.summary["levels"]
    took_s = cold.manifest["preflight"]["ttft_ns"] / 1e9
    assert took_s > COMPILES_S
    assert level["warmup_requests"] == 8
    assert level["ttft"]["n"] + level["steadiness"]["cut_requests"] == 100
    measured = [one for one in cold.records if one["phase"] == "measure"]
    assert max(one["first_ns"] - one["sent_ns"] for one in measured) < COMPILES_S * 1e9
    said = " ".join(cold.out.split())
    assert f"the first token of the run, before any load, took {took_s:.3g} s" in said
    assert f"TTFT up to {level['warmup_ttft_max']:,.1f} ms" in said
    assert 0 < level["warmup_s"] < took_s
