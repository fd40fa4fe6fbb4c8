"""``loadgen plan``: the scenario the arguments amount to, and what would be sent. No network."""

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.cli.logs import answers_of, found_in, log_arguments_beside_a_level, refuse_log_flags
from loadgen.cli.options import scenario_arguments, scenario_from
from loadgen.cli.replaying import replay_scenario
from loadgen.cli.server import one_server, server_option
from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.scenario.model import Scenario
    from loadgen.workload.plan import PlannedLevel, PlannedPrompt

_NOWHERE = "http://localhost:8000"  # a log alone is shown without a server
_COLUMNS = ("level", "warm-up", "measure", "requests", "tokens in", "tokens out", "time")


@click.command("plan")
@scenario_arguments
@click.option("--log", type=click.Path(path_type=Path), help="Show what this log holds.")
@log_arguments_beside_a_level
@click.option("--hash", "only_hash", is_flag=True, help="Print one hash of the plan, no more.")
@click.option("--out", type=click.Path(path_type=Path), hidden=True, expose_value=False)
@server_option
def command(
    log: Path | None,
    only_hash: bool,
    chosen: str | None,
    **options: Any,  # noqa: ANN401 - by name
) -> None:
    """Show the scenario and what a run would send; needs no network.

    The hash covers lengths, words, arrivals and order: equal hashes send equal plans. It leaves
    out the words drawn for each run (``nonce``), and which of several servers they are sent to.

    With --log, what the log holds; with --url as well, also the scenario that replays it.
    """
    from loadgen.workload.plan import plan_hash

    if log is not None:
        scenario = _replaying(log, options)
        if options["url"] is None and not only_hash:
            click.echo("\n".join([*found_in(scenario), *answers_of(scenario)]))
            return
    else:
        refuse_log_flags(options)
        scenario = one_server(scenario_from(options, os.environ), chosen)
    click.echo(plan_hash(scenario) if only_hash else render_plan(scenario))


def _replaying(log: Path, options: dict[str, Any]) -> "Scenario":
    if options["file"] is not None:
        raise UsageError("--log and a scenario: give one; a scenario names its log as prompts.file")
    return replay_scenario(log, {**options, "url": options["url"] or _NOWHERE})


def render_plan(scenario: "Scenario") -> str:
    """Write the whole plan as text: a scenario file, then comments on it."""
    from loadgen.workload.plan import (
        first_prompts,
        plan_hash,
        plan_levels,
        plan_warnings,
        source_without_nonce,
    )

    source = source_without_nonce(scenario)
    levels = plan_levels(scenario, source)
    found = [*found_in(scenario), *answers_of(scenario)] if scenario.replays else []
    lines = [*([""] if found else []), *found, *_server(scenario)]
    lines += ["", "Levels" if scenario.rounds == 1 else f"Levels, {scenario.rounds} rounds of them"]
    lines += _table([_COLUMNS, *(_row(level) for level in levels)])
    lines += [_total(scenario, levels), "", "First prompts"]
    for prompt in first_prompts(scenario, source):
        lines += [f"  {_head(scenario, prompt)}", f"    {prompt.text}"]
    places = [_endpoint(made) for _, made in scenario.variants()] or [_endpoint(scenario)]
    lines += ["", f"Sent to  {', '.join(dict.fromkeys(places))}", f"Seed     {scenario.seed}"]
    lines += [f"Nonce    {_nonce(scenario)}", f"Hash     {plan_hash(scenario, source)}"]
    lines += [f"Warning  {text}" for text in plan_warnings(scenario, source)]
    comments = "\n".join(f"# {line}".rstrip() for line in lines)
    return f"{_yaml(scenario.public_dict())}{comments}"


def _server(scenario: "Scenario") -> list[str]:
    """Say what would be started first, where the scenario starts a server, or several in turn."""
    if scenario.servers:
        lines = [line for name, made in scenario.variants() for line in _one_of(name, made)]
        return ["", "Servers, one after another: started, measured alike, compared", *lines]
    if scenario.server is None:
        return []
    return ["", "Server, started first", *(f"  {line}" for line in _preview(scenario))]


def _one_of(name: str, made: "Scenario") -> list[str]:
    """Show one of several servers: where it answers, what is known of it, how it is started."""
    conditions = made.public_dict().get("conditions", {})
    known = "".join(f", {key} {text}" for key, text in conditions.items())
    starts = _preview(made) if made.server is not None else ["runs already"]
    return [f"  {name}: {_endpoint(made)}{known}", *(f"    {line}" for line in starts)]


def _preview(scenario: "Scenario") -> list[str]:
    from loadgen.server.preview import preview

    return preview(scenario, scenario.server, os.environ) if scenario.server is not None else []


def _head(scenario: "Scenario", prompt: "PlannedPrompt") -> str:
    """Say which prompt it is, and how long it and its answer are to be."""
    of_class = f" ({prompt.class_})" if prompt.class_ else ""
    asked = "as it is" if prompt.input_tokens is None else f"{prompt.input_tokens} tokens in"
    answer = "natural length" if prompt.output_tokens is None else str(prompt.output_tokens)
    label = scenario.levels[prompt.level].label
    return f"{label}, no. {prompt.number + 1}{of_class}: {asked}, {answer} out"


def _nonce(scenario: "Scenario") -> str:
    if scenario.nonce == "fixed":
        return "none: every run the same"
    made = any(prompts.source == "synthetic" for _, prompts in scenario.classes)
    kept = any(prompts.source == "dataset" for _, prompts in scenario.classes)
    own = "a dataset is sent as it is: a second run meets the server's prefix cache"
    logs = "a log is sent as it is, and where it has lengths only, in words drawn for each run"
    drawn = "drawn anew for each run"
    if scenario.servers:
        drawn += ", and the same for all servers"
    return "; ".join([drawn] * made + [own] * kept + [logs] * scenario.replays)


def _yaml(tree: dict[str, Any]) -> str:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 100
    text = io.StringIO()
    yaml.dump(tree, text)
    return text.getvalue()


def _endpoint(scenario: "Scenario") -> str:
    from loadgen.scenario.url import masked_url

    if ("target", "url") in scenario.references:
        return str(scenario.public_dict()["target"]["url"])
    return masked_url(scenario.target.endpoint_url())


def _row(level: "PlannedLevel") -> tuple[str, ...]:
    return (
        level.label,
        _span(level.warmup.plain),
        _span(level.measure.plain),
        _requests(level),
        _tokens(level.input_tokens),
        _tokens(level.output_tokens),
        _time(level),
    )


def _time(level: "PlannedLevel") -> str:
    from loadgen.units import format_duration

    text = format_duration(round(level.seconds, 1))
    if level.timed:
        return text
    return f"at least {text}" if level.seconds else "until done"


def _requests(level: "PlannedLevel") -> str:
    if level.requests is not None:
        return f"{level.requests:,}"
    least = level.measure.requests
    return "as many as fit" if least is None else f"{least:,} or more"


def _span(plain: str | list[str]) -> str:
    return plain if isinstance(plain, str) else " and ".join(plain)


def _tokens(number: float | None) -> str:
    return "" if number is None else f"{number:,.0f}"


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return ["  " + "  ".join(row).rstrip() for row in padded]


def _total(scenario: "Scenario", levels: list["PlannedLevel"]) -> str:
    from loadgen.units import format_duration

    drain = format_duration(scenario.each_level.drain_s)
    total = format_duration(round(sum(level.seconds for level in levels) * scenario.rounds))
    after = f"and a drain of up to {drain} after each level"
    each = f", for each of {len(scenario.servers)} servers" if scenario.servers else ""
    if all(level.timed for level in levels):
        return f"  {total} in all{each}, {after}."
    return f"  At least {total}{each} (counted requests take as long as the server does), {after}."
