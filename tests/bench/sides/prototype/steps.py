"""Share the keys and the two scripts between the prototype's processes."""

from typing import Final

from redis.asyncio import Redis

STREAM: Final = "proto:stream"
GROUP: Final = "proto:group"
CONSUMER: Final = "director"

# KEYS: record, stream. ARGV: id, input, who waits for it
ENQUEUE: Final = """
redis.call('HSET', KEYS[1], 'status', 'starting')
return redis.call('XADD', KEYS[2], '*', 'id', ARGV[1], 'input', ARGV[2], 'waits', ARGV[3])
"""
# KEYS: record, stream. ARGV: group, entry, output, who waits for it, id
FINISH: Final = """
redis.call('HSET', KEYS[1], 'status', 'succeeded', 'output', ARGV[3])
redis.call('EXPIRE', KEYS[1], 3600)
redis.call('XACK', KEYS[2], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[2], ARGV[2])
if ARGV[4] ~= '' then redis.call('PUBLISH', ARGV[4], ARGV[5] .. ' ' .. ARGV[3]) end
"""


def record(prediction_id: str) -> str:
    return f"proto:rec:{prediction_id}"


def replies(api: str) -> str:
    return f"proto:replies:{api}"


async def make_group(redis: Redis) -> None:
    await redis.xgroup_create(STREAM, GROUP, id="0", mkstream=True)
