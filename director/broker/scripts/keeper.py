"""Call the scripts that keepers run for queues and owed webhooks. They never take a claim whose lease is still good."""

import random
from collections.abc import Sequence
from typing import Final, Literal, cast

from director.broker import keys
from director.broker.gatherer import Arg
from director.broker.redis_client import text
from director.broker.scripts.holder import Requeued
from director.broker.scripts.wire import Wire, ms, now
from director.core.ids import Partition, PredictionId, QueueName, partition_of
from director.core.schema import pairs

Delivered = Literal["", "noted", "others"]
"""'': nothing was noted, since it is no longer owed. `others`: it arrived, and others wait for the same host."""

DELIVERED: Final[Sequence[Delivered]] = ("", "noted", "others")

Repair = Literal["forgotten", "leased", "offered", "placed", "timed"]
"""What reconcile did: dropped an id that is terminal or has no record; gave a claim its lease; made claims look into
its stream or backlog; put it back in line; put its deadline back into the index."""


class KeeperScripts(Wire):
    """The scripts for keepers."""

    async def contact(self, run_id: str, *, silence_s: float, now_ms: int | None = None) -> tuple[int, float]:
        """Note contact with this run of the server. Returns its time in ms, and the seconds that keepers had contact
        with it.
        """
        at, lasted = await self._call("contact", [keys.contact()], [run_id, ms(silence_s), now(now_ms)])
        return at, lasted / 1000

    async def reap(
        self, queue: QueueName, *, limit: int, lease_s: float = 15.0, now_ms: int | None = None
    ) -> list[tuple[PredictionId, Requeued]]:
        """Recover claims whose lease has expired. Returns the new state of each.

        `lease_s`: of the directors. `now_ms`: the server time to judge by, which a keeper that was frozen would
        overrun. For a lease before it the server's clock has not stepped.
        """
        args: list[Arg] = [limit, _jitter(), ms(lease_s), now(now_ms)]
        reply = await self._call("reap", [keys.lease(queue), keys.directors(queue)], args)
        return _outcomes(reply)

    async def recover(
        self,
        queue: QueueName,
        lane: str,
        number: int,
        *,
        cursor: str,
        count: int,
        idle_s: float,
        now_ms: int | None = None,
    ) -> tuple[str, list[tuple[PredictionId, Requeued]]]:
        """Find claims of one stream that have no lease. Returns the cursor to continue from, '0-0' at the end."""
        args: list[Arg] = [queue, cursor, count, ms(idle_s), _jitter(), now(now_ms)]
        last, *recovered = await self._call("recover", [keys.stream(queue, lane, number)], args)
        return last.decode(), _outcomes(recovered)

    async def reconcile(
        self, queue: QueueName, *, start: int, count: int, lease_s: float, now_ms: int | None = None
    ) -> tuple[int, list[tuple[PredictionId, Repair]]]:
        """Repair one slice of the live ids. Returns where the next slice starts, 0 after the last."""
        args: list[Arg] = [queue, start, count, ms(lease_s), now(now_ms)]
        following, *repaired = await self._call("reconcile", [keys.live(queue)], args)
        return following, [(PredictionId(name.decode()), cast(Repair, word.decode())) for name, word in pairs(repaired)]

    async def retire(self, queue: QueueName, *, silent_s: float, now_ms: int | None = None) -> str:
        """Forget one director that is silent for `silent_s` and has nothing pending. Returns its name, or ''."""
        return text(await self._call("retire", [keys.directors(queue)], [queue, ms(silent_s), now(now_ms)]))

    async def promote(self, queue: QueueName, *, limit: int, now_ms: int | None = None) -> int:
        """Put due retries back into their streams. Returns their number."""
        return int(await self._call("promote", [keys.delayed(queue)], [queue, limit, now(now_ms)]))

    async def expire(self, queue: QueueName, *, limit: int, now_ms: int | None = None) -> tuple[int, int]:
        """End predictions that waited past their deadline and notify directors of running ones. Returns (ended,
        notified).
        """
        ended, told = await self._call("expire", [keys.deadline(queue)], [limit, now(now_ms)])
        return ended, told

    async def due(
        self, partition: Partition, *, limit: int, hold_s: float, now_ms: int | None = None
    ) -> list[PredictionId]:
        """Take terminal webhooks whose next attempt is due. They become due again after `hold_s`."""
        args: list[Arg] = [limit, ms(hold_s), now(now_ms)]
        return [PredictionId(name.decode()) for name in await self._call("due", [keys.owed(partition)], args)]

    async def deliver(
        self,
        prediction_id: PredictionId,
        *,
        outcome: str,
        delay_s: float | None,
        revivals: int = 0,
        status: int | None = None,
        host: str = "?",
        is_asked: bool = False,
        known: int | None = None,
        rule: str | None = None,
        now_ms: int | None = None,
    ) -> Delivered:
        """Note the outcome of a terminal webhook's attempt. Without `delay_s` there is no other. `put_off` counts as
        no attempt.

        `revivals`: of the record that was sent; an answer for an earlier end does not settle a later one. `status`:
        answered by `host`. `is_asked`: the host asked for this delay. `known`: attempts noted before this one. `rule`:
        forbids the address.
        """
        delay_ms: Arg = "" if delay_s is None else ms(delay_s)
        answered: list[Arg] = [now(status), host, int(is_asked), now(known), rule or ""]
        args: list[Arg] = [prediction_id, delay_ms, outcome, revivals, *answered, now(now_ms)]
        partition = partition_of(prediction_id)
        owed = [keys.owed(partition), keys.owed_to(partition, host)]
        return DELIVERED[int(await self._call("deliver", [keys.record(prediction_id), *owed], args))]

    async def sample(self, queue: QueueName, *, period_s: float, most: int, now_ms: int | None = None) -> bool:
        """Add a sample of a queue unless this period has one, and keep `most`. Returns False for an idle queue."""
        return bool(await self._call("sample", [keys.meta(queue)], [queue, ms(period_s), most, now(now_ms)]))

    async def forward(self, partition: Partition, host: str, *, limit: int, now_ms: int | None = None) -> int:
        """Make webhooks due that wait for a host which answers again. Returns their number."""
        owed = [keys.owed(partition), keys.owed_to(partition, host)]
        return int(await self._call("forward", owed, [limit, now(now_ms)]))


def _jitter() -> float:
    return random.random()  # noqa: S311 - spreads retries, guards nothing


def _outcomes(reply: Sequence[bytes]) -> list[tuple[PredictionId, Requeued]]:
    return [(PredictionId(name.decode()), cast(Requeued, word.decode())) for name, word in pairs(reply)]


# Decisions about one dead letter. `director.store.dead` lists them.


class LetterScripts(Wire):
    """The scripts for one dead letter."""

    async def revive(self, prediction_id: PredictionId, *, now_ms: int | None = None) -> bool:
        """Return a dead letter to its queue. Returns False if it is not one, or its input is gone."""
        return bool(await self._call("revive", [keys.record(prediction_id)], [prediction_id, now(now_ms)]))

    async def drop(self, prediction_id: PredictionId, queue: QueueName, *, now_ms: int | None = None) -> bool:
        """Delete a dead letter. Returns False if it is not one."""
        return bool(await self._call("drop", [keys.record(prediction_id)], [prediction_id, queue, now(now_ms)]))
