"""Check that the user of the Redis URL may run every command that Director sends: one example of each.

ACL DRYRUN says what the server would refuse, and runs nothing. k8s/base/redis/users.acl has exactly these rights: one
user for each part, and `director` with all of them.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, cast, get_args

from redis import exceptions
from redis.asyncio import Redis

from director.broker.redis_client import ask, pipelined, text
from director.core.errors import UnsafeBackend

Part = Literal["api", "keeper", "run"]
"""The user of a part has the name of the command that starts it. Operators' commands have the rights of the API."""
PARTS: Final[tuple[Part, ...]] = get_args(Part)

# In front of each command: a for the API, k for keepers, r for directors.
# A director reads `account:` because it signs webhooks. It reads no token, and changes no account.
ROWS: Final = """
--r blpop {p0}:q:a/b:0:bell 1
akr client setname director
akr del {p0}:idem:a:a/b:0
a-- del token:0
a-r del version:a/b:0
akr evalsha 0 1 {p0}:rec:0
a-- evalsha 0 1 account:a
a-- evalsha 0 1 changes
a-- evalsha 0 1 token:0
-k- evalsha 0 1 contact
a-r evalsha 0 1 model:a/b
a-r evalsha 0 1 version:a/b:0
a-- evalsha 0 1 {a:a}:deployment:b
a-- evalsha 0 1 {a:a}:listing
a-- evalsha 0 1 {a:a}:sessions
akr evalsha 0 1 {a:a}:data
akr evalsha 0 1 {a:a}:stored
ak- evalsha 0 1 {a:a}:budget
ak- evalsha 0 1 {a:a}:usage
a-r exec
ak- exists {a:a}:budget
ak- exists {a:a}:compute
ak- exists {a:a}:credit
ak- exists {a:a}:deployment:b
akr exists {a:a}:file:0
akr exists version:a/b:0
akr get secret:outputs
ak- get {a:}:data_first
a-- get {a:}:data_share
a-- hdel account:a limits
a-- hdel {a:a}:sessions 0
a-r hdel versions 0
akr hdel {p0}:q:a/b:0:running a
akr hexists version:a/b:0 created
akr hexists versions 0
akr hexists {p0}:q:a/b:0:suspended a
akr hget versions 0
akr hget {p0}:rec:0 queue
a-- hget {a:a}:sessions 0
akr hgetall account:a
akr hgetall {a:a}:data
akr hgetall versions
a-- hgetall sink:a
a-- hgetall token:0
a-- hincrby account:a limits_rev 1
akr hincrby {p0}:q:a/b:0:running a 1
a-- hkeys {p0}:q:a/b:0:suspended
a-- hlen examples:a/b
ak- hlen {p0}:q:a/b:0:queued
akr hmget model:a/b latest
akr hmget version:a/b:0 schema
ak- hrandfield {p0}:q:a/b:0:last 1
ak- hscan {a:a}:budget 0
ak- hscan {a:a}:compute 0
ak- hscan {a:a}:credit 0
ak- hscan {p0}:q:a/b:0:queued 0
a-- hset account:a limits 0
a-- hset hardware cpu CPU
a-r hset model:a/b latest 0
a-- hset sink:a 0 0
a-- hset token:0 account a
a-r hset versions 0 a/b
akr hset {p0}:rec:0 status 0
a-- hsetnx account:a type 0
a-r hsetnx model:a/b created 0
ak- hstrlen version:a/b:0 schema
akr info server
a-r llen {p0}:ev:0
akr lpush {p0}:q:a/b:0:samples 0
akr lrange {p0}:ev:0 0 1
-k- ltrim {p0}:q:a/b:0:samples 0 1
ak- mget {a:a}:deployment:b
akr mget {a:a}:file:0
a-r multi
a-- persist token:0
ak- pexpire {a:}:data_first 1
ak- pexpire {a:}:data_share 1
akr pexpire {p0}:rec:0 1
a-- pexpireat token:0 1
akr pexpireat {p0}:in:0 1
akr ping
a-- pttl {p0}:idem:a:a/b:0
akr publish kick:0 0
akr publish {p0}:ch:0 1
akr rpush {p0}:q:a/b:0:bell 0
a-- sadd accounts a
--r sadd partitions 0
a-r sadd queues a/b:0
akr sadd {p0}:q:a/b:0:held a
akr script load 0
a-- set collection:a 0
akr set secret:outputs 0
a-- set site 0
a-- set {a:a}:file:0 0
ak- set {a:}:data_first 0
ak- set {a:}:data_share 0
akr sismember partitions 0
akr sismember queues a/b:0
ak- smembers accounts
a-- smembers collections
akr smembers queues
ak- srandmember {p0}:q:a/b:0:held 1
a-- srem collections a
a-r srem queues a/b:0
akr srem {p0}:q:a/b:0:held a
ak- strlen {p0}:in:0
a-r subscribe kick:0
a-r subscribe {p0}:ch:0
akr time
akr unlink {p0}:ev:0
a-- unsubscribe
akr xack {p0}:q:a/b:0:normal:s0 directors 0-1
a-- xadd changes * kind 0
akr xadd {p0}:log * kind 0
-k- xautoclaim {p0}:q:a/b:0:normal:s0 directors 0 1 0-0
--r xclaim {p0}:q:a/b:0:normal:s0 directors 0 1 0-1
akr xdel {p0}:q:a/b:0:normal:s0 0-1
--r xgroup create {p0}:q:a/b:0:normal:s0 directors 0
-k- xgroup delconsumer {p0}:q:a/b:0:normal:s0 directors 0
akr xinfo groups {p0}:q:a/b:0:normal:s0
a-- xinfo stream {p0}:log
akr xlen {p0}:q:a/b:0:normal:s0
-k- xpending {p0}:q:a/b:0:normal:s0 directors
akr xrange {p0}:log - +
--r xreadgroup group directors 0 streams {p0}:q:a/b:0:normal:s0 >
a-- xrevrange changes + -
ak- xrevrange {p0}:q:a/b:0:normal:s0 + -
a-r zadd models:created 0 0
ak- zadd settling 0 a
ak- zadd suspensions 0 a
a-- zadd tokens:a 0 0
a-- zadd {a:}:expiring 0 a
akr zadd {p0}:owed 0 0
akr zcard {p0}:owed
akr zcount {p0}:owed 0 1
a-- zmscore {p0}:q:a/b:0:lease 0
akr zrange models:created 0 1
ak- zrange settling 0 1
akr zrange suspensions 0 1
akr zrange {p0}:owed 0 1
ak- zrangebylex {a:a}:listing - +
ak- zrangebyscore {a:}:expiring 0 1
akr zrangebyscore {p0}:owed 0 1
akr zrank {p0}:q:a/b:0:live 0
a-r zrem models:created a/b
a-- zrem tokens:a 0
akr zrem {p0}:owed 0
a-- zremrangebyrank {a:a}:listing 0 1
ak- zremrangebyscore settling 0 1
akr zremrangebyscore {p0}:q:a/b:0:deadline 0 1
ak- zrevrange {a:a}:deployments 0 1
akr zrevrange {p0}:q:a/b:0:dead 0 1
ak- zrevrangebylex {a:a}:listing + -
akr zscore {p0}:unspent 0
""".strip().splitlines()
NEEDED: Final[dict[Part, tuple[tuple[str, ...], ...]]] = {
    part: tuple(tuple(row[4:].split()) for row in ROWS if part[0] in row[:3]) for part in PARTS
}
ALL: Final = tuple(tuple(row[4:].split()) for row in ROWS)
# Commands that Director uses if allowed and does without if not, and those that only nodes of a Cluster get
ASKED: Final = ("acl whoami", "acl dryrun", "config get", "cluster info", "cluster slots", "asking")
MOST_TOLD: Final = 3
MEND: Final = "k8s/base/redis/users.acl has users with these rights."


async def check_rights(redis: Redis, part: Part) -> None:
    if found := await find_refused(redis, part):
        raise UnsafeBackend(f"The user in the Redis URL lacks rights that are needed: {in_a_line(found)}. {MEND}")


async def find_refused(redis: Redis, part: Part | None = None) -> list[str] | None:
    """Return what the server refuses to the part, or None if ACL DRYRUN is not allowed. Raises BackendUnavailable.

    Without a part it is that which the user is named after, and any other user needs all rights.
    """
    untyped: Any = redis
    try:
        user = text(await ask(lambda: untyped.execute_command("ACL WHOAMI")))
        needed = NEEDED.get(part or cast(Part, user), ALL)
        tried = await pipelined(
            redis, lambda pipe: [pipe.execute_command("ACL DRYRUN", user, *command) for command in needed]
        )
    except exceptions.RedisError:
        return None
    return [answer for answer in map(text, tried) if answer != "OK"]


def in_a_line(found: Sequence[str]) -> str:
    more = f"; and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    return "; ".join(found[:MOST_TOLD]) + more
