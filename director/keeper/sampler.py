"""Record every ten seconds how each active queue stands: the history behind graphs and objectives.

A script ensures that each period of a queue is recorded once, however many keepers run. Once an idle period is
recorded, an idle queue is not asked about any more.
"""

from typing import Final, NoReturn

from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import QueueName
from director.core.samples import MOST, PERIOD_S
from director.keeper.registry import Registry
from director.runtime.sweep import repeat, sweep

# More often than it samples: the look costs nothing extra beside other roles, and shows short-lived work.
LOOK_S: Final = 1.0


class Sampler:
    """Samples the queues with recent work, and those that were busy at the last sample."""

    def __init__(self, scripts: Scripts, registry: Registry, clock: Clock) -> None:
        self._scripts = scripts
        self._registry = registry
        self._clock = clock
        self._seen: set[QueueName] = set()
        self._sampled_s: float | None = None

    async def run(self) -> NoReturn:
        """Look every second, and sample every ten."""
        await repeat(self.run_once, role="sampler", tick_s=LOOK_S, clock=self._clock)

    async def run_once(self) -> dict[QueueName, bool]:
        """Return the queues that were sampled, if it is time. True means that the queue is busy."""
        self._seen.update(await self._registry.awake("sampler"))
        now_s = self._clock.monotonic()
        if self._sampled_s is not None and now_s - self._sampled_s < PERIOD_S:
            return {}
        self._sampled_s = now_s
        asked = sorted(self._seen)
        is_busy = await sweep(asked, lambda queue: self._scripts.sample(queue, period_s=PERIOD_S, most=MOST))
        self._seen = {queue for queue, busy in is_busy.items() if busy}
        return is_busy
