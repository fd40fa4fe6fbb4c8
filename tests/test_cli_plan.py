import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from dataset_make import as_lines, written
from scenario_make import MINIMAL, ROOT, load_text, make_scenario

from loadgen.cli.main import main
from loadgen.cli.plan import render_plan
from loadgen.workload.plan import first_prompts, plan_hash, plan_level, schedule_of
from loadgen.workload.synthetic import SyntheticPrompts

NO_SOCKETS = """
import sys
def refuse(event, arguments):
    if event.startswith("socket."):
        raise AssertionError(event)
sys.addaudithook(refuse)
from loadgen.cli.main import main
main(sys.argv[1:])
"""


def plan(*arguments: str, **environ: str) -> str:
    result = CliRunner().invoke(main, ["plan", *arguments], env=environ)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def test_plan_opens_no_socket() -> None:
    arguments = ["plan", "--url", "http://no.such.host.invalid", "--rate", "4/s"]
    command = [sys.executable, "-c", NO_SOCKETS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Sent to  http://no.such.host.invalid/v1/chat/completions" in done.stdout


def test_what_plan_prints_is_a_scenario_with_the_same_plan(tmp_path: Path) -> None:
    text = plan("--url", "http://h", "--rate", "2/s,4/s", "--arrivals", "constant", "--seed", "5",
                "--requests", "40", "--input-tokens", "64±8", "--warmup", "2s")  # fmt: skip
    again = load_text(text, tmp_path)
    assert [level.label for level in again.levels] == ["2/s constant", "4/s constant"]
    assert f"# Hash     {plan_hash(again)}" in text


def test_h02_header_values_and_credentials_are_masked_and_names_kept() -> None:
    headers = ("--header", "X-Team-Token: hush-0000", "--header", "X-Org: ${ORG}")
    url = "http://me:hush-1@h?sig=hush-2"
    text = plan("--url", url, *headers, "--set", "conditions.who=${ORG}", ORG="hush-3")
    assert "hush" not in text
    assert "X-Team-Token: '***'" in text
    assert "X-Org: ${ORG}" in text
    assert "who: ${ORG}" in text
    assert "Sent to  http://h/v1/chat/completions?sig=***" in text


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--model", "m"], "model: m"),
        (["--requests", "7"], "measure: 7 requests"),
        (["--duration", "5s"], "measure: 5s"),
        (["--duration", "5"], "measure: 5s"),
        (["--warmup", "9 requests"], "warmup: 9 requests"),
        (["--drain", "0s"], "drain: 0ms"),
        (["--rounds", "3"], "rounds: 3"),
        (["--objective", "ttft p95 <= 1s", "--objective", "errors <= 2%"], "- errors <= 2%"),
        (["--engine", "vllm"], "engine: vllm"),
        (["--endpoint", "completions"], "endpoint: completions"),
        (["--ca-file", "ca.pem"], "ca_file: ca.pem"),
        (["--insecure"], "insecure: true"),
        (["--transport", "stock"], "transport: stock"),
        (["--connections", "per_request"], "connections: per_request"),
        (["--limit", "first-token=9s"], "first_token: 9s"),
        (["--limit", "total=2m"], "total: 2m"),
        (["--limit", "max_event_mb=3"], "max_event_mb: 3"),
        (["--retries", "2"], "retries: 2"),
        (["--nonce", "fixed"], "nonce: fixed"),
        (["--shared-prefix-tokens", "16"], "shared_prefix_tokens: 16"),
        (["--output-tokens", "12"], "output_tokens: 12"),
        (["--set", "request.temperature=0.5"], "temperature: 0.5"),
        (["--rate", "4/s", "--max-in-flight", "9"], "max_in_flight: 9"),
        (["--rate", "4/s", "--at-cap", "drop"], "at_cap: drop"),
        (["--rate", "4/s", "--burstiness", "0.5"], "arrivals: gamma\n  burstiness: 0.5"),
        (["--rate", "4/s", "--arrivals", "gamma", "--burstiness", "2"], "burstiness: 2.0"),
        (["--abort-if", "errors > 50% over 10s"], "abort_if:\n- errors > 50% over 10s"),
        (["--workers", "3"], "workers: 3"),
        (["--workers", "auto"], "workers: auto"),
        (["--turns", "3"], "turns: 3"),
        (["--turns", "5±2"], "turns:\n    mean: 5\n    spread: 2"),
        (["--turns", "3", "--think-time", "2s"], "think_time: 2s"),
        (["--turns", "3", "--think-time", "2s±500ms"], "mean: 2s\n    spread: 500ms"),
        (["--output-tokens", "natural"], "output_tokens: natural"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_every_flag_reaches_its_place_in_the_scenario(flags: list[str], key: str) -> None:
    assert key in plan("--url", "http://h", *flags)


def test_a_dataset_takes_the_place_of_made_prompts(tmp_path: Path) -> None:
    rows = written(tmp_path, '{"prompt": "hush"}\n')
    text = plan("--url", "http://h", "--dataset", str(rows), "--output-tokens", "9")
    assert "  source: dataset\n" in text
    assert "as it is, 9 out\n#     [1 message of the dataset, " in text
    assert "hush" not in text


def test_a_dataset_s_path_is_told_from_the_scenario_s_directory(tmp_path: Path) -> None:
    scenarios, data = tmp_path / "scenarios", tmp_path / "data"
    scenarios.mkdir()
    data.mkdir()
    path = written(scenarios, MINIMAL, "s.yaml")
    rows = written(data, '{"prompt": "a"}\n')
    assert "  file: ../data/rows.jsonl\n" in plan(str(path), "--dataset", str(rows))


def test_a_dataset_that_is_not_there_is_named_by_its_flag_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "no.jsonl")
    done = CliRunner().invoke(main, ["plan", "--url", "http://h", "--dataset", path])
    assert done.stderr == f"loadgen: --dataset: '{path}': no such file\n"


def test_d23_a_file_shorter_than_the_run_is_warned_of(tmp_path: Path) -> None:
    rows = written(tmp_path, as_lines([{"prompt": f"say {n}"} for n in range(100)]))
    flags = ("--url", "http://h", "-c", "2", "--warmup", "0 requests", "--dataset", str(rows))
    text = plan(*flags, "--requests", "250")
    assert "about 250 prompts from 100 different rows, 2.5 passes; what is sent again" in text
    assert "passes" not in plan(*flags, "--requests", "100")
    assert "a second run meets the server's prefix cache" in text


def test_rows_that_cannot_be_sent_and_repetitions_are_warned_of(tmp_path: Path) -> None:
    rows = written(tmp_path, '{"prompt": "a"}\n{"x": 1}\n{"prompt": "a"}\n')
    text = plan("--url", "http://h", "--dataset", str(rows))
    assert "1 of 3 rows cannot be sent; line 2 has no prompt" in text
    assert "1 of 2 rows are repetitions" in text


def test_requests_and_duration_together_ask_for_both() -> None:
    text = plan("--url", "http://h", "--requests", "7", "--duration", "5s")
    assert "measure:\n  - 5s\n  - 7 requests\n" in text


def test_flags_change_a_file(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(MINIMAL)
    text = plan(str(path), "--url", "http://other", "-c", "3,5", "--set", "levels[1].concurrency=6")
    assert "url: http://other\n" in text
    assert "levels:\n- concurrency: 3\n- concurrency: 6\n" in text


def test_a_flag_for_rates_leaves_the_closed_levels_of_a_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(MINIMAL.replace("{concurrency: 2}", "{concurrency: 2}, {rate: 4/s}"))
    text = plan(str(path), "--max-in-flight", "9")
    assert "- concurrency: 2\n- rate: 4/s\n" in text
    assert "max_in_flight: 9" in text


def test_equal_seeds_hash_alike_and_the_nonce_does_not_count() -> None:
    flags = ("--url", "http://h", "--rate", "4/s", "--hash")
    first = plan(*flags, "--seed", "5")
    assert first == plan(*flags, "--seed", "5", "--nonce", "fixed")
    assert len(first.strip()) == 64


BASE = {"levels": [{"rate": 4}, {"concurrency": 2}], "seed": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"levels": [{"concurrency": 2}, {"rate": 4}]},
        {"levels": [{"rate": 4.1}, {"concurrency": 2}]},
        {"levels": [{"rate": 4, "arrivals": "constant"}, {"concurrency": 2}]},
        {"levels": [{"rate": 4}, {"concurrency": 3}]},
        {"prompts": {"input_tokens": 21, "output_tokens": 8}},
        {"prompts": {"input_tokens": 20, "output_tokens": 9}},
        {"prompts": {"input_tokens": 20, "output_tokens": 8, "shared_prefix_tokens": 3}},
        {"each_level": {"measure": "31s"}},
        {"rounds": 2},
        {"levels": [{"rate": 4, "burstiness": 0.5}, {"concurrency": 2}]},
        {"levels": [{"segments": [{"rate": 4, "for": 30}]}, {"concurrency": 2}]},
        {"levels": [{"rate": 4}, {"sessions": 2}]},
        {"prompts": {"input_tokens": 20, "output_tokens": "natural"}},
        {"prompts": {"input_tokens": 20, "output_tokens": 8, "turns": 2}},
        {"prompts": {"input_tokens": 20, "output_tokens": 8, "cache_hit_share": 0.3}},
        {"request": {"temperature": 0.5}},
        {"target": {"url": "http://localhost:8000", "endpoint": "completions"}},
    ],
    ids=lambda change: str(change).replace("'", ""),
)
def test_the_hash_covers_lengths_words_arrivals_and_order(change: dict[str, object]) -> None:
    assert plan_hash(make_scenario(**{**BASE, **change})) != plan_hash(make_scenario(**BASE))


@pytest.mark.parametrize(
    "change",
    [{"name": "other"}, {"target": {"url": "https://elsewhere"}}, {"objectives": ["errors <= 2%"]},
     {"workers": 4}, {"workers": "auto"}, {"abort_if": ["errors > 50% over 10s"]},
     {"conditions": {"gpu": "H200"}}, {"limits": {"idle": "5s"}}],
    ids=str,
)  # fmt: skip
def test_what_is_not_sent_is_not_in_the_hash(change: dict[str, object]) -> None:
    assert plan_hash(make_scenario(**{**BASE, **change})) == plan_hash(make_scenario(**BASE))


def test_an_open_level_is_known_to_the_request_and_a_closed_one_by_its_count() -> None:
    scenario = make_scenario(levels=[{"rate": 4, "arrivals": "constant"}, {"concurrency": 2}],
                             each_level={"warmup": "5s", "measure": "10s"})  # fmt: skip
    open_level, closed = plan_level(scenario, 0), plan_level(scenario, 1)
    assert (open_level.requests, open_level.input_tokens, open_level.seconds) == (40, 800, 15)
    assert (closed.requests, closed.output_tokens, closed.seconds) == (None, None, 15)
    counted = make_scenario(each_level={"measure": "7 requests"})
    assert (plan_level(counted, 0).requests, plan_level(counted, 0).timed) == (7, False)


def mix_of(*weights: float) -> list[dict[str, object]]:
    prompts = {"input_tokens": 20, "output_tokens": 8}
    named = zip("abc", weights, strict=False)
    return [{"name": name, "weight": weight, "prompts": prompts} for name, weight in named]


def test_the_hash_covers_the_mix() -> None:
    hashes = {
        plan_hash(make_scenario(prompts=None, mix=mix_of(*weights)))
        for weights in ((1,), (1, 1), (1, 2), (1, 1, 1))
    }
    assert len(hashes) == 4


def test_the_hash_covers_what_a_file_holds_and_not_its_name(tmp_path: Path) -> None:
    def hash_of(data: str, name: str) -> str:
        path = written(tmp_path, data, name)
        return plan_hash(make_scenario(prompts={"source": "dataset", "file": str(path)}))

    first = hash_of('{"prompt": "a"}\n', "one.jsonl")
    assert first == hash_of('{"prompt": "a"}\n', "two.jsonl")
    assert first != hash_of('{"prompt": "b"}\n', "one.jsonl")


def test_a_conversation_counts_every_turn_and_all_that_it_repeats() -> None:
    scenario = make_scenario(
        prompts={"input_tokens": 10, "output_tokens": 4, "turns": 3},
        levels=[{"rate": 1, "arrivals": "constant"}, {"sessions": 2}],
        each_level={"warmup": "0s", "measure": "30 requests"},
    )
    open_level, closed = plan_level(scenario, 0), plan_level(scenario, 1)
    # one conversation: 10, then 10 + 4 + 10, then that + 4 + 10 tokens in; 3 · 4 out
    assert (open_level.arrivals, open_level.requests) == (30, 90)
    assert (open_level.input_tokens, open_level.output_tokens) == (30 * 72, 30 * 12)
    assert (closed.arrivals, closed.requests, closed.input_tokens) == (10, 30, 10 * 72)


def test_tokens_that_only_the_server_decides_are_not_guessed() -> None:
    prompts = {"input_tokens": 10, "output_tokens": "natural"}
    level = plan_level(make_scenario(prompts=prompts, levels=[{"rate": 4}]), 0)
    assert (level.output_tokens, level.input_tokens) == (None, 10 * (level.requests or 0))
    assert "tokens in, natural length out" in render_plan(make_scenario(prompts=prompts))


def test_a_level_of_segments_lasts_as_long_as_they_do() -> None:
    segments = [{"rate": 2, "for": "10s"}, {"from": 2, "to": 4, "for": "10s"}]
    scenario = make_scenario(
        levels=[{"segments": segments, "arrivals": "constant"}], each_level={"warmup": "5s"}
    )
    level = plan_level(scenario, 0)
    assert (level.seconds, level.requests, level.measure.seconds) == (25, 50, 20)


def test_each_prompt_of_a_mix_is_shown_with_its_class() -> None:
    text = render_plan(make_scenario(prompts=None, mix=mix_of(1, 1), seed=2))
    assert "concurrency 2, no. 1 (" in text


@pytest.mark.parametrize(
    ("measure", "levels", "words"),
    [
        ("10s", [{"concurrency": 2}], "11s in all"),
        (
            "10s",
            [{"rate": 2, "arrivals": "constant"}],
            "11s in all, and a drain of up to 1m after each",
        ),
        (["10s", "9 requests"], [{"concurrency": 2}], "9 or more"),
        ("9 requests", [{"concurrency": 2}], "At least 1s (counted requests take as long"),
    ],
    ids=["closed", "open", "both", "count"],
)
def test_the_time_is_told_as_far_as_it_is_known(
    measure: object, levels: list[object], words: str
) -> None:
    phases = {"warmup": "1s", "measure": measure}
    assert words in render_plan(make_scenario(levels=levels, each_level=phases))


def test_rounds_draw_their_own_arrivals() -> None:
    scenario = make_scenario(levels=[{"rate": 4}], rounds=2)
    first, second = (schedule_of(scenario, 0, round_=n).due_ns.tolist() for n in (0, 1))
    assert first != second


def test_the_prompts_shown_are_those_that_are_sent() -> None:
    scenario = make_scenario(
        prompts={"input_tokens": 30, "output_tokens": 8, "shared_prefix_tokens": 4}
    )
    shown = first_prompts(scenario, number=1, words=5)[0]
    sent = SyntheticPrompts(scenario.prompts, seed=0, nonce="ab", endpoint="completions")
    text = sent.prompt(level=0, round_=0, number=0).text
    assert text is not None
    head = "[4 words all prompts of the run share] [3 words drawn for the run]"
    assert shown.text == f"{head} {' '.join(text.split(' ')[7:12])} …"


def test_with_a_fixed_nonce_every_word_is_shown() -> None:
    scenario = make_scenario(nonce="fixed")
    shown = first_prompts(scenario, number=1, words=99)[0]
    sent = SyntheticPrompts(scenario.prompts, seed=0, nonce="fixed", endpoint="completions")
    assert shown.text == sent.prompt(level=0, round_=0, number=0).text


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_scenario_of_the_project_plans(path: Path) -> None:
    assert f"name: {path.stem}\n" in plan(str(path))
