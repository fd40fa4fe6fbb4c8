"""A log replayed over the wire: the bodies, the times, the conversations, and where it may go."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from drive import loadgen, measure, read
from replay_make import TRACES, chat, litellm, log_file, mooncake, needs_traces, sessions
from serve import Asked, Out, Server, scripted

from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.run.target import is_private
from loadgen.simulator.process import simulator_process

pytestmark = pytest.mark.slow  # whole runs: seconds each

FAST = ("--speed", "20", "--stream-interval", "16", "--max-running", "256",
        "--kv-tokens", "2000000", "--step-tokens", "4096")  # fmt: skip


async def answer(asked: Asked, out: Out) -> None:
    await out.stream("ok")


async def slowly(asked: Asked, out: Out) -> None:
    await out.stream("a", "b", every_s=0.15)


def replay(
    server: Server, log: Path, out: Path, *, level: dict[str, Any] | None = None, **parts: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Replay a log at a server in this process; return the manifest and the records."""
    prompts = {"source": "replay", "file": str(log), **parts.pop("prompts", {})}
    parts = {"each_level": {"drain": "5s"}, **parts}
    return measure(server.url, out, prompts=prompts, levels=[level or {"speed": 1}], **parts)


def bodies(server: Server) -> list[dict[str, Any]]:
    """What the server was sent, but for the preflight's one-token probe."""
    return [asked.json for asked in server.generations][1:]


@pytest.mark.slow
def test_fifty_conversations_of_four_turns_are_sent_as_they_were(tmp_path: Path) -> None:
    rows = sessions(50, 4, every_s=0.004)
    sampling = {"temperature": 0.3, "tools": [{"type": "function", "function": {"name": "now"}}]}
    for row in rows:
        row["model_parameters"] = {**sampling, "max_tokens": 9}
    log = log_file(tmp_path, rows)
    with scripted(answer) as server:
        manifest, records = replay(server, log, tmp_path / "run", prompts={"time_unit": "s"})
        sent = bodies(server)
    ours = {"model": "mock", "stream": True, "stream_options": {"include_usage": True}}
    logged = [{**ours, **sampling, "max_tokens": 9, "messages": row["messages"]} for row in rows]
    assert sorted(map(_text, sent)) == sorted(map(_text, logged))
    assert {record["outcome"] for record in records} == {"ok"}
    assert manifest["levels"][0]["stop_reason"] == "log"
    assert manifest["prompts"]["history"] == "recorded"


def test_a_failed_turn_ends_its_conversation_and_is_counted(tmp_path: Path) -> None:
    async def script(asked: Asked, out: Out) -> None:
        if _text(asked.json).count("3.2") == 1:
            await out.whole(500, {"error": {"message": "no"}})
        else:
            await out.stream("ok")

    log = log_file(tmp_path, sessions(5, 4))
    with scripted(script) as server:
        manifest, records = replay(server, log, tmp_path / "run", level={"speed": 20})
    turns = {name: [r["turn"] for r in records if r["conversation"] == name]
             for name in {r["conversation"] for r in records}}  # fmt: skip
    assert sorted(turns.values()) == [[0, 1], *[[0, 1, 2, 3]] * 4]
    level = manifest["levels"][0]
    assert (level["conversations_cut"], level["arrivals"]) == (1, 18)
    assert level["stop_reason"] == "log"


def test_d25_turns_do_not_overlap_and_think_time_is_kept(tmp_path: Path) -> None:
    said = [litellm(at, chat(*"abcde"[: 2 * turn + 1]), session_id="s", endTime=1764480000 + at + 1)
            for turn, at in enumerate((0, 1.1, 2.2))]  # fmt: skip
    with scripted(slowly) as server:
        _, records = replay(server, log_file(tmp_path, said), tmp_path / "run")
    sent = [(record["sent_ns"] - records[0]["sent_ns"]) / 1e9 for record in records]
    ends = [record["end_ns"] / 1e9 for record in records]
    assert sent == pytest.approx([0, 0.4, 0.8], abs=0.08)
    starts = [record["sent_ns"] / 1e9 for record in records]
    assert [b - a for a, b in zip(ends, starts[1:], strict=False)] == pytest.approx(
        [0.1, 0.1], abs=0.02
    )
    assert server.peak == 1


@pytest.mark.parametrize(("history", "reply"), [("recorded", "R"), ("live", "L")])
def test_d27_history_is_the_logs_or_the_servers_and_named(
    history: str, reply: str, tmp_path: Path
) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.stream("L")

    rows = [litellm(0, chat("a"), session_id="s"), litellm(1, chat("a", "R", "b"), session_id="s")]
    with scripted(script) as server:
        manifest, _ = replay(server, log_file(tmp_path, rows), tmp_path / "run",
                             level={"speed": 10}, prompts={"history": history})  # fmt: skip
    assert bodies(server)[1]["messages"] == chat("a", reply, "b")
    assert manifest["prompts"]["history"] == history


def test_a_turn_that_does_not_go_on_from_the_last_is_sent_as_it_was(tmp_path: Path) -> None:
    rows = [litellm(0, chat("a"), session_id="s"), litellm(1, chat("other"), session_id="s"),
            litellm(2, chat("other", "R", "c"), session_id="s")]  # fmt: skip
    with scripted(answer) as server:
        replay(server, log_file(tmp_path, rows), tmp_path / "run", level={"speed": 20},
               prompts={"history": "live"})  # fmt: skip
    said = [[one["content"] for one in body["messages"]] for body in bodies(server)]
    assert said == [["a"], ["other"], ["other", "ok", "c"]]


def test_d29_the_recorded_length_is_asked_for_in_the_servers_dialect(tmp_path: Path) -> None:
    row = litellm(0, chat("a"), completion_tokens=44)
    target = {"engine": "vllm", "url": ""}
    with scripted(answer) as server:
        target["url"] = server.url
        _, records = replay(server, log_file(tmp_path, [row]), tmp_path / "run", target=target,
                            prompts={"match_output_length": True})  # fmt: skip
    body = bodies(server)[0]
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (44, 44, True)
    assert records[0]["asked_output"] == 44


def test_d31_a_logged_body_streams_from_the_targets_model(tmp_path: Path) -> None:
    body = {"stream": False, "model": "prod-x", "messages": chat("a"), "seed": 3}
    row = {"custom_id": "1", "body": body}
    with scripted(answer) as server:
        manifest, _ = replay(server, log_file(tmp_path, [row]), tmp_path / "run",
                             level={"concurrency": 1},
                             each_level={"measure": "1 requests"})  # fmt: skip
    sent = bodies(server)[0]
    assert (sent["stream"], sent["model"], sent["seed"]) == (True, "mock", 3)
    assert sent["stream_options"] == {"include_usage": True}
    assert manifest["prompts"]["overridden"] == {"stream": 1, "model": 1}


def test_h08_no_logged_header_reaches_the_server(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer prod", "Cookie": "c=1", "X-Tenant": "t"}
    row = litellm(0, chat("a"), metadata={"headers": headers})
    with scripted(answer) as server:
        manifest, _ = replay(server, log_file(tmp_path, [row]), tmp_path / "run")
    assert not {"authorization", "cookie", "x-tenant"} & server.generations[-1].headers.keys()
    assert manifest["prompts"]["headers_dropped"] == {
        "authorization": 1, "cookie": 1, "x-tenant": 1}  # fmt: skip


def test_d20_a_prompt_over_the_context_is_no_fault_of_the_server(tmp_path: Path) -> None:
    async def script(asked: Asked, out: Out) -> None:
        said = "maximum context length is 196608 tokens, but you requested 264175 input tokens"
        if len(server.generations) > 1:
            await out.whole(400, {"error": {"message": said}})
        else:
            await out.stream("ok")

    with scripted(script) as server:
        _, records = replay(server, log_file(tmp_path, [mooncake(0)]), tmp_path / "run",
                            target={"url": server.url, "engine": "openai"})  # fmt: skip
    failed = [record for record in records if record["outcome"] == "refused"]
    assert [record["error_class"] for record in failed] == ["context_length"]
    assert failed[0]["error"].startswith("limit 196608, got 264175 tokens")


@pytest.mark.slow
def test_d10_a_thousand_rows_keep_their_times_whatever_a_send_costs(tmp_path: Path) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await asyncio.sleep(0.003)  # noqa: TID251 - what a send costs
        await out.stream("ok")

    log = log_file(tmp_path, [mooncake(10 * at) for at in range(1000)])
    with scripted(script) as server:
        manifest, records = replay(server, log, tmp_path / "run", level={"speed": 5})
    sent = np.sort([record["sent_ns"] for record in records]) / 1e9
    assert len(sent) == 1000
    assert sent[-1] - sent[0] == pytest.approx(9.99 / 5, rel=0.01)
    assert manifest["levels"][0]["stop_reason"] == "log"


@pytest.mark.slow
def test_a_log_is_split_between_workers_and_none_is_lost(tmp_path: Path) -> None:
    log = log_file(tmp_path, sessions(6, 3))
    with scripted(answer) as server:
        manifest, records = replay(server, log, tmp_path / "run", level={"speed": 20}, workers=2)
        sent = bodies(server)
    assert len(sent) == len(records) == 18
    assert {record["worker"] for record in records} == {0, 1}
    assert manifest["levels"][0]["stop_reason"] == "log"


def test_a_log_may_be_one_class_of_a_mix(tmp_path: Path) -> None:
    log = log_file(tmp_path, [litellm(at, chat(f"q{at}")) for at in range(5)])
    logged = {"source": "replay", "file": str(log)}
    mix = [{"name": "log", "prompts": logged},
           {"name": "made", "prompts": {"input_tokens": 8, "output_tokens": 4}}]  # fmt: skip
    with scripted(answer) as server:
        _, records = measure(server.url, tmp_path / "run", prompts=None, mix=mix,
                             each_level={"measure": "20 requests"})  # fmt: skip
    assert {record["class"] for record in records} == {"log", "made"}


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("127.0.0.1", True),
        ("10.1.2.3", True),
        ("192.168.1.1", True),
        ("172.20.0.1", True),
        ("169.254.1.1", True),
        ("::1", True),
        ("fe80::1%eth0", True),
        ("fd00::1", True),
        ("8.8.8.8", False),
        ("2001:4860:4860::8888", False),
        ("::ffff:8.8.8.8", False),
        ("::ffff:10.0.0.1", True),
    ],
)
def test_h12_an_address_is_private_or_not(address: str, private: bool) -> None:
    assert is_private(address) is private


def test_h12_a_public_target_is_refused_and_named_before_anything_is_sent(tmp_path: Path) -> None:
    log = log_file(tmp_path, [litellm(0, chat("ZEBRA-77"))])
    done = CliRunner().invoke(
        main, ["replay", str(log), "--url", "http://8.8.8.8", "--out", str(tmp_path / "run")]
    )
    assert done.exit_code == 2
    assert "8.8.8.8: resolves to 8.8.8.8, which is neither" in done.stderr
    assert "--allow-public-target" in done.stderr
    assert "ZEBRA-77" not in done.output
    assert not (tmp_path / "run").exists()


def test_h12_a_scenario_that_replays_is_refused_as_well(tmp_path: Path) -> None:
    log = log_file(tmp_path, [litellm(0, chat("a"))])
    with pytest.raises(UsageError, match=r"9\.9\.9\.9"):
        measure("http://9.9.9.9", tmp_path / "run", levels=[{"speed": 1}],
                prompts={"source": "replay", "file": str(log)})  # fmt: skip


@pytest.mark.slow
def test_a_closed_replay_goes_once_through_the_log(tmp_path: Path) -> None:
    log = log_file(tmp_path, [{"prompt": f"q{at}"} for at in range(30)])
    with scripted(answer) as server:
        done = loadgen("replay", str(log), "--url", server.url, "--closed-loop", "-c", "4",
                       "--out", str(tmp_path / "run"))  # fmt: skip
        sent = [body["messages"][0]["content"] for body in bodies(server)]
    assert done.returncode == 0, done.stderr
    assert sorted(sent) == sorted(f"q{at}" for at in range(30))
    assert "Log       " in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("slots", [2, 8], ids=["few slots", "more slots than conversations"])
def test_a_closed_replay_sends_each_conversation_once_with_all_its_turns(
    slots: int, workers: int, tmp_path: Path
) -> None:
    rows = [*sessions(3, 3), *sessions(5, 2)[6:]]
    log = log_file(tmp_path, rows)
    with scripted(answer) as server:
        _, records = replay(server, log, tmp_path / "run", workers=workers,
                            level={"concurrency": slots, "once": True})  # fmt: skip
        sent = [_text(body["messages"]) for body in bodies(server)]
    assert sorted(sent) == sorted(_text(row["messages"]) for row in rows)
    assert {record["outcome"] for record in records} == {"ok"}


def test_a_failed_turn_ends_a_conversation_and_not_a_closed_replay(tmp_path: Path) -> None:
    async def script(asked: Asked, out: Out) -> None:
        if _text(asked.json).count("1.2") == 1:
            await out.whole(500, {"error": {"message": "no"}})
        else:
            await out.stream("ok")

    log = log_file(tmp_path, sessions(3, 4))
    with scripted(script) as server:
        manifest, records = replay(server, log, tmp_path / "run",
                                   level={"concurrency": 2, "once": True})  # fmt: skip
    level = manifest["levels"][0]
    assert (len(records), level["conversations_cut"], level["stop_reason"]) == (10, 1, "log")


@pytest.mark.slow
@needs_traces
def test_the_azure_trace_arrives_at_its_own_times(tmp_path: Path) -> None:
    due, arrived, done = azure(tmp_path, "--speed", "60", "--sample", "0.3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(arrived) == len(due)
    assert np.percentile(np.abs(arrived - due), 99) < 0.01 * due[-1]
    assert "lateness p50" in done.stdout
    assert "p99" in done.stdout


@needs_traces
@pytest.mark.slow
def test_the_azure_trace_at_ten_times_its_speed(tmp_path: Path) -> None:
    due, arrived, done = azure(tmp_path, "--speed", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(arrived) == len(due) == 1254
    assert np.abs(arrived - due).max() < 0.01 * due[-1]


def azure(directory: Path, *flags: str) -> tuple[np.ndarray, np.ndarray, Any]:
    """Replay minutes 1 to 5 at a fast simulator: when requests were due, and when they arrived."""
    path = TRACES / "azure2023_conv_2000.csv"
    with simulator_process(*FAST) as simulator:
        done = loadgen("replay", str(path), "--url", simulator.url, "--window", "60s..300s",
                       *flags, "--out", str(directory / "run"))  # fmt: skip
        rows = httpx.get(f"{simulator.url}/sim/stats?chunks=1", trust_env=False).json()["requests"]
    _, records = read(directory / "run")
    due = np.sort([record["due_ns"] for record in records]) / 1e9
    arrived = np.sort([row["arrived_ns"] for row in rows])[-len(due) :] / 1e9
    return due - due[0], arrived - arrived[0], done


def _text(body: dict[str, Any]) -> str:
    return json.dumps(body, sort_keys=True)
