"""Where the log goes: lines of JSON in a file, or signed POSTs to a receiver.

Each keeps its own cursors, and moves one only when what stands before it is safe. So an entry may come twice, after a
crash between the two, and none is left out: whoever reads tells copies by `partition` and `entry`.
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
    """The sink cannot take anything now. The same batch is brought again."""


class AuditSink(Protocol):
    """What a sink is. One for Kafka or NATS waits for the acknowledgement, then keeps the cursor wherever it likes."""

    async def cursors(self) -> Mapping[int, Cursor]:
        """How far each partition was written; one that is not named is read from its oldest entry on."""
        ...

    async def write(self, batch: Batch) -> None:
        """Make a batch safe, then its cursor. Raises SinkAway, or SettingsError for what an operator has to mend."""
        ...

    async def aclose(self) -> None:
        """Let go of what it holds."""
        ...


class FileSink:
    """Appends to a file, one process at a time (`FILE.lock`); the cursors are beside it, in `FILE.cursor`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._beside = path.with_name(f"{path.name}.cursor")
        self._cursors: dict[str, Cursor] = {}
        self._lock: IO[bytes] | None = None

    async def cursors(self) -> Mapping[int, Cursor]:
        """Takes the lock too. A file that ends within a line and has no cursors is none of ours, and is left alone."""
        await anyio.to_thread.run_sync(self._open)
        return {int(partition): cursor for partition, cursor in self._cursors.items()}

    async def write(self, batch: Batch) -> None:
        """Both are on the disk when it returns."""
        await anyio.to_thread.run_sync(self._write, batch)

    async def aclose(self) -> None:
        """Let go of the lock."""
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
                raise SettingsError(f"{self._path} is none of ours: its last line has no end. Choose another file.")
        except BlockingIOError as exc:
            raise SettingsError(f"{self._path} is written by another process.") from exc
        except OSError as exc:
            raise SettingsError(f"{self._path} cannot be written: {exc.strerror or 'it is no plain file'}.") from exc
        except msgspec.DecodeError as exc:
            raise SettingsError(f"{self._beside} is none of ours: {exc}. Remove it to begin anew.") from exc

    def _write(self, batch: Batch) -> None:
        encode = msgspec.json.Encoder().encode
        gap = [encode({"partition": batch.partition, "kind": "missed", "count": batch.missed})] if batch.missed else []
        lines = [*gap, *map(encode, batch.entries)]
        try:
            with self._path.open("a+b") as file:
                file.truncate(_end_of_lines(file.fileno()))  # a crash or a full disk left a line unfinished
                file.write(b"".join(line + b"\n" for line in lines))
                file.flush()
                os.fsync(file.fileno())
            cursors = {**self._cursors, str(batch.partition): batch.cursor}
            _replace(self._beside, encode(cursors))
        except OSError as exc:
            raise SinkAway(f"{self._path} cannot be written: {exc.strerror}") from exc
        self._cursors = cursors


class HttpSink:
    """Sends each batch as one webhook, signed; the cursors are in Redis, by the name of the sink."""

    def __init__(self, url: str, *, name: str, secret: str, sender: Sender, redis: Redis, clock: Clock) -> None:
        self._url = url
        self._name = name
        self._secret = secret
        self._sender = sender
        self._redis = redis
        self._clock = clock

    async def cursors(self) -> Mapping[int, Cursor]:
        """As the last process of this name left them."""
        found = texts(await ask(lambda: self._redis.hgetall(keys.sink(self._name))))
        return {int(partition): _cursor(*value.split(" ")) for partition, value in found.items()}

    async def write(self, batch: Batch) -> None:
        """The receiver has it when it has answered 2xx. What is too large for it goes in halves."""
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
        """Let go of the connections to the receiver."""
        await self._sender.aclose()


def _cursor(entry: str, number: str) -> Cursor:
    return Cursor(entry, int(number))


def _end_of_lines(file: int) -> int:
    """Where the last whole line ends."""
    size = os.fstat(file).st_size
    step = 1 << 16
    for end in range(size, 0, -step):
        begin = max(0, end - step)
        found = os.pread(file, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
    return 0


def _replace(path: Path, data: bytes) -> None:
    """All of the new one, or all of the old one, whenever the machine stops; and on the disk, as its folder is."""
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
