"""Act as callers and directors of two queues between which others move predictions, in any order."""

import random
from collections import Counter

from director.core.ids import PredictionId
from director.core.schema import Claim
from tests.support.queue_driver import QueueDriver


class Walk:
    """Each act is one step of a test. A subclass adds the acts of movers and `cancel`."""

    def __init__(self, one: QueueDriver, other: QueueDriver, seed: int) -> None:
        self.sides = (one, other)
        self.dice = random.Random(seed)
        self.asked: list[PredictionId] = []
        self.held: dict[PredictionId, tuple[QueueDriver, Claim]] = {}
        self.ended: Counter[str] = Counter()

    async def step(self, *acts: str) -> None:
        name = self.dice.choice(("submit", "submit", "claim", "finish", "release", "cancel", *acts))
        await getattr(self, name)()
        for side in self.sides:
            side.pass_time(0.5)

    async def submit(self) -> None:
        wish = {"lane": self.dice.choice(("high", "normal")), "cost": self.dice.choice((1, 3))}
        if self.dice.random() < 0.2:
            wish["lifetime_ms"] = 5_000_000
        account, side = self.dice.choice(("whale", "ant", "bee")), self.dice.choice(self.sides)
        self.asked.append(await side.submit(account=account, streams=[self.dice.randrange(6)], **wish))

    async def claim(self) -> None:
        await self.hold(self.dice.choice(self.sides), self.dice.randint(1, 3))

    async def hold(self, side: QueueDriver, count: int) -> None:
        for claim in await side.claim(count):
            assert claim.id not in self.held, "it was handed out twice"
            assert claim.id not in self.ended, "it ran again"
            assert claim.record.queue == side.queue
            self.held[claim.id] = side, claim

    async def finish(self) -> None:
        if self.held:
            side, claim = self.held.pop(self.dice.choice(list(self.held)))
            assert await side.finish(claim), "its claim was lost"
            self.ended[claim.id] += 1

    async def release(self) -> None:
        if self.held:
            side, claim = self.held.pop(self.dice.choice(list(self.held)))
            became = await side.release(claim, spent=False, delay_s=self.dice.choice((0, 2)))
            assert became == "canceled" or (became in ("waiting", "delayed") and not claim.record.cancel)

    async def finish_all(self) -> None:
        """Claim and finish until nothing is left in either queue."""
        for _ in range(len(self.asked) + 10):
            while self.held:
                await self.finish()
            for side in self.sides:
                side.pass_time(3)
                await side.promote()
                await self.hold(side, 9)
            if not self.held:
                break
        for side in self.sides:
            stats = await side.stats()
            assert (stats.waiting, stats.claimed, stats.delayed, stats.live, stats.leaving) == (0, 0, 0, 0, 0)
