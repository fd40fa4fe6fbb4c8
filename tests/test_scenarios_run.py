"""The project's scenarios against the simulator, and what is sent: lengths, openings, limits."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from drive import loadgen, measure, read
from scenario_make import ROOT
from serve import Asked, Out, Script, content, finish, scripted, usage
from simulator_make import stats

from loadgen.report.write import render
from loadgen.scenario.load import load_scenario
from loadgen.simulator.process import simulator_process
from loadgen.workload.plan import schedule_of
from loadgen.workload.prompts import MixedPrompts, prompt_source
from loadgen.workload.synthetic import OPENING_WORDS

pytestmark = pytest.mark.slow  # whole runs: seconds each

SCENARIOS = ROOT / "scenarios"


class Ran:
    """One scenario of the project, run by the command against a simulator of its own."""

    def __init__(self, name: str, out: Path, *, simulator: tuple[str, ...] = ()) -> None:
        with simulator_process(*simulator) as site:
            done = loadgen("run", str(SCENARIOS / f"{name}.yaml"), "--url", site.url,
                           "--out", str(out), timeout=120)  # fmt: skip
            self.served = stats(site.url)["requests"]
        assert done.returncode == 0, done.stdout + done.stderr
        self.stdout = done.stdout
        self.manifest, self.records = read(out)
        self.summary = orjson.loads((out / "summary.json").read_bytes())

    def rows(self, level: int = 0) -> list[dict[str, Any]]:
        found = [row for row in self.records if row["level"] == level]
        return sorted(found, key=lambda row: row["id"])

    def arrived_ns(self, level: int = 0) -> np.ndarray:
        """When the simulator read each request of a level, from the level's start."""
        entry, epoch = self.manifest["levels"][level], self.manifest["epoch_monotonic_ns"]
        arrived = np.array([row["arrived_ns"] for row in self.served]) - epoch
        within = (arrived >= entry["start_ns"]) & (arrived <= entry["end_ns"])
        return np.sort(arrived[within]) - entry["start_ns"]


def each_has_one_record(ran: Ran) -> None:
    assert len({row["id"] for row in ran.records}) == len(ran.records)
    for number, entry in enumerate(ran.manifest["levels"]):
        assert len(ran.rows(number)) == entry["arrivals"] == len(ran.arrived_ns(number))
    assert {row["outcome"] for row in ran.records} == {"ok"}


# --- the project's scenarios


@pytest.mark.slow
def test_a_spike_arrives_as_it_was_drawn(tmp_path: Path) -> None:
    ran = Ran("spike", tmp_path / "run")
    each_has_one_record(ran)
    drawn = schedule_of(load_scenario(SCENARIOS / "spike.yaml", environ={}), 0, round_=0)
    start = ran.manifest["levels"][0]["start_ns"]
    assert [row["due_ns"] - start for row in ran.rows()] == drawn.due_ns.tolist()
    lags_ms = (ran.arrived_ns() - drawn.due_ns) / 1e6
    assert lags_ms.min() >= 0
    assert np.percentile(lags_ms, 99) < 20
    measured = (ran.arrived_ns() - drawn.measure_start_ns) / 1e9
    in_spike = ((measured >= 10) & (measured < 13)).sum()
    assert in_spike == pytest.approx(180, abs=50)  # 60/s for 3 s, four sigmas
    assert ((measured >= 13) & (measured < 20)).sum() == pytest.approx(28, abs=22)
    assert ran.manifest["levels"][0]["stop_reason"] == "time"


@pytest.mark.slow
def test_a_mix_sends_its_classes_and_reports_each(tmp_path: Path) -> None:
    ran = Ran("mix", tmp_path / "run", simulator=("--report-cached",))
    each_has_one_record(ran)
    source = prompt_source(load_scenario(SCENARIOS / "mix.yaml", environ={}), nonce="fixed")
    assert isinstance(source, MixedPrompts)
    for level in (0, 1):
        drawn = [
            source.prompt(level=level, round_=0, number=n) for n in range(len(ran.rows(level)))
        ]
        sent = [(row["class"], row["asked_input"], row["asked_output"]) for row in ran.rows(level)]
        assert Counter(sent) == Counter((p.class_, p.asked_input, p.asked_output) for p in drawn)
    fewest = 8 + OPENING_WORDS  # the template, and what opens a prompt
    assert all(row["reported_input"] == max(row["asked_input"], fewest) for row in ran.records)
    assert all(row["reported_output"] == row["asked_output"] for row in ran.records)
    measured = {(r["level"], r["class"]) for r in ran.records if r["phase"] == "measure"}
    by_class = [(row["level"], row["class"]) for row in ran.summary["by_class"]]
    assert by_class == sorted(measured)
    assert {name for _, name in by_class} == {"chat", "long context"}
    for level in (0, 1):
        parts = [row["arrivals"] for row in ran.summary["by_class"] if row["level"] == level]
        assert sum(parts) == ran.summary["levels"][level]["arrivals"]
        assert min(parts) > 5
    assert "By class" in ran.stdout
    assert ran.stdout.count("long context") >= 2
    long = next(row for row in ran.summary["by_class"] if row["class"] == "long context")
    assert long["cached_input_share"] == pytest.approx(0.3, abs=0.06)


@pytest.mark.slow
def test_conversations_are_held_turn_by_turn(tmp_path: Path) -> None:
    ran = Ran("conversation", tmp_path / "run")
    each_has_one_record(ran)
    assert [level["peak_in_flight"] <= most for level, most in
            zip(ran.manifest["levels"], (8, 2), strict=True)] == [True, True]  # fmt: skip
    for turns in conversations(ran.records):
        assert [row["turn"] for row in turns] == list(range(len(turns)))
        assert all(a["end_ns"] <= b["sent_ns"] for a, b in pairwise(turns))
        lengths = [row["reported_input"] for row in turns]
        assert all(a + 24 < b for a, b in pairwise(lengths))
    assert max(row["turn"] for row in ran.records) >= 1


def conversations(records: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    found: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(records, key=lambda row: row["due_ns"]):
        found[row["level"], row["conversation"]].append(row)
    yield from found.values()


# --- no prompt is met twice


def texts(asked: list[Asked]) -> list[list[str]]:
    """The words of every prompt of the run proper."""
    bodies = [one.json for one in asked]
    return [body["messages"][0]["content"].split() for body in bodies if body["max_tokens"] > 1]


@pytest.mark.parametrize("row", ["F04"])
@pytest.mark.parametrize("shared", [0, 8])
def test_no_prompt_begins_like_another_but_for_the_shared_prefix(
    row: str, shared: int, tmp_path: Path
) -> None:
    with scripted(serve_counted(lambda words: words)) as server:
        for run in ("one", "two"):  # nor in a second run of the same scenario and seed
            measure(
                server.url,
                tmp_path / run,
                prompts={"input_tokens": 24, "output_tokens": 4, "shared_prefix_tokens": shared},
                levels=[{"concurrency": 2}, {"rate": 200.0}],
                each_level={"warmup": "5 requests", "measure": "15 requests"},
                rounds=2,
            )
        said = texts(server.generations)
    assert len(said) == 2 * 2 * 2 * 20
    openings = {tuple(words[shared : shared + 3]) for words in said}
    assert len(openings) == len(said)
    prefixes = {tuple(words[:shared]) for words in said}
    assert len(prefixes) == (2 if shared else 1)  # each run has its own
    assert all(len(words) == 24 for words in said)


@pytest.mark.slow
@pytest.mark.parametrize("row", ["F04"])
def test_a_prompt_that_is_repeated_is_met_by_the_cache_and_warned_of(
    row: str, tmp_path: Path
) -> None:
    path = tmp_path / "one.jsonl"
    path.write_bytes(orjson.dumps({"prompt": " ".join(f"w{i}" for i in range(64))}) + b"\n")
    with simulator_process("--report-cached") as site:
        level, said = reported_of(
            site.url,
            tmp_path / "run",
            prompts={"source": "dataset", "file": str(path), "output_tokens": 4},
        )
    assert level["repeated_prompts"] == 1.0  # the warm-up had sent it
    assert level["cached_input_share"] > 0.8
    warned = {check["name"] for check in level["checks"] if check["verdict"] != "pass"}
    assert warned >= {"repeated prompts", "prefix-cache hits"}
    assert "repeated prompts" in said


# --- lengths asked for and lengths counted


def serve_counted(counted: Any, *, tokens: int | None = None, probes: bool = True) -> Script:
    """A server whose usage is ``counted(words)`` of a prompt; tokens: of an answer, else as asked.

    probes: False leaves out the usage of answers of one token.
    """

    async def script(asked: Asked, out: Out) -> None:
        body = asked.json
        words = sum(len(message["content"].split()) for message in body["messages"])
        limit = body["max_tokens"]
        said = limit if tokens is None else min(limit, tokens)
        await out.head()
        for _ in range(said):
            await out.send(content(" a"))
        await out.send(finish("length" if said == limit else "stop"))
        if probes or limit > 1:
            await out.send(usage(counted(words), said))
        await out.send(b"data: [DONE]\n\n")
        await out.end()

    return script


def reported(script: Script, out: Path, **parts: Any) -> tuple[dict[str, Any], str]:
    """Measure a server; return the level's figures and the report's text."""
    with scripted(script) as server:
        return reported_of(server.url, out, **parts)


def reported_of(url: str, out: Path, **parts: Any) -> tuple[dict[str, Any], str]:
    measure(url, out, each_level={"measure": "30 requests"}, **parts)
    (level,) = orjson.loads(render(out, "json"))["levels"]
    return level, render(out, "markdown")


def warnings_of(level: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["text"] for one in level["checks"] if one["verdict"] != "pass"}


@pytest.mark.parametrize("row", ["F06"])
@pytest.mark.parametrize(
    ("off", "warned"),
    [((-5, 7, 0), False), ((20, 30, 25), True)],
    ids=["by-chance", "by-2-percent"],
)
def test_lengths_that_a_server_counts_otherwise_are_told_and_warned_of(
    row: str, off: tuple[int, int, int], warned: bool, tmp_path: Path
) -> None:
    number = 0

    def counted(words: int) -> int:
        nonlocal number
        number += 1
        return words + off[number % 3]

    script = serve_counted(counted, probes=False)
    level, said = reported(
        script, tmp_path / "run", prompts={"input_tokens": 1024, "output_tokens": 4}
    )
    told = level["input_tokens"]
    assert level["asked_input_mean"] == 1024
    assert (told["min"], told["max"]) == (1024 + min(off), 1024 + max(off))
    assert ("input length, off by" in warnings_of(level)) == warned
    assert "no usable count of prompt tokens" in said


@pytest.mark.parametrize("row", ["F07"])
def test_what_the_template_adds_is_taken_off_where_a_probe_tells(row: str, tmp_path: Path) -> None:
    script = serve_counted(lambda words: words + 12)
    level, _ = reported(script, tmp_path / "run", prompts={"input_tokens": 128, "output_tokens": 4})
    manifest, records = read(tmp_path / "run")
    assert {(one["asked_input"], one["reported_input"]) for one in records} == {(128, 128)}
    assert manifest["prompts"]["overhead_tokens"] == level["prompt_overhead"] == 12
    assert manifest["prompts"]["calibration"] == "linear"
    assert "input length, off by" not in warnings_of(level)


@pytest.mark.parametrize("row", ["F07"])
def test_what_the_template_adds_is_shown_where_no_probe_tells(row: str, tmp_path: Path) -> None:
    script = serve_counted(lambda words: words + 12, probes=False)
    level, said = reported(
        script, tmp_path / "run", prompts={"input_tokens": 128, "output_tokens": 4}
    )
    assert (level["asked_input_mean"], level["input_tokens"]["mean"]) == (128, 140)
    shown = next(line for line in said.splitlines() if "140 (140 … 140)" in line)
    cells = [cell.strip() for cell in shown.split("|")]
    assert cells[2:5] == ["128", "140 (140 … 140)", "12"]


@pytest.mark.parametrize("row", ["F09"])
@pytest.mark.parametrize(
    ("engine", "sent"),
    [
        ("vllm", {"max_tokens": 6, "min_tokens": 6, "ignore_eos": True}),
        ("sglang", {"max_tokens": 6, "min_tokens": 6, "ignore_eos": True}),
        ("trtllm", {"max_tokens": 6, "min_tokens": 6, "ignore_eos": True}),
        ("llamacpp", {"max_tokens": 6, "ignore_eos": True}),
        ("transformers", {"max_tokens": 6}),
        ("openai", {"max_completion_tokens": 6}),
    ],
)
def test_a_fixed_length_is_asked_for_in_all_the_words_an_engine_takes(
    row: str, engine: str, sent: dict[str, Any], tmp_path: Path
) -> None:
    async def script(asked: Asked, out: Out) -> None:
        await out.stream("a")

    with scripted(script) as server:
        measure(
            server.url,
            tmp_path / "run",
            target={"url": server.url, "engine": engine},
            prompts={"input_tokens": 8, "output_tokens": 6},
            each_level={"warmup": "0 requests", "measure": "2 requests"},
        )
        body = server.generations[-1].json
    names = ("max_tokens", "max_completion_tokens", "min_tokens", "ignore_eos")
    assert {name: body[name] for name in names if name in body} == sent


@pytest.mark.parametrize("row", ["F09"])
def test_answers_that_stop_early_all_the_same_are_told_and_warned_of(
    row: str, tmp_path: Path
) -> None:
    script = serve_counted(lambda words: words, tokens=3)  # a stop id that no field forbids
    with scripted(script) as server:
        level, said = reported_of(
            server.url,
            tmp_path / "run",
            target={"url": server.url, "engine": "vllm"},
            prompts={"input_tokens": 16, "output_tokens": 6},
        )
    assert (level["asked_output_mean"], level["output_tokens"]["mean"]) == (6, 3)
    assert level["finish_reasons"] == {"stop": 30}
    told = warnings_of(level)["answers stop early by"]
    assert "3 output tokens on average where 6 were asked for" in told
    assert "answers stop early by" in said
    _, records = read(tmp_path / "run")
    assert {(one["asked_output"], one["reported_output"]) for one in records} == {(6, 3)}
