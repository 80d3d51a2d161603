"""How predictions go from one Redis server to another: out of a queue here, into one there, and a tombstone here.

One call is of one server; `director.store.departure` has both, and the order.
"""

from collections.abc import Sequence
from typing import Final, Literal, cast

from director.broker import keys
from director.broker.gatherer import Arg, Traffic
from director.broker.scripts.wire import Wire, now
from director.core.ids import PredictionId, QueueName

Departed = Literal["leaving", "elsewhere", "claimed", "held", "gone"]
"""What became of one that should leave: `elsewhere`, it leaves for a third server; `held`: its account is paused."""

Arrived = Literal["here", "refused", "unknown"]
"""`refused`: for good, as this move of it; `unknown`: the queue."""

Vacated = Literal["moved", "cancel", "stays"]
Stayed = Literal["waiting", "delayed", "canceled", "gone"]

# As long as a call may come twice, the one of a mover that was frozen too
CAME_TTL_MS: Final = 30 * 86_400_000


class MoverScripts(Wire):
    """The mover's side."""

    async def depart(
        self,
        queue: QueueName,
        ids: Sequence[tuple[PredictionId, str]],
        *,
        site: str,
        now_ms: int | None = None,
    ) -> list[Departed]:
        """Take what waits of these, each with its account, out of their queue; what became of each, in order."""
        args: list[Arg] = [queue, site, now(now_ms), *(part for one in ids for part in one)]
        reply = await self._call("depart", [keys.live(queue)], args)
        return [cast(Departed, word.decode()) for word in reply]

    async def arrive(
        self,
        prediction_id: PredictionId,
        queue: QueueName,
        *,
        move: int,
        record: Sequence[bytes] = (),
        input: bytes = b"",  # noqa: A002 - the word for it
        events: Sequence[bytes] = (),
        idempotency: tuple[str, bytes, int] | None = None,
        weight: float = 1,
        most_running: int | None = None,
        limits_rev: int = 0,
        refuses: bool = False,
        now_ms: int | None = None,
    ) -> Arrived:
        """Take it in, or where it `refuses` never. `record` is flat; `idempotency`: its key, what that holds, its ms.

        `limits_rev` 0: what the queue knows of its account's limits stays.
        """
        own = keys.record(prediction_id)
        held, holds, held_ms = idempotency or (own, b"", 0)
        names = [own, keys.input_data(prediction_id), keys.events(prediction_id), keys.came(prediction_id), held]
        limits: list[Arg] = [f"{weight:g}", "" if most_running is None else most_running, limits_rev]
        args: list[Arg] = [prediction_id, queue, move, int(refuses), CAME_TTL_MS, input, holds, held_ms, *limits]
        rest = [part for entry in events for part in (b"", entry)]
        args += [now(now_ms), *record, *rest]
        # in the order of the calls, however large each of them is
        reply = await self._call("arrive", names, args, traffic=Traffic.LARGE_WRITES)
        return cast(Arrived, reply.decode())

    async def vacate(
        self, prediction_id: PredictionId, *, site: str, canceled: bool = False, now_ms: int | None = None
    ) -> Vacated:
        """Leave a tombstone of what has arrived there. `canceled`: its caller's cancel was told there."""
        args: list[Arg] = [prediction_id, site, int(canceled), CAME_TTL_MS, now(now_ms)]
        return cast(Vacated, (await self._call("vacate", [keys.record(prediction_id)], args)).decode())

    async def stay(self, prediction_id: PredictionId, *, site: str, now_ms: int | None = None) -> Stayed:
        """Put back what was refused there."""
        args: list[Arg] = [prediction_id, site, now(now_ms)]
        return cast(Stayed, (await self._call("stay", [keys.record(prediction_id)], args)).decode())
