"""Check `director queues migrate --to-redis`: two servers with callers and directors, and a mover that is killed."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from redis import Redis

from director.broker import keys
from director.core.clock import SystemClock
from director.core.ids import PredictionId
from director.files.choose import store_in
from director.files.data_files import DataFiles
from director.runtime.crash import KILLED, MOVER_POINTS, Point
from director.store.accounts import Accounts
from tests.support.eventually import eventually, every
from tests.support.keyspace import leaks
from tests.support.queue_driver import ACCOUNT, MODEL, QueueDriver, driving
from tests.support.servers import RedisServer, redis_server

pytestmark = pytest.mark.faults
Ended = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def far_server() -> Iterator[RedisServer]:
    with redis_server() as started:
        yield started


@pytest.fixture
async def there(far_server: RedisServer) -> AsyncIterator[QueueDriver]:
    """Return the queue of the same name there, by that server's clock."""
    with Redis.from_url(far_server.url) as far:
        far.flushall()
    async with driving(far_server.url) as there:
        await Accounts(there.redis).create(ACCOUNT)
        yield there
        assert await leaks(there.redis) == []


class Mover:
    """`director queues migrate` from one server to the other, in a process of its own."""

    def __init__(self, here: RedisServer, there: RedisServer) -> None:
        self._line = [sys.executable, "-m", "director", "queues", "migrate", MODEL]
        self._line += ["--redis", here.url, "--to-redis", there.url]

    async def run(self, *options: str, dies_at: Point | None = None) -> Ended:
        env = dict(os.environ) | ({"DIRECTOR_CRASH_AT": dies_at} if dies_at else {})
        return await to_thread.run_sync(
            lambda: subprocess.run(
                [*self._line, *options], capture_output=True, text=True, timeout=120, check=False, env=env
            )
        )

    async def told(self, *options: str) -> dict[str, Any]:
        ended = await self.run("--json", *options)
        assert (ended.returncode, ended.stderr) == (0, "")
        said = json.loads(ended.stdout)
        return {name: value for name, value in said.items() if isinstance(value, int) and value}


@pytest.fixture
def mover(server: RedisServer, far_server: RedisServer) -> Mover:
    return Mover(server, far_server)


async def run_all(driver: QueueDriver) -> Counter[PredictionId]:
    """Claim and end everything. Return how often each prediction ran."""
    ran: Counter[PredictionId] = Counter()
    while claims := await driver.scripts.claim(
        driver.queue, consumer="d1", nonce=os.urandom(8).hex(), count=50, lease_s=60
    ):
        ran.update(claim.id for claim in claims)
        async with anyio.create_task_group() as tasks:
            for claim in claims:
                tasks.start_soon(driver.finish, claim)
    return ran


async def test_an_input_in_a_file_moves_as_data(
    mover: Mover, driver: QueueDriver, there: QueueDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server may have another file store."""
    large, prediction_id = b'{"text":"' + b"x" * 1024 + b'"}', driver.new_id()
    files = DataFiles(SystemClock(), store_in(str(tmp_path), driver.redis, SystemClock()), from_bytes=1024)
    await driver.submit(prediction_id, data=await files.put(prediction_id, large))
    refused = await mover.run()
    assert refused.returncode != 0
    assert "is in a file store, and this process knows none" in refused.stderr
    monkeypatch.setenv("DIRECTOR_FILES_DIR", str(tmp_path))
    assert await mover.told() == {"moved": 1}
    assert bytes((await there.claim_one()).input) == large


async def test_move_reports_counts_and_dry_run_moves_nothing(
    mover: Mover, driver: QueueDriver, there: QueueDriver
) -> None:
    ids = [await driver.submit() for _ in range(3)]
    await driver.submit(account="stranger")
    claim = await driver.claim_one()
    asked = await mover.run("--dry-run")
    assert asked.stdout.splitlines() == [
        f"2 would be moved from {driver.queue} to {there.queue} there",
        "1 still running; they finish in the former queue. Repeat the command if some return to it",
        "1 held here because the other server lacks their accounts: `director account create`",
    ]
    assert (await driver.stats()).waiting == 3
    assert await mover.told() == {"moved": 2, "claimed": 1, "strange": 1}
    assert await run_all(there) == Counter(set(ids) - {claim.id})
    await driver.finish(claim)


async def test_impossible_move_is_one_error_line(mover: Mover, driver: QueueDriver, there: QueueDriver) -> None:
    both = await mover.run("--dry-run", "--put-back")
    assert (both.returncode, both.stdout, both.stderr.count("\n")) == (1, "", 1)
    await there.redis.flushall()
    ended = await mover.run()
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"director: there is no queue {MODEL} there. A director there creates it.\n"


@pytest.mark.faults
@pytest.mark.parametrize("point", MOVER_POINTS)
async def test_killed_move_continues_with_the_same_command(
    mover: Mover, driver: QueueDriver, there: QueueDriver, point: Point
) -> None:
    ids = [await driver.submit() for _ in range(70)]
    if point == "after_cancel_there":
        assert (await mover.run(dies_at="after_depart")).returncode == KILLED
        leaving = await driver.members(keys.leaving(driver.queue))
        canceled = next(name for name in ids if name in leaving)
        assert await driver.scripts.cancel(canceled, account=ACCOUNT) == "asked"
        ids.remove(canceled)
    assert (await mover.run(dies_at=point)).returncode == KILLED
    assert (await driver.stats()).leaving > 0
    ran = await run_all(there)  # what arrived runs meanwhile, and the mover comes back later
    await mover.told()
    ran.update(await run_all(there))
    assert ran == Counter(ids)
    assert (await driver.stats()).leaving == 0
    assert await run_all(driver) == Counter()
    if point == "after_cancel_there":
        assert await there.field(canceled, "status") == "canceled"


@pytest.mark.faults
@pytest.mark.parametrize("point", MOVER_POINTS[:2])
async def test_killed_move_may_be_put_back(mover: Mover, driver: QueueDriver, there: QueueDriver, point: Point) -> None:
    ids = [await driver.submit() for _ in range(70)]
    assert (await mover.run(dies_at=point)).returncode == KILLED
    arrived = (await there.stats()).waiting
    told = await mover.told("--put-back")
    assert (told.get("moved", 0), told["stayed"]) == (arrived, 50 - arrived)
    ran = await run_all(driver)
    ran.update(await run_all(there))
    assert ran == Counter(ids)


async def test_nothing_is_lost_while_the_other_server_is_away(server: RedisServer, driver: QueueDriver) -> None:
    with redis_server() as far:
        async with driving(far.url) as there:
            await Accounts(there.redis).create(ACCOUNT)
            mover, ids = Mover(server, far), [await driver.submit() for _ in range(120)]
            assert (await mover.run(dies_at="after_arrive")).returncode == KILLED
            far.kill()
            ended = await mover.run()
            assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
            far.start()
            await mover.told()
            assert await run_all(there) == Counter(ids)


@pytest.mark.heavy
async def test_ten_thousand_move_under_load_with_repeated_kills(
    mover: Mover, driver: QueueDriver, there: QueueDriver
) -> None:
    many, ids, ran, canceled = 10_000, [], Counter[PredictionId](), set[PredictionId]()
    is_over = False
    for _ in range(many // 100):
        async with anyio.create_task_group() as tasks:
            made = [driver.new_id() for _ in range(100)]
            ids += made
            for name in made:
                tasks.start_soon(driver.submit, name)

    async def run(side: QueueDriver, count: int) -> None:
        while not is_over:
            claims = await side.scripts.claim(
                side.queue, consumer="d1", nonce=os.urandom(8).hex(), count=count, lease_s=600
            )
            for claim in claims:
                ran[claim.id] += 1
                assert await side.finish(claim)
            await anyio.sleep(0 if claims else 0.01)  # a director that found nothing

    async def cancel() -> None:
        chosen = ids[::97]
        async for number in every(0.01, len(chosen)):
            for side in (driver, there):
                if await side.scripts.cancel(chosen[number], account=ACCOUNT) in ("canceled", "asked"):
                    canceled.add(chosen[number])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, driver, 2)
        tasks.start_soon(run, there, 5)
        tasks.start_soon(cancel)
        for point in MOVER_POINTS * 3:
            await mover.run(dies_at=point)
        while (await driver.stats()).live or (await driver.stats()).leaving:
            await mover.told()
        await eventually(lambda: there.stats(), "all that moved has ended", until=lambda now: not now.live, limit_s=120)
        is_over = True
    assert not [name for name, times in ran.items() if times > 1], "nothing ran twice"
    lost = set(ids) - ran.keys() - canceled
    assert not lost
    assert {await there.field(name, "status") or "" for name in canceled - ran.keys()} <= {"canceled", "starting", ""}
