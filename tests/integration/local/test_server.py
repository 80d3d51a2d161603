"""The embedded server keeps records small."""

from director.broker import keys
from director.local.server import own_server
from tests.support.queue_driver import driving


async def test_ended_record_with_long_metrics_stays_a_listpack() -> None:
    async with own_server() as redis, driving(f"unix://{redis.connection_pool.connection_kwargs['path']}") as driver:
        claim = await driver.claimed()
        assert await driver.finish(claim, metrics=b'{"outputs_per_second":%.200f}' % 1)
        assert await driver.redis.object("encoding", keys.record(claim.id)) == b"listpack"
