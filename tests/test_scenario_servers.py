"""``servers:`` in a scenario: laid over its own parts, checked with their paths, planned alike."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from scenario_make import MINIMAL, ROOT, load_text, make_scenario, problems_in

from loadgen.cli.main import main
from loadgen.scenario.model import Scenario
from loadgen.scenario.servers import laid, written_at
from loadgen.server.process import program
from loadgen.workload.plan import plan_hash

SERVERS = (
    MINIMAL
    + """
server: {command: loadgen simulate, variables: {A: 1, B: 2}, ready_within: 60s}
conditions: {gpu: none}
servers:
  fp16: {conditions: {weights: fp16}}
  int4:
    server: {variables: {B: 3}}
    target: {model: small}
    conditions: {weights: int4}
    request: {temperature: 0}
"""
)
SIMULATED = str(ROOT / "scenarios" / "quantization-simulated.yaml")
ENGINES = str(ROOT / "scenarios" / "engines.yaml")


def variants(text: str, directory: Path, **more: object) -> dict[str, Scenario]:
    return dict(load_text(text, directory, **more).variants())


def test_each_is_laid_key_by_key_over_the_scenario_s_own(tmp_path: Path) -> None:
    made = variants(SERVERS, tmp_path)
    fp16, int4 = made["fp16"], made["int4"]
    assert fp16.server is not None
    assert int4.server is not None
    assert (fp16.server.variables, int4.server.variables) == (
        {"A": "1", "B": "2"}, {"A": "1", "B": "3"})  # fmt: skip
    assert int4.server.command == ("loadgen", "simulate")
    assert int4.server.ready_within_s == 60
    assert (fp16.target.model, int4.target.model) == (None, "small")
    assert int4.conditions == {"gpu": "none", "weights": "int4"}
    assert (fp16.request, int4.request) == ({}, {"temperature": 0})
    assert [one.name for one in made.values()] == ["tiny-fp16", "tiny-int4"]
    assert not int4.servers


def test_a_command_is_started_under_the_server_s_name(tmp_path: Path) -> None:
    made = variants(SERVERS, tmp_path)
    names = [one.server.project_name for one in made.values() if one.server]
    assert names == ["loadgen-fp16", "loadgen-int4"]


@pytest.mark.parametrize(
    ("own", "given", "made"),
    [
        ("{command: x}", "{profile: v, file: s.yaml}", (None, "v")),
        ("{profile: v, file: s.yaml}", "{command: y}", (("y",), None)),
        ("{variables: {A: 1}}", "{command: y}", (("y",), None)),
    ],
    ids=["profile", "command", "an-own-one-that-is-not-whole"],
)
def test_a_way_to_start_takes_the_other_s_place(
    own: str, given: str, made: object, tmp_path: Path
) -> None:
    text = f"{MINIMAL}server: {own}\nservers: {{a: {{server: {given}}}}}\n"
    server = variants(text, tmp_path)["a"].server
    assert server is not None
    assert (server.command, server.profile) == made


def test_no_server_is_one_that_runs_already(tmp_path: Path) -> None:
    text = f"{MINIMAL}server: {{command: x}}\nservers: {{a: {{}}, b: {{server: null}}}}\n"
    made = variants(text, tmp_path)
    assert made["a"].server is not None
    assert made["b"].server is None


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{int4: {server: {profle: x}}}", "servers.int4.server.profle: unknown key; did you mean"),
        ("{int4: {servr: {}}}", "servers.int4.servr: unknown key; did you mean 'server'?"),
        ("{int4: {server: {ready_within_s: 5}}}", "servers.int4.server.ready_within_s: unknown"),
        ("{int4: {server: {variables: 3}}}", "servers.int4.server.variables: must be a mapping"),
        ("{int4: {target: {url: h}}}", "servers.int4.target.url: has no scheme"),
        ("{int4: {target: {tokenizer: a/b}}}", "servers.int4.target.tokenizer: 'a/b': no such"),
        ("{int4: {server: {profile: v}}}", "servers.int4.server.file: 'docker-compose.yml': no"),
        ("{int4: {server: {command: '${NO}'}}}", "servers.int4.server.command: ${NO} is not set"),
        ("{int4: {request: {stream: true}}}", "servers.int4.request: 'stream' cannot be set here"),
        ("{int4: 4}", "servers.int4: must be a mapping of keys and values"),
        ("[a]", "servers: must be a mapping of keys and values"),
        ("{}", "servers: has none; add one, like fp16: {"),
        ("{int 4.1: {}}", "servers: 'int 4.1' names a directory: letters, digits, - and _; did you"
                          " mean 'int-4-1'?"),
        ("{fp16: {}, int4: {}}", "servers.int4: is the same as servers.fp16; give it a server"),
        ("{fp16: {}, int4: {conditions: {a: 1}}}", "servers.int4: is the same as servers.fp16"),
    ],
)  # fmt: skip
def test_a_wrong_server_is_told_with_its_path(given: str, problem: str, tmp_path: Path) -> None:
    found = problems_in(f"{MINIMAL}server: {{command: x}}\nservers: {given}\n", tmp_path)
    assert found[0].startswith(f"s.yaml: {problem}")
    assert len(found) == 1


def test_a_mistake_in_the_part_that_all_share_is_told_once_and_there(tmp_path: Path) -> None:
    text = f"{MINIMAL}server: {{keeep: true}}\nservers: {{a: {{server: {{command: x}}}}, "
    found = problems_in(text + "b: {server: {command: y}}}\n", tmp_path)
    assert found == ["s.yaml: server.keeep: unknown key; did you mean 'keep'?"]


def test_turns_and_completions_do_not_go_together_for_one_server_either(tmp_path: Path) -> None:
    text = MINIMAL.replace("output_tokens: 8", "output_tokens: 8, turns: 2")
    found = problems_in(f"{text}servers: {{a: {{target: {{endpoint: completions}}}}}}\n", tmp_path)
    assert found == ["s.yaml: servers.a.target.endpoint: turns need chat; completions have no"
                     " messages to repeat"]  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "of_fp16", "of_int4"),
    [
        ("servers.int4.server.variables.B=7", "2", "7"),
        ("server.variables.B=7", "7", "3"),
        ("server.variables={B: 8}", "8", "3"),
    ],
)
def test_set_reaches_one_server_or_all_that_say_nothing_else(
    setting: str, of_fp16: str, of_int4: str, tmp_path: Path
) -> None:
    made = variants(SERVERS, tmp_path, overrides=[setting])
    told = [one.server.variables["B"] for one in made.values() if one.server]
    assert told == [of_fp16, of_int4]


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("conditions.weights=x", "--set conditions.weights: each of servers has its own; take one"),
        ("servers.int3.target.model=x", "--set servers.int3.target.model: there is no server"
                                        " 'int3'; did you mean 'int4'?"),
        ("servers.int4.target.modle=x", "--set servers.int4.target.modle: unknown key"),
    ],
)  # fmt: skip
def test_a_set_that_would_do_nothing_is_refused(setting: str, problem: str, tmp_path: Path) -> None:
    (found,) = problems_in(SERVERS, tmp_path, overrides=[setting])
    assert found.startswith(problem)


def test_what_stands_where_is_found_again_after_laying() -> None:
    tree = {"server": {"a": 1}, "servers": {"x": {"server": {"b": 2}}}}
    assert laid(tree)["servers"]["x"]["server"] == {"a": 1, "b": 2}
    assert laid(laid(tree)) == laid(tree)
    assert written_at(tree, ("servers", "x", "server", "a")) == ("server", "a")
    assert written_at(tree, ("servers", "x", "server", "b")) == ("servers", "x", "server", "b")
    assert written_at(tree, ("servers", "x", "server")) == ("servers", "x", "server")


def test_a_stored_scenario_has_the_same_servers_and_says_only_what_differs(tmp_path: Path) -> None:
    text = SERVERS.replace("target: {model: small}", "target: {insecure: true}")
    first = load_text(text, tmp_path)
    kept = first.public_dict()
    assert kept["servers"]["fp16"] == {"conditions": {"weights": "fp16"}}
    assert kept["servers"]["int4"]["target"] == {"insecure": True}
    assert kept["servers"]["int4"]["server"]["variables"] == {"B": "3"}
    again = Scenario.model_validate(kept)
    for (name, one), (other, two) in zip(first.variants(), again.variants(), strict=True):
        assert (name, one.public_dict()) == (other, two.public_dict())


def test_h09_a_secret_of_one_server_stands_by_its_name(tmp_path: Path) -> None:
    text = MINIMAL + (
        'server: {command: x, variables: {HF_TOKEN: "${TOKEN}"}}\n'
        'servers: {a: {}, b: {server: {variables: {C: 1}}, target: {headers: {X-Key: "${KEY}"}}}}\n'
    )
    scenario = load_text(text, tmp_path, environ={"TOKEN": "hush-1", "KEY": "hush-2"})
    assert "hush" not in str(scenario.public_dict())
    b = scenario.variant("b").public_dict()
    assert "hush" not in str(b)
    assert b["server"]["variables"] == {"HF_TOKEN": "${TOKEN}", "C": "1"}
    assert b["target"]["headers"] == {"X-Key": "${KEY}"}


def test_all_servers_get_what_the_scenario_without_them_sends(tmp_path: Path) -> None:
    scenario = load_text(SERVERS, tmp_path)
    bare = make_scenario()
    assert plan_hash(scenario) == plan_hash(bare) == plan_hash(scenario.variant("fp16"))


def plan(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["plan", *arguments])
    assert result.exit_code == 0, result.output
    return " ".join(result.stdout.replace("#", "").split())


def test_the_plan_shows_each_server_and_how_it_is_started() -> None:
    told = plan(SIMULATED)
    for name in ("fp16", "int8", "int4"):
        assert f"{name}: http://127.0.0.1:8131/v1/chat/completions, quantisation {name}" in told
    assert "loadgen simulate --port 8131 --step-base 5ms --noise 0.1 --seed 3 --speed 1.8" in told
    assert "for each of 3 servers" in told
    assert "Nonce drawn anew for each run, and the same for all servers" in told


def test_the_plan_of_one_server_is_that_of_a_scenario_of_its_own() -> None:
    told = plan(SIMULATED, "--server", "int4")
    assert "name: quantization-simulated-int4" in told
    assert "Server, started first loadgen simulate --port 8131" in told
    assert plan(SIMULATED, "--hash") == plan(SIMULATED, "--server", "int4", "--hash")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["server", "status", ENGINES], "engines: has several servers; name one with --server:"
                                        " vllm, trtllm, sglang, llamacpp"),
        (["server", "up", ENGINES, "--server", "vlm"], "--server: there is no server 'vlm'; did"),
        (["plan", ENGINES, "--server", "x"], "--server: there is no server 'x'; there are vllm,"),
        (["run", str(ROOT / "scenarios" / "sweep.yaml"), "--server", "x"],
         "--server x: sweep has no servers to choose from"),
        (["run", ENGINES, "--set", "server.profile=vllm"],
         "--set server.profile: each of servers has its own; take one with --server NAME"),
    ],
)  # fmt: skip
def test_which_server_is_meant_has_to_be_said(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"loadgen: {said}")


def test_a_bare_loadgen_is_this_installation() -> None:
    found = program(("loadgen", "simulate", "--port", "1"))
    assert Path(found[0]).parent == Path(sys.executable).parent
    assert found[-3:] == ["simulate", "--port", "1"]
    assert program(("llama-server", "loadgen")) == ["llama-server", "loadgen"]
