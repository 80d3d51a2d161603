"""What becomes of a dead letter once someone has decided. Lists none: `director.store.dead` does."""

from director.broker import keys
from director.broker.scripts.wire import Wire, now
from director.core.ids import PredictionId, QueueName

__all__ = ("LetterScripts",)


class LetterScripts(Wire):
    """The calls about one dead letter."""

    async def revive(self, prediction_id: PredictionId, *, now_ms: int | None = None) -> bool:
        """Return a dead letter to its queue; False when it is none, or its input is gone."""
        return bool(await self._call("revive", [keys.record(prediction_id)], [prediction_id, now(now_ms)]))

    async def drop(self, prediction_id: PredictionId, queue: QueueName, *, now_ms: int | None = None) -> bool:
        """Let go of a dead letter; False when it is none."""
        return bool(await self._call("drop", [keys.record(prediction_id)], [prediction_id, queue, now(now_ms)]))
