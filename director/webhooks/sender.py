"""Deliver one webhook once, to an address where it may go, and return how it went.

A webhook may go to public addresses over https, and where the operator allows. The host is resolved once, every answer
is checked, and the addresses that were checked are connected to in turn, so that a second answer for the same name is
never used.
The signed bytes are the sent ones. A sender never retries, follows no redirect, uses no proxy, and never raises for
what a receiver does.
"""

import asyncio
import re
import socket
import ssl
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Literal
from weakref import WeakValueDictionary

import httpx
from msgspec import Struct

from director import __version__
from director.core.errors import DirectorError, SettingsError
from director.core.schema import NO_TRACE, TraceHeaders
from director.core.webhooks import HOST_NAME, WebhookUrl, read_webhook_url, sign_headers

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns every address of a host and port, most preferred first. Raises OSError or UnicodeError if it has none."""

CONNECT_S: Final = 3.0
ANSWER_BYTES: Final = 64 * 1024
# As many as a courier sends at once (director/keeper/courier.py), so it never waits here for other receivers
AT_ONCE: Final = 256
MOST_OF_ACCOUNT: Final = 192  # of these: its receivers that hang, at however many hosts, leave room to others
AT_ONCE_PER_HOST: Final = 32  # of all accounts: many send to the same relay
AT_ONCE_PER_ACCOUNT: Final = 8  # at one host

# a receiver may delay the next attempt, but by no more than the longest step of the retry schedule
RETRY_AFTER_MAX_S: Final = 86_400.0

# first match wins
FAILURES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (httpx.ConnectTimeout, f"no connection within {CONNECT_S:g} s"),
    (httpx.ConnectError, "no connection"),
    (httpx.RemoteProtocolError, "closed the connection or did not answer in HTTP"),
    (Exception, "the connection broke"),
)

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
    """Where a webhook may go. `ips`: all addresses of its host, most preferred first."""

    url: WebhookUrl
    ips: tuple[str, ...]


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


async def check_address(url: str, allow: AllowList, *, resolve: Resolve = system_resolve) -> Target:
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
    return Target(url=parsed, ips=tuple(dict.fromkeys(map(str, addresses))))


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


class Delivery(Struct, frozen=True, kw_only=True):
    """How one attempt went. `reason` is for people and holds no path, query or secret.

    `gone`: 410, the receiver wants no more. `rule`: the one that forbids the URL; another attempt helps only if the
    host's addresses or the allow-list change. `was_sent` is False if no request could be made.
    """

    ok: bool
    status: int | None = None
    reason: str = ""
    gone: bool = False
    rule: Rule | None = None
    retry_after_s: float | None = None
    was_sent: bool = True

    @property
    def refused(self) -> bool:
        return self.rule is not None

    @property
    def is_missed(self) -> bool:
        """Return whether the host is away: no answer, or a 5xx. Other answers are about the webhook or the receiver."""
        return self.was_sent and not self.refused and not self.ok and (self.status is None or self.status >= 500)

    @property
    def host_answers(self) -> bool | None:
        """Return False for no answer, or an error that other webhooks would get too. None if the host was not asked."""
        if self.refused or not self.was_sent:
            return None
        return self.status is not None and self.status < 500 and self.status != httpx.codes.TOO_MANY_REQUESTS


class FairSemaphore:
    """Let deliveries go: `most` at once, and `each` of one account. A free permit goes to the account that
    has the fewest, so receivers of one account that hang delay no other account.
    """

    def __init__(self, most: int, *, each: int) -> None:
        self._free = most
        self._each = each
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def take(self, account: str) -> AsyncIterator[None]:
        permit: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(account, deque()).append(permit)
        self._grant()
        try:
            await asyncio.wait([permit])  # a canceled wait leaves the future as it is: granted or not
            yield
        finally:
            if permit.done():
                self._free += 1
                self._held[account] -= 1
                if not self._held[account]:
                    del self._held[account]
            else:
                self._take_off(account, permit)
            self._grant()

    def _grant(self) -> None:
        while self._free:
            may_have = (account for account in self._waiting if self._held[account] < self._each)
            account = min(may_have, key=self._held.__getitem__, default=None)
            if account is None:
                return
            permit = self._waiting[account][0]
            self._take_off(account, permit)
            self._free -= 1
            self._held[account] += 1
            permit.set_result(None)

    def _take_off(self, account: str, permit: asyncio.Future[None]) -> None:
        self._waiting[account].remove(permit)
        if not self._waiting[account]:
            del self._waiting[account]


class Sender:
    """Sends for many callers at once. A wait for a free connection takes no time from an attempt.

    `tls`: the authorities to trust, by default the public ones. `on_sent` gets success and time of each webhook.
    """

    def __init__(
        self,
        allow: AllowList,
        *,
        timeout_s: float = 15.0,
        resolve: Resolve = system_resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.allow = allow
        self.timeout_s = timeout_s
        self.on_sent: Callable[[bool, float], None] = lambda ok, took_s: None
        self._resolve = resolve
        # Per host, since a dead host fills its own limit, not everyone's. Weak: it is forgotten with its last delivery.
        self._by_host: WeakValueDictionary[str, FairSemaphore] = WeakValueDictionary()
        self._all = FairSemaphore(AT_ONCE, each=MOST_OF_ACCOUNT)
        # a transport, not a client: it has no redirects, cookies, proxies or .netrc that could leak from one receiver
        # to the next. No connection is kept: it belongs to an address, and the next host at the same address would be
        # spoken to under the certificate of the first
        self._transport = httpx.AsyncHTTPTransport(
            verify=tls or httpx.create_ssl_context(trust_env=False),
            trust_env=False,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )

    async def send(
        self,
        url: str,
        *,
        message_id: str,
        body: bytes,
        secrets: Sequence[str],
        now_s: float,
        account: str = "",
        trace: TraceHeaders = NO_TRACE,
    ) -> Delivery:
        """POST `body` to `url` at the unix time `now_s`. `account`: whose limits count. Raises ValueError
        only for a malformed secret or id.
        """
        try:
            host = read_webhook_url(url).authority
        except ValueError as exc:
            return Delivery(ok=False, rule="bad_url", reason=f"the URL {exc}")
        clock = asyncio.get_running_loop().time
        asked_at_s = clock()
        of_host = self._by_host.get(host)
        if of_host is None:
            of_host = self._by_host[host] = FairSemaphore(AT_ONCE_PER_HOST, each=AT_ONCE_PER_ACCOUNT)
        # in this order, so that a wait for one host holds nothing of all
        async with of_host.take(account), self._all.take(account):
            # receivers refuse a timestamp that is five minutes old, and the wait for a connection may be longer
            sent_at_s = now_s + clock() - asked_at_s
            headers = sign_headers(secrets, message_id=message_id, timestamp_s=int(sent_at_s), body=body)
            began_s = clock()
            delivery = await self._attempt(url, {**trace, **headers}, body, sent_at_s)
            self.on_sent(delivery.ok, clock() - began_s)
            return delivery

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _attempt(self, url: str, headers: dict[str, str], body: bytes, sent_at_s: float) -> Delivery:
        delivery: Delivery | None = None
        try:
            async with asyncio.timeout(self.timeout_s):
                target = await check_address(url, self.allow, resolve=self._resolve)
                response = await self._send(target, headers, body)
                try:
                    delivery = _judge(response, sent_at_s)
                    await _read(response)
                finally:
                    await response.aclose()
        except Refused as exc:
            return Delivery(ok=False, rule=exc.rule, reason=str(exc))
        except Unresolved as exc:
            return Delivery(ok=False, reason=str(exc))
        except TimeoutError:
            reason = f"no answer within {self.timeout_s:g} s"
        except (httpx.TransportError, OSError) as exc:  # TLS that breaks after the handshake is an OSError
            reason = _in_words(exc)
        else:
            return delivery
        # a status is the verdict, even if the receiver breaks off afterwards
        return delivery or Delivery(ok=False, reason=reason)

    async def _send(self, target: Target, headers: dict[str, str], body: bytes) -> httpx.Response:
        """Send to the first address that can be connected to: a receiver may listen on some of them only. After the
        connection nothing is sent twice.
        """
        *others, last = target.ips
        for ip in others:
            with suppress(httpx.ConnectError, httpx.ConnectTimeout):
                return await self._transport.handle_async_request(_request(target.url, ip, headers, body))
        return await self._transport.handle_async_request(_request(target.url, last, headers, body))


def _request(url: WebhookUrl, address: str, headers: dict[str, str], body: bytes) -> httpx.Request:
    ip = f"[{address}]" if ":" in address else address
    return httpx.Request(
        "POST",
        f"{url.scheme}://{ip}:{url.port}{url.target}",
        headers={
            "host": url.authority,
            "user-agent": f"director/{__version__}",
            "content-type": "application/json",
            **headers,
        },
        content=body,
        extensions={
            # the certificate must hold the name, not the address; it never holds the last dot of a name
            "sni_hostname": url.host.removesuffix("."),
            "timeout": {"connect": CONNECT_S, "read": None, "write": None, "pool": None},
        },
    )


def _judge(response: httpx.Response, now_s: float) -> Delivery:
    status = response.status_code
    if response.is_success:
        return Delivery(ok=True, status=status)
    return Delivery(
        ok=False,
        status=status,
        reason=f"answered {status}" + (", and redirects are not followed" if 300 <= status < 400 else ""),
        gone=status == httpx.codes.GONE,
        retry_after_s=_retry_after_s(response.headers.get("retry-after", ""), now_s),
    )


async def _read(response: httpx.Response) -> None:
    """Read some of the answer, so that a receiver is not cut off while it writes. Raw: it may be a zip bomb."""
    taken = 0
    async for chunk in response.aiter_raw():
        taken += len(chunk)
        if taken >= ANSWER_BYTES:
            return


def _retry_after_s(value: str, now_s: float) -> float | None:
    """Return the seconds of a Retry-After header (seconds or an HTTP date), or None for anything else."""
    if re.fullmatch(r"[0-9]+", value):
        wait_s = float(value[:16])  # enough digits to exceed the limit
    else:
        try:
            date = parsedate_to_datetime(value)
            wait_s = (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now_s
        except (ValueError, OverflowError):
            return None
    return min(max(wait_s, 0.0), RETRY_AFTER_MAX_S)


def _in_words(exc: Exception) -> str:
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"TLS: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS: {cause.reason or 'handshake failed'}"
        cause = cause.__cause__ or cause.__context__
    return next(words for kind, words in FAILURES if isinstance(exc, kind))
