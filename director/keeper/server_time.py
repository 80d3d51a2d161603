"""What time the server has, for roles that take back what looks expired: told only once contact is proven.

Never tells the time of a server that has just come back: see contact.py.
"""

from redis.asyncio import Redis

from director.broker.redis_client import infos
from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.keeper.contact import Contact

__all__ = ("ServerTime",)


class ServerTime:
    """Shared by the roles of one keeper, so that the busiest of them keeps contact for all."""

    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock, *, lease_s: float) -> None:
        self._redis = redis
        self._scripts = scripts
        self._clock = clock
        self._contact = Contact(lease_s=lease_s)

    async def proven_ms(self) -> int | None:
        """Ask now; None while contact is too young. Judge by this time, not by the clock when a script runs.

        A server that freezes in between runs the script on waking, when every lease has run out. In a Cluster, contact
        is that with every master.
        """
        found = await infos(self._redis, "server")
        run_id = " ".join(sorted(str(info["run_id"]) for info in found))
        now_ms, others_s = await self._scripts.contact(run_id, silence_s=self._contact.silence_s)
        if len(found) > 1:  # each master of a Cluster has a clock, and a lease ends by that of its own
            now_ms = min(now_ms, *(int(info["server_time_usec"]) // 1000 for info in found))
        self._contact.heard(run_id, at_s=self._clock.monotonic(), server_s=now_ms / 1000, others_s=others_s)
        return now_ms if self._contact.is_proven else None

    def lost(self) -> None:
        """A call failed: contact begins anew."""
        self._contact.lost()
