"""What the simulator serves: routes, the engine's clock, and which answer fails.

The engine's steps end on an absolute schedule; all tokens of a step
are written one after the other as soon as the step is due, each with its own stamp, as a batched
engine does.
"""

import asyncio
import hmac
import re
import time
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import count
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import orjson

from loadgen.simulator.answer import Choice, Order, StreamedAnswer, WholeAnswer
from loadgen.simulator.ask import Ask, PromptText, Refused, Rules, read_ask
from loadgen.simulator.dialects import DIALECTS, Head
from loadgen.simulator.engine import Engine, Sequence
from loadgen.simulator.faults import Dealer
from loadgen.simulator.http import Connection, Request
from loadgen.simulator.lookups import (
    SETUP_PATHS,
    identity,
    models_body,
    setup_body,
    tokenize_body,
)
from loadgen.simulator.refusals import injected, refusal_body, refused_in_stream
from loadgen.simulator.spec import SimulatorSpec
from loadgen.simulator.stats import Gauges, Served, Stats, metrics_text
from loadgen.simulator.timer import Alarm
from loadgen.simulator.words import answer_words, natural_length
from loadgen.units import NS_PER_S

Answer = StreamedAnswer | WholeAnswer

_JSON = ("content-type", "application/json")
_DEPLOYMENT = re.compile(r"/openai/(?:deployments/[^/]+|v1)/(chat/completions|completions)")
_HTML = b"<!doctype html><html><body><h1>502 Bad Gateway</h1></body></html>"
_STATUSES = {"status_429": 429, "status_500": 500, "status_503": 503}
_OPEN_PATHS = ("/health", "/metrics", "/version", "/sim/stats", "/sim/reset")  # need no key


class Simulator:
    """The site that connections serve: one engine, one dialect."""

    def __init__(self, spec: SimulatorSpec, loop: asyncio.AbstractEventLoop) -> None:
        self._spec = spec
        self._dialect = DIALECTS[spec.dialect]
        self._started_ns = time.monotonic_ns()
        self._wall_s = datetime.now(tz=UTC).timestamp()
        self._alarm = Alarm(loop, self._ring)
        self._rules = Rules(
            dialect=self._dialect,
            model=spec.model,
            context=spec.context_limit,
            template_tokens=spec.template_tokens,
        )
        self._connections: set[Connection] = set()
        self._keys = count()
        self._reset()

    def _reset(self) -> None:
        """Begin anew: the same seeds, empty queue, caches and counts."""
        spec = self._spec
        seeds = iter(np.random.SeedSequence(spec.seed).generate_state(4).tolist())
        self._engine = Engine(spec.engine, seed=next(seeds))
        per_request = [(f.kind, f.share) for f in spec.faults if f.kind != "slow_connect"]
        slow = [(f.kind, f.share) for f in spec.faults if f.kind == "slow_connect"]
        self._faults = Dealer(per_request, seed=next(seeds))
        self._slow = Dealer(slow, seed=next(seeds))
        self._garble = Dealer([("garble", spec.garble)], seed=next(seeds))
        self._stats = Stats()
        self._steps_told = 0
        self._answers: dict[int, tuple[Answer, int]] = {}

    def close(self) -> None:
        """Drop every connection and stop the clock."""
        self._alarm.close()
        for connection in list(self._connections):
            connection.transport.abort()

    # -- connections

    def opened(self, connection: Connection) -> None:
        """Note a new connection."""
        self._connections.add(connection)
        self._stats.connections += 1
        connection.number = self._stats.connections
        if self._slow.deal():
            self._stats.faults["slow_connect"] += 1
            connection.hold(self._spec.slow_connect_s)

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)

    def answer(self, connection: Connection, request: Request) -> None:
        """Answer one request, now or as the engine gets to it."""
        path = request.path.rstrip("/") or "/"
        try:
            if self._spec.api_key is not None and path not in _OPEN_PATHS:
                self._check_key(request)
            if match := _DEPLOYMENT.fullmatch(path):
                path = f"/v1/{match[1]}"
            if path in ("/v1/chat/completions", "/v1/completions"):
                _need_method(request, "POST")
                self._generate(connection, request, chat="chat" in path)
            else:
                self._look_up(connection, request, path)
        except Refused as refused:
            self._refuse(connection, refused)

    def _check_key(self, request: Request) -> None:
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        given = bearer or request.headers.get("api-key", "")
        if not hmac.compare_digest(given.encode(), (self._spec.api_key or "").encode()):
            raise Refused("unauthorized", "Invalid API key", status=401)

    def _refuse(self, connection: Connection, refused: Refused) -> None:
        status, kind, body = refusal_body(refused, self._dialect)
        more = (("retry-after", "1"),) if status == 429 else ()
        connection.respond(status, (*self._dialect.headers, ("content-type", kind), *more), body)

    def _respond(self, connection: Connection, value: object) -> None:
        connection.respond(200, (*self._dialect.headers, _JSON), orjson.dumps(value))

    # -- generation

    def _generate(self, connection: Connection, request: Request, *, chat: bool) -> None:
        served = Served(
            id="",
            connection=connection.number,
            accepted_ns=connection.accepted_ns,
            arrived_ns=request.arrived_ns,
            read_ns=request.read_ns,
            request_id=request.headers.get("x-request-id"),
        )
        self._stats.begin(served)
        try:
            ask = read_ask(request.body, chat=chat, rules=self._rules)
            self._check_room(ask)
        except Refused as refused:
            self._refuse_generation(connection, refused, served=served, body=request.body)
            return
        fault = None if ask.is_probe and not self._spec.fault_probes else self._faults.deal()
        if fault:
            served.fault = fault
            self._stats.faults[fault] += 1
        if not self._fails_at_once(connection, served):
            self._start(connection, ask, served)

    def _refuse_generation(
        self, connection: Connection, refused: Refused, *, served: Served, body: bytes
    ) -> None:
        event = refused_in_stream(refused)
        if self._dialect.name == "transformers" and event is not None:
            # This one opens the stream before it looks at the number.
            asked = orjson.loads(body) | {"max_tokens": 1, "max_completion_tokens": None}
            chat = "messages" in asked
            ask = read_ask(orjson.dumps(asked | {"stream": True}), chat=chat, rules=self._rules)
            answer = StreamedAnswer(self._order(ask, served), connection, self._stats)
            answer.begin()
            answer.fail(event)
            return
        served.status = refusal_body(refused, self._dialect)[0]
        self._stats.end(served, how="refused", now_ns=time.monotonic_ns())
        self._refuse(connection, refused)

    def _check_room(self, ask: Ask) -> None:
        # A server without a context check still cannot hold more than its KV tokens.
        longest = max(prompt.tokens for prompt in ask.prompts)
        if longest >= self._spec.context_limit:
            raise Refused("no_room", "The prompt does not fit into memory.", status=500)

    def _fails_at_once(self, connection: Connection, served: Served) -> bool:
        status = _STATUSES.get(served.fault or "")
        if status is None and served.fault != "html":
            return False
        served.status = status or 200
        self._stats.end(served, how="fault", now_ns=time.monotonic_ns())
        if status is not None:
            self._refuse(connection, injected(status))
        else:
            connection.respond(200, (("content-type", "text/html"),), _HTML)
        return True

    def _start(self, connection: Connection, ask: Ask, served: Served) -> None:
        order = self._order(ask, served)
        answer: Answer
        if ask.stream:
            answer = StreamedAnswer(order, connection, self._stats)
        else:
            answer = WholeAnswer(order, connection, self._stats)
        answer.begin()
        if served.fault == "empty" and isinstance(answer, StreamedAnswer):
            answer.empty()
            return
        connection.on_lost = lambda: self._lost(order, answer)
        for index, choice in enumerate(order.choices):
            self._answers[choice.sequence.key] = (answer, index)
            self._engine.submit(choice.sequence, now_ns=served.read_ns)
        self._set_alarm()

    def _order(self, ask: Ask, served: Served) -> Order:
        dialect, spec = self._dialect, self._spec
        wall_s = self._wall_s + (served.read_ns - self._started_ns) / NS_PER_S
        number = self._stats.arrivals
        garbled = self._garble.deal() is not None
        prompts = [prompt for prompt in ask.prompts for _ in range(ask.choices)]
        choices = tuple(
            self._choice(ask, prompt, choice=index % ask.choices, garbled=garbled)
            for index, prompt in enumerate(prompts)
        )
        own_ids = dialect.id_style == "hex"
        heads = tuple(
            Head(
                id=identity(dialect.id_style, number, choice=index if own_ids else 0, ask=ask),
                created=int(wall_s),
                model=spec.model,
                chat=ask.chat,
                asked_usage=ask.usage,
            )
            for index in range(len(choices))
        )
        served.id = heads[0].id
        return Order(
            ask=ask,
            dialect=dialect,
            heads=heads,
            choices=choices,
            served=served,
            stream_interval=spec.stream_interval,
            report_cached=spec.report_cached,
        )

    def _choice(self, ask: Ask, prompt: PromptText, *, choice: int, garbled: bool) -> Choice:
        spec = self._spec
        room = spec.context_limit - prompt.tokens
        length, finish = room, "length"
        if ask.max_tokens is not None:
            length = min(ask.max_tokens, room)
        elif not ask.to_the_limit:
            mean = spec.natural_tokens
            natural = natural_length(spec.seed, prompt.digest, choice=choice, mean=mean)
            length, finish = (natural, "stop") if natural <= room else (room, "length")
        sequence = Sequence(
            key=next(self._keys),
            prompt_tokens=prompt.tokens,
            output_tokens=length,
            blocks=prompt.blocks,
        )
        word = answer_words(spec.seed, prompt.digest, choice=choice, garbled=garbled)
        return Choice(sequence=sequence, word=word, finish=finish)

    def _lost(self, order: Order, answer: Answer) -> None:
        answer.lost()
        self._cancel(order.choices)

    def _cancel(self, choices: tuple[Choice, ...]) -> None:
        for choice in choices:
            self._answers.pop(choice.sequence.key, None)
            self._engine.cancel(choice.sequence)

    # -- the engine's clock

    def _set_alarm(self) -> None:
        at_ns = self._engine.next_event_ns()
        if at_ns is not None:
            self._alarm.set(at_ns)

    def _ring(self) -> None:
        # One step for each alarm: between two late ones the sockets are read.
        step = self._engine.step(time.monotonic_ns())
        if step is not None:
            self._stats.steps += 1
            for key, number, last in step.emissions:
                entry = self._answers.get(key)
                if entry is None:
                    continue  # cancelled within this step
                answer, index = entry
                if last:
                    del self._answers[key]
                if not answer.token(index, number=number, last=last):
                    self._cancel(answer.choices)
        self._set_alarm()

    # -- everything else

    def _look_up(self, connection: Connection, request: Request, path: str) -> None:
        dialect = self._dialect
        match path:
            case "/sim/reset":
                _need_method(request, "POST")
                self._drop_answers()
                self._reset()
                self._respond(connection, {"reset": True})
            case "/sim/stats":
                _need_method(request, "GET")
                chunks = parse_qs(request.query).get("chunks") == ["1"]
                self._respond(connection, self._facts(with_chunks=chunks))
            case "/health":
                self._health(connection)
            case "/v1/models":
                _need_method(request, "GET")
                self._respond(
                    connection, models_body(self._spec, dialect, created=int(self._wall_s))
                )
            case "/version" if dialect.version:
                self._respond(connection, {"version": dialect.version})
            case "/server_info" | "/props" if SETUP_PATHS.get(dialect.name) == path:
                self._respond(connection, setup_body(self._spec, dialect))
            case "/metrics" if dialect.metrics != "none":
                self._metrics(connection)
            case "/tokenize" if dialect.name in ("vllm", "sglang", "llamacpp"):
                _need_method(request, "POST")
                body = tokenize_body(request.body, self._spec, dialect)
                self._respond(connection, body)
            case _:
                raise Refused("not_found", "Not Found", status=404)

    def _drop_answers(self) -> None:
        for answer in dict.fromkeys(answer for answer, _ in self._answers.values()):
            self._cancel(answer.choices)
            answer.drop()

    def _facts(self, *, with_chunks: bool) -> dict[str, Any]:
        facts: dict[str, Any] = {"now_ns": time.monotonic_ns()}
        facts |= {"dialect": self._dialect.name, "seed": self._spec.seed}
        engine = self._engine
        facts |= {"running": engine.running, "waiting": engine.waiting}
        facts |= {"prefix_queries": engine.prefix_queries, "prefix_hits": engine.prefix_hits}
        return facts | self._stats.as_dict(with_chunks=with_chunks)

    def _health(self, connection: Connection) -> None:
        if self._dialect.name in ("llamacpp", "transformers"):
            self._respond(connection, {"status": "ok"})
        else:
            connection.respond(200, self._dialect.headers, b"")

    def _metrics(self, connection: Connection) -> None:
        engine, spec = self._engine, self._spec
        if self._dialect.metrics == "json":  # iteration statistics, drained by reading
            told, self._steps_told = self._steps_told, self._stats.steps
            active = {"iter": self._stats.steps, "numActiveRequests": engine.running}
            latest = [active | {"numQueuedRequests": engine.waiting}]
            self._respond(connection, latest if self._stats.steps > told else [])
            return
        gauges = Gauges(
            model=spec.model,
            running=engine.running,
            waiting=engine.waiting,
            kv_usage=engine.kv_held / spec.engine.kv_tokens,
            kv_tokens=spec.engine.kv_tokens,
            prefix_queries=engine.prefix_queries,
            prefix_hits=engine.prefix_hits,
        )
        text = metrics_text(self._dialect.metrics, self._stats, gauges)
        kind = ("content-type", "text/plain; version=0.0.4; charset=utf-8")
        connection.respond(200, (*self._dialect.headers, kind), text.encode())


def _need_method(request: Request, method: str) -> None:
    if request.method != method:
        raise Refused("wrong_method", HTTPStatus(405).phrase, status=405)
