"""Tell an autoscaler how many directors a queue wants, and how much could run or runs there.

While Redis cannot answer there is no answer, since a wrong zero would end every director.
"""

import re
from dataclasses import dataclass, field
from typing import Final, get_args

from msgspec import Struct
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.errors import UnknownQueue
from director.core.ids import MODEL_NAME, QUEUE_NAME, QueueName, queue_name
from director.core.policy import Lane
from director.core.samples import PERIOD_S, arrivals_s
from director.operate.sizing import Bounds, Load, count_wanted
from director.store.catalog import Catalog
from director.store.deployments import MOST, Deployments
from director.store.queues import QueueHistory

SOON_S: Final = 60.0  # a retry that is due later is no reason to keep a director
# The higher rate of the two counts, so that scaling up is immediate and scaling down is slow.
WINDOWS_S: Final = (60.0, 300.0)
BOUNDS_S: Final = 30.0
MOST_OWNERS: Final = 1_000


class Scale(Struct, frozen=True, kw_only=True):
    wanted: int
    runnable: int
    running: int


@dataclass(slots=True, eq=False)
class Scaling:
    _redis: Redis
    _scripts: Scripts
    _catalog: Catalog
    _clock: Clock
    _bounds: dict[str, tuple[float, dict[QueueName, Bounds]]] = field(default_factory=dict)

    async def find(self, name: str) -> QueueName:
        """Return the queue of this name, or of the latest version of the model of this name. Raises UnknownQueue."""
        if re.fullmatch(MODEL_NAME, name) and (model := await self._catalog.model(name)) and model.latest:
            return queue_name(model.name, model.latest)
        if not re.fullmatch(QUEUE_NAME, name):
            raise UnknownQueue(name)
        return QueueName(name)

    async def of(self, queue: QueueName) -> Scale:
        demand = await self._scripts.demand(queue, soon_s=SOON_S)
        samples = await QueueHistory(self._redis).of(queue, most=int(max(WINDOWS_S) / PERIOD_S) + 1)
        load = Load(
            waiting={"high": demand.high, "normal": demand.normal, "low": demand.low},
            runnable=demand.runnable,
            running=demand.running,
            arrivals_s={
                lane: max(arrivals_s(samples, lane, over_s, now_ms=demand.now_ms) for over_s in WINDOWS_S)
                for lane in get_args(Lane)
            },
            service_s=demand.service_ms / 1000 if demand.service_ms else None,
            slots_each=demand.slots_each or None,
            is_paused=demand.paused,
        )
        count = count_wanted(load, demand.objectives, await self._bounds_of(queue))
        return Scale(wanted=count, runnable=demand.runnable, running=demand.running)

    async def _bounds_of(self, queue: QueueName) -> Bounds:
        """Return the bounds that the model's owner set by deployments. Deployments of other accounts do not count."""
        owner, now_s = queue.partition("/")[0], self._clock.monotonic()
        read_s, bounds = self._bounds.get(owner, (None, {}))
        if read_s is None or now_s - read_s >= BOUNDS_S:
            if len(self._bounds) >= MOST_OWNERS:
                self._bounds.clear()
            bounds = await self._read_bounds(owner)
            self._bounds[owner] = now_s, bounds
        return bounds.get(queue, Bounds())

    async def _read_bounds(self, owner: str) -> dict[QueueName, Bounds]:
        """Combine the owner's deployments. Those of one version share its directors: the largest numbers serve all."""
        said: dict[QueueName, Bounds] = {}
        deployments = Deployments(self._redis, self._scripts, self._clock)
        names = [name for _, name in await deployments.names(owner)]
        for deployment in await deployments.many(owner, names[:MOST]):
            release = deployment.release
            if release.model.partition("/")[0] != owner:
                continue
            queue = queue_name(release.model, release.version)
            known = said.get(queue, Bounds())
            least = max(known.least, release.min_instances)
            said[queue] = Bounds(least=least, most=max(known.most or 0, release.max_instances, least))
        return said
