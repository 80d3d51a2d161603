"""Test that large ends and replies pass a link of few bytes per second, and that small traffic never waits for them."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from redis import exceptions

from director.broker import gatherer as gatherers
from director.broker.gatherer import Gatherer, Traffic
from director.broker.redis_client import Pipes, client
from director.broker.scripts import Scripts
from director.core.errors import BackendUnavailable
from director.core.schema import Claim
from director.lab.chaos.proxy import Link
from director.store.accounts import Accounts
from tests.support.api import live_api
from tests.support.eventually import every, turns
from tests.support.queue_driver import ACCOUNT, VERSION, QueueDriver, driving
from tests.support.servers import RedisServer

MIB = 1 << 20
SHORT_S = 0.3
LIMIT_S = 240.0  # a guard against a hang
FEW = 5  # large calls that end while a small one waits, where those before it would be all of them


@pytest.fixture
async def link(mortal: RedisServer) -> AsyncIterator[Link]:
    link = Link("test:redis", seed=1)
    await link.listen(lambda: asyncio.open_connection("127.0.0.1", mortal.port))
    yield link
    await link.stop()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeout, so that few bytes exceed it."""
    monkeypatch.setattr(gatherers, "SOCKET_TIMEOUT_S", SHORT_S)


@pytest.fixture
async def far(link: Link) -> AsyncIterator[QueueDriver]:
    async with driving(url_of(link)) as driver:
        yield driver


def url_of(link: Link) -> str:
    return f"redis://127.0.0.1:{link.port}/0"


async def claimed(driver: QueueDriver, count: int) -> list[Claim]:
    """Claim this number of predictions. The server knows every script that an end needs."""
    for _ in range(count + 1):
        await driver.submit()
    first, *claims = await driver.claim(count + 1)
    await driver.extend(first)
    assert await driver.finish(first)
    return claims


async def settled(driver: QueueDriver, claim: Claim, size: int) -> bool:
    """Write an end as an executor does: repeat until it is written."""
    while True:
        try:
            return await driver.finish(claim, output=b'"%s"' % (b"x" * size), ran_ms=0)
        except BackendUnavailable:
            await asyncio.sleep(0.5)  # as an executor does before it repeats an end


async def meanwhile(works: "list[asyncio.Task[Any]]", call: Callable[[], Awaitable[object]]) -> list[int]:
    """Repeat a small call until all works are done. Return how many works were done while each call waited.

    This says what a call waits for. Its time would say how busy the machine is.
    """
    waited = []
    async with asyncio.timeout(LIMIT_S):
        async for _ in every(0.1):  # the link is for the works
            if (before := sum(work.done() for work in works)) == len(works):
                break
            await call()
            waited.append(sum(work.done() for work in works) - before)
    return waited


def beating(driver: QueueDriver, claims: list[Claim]) -> Callable[[], Awaitable[object]]:
    async def beat() -> None:
        assert set(await driver.extend(*claims)) <= {"held", "lost"}

    return beat


async def write_all(driver: QueueDriver, claims: list[Claim], size: int) -> list[int]:
    """Write all these ends at once. Return how many of them each heartbeat meanwhile waited for."""
    ends = [asyncio.create_task(settled(driver, claim, size)) for claim in claims]
    waited = await meanwhile(ends, beating(driver, claims))
    assert all(end.result() for end in ends)
    return waited


@pytest.mark.usefixtures("short")
async def test_large_ends_are_sent_once_over_a_narrow_link(far: QueueDriver, link: Link) -> None:
    claims = await claimed(far, 8)
    before, link.bytes_s = link.carried[False], 4 * MIB
    waited = await write_all(far, claims, MIB // 2)
    assert link.carried[False] - before < 1.2 * 8 * MIB // 2
    assert max(waited) <= FEW


@pytest.mark.faults
async def test_many_ends_leave_a_connection_to_the_heartbeat(far: QueueDriver, link: Link) -> None:
    claims = await claimed(far, 40)
    link.bytes_s = 1 * MIB

    ends = []
    for claim in claims:  # each in its own turn, so each would have its own pipeline
        ends.append(asyncio.create_task(settled(far, claim, 200_000)))
        await turns(5)
    waited = await meanwhile(ends, beating(far, claims))
    assert all(end.result() for end in ends)
    assert max(waited) <= len(claims) // 2


@pytest.mark.heavy
async def test_24_ends_of_8_mb_are_written_over_40_mb_a_second(far: QueueDriver, link: Link) -> None:
    claims = await claimed(far, 24)
    before, link.bytes_s = link.carried[False], 40_000_000
    waited = await write_all(far, claims, 8_000_000)
    assert link.carried[False] - before < 1.2 * 24 * 8_000_000
    assert max(waited) <= FEW


@pytest.mark.heavy
async def test_48_ends_of_8_mb_are_written_where_every_write_is_synced(near: QueueDriver) -> None:
    claims = await claimed(near, 48)
    waited = await write_all(near, claims, 8_000_000)
    assert max(waited) <= FEW


@pytest.mark.faults
@pytest.mark.usefixtures("short")
async def test_large_prediction_is_read_over_a_narrow_link(mortal: RedisServer, link: Link) -> None:
    async with driving(mortal.url) as near, driving(url_of(link)) as far:
        [claim] = await claimed(near, 1)
        assert await near.finish(claim, output=b'"%s"' % (b"x" * 3 * MIB), ran_ms=0)
        link.bytes_s = 4 * MIB
        reads = [asyncio.create_task(far.scripts.get(claim.id)) for _ in range(4)]
        waited = await meanwhile(reads, lambda: far.submit(account="other"))
        for read in reads:
            found = read.result()
            assert found is not None
            assert len(found.output or b"") == 3 * MIB + 2
    assert max(waited) <= 2, "two are read at once"


async def read_beside_creates(mortal: RedisServer, link: Link, *, count: int, size: int, bytes_s: float) -> list[int]:
    """Read large outputs of one account at once. Return how many of them each create of another account waited for."""
    async with driving(mortal.url) as driver:
        accounts = Accounts(driver.redis)
        reader, other = await accounts.create_token(ACCOUNT), await accounts.create_token("other")
        claims = await claimed(driver, count)
        for claim in claims:
            assert await driver.finish(claim, output=b'"%s"' % (b"x" * size), ran_ms=0)
        async with live_api(url_of(link)) as api, httpx.AsyncClient(base_url=f"{api.url}/v1", timeout=LIMIT_S) as http:

            async def get(claim: Claim) -> int:
                answer = await http.get(f"/predictions/{claim.id}", headers={"Authorization": f"Bearer {reader}"})
                return answer.status_code if len(answer.content) > size or not answer.is_success else 0

            async def create() -> None:
                body = {"version": VERSION, "input": {"text": "hi"}}
                answer = await http.post("/predictions", json=body, headers={"Authorization": f"Bearer {other}"})
                assert answer.status_code == 201, answer.text

            await create()
            link.bytes_s = bytes_s
            reads = [asyncio.create_task(get(claim)) for claim in claims]
            waited = await meanwhile(reads, create)
            assert [read.result() for read in reads] == [200] * count
            return waited


@pytest.mark.faults
async def test_large_reads_of_one_account_delay_no_create_of_another(mortal: RedisServer, link: Link) -> None:
    waited = await read_beside_creates(mortal, link, count=20, size=2 * MIB, bytes_s=10 * MIB)
    assert len(waited) > 4
    assert max(waited) <= FEW


@pytest.mark.heavy
async def test_30_reads_of_8_mb_over_60_mb_a_second_delay_no_create(mortal: RedisServer, link: Link) -> None:
    waited = await read_beside_creates(mortal, link, count=30, size=8_000_000, bytes_s=60_000_000)
    assert max(waited) <= FEW


async def test_size_decides_what_a_get_leaves_out(near: QueueDriver) -> None:
    small, large = await claimed(near, 2)
    await near.finish(small, output=b'"few"', ran_ms=0)
    await near.finish(large, output=b'"%s"' % (b"x" * MIB), ran_ms=0)
    looked = await near.scripts.get(small.id, whole=False)
    assert (bytes(looked.output or b""), looked.left_out) == (b'"few"', 0)
    looked = await near.scripts.get(large.id, whole=False)
    assert (looked.input, looked.output, looked.left_out) == (None, None, MIB + 2 + len(b'{"text":"hi"}'))
    assert looked.record.is_terminal
    whole = await near.scripts.get(large.id, size=looked.left_out)
    assert (len(whole.output or b""), whole.left_out) == (MIB + 2, 0)


async def test_waiting_prediction_with_a_large_input_is_shown_with_its_outlook(near: QueueDriver) -> None:
    found = await near.scripts.get(await near.submit(data=b'"%s"' % (b"x" * MIB)))
    assert found.outlook is not None
    assert len(found.input or b"") == MIB + 2


async def test_large_reply_to_a_plain_command_may_outlast_its_timeout(
    mortal: RedisServer, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.broker.redis_client.SOCKET_TIMEOUT_S", SHORT_S)
    redis = client(url_of(link))
    link.bytes_s = 2 * MIB
    await redis.set("large", b"x" * 2 * MIB)
    assert len(await redis.get("large") or b"") == 2 * MIB
    await redis.aclose()


@pytest.mark.parametrize("size", [10, 100_000])
async def test_hanging_server_is_noticed(mortal: RedisServer, size: int) -> None:
    redis = client(mortal.tcp_url)
    pipes = Pipes(redis, timeout_s=SHORT_S)
    ping = b"*2\r\n$4\r\nPING\r\n$%d\r\n%s\r\n" % (size, b"x" * size)
    assert await pipes.ask([ping]) == [b"x" * size]
    mortal.freeze()
    began = time.monotonic()
    with pytest.raises(exceptions.TimeoutError):
        await pipes.ask([ping])
    assert SHORT_S <= time.monotonic() - began < (2 * SHORT_S if size < 1000 else 1)
    mortal.thaw()
    assert await pipes.ask([ping]) == [b"x" * size]
    await pipes.aclose()
    await redis.aclose()


async def test_canceled_caller_of_a_pipe_is_canceled(mortal: RedisServer) -> None:
    redis = client(mortal.tcp_url)
    pipes = Pipes(redis, timeout_s=SHORT_S)
    mortal.freeze()
    asking = asyncio.ensure_future(pipes.ask([b"PING\r\n"]))
    await turns(10)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    mortal.thaw()
    await pipes.aclose()
    await redis.aclose()


class Counting(Gatherer):
    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.pipelines: list[list[int]] = []

    async def _send_once(self, calls: list[gatherers.Call]) -> list[gatherers.Call]:
        self.pipelines.append([call.size for call in calls])
        return await super()._send_once(calls)


@pytest.fixture
async def counting(mortal: RedisServer) -> AsyncIterator[Counting]:
    redis = client(mortal.url)
    gatherer = Counting(redis)
    yield gatherer
    await gatherer.aclose()
    await redis.aclose()


async def test_pipeline_is_bounded_in_bytes(counting: Counting) -> None:
    await asyncio.gather(
        *(counting.call("bound", ["{p}:x"], ["x" * size]) for size in [100] + 8 * [200_000] + 2 * [2 * MIB]),
        return_exceptions=True,
    )
    first = sorted(map(sum, counting.pipelines))
    assert max(first) < 2 * MIB + 1000
    assert [len(sizes) for sizes in counting.pipelines if max(sizes) > 2 * MIB][:2] == [1, 1]


async def test_heartbeat_has_its_own_pipeline(near: QueueDriver, counting: Counting) -> None:
    driver = QueueDriver(counting.redis, Scripts(counting), near.queue)
    await asyncio.gather(driver.submit(), driver.extend())
    counting.pipelines.clear()
    await asyncio.gather(driver.submit(), driver.extend())
    assert [len(sizes) for sizes in counting.pipelines] == [1, 1]


@pytest.mark.parametrize("size", [1_000, 200_000, MIB])
async def test_create_is_listed_before_it_is_queued(near: QueueDriver, counting: Counting, size: int) -> None:
    driver = QueueDriver(counting.redis, Scripts(counting), near.queue)
    prediction_id = driver.new_id()
    listed = driver.scripts.enlist(prediction_id, account=ACCOUNT, oldest=prediction_id, input_bytes=size + 2)
    await driver.submit(prediction_id, data=b'"%s"' % (b"x" * size))
    await listed
    assert len(counting.pipelines[0]) == 2


async def test_large_read_without_a_waiting_caller_is_skipped(near: QueueDriver, counting: Counting) -> None:
    [claim] = await claimed(near, 1)
    scripts = Scripts(counting)
    await scripts.get(claim.id)
    counting.pipelines.clear()
    readers = [asyncio.ensure_future(scripts.get(claim.id, size=2 * MIB)) for _ in range(6)]
    await turns()
    for reader in readers[1:]:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    assert len(counting.pipelines) == 1


async def test_large_writes_run_one_after_the_other(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0

    async def count(calls: list[gatherers.Call]) -> list[gatherers.Call]:
        nonlocal most
        most = max(most, len(counting._sending[None, Traffic.LARGE_WRITES]))
        return await Counting._send_once(counting, calls)

    monkeypatch.setattr(counting, "_send_once", count)
    await asyncio.gather(
        *(counting.call("bound", ["{p}:x"], ["x" * 2 * MIB]) for _ in range(6)), return_exceptions=True
    )
    assert most == 1
