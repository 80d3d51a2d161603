"""Decide whether an expired lease may be believed: only after one lease of unbroken contact with the server. Pure.

While a server is away no director can extend a lease, yet leases expire. A reaper that acts first after an outage would
take everything from healthy directors. After one lease of contact every live director has extended its own.

A step of the server's clock is such an outage too. So is a suspended machine: its monotonic clock stands still while
the server's clock goes on. A lease ends by the server's clock, so every lease may have expired in one moment.
"""

from typing import Final

from redis.asyncio import Redis

from director.broker.redis_client import infos
from director.broker.scripts import Scripts
from director.core.clock import Clock

# Directors extend leases every third of a lease. A silence of half a lease is too short to fail a call, but may cost a
# heartbeat. The next heartbeat still comes in time; after a longer silence it might not.
LONGEST_SILENCE: Final = 0.5


class Contact:
    """How long the same run of the server has answered without a break. `at_s` is the monotonic time of an answer."""

    def __init__(self, *, lease_s: float) -> None:
        self._lease_s = lease_s
        self._run_id = ""
        self._since_s: float | None = None
        self._last_s = 0.0
        self._server_s = 0.0

    @property
    def is_proven(self) -> bool:
        """Had contact lasted for a whole lease at the server's last answer?"""
        return self._since_s is not None and self._last_s - self._since_s >= self._lease_s

    @property
    def silence_s(self) -> float:
        """The longest silence that does not begin a new contact."""
        return self._lease_s * LONGEST_SILENCE

    def heard(self, run_id: str, *, at_s: float, server_s: float, others_s: float = 0.0) -> None:
        """Note an answer of the server. Another run, a silence before, or a step of its clock begins a new contact.

        `server_s` is the server's time. `others_s` says how long all keepers together have had contact with this run.
        That holds here too, so a new contact begins that long ago.
        """
        passed_s = at_s - self._last_s
        has_stepped = abs(server_s - self._server_s - passed_s) > self.silence_s
        if self._since_s is None or passed_s > self.silence_s or run_id != self._run_id:
            self._since_s = at_s - others_s
        elif has_stepped:  # to a keeper of the former release a step back is no break
            self._since_s = at_s
        self._run_id, self._last_s, self._server_s = run_id, at_s, server_s

    def lost(self) -> None:
        """Note a failed call."""
        self._since_s = None


class ServerTime:
    """The server's time, given only once contact is proven. The roles of one keeper share it, and so keep contact
    together.
    """

    def __init__(self, redis: Redis, scripts: Scripts, clock: Clock, *, lease_s: float) -> None:
        self._redis = redis
        self._scripts = scripts
        self._clock = clock
        self._contact = Contact(lease_s=lease_s)

    async def proven_ms(self) -> int | None:
        """Return the server's time now, or None while contact is too young. Judge leases by this time, not by a
        script's clock.

        A server that freezes in between would run the script on waking, when every lease has expired. In a Cluster,
        contact means contact with every master.
        """
        found = await infos(self._redis, "server")
        run_id = " ".join(sorted(str(info["run_id"]) for info in found))
        now_ms, others_s = await self._scripts.contact(run_id, silence_s=self._contact.silence_s)
        if len(found) > 1:  # each master of a Cluster has a clock, and a lease ends by it
            now_ms = min(now_ms, *(int(info["server_time_usec"]) // 1000 for info in found))
        self._contact.heard(run_id, at_s=self._clock.monotonic(), server_s=now_ms / 1000, others_s=others_s)
        return now_ms if self._contact.is_proven else None

    def lost(self) -> None:
        """Note a failed call: contact begins again."""
        self._contact.lost()
