"""Keep every claim of this director alive with one call, and hear which are lost or should stop.

It stops last: a drain that takes long must not lose what it still runs. A caller's cancel rings here at once by its
channel, and is told again with each beat, so a lost message costs one interval.
"""

import asyncio
import contextlib
import logging
from typing import Final

from redis import exceptions
from redis.asyncio import Redis

from director.core import keys
from director.core.clock import Clock
from director.core.errors import BackendUnavailable
from director.core.ids import QueueName
from director.core.scripts import Hold, Scripts
from director.holdings import Holdings
from director.progress import heed

__all__ = ("KICK_WAIT_S", "Heartbeat")

log = logging.getLogger(__name__)

BEATS_PER_LEASE: Final = 3
KICK_WAIT_S: Final = 15.0
AWAY_S: Final = 1.0


class Heartbeat:
    """The beat of one queue's claims. `redis` is a blocking client made for `KICK_WAIT_S`."""

    def __init__(
        self,
        *,
        queue: QueueName,
        name: str,
        scripts: Scripts,
        holdings: Holdings,
        redis: Redis,
        clock: Clock,
        lease_s: float,
    ) -> None:
        self._queue = queue
        self._name = name
        self._scripts = scripts
        self._holdings = holdings
        self._redis = redis
        self._clock = clock
        self._lease_s = lease_s
        self._kicked = asyncio.Event()

    async def run(self) -> None:
        """Beat a few times per lease, and whenever somebody asks to cancel."""
        listening = asyncio.get_running_loop().create_task(self._listen())
        try:
            while True:
                try:
                    await self.run_once()
                except BackendUnavailable as exc:
                    log.warning("extending leases failed", extra={"queue": self._queue, "error": str(exc)})
                    await self._clock.sleep(min(AWAY_S, self._lease_s / BEATS_PER_LEASE))
                    continue
                except Exception:  # as soon again: without a beat every claim of this director is lost
                    log.exception("the heartbeat broke", extra={"queue": self._queue})
                    await self._clock.sleep(min(AWAY_S, self._lease_s / BEATS_PER_LEASE))
                    continue
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._kicked.wait(), self._lease_s / BEATS_PER_LEASE)
                self._kicked.clear()
        finally:
            listening.cancel()
            await asyncio.wait({listening})

    async def run_once(self) -> list[Hold]:
        """Extend all leases and heed the answers."""
        claims = self._holdings.claims()
        holds = await self._scripts.extend(self._queue, consumer=self._name, lease_s=self._lease_s, claims=claims)
        for (prediction_id, token), hold in zip(claims, holds, strict=True):
            if (held := self._holdings.find(prediction_id, token)) is not None:
                heed(held, hold)
        return holds

    async def _listen(self) -> None:
        while True:
            try:
                async with self._redis.pubsub() as kicks:
                    await kicks.subscribe(keys.kick_channel(self._name))
                    self._kicked.set()  # one may have come while nobody listened
                    while True:
                        if await kicks.get_message(ignore_subscribe_messages=True, timeout=KICK_WAIT_S):
                            self._kicked.set()
            except exceptions.RedisError:
                pass  # each beat tells of a cancel too
            except Exception:
                log.exception("listening for cancels failed", extra={"queue": self._queue})
            await self._clock.sleep(AWAY_S)
