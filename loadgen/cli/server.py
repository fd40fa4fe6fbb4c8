"""``loadgen server``: the system under test, started, waited for, shown and taken down."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loadgen.cli.options import refuse_key
from loadgen.errors import EnvironmentFault, ServerNotReady, UsageError

if TYPE_CHECKING:
    from loadgen.scenario.model import Scenario
    from loadgen.scenario.settings import Setting
    from loadgen.server.probe import Prober
    from loadgen.server.readiness import Patience
    from loadgen.server.system import Held

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

DEFAULT_URL = "http://127.0.0.1:8000"
_PLACES = {
    "url": ("target", "url"),
    "model": ("target", "model"),
    "engine": ("target", "engine"),
    "profile": ("server", "profile"),
    "files": ("server", "file"),
    "command": ("server", "command"),
    "project": ("server", "project"),
}
"""Flag → where its value goes in the scenario."""

_ARGUMENTS: list[Callable[[Any], Any]] = [
    click.argument(
        "scenario", metavar="[SCENARIO]", required=False, type=click.Path(path_type=Path)
    ),
    click.option("--profile", metavar="NAME", help="A service of the compose file: vllm, …"),
    click.option(
        "--file",
        "files",
        multiple=True,
        type=click.Path(path_type=Path),
        help="A compose file, laid over the one before; repeatable. [docker-compose.yml]",
    ),
    click.option("--command", metavar="TEXT", help="A program of this machine, in their place."),
    click.option("--project", metavar="NAME", help="Its project. [loadgen-<profile>]"),
    click.option("--url", help=f"Where it answers. [{DEFAULT_URL}]"),
    click.option("--model", help="The model it has to serve."),
    click.option("--engine", metavar="NAME", help="vllm, sglang, … [auto]"),
    click.option("--server", "chosen", metavar="NAME", help="One of the scenario's servers."),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any value of the scenario: server.variables.CONTEXT=4096; repeatable.",
    ),
]
_WITHIN = click.option("--within", metavar="T", help="Give up after so long. [30m]")


def _arguments(command: Decorated) -> Decorated:
    for option in reversed(_ARGUMENTS):
        command = option(command)
    return refuse_key(command)


@click.group("server")
def command() -> None:
    """Start the system under test, wait until it is ready, and take it down.

    Takes a scenario with server:, or --profile alone.
    """


@command.command("up")
@_arguments
@_WITHIN
@click.option("--keep", is_flag=True, help="Leave a server that fails as it is, to look into.")
def up(keep: bool, **options: Any) -> None:  # noqa: ANN401 - click's options, by name
    """Start it and wait until a token comes; what fails is taken down again."""
    from loadgen.server.start import bring_up, server_of, to_the_end

    scenario = _scenario(options)
    server = server_of(scenario)
    with told_log():
        to_the_end(
            lambda: bring_up(
                server,
                _prober(scenario),
                patience=_patience(scenario, options["within"]),
                say=say,
                keep=keep or bool(scenario.server and scenario.server.keep),
            ),
            say=say,
        )


@command.command("wait")
@_arguments
@_WITHIN
def wait(**options: Any) -> None:  # noqa: ANN401 - click's options, by name
    """Wait until a token comes; starts nothing, ends nothing."""
    from loadgen.server.readiness import wait_until_ready
    from loadgen.server.start import server_of, to_the_end

    scenario = _scenario(options)
    server = server_of(scenario) if scenario.server is not None else None
    patience = _patience(scenario, options["within"])

    async def ready() -> float:
        prober = _prober(scenario)
        try:
            return await wait_until_ready(prober, server, patience=patience, say=say)
        finally:
            await prober.aclose()

    with told_log():
        say(f"ready after {to_the_end(ready, say=say):.1f} s: a token came")


@command.command("status")
@_arguments
def status(**options: Any) -> None:  # noqa: ANN401 - click's options, by name
    """Say how it is; exit 3 where it does not run."""
    from loadgen.server.readiness import ending_of
    from loadgen.server.start import asked, listens, server_of, to_the_end

    scenario = _scenario(options)
    server = server_of(scenario)
    state = to_the_end(lambda: asked(server, server.state), say=say)
    port = scenario.target.port
    parts = [state.status, *([state.health] if state.health else [])]
    parts.append(f"port {port} {'accepts' if listens(scenario) else 'does not accept'} connections")
    click.echo(f"{server.name}: {', '.join(parts)}")
    if state.status == "missing":
        raise EnvironmentFault(f"{server.name}: does not run; start it: loadgen server up")
    if ending := ending_of(state):
        raise EnvironmentFault(f"{server.name}: {ending}; see: loadgen server logs")


@command.command("logs")
@_arguments
@click.option(
    "--tail", type=click.IntRange(1), default=80, show_default=True, help="So many lines."
)
def logs(tail: int, **options: Any) -> None:  # noqa: ANN401 - click's options, by name
    """Print the end of its log, without secrets."""
    from loadgen.server.start import asked, server_of, to_the_end

    server = server_of(_scenario(options))
    for line in to_the_end(lambda: asked(server, lambda: server.tail(tail)), say=say):
        click.echo(line)


@command.command("down")
@_arguments
@click.option("--volumes", is_flag=True, help="Its volumes as well: the model cache is one.")
def down(volumes: bool, **options: Any) -> None:  # noqa: ANN401 - click's options, by name
    """End it, and remove its containers; nothing else is touched."""
    from loadgen.server.start import asked, server_of, to_the_end

    server = server_of(_scenario(options))
    to_the_end(
        lambda: asked(server, lambda: server.down(volumes=volumes)), say=say, cancellable=False
    )
    say(f"{server.name}: down")


def say(line: str) -> None:
    """Tell progress: to stderr, so that stdout belongs to results."""
    click.echo(line, err=True)


@contextmanager
def server_for(scenario: "Scenario") -> Iterator["Held"]:
    """Hold the server of a scenario up for a ``with`` block, where it names one."""
    from loadgen.server.system import Held

    if scenario.server is None:
        yield Held()
        return
    from loadgen.server.start import bring_up, running, server_of

    spec, server = scenario.server, server_of(scenario)

    async def start() -> float:
        return await bring_up(
            server,
            _prober(scenario),
            patience=_patience(scenario),
            say=say,
            keep=spec.keep,
        )

    with told_log(), running(server, up=start, keep=spec.keep, say=say) as held:
        yield held


def server_option(command: Decorated) -> Decorated:
    """Add ``--server``."""
    return click.option(
        "--server", "chosen", metavar="NAME", help="Of several servers this one alone."
    )(command)


def one_server(scenario: "Scenario", name: str | None) -> "Scenario":
    """Return the scenario of one of several servers; the scenario itself where none is named."""
    if name is None:
        return scenario
    from loadgen.scenario.servers import no_such

    if not scenario.servers:
        raise UsageError(f"--server {name}: {scenario.name} has no servers to choose from")
    if problem := no_such(list(scenario.servers), name):
        raise UsageError(f"--server: {problem}")
    return scenario.variant(name)


@contextmanager
def told_log() -> Iterator[None]:
    """Print a server's last lines before the line that says what became of it."""
    try:
        yield
    except ServerNotReady as failed:
        for line in failed.log:
            say(f"  | {line}")
        raise


def _scenario(options: dict[str, Any]) -> "Scenario":
    from loadgen.scenario.load import load_scenario, scenario_from_flags

    file = options["scenario"]
    if file is None and not any(options.get(name) for name in ("profile", "command", "url")):
        raise UsageError("no server: name a scenario file, a --profile like vllm, or a --url")
    settings, overrides = _settings(options), options["overrides"]
    if file is None:
        found = scenario_from_flags(settings, overrides=overrides, environ=os.environ)
    else:
        found = load_scenario(file, settings=settings, overrides=overrides, environ=os.environ)
    names, chosen = list(found.servers), options["chosen"]
    if chosen is None and len(names) > 1:
        raise UsageError(
            f"{found.name}: has several servers; name one with --server: {', '.join(names)}"
        )
    return one_server(found, chosen or next(iter(names), None))


def _settings(options: dict[str, Any]) -> "list[Setting]":
    from loadgen.scenario.settings import Setting

    file = options["scenario"]
    values = dict(options)
    values["files"] = [_from(file, path) for path in options["files"]] or None
    if file is None and not options["url"]:
        values["url"] = DEFAULT_URL
    return [
        Setting(path=path, value=values[name], origin=f"--{name.removesuffix('s')}")
        for name, path in _PLACES.items()
        if values.get(name) is not None
    ]


def _from(scenario: Path | None, path: Path) -> str:
    """Write a path of the command line as seen from the scenario's directory."""
    return str(path) if scenario is None else os.path.relpath(path, scenario.parent)


def _prober(scenario: "Scenario") -> "Prober":
    from loadgen.run.headers import credentials_of
    from loadgen.server.probe import Prober

    credentials = credentials_of(scenario.target, os.environ)
    return Prober(
        scenario.target,
        headers=credentials.headers,
        secrets=credentials.secrets,
        limit_s=_within_s(scenario),
    )


def _patience(scenario: "Scenario", flag: str | None = None) -> "Patience":
    from loadgen.server.readiness import Patience

    return Patience(within_s=_within_s(scenario, flag))


def _within_s(scenario: "Scenario", flag: str | None = None) -> float:
    from loadgen.scenario.server import READY_WITHIN_S
    from loadgen.units import parse_duration_s

    if flag is None:
        return scenario.server.ready_within_s if scenario.server is not None else READY_WITHIN_S
    try:
        return parse_duration_s(flag)
    except ValueError as error:
        raise UsageError(f"--within: {error}") from None
