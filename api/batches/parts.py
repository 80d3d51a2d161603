"""Keep the output of a batch: parts in the file store, and at its end one file of each kind.

A part is stored under a name of its own before it is committed. So a keeper that comes back late overwrites nothing,
and what it stored in vain is swept away. A line is in one committed part or in none: the commit compares the number of
parts, and has a bit for each line that is written.
"""

import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import msgspec
from anyio import to_thread
from msgspec import Raw, Struct

from api.batches.lines import Outcome, encode_outcome
from api.batches.patience import Missing, with_patience
from api.batches.progress import causes_of
from api.services.services import Services
from director.core.errors import BackendUnavailable
from director.core.ids import FileId, PredictionId, new_file_id
from director.files.store import PLAIN_TYPE, CallerFileName, FileStore, OpenFile
from director.runtime import crash
from director.store.batches import PART, Batch, Batches, Fields, Kind, Lease, Part
from director.store.caller_files import CallerFile

log = logging.getLogger(__name__)
JSONL: Final = "application/jsonl"
PART_BYTES: Final = 4 << 20
JSONL_ENDING: Final = "jsonl"
PURPOSE: Final = "batch_output"
MOST_CAUSES: Final = 20  # that are counted by their names
OTHER_CAUSE: Final = "other"


class Written(Struct):
    """The lines that are committed: `bits` has one for each, and the counts are those of the batch."""

    bits: bytearray
    parts: list[Part]
    completed: int
    failed: int
    causes: dict[str, int]

    @classmethod
    def of(cls, batch: Batch) -> "Written":
        bits = bytearray(batch.written).ljust((batch.total + 7) // 8, b"\0")
        return cls(bits, list(batch.stored_parts), batch.completed, batch.failed, causes_of(batch))

    def has(self, number: int) -> bool:
        return bool(self.bits[number >> 3] >> (number & 7) & 1)

    def add(self, number: int) -> None:
        self.bits[number >> 3] |= 1 << (number & 7)

    def count(self, causes: Mapping[str, int]) -> None:
        """Count failed lines by cause. Beyond MOST_CAUSES the others share one."""
        for cause, lines in causes.items():
            named = cause if cause in self.causes or len(self.causes) < MOST_CAUSES else OTHER_CAUSE
            self.causes[named] = self.causes.get(named, 0) + lines

    @property
    def lines(self) -> int:
        return self.completed + self.failed


class Buffer:
    """Lines that have ended and are not committed yet."""

    def __init__(self) -> None:
        self.lines: dict[Kind, list[bytes]] = {"output": [], "error": []}
        self.numbers: list[int] = []
        self.causes = Counter[str]()  # of the lines that failed
        self.size = 0
        self.since_s = 0.0  # of its first line

    def add(self, batch_id: FileId, number: int, custom_id: str, outcome: Outcome) -> int:
        """Return how many bytes it adds."""
        line = encode_outcome(batch_id, number, custom_id, outcome)
        self.lines["output" if outcome.is_good else "error"].append(line)
        if not outcome.is_good:
            self.causes[outcome.cause or outcome.code] += 1
        self.numbers.append(number)
        self.size += len(line)
        return len(line)


class Archive:
    """The parts of one batch."""

    def __init__(self, services: Services, store: FileStore, lease: Lease, batch: Batch) -> None:
        self._services = services
        self._store = store
        self._lease = lease
        self._batch = batch
        self._batches = Batches(services.redis, services.scripts)
        self.written = Written.of(batch)
        self.lost: set[FileId] = set()  # parts that are gone
        self._missing = Missing(services.clock)
        self.noted: dict[int, PredictionId] = {}  # of lines that were filed and not written
        self.filed = batch.filed  # lines from here on were never filed
        self.unsettled: set[CallerFileName] = set()  # stored, and not known to be named by the batch

    async def commit(self, buffer: Buffer, *, place: str) -> None:
        """Store the buffer's lines, and commit them. Goes on until that has worked. Raises Lost."""
        crash.at("before_part")
        parts = [await self._put(kind, b"".join(lines)) for kind, lines in buffer.lines.items() if lines]
        crash.at("after_part")
        written, had = self.written, len(self.written.parts)
        if any(map(written.has, buffer.numbers)):
            raise AssertionError("a line would be written twice")
        for number in buffer.numbers:
            written.add(number)
        written.completed += len(buffer.lines["output"])
        written.failed += len(buffer.lines["error"])
        written.count(buffer.causes)
        written.parts += parts
        fields: Fields = {
            **{f"part:{had + index}": str(part) for index, part in enumerate(parts)},
            "parts": len(written.parts),
            "written": bytes(written.bits),
            "completed": written.completed,
            "failed": written.failed,
            "causes": msgspec.json.encode(written.causes),
            "counted": self._services.clock.now_ms(),
            "place": place,
        }
        nonce = secrets.token_hex(8)
        if not await with_patience(partial(self._lease.write, fields, nonce=nonce, parts=had)):
            await self._check(parts)
        self.unsettled.clear()
        crash.at("after_commit")
        with suppress(BackendUnavailable):  # a line that is written is not looked for
            await self._batches.forget_lines(self._batch, buffer.numbers)

    async def read_noted(self) -> None:
        self.noted = await with_patience(partial(self._batches.read_lines, self._batch))

    async def note_line(self, number: int, prediction_id: PredictionId) -> None:
        """Note a line's prediction. Where Redis takes no more, its idempotency key finds it."""
        with suppress(BackendUnavailable):
            ttl_s = self._services.settings.batch_ttl_s
            await self._batches.note_line(self._batch, number, prediction_id, ttl_s=ttl_s)

    async def note_filed(self, number: int) -> None:
        """Note that lines before this number may be filed from now on. Raises Lost."""
        self.filed = number
        await with_patience(partial(self._lease.write, {"filed": number}, nonce=f"filed {number}"))

    async def note_wait(self, why: bytes) -> None:
        """Note why lines are not accepted. Raises BackendUnavailable and Lost."""
        await self._lease.write({"waits": why}, nonce=secrets.token_hex(8))

    async def _check(self, parts: Sequence[Part]) -> None:
        """Raise unless a refused commit was carried out before: its reply was lost, and another write came since."""
        batch = await with_patience(partial(self._batches.get, self._batch.account, self._batch.id))
        if batch is None or list(batch.stored_parts) != self.written.parts:
            raise AssertionError(f"the parts of a batch are others than its keeper knows: {[*map(str, parts)]}")

    async def join(self, kind: Kind) -> CallerFile | None:
        """Record one file, and store all parts of a kind in it, or return None without any. Parts that are gone are in
        `lost`.
        """
        parts = [part for part in self.written.parts if part.kind == kind]
        if not parts:
            return None
        digests, file_id = Digests(), new_file_id(self._services.clock.now_ms())
        record = partial(
            self._record, file_id, f"batch_{self._batch.id}_{kind}", digests, JSONL_ENDING, purpose=PURPOSE
        )
        digests.size = sum(part.size for part in parts)
        self.unsettled.add(record().stored_as)
        await self._keep(record())
        await with_patience(partial(self._store_whole, record().stored_as, parts, digests))
        crash.at("after_join")
        await self._keep(file := record())
        return file

    async def remove_parts(self) -> None:
        """Delete the parts. What a keeper that dies, or a store that is away, leaves is swept away."""
        for part in self.written.parts:
            await self._remove(part.name_for(self._batch.account))

    async def remove_unsettled(self) -> None:
        """Delete what was stored for a batch that is gone: its account was erased meanwhile."""
        for name in self.unsettled:
            await self._remove(name)

    async def _remove(self, name: CallerFileName) -> None:
        await self._services.caller_files.forget(name.account, name.id)
        await self._services.scripts.stow(name.account, name.id)
        with suppress(BackendUnavailable):
            async with as_unavailable():
                await self._store.discard(name)

    async def _put(self, kind: Kind, data: bytes) -> Part:
        digests = Digests()
        digests.add(data)
        part = Part(kind, new_file_id(self._services.clock.now_ms()), len(data))
        # first, or it may be swept away before it is recorded: Redis may be full for longer than the sweeper waits
        self.unsettled.add(part.name_for(self._batch.account))
        await self._keep(self._record(part.id, kind, digests, PART))
        await with_patience(partial(self._put_once, part, data))
        return part

    async def _put_once(self, part: Part, data: bytes) -> None:
        async with as_unavailable():
            await self._store.put(part.name_for(self._batch.account), data, content_type=JSONL)

    async def _store_whole(self, name: CallerFileName, parts: Sequence[Part], digests: "Digests") -> None:
        digests.clear()
        async with as_unavailable():
            there = await self._there(parts)  # first, or the parts before a missing one would be copied at each try
            await self._store.put(name, self._blocks(there, digests), content_type=JSONL)

    async def _there(self, parts: Sequence[Part]) -> list[Part]:
        """Return the parts that the store has. The others are in `lost`: without a record, or missing for GONE_S.
        Raises FileNotFoundError while one may come back.
        """
        there, missing = [], 0
        for part in parts:
            if await self._open(part) is not None:
                self._missing.forget(part.id)
                there.append(part)
            elif await self._has_record(part) and not self._missing.is_gone(part.id):
                missing += 1
            elif part.id not in self.lost:
                log.error("a part of a batch is gone", extra={"batch": self._batch.id, "part": part.id})
                self.lost.add(part.id)
        if missing:
            raise FileNotFoundError(f"{missing} parts are missing")
        self.lost.difference_update(part.id for part in there)
        return there

    async def _open(self, part: Part) -> OpenFile | None:
        file = await self._store.open(part.name_for(self._batch.account))
        return file if file is not None and file.size == part.size else None

    async def _has_record(self, part: Part) -> bool:
        return await self._services.caller_files.get(self._batch.account, part.id) is not None

    async def _blocks(self, parts: Sequence[Part], digests: "Digests") -> AsyncGenerator[bytes, None]:
        for part in parts:
            if (file := await self._open(part)) is None:
                raise FileNotFoundError(f"part {part.id} is missing")
            async for block in file.read(0, part.size):
                await to_thread.run_sync(digests.add, block)
                yield block

    async def _keep(self, file: CallerFile) -> None:
        """Count the file in the account's quota, and record it, so that it is not swept away. It is not listed. What no
        batch names expires.
        """
        await self._count(file, until_ms=file.expires)
        life_ms = file.expires - file.created
        await with_patience(partial(self._services.caller_files.keep, file, life_ms=life_ms))

    async def list(self, file_id: FileId) -> None:
        """List a file that was made of parts, for as long as it lives."""
        files = self._services.caller_files
        file = await with_patience(partial(files.get, self._batch.account, file_id))
        if file is not None:
            await self._count(file, until_ms=file.expires)
            await with_patience(partial(files.add, file, is_known=True))

    async def _count(self, file: CallerFile, *, until_ms: int) -> None:
        stow = self._services.scripts.stow
        await with_patience(partial(stow, file.account, file.id, file.size, until_ms=until_ms))

    def _record(self, file_id: FileId, name: str, digests: "Digests", ending: str, *, purpose: str = "") -> CallerFile:
        """Return the record of a file that lives at least as long as its batch, or as its caller asked for."""
        created, life_s = self._services.clock.now_ms(), self._services.settings.batch_ttl_s
        if purpose == PURPOSE and self._batch.output_life_s:
            life_s = self._batch.output_life_s
        return CallerFile(
            id=file_id,
            account=self._batch.account,
            name=f"{name}.{ending}",
            ending=ending,
            content_type=PLAIN_TYPE,
            size=digests.size,
            sha256=digests.sha256.hexdigest(),
            md5=digests.md5.hexdigest(),
            metadata=Raw(b"{}"),
            created=created,
            expires=created + int(life_s * 1000),
            purpose=purpose,
        )


class Digests:
    """Size and checksums of a file that is being stored."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.size = 0
        self.sha256 = hashlib.sha256()
        self.md5 = hashlib.md5(usedforsecurity=False)

    def add(self, block: bytes) -> None:
        self.size += len(block)
        self.sha256.update(block)
        self.md5.update(block)


@asynccontextmanager
async def as_unavailable() -> AsyncIterator[None]:
    """Take any error of a store, which is third-party code, for an outage."""
    try:
        yield
    except Exception as exc:
        log.warning("a file of a batch cannot be stored now", extra={"error": type(exc).__name__})
        raise BackendUnavailable(f"the file store fails: {type(exc).__name__}") from exc
