"""Single values laid over a scenario's tree: flags and ``--set levels[0].concurrency=4``."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

EACH = "*"
Path = tuple[str | int, ...]

_SEGMENT = re.compile(r"([^.\[\]]+)|\[([0-9]+|\*)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value and where it goes.

    path: keys and list indexes; EACH stands for all entries of a list.
    origin: what the user typed ("--rounds"), named when the value is wrong.
    where: an entry of an EACH list takes the value only if it has this key.
    """

    path: Path
    value: Any
    origin: str
    where: str | None = None


def parse_path(text: str) -> Path:
    """Split ``levels[0].concurrency`` into keys and indexes; ValueError if it is no path."""
    path: list[str | int] = []
    position = 0
    for match in _SEGMENT.finditer(text):
        between = text[position : match.start()]
        if between != ("." if match[1] and path else ""):
            break
        path.append(match[1] or (EACH if match[2] == EACH else int(match[2])))
        position = match.end()
    if not path or position != len(text) or not isinstance(path[0], str):
        raise ValueError(f"'{text}' is not a path; write it like levels[0].concurrency")
    return tuple(path)


def write_path(path: Sequence[str | int]) -> str:
    """Join keys and indexes: ``levels[0].concurrency``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text


def place(tree: dict[str, Any], setting: Setting) -> list[Path]:
    """Put one value into the tree, making mappings on the way; return the paths it went to.

    Raises ValueError where a list or a mapping stands in the way.
    """
    paths = _expand(tree, setting)
    for path in paths:
        _put(tree, path, setting.value)
    return paths


def _expand(tree: dict[str, Any], setting: Setting) -> list[Path]:
    if EACH not in setting.path:
        return [setting.path]
    at = setting.path.index(EACH)
    entries = _at(tree, setting.path[:at])
    if not isinstance(entries, list):
        return []  # what is missing or wrong there is told when the whole is checked
    chosen = [i for i, entry in enumerate(entries) if _takes(entry, setting.where)]
    everywhere = chosen or list(range(len(entries)))  # the check then says why it will not do
    return [(*setting.path[:at], i, *setting.path[at + 1 :]) for i in everywhere]


def _takes(entry: object, where: str | None) -> bool:
    return where is None or (isinstance(entry, dict) and where in entry)


def _at(tree: object, path: Path) -> object:
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _put(tree: Any, path: Path, value: object) -> None:  # noqa: ANN401 - a tree of any shape
    for depth, key in enumerate(path):
        here = write_path(path[:depth]) or "the scenario"
        if isinstance(key, int):
            if not isinstance(tree, list):
                raise ValueError(f"{here} is not a list")
            if key >= len(tree):
                entries = "1 entry" if len(tree) == 1 else f"{len(tree)} entries"
                raise ValueError(f"{here} has {entries}, counted from [0]")
        elif not isinstance(tree, dict):
            raise ValueError(f"{here} is {_kind(tree)}; set it as a whole: {here}=…")
        if depth == len(path) - 1:
            tree[key] = value
        elif isinstance(key, int) or tree.get(key) is not None:
            tree = tree[key]
        else:
            tree[key] = {}
            tree = tree[key]


def _kind(value: object) -> str:
    return "a list" if isinstance(value, list) else "a single value"
