"""Check that the user of the Redis URL may run every command that Director sends: one example of each.

ACL DRYRUN says what the server would refuse, and runs nothing. k8s/base/redis/users.acl has exactly these rights.
"""

from collections.abc import Sequence
from typing import Any, Final

from redis import exceptions
from redis.asyncio import Redis

from director.broker.redis_client import ask, pipelined, text
from director.core.errors import UnsafeBackend

NEEDED: Final = tuple(
    tuple(line.split())
    for line in """
blpop {p0}:q:a/b:0:bell 1
client setname director
del {p0}:idem:a:a/b:0
evalsha 0 1 {p0}:rec:0
exec
exists {a:a}:deployment:b
get secret:files
hdel account:a limits
hexists {p0}:q:a/b:0:suspended a
hget versions 0
hgetall token:0
hincrby account:a limits_rev 1
hkeys {p0}:q:a/b:0:suspended
hlen examples:a/b
hmget version:a/b:0 schema
hrandfield {p0}:q:a/b:0:last 1
hscan {p0}:q:a/b:0:queued 0
hset hardware cpu CPU
hsetnx model:a/b created 0
hstrlen version:a/b:0 schema
info server
llen {p0}:ev:0
lpush {p0}:q:a/b:0:samples 0
lrange {p0}:ev:0 0 1
ltrim {p0}:q:a/b:0:samples 0 1
mget {a:a}:file:0
multi
persist token:0
pexpire {p0}:rec:0 1
pexpireat token:0 1
ping
pttl {p0}:idem:a:a/b:0
publish {p0}:ch:0 1
publish kick:0 0
rpush {p0}:q:a/b:0:bell 0
sadd queues a/b:0
sadd accounts a
sadd partitions 0
script load 0
set site 0
set collection:a 0
sismember queues a/b:0
smembers collections
srandmember {p0}:q:a/b:0:held 1
srem collections a
strlen {p0}:in:0
subscribe {p0}:ch:0 kick:0
time
unlink {p0}:ev:0
unsubscribe
xack {p0}:q:a/b:0:normal:s0 directors 0-1
xadd changes * kind 0
xautoclaim {p0}:q:a/b:0:normal:s0 directors 0 1 0-0
xclaim {p0}:q:a/b:0:normal:s0 directors 0 1 0-1
xdel {p0}:q:a/b:0:normal:s0 0-1
xgroup create {p0}:q:a/b:0:normal:s0 directors 0
xgroup delconsumer {p0}:q:a/b:0:normal:s0 directors 0
xinfo groups {p0}:q:a/b:0:normal:s0
xinfo stream {p0}:log
xlen {p0}:q:a/b:0:normal:s0
xpending {p0}:q:a/b:0:normal:s0 directors
xrange {p0}:log - +
xreadgroup group directors 0 streams {p0}:q:a/b:0:normal:s0 >
xrevrange changes + -
zadd tokens:a 0 0
zcard {p0}:owed
zcount {p0}:owed 0 1
zincrby {p0}:q:a/b:0:vtime:normal 1 a
zmscore {p0}:q:a/b:0:lease 0
zrange models:created 0 1
zrangebylex {a:a}:listing - +
zrangebyscore settling 0 1
zrank {p0}:q:a/b:0:live 0
zrem suspensions a
zremrangebylex {a:a}:files - [0
zremrangebyrank {a:a}:taken 0 1
zremrangebyscore settling 0 1
zrevrange {a:a}:deployments 0 1
zrevrangebylex {a:a}:listing + -
zscore {p0}:unspent 0
hset sink:a 0 0
hset contact run_id 0
""".strip().splitlines()
)
# Commands that Director uses if allowed and does without if not, and those that only nodes of a Cluster get
ASKED: Final = ("acl whoami", "acl dryrun", "config get", "cluster info", "cluster slots", "asking")
MOST_TOLD: Final = 3
MEND: Final = "k8s/base/redis/users.acl has a user with these rights."


async def check_rights(redis: Redis) -> None:
    if found := await refused(redis):
        raise UnsafeBackend(f"The user in the Redis URL lacks rights that are needed: {in_a_line(found)}. {MEND}")


async def refused(redis: Redis) -> list[str] | None:
    """Return the server's refusals, or None if ACL DRYRUN is not allowed. Raises BackendUnavailable."""
    untyped: Any = redis
    try:
        user = text(await ask(lambda: untyped.execute_command("ACL WHOAMI")))
        tried = await pipelined(
            redis, lambda pipe: [pipe.execute_command("ACL DRYRUN", user, *command) for command in NEEDED]
        )
    except exceptions.RedisError:
        return None
    return [answer for answer in map(text, tried) if answer != "OK"]


def in_a_line(found: Sequence[str]) -> str:
    more = f"; and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    return "; ".join(found[:MOST_TOLD]) + more
