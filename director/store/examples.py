"""Predictions that operators show with a model: what was put in and what came out, as it was when they chose it.

A copy, since what it was made from is removed some day. Never shows who made it beyond that: no webhook, and no address
of its event stream, which is a permission.
"""

from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask
from director.broker.scripts import Scripts
from director.core.errors import SettingsError
from director.core.ids import PredictionId
from director.core.schema import Stored
from director.core.states import Status
from director.core.view import view

__all__ = ("Examples",)

MOST: Final = 100
MOST_BYTES: Final = 256 * 1024  # each is part of every answer that shows its model


class Examples:
    """All methods raise BackendUnavailable while Redis cannot answer, and SettingsError for what cannot be shown."""

    def __init__(self, redis: Redis, scripts: Scripts) -> None:
        self._redis: Any = redis  # its types say str or bytes, and ours answers in bytes
        self._scripts = scripts

    async def show(self, model: str, prediction_id: PredictionId, *, is_default: bool) -> None:
        """Show this prediction with its model; the default one stands for the model in every list. Safe to repeat."""
        stored = await self._scripts.get(prediction_id, outlook=False)
        if stored is None or stored.record.model != model:
            raise SettingsError(f"{model} has no such prediction any more.")
        example = _copy(stored)
        key = keys.examples(model)
        if await ask(lambda: self._redis.hlen(key)) >= MOST:
            raise SettingsError(f"A model has at most {MOST} examples: take one away first.")
        await ask(lambda: self._redis.hset(key, prediction_id, bytes(example)))
        if is_default and await self._scripts.amend(model, "change", said={"default_example": prediction_id}) != "done":
            await ask(lambda: self._redis.delete(key))
            raise SettingsError(f"there is no model {model}.")

    async def hide(self, model: str, prediction_id: PredictionId) -> bool:
        """Show it no more; False where it was not shown."""
        return bool(await ask(lambda: self._redis.hdel(keys.examples(model), prediction_id)))


def _copy(stored: Stored) -> Raw:
    if stored.record.status is not Status.SUCCEEDED or stored.input is None:
        raise SettingsError("Only a prediction that succeeded, and whose data is still there, is an example.")
    shown = view(stored)
    shown = replace(shown, webhook=UNSET, webhook_events_filter=UNSET, urls=replace(shown.urls, stream=""))
    example = msgspec.json.encode(shown)
    if len(example) > MOST_BYTES:
        raise SettingsError(f"An example is at most {MOST_BYTES:,} bytes, and this one {len(example):,}.")
    return Raw(example)
