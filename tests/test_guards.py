"""The rules of the house that no single room can keep: directions, purity, budgets, help."""

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from scenario_make import ROOT

from loadgen.cli.main import VERBS, main

PACKAGE = ROOT / "loadgen"
SOURCES = sorted(PACKAGE.rglob("*.py"))

BASE = ("record", "engines", "units", "errors")
TIER = {
    **dict.fromkeys(BASE, 0),
    "scenario": 1,
    "workload": 2,
    "client": 2,
    "analysis": 2,
    "report": 3,
    "server": 3,
    "run": 4,
    "notebook": 5,
    "cli": 5,
}
"""A room imports rooms of lower tiers only; rooms in one tier do not know each other."""

VOCABULARY = ("loadgen.run.events", "loadgen.workload.prompt")
"""Data alone, passed between rooms: what a run tells, which progress renders; what is sent."""

SIMULATOR_KNOWS = {"engines", "errors", "units", "simulator"}

PURE = (
    [path for room in ("analysis", "scenario") for path in sorted((PACKAGE / room).rglob("*.py"))]
    + [PACKAGE / "client" / name for name in ("sse.py", "wire.py", "answer.py", "outcome.py")]
    + [PACKAGE / f"{name}.py" for name in BASE]
    + sorted((PACKAGE / "workload").rglob("*.py"))
    + [PACKAGE / "simulator" / "engine.py", PACKAGE / "report" / "view.py"]
)
WORLD = {"asyncio", "socket", "ssl", "subprocess", "selectors", "threading", "multiprocessing",
         "time", "signal", "httpx", "http", "httptools", "uvloop", "concurrent"}  # fmt: skip
READS_FILES = {"scenario/load.py", "analysis/table.py", "workload/synthetic.py",
               "workload/rows.py", "workload/tokens.py"}  # fmt: skip


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "loadgen" and len(parts) > 1 else None


def calls_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_run_one_way(path: Path) -> None:
    room = name_of(path).split("/")[0].removesuffix(".py")
    known = {name for name in imports_of(path) if not name.startswith(VOCABULARY)}
    rooms = {found for name in known if (found := room_of(name)) in {*TIER, "simulator"}}
    if room == "simulator":
        assert rooms <= SIMULATOR_KNOWS
    elif room not in ("__init__", "cli"):
        allowed = {found for found in TIER if TIER[found] < TIER[room]}
        assert rooms - {room} <= (allowed if room not in BASE else set(BASE))


@pytest.mark.parametrize("path", PURE, ids=name_of)
def test_pure_modules_touch_no_world(path: Path) -> None:
    assert {name for name in imports_of(path) if name.split(".")[0] in WORLD} == set()
    clocks = (".now", ".today", ".utcnow", "perf_counter", "monotonic")
    assert [call for call in calls_of(path) if call.endswith(clocks)] == []


@pytest.mark.parametrize(
    "path", [path for path in PURE if name_of(path) not in READS_FILES], ids=name_of
)
def test_only_the_named_files_read_the_disk(path: Path) -> None:
    reads = ("open", ".read_text", ".read_bytes", ".iterdir", ".glob")
    assert [call for call in calls_of(path) if call.endswith(reads)] == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_prints_but_through_click_or_rich(path: Path) -> None:
    assert [call for call in calls_of(path) if call == "print"] == []


def test_the_guards_would_notice() -> None:
    assert room_of("loadgen.run.store") == "run"
    assert {"asyncio", "loadgen.run.store"} <= set(imports_of(PACKAGE / "run" / "level.py"))
    assert any(call.endswith(".read_text") for call in calls_of(PACKAGE / "scenario" / "load.py"))


def modules_after(*arguments: str) -> set[str]:
    code = (
        "import sys; before = set(sys.modules); from loadgen.cli.main import main\n"
        f"main({list(arguments)!r}, standalone_mode=False)\n"
        "sys.stderr.write('\\n'.join(sorted(set(sys.modules) - before)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("arguments", [("--help",), ("-h",)], ids=" ".join)
def test_help_imports_click_alone(arguments: tuple[str, ...]) -> None:
    tops = {name.split(".")[0] for name in modules_after(*arguments)}
    assert tops - set(sys.stdlib_module_names) == {"click", "loadgen"}
    assert "asyncio" not in tops


def test_help_of_a_verb_stays_cheap() -> None:
    tops = {name.split(".")[0] for name in modules_after("run", "--help")}
    assert tops - set(sys.stdlib_module_names) == {"click", "loadgen"}


def command_of(verb: str) -> click.Command:
    command = main.get_command(click.Context(main), verb)
    assert command is not None, f"no verb {verb}"
    return command


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_so_has_each_of_its_flags(verb: str) -> None:
    command = command_of(verb)
    assert command.help
    silent = [
        option.name
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden and not option.help
    ]
    assert silent == []


def readme_commands() -> list[list[str]]:
    """Return the arguments of each ``loadgen`` command in the README's shell blocks."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = []
    for block in re.findall(r"```(?:console|bash|sh|shell)\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            bare = line.strip().removeprefix("$ ").removeprefix(".venv/bin/")
            if bare.startswith("loadgen "):
                words = shlex.split(bare, comments=True)[1:]
                ends = [i for i, word in enumerate(words) if word in ("|", "&", ">", "2>", "&&")]
                found.append(words[: ends[0]] if ends else words)
    return found


def test_the_readme_shows_every_verb() -> None:
    shown = {words[0] for words in readme_commands() if words}
    assert set(VERBS) - shown == set()


def test_every_command_of_the_readme_parses() -> None:
    for words in readme_commands():
        if words[0].startswith("-"):
            continue  # loadgen --help
        flags = {word.split("=")[0] for word in words[1:] if re.match(r"--?[A-Za-z]", word)}
        command = command_of(words[0])
        if isinstance(command, click.Group):
            command = command.commands[words[1]]
        accepted = {name for option in command.params for name in option.opts}
        assert flags - accepted <= {"--help", "-h"}, f"loadgen {' '.join(words)}"
