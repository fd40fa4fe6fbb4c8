"""What a process needs to run levels: transport, prompts, store; built alike by every worker."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import orjson

from loadgen.client.envelope import Envelope
from loadgen.client.limits import Limits
from loadgen.client.requests import RequestOptions, expects_many, fields, several_prompts
from loadgen.client.stock import Proxy, stock_transport
from loadgen.client.transport import StampedTransport, ssl_context
from loadgen.engines import Engine
from loadgen.errors import UsageError
from loadgen.run.events import Event
from loadgen.run.headers import Credentials
from loadgen.run.level import Session
from loadgen.run.quality import golden_calls
from loadgen.run.store import RunStore
from loadgen.run.supply import Call, Talk
from loadgen.scenario.model import Scenario
from loadgen.workload.prompt import Prompt
from loadgen.workload.prompts import PromptSource
from loadgen.workload.quality import golden_set
from loadgen.workload.replay.follow import converses


def open_session(
    scenario: Scenario,
    *,
    transport: httpx.AsyncBaseTransport,
    credentials: Credentials,
    model: str,
    engine: Engine,
    source: PromptSource,
    directory: Path,
    epoch_ns: int,
    on_event: Callable[[Event], None],
    count_tokens: Callable[[str], int] | None = None,
    worker: int = 0,
    workers: int = 1,
) -> Session:
    """Put a session together; the store's file is opened, nothing is sent."""
    target, golden = scenario.target, golden_set(scenario)
    call = _caller(scenario, credentials=credentials, model=model, engine=engine)

    def build(level: int, round_: int, number: int) -> Call:
        return call(source.prompt(level=level, round_=round_, number=number))

    def converse(level: int, round_: int, number: int) -> Talk:
        return Talk(source.conversation(level=level, round_=round_, number=number), call)

    return Session(
        scenario=scenario,
        transport=transport,
        url=httpx.URL(target.endpoint_url()),
        limits=limits_of(scenario),
        build=build,
        converse=converse if converses(scenario) else None,
        golden=None if golden is None else golden_calls(golden, call),
        store=RunStore(directory),
        epoch_ns=epoch_ns,
        on_event=on_event,
        secrets=credentials.secrets,
        preconnect=not engine.thread_per_connection and target.connections == "reuse",
        count_tokens=count_tokens,
        worker=worker,
        workers=workers,
    )


def transport_of(scenario: Scenario, *, proxy: Proxy | None) -> httpx.AsyncBaseTransport:
    """Return the transport a scenario asks for; behind a proxy only httpx's own will do."""
    target = scenario.target
    context = None
    if target.base_url.startswith("https"):
        try:
            context = ssl_context(ca_file=target.ca_file, insecure=target.insecure)
        except OSError as error:  # ssl.SSLError is one, too
            raise UsageError(f"--ca-file {target.ca_file}: {error}") from error
    reuse = target.connections == "reuse"
    if proxy or target.transport == "stock":
        return stock_transport(context=context, proxy=proxy, reuse=reuse)
    return StampedTransport(context=context, reuse=reuse)


def limits_of(scenario: Scenario) -> Limits:
    """Return a scenario's limits in the client's terms."""
    limits = scenario.limits
    return Limits(
        connect_s=limits.connect_s,
        first_token_s=limits.first_token_s,
        idle_s=limits.idle_s,
        total_s=limits.total_s,
        max_event_bytes=limits.max_event_mb << 20,
    )


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return uvloop's loop where it is installed, else asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _caller(
    scenario: Scenario, *, credentials: Credentials, model: str, engine: Engine
) -> Callable[[Prompt], Call]:
    options = RequestOptions(
        endpoint=scenario.target.endpoint, fixed_output=True, extra=scenario.request
    )
    envelope = Envelope(httpx.URL(scenario.target.endpoint_url()), credentials.headers)

    def call(prompt: Prompt) -> Call:
        said = fields(prompt, model=prompt.model or model, engine=engine, options=options)
        return Call(
            prompt=prompt,
            request=envelope.around(orjson.dumps(said)),
            expects_many=expects_many(said),
            several_prompts=several_prompts(said),
        )

    return call
