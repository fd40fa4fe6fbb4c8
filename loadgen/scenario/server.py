"""The server that a scenario starts: a service of a compose file, or a command of this machine."""

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from loadgen.scenario.fields import Part, Seconds, Switch
from loadgen.scenario.prompts import ConflictsError, Found

COMPOSE_FILE = "docker-compose.yml"
READY_WITHIN_S = 1800.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_PROJECT = re.compile(r"[a-z0-9][a-z0-9_-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _words(value: object) -> object:
    """Split a command as a shell would; a list is taken word by word."""
    if isinstance(value, str):
        try:
            value = shlex.split(value)
        except ValueError as error:
            raise ValueError(f"cannot be split into words: {error}") from None
    if not isinstance(value, list | tuple) or not value:
        raise ValueError("write it like 'llama-server -m model.gguf --port 8080', or as a list")
    return [str(word) if isinstance(word, int | float) else word for word in value]


def _files(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _variables(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    plain: dict[object, object] = {}
    for name, text in value.items():
        if isinstance(text, bool) or not isinstance(text, str | int | float):
            raise ValueError(f"{name} must be text or a number; put it in quotes")
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not a variable's name; write it like MODEL")
        plain[name] = str(text)
    return plain


class Server(Part):
    """How the system under test is started, how long that may take, and whether it stays.

    profile: a service of the compose files, which is its own profile there.
    files: compose files, later ones laid over earlier ones; relative to the scenario's directory.
    command: in place of profile and files, a program of this machine.
    variables: set for the compose files, or in the command's environment.
    project: names what is started, so that nothing else is touched. [loadgen-<profile>]
    ready_within_s: a first start fetches gigabytes; after so long it is given up.
    keep: leave the server running, whatever comes.
    """

    profile: str | None = None
    command: Annotated[tuple[str, ...], BeforeValidator(_words)] | None = None
    files: Annotated[tuple[str, ...], BeforeValidator(_files)] = Field(
        default=(), validation_alias="file"
    )
    variables: Annotated[dict[str, str], BeforeValidator(_variables)] = Field(default_factory=dict)
    project: str | None = None
    ready_within_s: Seconds = Field(default=READY_WITHIN_S, validation_alias="ready_within")
    keep: Switch = False

    @field_validator("profile")
    @classmethod
    def _usable_profile(cls, value: str | None) -> str | None:
        if value is not None and not _NAME.fullmatch(value):
            raise ValueError(f"'{value}' is not a profile; write it like vllm")
        return value

    @field_validator("project")
    @classmethod
    def _usable_project(cls, value: str | None) -> str | None:
        if value is not None and not _PROJECT.fullmatch(value):
            raise ValueError("takes small letters, digits, dashes; write it like loadgen-vllm")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        given = {"profile": self.profile, "command": self.command, "file": self.files or None}
        if found := list(server_conflicts(given)):
            raise ConflictsError(found)
        return self

    @property
    def project_name(self) -> str:
        """The name under which it is started, found again and taken down."""
        if self.project:
            return self.project
        what = self.profile or (self.command or ("server",))[0].rpartition("/")[2]
        return f"loadgen-{re.sub(r'[^a-z0-9_-]+', '-', what.lower()).strip('-') or 'server'}"

    @property
    def compose_files(self) -> tuple[str, ...]:
        """The compose files as named; the usual one where none is."""
        return self.files or (COMPOSE_FILE,)


def server_conflicts(given: Mapping[str, Any]) -> Iterator[Found]:
    """Say what does not go together; given: profile, command and file, None where not given."""
    if given.get("profile") is not None and given.get("command") is not None:
        yield "", "both profile and command are given; keep one"
    elif given.get("profile") is None and given.get("command") is None:
        yield "", "neither profile nor command is given; add one, like profile: vllm"
    elif given.get("command") is not None and given.get("file") is not None:
        yield "", "file goes with a profile, not with a command; leave it out"


def variables_for(server: Server, *, port: int, model: str | None) -> dict[str, str]:
    """Return the variables to start with: those given, over what the target says already.

    The target's port is where a compose file has to publish, and its model what has to be served;
    a command says both by itself.
    """
    if server.command is not None:
        return dict(server.variables)
    implied = {"PORT": str(port), **({"MODEL": model} if model else {})}
    return {**implied, **server.variables}
