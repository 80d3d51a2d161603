"""Note every ten seconds how each queue stands where anything happens: the history behind graphs and objectives.

Never notes one period of a queue twice, however many keepers run: a script decides. Idle queues are asked about no more
once that is noted.
"""

from typing import Final, NoReturn

from director.broker.scripts import Scripts
from director.core.clock import Clock
from director.core.ids import QueueName
from director.core.samples import MOST, PERIOD_S
from director.keeper.registry import Registry
from director.runtime.sweep import repeat, sweep

# More often than it samples: a glance costs nothing that other roles do not take already, and shows what came and went
LOOK_S: Final = 1.0


class Sampler:
    """Samples the queues where anything was seen since the last time, and those that were not idle then."""

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
        """The queues that were asked, if it is time; True for those that are not idle."""
        self._seen.update(await self._registry.awake("sampler"))
        now_s = self._clock.monotonic()
        if self._sampled_s is not None and now_s - self._sampled_s < PERIOD_S:
            return {}
        self._sampled_s = now_s
        asked = sorted(self._seen)
        is_busy = await sweep(asked, lambda queue: self._scripts.sample(queue, period_s=PERIOD_S, most=MOST))
        self._seen = {queue for queue, busy in is_busy.items() if busy}
        return is_busy
