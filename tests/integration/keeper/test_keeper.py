"""Check the promises of the keeper's roles on a real server, with a real receiver of webhooks."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator

import anyio
import pytest
from redis.asyncio import Redis
from standardwebhooks import Webhook, WebhookVerificationError

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import Partition, PredictionId, QueueName, new_prediction_id, partition_of
from director.core.policy import Policy
from director.core.schema import Claim
from director.core.states import Status
from director.core.webhooks import host_of, new_secret
from director.keeper.courier import AFTER, INTERVAL_S, Breakers, Courier
from director.keeper.reaper import Reaped, Reaper, ServerTime
from director.keeper.registry import Registry
from director.keeper.sweeps import Expired, expire, promote
from director.runtime.sweep import LIMIT
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.webhooks.delivery import LONGEST_S, SCHEDULE, Webhooks
from director.webhooks.sender import AllowList, Sender
from tests.support.clock import FakeClock
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver, driving
from tests.support.servers import redis_server
from tests.support.sink import Answer, Sink, sink

LEASE_S = 15.0
LIMIT_S = 20


@pytest.fixture
def past(driver: QueueDriver) -> QueueDriver:
    """The queue a minute ago, so that what expired then has expired by the server's clock."""
    driver.now_ms = time.time_ns() // 1_000_000 - 60_000
    return driver


@pytest.fixture
def reaper(redis: Redis, scripts: Scripts, registry: Registry, clock: FakeClock) -> Reaper:
    return make_reaper(redis, scripts, registry, clock)


def make_reaper(redis: Redis, scripts: Scripts, registry: Registry, clock: FakeClock) -> Reaper:
    """Make a reaper as the keeper does, with a contact of its own."""
    return Reaper(scripts, registry, ServerTime(redis, scripts, clock, lease_s=LEASE_S), LEASE_S)


async def keep_contact(*reapers: Reaper, clock: FakeClock, seconds: int) -> None:
    """Sweep once a second, for less time than contact needs to be proven."""
    for _ in range(seconds):
        for reaper in reapers:
            assert await reaper.run_once() == Reaped(is_held_off=True)
        clock.pass_time(1)


async def expired_claims(past: QueueDriver, count: int) -> set[PredictionId]:
    for _ in range(count):
        await past.submit()
    return {claim.id for claim in await past.claim_all()}


async def test_expired_claim_is_recovered_and_claimable(reaper: Reaper, past: QueueDriver, clock: FakeClock) -> None:
    await past.submit()
    lost = await past.claim_one(consumer="dead")
    await past.hear_bell()
    await keep_contact(reaper, clock=clock, seconds=15)
    assert await reaper.run_once() == Reaped(((lost.id, "waiting"),))
    assert await past.hear_bell()
    again = await past.claim_one(consumer="alive")
    assert (again.id, again.record.attempt) == (lost.id, 2)
    assert not await past.finish(lost)


async def test_one_sweep_recovers_more_than_one_call_takes(reaper: Reaper, past: QueueDriver, clock: FakeClock) -> None:
    lost = await expired_claims(past, LIMIT + 20)
    await keep_contact(reaper, clock=clock, seconds=15)
    assert dict((await reaper.run_once()).claims) == dict.fromkeys(lost, "waiting")


async def test_two_reapers_recover_each_claim_once(registry: Registry, past: QueueDriver, clock: FakeClock) -> None:
    lost = await expired_claims(past, LIMIT + 20)
    pair = [make_reaper(past.redis, past.scripts, registry, clock) for _ in range(2)]
    await keep_contact(*pair, clock=clock, seconds=15)
    both = await asyncio.gather(*(reaper.run_once() for reaper in pair))
    assert Counter(name for reaped in both for name, _ in reaped.claims) == Counter(lost)
    assert {claim.record.attempt for claim in await past.claim_all()} == {2}


async def test_lease_that_expires_during_a_server_freeze_is_kept(
    redis: Redis, scripts: Scripts, catalog: Catalog, past: QueueDriver, clock: FakeClock
) -> None:
    class Freeze(Registry):
        """The server freezes between the reaper's last contact and its script, and every lease expires."""

        async def queues(self) -> list[QueueName]:
            seconds, microseconds = await redis.time()
            now_ms = seconds * 1000 + microseconds // 1000
            await redis.zadd(keys.lease(past.queue), {claim.id: now_ms + 1}, xx=True)
            await anyio.sleep(0.02)  # a test cannot set the server's clock
            return await super().queues()

    await past.submit()
    claim = await past.claim_one(lease_s=3600)
    reaper = make_reaper(redis, scripts, Freeze(redis, catalog, clock), clock)
    await keep_contact(reaper, clock=clock, seconds=15)
    assert await reaper.run_once() == Reaped()
    assert await past.finish(claim)


async def test_nothing_is_reaped_for_a_lease_after_a_server_restart(clock: FakeClock) -> None:
    with redis_server() as server:
        async with driving(server.url) as driver:
            driver.now_ms = time.time_ns() // 1_000_000 - 60_000
            catalog = Catalog(driver.redis, driver.scripts, SystemClock())
            reaper = make_reaper(driver.redis, driver.scripts, Registry(driver.redis, catalog, clock), clock)
            await keep_contact(reaper, clock=clock, seconds=15)
            assert await reaper.run_once() == Reaped()
            lost = await expired_claims(driver, 1)
            server.kill()
            server.start()
            await keep_contact(reaper, clock=clock, seconds=15)
            assert {name for name, _ in (await reaper.run_once()).claims} == lost


async def test_due_retry_is_promoted_with_a_wakeup(scripts: Scripts, registry: Registry, past: QueueDriver) -> None:
    due = await past.submit()
    later = await past.submit()
    for claim in await past.claim_all():
        delay_s = 1 if claim.id == due else 90  # the queue as it was a minute ago
        assert await past.release(claim, spent=True, delay_s=delay_s) == "delayed"
    await past.hear_bell()
    assert await promote(scripts, registry) == {past.queue: 1}
    assert await past.hear_bell()
    assert [claim.id for claim in await past.claim_all()] == [due]
    assert list(await past.members(keys.delayed(past.queue))) == [later]
    assert await promote(scripts, registry) == {}


async def test_faulty_queue_does_not_stop_the_sweep_of_others(registry: Registry, past: QueueDriver) -> None:
    await past.redis.sadd(keys.queues(), "acme/broken:000000000000")
    await past.redis.set(keys.delayed(QueueName("acme/broken:000000000000")), "no sorted set", ex=60)
    await past.submit()
    await past.release(await past.claim_one(), spent=True, delay_s=1)
    assert await promote(past.scripts, registry) == {past.queue: 1}


@pytest.mark.parametrize(("late", "status"), [("aborted", Status.ABORTED), ("", Status.FAILED)])
async def test_passed_deadline_ends_a_waiting_prediction(
    scripts: Scripts, registry: Registry, past: QueueDriver, clock: FakeClock, late: str, status: Status
) -> None:
    late_id = await past.submit(lifetime_ms=5_000, deadline_status=late)
    in_time = await past.submit(lifetime_ms=3_600_000, deadline_status=late)
    assert await expire(scripts, registry) == Expired(ended=1)
    assert (await past.record(late_id)).status == status
    assert [claim.id for claim in await past.claim_all()] == [in_time]
    assert await expire(scripts, registry) == Expired()


async def test_passed_deadline_of_a_run_notifies_its_director(registry: Registry, past: QueueDriver) -> None:
    await past.submit(lifetime_ms=5_000)
    claim = await past.claim_one(lease_s=3600)
    assert await expire(past.scripts, registry) == Expired(told=1)
    assert await past.extend(claim) == ["deadline"]
    assert await past.finish(claim, Status.CANCELED)


@pytest.fixture
async def webhooks(redis: Redis, scripts: Scripts) -> AsyncGenerator[Webhooks]:
    accounts = Accounts(redis)
    await accounts.create_token(ACCOUNT)
    sender = Sender(AllowList.parse("loopback"), timeout_s=2 * LIMIT_S)
    yield Webhooks(scripts, accounts, sender, SystemClock())
    await sender.aclose()


@pytest.fixture
def courier(redis: Redis, scripts: Scripts, registry: Registry, webhooks: Webhooks) -> Courier:
    return Courier(redis, scripts, registry, webhooks, SystemClock())


async def owe(past: QueueDriver, url: str, *, account: str = ACCOUNT) -> Claim:
    """Return a prediction that ended, and whose webhook is owed."""
    await past.submit(webhook=url, webhook_events="start,completed", url="http://api.example", account=account)
    claim = await past.claim_one()
    assert await past.finish(claim, output=b'"gr\xc3\xbc\xc3\x9fe"')
    return claim


async def owed(past: QueueDriver, prediction_id: PredictionId) -> int | None:
    """Return when it is due next in ms, or None if it is not owed."""
    return (await past.members(keys.owed(partition_of(prediction_id)))).get(prediction_id)


async def make_due(past: QueueDriver, *ids: PredictionId) -> None:
    """Let the time of the next attempt come."""
    for each in ids:
        await past.redis.hset(keys.record(each), "next_telling", "0")
    await past.redis.zadd(keys.owed(partition_of(ids[0])), dict.fromkeys(ids, 0), xx=True)


async def test_owed_webhook_arrives_signed_once(courier: Courier, past: QueueDriver, receiver: Sink) -> None:
    claim = await owe(past, receiver.url)
    assert (await courier.run_once()).outcomes == {"delivered": 1}
    [(headers, body)] = receiver.received
    [secret] = await Accounts(past.redis).webhook_secrets(ACCOUNT)
    Webhook(secret).verify(body, dict(headers))
    said = json.loads(body)
    assert (said["id"], said["status"], said["output"]) == (claim.id, "succeeded", "grüße")
    assert said["urls"]["get"] == f"http://api.example/v1/predictions/{claim.id}"
    assert await owed(past, claim.id) is None
    record = await past.record(claim.id)
    assert (record.webhook_outcome, record.webhook_attempts) == ("delivered", 1)
    assert (await courier.run_once()).outcomes == {}


async def test_webhook_after_a_500_keeps_its_id(courier: Courier, past: QueueDriver, receiver: Sink) -> None:
    claim = await owe(past, receiver.url)
    receiver.answers.append(Answer(status=500))
    before_ms = time.time_ns() // 1_000_000
    assert (await courier.run_once()).outcomes == {"failed": 1}
    due_ms = await owed(past, claim.id)
    assert due_ms >= before_ms + SCHEDULE.waits_s[0] * 900
    await make_due(past, claim.id)
    assert (await courier.run_once()).outcomes == {"delivered": 1}
    first, second = (headers["webhook-id"] for headers, _ in receiver.received)
    assert first == second == f"msg_{claim.id}_completed"
    assert (await past.record(claim.id)).webhook_attempts == 2


async def test_receiver_that_was_away_gets_the_whole_body_of_a_dropped_letter(
    courier: Courier, past: QueueDriver, receiver: Sink, catalog: Catalog
) -> None:
    policy = Policy(data_ttl_s=0)  # what drop shortens is gone at once
    await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=policy)
    letter = await past.die(webhook=receiver.url, webhook_events="completed")
    receiver.answers.append(Answer(status=500))
    assert (await courier.run_once()).outcomes == {"failed": 1}
    assert await past.drop(letter)
    await make_due(past, letter)
    assert (await courier.run_once()).outcomes == {"delivered": 1}
    said = json.loads(receiver.received[-1][1])
    assert (said["id"], said["input"], said["data_removed"]) == (letter, {"text": "hi"}, False)


@pytest.mark.parametrize("outcome", ["refused", "gone"])
async def test_forbidden_or_gone_receiver_is_not_notified_again(
    courier: Courier, past: QueueDriver, receiver: Sink, outcome: str
) -> None:
    receiver.answer = Answer(status=410)
    claim = await owe(past, receiver.url if outcome == "gone" else "http://10.0.0.1/hook")
    assert (await courier.run_once()).outcomes == {outcome: 1}
    assert await owed(past, claim.id) is None
    assert (await past.record(claim.id)).webhook_outcome == outcome


async def test_webhook_is_given_up_when_the_schedule_ends(courier: Courier, past: QueueDriver, receiver: Sink) -> None:
    claim = await owe(past, receiver.url)
    receiver.answer = Answer(status=404)  # the host answers, so no breaker matters
    for _ in SCHEDULE.waits_s:
        assert (await courier.run_once()).outcomes == {"failed": 1}
        await make_due(past, claim.id)
    since_ms = past.now_ms - round(sum(SCHEDULE.waits_s) * 1000)
    await past.redis.hset(keys.record(claim.id), "completed", str(since_ms))
    assert (await courier.run_once()).outcomes == {"given_up": 1}
    assert await owed(past, claim.id) is None
    assert len(receiver.received) == len(SCHEDULE.waits_s) + 1


async def test_retry_after_is_honoured(courier: Courier, past: QueueDriver, receiver: Sink) -> None:
    claim = await owe(past, receiver.url)
    receiver.answer = Answer(status=503, headers={"retry-after": "600"})
    before_ms = time.time_ns() // 1_000_000
    await courier.run_once()
    due_ms = await owed(past, claim.id)
    assert due_ms >= before_ms + 600_000


async def test_two_couriers_at_once_deliver_each_webhook_once(
    redis: Redis, scripts: Scripts, registry: Registry, webhooks: Webhooks, past: QueueDriver, receiver: Sink
) -> None:
    ids = [(await owe(past, receiver.url)).id for _ in range(30)]
    pair = [Courier(redis, scripts, registry, webhooks, SystemClock()) for _ in range(2)]
    both = await asyncio.gather(*(courier.run_once() for courier in pair))
    assert sum(told.outcomes["delivered"] for told in both) == len(ids)
    assert Counter(json.loads(body)["id"] for _, body in receiver.received) == Counter(ids)


async def test_silent_receiver_does_not_delay_others(courier: Courier, past: QueueDriver, receiver: Sink) -> None:
    async with sink() as silent, anyio.create_task_group() as tasks:
        silent.answer = Answer(delay_s=60)
        await owe(past, silent.url)
        tasks.start_soon(courier.run)
        await silent.arrived(1)
        await owe(past, receiver.url)
        with anyio.fail_after(LIMIT_S):
            await receiver.arrived(1)
        assert silent.open == 1
        tasks.cancel_scope.cancel()


async def test_silent_host_fills_only_its_share_and_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, registry: Registry, webhooks: Webhooks, past: QueueDriver, receiver: Sink
) -> None:
    for name, number in (("PLACES", 4), ("PLACES_PER_ENDPOINT", 2), ("LONGEST_LINE", 3)):
        monkeypatch.setattr(f"director.keeper.courier.{name}", number)
    courier = Courier(past.redis, past.scripts, registry, webhooks, SystemClock())
    async with sink() as silent, anyio.create_task_group() as tasks:
        silent.answer = Answer(delay_s=60)
        ids = [(await owe(past, silent.url)).id for _ in range(20)]
        await owe(past, receiver.url.replace("127.0.0.1", "localhost"))  # the youngest of all
        tasks.start_soon(courier.run)
        with anyio.fail_after(LIMIT_S):
            await receiver.arrived(1)
            await silent.arrived(2)
            assert silent.open == 2
            silent.close()
            await silent.arrived(5)  # those in line had their turn
            await courier.drain()
        tasks.cancel_scope.cancel()
    later = set(await past.members(keys.owed(partition_of(ids[0]))))
    told = {json.loads(body)["id"] for _, body in silent.received}
    assert (len(told), later) == (5, set(ids) - told)


async def test_webhook_without_a_secret_waits_for_the_operator(
    courier: Courier, past: QueueDriver, receiver: Sink
) -> None:
    claim = await owe(past, receiver.url)
    await past.redis.delete(keys.account(ACCOUNT))
    assert (await courier.run_once()).outcomes == {"failed": 1}
    assert await owed(past, claim.id) is not None
    assert receiver.received == []


async def test_drain_waits_for_current_delivery_and_takes_no_other(
    courier: Courier, past: QueueDriver, receiver: Sink
) -> None:
    receiver.answer = Answer(delay_s=0.2)
    first = await owe(past, receiver.url)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(courier.run)
        await receiver.arrived(1)
        second = await owe(past, receiver.url)
        await courier.drain()
        assert (await past.record(first.id)).webhook_outcome == "delivered"
        assert (await courier.run_once()).outcomes == {}
        tasks.cancel_scope.cancel()
    assert await owed(past, second.id) is not None


@pytest.fixture
def patient(redis: Redis, scripts: Scripts, registry: Registry, webhooks: Webhooks, clock: FakeClock) -> Courier:
    """Return a courier whose breakers use the test's clock."""
    return Courier(redis, scripts, registry, webhooks, SystemClock(), breakers=Breakers(clock))


async def test_absent_host_gets_one_attempt_and_keeps_its_schedule(
    patient: Courier, past: QueueDriver, receiver: Sink, clock: FakeClock
) -> None:
    receiver.answer = Answer(status=500)
    ids = [(await owe(past, receiver.url)).id for _ in range(5)]
    assert (await patient.run_once()).outcomes == {"failed": 5}
    for _ in range(3):
        clock.pass_time(INTERVAL_S)
        await make_due(past, *ids)
        told = await patient.run_once()
        assert (told.outcomes, told.put_off) == ({"failed": 1}, 4)
    assert sum([(await past.record(one)).webhook_attempts for one in ids]) == 5 + 3 == len(receiver.received)
    assert (await patient.run_once()).put_off == 0, "and who was put off is not due"


async def test_all_owed_webhooks_arrive_once_the_host_answers(
    patient: Courier, past: QueueDriver, receiver: Sink, clock: FakeClock, redis: Redis
) -> None:
    receiver.answer = Answer(status=500)
    ids = [(await owe(past, receiver.url)).id for _ in range(100)]
    await patient.run_once()
    await make_due(past, *ids)
    assert (await patient.run_once()).put_off == 100
    receiver.answer = Answer()
    clock.pass_time(INTERVAL_S)
    await make_due(past, ids[0])
    rounds = [(await patient.run_once()).outcomes["delivered"] for _ in range(4)]
    assert (rounds[0], sum(rounds)) == (1, 100), "one found out, and brought the others forward"
    assert await redis.keys("*:owed*") == []
    assert Counter(json.loads(body)["id"] for _, body in receiver.received[-100:]) == Counter(ids)


@pytest.mark.parametrize("neighbour", ["another host", "another port", "another account"])
async def test_absent_receiver_does_not_delay_others(
    patient: Courier, past: QueueDriver, receiver: Sink, redis: Redis, neighbour: str
) -> None:
    async with sink() as other:
        away = [(await owe(past, other.url)).id for _ in range(AFTER)]
        other.answers.extend([Answer(status=500)] * AFTER)
        await patient.run_once()
        await make_due(past, *away)
        if neighbour == "another host":
            await owe(past, receiver.url.replace("127.0.0.1", "localhost"))
        elif neighbour == "another port":
            await owe(past, receiver.url)
        else:
            await Accounts(redis).create_token("neighbour")
            await owe(past, other.url, account="neighbour")
        told = await patient.run_once()
    assert (told.outcomes, told.put_off) == ({"delivered": 1}, AFTER)


class SlowlyDue(Scripts):
    async def due(
        self, partition: Partition, *, limit: int, hold_s: float, now_ms: int | None = None
    ) -> list[PredictionId]:
        ids = await super().due(partition, limit=limit, hold_s=hold_s, now_ms=now_ms)
        await asyncio.sleep(0.5)  # longer than the hold of the test below
        return ids


async def test_attempt_too_late_for_its_hold_waits_for_next_round(
    redis: Redis, registry: Registry, webhooks: Webhooks, past: QueueDriver, receiver: Sink
) -> None:
    courier = Courier(redis, SlowlyDue(Gatherer(redis)), registry, webhooks, SystemClock(), hold_s=0.4, patience_s=0.3)
    claim = await owe(past, receiver.url)
    told = await courier.run_once()
    assert (told.outcomes, told.left) == ({}, 1)
    assert receiver.received == [], "by now another courier may be at it"
    await past.redis.zrem(keys.owed(partition_of(claim.id)), claim.id)


async def test_webhooks_of_another_partition_come_forward_too(
    patient: Courier, past: QueueDriver, receiver: Sink, catalog: Catalog, redis: Redis, scripts: Scripts
) -> None:
    queue = await catalog.register("acme/other", VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    assert keys.queue_partition(queue) != keys.queue_partition(past.queue)
    receiver.answer = Answer(status=500)
    here = await owe(past, receiver.url)
    there = new_prediction_id(model="acme/other", now_ms=past.now_ms)
    driver = QueueDriver(redis, scripts, queue)
    driver.now_ms = past.now_ms
    await driver.submit(there, webhook=receiver.url, webhook_events="completed")
    assert await driver.finish(await driver.claim_one())
    assert (await patient.run_once()).outcomes == {"failed": 2}
    receiver.answer = Answer()
    await make_due(past, here.id)
    assert (await patient.run_once()).outcomes == {"delivered": 1}
    assert (await patient.run_once()).outcomes == {"delivered": 1}


async def test_webhook_owed_for_days_gets_its_last_attempt(patient: Courier, past: QueueDriver, receiver: Sink) -> None:
    receiver.answer = Answer(status=500)
    ids = [(await owe(past, receiver.url)).id for _ in range(AFTER)]
    await patient.run_once()
    await make_due(past, *ids)
    await past.redis.hset(keys.record(ids[0]), "completed", str(past.now_ms - int(LONGEST_S * 1000)))
    told = await patient.run_once()
    assert (told.outcomes, told.put_off) == ({"given_up": 1}, AFTER - 1)


async def test_redelivery_keeps_the_webhook_id(courier: Courier, past: QueueDriver, receiver: Sink) -> None:
    claim = await owe(past, receiver.url)
    await courier.run_once()
    assert await past.scripts.redeliver(claim.id, account=ACCOUNT) == "owed"
    assert (await courier.run_once()).outcomes == {"delivered": 1}
    first, second = (headers["webhook-id"] for headers, _ in receiver.received)
    assert first == second
    assert (await past.record(claim.id)).webhook_attempts == 2


async def test_no_second_attempt_begins_during_one(
    redis: Redis, scripts: Scripts, registry: Registry, webhooks: Webhooks, past: QueueDriver, receiver: Sink
) -> None:
    one, other = (Courier(redis, scripts, registry, webhooks, SystemClock()) for _ in range(2))
    claim = await owe(past, receiver.url)
    receiver.answers.append(Answer(status=500))
    await one.run_once()
    await make_due(past, claim.id)
    receiver.answer = Answer(delay_s=60)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.run_once)
        await receiver.arrived(2)
        assert await scripts.redeliver(claim.id, account=ACCOUNT) == "owed"
        assert await scripts.forward(partition_of(claim.id), ACCOUNT, host_of(receiver.url), limit=9) == 0
        assert (await other.run_once()).outcomes == {}
        receiver.close()
    assert len(receiver.received) == 2
    assert (await past.record(claim.id)).webhook_outcome == "delivered"


async def test_both_secrets_verify_until_rotation_ends(courier: Courier, past: QueueDriver, receiver: Sink) -> None:
    accounts = Accounts(past.redis)
    [old] = await accounts.webhook_secrets(ACCOUNT)
    new = new_secret()
    assert await past.scripts.rotate(ACCOUNT, secret=new, keep_s=3600) == "rotated"
    await owe(past, receiver.url)
    await courier.run_once()
    [(headers, body)] = receiver.received
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (old, new):
        Webhook(secret).verify(body, dict(headers))
    await past.scripts.rotate(ACCOUNT, secret=(newest := new_secret()), keep_s=0)
    await owe(past, receiver.url)
    await courier.run_once()
    _, (headers, body) = receiver.received
    Webhook(newest).verify(body, dict(headers))
    for secret in (old, new):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, dict(headers))
