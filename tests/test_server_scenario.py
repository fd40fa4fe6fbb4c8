"""``server:`` in a scenario: what it takes, what it refuses, and how a plan shows it."""

import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from scenario_make import MINIMAL, ROOT, load_text, problems_in
from server_make import scenario_with

from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.scenario.private import is_secret_name, mask, mask_command, secrets_in
from loadgen.scenario.server import Server, variables_for
from loadgen.server.preview import interpolate, preview, rendered_service
from loadgen.server.start import server_of


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("server: {}", "server: neither profile nor command is given; add one, like profile:"),
        ("server: {profile: vllm, command: x}", "server: both profile and command are given;"),
        ("server: {command: x, file: y}", "server: file goes with a profile, not with a command"),
        ("server: {command: ''}", "server.command: write it like 'llama-server -m"),
        ("server: {command: 'a \"b'}", "server.command: cannot be split into words"),
        ("server: {profil: vllm}", "server.profil: unknown key; did you mean 'profile'?"),
        ("server: {command: x, ready_within_s: 5}", "server.ready_within_s: unknown key; did you"),
        ("server: {command: x, ready_within: soon}", "server.ready_within: 'soon' is not a dura"),
        ("server: {command: x, keep: 1}", "server.keep: must be true or false"),
        ("server: {command: x, project: A b}", "server.project: takes small letters"),
        ("server: {command: x, variables: {A: true}}", "server.variables: A must be text or a"),
        ("server: {command: x, variables: {a-b: 1}}", "server.variables: 'a-b' is not a variable"),
        ("server: {profile: vllm, file: dc.yml}", "server.file: 'dc.yml': no such file"),
        ("server: {profile: vllm}", "server.file: 'docker-compose.yml': no such file"),
        ("server: {command: '${NO_KEY}'}", "server.command: ${NO_KEY} is not set"),
    ],
    ids=lambda text: text if text.startswith("server: {") else "",
)
def test_a_wrong_server_is_explained(line: str, problem: str, tmp_path: Path) -> None:
    found = problems_in(f"{MINIMAL}{line}\n", tmp_path)
    assert found[0].startswith(f"s.yaml: {problem}")


def test_the_defaults_are_half_an_hour_and_taking_it_down() -> None:
    server = Server(profile="vllm")
    assert (server.ready_within_s, server.keep) == (1800, False)
    assert (server.project_name, server.compose_files) == ("loadgen-vllm", ("docker-compose.yml",))
    assert Server(command=("/opt/Llama Server",)).project_name == "loadgen-llama-server"


def test_a_command_is_split_as_a_shell_does() -> None:
    server = Server.model_validate({"command": "serve -m 'my model.gguf' --port 1"})
    assert server.command == ("serve", "-m", "my model.gguf", "--port", "1")


def test_port_and_model_come_from_the_target_unless_given() -> None:
    server = Server(profile="vllm", variables={"CONTEXT": "4096"})
    assert variables_for(server, port=8123, model="m") == {
        "PORT": "8123", "MODEL": "m", "CONTEXT": "4096"}  # fmt: skip
    other = Server(profile="vllm", variables={"MODEL": "org/m"})
    assert variables_for(other, port=1, model="m")["MODEL"] == "org/m"


def test_a_server_cannot_be_started_on_another_machine() -> None:
    scenario = scenario_with({"command": "x"}, target={"url": "http://gpu-host:8000"})
    with pytest.raises(UsageError, match="names gpu-host, but server: starts one on this"):
        server_of(scenario)


def test_h09_a_stored_scenario_holds_names_in_place_of_secrets(tmp_path: Path) -> None:
    text = (
        MINIMAL + 'server: {command: [x, --api-key, "${MY_KEY}", --token, plain-text], '
        'variables: {HF_TOKEN: "${HF_TOKEN}", OTHER_TOKEN: hush-0000, CONTEXT: 4096}}\n'
    )
    scenario = load_text(text, tmp_path, environ={"MY_KEY": "sk-1-hush", "HF_TOKEN": "hf_hush"})
    kept = scenario.public_dict()["server"]
    assert kept["command"] == ["x", "--api-key", "${MY_KEY}", "--token", "***"]
    assert kept["variables"] == {
        "HF_TOKEN": "${HF_TOKEN}", "OTHER_TOKEN": "***", "CONTEXT": "4096"}  # fmt: skip
    assert "hush" not in str(kept)
    assert scenario.server is not None
    assert scenario.server.variables["HF_TOKEN"] == "hf_hush"


def test_a_stored_scenario_is_a_scenario_again(tmp_path: Path) -> None:
    text = MINIMAL + "server: {command: serve --port 1, ready_within: 90s, keep: true}\n"
    scenario = load_text(text, tmp_path)
    again = type(scenario).model_validate(scenario.public_dict())
    assert again.server == scenario.server


@pytest.mark.parametrize(
    ("name", "secret"),
    [("HF_TOKEN", True), ("API_KEY", True), ("api-key", True), ("DB_PASSWORD", True),
     ("CONTEXT", False), ("MONKEY", False), ("TOKENIZER", False), ("MAX_TOKENS", False)],
)  # fmt: skip
def test_which_names_are_secret(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("using hf_abc0def0", "using ***"),
        ("Authorization: Bearer abcdef", "Authorization: Bearer ***"),
        ("HF_TOKEN=plainword", "HF_TOKEN=***"),
        ('{"api_key": "plainword"}', '{"api_key": "***"}'),
        ("http://me:pass@host/", "http://***@host/"),
        ("HF_TOKEN=${HF_TOKEN}", "HF_TOKEN=${HF_TOKEN}"),
        ("max_tokens: 512, tokenizer: x", "max_tokens: 512, tokenizer: x"),
        ("from hf_hub_download import", "from hf_hub_download import"),
        ("first token after 3 s", "first token after 3 s"),
        ("open sesame-0001", "open ***"),
    ],
)
def test_a_log_line_loses_its_secrets_and_nothing_else(text: str, masked: str) -> None:
    assert mask(text, ("sesame-0001",)) == masked


def test_the_word_after_a_key_flag_is_masked() -> None:
    assert mask_command(["serve", "--api-key", "x", "--port", "1"]) == [
        "serve", "--api-key", "***", "--port", "1"]  # fmt: skip
    assert secrets_in({"HF_TOKEN": "hf_test0000", "X_KEY": "1", "PATH": "/usr/bin"}) == (
        "hf_test0000",
    )


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("$A ${A}", "1 1"),
        ("${B:-two}", "two"),
        ("${E:-two}|${E-two}", "two|"),
        ("${A:+--x ${A}}|${B:+--x}", "--x 1|"),
        ("${B:-${C:-deep}}", "deep"),
        ("$${A}", "${A}"),
        ("${B}", "${B}"),
        ("${B:---flag}", "--flag"),
    ],
)
def test_variables_are_filled_in_as_compose_does(text: str, filled: str) -> None:
    assert interpolate(text, {"A": "1", "E": ""}) == filled


def test_the_plan_of_engines_says_what_would_be_started_and_sent() -> None:
    arguments = ["plan", str(ROOT / "scenarios" / "engines.yaml"), "--server", "vllm"]
    result = CliRunner().invoke(main, arguments, env={"PATH": "/nowhere", "PORT": "9"})
    assert result.exit_code == 0, result.stderr
    told = " ".join(result.stdout.split())
    assert "# Server, started first # docker compose --project-name loadgen-vllm" in told
    assert "up --detach --force-recreate vllm # with PORT=8000 CONTEXT=4096" in told
    assert "# image vllm/vllm-openai:v0.32.0 # command Qwen/Qwen3-0.6B --served-model" in told
    assert "--max-model-len 4096" in told
    assert "# until a token comes, for 30m at most; taken down afterwards" in told
    assert "Sent to http://127.0.0.1:8000/v1/chat/completions" in told


def test_a_plan_names_secrets_and_shows_none() -> None:
    server = {"command": ["serve", "--api-key", "sk-test-0000"], "keep": True,
              "variables": {"HF_TOKEN": "hf_test0000"}}  # fmt: skip
    scenario = scenario_with(server)
    assert scenario.server is not None
    assert preview(scenario, scenario.server, {}) == [
        "serve --api-key '***'",
        "with HF_TOKEN=${HF_TOKEN}",
        "until a token comes, for 30m at most; left running afterwards",
    ]


@pytest.mark.parametrize("profile", ["vllm", "trtllm", "sglang", "llamacpp", "llamacpp-cpu",
                                     "transformers"])  # fmt: skip
def test_every_profile_of_the_shipped_file_can_be_planned(profile: str) -> None:
    own = profile in ("vllm", "trtllm", "sglang", "llamacpp")  # has a server of its own there
    chosen = ["--server", profile if own else "vllm"]
    others = [] if own else ["--set", f"servers.vllm.server.profile={profile}"]
    arguments = ["plan", str(ROOT / "scenarios" / "engines.yaml"), *chosen, *others]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0
    assert f"--profile {profile} up --detach" in result.stdout
    assert "${" not in result.stdout.split("Levels")[0]


def test_tensorrt_llm_is_started_with_what_its_metrics_need(tmp_path: Path) -> None:
    """The command as the shell of the container runs it, before a stand-in for the program."""
    server = Server.model_validate({"profile": "trtllm"})
    given = {"MODEL": "org/m", "EXTRA_ARGS": "--seed '7 8'"}
    rendered = rendered_service(server, [ROOT / "docker-compose.yml"], environ=given)
    program = tmp_path / "trtllm-serve"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"; cat "$(dirname "$0")/trtllm.yaml"\n')
    program.chmod(0o755)
    words = [word.replace("/tmp/", f"{tmp_path}/") for word in shlex.split(rendered["command"])]
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=True)
    said = done.stdout.splitlines()
    assert said[0] == "org/m"
    assert said[said.index("--extra_llm_api_options") + 1] == f"{tmp_path}/trtllm.yaml"
    assert said[-4:] == [
        "--seed", "7 8", "return_perf_metrics: true", "enable_iter_perf_stats: true"]  # fmt: skip
