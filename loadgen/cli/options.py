"""The arguments that ``run`` and ``plan`` share, and how they become one Scenario.

Only click and the exceptions are imported at the top: ``--help`` stays cheap.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.scenario.model import Scenario
    from loadgen.scenario.problems import Problem
    from loadgen.scenario.settings import Setting

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Option = Callable[[Any], Any]

KEY_FLAGS = ("--api-key", "--api_key", "--apikey", "--key", "--token", "-k")
"""Not accepted: a command line is public on its machine. They exist to say so."""

# option name → where its value goes in the scenario; those not here need work first
_PLAIN = {
    "url": ("target", "url"),
    "model": ("target", "model"),
    "engine": ("target", "engine"),
    "endpoint": ("target", "endpoint"),
    "ca_file": ("target", "ca_file"),
    "insecure": ("target", "insecure"),
    "allow_public": ("target", "allow_public"),
    "transport": ("target", "transport"),
    "connections": ("target", "connections"),
    "input_tokens": ("prompts", "input_tokens"),
    "output_tokens": ("prompts", "output_tokens"),
    "shared_prefix_tokens": ("prompts", "shared_prefix_tokens"),
    "turns": ("prompts", "turns"),
    "drain": ("each_level", "drain"),
    "rounds": ("rounds",),
    "retries": ("limits", "retries"),
    "seed": ("seed",),
    "nonce": ("nonce",),
}
_OF_RATE_LEVELS = ("arrivals", "burstiness", "max_in_flight", "at_cap")
_NOT_GIVEN: Mapping[str, Any] = dict.fromkeys(
    (*_PLAIN, *_OF_RATE_LEVELS, "file", "dataset", "concurrency", "rate", "think_time", "workers",
     "warmup", "duration", "requests", "headers", "limits", "objectives", "abort_if")
) | {"headers": (), "limits": ()}  # fmt: skip


def refuse_key(command: Decorated) -> Decorated:
    """Answer ``--api-key`` with where the key belongs, never with the key."""
    return click.option(
        *KEY_FLAGS,
        "api_key",
        hidden=True,
        is_flag=False,
        flag_value="",
        expose_value=False,
        is_eager=True,
        callback=_refuse_key,
    )(command)


def _refuse_key(_context: click.Context, _option: click.Parameter, value: object) -> None:
    if value is not None:
        raise UsageError(
            "--api-key: a key on the command line can be read by everybody on this machine; "
            "set LOADGEN_API_KEY in the environment instead"
        )


def scenario_arguments(command: Decorated) -> Decorated:
    """Add the scenario file and every flag that changes it."""
    file = click.argument(
        "file", metavar="[SCENARIO]", required=False, type=click.Path(path_type=Path)
    )
    return _with(command, [file, *_SERVER, *_LOAD, *_COURSE])


def course_arguments(command: Decorated) -> Decorated:
    """Add the flags that say which server and how a run goes, but not what is sent."""
    return _with(command, [*_SERVER, *_COURSE])


def _with(command: Decorated, options: list[Option]) -> Decorated:
    for option in reversed(options):
        command = option(command)
    return refuse_key(command)


def strict_option(command: Decorated) -> Decorated:
    """Add ``--strict``."""
    return click.option(
        "--strict",
        is_flag=True,
        help="Exit 1 also where a check, of the client or of the measurement, failed or warns.",
    )(command)


_SERVER: list[Option] = [
    click.option("--url", help="The server: http://host:port, with or without /v1."),
    click.option("--model", help="The model to ask; needless where the server lists just one."),
]
_LOAD: list[Option] = [
    click.option(
        "-c",
        "--concurrency",
        metavar="N,N…",
        help="Requests in flight, a level for each number. [1,8,16,32 without a scenario]",
    ),
    click.option("--rate", metavar="R,R…", help="Arrivals per second in place of -c: 4/s, 90/min."),
    click.option("--arrivals", metavar="KIND", help="With --rate: poisson, constant or gamma."),
    click.option(
        "--burstiness",
        type=float,
        metavar="SHAPE",
        help="With --rate: gamma gaps of this shape; below 1 in bursts, 1 is poisson.",
    ),
    click.option("--max-in-flight", type=int, metavar="N", help="With --rate: the most at once."),
    click.option("--at-cap", metavar="POLICY", help="With --rate, when all are taken: wait, drop."),
    click.option(
        "--input-tokens",
        metavar="N",
        help="Length of the prompts: 512, or 512±128 for mean and spread. [256 without a scenario]",
    ),
    click.option(
        "--output-tokens",
        metavar="N",
        help="Length of the answers, likewise, or natural. [128 without a scenario]",
    ),
    click.option(
        "--dataset",
        metavar="FILE",
        help="Send the prompts of this file (JSONL, JSON, CSV), in place of made ones.",
    ),
    click.option("--turns", metavar="N", help="Conversations of so many turns: 3, or 5±2."),
    click.option("--think-time", metavar="T", help="Pause before each next turn: 2s, or 2s±500ms."),
    click.option("--shared-prefix-tokens", type=int, metavar="N", help="Equal in all prompts."),
]
_COURSE: list[Option] = [
    click.option("--requests", type=int, metavar="N", help="Measure N requests in each level."),
    click.option(
        "--duration",
        metavar="T",
        help="Measure each level for this long; with --requests until both are reached. [30s]",
    ),
    click.option("--warmup", metavar="T|N", help="20s, '10 requests', or '20s,10 requests'."),
    click.option("--drain", metavar="T", help="Wait this long for the last answers. [60s]"),
    click.option("--rounds", type=int, metavar="N", help="Go through all levels N times."),
    click.option(
        "--objective",
        "objectives",
        multiple=True,
        metavar="TEXT",
        help="'ttft p95 <= 500ms', 'errors <= 1%'; can be repeated.",
    ),
    click.option(
        "--abort-if",
        "abort_if",
        multiple=True,
        metavar="TEXT",
        help="Stop early: 'errors > 50% over 10s', 'ttft p95 > 10s over 30s'; can be repeated.",
    ),
    click.option("--workers", metavar="N", help="Processes that share the load, or auto. [1]"),
    click.option(
        "--header",
        "headers",
        multiple=True,
        metavar="'N: V'",
        help="A header of every request; ${NAME} is read from the environment. Repeatable.",
    ),
    click.option("--engine", metavar="NAME", help="vllm, sglang, … [auto: found by asking]"),
    click.option("--endpoint", metavar="KIND", help="chat (default) or completions."),
    click.option("--ca-file", metavar="PATH", help="Trust the certificates in this file."),
    click.option("--insecure", is_flag=True, default=None, help="Trust any certificate."),
    click.option(
        "--allow-public-target",
        "allow_public",
        is_flag=True,
        default=None,
        help="Replay a log to an address that is neither loopback nor private.",
    ),
    click.option("--transport", metavar="KIND", help="own (default) or stock (plain httpx)."),
    click.option("--connections", metavar="KIND", help="reuse (default) or per_request."),
    click.option(
        "--limit",
        "limits",
        multiple=True,
        metavar="KEY=T",
        help="Give up a request: connect=10s first_token=300s idle=60s total=…; repeatable.",
    ),
    click.option("--retries", type=int, metavar="N", help="Send a failed request again. [0]"),
    click.option("--seed", type=int, metavar="N", help="Equal seeds send equal plans. [0]"),
    click.option(
        "--nonce", metavar="KIND", help="fresh (default), or fixed: meet the last run's cache."
    ),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any value of the scenario: levels[0].concurrency=4; repeatable.",
    ),
]


def scenario_from(options: Mapping[str, Any], environ: Mapping[str, str]) -> "Scenario":
    """Make the scenario of one command line: the file, flags over it, ``--set`` over both."""
    from loadgen.scenario.load import load_scenario, scenario_from_flags

    if options["concurrency"] is not None and options["rate"] is not None:
        raise UsageError("-c and --rate: give one; a scenario file can hold levels of both kinds")
    settings = settings_of(options)
    overrides = options["overrides"]
    if options["file"] is not None:
        return load_scenario(
            options["file"], overrides=overrides, settings=settings, environ=environ
        )
    if options["url"] is None and not any(text.startswith("target") for text in overrides):
        raise UsageError(
            "nothing to measure: name a scenario file, or a server like --url http://localhost:8000"
        )
    return scenario_from_flags(settings, overrides=overrides, environ=environ)


def settings_of(options: Mapping[str, Any]) -> list["Setting | Problem"]:
    """Turn flags into values of the scenario; a verb need not have all of them.

    A wrong value is found when the whole is checked; a flag that cannot be read at all becomes a
    problem, told with the others.
    """
    from loadgen.scenario.settings import EACH, Setting

    options = {**_NOT_GIVEN, **options}
    found: list[Setting | Problem] = [*_dataset(options)]
    found += [
        Setting(path=path, value=_length(options[name]), origin=_flag(name))
        for name, path in _PLAIN.items()
        if options[name] is not None
    ]
    found += _pauses_and_workers(options)
    found += _levels(options)
    found += [
        Setting(path=("levels", EACH, name), value=options[name], origin=_flag(name), where="rate")
        for name in _OF_RATE_LEVELS
        if options[name] is not None
    ]
    found += _phases(options)
    found += [_header(text) for text in options["headers"]]
    found += [_limit(text) for text in options["limits"]]
    for name, flag in (("objectives", "--objective"), ("abort_if", "--abort-if")):
        if options[name]:
            found.append(Setting(path=(name,), value=list(options[name]), origin=flag))
    return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _length(value: object) -> object:
    """Read 512 and 512±128 (or 512+-128); any other text is left for the check to refuse."""
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"[0-9]+", value):
        return int(value)
    match = re.fullmatch(r"([0-9.]+)\s*(?:±|\+-|\+/-)\s*([0-9.]+)", value)
    try:
        return {"mean": float(match[1]), "spread": float(match[2])} if match else value
    except ValueError:
        return value


def _dataset(options: Mapping[str, Any]) -> list["Setting"]:
    """Put a dataset in place of the prompts; its path is told from the scenario's own directory."""
    from loadgen.scenario.settings import Setting

    if options["dataset"] is None:
        return []
    file = options["dataset"]
    if options["file"] is not None:
        file = os.path.relpath(file, options["file"].parent)
    return [
        Setting(path=("prompts",), value={"source": "dataset"}, origin="--dataset"),
        Setting(path=("prompts", "file"), value=file, origin="--dataset"),
    ]


def _pauses_and_workers(options: Mapping[str, Any]) -> list["Setting"]:
    from loadgen.scenario.settings import Setting

    found = []
    if options["think_time"] is not None:
        mean, *spread = (part.strip() for part in re.split(r"±|\+-|\+/-", options["think_time"]))
        value = {"mean": mean, "spread": spread[0]} if len(spread) == 1 else options["think_time"]
        found.append(Setting(path=("prompts", "think_time"), value=value, origin="--think-time"))
    if options["workers"] is not None:
        number = _number(options["workers"])
        found.append(Setting(path=("workers",), value=number, origin="--workers"))
    return found


def _levels(options: Mapping[str, Any]) -> list["Setting"]:
    from loadgen.scenario.settings import Setting

    for name, flag in (("concurrency", "-c"), ("rate", "--rate")):
        if options[name] is not None:
            texts = [text.strip() for text in options[name].split(",")]
            levels = [{name: _number(text) if name == "concurrency" else text} for text in texts]
            return [Setting(path=("levels",), value=levels, origin=flag)]
    return []


def _number(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else text


def _phases(options: Mapping[str, Any]) -> list["Setting"]:
    from loadgen.scenario.settings import Setting

    found = []
    if options["warmup"] is not None:
        parts = [part.strip() for part in options["warmup"].split(",")]
        found.append(Setting(path=("each_level", "warmup"), value=parts, origin="--warmup"))
    measure, flags = [], []
    if options["duration"] is not None:
        text = options["duration"].strip()
        measure.append(f"{text}s" if re.fullmatch(r"[0-9.]+", text) else text)
        flags.append("--duration")
    if options["requests"] is not None:
        measure.append(f"{options['requests']} requests")
        flags.append("--requests")
    if measure:
        origin = " and ".join(flags)
        found.append(Setting(path=("each_level", "measure"), value=measure, origin=origin))
    return found


def _header(text: str) -> "Setting | Problem":
    from loadgen.scenario.settings import Setting

    name, colon, value = text.partition(":")
    if not colon or not name.strip():  # the text may hold a secret: it is not repeated
        return (), "--header: has no 'Name: value'; write it like 'X-Team: ${TOKEN}'"
    path = ("target", "headers", name.strip())
    return Setting(path=path, value=value.strip(), origin="--header")


def _limit(text: str) -> "Setting | Problem":
    from loadgen.scenario.settings import Setting

    key, equals, value = text.partition("=")
    if not equals:
        return (), f"--limit {text}: has no '='; write it like idle=60s"
    known = key.strip().replace("-", "_")
    plain = _number(value) if known == "max_event_mb" else value.strip()
    return Setting(path=("limits", known), value=plain, origin=f"--limit {key.strip()}")
