"""Open pools of connections that leave a server which must not be written to any more.

A demoted server keeps its connections open and answers READONLY; one that was cut off from its replicas answers
NOREPLICAS. Either answer ends its connection, and READONLY counts as a lost one: the next goes to the server that the
name, the proxy or the Sentinels give now. An error from before the connection stood is marked: nothing was sent.
"""

import asyncio
import math
import re
import ssl
from types import TracebackType
from typing import Any, Final, Protocol, TypeVar

from redis import exceptions
from redis._parsers import _AsyncHiredisParser
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.asyncio import BlockingConnectionPool
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff

from director.broker.names import NAMES
from director.core import sockets

# A time-out for a whole exchange must know its size: 24 outputs of 8 MB take 5 s at 40 MB/s, and with a time-out of 3 s
# no write was confirmed after 45 s, and 1,341 MB were sent. So this one counts from the last look at which bytes had
# moved.

AT_ONCE_BYTES: Final = 64 * 1024
# The last bytes may still be in the buffers of kernels and proxies: up to 4 MiB on Linux
SLOWEST_BYTES_S: Final = 2 << 20
BUFFERED_BYTES: Final = 8 << 20


class Watched(Protocol):
    @property
    def reads(self) -> int: ...

    @property
    def unsent(self) -> int:
        """Bytes that have not left this process yet."""


class Patience:
    """Raises TimeoutError from its block when nothing has moved on a connection for `limit_s`, or up to twice that.

    `sending`: bytes about to be sent. Buffers that this process cannot see may hold many, so the limit grows with it.
    """

    __slots__ = ("_canceling", "_connection", "_is_over", "_limit_s", "_moved", "_task", "_timer")

    def __init__(self, connection: Watched, limit_s: float, *, sending: int = 0) -> None:
        self._connection = connection
        self._limit_s = limit_s
        self._moved = (connection.reads, 0)
        if sending > AT_ONCE_BYTES:
            self._limit_s += min(sending, BUFFERED_BYTES) / SLOWEST_BYTES_S
            self._moved = (connection.reads, sending)
        self._is_over = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - for the type checker
        self._task, self._canceling = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._look)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        self._timer.cancel()
        if self._is_over and self._task.uncancel() <= self._canceling and kind is asyncio.CancelledError:
            raise TimeoutError from exc

    def _look(self) -> None:
        moved = (self._connection.reads, self._connection.unsent)
        if moved == self._moved:
            self._is_over = True
            self._task.cancel()
            return
        self._moved = moved
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._look)


Pool = TypeVar("Pool", bound=BlockingConnectionPool)
Failure = TypeVar("Failure", bound=exceptions.RedisError)
Kept = TypeVar("Kept", bound=Exception)

NO_RETRIES: Final = Retry(NoBackoff(), 0)
# Short: while one Sentinel is away, each new connection waits this long before it asks the next one
SENTINEL_TIMEOUT_S: Final = 1.0
SENTINEL_PORT: Final = 26379

SENTINEL_URL: Final = re.compile(
    r"redis(?P<tls>s?)\+sentinel://(?:(?P<user>[^@/]*)@)?(?P<hosts>[^/?@]+)/(?P<name>[^/?]+)(?:/(?P<db>\d+))?(?:\?(?P<query>.*))?"
)
HOST: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(?P<port>\d{1,5}))?")


UNSENT: Final = "nothing was sent"

# A Redis that takes nothing for so long is left before: see `Patience`
PROBES: Final = [*sockets.probes(), *sockets.limit_unacknowledged(sockets.GONE_S)]


class _Reading(_AsyncHiredisParser):
    """Counts its reads, and raises the end of a connection as what it is.

    A machine that vanishes resets nothing: the kernel gives the socket up with ETIMEDOUT, which Python raises as a
    TimeoutError. redis-py (8.1.0) takes that for the time limit of the call and returns None, and so does each call
    after it, at once and without suspending. A loop around it blocks the event loop, and the traceback of the one
    error of the stream grows by 127 MB a second.
    """

    reads = 0

    async def read_from_socket(self) -> bool:
        try:
            has_read = bool(await super().read_from_socket())  # type: ignore[no-untyped-call]
        except OSError as exc:  # a limit of ours arrives here as a cancellation
            raise exceptions.ConnectionError("The connection has ended") from without_frames(exc)
        self.reads += 1
        return has_read

    async def can_read(self) -> bool:
        has_ended = self._stream is not None and self._stream.exception() is not None
        return has_ended or bool(await super().can_read())


class Patient(AbstractConnection):
    """Mixin for a connection class: leaves a server that is demoted or cut off, and waits as long as bytes move."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, parser_class=_Reading)
        self.silence_s: float | None = self.socket_timeout
        self.socket_timeout = None
        self._sent_bytes = 0

    @property
    def reads(self) -> int:
        parser: Any = self._parser
        return int(parser.reads)

    @property
    def unsent(self) -> int:
        return 0 if self._writer is None else self._writer.transport.get_write_buffer_size()

    @property
    def certificate_end_s(self) -> float | None:
        """When the server's certificate expires, in seconds since 1970. None without TLS, or if it is not verified."""
        shown = {} if self._writer is None else self._writer.get_extra_info("peercert") or {}
        return ssl.cert_time_to_seconds(shown["notAfter"]) if "notAfter" in shown else None

    async def connect_check_health(self, *args: Any, **options: Any) -> None:
        try:
            await super().connect_check_health(*args, **options)
        except exceptions.RedisError as exc:
            raise unsent(exc)  # noqa: B904 - the same one

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if self._writer is not None and self._writer.is_closing():
            await self.disconnect(nowait=True)  # the kernel gave it up, and uvloop raises a RuntimeError for a write
            raise exceptions.ConnectionError("The connection has ended")
        if self.silence_s is None:
            await super().send_packed_command(command, check_health)
            return
        self._sent_bytes = sum(map(len, command)) if isinstance(command, list) else len(command)
        try:
            with Patience(self, self.silence_s, sending=self._sent_bytes):
                await super().send_packed_command(command, check_health)
        except TimeoutError:
            raise exceptions.TimeoutError("Timeout writing to socket") from None

    async def read_response(self, disable_decoding: bool = False, timeout: float | None = None, **options: Any) -> Any:
        parser: Any = self._parser
        try:
            # most have arrived with the one before: redis-py's own layers take eight calls for each
            if parser._connected and (reply := parser._reader.gets()) is not NOT_ENOUGH_DATA:
                if isinstance(reply, exceptions.ConnectionError):
                    await self.disconnect(nowait=True)
                if isinstance(reply, Exception):
                    raise reply
                return reply
            if timeout is not None or self.silence_s is None:
                return await super().read_response(disable_decoding, timeout, **options)
            sending, self._sent_bytes = self._sent_bytes, 0  # the command may still be on its way
            with Patience(self, self.silence_s, sending=sending):
                return await super().read_response(disable_decoding, math.inf, **options)
        except TimeoutError:
            raise exceptions.TimeoutError("Timeout reading from socket") from None
        except exceptions.ReadOnlyError as exc:
            await self.disconnect()
            raise exceptions.ConnectionError("READONLY: the server is a replica now") from exc
        except exceptions.ResponseError as exc:
            if str(exc).startswith("NOREPLICAS"):
                self.mark_for_reconnect()  # type: ignore[no-untyped-call]
            raise


class Named(Connection):
    """Mixin for a connection by name: it survives its name servers, and its kernel notices a server that vanished."""

    _address: str | None = None

    async def _connect(self) -> None:
        clock, limit_s = asyncio.get_running_loop().time, self.socket_connect_timeout
        until_s = None if limit_s is None else clock() + limit_s
        async with asyncio.timeout_at(until_s):
            addresses = await NAMES.addresses(self.host)
            for left, self._address in zip(range(len(addresses), 0, -1), addresses, strict=True):
                try:
                    # a machine that vanished refuses nothing, so it takes only its share of the time
                    async with asyncio.timeout(until_s and (until_s - clock()) / left):
                        await super()._connect()  # type: ignore[no-untyped-call]
                except OSError:
                    if left == 1:
                        raise
                else:
                    break
        for option in PROBES:
            self._writer.get_extra_info("socket").setsockopt(*option)  # type: ignore[union-attr]

    def _connection_arguments(self) -> dict[str, Any]:
        known = {**super()._connection_arguments(), "host": self._address or self.host}
        return {**known, "server_hostname": self.host} if "ssl" in known else known


class Tcp(Patient, Named):
    pass


class Tls(Patient, Named, SSLConnection):
    pass


class _ToSentinel(Named):
    pass


class _TlsToSentinel(Named, SSLConnection):
    pass


class _Unix(Patient, UnixDomainSocketConnection):
    pass


class _Led(Patient):
    """Mixin for a connection to the master that Sentinels name. It ends after its command once they name another one.

    redis-py closes only idle connections then. A former master that only its clients reach still answers them.
    """

    def should_reconnect(self) -> bool:
        pool: Any = self.connection_pool  # type: ignore[attr-defined]
        has_moved = self.is_connected and pool.master_address not in (None, (self.host, self.port))  # type: ignore[attr-defined]
        return has_moved or bool(super().should_reconnect())  # type: ignore[no-untyped-call]


class _Managed(_Led, Named, SentinelManagedConnection):
    pass


class _ManagedTls(_Led, Named, SentinelManagedSSLConnection):
    pass


DIRECT: Final = {"redis": Tcp, "rediss": Tls, "unix": _Unix}


def unsent(exc: Failure) -> Failure:
    """Mark an error as raised before anything was sent, and return it."""
    exc.add_note(UNSENT)
    return exc


def without_frames(exc: Kept) -> Kept:
    """Return an error that is kept, for example in the answer of a call, without its traceback.

    The traceback holds the frames that the error passed. Where a frame holds the error, or a call that holds it, all of
    them and the request that hangs on them would wait for the garbage collector: 8,000 objects at a restart of Redis.
    """
    return exc.with_traceback(None)


def was_sent(exc: Exception) -> bool:
    """Return whether the server may have received the failed command."""
    return UNSENT not in getattr(exc, "__notes__", ())


def direct_pool(url: str, **options: Any) -> BlockingConnectionPool:
    """Return a pool of connections to one server; `options` win over the URL. Raises ValueError or TypeError."""
    known = dict(parse_url(url))
    return check_options(
        BlockingConnectionPool(**{**known, **options, "connection_class": DIRECT[url.partition("://")[0]]})
    )


def sentinel_pool(url: str, **options: Any) -> BlockingConnectionPool:
    """Return a pool of connections to the server that the Sentinels name as master. Raises as `direct_pool` does.

    `sentinel_username` and `sentinel_password` in the query are the Sentinels' own.
    """
    match = SENTINEL_URL.fullmatch(url)
    if match is None:
        raise ValueError("not the URL of Sentinels")
    user = "" if match["user"] is None else f"{match['user']}@"
    known: dict[str, Any] = {**parse_url(f"redis://{user}-/{match['db'] or 0}?{match['query'] or ''}")}
    known.pop("host")
    tls = {name: value for name, value in known.items() if name.startswith("ssl_")}
    asked = {
        "username": known.pop("sentinel_username", None),
        "password": known.pop("sentinel_password", None),
        "protocol": 2,
        "socket_timeout": SENTINEL_TIMEOUT_S,
        "socket_connect_timeout": SENTINEL_TIMEOUT_S,
        "retry": NO_RETRIES,
        "ssl": bool(match["tls"]),
        **tls,
    }
    sentinels = _Sentinels([address(host, SENTINEL_PORT) for host in match["hosts"].split(",")], sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
    for each in sentinels.sentinels:
        each.connection_pool.connection_class = _TlsToSentinel if match["tls"] else _ToSentinel
    kind = _ManagedTls if match["tls"] else _Managed
    pool = _SentinelPool(match["name"], sentinels, **{**known, **options, "connection_class": kind})  # type: ignore[no-untyped-call]
    return check_options(pool)


def check_options(pool: Pool) -> Pool:
    """Return the pool after making one unopened connection: only a connection knows which options it takes."""
    pool.make_connection()  # type: ignore[no-untyped-call]
    return pool


class _SentinelPool(SentinelConnectionPool, BlockingConnectionPool): ...


class _Sentinels(Sentinel):
    """Closes its connections after each question, since Sentinels are asked seldom."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        try:
            address: tuple[str, int] = await super().discover_master(service_name)
        except exceptions.ResponseError as exc:
            raise MasterNotFoundError(f"what answers is no Sentinel, or refuses us: {exc}") from exc
        finally:
            for sentinel in self.sentinels:
                # connections in use belong to another question in progress
                await sentinel.connection_pool.disconnect(inuse_connections=False)
        return address


def address(text: str, port: int) -> tuple[str, int]:
    """Parse "host:port", or "host" with the default `port`. Raises ValueError for anything else."""
    match = HOST.fullmatch(text)
    if match is None:
        raise ValueError("not a host and a port")
    return match["host"].strip("[]"), int(match["port"] or port)
