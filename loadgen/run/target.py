"""Where a log may be replayed to: what was said in production is not for third parties."""

import asyncio
import ipaddress
import socket

import httpx

from loadgen.errors import UsageError
from loadgen.scenario.model import Scenario


async def refuse_public_target(scenario: Scenario, *, proxied: bool) -> None:
    """Raise UsageError where a log would be replayed to an address that is not known to be private.

    A host whose name does not resolve here is left to the preflight, unless a proxy would resolve
    it elsewhere.
    """
    if not scenario.replays or scenario.target.allow_public:
        return
    host = httpx.URL(scenario.target.base_url).raw_host.decode("ascii")  # as it is looked up
    addresses = await _addresses_of(host)
    public = [one for one in addresses if not is_private(one)]
    if public or (proxied and not addresses):
        seen = f"resolves to {public[0]}" if public else "is reached by a proxy"
        raise UsageError(
            f"{host}: {seen}, which is neither loopback nor private: the log would leave your "
            "network; allow that with --allow-public-target (target.allow_public: true)"
        )


def is_private(address: str) -> bool:
    """Say whether an address is loopback, private or link-local; ``fe80::1%eth0`` has a zone."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    judged = found if mapped is None else mapped
    return bool(judged.is_loopback or judged.is_link_local or judged.is_private)


async def _addresses_of(host: str) -> list[str]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError: no name, as IDNA has it
        return []
    return [str(entry[4][0]) for entry in found]
