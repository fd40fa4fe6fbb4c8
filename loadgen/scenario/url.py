"""One server, many ways to write its address: the forms that mean the same become one."""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

ENDPOINT_PATHS = {"chat": "chat/completions", "completions": "completions", "models": "models"}
MASK = "***"

_ENDPOINT_SUFFIX = re.compile(r"/(chat/completions|completions|models)$")
# A path that already names its API version ("/v1", "/api/v3") or is Azure's is left as it stands.
_VERSIONED = re.compile(r"(/v[0-9]+[a-z0-9]*|/openai)$|/openai/deployments/")
_LIKE_IPV4 = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+")
_OPEN_QUERY_KEYS = frozenset({"api-version"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicAuth:
    """User and password taken from a URL; sent as basic auth, never written anywhere."""

    user: str
    password: str


def url_problem(url: str) -> str | None:
    """Say what is wrong with an address and what to write instead; None if it will do."""
    if not url.strip():
        return "is empty; write the server's address, like http://localhost:8000"
    if " " in url or not url.isprintable():
        return (
            "holds a space or a character that does not print; write it like http://localhost:8000"
        )
    if "://" not in url:
        return f"has no scheme; did you mean 'http://{_without_user(url)}'?"
    parts = _split(url)
    if parts is None:
        return "is not a URL; write it like http://localhost:8000"
    if parts.scheme not in ("http", "https"):
        return f"has the scheme '{parts.scheme}'; only http and https are spoken"
    if not parts.hostname:
        return "names no host; write it like http://localhost:8000"
    if parts.fragment:
        return "has a part after '#', which is never sent; leave it out"
    if why := _host_problem(parts.hostname, bracketed="[" in parts.netloc):
        return f"names the host '{parts.hostname}', {why}; write it like http://localhost:8000"
    return None


def base_url(url: str) -> str:
    """Return ``http://host:port/v1`` without credentials, for every form of the same address.

    A gateway's path prefix stays and ``/v1`` follows it; a path that names its version, Azure's
    ``/openai/deployments/NAME`` and a query string stay as given.
    """
    parts = urlsplit(url)
    path = _ENDPOINT_SUFFIX.sub("", parts.path.rstrip("/")).rstrip("/")
    azure = "api-version" in dict(parse_qsl(parts.query, keep_blank_values=True))
    if not azure and not _VERSIONED.search(path):
        path += "/v1"
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{_without_user(parts.netloc)}{path}{query}"


def join_url(base: str, path: str) -> str:
    """Append a path to a base URL, in front of its query string."""
    parts = urlsplit(base)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{path.lstrip('/')}").geturl()


def root_url(url: str) -> str:
    """Return the address below which /health, /metrics and /version lie: the base without /v1."""
    parts = urlsplit(base_url(url))
    path = re.sub(r"/v[0-9]+[a-z0-9]*$", "", parts.path)
    return parts._replace(path=path, query="").geturl()


def port_of(url: str) -> int:
    """Return the port of an address: its own, or the one its scheme stands for."""
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)


def basic_auth(url: str) -> BasicAuth | None:
    """Return the user and password that a URL carries, percent-decoded."""
    parts = urlsplit(url)
    if parts.username is None:
        return None
    return BasicAuth(user=unquote(parts.username), password=unquote(parts.password or ""))


def masked_url(url: str) -> str:
    """Write an address with credentials and all query values but ``api-version`` masked."""
    parts = _split(url)
    if parts is None:
        return MASK
    netloc = parts.netloc
    if "@" in netloc:
        netloc = f"{MASK}@{_without_user(netloc)}"
    query = [
        (key, value if key in _OPEN_QUERY_KEYS else MASK)
        for key, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    return parts._replace(netloc=netloc, query=urlencode(query, safe="*")).geturl()


def _host_problem(host: str, *, bracketed: bool) -> str | None:
    """Say why a host cannot exist: what neither ``getaddrinfo`` nor httpx would even look up."""
    try:
        if bracketed:
            ipaddress.IPv6Address(host)
        elif _LIKE_IPV4.fullmatch(host):
            ipaddress.IPv4Address(host)
    except ValueError:
        return f"which is not an IPv{6 if bracketed else 4} address"
    try:
        host.encode("idna")
        if not host.isascii() or host.startswith("xn--"):
            import idna  # httpx's rules, newer than those of Python's codec; most hosts need none

            idna.decode(idna.encode(host))
    except UnicodeError:
        return "which is no name: its parts have 1 to 63 letters, digits and dashes each"
    return None


def _split(url: str) -> SplitResult | None:
    """Split a URL; None where it cannot be one (a bad port, an unclosed bracket)."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # is checked only when asked for
    except ValueError:
        return None
    return parts


def _without_user(netloc: str) -> str:
    return netloc.rsplit("@", 1)[-1]
