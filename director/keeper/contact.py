"""Decide whether an expired lease may be believed: only after one lease of unbroken contact with the server. Pure.

While a server is away nobody can extend a lease, yet the leases run on: a reaper that acts first after an outage
takes everything from healthy directors. After one lease of contact whoever is alive has extended its own.

A step of the server's clock is such an outage too. So is a sleep of this machine: its own clock stands still meanwhile,
and the server's goes on. A lease ends by the server's clock, so in one moment every lease may have run out.
"""

from typing import Final

from redis.asyncio import Redis

from director.broker.redis_client import infos
from director.broker.scripts import Scripts
from director.core.clock import Clock

# Directors extend every third of a lease. A silence of half a one, too short to fail a call, may still have cost
# them a beat: the next one comes before the lease is over, but a longer silence might not leave it that time.
LONGEST_SILENCE: Final = 0.5


class Contact:
    """How long the same server run has answered without a break. `at_s` is the time of an answer, monotonic."""

    def __init__(self, *, lease_s: float) -> None:
        self._lease_s = lease_s
        self._run_id = ""
        self._since_s: float | None = None
        self._last_s = 0.0
        self._server_s = 0.0

    @property
    def is_proven(self) -> bool:
        """Had contact lasted for a whole lease when the server answered last?"""
        return self._since_s is not None and self._last_s - self._since_s >= self._lease_s

    @property
    def silence_s(self) -> float:
        """The longest silence that does not begin a new contact."""
        return self._lease_s * LONGEST_SILENCE

    def heard(self, run_id: str, *, at_s: float, server_s: float, others_s: float = 0.0) -> None:
        """The server answered. Another run, a silence before or a step of its clock begins a new contact.

        `server_s`: what the server's clock said. `others_s`: how long all keepers together have heard this run without
        a break. That holds here too, so a new contact begins that long ago.
        """
        passed_s = at_s - self._last_s
        has_stepped = abs(server_s - self._server_s - passed_s) > self.silence_s
        if self._since_s is None or passed_s > self.silence_s or run_id != self._run_id:
            self._since_s = at_s - others_s
        elif has_stepped:  # a keeper of the former release takes a step back for no break
            self._since_s = at_s
        self._run_id, self._last_s, self._server_s = run_id, at_s, server_s

    def lost(self) -> None:
        """A call failed."""
        self._since_s = None


# What time the server has, for roles that take back what looks expired: told only once contact is proven.
#
# Never tells the time of a server that has just come back: see contact.py.


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
