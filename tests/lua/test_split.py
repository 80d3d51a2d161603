"""split and count_split write only for a caller that read the last state."""

from redis.asyncio import Redis

from director.broker import keys
from director.broker.replies import SplitStep
from director.broker.scripts import Scripts
from director.core.ids import Partition, QueueName
from tests.support.keyspace import dump, unchanged

NAME = "acme/front"
QUEUE = QueueName("acme/echo:0123456789ab")
LOG = keys.log(Partition(0))


async def split(scripts: Scripts, was: bytes, becomes: bytes, step: SplitStep = "stays", name: str = NAME) -> str:
    return await scripts.split(name, was, becomes, step=step, most=2, queue=QUEUE, detail="acme: 10 %", now_ms=7)


async def count(scripts: Scripts, was: str, cursor: str, *, is_: bytes = b"one", **counts: int) -> str:
    return await scripts.count_split(NAME, is_=is_, was=was, cursor=cursor, counts=counts)


async def test_writer_who_read_the_last_state_changes_a_split(redis: Redis, scripts: Scripts) -> None:
    assert await split(scripts, b"", b"one") == "written"
    assert await redis.get(keys.split(NAME)) == b"one"
    assert await split(scripts, b"one", b"two") == "written"
    assert await redis.get(keys.split(NAME)) == b"two"
    assert await split(scripts, b"two", b"", "ends") == "written"
    assert not await redis.exists(keys.split(NAME))


async def test_list_has_a_deployment_from_the_first_step_to_the_last(redis: Redis, scripts: Scripts) -> None:
    before = b""
    for becomes, step, listed in ((b"one", "begins", [NAME.encode()]), (b"two", "stays", [NAME.encode()])):
        assert await split(scripts, before, becomes, step) == "written"  # type: ignore[arg-type]
        assert await redis.zrange(keys.splits(), 0, -1) == listed
        before = becomes
    assert await split(scripts, before, b"promoted", "ends") == "written"
    assert not await redis.exists(keys.splits())


async def test_account_tries_versions_with_few_deployments(redis: Redis, scripts: Scripts) -> None:
    for name in ("acme/one", "acme/two", "acme0/one", "acm/one"):
        assert await split(scripts, b"", b"one", "begins", name) == "written"
    async with unchanged(redis):
        assert await split(scripts, b"", b"one", "begins", "acme/three") == "full"
    assert await split(scripts, b"one", b"two", "shares", "acme/one") == "written"


async def test_account_at_its_limit_tries_another_version(redis: Redis, scripts: Scripts) -> None:
    for name in ("acme/one", "acme/two"):
        assert await split(scripts, b"", b"one", "begins", name) == "written"
    assert await split(scripts, b"one", b"two", "begins", "acme/one") == "written"
    async with unchanged(redis):
        assert await split(scripts, b"", b"one", "begins", "acme/three") == "full"


async def test_each_change_of_a_split_is_in_the_log(redis: Redis, scripts: Scripts) -> None:
    await split(scripts, b"", b"one")
    [(_, entry)] = await redis.xrange(LOG)
    assert entry == {
        b"id": b"", b"kind": b"split", b"queue": QUEUE.encode(), b"account": b"acme", b"at": b"7",
        b"detail": b"acme: 10 %",
    }  # fmt: skip


async def test_late_writer_of_a_split_changes_nothing(redis: Redis, scripts: Scripts) -> None:
    await split(scripts, b"", b"one")
    async with unchanged(redis):
        for was, becomes in ((b"", b"mine"), (b"older", b"mine"), (b"older", b"")):
            assert await split(scripts, was, becomes) == "changed"


async def test_repeated_change_of_a_split_has_one_effect(redis: Redis, scripts: Scripts) -> None:
    for was, becomes in ((b"", b"one"), (b"one", b"two"), (b"two", b"")):
        await split(scripts, was, becomes)
        async with unchanged(redis):
            assert await split(scripts, was, becomes) == "written"


async def test_runs_of_a_split_count_once(redis: Redis, scripts: Scripts) -> None:
    await split(scripts, b"", b"one")
    assert await count(scripts, "", "1-0", a=2) == "counted"
    assert await count(scripts, "1-0", "2-0", a=1, b=3) == "counted"
    assert await redis.hgetall(keys.split_runs(NAME)) == {b"cursor": b"2-0", b"a": b"3", b"b": b"3"}
    async with unchanged(redis):
        assert await count(scripts, "1-0", "2-0", a=1, b=3) == "counted"
        assert await count(scripts, "1-0", "3-0", a=9) == "changed"
        assert await count(scripts, "", "1-0", a=9) == "changed"


async def test_runs_count_only_for_the_split_that_was_read(redis: Redis, scripts: Scripts) -> None:
    async with unchanged(redis):
        assert await count(scripts, "", "1-0", a=1) == "changed"
    await split(scripts, b"", b"one")
    async with unchanged(redis):
        assert await count(scripts, "", "1-0", is_=b"other", a=1) == "changed"


async def test_counts_stay_with_another_share_and_go_with_another_split(redis: Redis, scripts: Scripts) -> None:
    await split(scripts, b"", b"one")
    await count(scripts, "", "1-0", a=1)
    await split(scripts, b"one", b"more", "shares")
    assert await redis.exists(keys.split_runs(NAME))
    await split(scripts, b"more", b"other", "begins")
    assert not await redis.exists(keys.split_runs(NAME))
    await count(scripts, "", "1-0", is_=b"other", a=1)
    await split(scripts, b"other", b"", "ends")
    assert set(await dump(redis)) == {LOG}


async def test_another_share_begins_its_own_counts(redis: Redis, scripts: Scripts) -> None:
    await split(scripts, b"", b"one", "begins")
    ways = ("old:succeeded", "old:failed", "new:succeeded", "new:failed")
    await count(scripts, "", "1-0", **{f"{way}{now}": 1 for way in ways for now in ("", ":now")})
    await split(scripts, b"one", b"two", "shares")
    assert set(await redis.hgetall(keys.split_runs(NAME))) == {b"cursor", *(way.encode() for way in ways)}
