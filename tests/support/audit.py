"""Leave entries in the audit log, and keep those that a receiver gets."""

from collections.abc import Mapping
from typing import Final

from director.broker import keys
from director.core.ids import PredictionId, partition_of
from director.operate.audit.feeder import ReceiverAway
from director.store.logs import Batch, Cursor
from tests.support.queue_driver import QueueDriver

STEPS: Final = ("accepted", "claimed", "ended")


class KeptSink:
    def __init__(self, cursors: Mapping[int, Cursor] | None = None) -> None:
        self.batches: list[Batch] = []
        self.is_away = False
        self.refusals = 0
        self.kept = dict(cursors or {})

    async def cursors(self) -> Mapping[int, Cursor]:
        return self.kept

    async def write(self, batch: Batch) -> None:
        if self.is_away:
            self.refusals += 1
            raise ReceiverAway("not now")
        self.batches.append(batch)
        self.kept[batch.partition] = batch.cursor

    async def aclose(self) -> None: ...

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(entry.id, entry.kind) for batch in self.batches for entry in batch.entries]


async def live(driver: QueueDriver) -> PredictionId:
    await driver.submit()
    claim = await driver.claim_one()
    await driver.finish(claim)
    return claim.id


async def cut(driver: QueueDriver, *, to: int) -> None:
    await driver.redis.xtrim(keys.log(partition_of(driver.new_id())), maxlen=to, approximate=False)
