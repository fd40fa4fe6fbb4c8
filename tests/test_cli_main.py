import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from scenario_make import ROOT

from loadgen.cli.main import VERBS, main
from loadgen.cli.outlets import BROKEN_PIPE

LOADGEN = (sys.executable, "-m", "loadgen.cli.main")


def test_help_lists_every_verb_and_says_where_the_key_goes() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(f"  {verb} " in result.stdout for verb in VERBS)
    assert "LOADGEN_API_KEY" in result.stdout
    assert "--api-key" not in result.stdout


@pytest.mark.parametrize("group", [[], ["server"]], ids=["loadgen", "server"])
def test_a_bare_group_prints_its_help(group: list[str]) -> None:
    bare, asked = (CliRunner().invoke(main, [*group, *flag]) for flag in ([], ["--help"]))
    assert (bare.exit_code, bare.stderr) == (2, "")
    assert bare.stdout == asked.stdout
    assert bare.stdout.count("\n") > 10


def test_the_version_is_told() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert (result.exit_code, result.stdout) == (0, "loadgen, version 0.1.0\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["plna"], "no verb 'plna'; did you mean 'plan'?; see loadgen --help"),
        (["zzz"], "no verb 'zzz'; verbs are run, plan, "),
        (["plan", "--modle", "x"], "plan: no option --modle; did you mean --model"),
        (["run", "--urll", "x"], "run: no option --urll; did you mean --url or --turns?"),
        (["plan", "--toke", "x"], "plan: no option --toke; "),
        (["plan", "--rounds", "x"], "plan: Invalid value for '--rounds': 'x' is not a valid"),
        (["plan"], "nothing to measure: name a scenario file, or a server like --url http://local"),
        (["run"], "nothing to measure: name a scenario file, or a server like --url http://local"),
        (["plan", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["plan", "--url", "h", "-c", "1", "--rate", "2"], "-c and --rate: give one; a scenario"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_gets_one_line_and_exit_code_2(arguments: list[str], line: str) -> None:
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"loadgen: {line}")
    assert "--token" not in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "flag",
    [["--api-key", "sk-test-0000"], ["--api-key=sk-test-0000"], ["-k", "sk-test-0000"],
     ["-ksk-test-0000"], ["--api-key"], ["--apikey", "sk-test-0000"]],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("verb", [["run", "--url", "h"], ["plan"], []], ids=["run", "plan", "none"])
def test_h01_a_key_as_a_flag_is_refused_and_never_repeated(
    verb: list[str], flag: list[str]
) -> None:
    result = CliRunner().invoke(main, [*verb, *flag])
    assert result.exit_code == 2
    assert "set LOADGEN_API_KEY" in result.stderr
    assert "sk-test" not in result.output
    assert result.stderr.count("\n") == 1


def test_all_problems_of_one_command_line_are_told_at_once() -> None:
    flags = ["--url", "h", "-c", "1,x", "--rounds", "0", "--header", "hush", "--limit", "idel=3"]
    result = CliRunner().invoke(main, ["plan", *flags])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "loadgen: --header: has no 'Name: value'; write it like 'X-Team: ${TOKEN}'",
        "loadgen: --url: has no scheme; did you mean 'http://h'?",
        "loadgen: -c: levels[1].concurrency: must be a whole number",
        "loadgen: --rounds: must be 1 or more",
        "loadgen: --limit idel: unknown key; did you mean 'idle'?",
    ]


def test_a_reader_that_left_is_no_reason_for_words() -> None:
    command = [*LOADGEN, "plan", "scenarios/sweep.yaml"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == BROKEN_PIPE


def test_exceptions_pass_through_for_a_caller_that_asks() -> None:
    with pytest.raises(click.UsageError, match="no verb"):
        main.main(["plna"], standalone_mode=False)
