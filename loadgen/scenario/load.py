"""Read a scenario file, lay flags over it, fill in the environment, check it: all problems at once.

The one file of this room that reads the disk.
"""

import difflib
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from loadgen.errors import ScenarioError
from loadgen.scenario import settings as paths
from loadgen.scenario.model import Scenario
from loadgen.scenario.problems import Problem, misnamed_keys, named_files, problems_of
from loadgen.scenario.servers import has_no_effect, laid, unknown_server, written_at
from loadgen.scenario.settings import Setting, parse_path, place, write_path

FLAGS_ONLY = {
    "name": "quick",
    "prompts": {"input_tokens": 256, "output_tokens": 128},
    "levels": [{"concurrency": 1}, {"concurrency": 8}, {"concurrency": 16}, {"concurrency": 32}],
}
"""What a run without a scenario file starts from."""

_REFERENCE = re.compile(r"\$(\$)?\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DEEPEST = 40
_OF_EACH = (
    "each of servers has its own; take one with --server NAME, or set servers.NAME.… in its place"
)


def load_scenario(
    path: Path,
    *,
    overrides: Sequence[str] = (),
    settings: Sequence[Setting | Problem] = (),
    environ: Mapping[str, str],
) -> Scenario:
    """Read a scenario file; ScenarioError lists all that is wrong, a line each.

    settings (flags) are laid over the file, overrides (``key=value``) over both.
    """
    raw = _read(path)
    raw.setdefault("name", re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "scenario")
    return _resolve(raw, path, [*settings, *_settings_of(overrides)], environ=environ)


def scenario_from_flags(
    settings: Sequence[Setting | Problem],
    *,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str],
) -> Scenario:
    """Make a scenario of flags alone, over FLAGS_ONLY; files are sought where one stands."""
    raw = _copy(FLAGS_ONLY)
    return _resolve(raw, None, [*settings, *_settings_of(overrides)], environ=environ)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ScenarioError([f"{path}: no such file{_similar(path)}"]) from None
    except IsADirectoryError:
        raise ScenarioError([f"{path}: is a directory; name a YAML file"]) from None
    except UnicodeDecodeError:
        raise ScenarioError([f"{path}: is not a text file in UTF-8"]) from None
    except OSError as error:
        raise ScenarioError([f"{path}: cannot be read: {error.strerror}"]) from None
    try:
        tree = _parse_yaml(text)
    except ValueError as error:
        raise ScenarioError([f"{path}:{error}"]) from None
    if tree is None:
        raise ScenarioError([f"{path}: is empty; start from one in scenarios/"])
    if not isinstance(tree, dict):
        raise ScenarioError([f"{path}: is not a mapping; start it with 'name: my-scenario'"])
    if too_deep := _depth_problem(tree):
        raise ScenarioError([f"{path}: {too_deep}"])
    return tree


def _similar(path: Path) -> str:
    """Suggest a file beside the one that is missing."""
    if not path.parent.is_dir():
        return ""
    kinds = (".yaml", ".yml") if path.suffix in (".yaml", ".yml") else (path.suffix,)
    names = [file.name for file in path.parent.iterdir() if file.suffix in kinds]
    close = difflib.get_close_matches(path.name, names, n=1)
    return f"; did you mean '{path.with_name(close[0])}'?" if close else ""


def _parse_yaml(text: str) -> Any:  # noqa: ANN401 - whatever the file holds
    """Parse YAML 1.2; ValueError starts with the line number."""
    yaml = YAML(typ="safe", pure=True)  # the C parser reads YAML 1.1, where `no` is false
    try:
        return yaml.load(io.StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = (error.problem or error.context or "is not valid YAML").splitlines()[0]
        if mark is None:
            raise ValueError(f" not valid YAML: {problem}") from None
        line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
        hint = '; put a text with ${NAME} in quotes: "${NAME}"' if "${" in line else ""
        problem = f"not valid YAML: {_duplicate(problem)}{hint}"
        raise ValueError(f"{mark.line + 1}: {problem}") from None
    except (YAMLError, ValueError, RecursionError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ValueError(f" not valid YAML: {first}") from None


def _duplicate(problem: str) -> str:
    """Shorten the parser's words on a key given twice; its value may be private."""
    match = re.match(r'found duplicate key "([^"]*)"', problem)
    return f"'{match[1]}' is given twice; keep one" if match else problem


def _depth_problem(tree: object, depth: int = 0) -> str | None:
    """Refuse what refers to itself (an anchor inside itself) or is absurdly deep."""
    if depth > _DEEPEST:
        return f"is nested more than {_DEEPEST} deep, or refers to itself"
    if not isinstance(tree, dict | list):
        return None
    inner = tree.values() if isinstance(tree, dict) else tree
    return next((found for item in inner if (found := _depth_problem(item, depth + 1))), None)


def _settings_of(overrides: Sequence[str]) -> list[Setting | Problem]:
    """Read ``key=value`` texts; what cannot be read becomes a problem."""
    found: list[Setting | Problem] = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            found.append(((), f"--set {key}: has no '='; write it like rounds=3"))
            continue
        try:
            path = parse_path(key.strip())
            found.append(Setting(path=path, value=_parse_yaml(value), origin="--set"))
        except ValueError as error:
            found.append(((), f"--set {key}: {str(error).removeprefix('1: ').strip()}"))
    return found


def _resolve(
    raw: dict[str, Any],
    path: Path | None,
    laid_over: Sequence[Setting | Problem],
    *,
    environ: Mapping[str, str],
) -> Scenario:
    raw = _copy(raw)  # anchors share what flags must set apart
    origins: dict[paths.Path, str] = {}
    problems: list[Problem] = []
    servers = list(raw["servers"]) if isinstance(raw.get("servers"), dict) else []
    for item in laid_over:
        if not isinstance(item, Setting):
            problems.append(item)
            continue
        if servers and (unknown := unknown_server(servers, item.path)):
            problems.append(((), f"{item.origin} {write_path(item.path)}: {unknown}"))
            continue
        try:
            origins.update(dict.fromkeys(place(raw, item), item.origin))
        except ValueError as error:
            problems.append(((), f"{item.origin} {write_path(item.path)}: {error}"))
    problems += [(place, _OF_EACH) for place in origins if has_no_effect(raw, place)]
    filled = _Filled(environ)
    values = filled.fill(laid(raw), ())
    directory = Path() if path is None else path.parent
    problems += [*filled.problems, *misnamed_keys(values), *_missing_files(values, directory)]
    try:
        scenario = Scenario.model_validate(values)
    except ValidationError as error:
        already = {place for place, _ in filled.problems}
        problems += [problem for problem in problems_of(error, values) if problem[0] not in already]
    if problems:
        source = "flags" if path is None else str(path)
        told = [(written_at(raw, place), text) for place, text in problems]
        lines = [_line(problem, source, origins) for problem in told]
        raise ScenarioError(list(dict.fromkeys(filled.hide(line) for line in lines)))
    return scenario.located(directory).referring(_by_whole_span(filled.references, raw))


def _missing_files(values: Mapping[str, Any], directory: Path) -> list[Problem]:
    """Find the files that a scenario names and that are not there."""
    return [
        (place, f"'{name}': no such file{_similar(directory / name)}")
        for place, name in named_files(values)
        if not (directory / name).exists()
    ]


class _Filled:
    """Replaces ``${NAME}`` in every text of a tree, noting where and what is not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.references: dict[paths.Path, str] = {}
        self.problems: list[Problem] = []
        self._used: dict[str, str] = {}

    def fill(self, value: Any, path: paths.Path) -> Any:  # noqa: ANN401 - a tree of any shape
        """Return the tree with its references replaced."""
        if isinstance(value, dict):
            return {key: self.fill(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.fill(item, (*path, index)) for index, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        self.references[path] = value
        return _REFERENCE.sub(lambda match: self._value(match, path), value)

    def _value(self, match: re.Match[str], path: paths.Path) -> str:
        escaped, name = match.groups()
        if escaped:  # $${NAME} is the text ${NAME}
            return match[0][1:]
        if not _NAME.fullmatch(name):
            self.problems.append((path, "'${…}' holds no plain name; write it like ${TEAM_TOKEN}"))
            return ""
        if name not in self.environ:
            hint = f"run: export {name}=…"
            self.problems.append((path, f"${{{name}}} is not set in the environment; {hint}"))
            return ""
        self._used[self.environ[name]] = f"${{{name}}}"
        return self.environ[name]

    def hide(self, line: str) -> str:
        """Write what came from the environment by its name."""
        for value in sorted(self._used, key=len, reverse=True):
            if len(value) >= 4:  # shorter is no secret, and stands in many words
                line = line.replace(value, self._used[value])
        return line


def _line(problem: Problem, source: str, origins: Mapping[paths.Path, str]) -> str:
    path, text = problem
    if not path:
        return text if text.startswith("--") else f"{source}: {text}"
    where = write_path(path)
    for end in range(len(path), 0, -1):
        if origin := origins.get(path[:end]):
            if origin == "--set":
                return f"--set {where}: {text}"
            return f"{origin}: {where}: {text}" if end < len(path) else f"{origin}: {text}"
    return f"{source}: {where}: {text}"


def _by_whole_span(
    references: Mapping[paths.Path, str], raw: Mapping[str, Any]
) -> dict[paths.Path, Any]:
    """Name a reference inside a list of a time and a count by the whole list."""
    whole: dict[paths.Path, Any] = {}
    for path, text in references.items():
        if path[0] == "each_level" and len(path) > 2:
            whole[path[:2]] = raw["each_level"][path[1]]
        else:
            whole[path] = text
    return whole


def _copy(tree: Any) -> Any:  # noqa: ANN401 - a tree of any shape
    if isinstance(tree, dict):
        return {key: _copy(item) for key, item in tree.items()}
    return [_copy(item) for item in tree] if isinstance(tree, list) else tree
