"""Deliver one webhook once, and return how it went.

The signed bytes are the sent ones, and they go to the one address that was checked. A sender never retries, follows no
redirect, uses no proxy, and never raises for what a receiver does.
"""

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final
from weakref import WeakValueDictionary

import httpx
from msgspec import Struct

from director import __version__
from director.core import signing
from director.core.trace_context import NO_TRACE, TraceHeaders
from director.core.webhook_url import read_webhook_url
from director.webhooks.addresses import (
    AllowList,
    Refused,
    Resolve,
    Rule,
    Target,
    Unresolved,
    checked_address,
    system_resolve,
)

CONNECT_S: Final = 3.0
ANSWER_BYTES: Final = 64 * 1024
# As many as a courier sends at once (director/keeper/courier.py), so it never waits here for other receivers
AT_ONCE: Final = 256
AT_ONCE_PER_HOST: Final = 8

# a receiver may delay the next attempt, but by no more than the longest step of the retry schedule
RETRY_AFTER_MAX_S: Final = 86_400.0

# first match wins
FAILURES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (httpx.ConnectTimeout, f"no connection within {CONNECT_S:g} s"),
    (httpx.ConnectError, "no connection"),
    (httpx.RemoteProtocolError, "closed the connection or did not answer in HTTP"),
    (Exception, "the connection broke"),
)


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
    def host_answers(self) -> bool | None:
        """False: no answer, or an error that other webhooks would get too. None: the host was not asked."""
        if self.refused or not self.was_sent:
            return None
        return self.status is not None and self.status < 500 and self.status != httpx.codes.TOO_MANY_REQUESTS


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
        self._by_host: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._all = asyncio.Semaphore(AT_ONCE)
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
        trace: TraceHeaders = NO_TRACE,
    ) -> Delivery:
        """POST `body` to `url` at the unix time `now_s`. Raises ValueError only for a malformed secret or id."""
        try:
            host = read_webhook_url(url).authority
        except ValueError as exc:
            return Delivery(ok=False, rule="bad_url", reason=f"the URL {exc}")
        clock = asyncio.get_running_loop().time
        asked_at_s = clock()
        of_host = self._by_host.get(host)
        if of_host is None:
            of_host = self._by_host[host] = asyncio.Semaphore(AT_ONCE_PER_HOST)
        async with of_host, self._all:  # in this order, so that a wait for one host holds nothing of all
            # receivers refuse a timestamp that is five minutes old, and the wait for a connection may be longer
            sent_at_s = now_s + clock() - asked_at_s
            headers = signing.headers(secrets, message_id=message_id, timestamp_s=int(sent_at_s), body=body)
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
                target = await checked_address(url, self.allow, resolve=self._resolve)
                response = await self._transport.handle_async_request(_request(target, headers, body))
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


def _request(target: Target, headers: dict[str, str], body: bytes) -> httpx.Request:
    url = target.url
    ip = f"[{target.ip}]" if ":" in target.ip else target.ip
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
