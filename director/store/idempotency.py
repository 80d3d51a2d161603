"""What an idempotency key stands for, where somebody has to know before anything is filed. `enqueue` alone writes them.

Reads only: between this and an enqueue a key may come to be, or end.
"""

from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import ask, text
from director.core.errors import IdempotencyMismatch
from director.core.ids import PredictionId

__all__ = ("IdempotencyKeys",)


class IdempotencyKeys:
    """The keys in Redis. All methods raise BackendUnavailable while it cannot answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def stands_for(self, account: str, *, model: str, digest: str, fingerprint: str) -> PredictionId | None:
        """The prediction that was accepted with this key; its record may be gone. None where none was.

        Raises IdempotencyMismatch where that was another request.
        """
        key = keys.idempotency(account=account, model=model, digest=digest)
        held = await ask(lambda: self._redis.get(key))
        if held is None:
            return None
        known, _, of = text(held).partition(" ")
        if of != fingerprint:
            raise IdempotencyMismatch("This Idempotency-Key was used with another body.")
        return PredictionId(known)
