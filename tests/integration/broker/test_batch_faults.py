"""A batch is carried out whole or not at all where its server dies, and what its callers repeat is done once."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId
from director.core.schema import Claim
from director.lab.chaos.checker import text
from director.lab.chaos.journal import Arrived, Claimed
from director.lab.chaos.rest import server_log
from tests.support.chaos_play import Play, PlayedRun
from tests.support.eventually import eventually, turns
from tests.support.keyspace import leaks
from tests.support.proxy import losing_proxy
from tests.support.queue_driver import QueueDriver, driving
from tests.support.sentinels import failover_group
from tests.support.servers import RedisServer

pytestmark = pytest.mark.faults

MANY: Final = 5
ROUNDS: Final = 8
CUTS: Final = (
    "before the batch",
    "inside MULTI",
    "behind MULTI",
    "between two items",
    "inside an item",
    "before EXEC",
    "inside EXEC",
    "behind the batch",
)


def log_of(server: RedisServer) -> Path:
    [log] = (server.folder / "appendonlydir").glob("*.incr.aof")
    return log


def commands(log: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Yield where each command of a whole append-only file begins, and its words."""
    at = 0
    while at < len(log):
        began, end = at, log.index(b"\r\n", at)
        words, at = [], end + 2
        for _ in range(int(log[began + 1 : end])):
            end = log.index(b"\r\n", at)
            length = int(log[at + 1 : end])
            words.append(log[end + 2 : end + 2 + length])
            at = end + length + 4
        yield began, words


def place(written: bytes, where: str, item: PredictionId) -> int:
    """Return where to cut what one batch wrote. `item` is not its first one."""
    found = list(commands(written))
    names = [words[0].upper() for _, words in found]
    assert (names.count(b"MULTI"), names.count(b"EXEC"), names[-1]) == (1, 1, b"EXEC"), "the batch is one transaction"
    begin, end = found[names.index(b"MULTI")][0], found[-1][0]
    own = next(at for at, words in found if any(item.encode() in word for word in words[1:]))
    assert begin < own < end
    return {
        "before the batch": begin,
        "inside MULTI": begin + 6,
        "behind MULTI": found[names.index(b"MULTI") + 1][0],
        "between two items": own,
        "inside an item": own + 20,
        "before EXEC": end,
        "inside EXEC": len(written) - 1,
        "behind the batch": len(written),
    }[where]


async def restart_with(driver: QueueDriver, server: RedisServer, log: bytes) -> None:
    server.kill()
    log_of(server).write_bytes(log)
    server.start()
    await driver.redis.connection_pool.disconnect()


async def run_the_rest(play: Play) -> None:
    number = 0
    while run := await play.run(f"rest-{number}", pid=42 + number):
        number += 1
        run.ends()
        assert await run.is_finished()


async def is_right(play: Play, *, count: int) -> None:
    """Check that the reconciler and the checker of chaos runs find nothing, once all have ended."""
    await play.deliver()
    assert await play.driver.reconcile() == (0, {})
    report = await play.verdict()
    assert report.ok, text(report)
    assert (report.acked, report.terminal) == (count, count)


@pytest.mark.parametrize("where", CUTS)
async def test_log_cut_in_a_batch_of_creates_has_all_or_none(
    near: QueueDriver, mortal: RedisServer, tmp_path: Path, where: str
) -> None:
    play = Play(near, tmp_path, mortal.folder)
    first = await play.ask("before")
    start = len(log_of(mortal).read_bytes())
    ids = await asyncio.gather(*(play.ask(f"b{number}", is_heard=False) for number in range(MANY)))
    log = log_of(mortal).read_bytes()
    cut = place(log[start:], where, ids[2] or PredictionId(""))
    await restart_with(near, mortal, log[: start + cut])
    kept = [first, *ids] if where == "behind the batch" else [first]
    assert sorted(await near.members(keys.live(near.queue))) == sorted(filter(None, kept))
    records = [await near.redis.exists(keys.record(each or PredictionId(""))) for each in ids]
    assert records == [len(kept) > 1] * MANY
    assert (await near.stats()).tally == {"accepted:normal": len(kept)}
    assert await near.reconcile() == (0, {})
    for number in range(MANY):
        await play.ask(f"b{number}")
    await run_the_rest(play)
    await is_right(play, count=1 + MANY)


@pytest.mark.parametrize("where", CUTS)
async def test_log_cut_in_a_batch_of_ends_has_all_or_none(
    near: QueueDriver, mortal: RedisServer, tmp_path: Path, where: str
) -> None:
    play = Play(near, tmp_path, mortal.folder)
    for number in range(MANY):
        await play.ask(f"k{number}")
    runs = [await play.run(f"r{number}", pid=42 + number) for number in range(MANY)]
    held: list[PlayedRun] = [run for run in runs if run]
    for run in held:
        run.ends()
    start = len(log_of(mortal).read_bytes())
    assert await asyncio.gather(*(run.is_finished() for run in held)) == [True] * MANY
    log = log_of(mortal).read_bytes()
    cut = place(log[start:], where, held[2].claim.id)
    await restart_with(near, mortal, log[: start + cut])
    ended = [(await near.record(run.claim.id)).is_terminal for run in held]
    assert ended == [where == "behind the batch"] * MANY
    assert (await near.stats()).claimed == ended.count(False)
    assert await near.reconcile() == (0, {})
    assert [await run.is_finished() for run in held] == [True] * MANY
    for run in held:
        assert (await near.kinds(run.claim.id)).count("completed") == 1
    await is_right(play, count=MANY)


async def insist(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat a call alone until Redis answers it, as its caller does."""
    while True:
        try:
            return await call()
        except BackendUnavailable:
            await asyncio.sleep(0.05)  # as a caller does, who waits before it asks again


def submits(driver: QueueDriver, ids: list[PredictionId]) -> list[Awaitable[Any]]:
    return [insist(lambda each=each: driver.submit(each)) for each in ids]


def finishes(driver: QueueDriver, claims: list[Claim]) -> list[Awaitable[Any]]:
    return [insist(lambda each=each: driver.finish(each, output=b"1")) for each in claims]


async def all_ended_once(driver: QueueDriver, ids: list[PredictionId], claims: list[Claim]) -> None:
    """Finish these claims and all that waits, then check that each prediction ran and ended once."""
    while claims:
        assert all(await asyncio.gather(*finishes(driver, claims)))
        claims = list(await driver.claim(32))
    for each in ids:
        assert (await driver.record(each)).status == "succeeded"
        assert (await driver.kinds(each)).count("completed") == 1
    stats = await driver.stats()
    assert (stats.live, stats.tally["accepted:normal"], stats.tally["ended"]) == (0, len(ids), len(ids))
    assert (await driver.entries(), await driver.reconcile()) == ({}, (0, {}))


async def scripts_run(redis: Redis) -> int:
    return int((await redis.info("commandstats")).get("cmdstat_evalsha", {}).get("calls", 0))


async def test_server_killed_under_batches_loses_and_doubles_nothing(mortal: RedisServer) -> None:
    async with losing_proxy(mortal.port) as proxy, driving(proxy.url) as driver, driving(mortal.url) as operator:
        ids: list[PredictionId] = []
        claims: list[Claim] = []
        for turn in range(ROUNDS):
            batch = [driver.new_id() for _ in range(32)]
            is_carried_out = turn % 2 == 0
            before = await scripts_run(operator.redis), proxy.carried[False]
            proxy.delay_s = (0.05, 0.1)
            claim = insist(lambda turn=turn: driver.claim(16, nonce=f"turn{turn}"))
            work = asyncio.gather(claim, *submits(driver, batch), *finishes(driver, claims[:8]))
            if is_carried_out:
                await eventually(
                    lambda: scripts_run(operator.redis), "a script ran", until=lambda runs, was=before[0]: runs > was
                )
            else:
                await eventually(lambda was=before[1]: proxy.carried[False] > was, "the requests were sent")
            assert not work.done()
            mortal.kill()
            proxy.reset()  # the replies on their way are lost
            proxy.delay_s = (0.0, 0.0)
            mortal.start()
            claimed, *answers = await work
            assert answers == batch + [True] * len(claims[:8])
            ids, claims = ids + batch, claims[8:] + list(claimed)
        await driver.redis.connection_pool.disconnect()
        await all_ended_once(driver, ids, claims)
        assert await leaks(operator.redis) == []
        lines = list(server_log(mortal.folder))
        assert Counter(line.id for line in lines if isinstance(line, Arrived)) == Counter(ids)
        assert Counter(line.id for line in lines if isinstance(line, Claimed)) == Counter(ids)


async def test_batch_under_way_at_a_failover_is_done_once_at_the_new_master() -> None:
    with failover_group(replicas=1) as group:
        async with driving(group.url) as driver:
            ids = [driver.new_id() for _ in range(8)]
            await asyncio.gather(*submits(driver, ids))
            claims = list(await driver.claim(8))
            await asyncio.gather(*finishes(driver, claims[:4]))
            redis: Redis = driver.redis
            assert await redis.wait(1, 10_000) == 1
            group.servers[0].freeze()  # it takes the requests and never answers them
            late = [driver.new_id() for _ in range(8)]
            # some were carried out before, as where a reply was lost
            work = asyncio.gather(*submits(driver, ids + late), *finishes(driver, claims))
            await turns(20)
            assert not work.done()
            group.servers[0].kill()
            assert await work == [*ids, *late, *[True] * 8]
            assert group.master_port() == group.servers[1].port
            await all_ended_once(driver, ids + late, list(await driver.claim(32)))
