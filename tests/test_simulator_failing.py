"""How the simulator fails on request."""

import pytest
from simulator_make import (
    MS,
    Reply,
    call,
    chat_body,
    open_socket,
    read_to_end,
    request_bytes,
    stats,
    stream,
)

from loadgen.simulator.process import simulator_process

pytestmark = pytest.mark.slow  # whole runs: seconds each

FAST = ("--step-base", "1ms", "--step-per-sequence", "0ms")


def faulty(kind: str, *more: str) -> Reply:
    with simulator_process("--fault", f"{kind}:100%", *FAST, *more) as handle:
        return stream(handle.url, max_tokens=10)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_status_can_be_forced(status: int) -> None:
    reply = faulty(f"status_{status}")
    assert (reply.status, reply.json["error"]["code"]) == (status, status)
    assert reply.headers.get("retry-after") == ("1" if status == 429 else None)


def test_an_error_can_come_in_mid_stream() -> None:
    reply = faulty("stream_error")
    assert reply.status == 200
    assert len(reply.stamps) == 3
    assert (reply.events[-1]["error"]["code"], reply.raw_events[-1]) == (500, "[DONE]")


@pytest.mark.parametrize(("kind", "error"), [("cut", None), ("reset", ConnectionResetError)])
def test_a_stream_can_be_broken_off(kind: str, error: type[Exception] | None) -> None:
    with simulator_process("--fault", f"{kind}:1", *FAST) as handle:
        with open_socket(handle.url) as one:
            one.sendall(request_bytes(chat_body(stream=True, max_tokens=10)))
            if error:
                with pytest.raises(error):
                    read_to_end(one)
            else:
                received = read_to_end(one)
                assert received.count(b"sent_ns") == 3
                assert b"DONE" not in received
        told = stats(handle.url)["requests"][0]
    assert (told["end"], told["fault"]) == ("fault", kind)


def test_a_stream_can_stall_with_the_connection_open() -> None:
    with simulator_process("--fault", "stall:1", *FAST) as handle:
        with open_socket(handle.url) as one:
            one.sendall(request_bytes(chat_body(stream=True, max_tokens=10)))
            one.settimeout(0.3)
            with pytest.raises(TimeoutError):
                read_to_end(one)
        assert stats(handle.url)["running"] == 0


def test_a_stream_can_be_empty() -> None:
    reply = faulty("empty")
    assert (reply.status, reply.stamps, reply.raw_events[-1]) == (200, [], "[DONE]")
    assert all(not choice["finish_reason"] for one in reply.events for choice in one["choices"])


def test_a_page_can_come_in_place_of_an_answer() -> None:
    reply = faulty("html")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html")


def test_done_can_be_left_out() -> None:
    reply = faulty("no_done")
    assert reply.events[-1]["choices"][0]["finish_reason"] == "length"
    assert "[DONE]" not in reply.raw_events


def test_comments_can_come_before_the_first_token() -> None:
    reply = faulty("keepalive", "--cold-start", "250ms")
    assert reply.raw_events[:3] == [": keep-alive"] * 3
    assert len(reply.stamps) == 10


def test_one_event_can_be_garbage() -> None:
    reply = faulty("garbage")
    bad = [one for one in reply.raw_events if one != "[DONE]" and not one.endswith("}")]
    assert len(bad) == 1
    assert len(reply.stamps) == 10


def test_a_stream_can_come_in_one_burst() -> None:
    reply = faulty("burst")
    assert len(reply.stamps) == 10
    assert len(set(reply.stamps)) == 1


def test_a_connection_can_be_slow_to_be_served() -> None:
    with simulator_process("--fault", "slow_connect:1", "--slow-connect", "100ms") as handle:
        stream(handle.url)
        told = stats(handle.url)["requests"][0]
    assert told["arrived_ns"] - told["accepted_ns"] > 99 * MS


def test_failures_hit_their_share_and_spare_probes() -> None:
    with simulator_process("--fault", "status_503:30%", "--speed", "10", *FAST) as handle:
        probes = [call(handle.url, body=chat_body(max_tokens=1)).status for _ in range(20)]
        others = [call(handle.url, body=chat_body(max_tokens=2)).status for _ in range(100)]
        found = stats(handle.url)
    assert probes == [200] * 20
    assert others.count(503) == 30
    assert (found["faults"], found["arrivals"]) == ({"status_503": 30}, 120)


def test_probes_are_failed_when_asked_to() -> None:
    with simulator_process("--fault", "status_500:1", "--fault-probes", *FAST) as handle:
        assert stream(handle.url, max_tokens=1).status == 500


def test_a_whole_answer_can_be_cut() -> None:
    with (
        simulator_process("--fault", "cut:1", *FAST) as handle,
        open_socket(handle.url) as one,
    ):
        one.sendall(request_bytes(chat_body()))
        received = read_to_end(one)
    assert b"chat.completion" in received
    assert b"usage" not in received


def test_a_whole_answer_can_be_reset() -> None:
    with (
        simulator_process("--fault", "reset:1", *FAST) as handle,
        open_socket(handle.url) as one,
    ):
        one.sendall(request_bytes(chat_body()))
        with pytest.raises(ConnectionResetError):
            read_to_end(one)
