"""Read a few bytes about predictions instead of the predictions: whether one has ended, and how heavy each of a page
is.

An input or an output may be megabytes; the cost here does not depend on their size.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, text
from director.core.ids import PredictionId
from director.core.states import TERMINAL, Status

FIELDS: Final = ("status", "model", "version")


class Glance(Struct, frozen=True):
    """The facts that a list needs of a prediction before reading it.

    `weight`: bytes of input, output and logs; None while it runs, because that is known only when it is read.
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
        """Return whether the prediction is terminal. Calls made while another is answered share the next write: there
        may be thousands of waiters.
        """
        self._asked[prediction_id] = None
        if self._answers is None:
            self._answers = asyncio.create_task(self._look())
            self._answers.add_done_callback(lambda task: task.cancelled() or task.exception())  # all may have left
        # a caller that leaves must not cancel the answers for the others
        answers = await asyncio.shield(self._answers)
        return answers[prediction_id]

    async def at(self, ids: Sequence[PredictionId]) -> list[Glance]:
        """Return a glance at each. A prediction that is gone has an empty status, model and version."""

        async def read() -> list[Any]:
            pipe = self._redis.pipeline(transaction=False)
            for prediction_id in ids:
                pipe.hmget(keys.record(prediction_id), FIELDS)
                pipe.strlen(keys.input_data(prediction_id))
                pipe.hstrlen(keys.output_data(prediction_id), "output")
                pipe.hstrlen(keys.output_data(prediction_id), "logs")
            return await pipe.execute()

        replies = iter(await ask(read) if ids else [])
        return [
            _glance(prediction_id, [text(value or b"") for value in fields], sum(sizes))
            for prediction_id, (fields, *sizes) in zip(
                ids, zip(replies, replies, replies, replies, strict=True), strict=True
            )
        ]

    async def _look(self) -> dict[PredictionId, bool]:
        # one look at a time, or a crowd would take every connection; every call made before the look begins is in it
        async with self._looking:
            asked, self._asked, self._answers = list(self._asked), {}, None

            async def read() -> list[bytes | None]:
                pipe = self._redis.pipeline(transaction=False)
                for prediction_id in asked:
                    pipe.hget(keys.record(prediction_id), "status")
                return await pipe.execute()

            statuses = await ask(read)
        return {
            prediction_id: status is not None and text(status) in TERMINAL
            for prediction_id, status in zip(asked, statuses, strict=True)
        }


def _glance(prediction_id: PredictionId, fields: Sequence[str], size: int) -> Glance:
    status, model, version = fields
    return Glance(prediction_id, status, model, version, None if status == Status.PROCESSING else size)
