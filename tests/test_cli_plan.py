import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
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
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_every_flag_reaches_its_place_in_the_scenario(flags: list[str], key: str) -> None:
    assert key in plan("--url", "http://h", *flags)


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
    ],
    ids=lambda change: str(change).replace("'", ""),
)
def test_the_hash_covers_lengths_words_arrivals_and_order(change: dict[str, object]) -> None:
    assert plan_hash(make_scenario(**{**BASE, **change})) != plan_hash(make_scenario(**BASE))


@pytest.mark.parametrize(
    "change",
    [{"name": "other"}, {"target": {"url": "https://elsewhere"}}, {"objectives": ["errors <= 2%"]},
     {"conditions": {"gpu": "H200"}}, {"limits": {"idle": "5s"}}],
    ids=lambda change: next(iter(change)),
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
