"""Write the log to a sink: lines of JSON in a file, or signed POSTs to a receiver.

Each sink keeps its own cursors, and moves one only when everything before it is safe. After a crash between the two an
entry comes again, and none is lost: a reader recognises copies by `partition` and `entry`.
"""

import fcntl
import os
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import IO, Protocol

import anyio.to_thread
import msgspec
from redis.asyncio import Redis

from director.audit.log import Batch, Cursor
from director.broker import keys
from director.broker.redis_client import ask, texts
from director.core.clock import Clock
from director.core.errors import DirectorError, SettingsError
from director.webhooks.sender import Delivery, Sender


class SinkAway(DirectorError):
    """The sink cannot take anything now. The same batch is sent again later."""


class AuditSink(Protocol):
    """A sink. One for Kafka or NATS would wait for the acknowledgement, then store the cursor where it likes."""

    async def cursors(self) -> Mapping[int, Cursor]:
        """Return the cursor of each partition; a partition that is missing is read from its oldest entry on."""
        ...

    async def write(self, batch: Batch) -> None:
        """Make a batch safe, then its cursor. Raises SinkAway, or SettingsError if an operator has to act."""
        ...

    async def aclose(self) -> None: ...


class FileSink:
    """Appends to a file, from one process at a time (`FILE.lock`). Its cursors are in `FILE.cursor`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = path.with_name(f"{path.name}.cursor")
        self._cursors: dict[str, Cursor] = {}
        self._lock: IO[bytes] | None = None

    async def cursors(self) -> Mapping[int, Cursor]:
        """Take the lock and read the cursors. A file that has none and ends within a line is not ours, and is not
        written.
        """
        await anyio.to_thread.run_sync(self._open)
        return {int(partition): cursor for partition, cursor in self._cursors.items()}

    async def write(self, batch: Batch) -> None:
        """Write the batch and its cursor; both are on the disk when it returns."""
        await anyio.to_thread.run_sync(self._write, batch)

    async def aclose(self) -> None:
        """Release the lock."""
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
            raise SinkAway(f"{self._path} cannot be written: {exc.strerror}") from exc
        self._cursors = cursors


class HttpSink:
    """Sends each batch as one signed webhook. Its cursors are in Redis, by the name of the sink."""

    def __init__(self, url: str, *, name: str, secret: str, sender: Sender, redis: Redis, clock: Clock) -> None:
        self._url = url
        self._name = name
        self._secret = secret
        self._sender = sender
        self._redis = redis
        self._clock = clock

    async def cursors(self) -> Mapping[int, Cursor]:
        """Return the cursors that the last process of this name left."""
        found = texts(await ask(lambda: self._redis.hgetall(keys.sink(self._name))))
        return {int(partition): _cursor(*value.split(" ")) for partition, value in found.items()}

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
                raise SinkAway(f"the receiver of the log {delivery.reason}")
            await self._keep(part)

    async def _send(self, batch: Batch) -> Delivery:
        span = [one.entry for one in (*batch.entries[:1], *batch.entries[-1:])] or [batch.cursor.entry]
        return await self._sender.send(
            self._url,
            message_id="_".join(["audit", str(batch.partition), *span]),
            body=msgspec.json.encode(
                {"partition": batch.partition, "missed": batch.missed, "entries": batch.entries},
            ),
            secrets=[self._secret],
            now_s=self._clock.now_ms() / 1000,
        )

    async def _keep(self, batch: Batch) -> None:
        value = f"{batch.cursor.entry} {batch.cursor.number}"
        await ask(lambda: self._redis.hset(keys.sink(self._name), str(batch.partition), value))

    async def aclose(self) -> None:
        """Close the connections to the receiver."""
        await self._sender.aclose()


def _cursor(entry: str, number: str) -> Cursor:
    return Cursor(entry, int(number))


def _end_of_lines(file: int) -> int:
    """Return the position after the last whole line."""
    size = os.fstat(file).st_size
    step = 1 << 16
    for end in range(size, 0, -step):
        begin = max(0, end - step)
        found = os.pread(file, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
    return 0


def _replace(path: Path, data: bytes) -> None:
    """Replace a file and sync it and its folder. After a crash it holds all of the new data, or all of the old."""
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
