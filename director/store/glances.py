"""Read a few bytes of predictions, because their inputs and outputs may be megabytes."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import pipelined, text
from director.core.ids import PredictionId
from director.core.schema import REFERENCE_BYTES, reference_in
from director.core.states import TERMINAL, Status

FIELDS: Final = ("status", "model", "version")


class Glance(Struct, frozen=True):
    """The facts that a list needs of a prediction before reading it. `weight`: bytes of input, output and logs; None
    while it runs, because that is known only when it is read.
    """

    id: PredictionId
    status: str
    model: str
    version: str
    weight: int | None


class Glances:
    """Read glances. All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._asked: dict[PredictionId, None] = {}
        self._answers: asyncio.Task[dict[PredictionId, bool]] | None = None
        self._looking = asyncio.Lock()

    async def has_ended(self, prediction_id: PredictionId) -> bool:
        """Return whether the prediction is terminal. Calls made meanwhile share a write: waiters are many."""
        self._asked[prediction_id] = None
        if self._answers is None:
            self._answers = asyncio.create_task(self._look())
            self._answers.add_done_callback(lambda task: task.cancelled() or task.exception())  # all may have left
        # a caller that leaves must not cancel the answers for the others
        answers = await asyncio.shield(self._answers)
        return answers[prediction_id]

    async def at(self, ids: Sequence[PredictionId]) -> list[Glance]:
        """Return a glance at each. A prediction that is gone has an empty status, model and version."""

        def read(pipe: Any) -> None:
            for prediction_id in ids:
                pipe.hmget(keys.record(prediction_id), FIELDS)
                pipe.strlen(keys.input_data(prediction_id))
                pipe.hstrlen(keys.output_data(prediction_id), "output")
                pipe.hstrlen(keys.output_data(prediction_id), "logs")

        replies = iter(await pipelined(self._redis, read))
        looked = [(each, *(next(replies) for _ in range(4))) for each in ids]
        in_files = await self._bytes_in_files(looked)
        glances = []
        for prediction_id, fields, *sizes in looked:
            status, model, version = (text(value or b"") for value in fields)
            weight = None if status == Status.PROCESSING else sum(sizes) + in_files[prediction_id]
            glances.append(Glance(prediction_id, status, model, version, weight))
        return glances

    async def _bytes_in_files(self, looked: Sequence[tuple[Any, ...]]) -> Counter[PredictionId]:
        """Return the bytes of each that are in the file store. What is as long as a reference is read."""
        inputs = [each for each, _, size, *_ in looked if size == REFERENCE_BYTES]
        outputs = [each for each, _, _, size, _ in looked if size == REFERENCE_BYTES]

        def read(pipe: Any) -> None:
            for each in inputs:
                pipe.get(keys.input_data(each))
            for each in outputs:
                pipe.hget(keys.output_data(each), "output")

        kept = await pipelined(self._redis, read)
        found = Counter[PredictionId]()
        for each, reference in zip([*inputs, *outputs], map(reference_in, kept), strict=True):
            found[each] += reference.size if reference else 0
        return found

    async def _look(self) -> dict[PredictionId, bool]:
        # one look at a time, or a crowd would take every connection; every call made before the look begins is in it
        async with self._looking:
            asked, self._asked, self._answers = list(self._asked), {}, None
            statuses = await pipelined(
                self._redis, lambda pipe: [pipe.hget(keys.record(each), "status") for each in asked]
            )
        return {
            prediction_id: status is not None and text(status) in TERMINAL
            for prediction_id, status in zip(asked, statuses, strict=True)
        }
