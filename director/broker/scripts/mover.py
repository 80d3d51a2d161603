"""Call the scripts that move predictions to another Redis server: out of a queue, into the other's, and a tombstone.

One call goes to one server. `director.store.departure` talks to both and keeps the order.
"""

from collections.abc import Sequence
from typing import Final, Literal, cast

from director.broker import keys
from director.broker.gatherer import Arg, Traffic
from director.broker.scripts.wire import Wire, now
from director.core.ids import PredictionId, QueueName

Departed = Literal["leaving", "elsewhere", "claimed", "held", "gone"]
"""State of a prediction that should leave. `elsewhere`: it leaves for a third server; `held`: its account is paused."""

Arrived = Literal["here", "refused", "unknown"]
"""`refused`: this move is refused for good; `unknown`: the queue is unknown."""

Vacated = Literal["moved", "cancel", "stays"]
Stayed = Literal["waiting", "delayed", "canceled", "gone"]

# As long as a call may be repeated, even by a mover that was frozen
CAME_TTL_MS: Final = 30 * 86_400_000


class MoverScripts(Wire):
    """The scripts for moves."""

    async def depart(
        self,
        queue: QueueName,
        ids: Sequence[tuple[PredictionId, str]],
        *,
        site: str,
        now_ms: int | None = None,
    ) -> list[Departed]:
        """Take the waiting ones of these (id, account) pairs out of their queue. Returns the new state of each, in
        order.
        """
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
        """Accept a prediction from another server, or with `refuses` refuse it for good.

        `record`: flat fields. `idempotency`: the key, its value, and its remaining ms. `limits_rev` 0 keeps the
        account's limits that the queue knows.
        """
        own = keys.record(prediction_id)
        held, holds, held_ms = idempotency or (own, b"", 0)
        names = [own, keys.input_data(prediction_id), keys.events(prediction_id), keys.came(prediction_id), held]
        limits: list[Arg] = [f"{weight:g}", "" if most_running is None else most_running, limits_rev]
        args: list[Arg] = [prediction_id, queue, move, int(refuses), CAME_TTL_MS, input, holds, held_ms, *limits]
        rest = [part for entry in events for part in (b"", entry)]
        args += [now(now_ms), *record, *rest]
        # the same traffic for all sizes keeps the calls in order
        reply = await self._call("arrive", names, args, traffic=Traffic.LARGE_WRITES)
        return cast(Arrived, reply.decode())

    async def vacate(
        self, prediction_id: PredictionId, *, site: str, canceled: bool = False, now_ms: int | None = None
    ) -> Vacated:
        """Leave a tombstone for a prediction that arrived elsewhere. `canceled`: its caller's cancel was passed on."""
        args: list[Arg] = [prediction_id, site, int(canceled), CAME_TTL_MS, now(now_ms)]
        return cast(Vacated, (await self._call("vacate", [keys.record(prediction_id)], args)).decode())

    async def stay(self, prediction_id: PredictionId, *, site: str, now_ms: int | None = None) -> Stayed:
        """Put a prediction back that the other server refused."""
        args: list[Arg] = [prediction_id, site, now(now_ms)]
        return cast(Stayed, (await self._call("stay", [keys.record(prediction_id)], args)).decode())
