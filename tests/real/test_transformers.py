"""``loadgen run`` against ``transformers serve``: no [DONE], errors inside a 200.

Its streams end with the finish reason, which always brings usage; fields it does not know are
refused, but ``n`` is ignored; there is no reasoning field and no /metrics.
"""

import subprocess
from pathlib import Path

import pytest
from drive import loadgen
from load import arguments, chunk_instants, run
from servers import Server

pytestmark = pytest.mark.real

SHORT = ("--requests", "10", "--input-tokens", "16", "--output-tokens", "12")


def refused(server: Server, directory: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """Run what the preflight must refuse: one line, status 3, no directory."""
    done = loadgen(*arguments(server, directory, "-c", "1", *SHORT, *flags))
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert not directory.exists()
    return done


def test_streams_without_done_are_whole_answers(transformers: Server, tmp_path: Path) -> None:
    found = run(transformers, tmp_path / "run", "-c", "1,2", *SHORT)
    assert found.status == 0, transformers.last_words()
    assert found.outcomes == {("ok", None)}
    assert found.flags == {"no_done"}
    for record in found.records:
        instants = chunk_instants(record)
        assert record["reported_output"] == record["asked_output"] == len(instants)
        assert instants == sorted(instants)
        assert record["sent_ns"] < record["first_ns"] == instants[0]


def test_the_engine_is_recognised_and_gets_no_field_it_refuses(
    transformers: Server, tmp_path: Path
) -> None:
    found = run(transformers, tmp_path / "run", "-c", "1", *SHORT)
    assert found.manifest["target"]["engine"] == "transformers"
    assert found.manifest["target"]["model"] == transformers.model  # the only one listed
    named = run(transformers, tmp_path / "named", "-c", "1", *SHORT, "--engine", "transformers")
    assert found.outcomes == named.outcomes == {("ok", None)}


def test_another_engines_fields_are_refused_as_the_requests_fault(
    transformers: Server, tmp_path: Path
) -> None:
    done = loadgen(*arguments(transformers, tmp_path / "run", "-c", "1", *SHORT, "--engine=vllm"))
    assert done.returncode in (1, 3)  # refused request by request, or already by the preflight
    assert "Unexpected fields in the request" in done.stdout + done.stderr


def test_a_field_it_does_not_know_ends_the_run_before_any_load(
    transformers: Server, tmp_path: Path
) -> None:
    done = refused(transformers, tmp_path / "run", "--set", "request.frobnicate=1")
    assert "refuses a one-token request (422)" in done.stderr
    assert "frobnicate" in done.stderr


def test_another_model_ends_the_run_with_the_servers_list(
    transformers: Server, tmp_path: Path
) -> None:
    done = refused(transformers, tmp_path / "run", "--model", "nosuch")
    assert "does not know the model 'nosuch'" in done.stderr
    assert transformers.model in done.stderr


def test_an_error_inside_a_200_stream_is_a_failure(transformers: Server, tmp_path: Path) -> None:
    flags = ("-c", "2", *SHORT, "--set", "request.temperature=-1")
    found = run(transformers, tmp_path / "run", *flags)
    assert found.status == 1
    assert found.outcomes == {("broken", "server_error_in_stream")}
    assert {record["http_status"] for record in found.records} == {200}
    assert all("temperature" in record["error"] for record in found.records)
    assert found.summary["levels"][0]["error_rate"] == 1


def test_an_unhandled_error_is_a_500_of_the_server(transformers: Server, tmp_path: Path) -> None:
    found = run(transformers, tmp_path / "run", "-c", "2", *SHORT, "--set=request.temperature=hot")
    assert found.status == 1
    assert found.outcomes == {("refused", "server_error")}
    assert {error["fault"] for error in found.summary["levels"][0]["errors"]} == {"server"}


@pytest.mark.parametrize(
    "flags",
    [("--endpoint", "completions"), ("--set", "request.n=2"), ("--transport", "stock")],
    ids=["completions", "n-is-ignored", "plain-httpx"],
)
def test_other_ways_to_ask_count_the_same_tokens(
    flags: tuple[str, ...], transformers: Server, tmp_path: Path
) -> None:
    found = run(transformers, tmp_path / "run", "-c", "1", *SHORT, *flags)
    assert found.status == 0, transformers.last_words()
    assert {record["reported_output"] for record in found.records} == {12}
    assert {len(record["chunks"]["at_ns"]) for record in found.records} == {12}


def test_a_request_cut_in_mid_stream_leaves_the_server_usable(
    transformers: Server, tmp_path: Path
) -> None:
    flags = ("-c", "1", "--warmup", "0s", "--duration", "0.7s", "--drain", "0.3s")
    tokens = ("--input-tokens", "8", "--output-tokens", "3000")
    cut = run(transformers, tmp_path / "cut", *flags, *tokens)
    after = run(transformers, tmp_path / "after", "-c", "1", *SHORT)
    assert cut.outcomes == {("unfinished", None)}
    assert all(record["chunks"]["at_ns"] for record in cut.records)
    assert after.outcomes == {("ok", None)}
