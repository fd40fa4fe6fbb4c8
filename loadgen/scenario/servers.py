"""Several servers measured alike: what each of ``servers`` says is laid over the scenario's own.

Here a scenario is a tree as its file has it; ``Scenario.variants`` yields what comes of it.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadgen.scenario.prompts import Found
from loadgen.scenario.settings import Path

LAID = ("server", "target", "conditions", "request")
"""The parts that a server may have of its own."""

_KEY = "servers"
_STARTS = {"command": ("profile", "file"), "profile": ("command",)}
"""A way to start a server, and what it takes the place of."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


def laid(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return a scenario's tree in which each of its servers has its parts whole.

    A mapping is laid over the scenario's own key by key; anything else takes its place. The own
    ``server`` is left out where each has one: by itself it need not be whole. Laid twice is laid
    once.
    """
    servers = tree.get(_KEY)
    if not isinstance(servers, Mapping):
        return dict(tree)
    each = {name: _over(tree, given) for name, given in servers.items()}
    made = {**tree, _KEY: each}
    if each and all(isinstance(one, Mapping) and "server" in one for one in each.values()):
        own = made.pop("server", None)
        if own is not None and not isinstance(own, Mapping):
            made["server"] = own  # a mistake, to be told of
    return made


def _over(tree: Mapping[str, Any], given: object) -> object:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return given
    return {
        key: _merged(_own(tree, key, value), value) if key in LAID else value
        for key, value in given.items()
    }


def _own(tree: Mapping[str, Any], key: str, given: object) -> object:
    own = tree.get(key)
    if key != "server" or not isinstance(own, Mapping) or not isinstance(given, Mapping):
        return own
    replaced = {name for way, others in _STARTS.items() if way in given for name in others}
    return {name: value for name, value in own.items() if name not in replaced}


def _merged(own: object, given: object) -> object:
    if not isinstance(own, Mapping) or not isinstance(given, Mapping):
        return given
    return {**own, **{key: _merged(own.get(key), value) for key, value in given.items()}}


def written_at(tree: Mapping[str, Any], path: Path) -> Path:
    """Return where the file says what stands at a path after laying: there, or in its own part."""
    inside = path[2:]
    if path[:1] != (_KEY,) or len(inside) < 2 or _has(tree, path) or not _has(tree, inside):
        return path
    return inside


def has_no_effect(tree: Mapping[str, Any], path: Path) -> bool:
    """Say whether each of the servers has a value of its own for what stands at a path."""
    servers = tree.get(_KEY)
    if not servers or not isinstance(servers, Mapping) or path[:1] == (_KEY,):
        return False
    return all(_has(given, path) for given in servers.values())


def _has(tree: object, path: Path) -> bool:
    for key in path:
        if isinstance(tree, list) and isinstance(key, int):
            tree = dict(enumerate(tree))
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True


def unknown_server(names: Sequence[str], path: Path) -> str | None:
    """Say that a path leads into a server that is not there; None where it does not."""
    return no_such(names, str(path[1])) if len(path) > 1 and path[0] == _KEY else None


def no_such(names: Sequence[str], name: str) -> str | None:
    """Say that there is no server of a name, and which there are; None where there is one."""
    if name in names:
        return None
    close = difflib.get_close_matches(name, names, n=1)
    known = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(names)}"
    return f"there is no server '{name}'; {known}"


def name_problems(names: Mapping[str, object]) -> Iterator[str]:
    """Say what is wrong with the names of servers: each is a directory, and part of a path."""
    if not names:
        yield "has none; add one, like fp16: {conditions: {quantisation: fp16}}"
    for name in names:
        if not _NAME.fullmatch(name):
            slug = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-_")[:40] or "server"
            yield f"'{name}' names a directory: letters, digits, - and _; did you mean '{slug}'?"


def twins(servers: Mapping[str, Mapping[str, Any]]) -> Iterator[Found]:
    """Say which servers, given by their parts, are one: conditions alone set none apart."""
    seen: list[tuple[str, list[Any]]] = []
    for name, parts in servers.items():
        what = [parts[part] for part in ("server", "target", "request")]
        same = next((earlier for earlier, other in seen if other == what), None)
        if same is not None:
            yield (
                f"{_KEY}.{name}",
                f"is the same as {_KEY}.{same}; give it a server, target or request of its own",
            )
        seen.append((name, what))


def project_of(name: str) -> str:
    """Return under which name the command of one of several servers is started and found again."""
    return f"loadgen-{name.lower()}"


def differences(own: object, made: object) -> Any:  # noqa: ANN401 - a part of any shape
    """Return what has to be laid over ``own`` to get ``made``; what is gone is null."""
    if not isinstance(own, Mapping) or not isinstance(made, Mapping):
        return made
    changed = {
        key: differences(own.get(key), value)
        for key, value in made.items()
        if key not in own or own[key] != value
    }
    return {**changed, **{key: None for key in own if key not in made}}
