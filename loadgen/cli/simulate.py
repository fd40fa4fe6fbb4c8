"""``loadgen simulate``: a server with known truth, to try scenarios and check measurements on."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from loadgen.errors import UsageError
from loadgen.units import parse_duration_s, parse_rate, parse_share

if TYPE_CHECKING:
    from loadgen.simulator.spec import SimulatorSpec

KEY_VARIABLE = "LOADGEN_SIM_API_KEY"
DIALECTS = ("vllm", "trtllm", "llamacpp", "sglang", "transformers", "azure")

Callback = Callable[[click.Context, click.Parameter, str | None], object]


def parsed(parse: Callable[[str], object]) -> Callback:
    """Turn a function that raises ValueError, saying what to write, into an option's callback."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> object:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx=ctx, param=param) from None

    return callback


def _fault(text: str) -> object:
    from loadgen.simulator.faults import parse_fault  # imports numpy: only when a fault is given

    return parse_fault(text)


def _faults(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> object:
    return tuple(parsed(_fault)(ctx, param, value) for value in values)


DURATION = parsed(parse_duration_s)
RATE = parsed(parse_rate)
SHARE = parsed(parse_share)
COUNT = click.IntRange(min=1)


@click.command("simulate", short_help="Serve a simulated engine that states its own send times.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 takes any free one and prints it.",
)
@click.option("--model", default="sim", show_default=True, help="Name the model goes by.")
@click.option(
    "--dialect",
    default="vllm",
    show_default=True,
    type=click.Choice(DIALECTS),
    help="Whose framing, field names and error bodies to use.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Seed of noise, faults and answers.",
)
@click.option(
    "--speed",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Divides every duration of the engine.",
)
@click.option(
    "--prefill-rate",
    default="16000/s",
    show_default=True,
    callback=RATE,
    help="Prompt tokens per second.",
)
@click.option(
    "--step-base",
    default="8ms",
    show_default=True,
    callback=DURATION,
    help="What each decode step takes at least.",
)
@click.option(
    "--step-per-sequence",
    default="150us",
    show_default=True,
    callback=DURATION,
    help="What each decoding sequence adds to a step.",
)
@click.option(
    "--step-per-context-token",
    default="20ns",
    show_default=True,
    callback=DURATION,
    help="What each token of context adds to a step.",
)
@click.option(
    "--step-tokens",
    default=512,
    show_default=True,
    type=COUNT,
    help="Token budget of a step: decoding sequences plus prompt tokens.",
)
@click.option(
    "--max-running",
    default=16,
    show_default=True,
    type=COUNT,
    help="Sequences that are served at once; others wait.",
)
@click.option(
    "--kv-tokens",
    default=131072,
    show_default=True,
    type=COUNT,
    help="Tokens of all running sequences together.",
)
@click.option(
    "--prefix-cache-tokens",
    default=65536,
    show_default=True,
    type=click.IntRange(min=0),
    help="Prompt tokens kept for reuse; 0 for none.",
)
@click.option(
    "--max-context",
    default=32768,
    show_default=True,
    type=click.IntRange(min=2),
    help="Tokens of prompt and answer together.",
)
@click.option(
    "--template-tokens",
    default=8,
    show_default=True,
    type=click.IntRange(min=0),
    help="Tokens that the chat template adds to a prompt.",
)
@click.option(
    "--natural-tokens",
    default=128.0,
    show_default=True,
    type=click.FloatRange(min=2),
    help="Mean length of an answer when no maximum is asked for.",
)
@click.option(
    "--stream-interval",
    default=1,
    show_default=True,
    type=COUNT,
    help="Tokens per chunk after the first.",
)
@click.option("--report-cached", is_flag=True, help="Name cached tokens in usage on any dialect.")
@click.option(
    "--noise",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 2),
    help="Sigma of a lognormal factor on each step.",
)
@click.option(
    "--drift",
    default="0%",
    show_default=True,
    callback=SHARE,
    help="Share by which steps grow per minute, as on a chip that heats up.",
)
@click.option(
    "--cold-start",
    default="0s",
    show_default=True,
    callback=DURATION,
    help="How much longer the first step takes; a request for a single token does not end it.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    callback=_faults,
    metavar="KIND:SHARE",
    help="Fail a share of requests, e.g. stream_error:30%; repeatable. Kinds: status_429, "
    "status_500, status_503, stream_error, cut, reset, stall, empty, html, slow_connect, "
    "no_done, keepalive, garbage, burst.",
)
@click.option(
    "--slow-connect",
    default="2s",
    show_default=True,
    callback=DURATION,
    help="How long the fault slow_connect leaves a new connection unserved.",
)
@click.option("--fault-probes", is_flag=True, help="Fail requests for a single token as well.")
@click.option(
    "--garble",
    default="0%",
    show_default=True,
    callback=SHARE,
    help="Share of answers that are nonsense.",
)
@click.option("--close-after", type=COUNT, help="Close each connection after so many requests.")
@click.option("--idle-close", callback=DURATION, help="Close a connection that idles this long.")
@click.option(
    "--tls",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="CERT KEY",
    help="Serve https with this PEM certificate and key.",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    help=f"File with the key that clients must give; or set {KEY_VARIABLE}.",
)
def command(host: str, port: int, api_key_file: Path | None, **flags: Any) -> None:  # noqa: ANN401
    """Serve an OpenAI-compatible endpoint on a simulated engine.

    One word is one token. Every content chunk carries its own send time as "sent_ns"
    (CLOCK_MONOTONIC); GET /sim/stats tells what the server saw, POST /sim/reset begins anew.
    A request for a single token is taken for a client's probe and spared from faults.
    """
    from loadgen.simulator.app import serve

    spec = _spec(flags, api_key=_api_key(api_key_file))

    def ready(url: str) -> None:
        about = f"model {spec.model} dialect {spec.dialect} (pid {os.getpid()})"
        click.echo(f"simulator: {url} {about}")  # flushes

    # The standard event loop, not uvloop: its writes leave at once (see simulator/http).
    asyncio.run(serve(spec, host=host, port=port, on_ready=ready))


def _spec(flags: dict[str, Any], *, api_key: str | None) -> "SimulatorSpec":
    from loadgen.simulator.engine import EngineSpec
    from loadgen.simulator.spec import SimulatorSpec

    if sum(fault.share for fault in flags["faults"] if fault.kind != "slow_connect") > 1 + 1e-9:
        raise UsageError("--fault: the shares together exceed 100%; lower some")
    engine = EngineSpec(
        prefill_tokens_per_s=flags["prefill_rate"],
        step_base_s=flags["step_base"],
        step_per_sequence_s=flags["step_per_sequence"],
        step_per_context_token_s=flags["step_per_context_token"],
        step_tokens=flags["step_tokens"],
        max_running=flags["max_running"],
        kv_tokens=flags["kv_tokens"],
        prefix_cache_tokens=flags["prefix_cache_tokens"],
        noise=flags["noise"],
        drift_per_min=flags["drift"],
        cold_start_s=flags["cold_start"],
        speed=flags["speed"],
    )
    same = ("model", "dialect", "seed", "max_context", "template_tokens", "natural_tokens",
            "stream_interval", "report_cached", "faults", "fault_probes", "garble", "close_after",
            "tls")  # fmt: skip
    return SimulatorSpec(
        engine=engine,
        api_key=api_key,
        idle_close_s=flags["idle_close"],
        slow_connect_s=flags["slow_connect"],
        **{name: flags[name] for name in same},
    )


def _api_key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        key = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text file"
        raise UsageError(f"--api-key-file {file}: {reason}; give a file with the key") from None
    if not key:
        raise UsageError(f"--api-key-file {file}: it is empty; give a file with the key")
    return key
