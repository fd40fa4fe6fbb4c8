"""Before any load: is the server there, does it know us, which model, which engine, one token.

What would make every request fail ends the run here, in one line. What the server may get over
(a 503, an error in the stream) does not: a load test has to be able to measure a failing server.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import httpx
import orjson

from loadgen.client.exchange import Exchange
from loadgen.client.failures import is_certificate_error
from loadgen.client.limits import Limits
from loadgen.client.outcome import scrub
from loadgen.client.requests import RequestOptions, body, probe_body, token_limit_hint
from loadgen.client.stock import StockTransport, without_proxy
from loadgen.client.transport import StampedTransport
from loadgen.engines import ENGINES, Engine, engine_version, model_names, recognise
from loadgen.errors import PreflightFailed, ServerUnreachable
from loadgen.record import Outcome
from loadgen.run.calibrate import Ask, Pieces
from loadgen.run.headers import Credentials
from loadgen.scenario.model import Scenario
from loadgen.workload.prompt import Prompt

_ASK_LIMIT_S = 10.0
_OF_A_GATEWAY = (502, 503, 504)  # a proxy says these, too, where it does not reach the server
_LISTED = 10  # models named in a message
_OTHER_LIMIT: Mapping[str, Literal["max_tokens", "max_completion_tokens"]] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the preflight learnt of the server."""

    model: str
    engine: Engine
    engine_version: str | None = None
    models: list[str] = field(default_factory=list)
    peers: list[str] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    probe: dict[str, Any] = field(default_factory=dict)
    models_body: bytes | None = None


class Preflight:
    """Asks one server, over the transport that will measure it."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        transport: httpx.AsyncBaseTransport,
        credentials: Credentials,
        limits: Limits,
    ) -> None:
        self._target = scenario.target
        self._options = RequestOptions(
            endpoint=scenario.target.endpoint, fixed_output=True, extra=scenario.request
        )
        self._transport = transport
        self._credentials = credentials
        self._limits = limits
        self._proxy = transport.proxy if isinstance(transport, StockTransport) else None
        self._notes: list[str] = []

    async def run(self) -> Found:
        """Return what was learnt; raises ServerUnreachable or PreflightFailed."""
        if self._proxy:
            self._notes.append(f"through proxy {self._proxy}, stock transport: user-space stamps")
        unreachable = await self._connect()
        models_body, server_header = await self._models()
        version_body = await self._version()
        engine = self._engine(server_header, version_body, models_body)
        models = model_names(models_body)
        model = self._model(models)
        engine, probe = await self._probe(model, engine, models)
        return Found(
            model=model,
            engine=engine,
            engine_version=engine_version(version_body),
            models=models,
            peers=self._peers(),
            unreachable=unreachable,
            notes=self._notes,
            probe=probe,
            models_body=models_body,
        )

    # --- steps

    async def _connect(self) -> dict[str, str]:
        if not isinstance(self._transport, StampedTransport):
            return {}
        origin = self._transport.origin(httpx.URL(self._target.base_url))
        try:
            unreachable = await origin.drop_unreachable(self._limits.connect_s)
        except httpx.TransportError as error:
            raise self._no_connection(error) from error
        for peer, why in unreachable.items():
            self._notes.append(f"{peer} does not answer and is left out ({why})")
        return unreachable

    async def _models(self) -> tuple[bytes | None, str | None]:
        try:
            response = await self._get(self._target.endpoint_url("models"))
        except httpx.TransportError as error:
            raise self._no_connection(error) from error
        except TimeoutError as error:
            way = f" to proxy {self._proxy}" if self._proxy else ""
            raise ServerUnreachable(
                f"{self._target.masked_url}: connected{way}, but no answer within "
                f"{_ASK_LIMIT_S:g} s; is this an inference server, and is it up?"
            ) from error
        status = response.status_code
        if status in (401, 403, 407):
            raise self._rejected(status)
        if self._proxy and status in _OF_A_GATEWAY and not self._target.model:
            raise ServerUnreachable(
                f"{self._target.masked_url}: HTTP {status}, {self._either}; are both up? "
                f"{self._direct}"
            )
        return _found(response), response.headers.get("server")

    async def _version(self) -> bytes | None:
        return await self.page("/version", within_s=_ASK_LIMIT_S)

    def _engine(
        self, server_header: str | None, version: bytes | None, models: bytes | None
    ) -> Engine:
        if self._target.engine != "auto":
            return ENGINES[self._target.engine]
        return recognise(server_header=server_header, version_body=version, models_body=models)

    def _model(self, models: list[str]) -> str:
        if self._target.model:
            return self._target.model
        if len(models) == 1:
            return models[0]
        if models:
            raise PreflightFailed(
                f"{self._target.masked_url}: serves {len(models)} models; name one with --model: "
                f"{_listed(models)}"
            )
        raise PreflightFailed(
            f"{self._target.masked_url}: lists no models (asked {self._target.masked_base_url}); "
            "is the URL right? if it is, name the model with --model"
        )

    async def _probe(
        self, model: str, engine: Engine, models: list[str]
    ) -> tuple[Engine, dict[str, Any]]:
        """Ask for one token, as the run's requests will; returns the dialect that worked."""
        facts = await self._one_token(model, engine)
        if facts["http_status"] == 400 and token_limit_hint(facts["error"] or ""):
            other = replace(engine, chat_limit=_OTHER_LIMIT[engine.chat_limit])
            again = await self._one_token(model, other)
            if again["outcome"] is Outcome.OK:
                self._notes.append(
                    f"the server refuses {engine.chat_limit}: {other.chat_limit} is sent instead"
                )
                engine, facts = other, again
        self._judge(facts, model, models)
        names = ("outcome", "error_class", "error", "http_status", "reported_input",
                 "reported_output", "flags")  # fmt: skip
        probe = {name: facts[name] for name in names}
        if facts["first_ns"] and facts["sent_ns"]:
            probe["ttft_ns"] = facts["first_ns"] - facts["sent_ns"]
        if isinstance(self._transport, StampedTransport):
            origin = self._transport.origin(httpx.URL(self._target.base_url))
            probe["connect_ns"] = origin.connect_ns
        return engine, probe

    def asker(self, found: Found) -> Ask:
        """Return what sends a prompt for one token and says how many tokens it was."""

        async def ask(prompt: Prompt) -> int | None:
            content = body(prompt, model=found.model, engine=found.engine, options=self._options)
            facts = await self._exchanged(content)
            counted: int | None = facts["reported_input"]
            return counted

        return ask

    def splitter(self, found: Found) -> Pieces:
        """Return what asks the server's own tokenizer for the pieces of a text."""

        async def pieces(text: str) -> list[str] | None:
            tokenize = found.engine.tokenize
            if tokenize is None:
                return None
            said = _PIECES[tokenize.kind](text, found.model) if tokenize.kind in _PIECES else None
            if said is None:
                return None
            answer = await self._post_json(f"{self._target.root_url}{tokenize.path}", said)
            return _pieces_of(answer)

        return pieces

    async def page(self, path: str, *, within_s: float) -> bytes | None:
        """Return a page below the server's root; None where it has none, or not in time."""
        try:
            return _found(await self._get(f"{self._target.root_url}{path}", within_s=within_s))
        except (httpx.HTTPError, TimeoutError):
            return None

    async def _post_json(self, url: str, said: dict[str, Any]) -> Any:  # noqa: ANN401
        request = httpx.Request(
            "POST", url, content=orjson.dumps(said), headers=self._credentials.headers
        )
        try:
            async with asyncio.timeout(_ASK_LIMIT_S):
                response = await self._transport.handle_async_request(request)
                await response.aread()
        except (httpx.HTTPError, TimeoutError):
            return None
        try:
            return orjson.loads(response.content) if response.status_code == 200 else None
        except orjson.JSONDecodeError:
            return None

    async def _one_token(self, model: str, engine: Engine) -> dict[str, Any]:
        return await self._exchanged(probe_body(model=model, engine=engine, options=self._options))

    async def _exchanged(self, content: bytes) -> dict[str, Any]:
        request = httpx.Request(
            "POST", self._target.endpoint_url(), content=content, headers=self._credentials.headers
        )
        exchange = Exchange(endpoint=self._target.endpoint, limits=self._limits)
        await exchange.run(self._transport, request)
        facts = await exchange.settle()
        facts["error"] = facts["error"] and scrub(facts["error"], self._credentials.secrets)
        return facts

    def _judge(self, facts: dict[str, Any], model: str, models: list[str]) -> None:
        """Raise where every request would fail the same way; note what may pass."""
        where = self._target.masked_url
        outcome, error_class, status = facts["outcome"], facts["error_class"], facts["http_status"]
        message = facts["error"] or error_class
        if outcome is Outcome.OK:
            return
        match error_class:
            case "auth":
                raise self._rejected(status)
            case "model_not_found":
                known = f"; it serves: {_listed(models)}" if models else ""
                raise PreflightFailed(f"{where}: does not know the model '{model}'{known}")
            case "unexpected_content_type":
                raise PreflightFailed(
                    f"{where}: answers with something else than a completion ({message}); "
                    "is the URL right?"
                )
        if outcome is Outcome.REFUSED and status in (400, 404, 405, 422):
            raise PreflightFailed(f"{where}: refuses a one-token request ({status}): {message}")
        whose = f", {self._either}" if self._proxy and status in _OF_A_GATEWAY else ""
        self._notes.append(
            f"the one-token probe failed ({error_class}: {message}{whose}); going on"
        )

    # --- asking

    async def _get(self, url: str, *, within_s: float = _ASK_LIMIT_S) -> httpx.Response:
        request = httpx.Request("GET", url, headers=self._credentials.headers)
        request.extensions["timeout"] = {"connect": self._limits.connect_s}
        async with asyncio.timeout(within_s):
            response = await self._transport.handle_async_request(request)
            await response.aread()
            return response

    def _peers(self) -> list[str]:
        if not isinstance(self._transport, StampedTransport):
            return []
        origin = self._transport.origin(httpx.URL(self._target.base_url))
        return [address.peer for address in origin.addresses]

    # --- refusing

    def _no_connection(self, error: httpx.TransportError) -> Exception:
        where = self._target.masked_url
        if isinstance(error, httpx.ProxyError):
            return self._refused_by_proxy(_last(error))
        if is_certificate_error(error):
            return PreflightFailed(
                f"{where}: the server's certificate does not verify ({_last(error)}); "
                "give its authority with --ca-file FILE, or accept any with --insecure"
            )
        if self._proxy:
            return ServerUnreachable(
                f"{where}: no connection through proxy {self._proxy} ({_last(error)}); "
                f"is the proxy up? {self._direct}"
            )
        if "WRONG_VERSION_NUMBER" in str(error):
            return ServerUnreachable(f"{where}: does not speak TLS; did you mean http://?")
        return ServerUnreachable(f"{where}: no connection ({_last(error)}); is the server up?")

    def _rejected(self, status: int) -> PreflightFailed:
        where, key = self._target.masked_url, self._credentials.key_from
        if self._proxy and status == 407:
            return self._refused_by_proxy(f"HTTP {status}")
        if self._proxy and status == 403:
            likely = f"the key from {key} is wrong" if key else "a key is missing (LOADGEN_API_KEY)"
            return PreflightFailed(
                f"{where}: HTTP {status}, {self._either}: {likely}, or the proxy does not let you "
                f"there; {self._direct}"
            )
        if key:
            return PreflightFailed(f"{where}: rejects the key from {key} (HTTP {status})")
        return PreflightFailed(
            f"{where}: wants a key (HTTP {status}); set LOADGEN_API_KEY, or give its header "
            "with --header"
        )

    def _refused_by_proxy(self, said: str) -> PreflightFailed:
        assert self._proxy is not None
        mend = "is the server up, and does the proxy let you there?"
        if "407" in said:
            mend = f"give its user and password in {self._proxy.variable} (USER:PASSWORD@HOST);"
        return PreflightFailed(
            f"{self._target.masked_url}: proxy {self._proxy} refuses ({said}); {mend} "
            f"{self._direct}"
        )

    @property
    def _either(self) -> str:
        return f"from the server or from proxy {self._proxy}"

    @property
    def _direct(self) -> str:
        return without_proxy(httpx.URL(self._target.base_url).host)


_PIECES: Mapping[str, Callable[[str, str], dict[str, Any]]] = {
    "vllm": lambda text, model: {
        "model": model,
        "prompt": text,
        "add_special_tokens": False,
        "return_token_strs": True,
    },
    "llamacpp": lambda text, _: {"content": text, "add_special": False, "with_pieces": True},
}
"""How to ask each kind of tokenizer endpoint for the pieces of a text."""


def _pieces_of(answer: Any) -> list[str] | None:  # noqa: ANN401 - whatever the server says
    """Return the pieces with plain spaces, whatever mark the tokenizer has for them."""
    if not isinstance(answer, dict):
        return None
    pieces = answer.get("token_strs")
    if pieces is None and isinstance(answer.get("tokens"), list):
        pieces = [row.get("piece") for row in answer["tokens"] if isinstance(row, dict)]
    if not isinstance(pieces, list) or not pieces:
        return None
    # what is no text (llama.cpp gives bytes as a list of numbers) is no word of ours, either
    marks = str.maketrans({"\u0120": " ", "\u2581": " "})
    return [piece.translate(marks) if isinstance(piece, str) else "?" for piece in pieces]


def _found(response: httpx.Response) -> bytes | None:
    return response.content if response.status_code == 200 else None


def _listed(models: list[str]) -> str:
    more = f" and {len(models) - _LISTED} more" if len(models) > _LISTED else ""
    return scrub(", ".join(models[:_LISTED])) + more


def _last(error: httpx.TransportError) -> str:
    return scrub(str(error))
