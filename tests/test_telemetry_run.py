"""The sampler beside whole runs on real sockets: what it writes, and that it never costs a run."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from drive import command, measure, scenario
from serve import Asked, Out, Server, scripted
from sites import Open, sites

from loadgen.report.write import summarise_run
from loadgen.run.events import Event, Notice, PhaseChanged
from loadgen.run.runner import run_scenario
from loadgen.run.telemetry.server import PATIENCE
from loadgen.simulator.engine import EngineSpec
from loadgen.simulator.spec import SimulatorSpec

ON = {"every": "100ms", "gpu": "off"}
VLLM_PAGE = b"vllm:num_requests_running 1\n"


@pytest.fixture(scope="module")
def start() -> Iterator[Open]:
    with sites() as open_:
        yield open_


def quick(dialect: str = "vllm") -> SimulatorSpec:
    return SimulatorSpec(dialect=dialect, engine=EngineSpec(speed=4))


def rows_of(out: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (out / "samples.jsonl").read_bytes().splitlines()]


def counted(rows: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """The sum over all series of a name, for each sweep."""
    found: dict[int, float] = {}
    for row in rows:
        if row["name"] == name:
            found[row["at_ns"]] = found.get(row["at_ns"], 0.0) + row["value"]
    return sorted(found.items())


def told(events: list[Event]) -> list[str]:
    return [event.text for event in events if isinstance(event, Notice)]


def watched(
    url: str, out: Path, **parts: Any
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """Run with the sampler on; the manifest, the records, what the user was told."""
    events: list[Event] = []
    given = {"telemetry": ON, "levels": [{"concurrency": 2}, {"concurrency": 4}], **parts}
    manifest, records = measure(url, out, events=events, **given)
    return manifest, records, told(events)


def test_the_servers_counts_over_a_level_are_those_of_the_clients_records(
    start: Open, tmp_path: Path
) -> None:
    url = start(quick())
    manifest, records, said = watched(url, tmp_path / "run")
    truth = httpx.get(f"{url}/sim/stats", trust_env=False).json()
    rows = rows_of(tmp_path / "run")
    tokens = counted(rows, "vllm:generation_tokens_total")
    assert tokens[-1][1] == truth["generation_tokens"]
    for number, level in enumerate(manifest["levels"]):
        before = [value for at, value in tokens if at <= level["start_ns"]][-1]
        after = next(value for at, value in tokens if at >= level["end_ns"])
        mine = [row["reported_output"] for row in records if row["level"] == number]
        assert after - before == sum(mine) == 4 * len(mine)
    assert said == []
    telemetry = manifest["telemetry"]
    assert telemetry["server"] == {
        "url": f"{url}/metrics", "kind": "prometheus", "engine": "vllm", "every_s": 0.1,
        "clears_on_read": False, "why_not": None, "stopped": None}  # fmt: skip
    assert (telemetry["failed"], telemetry["gpu"]["why_not"]) == (0, "switched off")
    assert telemetry["sweeps"] == len(tokens) >= 3


@pytest.mark.slow
def test_first_comes_what_was_before_the_load_and_info_stands_there_alone(
    start: Open, tmp_path: Path
) -> None:
    manifest, _, _ = watched(start(quick()), tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert 0 < rows[0]["at_ns"] < manifest["levels"][0]["start_ns"]
    assert [row["at_ns"] for row in rows] == sorted(row["at_ns"] for row in rows)
    assert {row["at_ns"] for row in rows if row["name"].endswith("_info")} == {rows[0]["at_ns"]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dialect", "name"),
    [
        ("sglang", "sglang:num_running_reqs"),
        ("llamacpp", "llamacpp:requests_processing"),
    ],
)
def test_each_engines_own_page_is_sampled(
    dialect: str, name: str, start: Open, tmp_path: Path
) -> None:
    target = {"url": start(quick(dialect)), "engine": dialect}
    _, _, said = watched("", tmp_path / "run", target=target)
    assert said == []
    assert counted(rows_of(tmp_path / "run"), name)


@pytest.mark.slow
def test_an_engine_without_a_page_is_not_sampled(start: Open, tmp_path: Path) -> None:
    target = {"url": start(quick("transformers")), "engine": "transformers"}
    manifest, _, said = watched("", tmp_path / "run", target=target)
    assert said == []
    why_not = manifest["telemetry"]["server"]["why_not"]
    assert why_not == "transformers serve has no metrics page"
    assert not (tmp_path / "run" / "samples.jsonl").exists()


@pytest.mark.slow
def test_several_workers_have_one_sampler(start: Open, tmp_path: Path) -> None:
    url = start(quick())
    watched(url, tmp_path / "run", workers=2)
    truth = httpx.get(f"{url}/sim/stats", trust_env=False).json()
    tokens = counted(rows_of(tmp_path / "run"), "vllm:generation_tokens_total")
    assert tokens[-1][1] == truth["generation_tokens"]


async def answer(asked: Asked, out: Out) -> None:
    await out.stream("a", "b")


def page(body: bytes, *, after: int = 0) -> Callable[[Asked, Out], Any]:
    """A metrics page that breaks off once it was read so often."""
    reads = 0

    async def gets(asked: Asked, out: Out) -> None:
        nonlocal reads
        if asked.path != "/metrics":
            await out.whole(404, {"detail": "Not Found"})
            return
        reads += 1
        if after and reads > after:
            out.reset()
            return
        await out.whole(200, body, kind="text/plain")

    return gets


async def hanging(asked: Asked, out: Out) -> None:
    if asked.path == "/metrics":
        await asyncio.sleep(60)  # noqa: TID251 - a page that never comes
    await out.whole(404, {"detail": "Not Found"})


def on(server: Server, **more: Any) -> dict[str, Any]:
    return {"target": {"url": server.url, "engine": "vllm", **more}}


def iterations(asked_at: list[str]) -> Callable[[Asked, Out], Any]:
    """TensorRT-LLM's JSON page: the iterations since the last read, and 2 s more for another."""

    async def gets(asked: Asked, out: Out) -> None:
        asked_at.append(asked.path)
        if asked.path != "/metrics":
            await out.whole(404, {"detail": "Not Found"})
            return
        await asyncio.sleep(2.1)  # noqa: TID251 - as long as that page takes
        await out.whole(200, orjson.dumps([{"numActiveRequests": 1, "numCompletedRequests": 4}]))

    return gets


@pytest.mark.slow
def test_a_page_that_reading_empties_is_left_alone_unless_it_is_named(tmp_path: Path) -> None:
    asked_at: list[str] = []
    with scripted(answer, gets=iterations(asked_at)) as server:
        target = {"url": server.url, "engine": "trtllm"}
        manifest, _, said = watched("", tmp_path / "run", target=target)
    assert "/metrics" not in asked_at
    assert asked_at.count("/prometheus/metrics") == 1
    (about,) = [line for line in said if "no metrics of the server" in line]
    assert "return_perf_metrics: true and enable_iter_perf_stats: true" in about
    assert "telemetry.server names it" in about
    assert manifest["telemetry"]["failed"] == 0


@pytest.mark.slow
def test_a_page_that_takes_two_seconds_is_read_where_it_is_named(tmp_path: Path) -> None:
    with scripted(answer, gets=iterations([])) as server:
        telemetry = {"every": "100ms", "gpu": "off", "server": f"{server.url}/metrics"}
        target = {"url": server.url, "engine": "trtllm"}
        manifest, _, said = watched(
            "", tmp_path / "run", target=target, telemetry=telemetry, levels=[{"concurrency": 2}]
        )
    assert manifest["telemetry"]["failed"] == 0
    assert manifest["telemetry"]["server"]["clears_on_read"]
    about = [line for line in said if "/metrics" in line or "metrics of the server" in line]
    assert [line for line in about if "gives each figure once" in line] == about
    done = counted(rows_of(tmp_path / "run"), "trtllm:numCompletedRequests")
    assert done[0][0] < manifest["levels"][0]["start_ns"]
    assert done[-1][0] > manifest["levels"][0]["end_ns"]


@pytest.mark.slow
def test_a_page_that_breaks_off_leaves_a_complete_run_with_failed_sweeps(tmp_path: Path) -> None:
    with scripted(answer, gets=page(VLLM_PAGE, after=1)) as server:
        manifest, records, _ = watched("", tmp_path / "run", **on(server))
    assert (manifest["status"], {row["outcome"] for row in records}) == ("complete", {"ok"})
    failed = [row for row in rows_of(tmp_path / "run") if row["name"] == "failed"]
    assert len(failed) == manifest["telemetry"]["failed"] >= 1
    assert failed[0]["labels"]["why"].startswith("no connection")
    assert failed[0]["value"] == 1.0


def test_no_page_is_said_once_and_the_server_is_left_alone(tmp_path: Path) -> None:
    with scripted(answer) as server:
        target = {"url": server.url, "engine": "llamacpp"}
        manifest, _, said = watched("", tmp_path / "run", target=target)
        asked = [one for one in server.asked if one.path == "/metrics"]
    about = [line for line in said if "metrics" in line]
    assert about == ["no metrics of the server: llama-server was started without --metrics"]
    assert manifest["telemetry"]["server"]["why_not"] in about[0]
    assert len(asked) == 1
    assert rows_of(tmp_path / "run") == []


@pytest.mark.slow
def test_a_page_with_nothing_of_the_engines_is_said_once_and_left_alone(tmp_path: Path) -> None:
    bare = b"python_info 1\nprocess_start_time_seconds 1.7e9\n"
    with scripted(answer, gets=page(bare)) as server:
        manifest, _, said = watched(
            "", tmp_path / "run", **on(server), levels=[{"concurrency": 1}],
            each_level={"measure": "2s"},
        )  # fmt: skip
        asked = [one for one in server.asked if one.path == "/metrics"]
    (about,) = [line for line in said if "metrics of the server" in line]
    assert about.endswith("no metrics of vLLM; was it started with --disable-log-stats?")
    assert manifest["telemetry"]["failed"] == PATIENCE
    assert len(asked) <= PATIENCE + 2  # the first of them with the conditions, which read it, too


def test_a_source_named_and_down_is_said_before_the_load_and_in_the_report(
    start: Open, tmp_path: Path
) -> None:
    events: list[Event] = []
    nobody = "http://127.0.0.1:1/metrics"
    telemetry = {"every": "100ms", "server": nobody, "gpu": nobody}
    measure(start(quick()), tmp_path / "run", events=events, telemetry=telemetry)
    before = told(events[: next(i for i, e in enumerate(events) if isinstance(e, PhaseChanged))])
    assert [line.partition(" so far: ")[0] for line in before] == [
        "no metrics of the server", "no figures of a GPU"]  # fmt: skip
    assert told(events) == before
    warnings = summarise_run(tmp_path / "run").warnings
    assert [line.partition(": ")[0] for line in warnings[:2]] == [
        "no metrics of the server", "no figures of a GPU"]  # fmt: skip


def test_a_page_named_and_there_is_not_spoken_of(start: Open, tmp_path: Path) -> None:
    url = start(quick())
    named = {"every": "100ms", "server": f"{url}/metrics", "gpu": "off"}
    manifest, _, said = watched(url, tmp_path / "run", telemetry=named)
    assert (said, manifest["telemetry"]["failed"]) == ([], 0)


@pytest.mark.slow
def test_a_page_of_another_engine_is_known_by_its_names(tmp_path: Path) -> None:
    with scripted(answer, gets=page(VLLM_PAGE)) as server:
        manifest, _, _ = watched(server.url, tmp_path / "run")
    assert manifest["target"]["engine"] == "unknown"
    assert manifest["telemetry"]["server"]["engine"] == "vllm"


@pytest.mark.slow
def test_a_page_that_hangs_delays_the_end_by_two_seconds_at_most(tmp_path: Path) -> None:
    with scripted(answer, gets=hanging) as server:
        begun = time.monotonic()
        manifest, _, _ = watched("", tmp_path / "run", **on(server), levels=[{"concurrency": 2}])
        took_s = time.monotonic() - begun
    end_s = manifest["levels"][0]["end_ns"] / 1e9
    assert manifest["status"] == "complete"
    assert took_s - end_s < 3.0


@pytest.mark.slow
def test_a_page_of_five_megabytes_does_not_hold_the_run_up(tmp_path: Path) -> None:
    body = VLLM_PAGE + b"".join(b"other_metric_%d 1.0\n" % n for n in range(280_000))
    assert len(body) > 5 << 20
    with scripted(answer, gets=page(body)) as server:
        begun = time.monotonic()
        manifest, _, _ = watched("", tmp_path / "run", **on(server), levels=[{"concurrency": 2}])
        took_s = time.monotonic() - begun
    assert took_s - manifest["levels"][0]["end_ns"] / 1e9 < 3.0
    assert {row["name"] for row in rows_of(tmp_path / "run")} == {"vllm:num_requests_running"}


def test_no_secret_is_written_or_stands_on_a_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADGEN_API_KEY", "sesame-key")
    lines: list[bytes] = []

    def listen(event: Event) -> None:
        lines.extend(one.read_bytes() for one in Path("/proc").glob("[0-9]*/cmdline"))
        lines.extend(environ_of(child) for child in samplers_of(os.getpid()))

    with scripted(answer, gets=page(VLLM_PAGE)) as server:
        given = on(server, headers={"X-Team": "sesame-team"})
        made = scenario("", telemetry=ON, **given)
        run_scenario(made, out=tmp_path / "run", on_event=listen)
        asked = [one.headers for one in server.asked if one.path == "/metrics"]
    assert {(one["authorization"], one["x-team"]) for one in asked} == {
        ("Bearer sesame-key", "sesame-team")
    }
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    assert b"sesame" not in written + b"".join(line for line in lines if b"telemetry" in line)


def environ_of(pid: int) -> bytes:
    """What the sampler was given beyond the environment of its parent."""
    text = Path(f"/proc/{pid}/environ").read_bytes()
    return b"" if b"LOADGEN_API_KEY=sesame-key" in text else text


def samplers_of(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes()
            above = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if b"loadgen.run.telemetry" in line and above == parent:
            found.append(int(path.name))
    return found


def gone(pid: int, within_s: float = 5.0) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)  # noqa: TID251 - waits for another process
    return False


def test_a_sampler_that_dies_is_one_warning(start: Open, tmp_path: Path) -> None:
    def kill(event: Event) -> None:
        events.append(event)
        for pid in samplers_of(os.getpid()):
            os.kill(pid, signal.SIGKILL)

    events: list[Event] = []
    levels = [{"concurrency": 1}, {"concurrency": 2}]
    made = scenario(start(quick()), telemetry=ON, levels=levels)
    run_scenario(made, out=tmp_path / "run", on_event=kill)
    manifest = orjson.loads((tmp_path / "run" / "manifest.json").read_bytes())
    assert (manifest["status"], len(manifest["levels"])) == ("complete", 2)
    assert manifest["warnings"] == told(events)
    assert len(manifest["warnings"]) == 1
    assert manifest["warnings"][0].startswith("the server's own view stops here")


def sampler() -> subprocess.Popen[bytes]:
    """The sampling process alone, as a run starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "loadgen.run.telemetry"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )


def spec_for(out: Path, **more: Any) -> bytes:
    told = {
        "path": str(out), "epoch_ns": 0, "every_s": 60.0, "engine": "vllm", "page": None,
        "first": None, "access": {"headers": {}}, "gpu": None, "visible": None}  # fmt: skip
    return orjson.dumps({**told, **more}) + b"\n"


def test_the_sampler_ends_with_its_commands_and_not_by_ctrl_c(tmp_path: Path) -> None:
    with sampler() as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(spec_for(tmp_path / "samples.jsonl") + b'{"mark": 1}\n')
        child.stdin.flush()
        assert orjson.loads(child.stdout.readline())["marked"] == 1
        child.send_signal(signal.SIGINT)
        child.stdin.write(b'{"mark": 2}\n')
        child.stdin.close()
        assert orjson.loads(child.stdout.readline())["marked"] == 2
        assert orjson.loads(child.stdout.readline())["ended"]
        assert child.wait(5) == 0


def test_what_ends_the_sampler_early_is_one_line(tmp_path: Path) -> None:
    with sampler() as child:
        said, _ = child.communicate(spec_for(tmp_path / "no" / "samples.jsonl"), timeout=10)
    assert orjson.loads(said)["failed"].startswith("FileNotFoundError")
    assert child.returncode == 0


@pytest.mark.slow
def test_the_sampler_does_not_outlive_a_run_that_is_killed(start: Open, tmp_path: Path) -> None:
    url = start(quick())
    flags = ["--url", url, "-c", "1", "--duration", "30s", "--out", str(tmp_path / "run")]
    with subprocess.Popen(
        command("run", *flags, "--set", "telemetry.every=100ms"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as parent:
        file = tmp_path / "run" / "samples.jsonl"
        end = time.monotonic() + 20
        while not (file.exists() and file.stat().st_size) and time.monotonic() < end:
            time.sleep(0.02)  # noqa: TID251 - waits for another process
        (child,) = samplers_of(parent.pid)
        parent.kill()
    assert gone(child)
