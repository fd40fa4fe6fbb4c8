"""``loadgen replay``: send a log of real traffic again, as it was, to another server."""

from pathlib import Path
from typing import Any

import click

from loadgen.cli.logs import log_arguments
from loadgen.cli.options import course_arguments, strict_option
from loadgen.cli.replaying import replay_scenario
from loadgen.cli.run import carry_out
from loadgen.errors import UsageError


@click.command("replay")
@click.argument("log", type=click.Path(path_type=Path))
@log_arguments
@course_arguments
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The run's directory, new or empty. [runs/<when>-<name>]",
)
@strict_option
def command(log: Path, out: Path | None, strict: bool, **options: Any) -> None:  # noqa: ANN401
    """Send a log of real traffic again, at its own times or faster, and report.

    The format is told by the names in the log: Mooncake, Azure, BurstGPT, Bailian, ShareGPT, OpenAI
    Batch, LiteLLM, Langfuse, OpenTelemetry spans, or columns of your own (--column). What is found
    is printed first. Logged headers and keys are never sent.
    """
    if options["url"] is None and not any(one.startswith("target") for one in options["overrides"]):
        raise UsageError("nothing to measure: name a server, like --url http://localhost:8000")
    scenario = replay_scenario(log, options)
    click.get_current_context().exit(carry_out(scenario, out, strict=strict))
