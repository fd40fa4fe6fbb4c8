"""Is a server really ready? Port, health, models, and one real token, asked in this order.

A health page comes earlier than the ability to answer, in several engines by minutes, and a list
of models as well: only a generated token counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import httpx
import orjson

from loadgen.client.exchange import Exchange
from loadgen.client.limits import Limits
from loadgen.client.outcome import scrub
from loadgen.client.requests import HEADERS, RequestOptions, probe_body
from loadgen.client.stock import StockTransport, proxy_for, stock_transport, without_proxy
from loadgen.client.transport import ssl_context
from loadgen.engines import UNKNOWN, by_name, model_names
from loadgen.errors import PreflightFailed, UsageError
from loadgen.record import Fault, Outcome, fault_of
from loadgen.scenario.model import Target
from loadgen.scenario.private import mask

_ASK_S = 5.0
_PATIENCE = 3  # equal refusals, one after another, before they are taken for final
_NO_SUCH_PAGE = frozenset({404, 405, 501})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a probe did not pass; final: it will not get better by waiting."""

    text: str
    final: bool = False


class Prober:
    """Asks one target; ``headers`` carry its key, ``secrets`` are never repeated."""

    def __init__(
        self, target: Target, *, headers: Mapping[str, str], secrets: Sequence[str], limit_s: float
    ) -> None:
        self._target = target
        self._headers = dict(headers)
        self._secrets = secrets
        self._limit_s = limit_s
        self._engine = UNKNOWN if target.engine == "auto" else by_name(target.engine)
        self._refusals = 0
        self._transport = _transport(target)
        self._proxy = self._transport.proxy
        self._client = httpx.AsyncClient(
            transport=self._transport, headers=self._headers, timeout=_ASK_S, trust_env=False
        )

    async def aclose(self) -> None:
        """Give the connections back."""
        await self._client.aclose()

    async def failure(self) -> Failure | None:
        """Probe once; return what failed first, None if a token came.

        Raises PreflightFailed where the key is refused: no waiting helps.
        """
        refusals = self._refusals
        try:
            failure = await self._first_failure()
        except httpx.HTTPError as error:
            words = str(error) or type(error).__name__
            way = f" through proxy {self._proxy}" if self._proxy else ""
            failure = Failure(text=self._plain(f"no answer{way} ({words})"))
        if self._refusals == refusals:  # something else came between
            self._refusals = 0
        return failure

    async def _first_failure(self) -> Failure | None:
        unwell = await self._health()
        if unwell is not None:
            return unwell
        model = await self._listed_model()
        if isinstance(model, Failure):
            return model
        return await self._one_token(model)

    async def _health(self) -> Failure | None:
        path = self._engine.health_path or "/health"
        response = await self._client.get(f"{self._target.root_url}{path}")
        if response.status_code == 200 or response.status_code in _NO_SUCH_PAGE:
            return None
        return self._refused(f"GET {path}", response)

    async def _listed_model(self) -> str | Failure:
        """Return the model to ask; a list without the target's own is another server's."""
        asked = self._target.model
        response = await self._client.get(self._target.endpoint_url("models"))
        if response.status_code in _NO_SUCH_PAGE and asked:
            return asked
        if response.status_code != 200:
            return self._refused("GET /v1/models", response)
        names = model_names(response.content)
        if asked and names and asked not in names:
            served = self._plain(", ".join(names[:10]))
            text = f"it serves {served}, not {asked}: correct target.model, or it is another server"
            return self._perhaps_final(text)
        if asked or names:
            return asked or names[0]
        return Failure(text="GET /v1/models: no model is listed yet")

    async def _one_token(self, model: str) -> Failure | None:
        options = RequestOptions(endpoint=self._target.endpoint)
        content = probe_body(model=model, engine=self._engine, options=options)
        headers = {**HEADERS, **self._headers}
        url = self._target.endpoint_url()
        request = httpx.Request("POST", url, content=content, headers=headers)
        limits = Limits(connect_s=_ASK_S, first_token_s=self._limit_s, idle_s=self._limit_s)
        exchange = Exchange(endpoint=self._target.endpoint, limits=limits)
        await exchange.run(self._transport, request)
        facts = await exchange.settle()
        if facts["outcome"] is Outcome.OK:
            return None
        said = self._plain(facts["error"] or facts["error_class"] or "")
        text = f"a request for one token: {facts['error_class']} ({said})"
        if fault_of(facts["outcome"], facts["error_class"]) is Fault.REQUEST:
            return self._perhaps_final(text)
        return Failure(text=text)

    def _refused(self, what: str, response: httpx.Response) -> Failure:
        status, where = response.status_code, self._target.masked_url
        if self._proxy and status in (403, 407):
            raise PreflightFailed(
                f"{where}: HTTP {status}, from the server or from proxy {self._proxy}; set "
                f"LOADGEN_API_KEY, or, {without_proxy(response.url.host)}"
            )
        if status in (401, 403):
            raise PreflightFailed(
                f"{where}: wants another key (HTTP {status}); set LOADGEN_API_KEY"
            )
        said = self._plain(_words(response.content))
        return Failure(text=f"{what}: HTTP {status}{f' ({said})' if said else ''}")

    def _perhaps_final(self, text: str) -> Failure:
        """A server may still be loading: only what stays is final."""
        self._refusals += 1
        return Failure(text=text, final=self._refusals >= _PATIENCE)

    def _plain(self, text: str) -> str:
        return scrub(mask(text, self._secrets), self._secrets)


def _transport(target: Target) -> StockTransport:
    context = None
    if target.base_url.startswith("https"):
        try:
            context = ssl_context(ca_file=target.ca_file, insecure=target.insecure)
        except OSError as error:
            raise UsageError(f"--ca-file {target.ca_file}: {error}") from error
    return stock_transport(context=context, proxy=proxy_for(target.base_url), reuse=False)


def _words(body: bytes) -> str:
    """Return the message of a JSON error, else the page's own text."""
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body[:200].decode("utf-8", "replace")
    while isinstance(told, dict):
        told = next((told[key] for key in ("error", "message", "detail") if key in told), "")
    return str(told)
