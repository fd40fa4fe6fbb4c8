"""``loadgen``: find the verb, run it, and turn every known failure into one line and an exit code.

Verbs are imported when they are used, so that ``loadgen --help`` costs click alone.
"""

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from loadgen.cli.options import KEY_FLAGS, refuse_key
from loadgen.cli.outlets import BROKEN_PIPE, silence
from loadgen.errors import LoadgenError

VERBS = {
    "run": ("loadgen.cli.run:command", "Measure a server, level by level, and report."),
    "plan": ("loadgen.cli.plan:command", "Show what a run would send; needs no network."),
    "replay": ("loadgen.cli.replay:command", "Send a log of real traffic again."),
    "anonymize": ("loadgen.cli.anonymize:command", "Make a log that can be shared: no text."),
    "report": ("loadgen.cli.report:command", "Make the reports of a run again."),
    "check": ("loadgen.cli.check:command", "Say whether a run's figures can be trusted."),
    "compare": ("loadgen.cli.compare:command", "Hold runs against a baseline: what changed?"),
    "server": ("loadgen.cli.server:command", "Start the server to measure; wait, show, end it."),
    "simulate": ("loadgen.cli.simulate:command", "Serve a simulated engine of known truth."),
    "selftest": ("loadgen.cli.selftest:command", "Say what this machine can measure."),
}
"""Verb → where its command lies, and its line of help."""

INTERRUPTED = 130


class Verbs(click.Group):
    """The verbs, each imported when it is asked for."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """Return the verbs in the order of VERBS."""
        return list(VERBS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """Import one verb; None if there is no such verb."""
        if name not in VERBS:
            return None
        module, attribute = VERBS[name][0].split(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs without importing any."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, line) for verb, (_, line) in VERBS.items()])

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; a misspelt one gets a suggestion."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            close = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"verbs are {', '.join(VERBS)}"
            raise click.UsageError(f"no verb '{args[0]}'; {hint}", context)
        return super().resolve_command(context, args)

    def invoke(self, context: click.Context) -> Any:  # noqa: ANN401 - click's own signature
        """Run the verb; a reader of stdout that left (``| head``) is no failure to tell about."""
        try:
            result = super().invoke(context)
            sys.stdout.flush()
        except BrokenPipeError:
            silence(sys.stdout.fileno())
            context.exit(BROKEN_PIPE)
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,  # noqa: ANN401 - click's own signature
    ) -> Any:  # noqa: ANN401
        """Run and leave with the exit code; without standalone_mode exceptions pass through."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        code: object = 0
        try:
            code = super().main(args, prog_name or "loadgen", complete_var, False, **extra)
        except LoadgenError as error:
            _complain(str(error))
            code = error.exit_code
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            code = error.exit_code
        except click.ClickException as error:
            _complain(_in_one_line(error))
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            _complain("stopped")
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


def _complain(text: str) -> None:
    for line in text.splitlines() or ["failed"]:
        click.echo(f"loadgen: {line}", err=True)


def _in_one_line(error: click.ClickException) -> str:
    text = " ".join(_message(error).split()).rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None or context.command_path == "loadgen":
        return f"{text}; see loadgen --help"
    verb = context.command_path.removeprefix("loadgen ")
    return f"{verb}: {text}; see {context.command_path} --help"


def _message(error: click.ClickException) -> str:
    """Return click's words, but never suggest the flags that only exist to be refused.

    The nearest flag comes first.
    """
    if not isinstance(error, click.NoSuchOption):
        return error.format_message()
    known = [name for name in error.possibilities or () if name not in KEY_FLAGS]
    close = difflib.get_close_matches(error.option_name, known, n=3, cutoff=0.0)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    return f"no option {error.option_name}{hint}"


@click.group(
    "loadgen",
    cls=Verbs,
    subcommand_metavar="VERB [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A key is read from LOADGEN_API_KEY or OPENAI_API_KEY, never from a flag. "
    "Exit codes: 0 done, 1 an objective missed, a level invalid or a server of several failed, "
    "2 usage, "
    "3 server or machine not as needed, 130 interrupted.",
)
@click.version_option(package_name="loadgen", prog_name="loadgen")
@refuse_key
def main() -> None:
    """Load testing for OpenAI-compatible inference servers.

    \b
    loadgen run --url http://localhost:8000 -c 1,8,16,32
    loadgen run scenarios/sweep.yaml
    """


if __name__ == "__main__":
    main()
