"""Test the gatherer: one write per turn of the loop; an unanswered call is repeated and takes effect once."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from director.broker import gatherer as gathering
from director.broker import keys
from director.broker.gatherer import Call, Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, QueueName, lowest_id_at
from director.core.policy import Policy
from director.core.states import Status
from director.local.launcher.processes import free_port
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.eventually import turns
from tests.support.proxy import LosingProxy, losing_proxy
from tests.support.queue_driver import ACCOUNT, MODEL, QueueDriver, driving
from tests.support.servers import RedisServer, redis_server


class CountingGatherer(Gatherer):
    def __init__(self, redis: Redis, *, at_once: int | None = None) -> None:
        super().__init__(redis, at_once=at_once)
        self.pipelines: list[int] = []

    async def _send_once(self, calls: list[Call]) -> list[Call]:
        self.pipelines.append(len(calls))
        return await super()._send_once(calls)


@pytest.fixture
async def gatherer(redis: Redis) -> AsyncIterator[CountingGatherer]:
    gatherer = CountingGatherer(redis)
    yield gatherer
    await gatherer.aclose()


@pytest.fixture
def scripts(gatherer: CountingGatherer) -> Scripts:
    return Scripts(gatherer)


async def test_calls_of_one_turn_are_sent_in_one_pipeline(driver: QueueDriver, gatherer: CountingGatherer) -> None:
    await driver.submit()  # the server knows the script now
    gatherer.pipelines.clear()
    ids = await asyncio.gather(*(driver.submit() for _ in range(20)))
    assert gatherer.pipelines == [20]
    assert len(await driver.members(keys.live(driver.queue))) == 21
    assert len(set(ids)) == 20


async def test_calls_of_one_turn_are_executed_in_order(driver: QueueDriver, gatherer: CountingGatherer) -> None:
    prediction_id = driver.new_id()
    gatherer.pipelines.clear()
    _, _, stored = await asyncio.gather(
        driver.scripts.enlist(prediction_id, account=ACCOUNT, oldest=lowest_id_at(0)),
        driver.submit(prediction_id),
        driver.scripts.get(prediction_id),
    )
    assert stored is not None


async def test_calls_beyond_one_pipeline_are_sent_in_several(driver: QueueDriver, gatherer: CountingGatherer) -> None:
    prediction_id = await driver.submit()
    await driver.scripts.get(prediction_id)
    gatherer.pipelines.clear()
    found = await asyncio.gather(*(driver.scripts.get(prediction_id) for _ in range(300)))
    assert all(found)
    assert sorted(gatherer.pipelines) == [44, 256]


async def test_later_calls_do_not_wait_for_earlier_answers(driver: QueueDriver, gatherer: CountingGatherer) -> None:
    await driver.submit()
    gatherer.pipelines.clear()
    first = asyncio.ensure_future(driver.submit())
    await turns(2)
    second = asyncio.ensure_future(driver.submit())
    await asyncio.gather(first, second)
    assert gatherer.pipelines == [1, 1]


async def test_crowd_shares_a_few_writes_when_their_number_is_bounded(driver: QueueDriver, redis: Redis) -> None:
    prediction_id = await driver.submit()
    await driver.scripts.get(prediction_id)
    gatherer = CountingGatherer(redis, at_once=2)
    scripts = Scripts(gatherer)
    callers = []
    for _ in range(50):  # one in each turn of the loop
        callers.append(asyncio.ensure_future(scripts.get(prediction_id)))
        await turns(2)
        assert len(gatherer._sending[None]) <= 2
    assert all(await asyncio.gather(*callers))
    assert sum(gatherer.pipelines) == 50
    assert len(gatherer.pipelines) < 50, "some went together"
    await gatherer.aclose()


async def test_more_callers_than_connections_are_all_served(server: RedisServer) -> None:
    redis = client(server.url, connections=3)
    gatherer = Gatherer(redis)
    scripts = Scripts(gatherer)
    served = [0] * 6

    async def ask(who: int) -> None:
        # the clients in front never pause, and a caller without a connection gives up after three seconds
        while min(served) < 20:
            if who:
                await scripts.get(PredictionId("0" * 26))
            else:
                await redis.ping()
            served[who] += 1

    async with asyncio.TaskGroup() as tasks:
        for who in reversed(range(len(served))):
            tasks.create_task(ask(who))
            await turns(3)  # each has its own write
    await gatherer.aclose()
    await redis.aclose()


async def test_error_of_one_caller_does_not_affect_its_neighbours(driver: QueueDriver) -> None:
    await driver.redis.set(keys.listing("broken"), "not a list")
    refused, accepted = await asyncio.gather(
        driver.scripts.enlist(driver.new_id(), account="broken", oldest=lowest_id_at(0)),
        driver.submit(),
        return_exceptions=True,
    )
    assert isinstance(refused, ResponseError)
    assert isinstance(accepted, str)
    await driver.redis.delete(keys.listing("broken"))


async def test_text_that_cannot_be_sent_fails_only_its_caller(driver: QueueDriver) -> None:
    await driver.submit()
    claim = await driver.claim_one()
    refused, accepted = await asyncio.gather(
        driver.finish(claim, Status.FAILED, error="half a pair: \ud800"), driver.submit(), return_exceptions=True
    )
    assert isinstance(refused, UnicodeEncodeError)
    assert isinstance(accepted, str)
    assert await driver.finish(claim)


async def test_call_of_a_canceled_caller_still_happens(driver: QueueDriver, gatherer: CountingGatherer) -> None:
    prediction_id = driver.new_id()
    caller = asyncio.ensure_future(driver.submit(prediction_id))
    await turns()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await gatherer.aclose()
    assert (await driver.record(prediction_id)).status == "starting"


async def test_server_that_lost_its_scripts_gets_them_again(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.redis.script_flush()
    first, second = await asyncio.gather(driver.submit(), driver.submit())
    assert first != second
    assert len(await driver.members(keys.live(driver.queue))) == 3


async def test_killed_and_restarted_server_lost_nothing(mortal: RedisServer, near: QueueDriver) -> None:
    driver = near
    await driver.submit(streams=[0])
    await asyncio.gather(*(driver.submit() for _ in range(10)))
    held = await driver.claim_one()
    mortal.kill()
    mortal.start()
    assert len(await asyncio.gather(*(driver.submit() for _ in range(10)))) == 10
    assert len(await driver.members(keys.live(driver.queue))) == 21
    assert await driver.extend(held) == ["held"]
    assert await driver.finish(held)
    assert len(await driver.claim_all()) == 20


async def test_outage_is_an_error_for_every_caller_in_bounded_time(mortal: RedisServer, near: QueueDriver) -> None:
    driver = near
    mortal.kill()
    async with asyncio.timeout(20):
        answers = await asyncio.gather(*(driver.submit() for _ in range(5)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [BackendUnavailable] * 5
    assert all(answer.is_untouched for answer in answers if isinstance(answer, BackendUnavailable))
    mortal.start()
    assert await driver.submit()


async def test_abandoned_call_fails_silently(mortal: RedisServer) -> None:
    gatherer = Gatherer(client(mortal.url))
    mortal.kill()
    gatherer.call("get", [keys.record(lowest_id_at(0))], [lowest_id_at(0)])
    await gatherer.aclose()
    await gatherer.redis.aclose()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the futures of broken connections
        # a future whose error no code retrieved is reported here, otherwise the test's loop would raise it
        gc.collect()
    await turns()


@pytest.fixture
async def losing(mortal: RedisServer) -> AsyncIterator[LosingProxy]:
    async with losing_proxy(mortal.port) as proxy:
        yield proxy


@pytest.fixture
async def far_driver(losing: LosingProxy) -> AsyncIterator[QueueDriver]:
    """Return the queue as a client behind the proxy sees it. The server knows the script of an enqueue."""
    async with driving(losing.url) as driver:
        await driver.submit()
        await driver.finish(await driver.claim_one())
        yield driver


async def test_enqueue_with_a_lost_reply_is_accepted_once(losing: LosingProxy, far_driver: QueueDriver) -> None:
    prediction_id = far_driver.new_id()
    losing.lose_next_reply(prediction_id.encode(), is_of_request=True)
    assert await far_driver.submit(prediction_id) == prediction_id
    assert losing.lost == 1
    assert sum(len(ids) for ids in (await far_driver.entries()).values()) == 1


async def test_lost_reply_is_never_reported_as_not_executed(
    losing: LosingProxy, far_driver: QueueDriver, mortal: RedisServer
) -> None:
    class GoneAfterwards(Gatherer):
        async def _send_once(self, calls: list[Call]) -> list[Call]:
            try:
                return await super()._send_once(calls)
            finally:
                losing.lead_to(free_port())

    redis = client(losing.url)
    gatherer = GoneAfterwards(redis)
    driver = QueueDriver(redis, Scripts(gatherer), far_driver.queue)
    prediction_id = driver.new_id()
    losing.lose_next_reply(prediction_id.encode(), is_of_request=True)
    with pytest.raises(BackendUnavailable) as lost:
        await driver.submit(prediction_id)
    with pytest.raises(BackendUnavailable) as refused:
        await driver.submit()
    assert (lost.value.is_untouched, refused.value.is_untouched) == (False, True)
    losing.lead_to(mortal.port)
    assert list(await far_driver.members(keys.live(driver.queue))) == [prediction_id]
    await gatherer.aclose()
    await redis.aclose()


async def test_full_server_refuses_before_it_writes() -> None:
    with redis_server(config={"maxmemory": "1mb"}) as full:
        redis = client(full.url)
        gatherer = Gatherer(redis)
        with pytest.raises(BackendUnavailable) as refused:
            await Scripts(gatherer).enlist(PredictionId("x"), account=ACCOUNT, oldest=lowest_id_at(0))
        assert refused.value.is_untouched
        await gatherer.aclose()
        await redis.aclose()


async def test_version_with_lost_replies_is_still_the_latest(losing: LosingProxy, far_driver: QueueDriver) -> None:
    catalog = Catalog(far_driver.redis, far_driver.scripts, SystemClock())
    newer = "b2" * 32
    losing.lose_next_reply(b"HSETNX", is_of_request=True)
    queue: QueueName = await catalog.register(MODEL, newer, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    assert losing.lost == 1
    model = await catalog.model(MODEL)
    assert model.latest == newer
    assert queue in await catalog.queues()


async def runs_of(driver: QueueDriver, calls: list[Awaitable[Any]]) -> tuple[int, list[Any]]:
    """Return how often Redis ran or refused a script for these calls, and what their callers got."""

    async def runs() -> int:
        counts = (await driver.redis.info("commandstats")).get("cmdstat_evalsha", {})
        return int(counts.get("calls", 0)) + int(counts.get("rejected_calls", 0))

    before = await runs()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    return await runs() - before, answers


@pytest.mark.not_on("cluster", why="it counts the runs at one server")
async def test_items_of_one_turn_share_runs_of_at_most_32(driver: QueueDriver) -> None:
    await driver.submit()
    assert (await runs_of(driver, [driver.submit() for _ in range(32)]))[0] == 1
    assert (await runs_of(driver, [driver.submit() for _ in range(33)]))[0] == 2
    claims = await driver.claim(33)
    await driver.finish(claims[0])
    assert await runs_of(driver, [driver.finish(claim) for claim in claims[1:]]) == (1, [True] * 32)


@pytest.mark.not_on("cluster", why="it counts the runs at one server")
async def test_items_beyond_256_kib_go_apart(driver: QueueDriver) -> None:
    await driver.submit_many(4)
    known, *claims = await driver.claim(4)
    await driver.finish(known)
    large = b'"' + b"x" * 100_000 + b'"'
    assert await runs_of(driver, [driver.finish(claim, output=large) for claim in claims]) == (2, [True] * 3)


@pytest.mark.not_on("cluster", why="it counts the runs at one server")
async def test_item_at_fault_is_sent_again_alone_and_the_others_are_done(driver: QueueDriver) -> None:
    await driver.submit_many(5)
    known, *claims = await driver.claim(5)
    await driver.finish(known)
    record = await driver.redis.dump(keys.record(claims[1].id))
    await driver.redis.set(keys.record(claims[1].id), "no record")
    runs, (first, refused, third, fourth) = await runs_of(driver, [driver.finish(claim) for claim in claims])
    assert runs == 2
    assert isinstance(refused, ResponseError)
    assert (first, third, fourth) == (True, True, True)
    await driver.redis.restore(keys.record(claims[1].id), 0, record, replace=True)
    assert await driver.finish(claims[1])


@pytest.mark.not_on("cluster", why="it counts the runs at one server")
async def test_refusal_of_a_full_server_answers_the_whole_batch(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.redis.config_set("maxmemory", "1mb")
    try:
        runs, refused = await runs_of(driver, [driver.submit() for _ in range(8)])
    finally:
        await driver.redis.config_set("maxmemory", "0")
    assert runs == 1
    assert all(isinstance(each, BackendUnavailable) and each.is_untouched for each in refused)


async def test_batch_with_a_lost_reply_is_sent_singly_and_done_once(
    losing: LosingProxy, far_driver: QueueDriver
) -> None:
    ids = [far_driver.new_id() for _ in range(5)]
    losing.lose_next_reply(ids[2].encode(), is_of_request=True)
    assert await asyncio.gather(*map(far_driver.submit, ids)) == ids
    assert losing.lost == 1
    claims = await far_driver.claim(5)
    assert sorted(claim.id for claim in claims) == sorted(ids)
    losing.lose_next_reply(b"rare words", is_of_request=True)
    ends = [far_driver.finish(claim, Status.FAILED, error="rare words") for claim in claims]
    assert await asyncio.gather(*ends) == [True] * 5
    assert losing.lost == 1
    for claim in claims:
        assert (await far_driver.kinds(claim.id)).count("completed") == 1
    assert (await far_driver.stats()).tally["ended"] == 6


async def test_forgotten_script_runs_once_for_the_batch(driver: QueueDriver) -> None:
    await driver.submit()
    await driver.redis.script_flush()
    runs, ids = await runs_of(driver, [driver.submit() for _ in range(8)])
    assert runs == 2, "one that found no script, and one that did all"
    assert len(set(ids)) == 8
    assert len(await driver.members(keys.live(driver.queue))) == 9


async def test_script_that_others_rely_on_is_loaded_before_them(near: QueueDriver, monkeypatch) -> None:
    loaded: list[str] = []
    load = near.redis.script_load

    async def note(text: str) -> None:
        loaded.append(text)
        await load(text)

    monkeypatch.setattr(near.redis, "script_load", note)
    await near.redis.script_flush()
    listing = near.scripts.enlist(near.new_id(), account="acme", oldest=near.new_id())
    await near.submit()
    await listing
    assert ["\n-- enlist:" in text for text in loaded] == [True, False]


@pytest.mark.parametrize("many", [1, 8])
async def test_error_names_what_a_server_without_scripts_said(near: QueueDriver, monkeypatch, many: int) -> None:
    async def forget(_: str) -> None:
        await near.redis.script_flush()

    monkeypatch.setattr(near.redis, "script_load", forget)
    answers = await asyncio.gather(*(near.submit() for _ in range(many)), return_exceptions=True)
    for answer in answers:
        assert isinstance(answer, BackendUnavailable)
        assert "as fast as they are loaded: No matching script" in str(answer)
        assert answer.is_untouched


async def test_item_at_fault_in_the_last_try_gets_its_own_error(near: QueueDriver, monkeypatch) -> None:
    await near.submit()
    monkeypatch.setattr(gathering, "TRIES", 1)
    ids = [near.new_id() for _ in range(3)]
    await near.redis.set(keys.record(ids[1]), "no record", px=60_000)
    first, refused, third = await asyncio.gather(*map(near.submit, ids), return_exceptions=True)
    assert (first, third) == (ids[0], ids[2])
    assert isinstance(refused, ResponseError)
    assert "WRONGTYPE" in str(refused)


async def test_calls_that_waited_behind_a_silent_server_fail_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "SOCKET_TIMEOUT_S", 0.3)
    monkeypatch.setattr(gathering, "GIVE_UP_S", 0.2)
    monkeypatch.setattr(gathering, "LARGEST_BATCH", 1)
    with redis_server() as server:
        async with driving(server.url) as driver:
            redis = client(server.url)
            behind = CountingGatherer(redis, at_once=1)
            await Scripts(behind).stats(driver.queue)
            behind.pipelines.clear()
            server.freeze()
            calls = [Scripts(behind).stats(driver.queue) for _ in range(20)]
            ends = await asyncio.gather(*calls, return_exceptions=True)
            server.thaw()
            assert {type(end) for end in ends} == {BackendUnavailable}
            assert [end.is_untouched for end in ends if isinstance(end, BackendUnavailable)] == [False] + 19 * [True]
            assert len(behind.pipelines) == 1, "none waits for a pipeline of its own"
            assert await Scripts(behind).stats(driver.queue)
            await behind.aclose()
            await redis.aclose()
