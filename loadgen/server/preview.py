"""What would be started, said without Docker: the command, and the service as its file has it."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadgen.scenario.model import Scenario
from loadgen.scenario.private import is_secret_name, mask, mask_command, secrets_in
from loadgen.scenario.server import Server, variables_for
from loadgen.server.compose import UP, compose_command, compose_files
from loadgen.units import format_duration

_VARIABLE = re.compile(r"\$(?:\$|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(:?[-+?])?)")


def preview(scenario: Scenario, server: Server, environ: Mapping[str, str]) -> list[str]:
    """Return lines that say what a run starts first, and ends last; secrets stand by name."""
    secrets = secrets_in({**environ, **server.variables})
    wait = f"until a token comes, for {format_duration(server.ready_within_s)} at most"
    after = "left running afterwards" if server.keep else "taken down afterwards"
    if server.command is not None:
        words = mask_command(server.command, secrets)
        return [shlex.join(words), *_variable_lines(server.variables, secrets), f"{wait}; {after}"]
    port = scenario.target.port
    variables = variables_for(server, port=port, model=scenario.target.model)
    files = compose_files(scenario, server)
    up = compose_command(server.project_name, files, server.profile or "", UP)
    lines = [shlex.join(["docker", *up, server.profile or ""])]
    lines += _variable_lines(variables, secrets)
    lines += [mask(line, secrets) for line in _service_lines(server, files, environ, variables)]
    return [*lines, f"{wait}; {after}"]


def _variable_lines(variables: Mapping[str, str], secrets: Sequence[str]) -> list[str]:
    told = [
        f"{name}=${{{name}}}" if is_secret_name(name) else f"{name}={mask(text, secrets)}"
        for name, text in variables.items()
    ]
    return [f"with {' '.join(told)}"] if told else []


def _service_lines(
    server: Server,
    files: Sequence[Path],
    environ: Mapping[str, str],
    variables: Mapping[str, str],
) -> list[str]:
    rendered = rendered_service(server, files, environ={**environ, **variables})
    return [f"{key} {rendered[key]}" for key in ("image", "command") if key in rendered]


def rendered_service(
    server: Server, files: Sequence[Path], *, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return image, entrypoint and command of the service, and its environment as NAME=value.

    Those that its file has, variables filled in; later files go over earlier ones.
    """
    service: dict[str, Any] = {}
    for file in files:
        service.update(_service_in(file, server.profile or ""))
    # a secret is never looked up: its place keeps its name
    public = {name: text for name, text in environ.items() if not is_secret_name(name)}
    rendered = {}
    for key in ("image", "entrypoint", "command", "environment"):
        value = service.get(key)
        if isinstance(value, Mapping):
            value = [f"{name}={text}" for name, text in value.items()]
        if isinstance(value, list):
            value = shlex.join(str(word) for word in value)
        if isinstance(value, str):
            rendered[key] = " ".join(interpolate(value, public).split())
    return rendered


def _service_in(file: Path, name: str) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        tree = YAML(typ="rt", pure=True).load(file.read_text(encoding="utf-8"))
        service = tree["services"].get(name)
    except (OSError, UnicodeDecodeError, YAMLError, KeyError, TypeError, AttributeError):
        return {}  # Compose itself will say what is wrong with it
    return dict(service) if isinstance(service, Mapping) else {}


def interpolate(text: str, variables: Mapping[str, str]) -> str:
    """Fill in ``$NAME``, ``${NAME}``, ``${NAME:-default}`` and ``${NAME:+instead}`` like Compose.

    What is not set and has no default keeps its name.
    """
    made, position = "", 0
    while found := _VARIABLE.search(text, position):
        made += text[position : found.start()]
        bare, name, operator = found.groups()
        position = found.end()
        if found[0] == "$$":
            made += "$"
        elif bare is not None:
            made += variables.get(bare, f"${bare}")
        else:
            end = _closing(text, position)
            made += _chosen(name, operator, text[position:end], variables)
            position = end + 1
    return made + text[position:]


def _closing(text: str, position: int) -> int:
    """Return where the brace that is open closes; the end of the text where it does not."""
    depth = 1
    for place in range(position, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if depth == 0:
            return place
    return len(text)


def _chosen(name: str, operator: str | None, inner: str, variables: Mapping[str, str]) -> str:
    value = variables.get(name)
    given = value is not None and (value != "" or not (operator or "").startswith(":"))
    kind = (operator or "?")[-1]
    if kind == "+":
        return interpolate(inner, variables) if given else ""
    if given:
        return value or ""
    return interpolate(inner, variables) if kind == "-" else f"${{{name}}}"
