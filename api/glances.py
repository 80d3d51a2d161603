"""Look at predictions without reading them: has one ended, and how heavy is each of a page?

An input or an output may be megabytes: what is asked here costs a few bytes, however large they are.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from director.core import keys
from director.core.ids import PredictionId
from director.core.redis_client import ask, text
from director.core.states import TERMINAL, Status

__all__ = ("Glances",)


class Glances:
    """All methods raise BackendUnavailable while Redis cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._asked: dict[PredictionId, None] = {}
        self._answers: asyncio.Task[dict[PredictionId, bool]] | None = None
        self._looking = asyncio.Lock()

    async def has_ended(self, prediction_id: PredictionId) -> bool:
        """Is it terminal now? Those who ask while others are answered share one write, since thousands may wait."""
        self._asked[prediction_id] = None
        if self._answers is None:
            self._answers = asyncio.create_task(self._look())
            self._answers.add_done_callback(lambda task: task.cancelled() or task.exception())  # all may have left
        # who leaves does not take the answers of the others along
        answers = await asyncio.shield(self._answers)
        return answers[prediction_id]

    async def weights(self, ids: Sequence[PredictionId]) -> list[int | None]:
        """Bytes of input, output and logs of each; None for one that runs, which tells only when it is read."""

        async def read() -> list[Any]:
            pipe = self._redis.pipeline(transaction=False)
            for prediction_id in ids:
                pipe.hget(keys.record(prediction_id), "status")
                pipe.strlen(keys.input_data(prediction_id))
                pipe.hstrlen(keys.output_data(prediction_id), "output")
                pipe.hstrlen(keys.output_data(prediction_id), "logs")
            return await pipe.execute()

        replies = iter(await ask(read) if ids else [])
        return [
            None if status is not None and text(status) == Status.PROCESSING else sum(sizes)
            for status, *sizes in zip(replies, replies, replies, replies, strict=True)
        ]

    async def _look(self) -> dict[PredictionId, bool]:
        # one look at a time, or a crowd would take every connection; all who ask before it begins are in it
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
