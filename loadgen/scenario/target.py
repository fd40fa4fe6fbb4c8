"""The server under test and how it is spoken to; the parts that several servers do not share."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from loadgen.engines import by_name
from loadgen.errors import UsageError
from loadgen.scenario import url as urls
from loadgen.scenario.fields import FreeForm, Part, Switch
from loadgen.scenario.server import Server

TOKENIZERS = ("cl100k_base", "o200k_base", "p50k_base")
RESERVED_BODY_FIELDS = {
    "stream": "answers are always streamed",
    "model": "set target.model",
    "messages": "the prompts make these",
    "prompt": "the prompts make this",
    "max_tokens": "set prompts.output_tokens",
    "max_completion_tokens": "set prompts.output_tokens",
}
"""Fields of the body that ``request`` may not set, and where each is decided instead."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def _nothing_reserved(body: dict[str, Any]) -> dict[str, Any]:
    taken = [f"'{key}' cannot be set here: {why}"
             for key, why in RESERVED_BODY_FIELDS.items() if key in body]  # fmt: skip
    if taken:
        raise ValueError("; ".join(taken))
    return body


Body = Annotated[FreeForm, AfterValidator(_nothing_reserved)]


class Target(Part):
    """The server under test and how it is spoken to.

    allow_public: a log may be replayed to an address that is neither loopback nor private.
    tokenizer: counts the tokens that the server does not report: cl100k_base, o200k_base or the
        path of a tokenizer.json.
    """

    url: str
    model: Annotated[str, Field(min_length=1)] | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    engine: str = "auto"
    endpoint: Literal["chat", "completions"] = "chat"
    ca_file: Annotated[str, Field(min_length=1)] | None = None
    insecure: Switch = False
    transport: Literal["own", "stock"] = "own"
    connections: Literal["reuse", "per_request"] = "reuse"
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    allow_public: Switch = False

    @field_validator("url")
    @classmethod
    def _usable_url(cls, value: str) -> str:
        if problem := urls.url_problem(value):
            raise ValueError(problem)
        return value

    @field_validator("tokenizer")
    @classmethod
    def _known_tokenizer(cls, value: str | None) -> str | None:
        if value is None or names_a_file(value) or value in TOKENIZERS:
            return value
        known = ", ".join(TOKENIZERS)
        raise ValueError(
            f"'{value}' is not known; name one of {known}, or a path to tokenizer.json"
        )

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, value: str) -> str:
        if value == "auto":
            return value
        try:
            return by_name(value).name
        except UsageError as error:
            raise ValueError(str(error).removeprefix("engine: ")) from None

    @field_validator("headers")
    @classmethod
    def _usable_headers(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():  # the text itself is private: never in a message
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a header name")
            if not text.isprintable() or not text.isascii():
                raise ValueError(f"the value of {name} holds a line break or a letter not in ASCII")
        return value

    @property
    def base_url(self) -> str:
        """``http://host:port/v1``, without credentials."""
        return urls.base_url(self.url)

    @property
    def root_url(self) -> str:
        """The address below which /health, /metrics and /version lie."""
        return urls.root_url(self.url)

    @property
    def port(self) -> int:
        """The port that the address names, or its scheme's own."""
        return urls.port_of(self.url)

    @property
    def basic_auth(self) -> urls.BasicAuth | None:
        """User and password of the URL, if it carries them."""
        return urls.basic_auth(self.url)

    @property
    def masked_url(self) -> str:
        """The address as given, safe to print."""
        return urls.masked_url(self.url)

    @property
    def masked_base_url(self) -> str:
        """The base URL, safe to print: a query string may carry a key."""
        return urls.masked_url(self.base_url)

    def endpoint_url(self, kind: str | None = None) -> str:
        """Return the address of "chat", "completions" or "models"; None: the target's own."""
        return urls.join_url(self.base_url, urls.ENDPOINT_PATHS[kind or self.endpoint])


class Variant(Part):
    """One of several servers: the parts it does not share with the others, each of them whole.

    Which it does not share, ``model_fields_set`` says: server None is one that runs already.
    """

    server: Server | None = None
    target: Target | None = None
    request: Body = Field(default_factory=dict)
    conditions: FreeForm = Field(default_factory=dict)


def names_a_file(tokenizer: object) -> bool:
    """Say whether a tokenizer is given as a path rather than by its name."""
    return isinstance(tokenizer, str) and ("/" in tokenizer or tokenizer.endswith(".json"))
