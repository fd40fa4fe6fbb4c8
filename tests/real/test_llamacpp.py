"""``loadgen run`` against llama.cpp's own server: every token counted once, every failure named."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import drive
import pytest
from drive import command, loadgen
from load import Measured, arguments, chunk_instants, measured, run
from servers import Serve, Server

pytestmark = pytest.mark.real

SHORT = ("--input-tokens", "16", "--output-tokens", "24")
TOOLS = (
    '[{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object",'
    ' "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]'
)


def generated(server: Server) -> int:
    """Return how many tokens the server says it has generated since it started."""
    lines = server.text("/metrics").splitlines()
    name = "llamacpp:tokens_predicted_total "
    return next(int(line.removeprefix(name)) for line in lines if line.startswith(name))


def all_ok(found: Measured, server: Server) -> None:
    assert found.outcomes == {("ok", None)}, server.last_words()
    assert found.status == 0, found.err
    assert len(found.records) == sum(level["arrivals"] for level in found.manifest["levels"])


def test_one_and_four_streams_are_measured_token_by_token(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny") as server:
        before = generated(server)
        found = run(server, tmp_path / "run", "-c", "1,4", "--requests", "40", *SHORT)
        all_ok(found, server)
        assert generated(server) - before == found.server_tokens
    assert {record["reported_output"] for record in found.records} == {24}
    assert found.manifest["target"]["engine"] == "llamacpp"
    for record in found.records:
        instants = chunk_instants(record)
        assert len(instants) == record["asked_output"]
        assert instants == sorted(instants)
        assert record["sent_ns"] < record["headers_ns"] <= record["first_ns"] == instants[0]
        assert instants[-1] == record["last_ns"] <= record["end_ns"]


def test_a_summary_tells_what_the_records_hold(serve_llamacpp: Serve, tmp_path: Path) -> None:
    with serve_llamacpp("tiny") as server:
        found = run(server, tmp_path / "run", "-c", "2", "--requests", "30", *SHORT)
        all_ok(found, server)
    level = found.summary["levels"][0]
    assert level["arrivals"] == level["outcomes"]["ok"] == level["ttft"]["n"] == 30
    assert level["itl"]["n"] == 30 * 23
    assert 0 < level["ttft"]["p50"]["value"] < level["e2e"]["p50"]["value"]


@pytest.mark.parametrize(
    "flags",
    [("--endpoint", "completions"), ("--transport", "stock"), ("--connections", "per_request")],
    ids=["completions", "plain-httpx", "a-connection-per-request"],
)
def test_other_ways_to_ask_count_the_same_tokens(
    flags: tuple[str, ...], serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny") as server:
        found = run(server, tmp_path / "run", "-c", "2", "--requests", "20", *SHORT, *flags)
        all_ok(found, server)
    assert {record["reported_output"] for record in found.records} == {24}
    assert {len(record["chunks"]["at_ns"]) for record in found.records} == {24}


def test_two_choices_are_two_streams_whose_tokens_add_up(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny") as server:
        flags = ("-c", "2", "--requests", "20", *SHORT, "--set", "request.n=2")
        found = run(server, tmp_path / "run", *flags)
        all_ok(found, server)
    for record in found.records:
        assert record["reported_output"] == 2 * record["asked_output"]
        assert sorted(record["chunks"]["choice"]) == [0] * 24 + [1] * 24
        assert record["finish_reasons"] == ["length", "length"]


def test_the_length_asked_for_is_the_length_that_comes(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny-eos") as server:
        found = run(server, tmp_path / "run", "-c", "2", "--requests", "20", *SHORT)
        all_ok(found, server)
    assert {record["reported_output"] for record in found.records} == {24}


def test_an_answer_that_ends_early_counts_its_unseen_end_token(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny-eos") as server:
        flags = ("-c", "2", "--requests", "60", *SHORT, "--set", "request.ignore_eos=null")
        found = run(server, tmp_path / "run", *flags)
        all_ok(found, server)
    stopped = [record for record in found.records if record["finish_reasons"] == ["stop"]]
    assert stopped
    for record in stopped:
        chunks = len(record.get("chunks", {}).get("at_ns", ()))
        assert record["reported_output"] == chunks + 1
        assert ("empty" in record.get("flags", ())) == (chunks == 0)
        assert ("first_ns" in record) == (chunks > 0)


def test_reasoning_is_a_first_token_but_no_first_output(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny-think") as server:
        found = run(server, tmp_path / "run", "-c", "2", "--requests", "40", *SHORT)
        all_ok(found, server)
    thinking = [record for record in found.records if record["chunks"]["kind"][0] == "r"]
    answered = [record for record in thinking if "c" in record["chunks"]["kind"]]
    assert answered
    for record in thinking:
        kinds, instants = record["chunks"]["kind"], chunk_instants(record)
        assert record["first_ns"] == instants[0]
        visible = kinds.find("c")
        assert record.get("first_output_ns") == (None if visible < 0 else instants[visible])


def test_a_forced_tool_call_is_timed_by_its_own_chunks(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    flags = ["-c", "2", "--requests", "60", "--input-tokens", "8", "--output-tokens", "60"]
    for setting in (f"tools={TOOLS}", "tool_choice=required", "ignore_eos=null"):
        flags += ["--set", f"request.{setting}"]
    with serve_llamacpp("tiny-tool") as server:
        found = run(server, tmp_path / "run", *flags)
        all_ok(found, server)
    chunked = [record for record in found.records if "chunks" in record]
    calls = [record for record in chunked if record["chunks"]["kind"].startswith("t")]
    assert calls
    for record in calls:
        assert record["first_ns"] == record["first_output_ns"] == chunk_instants(record)[0]
        assert record["token_source"] == "reported"


def test_characters_held_back_by_the_server_lose_no_token(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny-bytes") as server:
        found = run(server, tmp_path / "run", "-c", "2", "--requests", "20", *SHORT)
        all_ok(found, server)
    assert {record["reported_output"] for record in found.records} == {24}
    assert any(len(record["chunks"]["at_ns"]) < 24 for record in found.records)


@pytest.mark.parametrize("parallel", [64, 4], ids=["each-with-a-slot", "queueing-for-four-slots"])
def test_sixty_four_streams_bring_no_false_error(
    parallel: int, serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny", parallel=parallel, context=2048 * parallel) as server:
        before = generated(server)
        flags = ("-c", "64", "--requests", "400", "--input-tokens", "16", "--output-tokens", "16")
        found = run(server, tmp_path / "run", *flags)
        all_ok(found, server)
        assert generated(server) - before == found.server_tokens
    assert found.manifest["levels"][0]["peak_in_flight"] == 64
    assert {record["attempts"] for record in found.records} == {1}  # reconnected is not retried


# --- failures


def test_a_server_that_dies_is_reported_by_class(serve_llamacpp: Serve, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    flags = ("-c", "4", "--requests", "30", "--input-tokens", "8", "--output-tokens", "100")
    with serve_llamacpp("steady") as server, started(server, directory, *flags) as running:
        wait_until(running, lambda: has_records(directory) and is_answering(server))
        server.kill()
        found = ended(running, directory)
    assert found.status == 1, found.err
    assert found.outcomes >= {("ok", None), ("broken", "connection_refused")}
    cut = [record for record in found.records if record["outcome"] in ("truncated", "broken")]
    assert any(record.get("chunks") for record in cut)  # what had come of a cut answer is kept
    assert found.manifest["status"] == "complete"
    assert "connection_refused" in found.out
    assert "objective missed: errors <= 1%" in found.out


def test_a_server_that_falls_silent_is_a_timeout(serve_llamacpp: Serve, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    flags = ["-c", "4", "--requests", "20", "--input-tokens", "8", "--output-tokens", "100"]
    flags += ["--limit", "idle=0.5s", "--limit", "first_token=1s"]
    with serve_llamacpp("steady") as server, started(server, directory, *flags) as running:
        wait_until(running, lambda: has_records(directory) and is_answering(server))
        server.freeze()
        found = ended(running, directory)
        server.kill()
    assert found.status == 1, found.err
    assert found.outcomes >= {("timeout", "idle"), ("timeout", "first_token")}
    for record in found.records:
        if record.get("error_class") == "idle":
            assert record["chunks"]["at_ns"]
            assert 499 <= (record["end_ns"] - record["last_ns"]) / 1e6 < 700  # timers tick in ms


def test_an_interrupted_run_frees_the_servers_slots(serve_llamacpp: Serve, tmp_path: Path) -> None:
    flags = ("-c", "4", "--duration", "60s", "--input-tokens", "8", "--output-tokens", "400")
    with serve_llamacpp("steady") as server:
        with started(server, tmp_path / "run", *flags) as running:
            wait_until(running, lambda: is_answering(server))
            running.send_signal(signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                running.wait(0.3)  # it drains: seconds are left of each answer
            running.send_signal(signal.SIGINT)
            found = ended(running, tmp_path / "run")
        assert not any(slot["is_processing"] for slot in server.get("/slots"))
    assert found.status == 130, found.err
    assert found.manifest["status"] == "interrupted"
    assert found.outcomes == {("cancelled", None)}
    assert all(record["chunks"]["at_ns"] for record in found.records)


@contextmanager
def started(server: Server, directory: Path, *flags: str) -> Iterator["subprocess.Popen[str]"]:
    line = command(*arguments(server, directory, *flags))
    with drive.started(line, stdout=subprocess.PIPE) as running:
        try:
            yield running
        finally:
            running.kill()  # where it is over, nothing happens


def ended(running: "subprocess.Popen[str]", directory: Path) -> Measured:
    out, err = running.communicate(timeout=60)
    return measured(running.returncode, out, err, directory)


def wait_until(
    running: "subprocess.Popen[str]", condition: Callable[[], bool], limit_s: float = 30
) -> None:
    for _ in range(round(limit_s / 0.05)):
        if condition():
            return
        try:  # pauses, and notices a run that is over
            running.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError("it never came to that")


def has_records(directory: Path) -> bool:
    path = directory / "requests.jsonl"
    return path.exists() and path.stat().st_size > 0


def is_answering(server: Server) -> bool:
    """Say whether an answer is well begun and far from its end."""
    answers = [answer for slot in server.get("/slots") for answer in slot.get("next_token", ())]
    return any(answer["n_decoded"] >= 10 and answer["n_remain"] >= 50 for answer in answers)


def test_a_prompt_beyond_the_context_is_the_requests_fault(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny", context=2048) as server:
        flags = ("-c", "2", "--requests", "10", "--input-tokens", "600", "--output-tokens", "8")
        found = run(server, tmp_path / "run", *flags)
    assert found.status == 1
    assert found.outcomes == {("refused", "context_length")}
    assert {record["http_status"] for record in found.records} == {400}
    (error,) = found.summary["levels"][0]["errors"]
    assert (error["error_class"], error["fault"], error["n"]) == ("context_length", "request", 10)


def test_an_answer_cut_by_the_context_is_as_long_as_it_was(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    with serve_llamacpp("tiny", context=1024, parallel=2) as server:
        flags = ("-c", "1", "--requests", "4", "--input-tokens", "16", "--output-tokens", "900")
        found = run(server, tmp_path / "run", *flags)
        all_ok(found, server)
    for record in found.records:
        assert record["reported_output"] == len(record["chunks"]["at_ns"]) < 512
        assert record["finish_reasons"] == ["length"]


def test_an_error_inside_the_stream_is_a_failure_with_the_servers_words(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    flags = ("-c", "2", "--requests", "60", *SHORT, "--set")
    with serve_llamacpp("tiny") as server:
        # A grammar that random weights soon drive into a corner.
        found = run(server, tmp_path / "run", *flags, "request.response_format.type=json_object")
    broken = [record for record in found.records if record["outcome"] == "broken"]
    assert found.outcomes == {("ok", None), ("broken", "server_error_in_stream")}
    assert all(record["http_status"] == 200 for record in broken)
    assert all("grammar" in record["error"] for record in broken)
    assert found.status == 1


def test_a_wrong_type_ends_the_run_before_any_load(serve_llamacpp: Serve, tmp_path: Path) -> None:
    flags = ("-c", "2", "--set", "request.temperature=hot")
    with serve_llamacpp("tiny") as server:
        done = loadgen(*arguments(server, tmp_path / "run", *flags))
    assert done.returncode == 3
    assert "refuses a one-token request (400)" in done.stderr
    assert "must be number" in done.stderr
    assert not (tmp_path / "run").exists()


def test_requests_cut_at_the_end_of_the_drain_free_the_servers_slots(
    serve_llamacpp: Serve, tmp_path: Path
) -> None:
    flags = ("-c", "2", "--warmup", "0s", "--duration", "0.7s", "--drain", "0.3s")
    with serve_llamacpp("steady") as server:
        before = generated(server)
        tokens = ("--input-tokens", "8", "--output-tokens", "1900")
        found = run(server, tmp_path / "run", *flags, *tokens)
        assert not any(slot["is_processing"] for slot in server.get("/slots"))
        assert generated(server) - before < 1900
    assert found.outcomes == {("unfinished", None)}
    assert all(record["chunks"]["at_ns"] for record in found.records)
