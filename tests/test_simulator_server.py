"""The server: its truth, connections, and the command."""

import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, monotonic_ns

import pytest
import trustme
from drive import started
from simulator_make import (
    MS,
    call,
    chat_body,
    open_socket,
    read_to_end,
    request_bytes,
    stats,
    stream,
)

from loadgen.cli.main import main
from loadgen.errors import EnvironmentFault
from loadgen.simulator.process import simulator_process

FAST = ("--step-base", "1ms", "--step-per-sequence", "0ms")
SIMULATE = (sys.executable, "-m", "loadgen.cli.main", "simulate")


@pytest.fixture(scope="module")
def shared() -> Iterator[str]:
    with simulator_process(*FAST) as handle:
        yield handle.url


@pytest.fixture
def url(shared: str) -> str:
    """Return the URL of a simulator whose counts begin anew."""
    call(shared, "/sim/reset", {})
    return shared


# -- its truth


def test_what_chunks_say_is_what_the_stats_say(url: str) -> None:
    before = monotonic_ns()
    reply = stream(url)
    told = stats(url)["requests"][0]
    assert reply.stamps == told["sent_ns"]
    instants = [before, told["accepted_ns"], told["arrived_ns"], told["read_ns"], *reply.stamps]
    assert instants == sorted(instants)
    assert instants[-1] < told["ended_ns"] < monotonic_ns()
    assert (told["id"], told["end"], told["late_writes"]) == (reply.events[0]["id"], "complete", 0)


def test_tokens_are_sent_on_the_engines_schedule_never_early_and_without_drift() -> None:
    flags = ("--step-base", "5ms", "--step-per-context-token", "0s", "--prefill-rate", "1000/s")
    with simulator_process(*flags) as handle:
        sent = stream(handle.url, words=12, max_tokens=60).stamps
        read_ns = stats(handle.url)["requests"][0]["read_ns"]
    due = [read_ns + 25 * MS + round(number * 5.15 * MS) for number in range(60)]
    late = [at_ns - due_ns for at_ns, due_ns in zip(sent, due, strict=True)]
    assert min(late) >= 0
    assert min(late[-20:]) < 1 * MS


def test_all_streams_of_a_step_are_written_together(url: str) -> None:
    with ExitStack() as stack:
        sockets = [stack.enter_context(open_socket(url)) for _ in range(8)]
        for one in sockets:
            one.sendall(request_bytes(chat_body(stream=True, max_tokens=30)))
        for one in sockets:
            read_to_end(one)
    found = stats(url)
    assert found["peak_in_flight"] == 8
    assert found["steps"] < 8 * 30 / 4


def test_reset_begins_anew(url: str) -> None:
    stream(url)
    call(url, "/sim/reset", {})
    found = stats(url)
    assert (found["arrivals"], found["chunks"], found["requests"]) == (0, 0, [])


def test_reset_breaks_off_what_is_under_way(url: str) -> None:
    with open_socket(url) as one:
        one.sendall(request_bytes(chat_body(stream=True, max_tokens=5000)))
        one.recv(100)
        call(url, "/sim/reset", {})
        assert b"[DONE]" not in read_to_end(one)
    assert stats(url)["running"] == 0


def test_metrics_go_by_vllms_names(url: str) -> None:
    stream(url)
    call(url, body=chat_body())
    lines = call(url, "/metrics").body.decode().splitlines()
    labels = '{engine="0",model_name="sim"}'
    assert f"vllm:num_requests_running{labels} 0.0" in lines
    assert f"vllm:generation_tokens_total{labels} 10.0" in lines
    assert f"vllm:prompt_tokens_total{labels} 22.0" in lines
    assert f"vllm:time_to_first_token_seconds_count{labels} 2.0" in lines
    assert f"vllm:inter_token_latency_seconds_count{labels} 8.0" in lines


def test_waiting_prefill_and_decoding_add_up_to_the_time_of_a_request(url: str) -> None:
    for _ in range(3):
        stream(url)
    found = dict(line.split() for line in call(url, "/metrics").body.decode().splitlines()
                 if not line.startswith("#"))  # fmt: skip
    labels = '{engine="0",model_name="sim"}'
    sums = {name: float(found[f"vllm:{name}_seconds_sum{labels}"])
            for name in ("time_to_first_token", "request_queue_time", "request_prefill_time",
                         "request_decode_time", "e2e_request_latency")}  # fmt: skip
    before = sums["request_queue_time"] + sums["request_prefill_time"]
    assert 0 <= sums["request_queue_time"] < before
    assert before == pytest.approx(sums["time_to_first_token"], abs=1e-6)
    after = sums["request_decode_time"]
    assert before + after == pytest.approx(sums["e2e_request_latency"], abs=0.01)


def test_a_client_that_leaves_frees_its_place(url: str) -> None:
    with open_socket(url) as one:
        one.sendall(request_bytes(chat_body(stream=True, max_tokens=5000)))
        one.recv(100)
    while stats(url)["running"]:
        pass
    told = stats(url)["requests"][0]
    assert told["end"] == "aborted"
    assert told["completion_tokens"] < 5000


# -- connections


def test_a_connection_is_kept_and_pipelined_requests_are_answered_in_order(url: str) -> None:
    with open_socket(url) as one:
        first = request_bytes(chat_body(stream=True, max_tokens=2))
        one.sendall(first + b"GET /health HTTP/1.1\r\nhost: sim\r\n\r\n")
        received = read_to_end(one)
        while received.count(b"HTTP/1.1 200 OK") < 2:
            received += one.recv(65536)
    assert received.index(b"[DONE]") < received.rindex(b"HTTP/1.1 200 OK")
    assert stats(url)["connections"] == 2  # this one and the one that asks


def test_a_request_cut_anywhere_is_read(url: str) -> None:
    data = request_bytes(chat_body(stream=True, max_tokens=2))
    with open_socket(url) as one:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in data:
            one.sendall(bytes([byte]))
        assert b"[DONE]" in read_to_end(one)
    told = stats(url)["requests"][0]
    assert told["arrived_ns"] < told["read_ns"]


def test_a_connection_can_be_closed_after_some_requests() -> None:
    with (
        simulator_process("--close-after", "2", *FAST) as handle,
        open_socket(handle.url) as one,
    ):
        for _ in range(2):
            one.sendall(request_bytes(chat_body(stream=True)))
            assert b"connection: close" not in read_to_end(one).lower()  # unannounced
        assert one.recv(1) == b""


def test_an_idle_connection_can_be_closed() -> None:
    with (
        simulator_process("--idle-close", "50ms", *FAST) as handle,
        open_socket(handle.url) as one,
    ):
        start = monotonic()
        assert one.recv(1) == b""
        assert 0.04 < monotonic() - start < 2


def test_close_is_heeded_when_asked_for(url: str) -> None:
    reply = call(url, body=chat_body(), headers={"connection": "close"})
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize(
    "garbage",
    [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"],
    ids=["text", "tls"],
)
def test_what_is_no_http_is_answered_400_and_closed(url: str, garbage: bytes) -> None:
    with open_socket(url) as one:
        one.sendall(garbage)
        assert one.recv(65536).startswith(b"HTTP/1.1 400")
        assert one.recv(1) == b""


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/v1/chat/completions", "GET", 405), ("/sim/reset", "GET", 405), ("/sim/stats", "POST", 405)],
)
def test_a_wrong_method_is_405(url: str, path: str, method: str, status: int) -> None:
    assert call(url, path, method=method).status == status


def test_a_key_is_asked_for_when_one_is_set(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("abc\n")
    with simulator_process("--api-key-file", str(tmp_path / "key"), *FAST) as handle:
        wrong = call(handle.url, body=chat_body(), headers={"authorization": "Bearer x"})
        bearer = call(handle.url, body=chat_body(), headers={"authorization": "Bearer abc"})
        header = call(handle.url, body=chat_body(), headers={"api-key": "abc"})
        assert call(handle.url, "/health").status == 200
    assert (wrong.status, wrong.body) == (401, b'{"error":"Unauthorized"}')
    assert (bearer.status, header.status) == (200, 200)


def test_https_is_served_by_the_same_process(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(tmp_path / "cert.pem", append=True)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    files = (str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    with simulator_process("--tls", *files, "--host", "localhost", *FAST) as handle:
        assert handle.url.startswith("https://localhost:")
        reply = call(handle.url, body=chat_body(stream=True), context=context)
    assert len(reply.stamps) == 5
    assert reply.stamps == sorted(reply.stamps)


# -- the command


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda one: one.name)
def test_a_signal_ends_it_at_once_with_streams_under_way(number: signal.Signals) -> None:
    with started((*SIMULATE, "--port", "0"), stdout=subprocess.PIPE) as child:
        assert child.stdout
        line = child.stdout.readline()
        url = line.split()[1]
        assert line == f"simulator: {url} model sim dialect vllm (pid {child.pid})\n"
        with open_socket(url) as one:
            one.sendall(request_bytes(chat_body(stream=True, max_tokens=5000)))
            one.recv(100)
            child.send_signal(number)
            assert child.communicate(timeout=2) == ("", "")
    assert child.returncode == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--fault", "stal:10%"], "did you mean 'stall'"),
        (["--fault", "cut:60%", "--fault", "stall:60%"], "exceed 100%"),
        (["--step-base", "10q"], "write it like 30s"),
        (["--prefill-rate", "0"], "a rate must be above 0"),
        (["--port", "99999"], "65535"),
        (["--host", "a..b"], "is not the name of a host"),
        (["--dialect", "vlm"], "vllm"),
        (["--speed", "0"], "--speed"),
        (["--tls", "nowhere.pem", "nokey.pem"], "a PEM certificate and its private key"),
        (["--api-key-file", "nowhere"], "give a file with the key"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_bad_flag_is_one_line_and_exit_2(
    flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["simulate", "--port", "0", *flags])
    said = capsys.readouterr()
    assert (caught.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert says in said.err


def test_a_taken_port_is_one_line_and_exit_3(url: str) -> None:
    port = url.rpartition(":")[2]
    line = (*SIMULATE, "--port", port)
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "take another --port" in done.stderr


def test_a_simulator_that_does_not_start_says_why() -> None:
    with pytest.raises(EnvironmentFault, match="--speed"), simulator_process("--speed", "-1"):
        pass


@pytest.mark.slow
def test_it_sends_at_least_20000_chunks_a_second() -> None:
    flags = ("--step-base", "1ms", "--step-per-sequence", "0ms", "--max-running", "256")
    with simulator_process(*flags, "--kv-tokens", "1000000") as handle:
        sockets = [open_socket(handle.url) for _ in range(256)]
        for one in sockets:
            one.sendall(request_bytes(chat_body(stream=True, max_tokens=200)))
        for one in sockets:
            with one:
                read_to_end(one)
        told = stats(handle.url)["requests"]
    sent = sorted(at_ns for one in told for at_ns in one["sent_ns"])
    assert len(sent) == 256 * 200
    assert len(sent) / ((sent[-1] - sent[0]) / 1e9) >= 20_000
