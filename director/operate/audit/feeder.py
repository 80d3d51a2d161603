"""Carry the logs to a receiver, which is a file or a URL, in order within each partition: the process of
`director audit`.

Entries that the log still has are never lost, since the feeder waits for a receiver or a Redis that is away. Each
receiver has its own process and cursors. If the process is asked to end, a batch on its way to a URL is sent again by
the next process. A batch that is being written to a file is not.
"""

import fcntl
import hashlib
import logging
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import IO, Final, NoReturn, Protocol

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct
from redis.asyncio import Redis

from director.broker.redis_client import client
from director.core.clock import Clock, SystemClock
from director.core.errors import BackendUnavailable, DirectorError, SettingsError
from director.core.settings import AuditSettings
from director.core.webhooks import host_of, sign
from director.runtime import process
from director.store.logs import CHANGES, AuditLog, Batch, Cursor, LogReader, cursors_of, keep_cursor
from director.webhooks.sender import AllowList, Delivery, Sender


class ReceiverAway(DirectorError):
    """The receiver cannot take anything now. The same batch is sent again later."""


class AuditReceiver(Protocol):
    """A receiver moves a cursor only when everything before it is safe. After a crash between the two an entry comes
    again: a reader recognises copies by `partition` and `entry`.
    """

    async def cursors(self) -> Mapping[int, Cursor]:
        """Return the cursor of each partition; a partition that is missing is read from its oldest entry on."""
        ...

    async def write(self, batch: Batch) -> None:
        """Make a batch safe, then its cursor. Raises ReceiverAway, or SettingsError if an operator has to act."""
        ...

    async def aclose(self) -> None: ...


class FileReceiver:
    """Appends to a file, from one process at a time (`FILE.lock`). Its cursors are in `FILE.cursor`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = path.with_name(f"{path.name}.cursor")
        self._cursors: dict[str, Cursor] = {}
        self._lock: IO[bytes] | None = None

    async def cursors(self) -> Mapping[int, Cursor]:
        """Take the lock and read the cursors. Refuses a file that has none and ends within a line: it is not ours."""
        await anyio.to_thread.run_sync(self._open)
        return {int(partition): cursor for partition, cursor in self._cursors.items()}

    async def write(self, batch: Batch) -> None:
        """Write the batch and its cursor; both are on the disk when it returns."""
        await anyio.to_thread.run_sync(self._write, batch)

    async def aclose(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def _open(self) -> None:
        try:
            if self._lock is None:
                self._lock = self._path.with_name(f"{self._path.name}.lock").open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with self._path.open("a+b") as file:
                is_whole = _end_of_lines(file.fileno()) == os.fstat(file.fileno()).st_size
            if self._beside.exists():
                self._cursors = msgspec.json.decode(self._beside.read_bytes(), type=dict[str, Cursor])
            elif is_whole:
                _replace(self._beside, b"{}")
            else:
                raise SettingsError(f"{self._path} is not ours: its last line has no end. Choose another file.")
        except BlockingIOError as exc:
            raise SettingsError(f"{self._path} is being written by another process.") from exc
        except OSError as exc:
            raise SettingsError(f"{self._path} cannot be written: {exc.strerror or 'it is no plain file'}.") from exc
        except msgspec.DecodeError as exc:
            raise SettingsError(f"{self._beside} is not ours: {exc}. Remove it to begin again.") from exc

    def _write(self, batch: Batch) -> None:
        encode = msgspec.json.Encoder().encode
        gap = [encode({"partition": batch.partition, "kind": "missed", "count": batch.missed})] if batch.missed else []
        lines = [*gap, *map(encode, batch.entries)]
        try:
            with self._path.open("a+b") as file:
                file.truncate(_end_of_lines(file.fileno()))  # a crash or a full disk left an unfinished line
                file.write(b"".join(line + b"\n" for line in lines))
                file.flush()
                os.fsync(file.fileno())
            cursors = {**self._cursors, str(batch.partition): batch.cursor}
            _replace(self._beside, encode(cursors))
        except OSError as exc:
            raise ReceiverAway(f"{self._path} cannot be written: {exc.strerror}") from exc
        self._cursors = cursors


@dataclass(eq=False)
class HttpReceiver:
    """Sends each batch as one signed webhook. Its cursors are in Redis, by the name of the receiver."""

    url: str
    _: KW_ONLY
    name: str
    secret: str
    sender: Sender
    redis: Redis
    clock: Clock

    async def cursors(self) -> Mapping[int, Cursor]:
        return await cursors_of(self.redis, self.name)

    async def write(self, batch: Batch) -> None:
        """Send a batch until the receiver answers 2xx. A batch that is too large for it is sent in halves."""
        waiting = [batch]
        while waiting:
            part = waiting.pop()
            delivery = await self._send(part)
            if delivery.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE and len(part.entries) > 1:
                waiting += reversed(part.halves())
                continue
            if delivery.refused:
                raise SettingsError(f"the log may not go there: {delivery.reason}.")
            if not delivery.ok:
                raise ReceiverAway(f"the receiver of the log {delivery.reason}")
            await keep_cursor(self.redis, self.name, part.partition, part.cursor)

    async def _send(self, batch: Batch) -> Delivery:
        span = [one.entry for one in (*batch.entries[:1], *batch.entries[-1:])] or [batch.cursor.entry]
        return await self.sender.send(
            self.url,
            message_id="_".join(["audit", str(batch.partition), *span]),
            body=msgspec.json.encode({"partition": batch.partition, "missed": batch.missed, "entries": batch.entries}),
            secrets=[self.secret],
            now_s=self.clock.now_ms() / 1000,
        )

    async def aclose(self) -> None:
        await self.sender.aclose()


def _end_of_lines(file: int) -> int:
    size = os.fstat(file).st_size
    step = 1 << 16
    for end in range(size, 0, -step):
        begin = max(0, end - step)
        found = os.pread(file, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
    return 0


def _replace(path: Path, data: bytes) -> None:
    """After a crash the file holds all of the new data, or all of the old."""
    new = path.with_name(f"{path.name}.new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


log = logging.getLogger(__name__)
Source = AbstractAsyncContextManager[LogReader]

TICK_S: Final = 1.0
LONGEST_S: Final = 60.0
SCHEMES: Final = ("https://", "http://")


class Fed(Struct, frozen=True):
    """`missed`: entries that were cut before. `more`: whether the round left some."""

    entries: int = 0
    missed: int = 0
    more: bool = False


@dataclass(eq=False)
class Feeder:
    """Carries the logs of all partitions that have a queue, or had one, to one receiver."""

    _log: LogReader
    _receiver: AuditReceiver
    _clock: Clock
    _cursors: dict[int, Cursor] | None = None
    _first: int = CHANGES

    async def run(self) -> NoReturn:
        """Make a round every second, at once if there is more, rarely while something is away. Raises SettingsError."""
        pause_s, reason = TICK_S, ""
        while True:
            try:
                fed = await self.run_once()
            except (BackendUnavailable, ReceiverAway) as exc:
                if str(exc) != reason:
                    log.warning("the audit log waits", extra={"reason": str(exc)})
                pause_s, reason = min(2 * pause_s, LONGEST_S), str(exc)
            else:
                pause_s, reason = TICK_S, ""
                if fed.more:
                    continue
            await self._clock.sleep(pause_s)

    async def catch_up(self) -> Fed:
        entries = missed = 0
        while True:
            fed = await self.run_once()
            entries, missed = entries + fed.entries, missed + fed.missed
            if not fed.more:
                return Fed(entries, missed)

    async def run_once(self) -> Fed:
        """Carry the next batch of each partition, so that a busy one delays no other."""
        if self._cursors is None:
            self._cursors = dict(await self._receiver.cursors())
        cursors = self._cursors
        news = await self._log.read_all(cursors, first=self._first)
        for batch in news.batches:  # from now on, count what is cut, also while the receiver is away
            cursors.setdefault(batch.partition, Cursor(number=batch.cursor.number - len(batch.entries)))
        for batch in news.batches:
            if batch.entries or batch.missed:
                await self._receiver.write(batch)
            if batch.missed:
                facts = {"partition": batch.partition, "count": batch.missed}
                log.warning("entries were cut before they were read", extra=facts)
            cursors[batch.partition] = batch.cursor
        self._first = news.first
        return Fed(sum(len(batch.entries) for batch in news.batches), news.missed, news.more)


def serve(settings: AuditSettings, source: Source | None = None) -> None:
    """Carry the log until SIGTERM or SIGINT: that of Redis, or of `source`. An error that the operator has to mend ends
    it with one line.
    """
    process.serve("audit", "audit", partial(_serve, source=source), settings)


async def _serve(settings: AuditSettings, source: Source | None) -> None:
    with process.one_error(), anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with feeding(settings, SystemClock(), source) as feeder, anyio.create_task_group() as tasks:
            tasks.start_soon(_end_at_a_signal, signals, tasks.cancel_scope)
            if settings.audit_once:
                fed = await feeder.catch_up()
                log.info("the audit log is carried", extra={"entries": fed.entries, "missed": fed.missed})
            else:
                await feeder.run()
            tasks.cancel_scope.cancel()


async def _end_at_a_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


@asynccontextmanager
async def feeding(settings: AuditSettings, clock: Clock, source: Source | None = None) -> AsyncGenerator[Feeder]:
    if not settings.audit_to:
        raise SettingsError("say where the log goes: --to FILE or --to https://…")
    if source is not None:
        async with source as log_of_api:
            yield Feeder(log_of_api, FileReceiver(Path(settings.audit_to)), clock)
        return
    redis = client(settings.redis_url, name="director-audit")
    receiver = _receiver(settings, redis, clock)
    try:
        yield Feeder(AuditLog(redis), receiver, clock)
    finally:
        with anyio.CancelScope(shield=True):
            await receiver.aclose()
            await redis.aclose()


def is_url(audit_to: str) -> bool:
    return audit_to.lower().startswith(SCHEMES)


def _receiver(settings: AuditSettings, redis: Redis, clock: Clock) -> AuditReceiver:
    if not is_url(settings.audit_to):
        return FileReceiver(Path(settings.audit_to))
    return HttpReceiver(
        settings.audit_to,
        name=settings.audit_name or receiver_name(settings.audit_to),
        secret=_secret(settings),
        sender=Sender(AllowList.parse(settings.webhook_allow)),
        redis=redis,
        clock=clock,
    )


def receiver_name(url: str) -> str:
    """The default name depends on the whole URL without showing it."""
    return f"{host_of(url)}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _secret(settings: AuditSettings) -> str:
    try:
        sign([settings.audit_secret], message_id="audit", timestamp_s=0, body=b"")
    except ValueError as exc:
        raise SettingsError(f"DIRECTOR_AUDIT_SECRET, which signs the batches: {exc}.") from exc
    return settings.audit_secret
