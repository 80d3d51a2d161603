"""Keep large inputs and outputs in the file store, so that Redis has only a reference to each.

The file is stored before its reference is written. It belongs to its prediction, as the files of an output do. It is
deleted once Redis has neither the reference nor a prediction that may still run.
"""

import asyncio
import hashlib
import logging
import math
from typing import Final

from anyio import to_thread
from msgspec import Raw
from msgspec.structs import replace

from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId
from director.core.schema import Reference, Stored, reference_in
from director.files.store import DATA_ENDING, FileName, OutputStore

log = logging.getLogger(__name__)

PUT_S: Final = 5.0  # a caller waits for it
READ_S: Final = 10.0
SLOWEST_BYTES_S: Final = 1 << 20
AWAY_S: Final = 5.0
JSON: Final = "application/json"


class DataAway(BackendUnavailable):
    """The file store does not give the data of one prediction, though Redis answers. Retry later, or show `without`:
    the prediction as it is once its data was removed.
    """

    def __init__(self, reason: str, *, without: Stored) -> None:
        super().__init__(reason)
        self.without = without


class Tries:
    """Calls of a store that may be away. After a failure one caller in AWAY_S tries it, and no other waits for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._away_until = 0.0

    def may_try(self) -> bool:
        if not self._away_until:
            return True
        is_due = self._clock.monotonic() >= self._away_until
        if is_due:
            self.note_failure()  # until it answers this caller
        return is_due

    def note_failure(self) -> None:
        self._away_until = self._clock.monotonic() + AWAY_S

    def note_answer(self) -> None:
        self._away_until = 0.0


class DataFiles:
    """The data of one Redis server's predictions in its file store, if there is one. Data of `from_bytes` and more is
    put there: infinite without a store, and if None is given.
    """

    def __init__(self, clock: Clock, store: OutputStore | None = None, *, from_bytes: int | None = None) -> None:
        self._store = store
        self.from_bytes: Final = math.inf if store is None or from_bytes is None else from_bytes
        self._puts = Tries(clock)
        self._reads = Tries(clock)  # a full disk can still be read

    async def put(self, prediction_id: PredictionId, data: bytes) -> bytes:
        """Return what Redis is to keep: a reference to the stored data, or the data if it is small or the store fails.

        So a store that is away refuses nothing, and no output is lost. The data counts then as any other.
        """
        if len(data) < self.from_bytes or self._store is None or not self._puts.may_try():
            return data
        try:
            async with asyncio.timeout(PUT_S + len(data) / SLOWEST_BYTES_S):
                digest = (await to_thread.run_sync(hashlib.sha256, data)).hexdigest()
                reference = Reference(digest[:32], len(data))
                await self._store.put(_name(prediction_id, reference), data, content_type=JSON)
        except Exception as exc:  # noqa: BLE001 - any store may raise anything
            self._puts.note_failure()
            log.warning("data stays in Redis", extra={"prediction": prediction_id, "error": type(exc).__name__})
            return data
        self._puts.note_answer()
        return bytes(reference)

    async def drop(self, prediction_id: PredictionId) -> None:
        """Delete the files of a prediction that was not accepted. The keeper deletes what this call cannot."""
        try:
            if self._store is not None:
                async with asyncio.timeout(PUT_S):
                    await self._store.remove(prediction_id)
        except Exception as exc:  # noqa: BLE001 - any store may raise anything
            log.warning("files are left to the keeper", extra={"prediction": prediction_id, "error": str(exc)})

    async def whole(self, stored: Stored) -> Stored:
        """Return the prediction with its data in place of references. Raises DataAway."""
        prediction_id = stored.record.id
        try:
            given, output = await self.read(prediction_id, stored.input), await self.read(prediction_id, stored.output)
        except BackendUnavailable as exc:
            raise DataAway(str(exc), without=replace(stored, input=None, output=None)) from exc
        return replace(stored, input=given, output=output)

    async def read(self, prediction_id: PredictionId, kept: Raw | None) -> Raw | None:
        """Return what is kept, or the data that a reference stands for. Raises BackendUnavailable."""
        reference = reference_in(kept)
        if reference is None:
            return kept
        if self._store is None:
            raise BackendUnavailable(
                f"data of {prediction_id} is in a file store, and this process knows none: set DIRECTOR_FILES_DIR or"
                " DIRECTOR_FILES_URL"
            )
        if not self._reads.may_try():
            raise BackendUnavailable(f"data of {prediction_id} is in a file store that does not answer")
        try:
            async with asyncio.timeout(READ_S + reference.size / SLOWEST_BYTES_S):
                file = await self._store.open(_name(prediction_id, reference))
                if file is None or file.size != reference.size:
                    raise FileNotFoundError
                data = Raw(b"".join([chunk async for chunk in file.read(0, reference.size)]))
        except Exception as exc:  # any store may raise anything
            # an error comes at once, and may concern one file; silence would hold a slot for each prediction
            if isinstance(exc, TimeoutError):
                self._reads.note_failure()
            why = type(exc).__name__
            raise BackendUnavailable(f"data of {prediction_id} cannot be read from the file store: {why}") from exc
        self._reads.note_answer()
        return data


def _name(prediction_id: PredictionId, reference: Reference) -> FileName:
    return FileName(prediction_id, reference.digest, DATA_ENDING)
