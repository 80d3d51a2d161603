"""Decide where a webhook may go: to public addresses over https, and where the operator allows. Nothing here connects.

The host is resolved, every answer is checked, and the one address to connect to is returned, so that a second answer
for the same name is never used.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Literal

from msgspec import Struct

from director.core.errors import DirectorError, SettingsError
from director.core.webhook_url import HOST_NAME, WebhookUrl, read_webhook_url

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns every address of a host and port, most preferred first. Raises OSError or UnicodeError if it has none."""

PUBLIC_PORTS: Final = frozenset({443, 8443})

# IANA's special-purpose registry, written out: some releases of `ipaddress` miss several of these (3.11 calls
# 224.0.0.1, 3fff::1 and fec0::1 global)
NOT_PUBLIC: Final = tuple(
    ip_network(each)
    for each in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # globally routable on paper; inside Azure it is the host's own agent
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",  # protocol assignments, Teredo among them: two IPv4 addresses in one
        "2001:db8::/32",
        "3fff::/20",
    )
)
# all of IPv6 that is assigned; the rest is local, multicast, reserved or an IPv4 address in disguise (::/96,
# 64:ff9b:1::/48, fc00::/7, fe80::/10, fec0::/10, ff00::/8)
ALLOCATED_V6: Final = IPv6Network("2000::/3")
# IPv6 networks that lead to an IPv4 address, and the bits to the right of that address
EMBEDDED_V4: Final = (
    (IPv6Network("::ffff:0:0/96"), 0),  # mapped
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (IPv6Network("2002::/16"), 80),  # 6to4
)

LOOPBACK: Final = (ip_network("127.0.0.0/8"), ip_network("::1/128"))

# Threads of their own, since a lookup cannot be canceled: a few dead name servers that callers choose would otherwise
# hold every thread of asyncio's default pool, which has six on a small machine.
_LOOKUPS: Final = ThreadPoolExecutor(max_workers=256, thread_name_prefix="webhook-lookup")


Rule = Literal["bad_url", "private_address", "http_not_allowed", "port_not_allowed"]
"""The rule that forbids an address: a closed set of words that callers see."""


class Refused(DirectorError):
    """A webhook may not go there. The caller corrects the URL, or the operator allows the host."""

    def __init__(self, rule: Rule, reason: str) -> None:
        super().__init__(reason)
        self.rule: Rule = rule


class Unresolved(DirectorError):
    """The host has no address at the moment. No rule is broken: try again later."""


class Target(Struct, frozen=True, kw_only=True):
    url: WebhookUrl
    ip: str


class AllowList(Struct, frozen=True):
    """The hosts that an operator allows although they are not public: by name, or by network."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "AllowList":
        """Read a setting: the word `loopback`, host names, addresses and CIDRs, between commas."""
        hosts: set[str] = set()
        networks: list[Network] = []
        for entry in filter(None, map(str.strip, text.split(","))):
            if entry.lower() == "loopback":
                networks.extend(LOOPBACK)
                continue
            try:
                networks.append(ip_network(entry))
            except ValueError:
                name = _bare(entry.lower())
                # `10.0.0` is a network cut short, not a name: no top-level domain is a number
                if not HOST_NAME.fullmatch(name) or re.fullmatch(r"[0-9]+", name.rpartition(".")[2]):
                    reason = f"webhook allow-list: {entry!r} is not a network, an address or a host name"
                    raise SettingsError(reason) from None
                hosts.add(name)
        return cls(frozenset(hosts), tuple(networks))

    def names(self, host: str) -> bool:
        """Is the host allowed wherever it leads?"""
        return _bare(host) in self.hosts

    def covers(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def is_public(address: Address) -> bool:
    """Is this an address of the internet at large? Looks through IPv6 forms that carry an IPv4 address."""
    if isinstance(address, IPv6Address):
        for network, shift in EMBEDDED_V4:
            if address in network:
                return is_public(IPv4Address(int(address) >> shift & 0xFFFF_FFFF))
        if address not in ALLOCATED_V6:
            return False
    # `is_global` knows the networks that a later Python adds
    return address.is_global and not any(address in network for network in NOT_PUBLIC)


async def system_resolve(host: str, port: int) -> Sequence[str]:
    """Resolve as a connection of this machine would: hosts file, search domains and odd spellings included."""
    lookup = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    answers = await asyncio.get_running_loop().run_in_executor(_LOOKUPS, lookup)
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in answers]


async def checked_address(url: str, allow: AllowList, *, resolve: Resolve = system_resolve) -> Target:
    """Return the target of this URL, which must be https unless the operator allows its host.

    Raises Refused or Unresolved. One answer that is not public refuses the host: a connection might use any.
    """
    try:
        parsed = read_webhook_url(url)
    except ValueError as exc:
        raise Refused("bad_url", f"the URL {exc}") from exc
    addresses = await _addresses(parsed, resolve)
    others = [] if allow.names(parsed.host) else [address for address in addresses if not allow.covers(address)]
    if not all(map(is_public, others)):
        # the reason leaves out the address: it would tell a caller what our name server knows
        raise Refused("private_address", f"{parsed.host} is not a public address")
    if others and parsed.scheme != "https":
        reason = f"{parsed.host} would get webhooks over http://, where others can read them: use https://"
        raise Refused("http_not_allowed", reason)
    if others and parsed.port not in PUBLIC_PORTS:
        reason = f"port {parsed.port} is not one of {', '.join(map(str, sorted(PUBLIC_PORTS)))}"
        raise Refused("port_not_allowed", reason)
    return Target(url=parsed, ip=str(addresses[0]))


async def _addresses(url: WebhookUrl, resolve: Resolve) -> list[Address]:
    try:
        answers = await resolve(url.host, url.port)
    except (OSError, UnicodeError) as exc:
        raise Unresolved(f"{url.host} does not resolve") from exc
    if not answers:
        raise Unresolved(f"{url.host} does not resolve")
    found = map(ip_address, answers)
    # a mapped address as the IPv4 address that sockets use, so that networks compare with that
    return [(one.ipv4_mapped or one) if isinstance(one, IPv6Address) else one for one in found]


def _bare(host: str) -> str:
    return host.removesuffix(".")
