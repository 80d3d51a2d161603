"""No fact of a request is lost on the way of its prediction: each way is taken with every field that a request fixes.

A new field of `RequestFacts` needs a value in FACTS. A test names what its way does not keep, with the reason.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import pytest

from director.core.clock import SystemClock
from director.core.ids import PredictionId, QueueName, queue_name
from director.core.policy import Policy
from director.core.schema import NewPrediction, Record, RequestFacts
from director.core.states import Status
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.departure import Departure, Site
from director.store.queues import Migration
from director.store.services import Services
from tests.support.keyspace import leaks
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver, driving
from tests.support.servers import redis_server

FACTS: Final[Mapping[str, Any]] = {
    "account": ACCOUNT,
    "model": MODEL,
    "version": VERSION,
    "queue": queue_name(MODEL, VERSION, "training"),
    "kind": "training",
    "lane": "high",
    "cost": 2.5,
    "destination": "acme/tuned",
    "deployment": "acme/front",
    "split": "new 10 1700000000000 1700000000000 a1a1a1a1a1a1",
    "url": "http://director.test",
    "ticket": "t1ck3t",
    "webhook": "http://receiver.test/hook",
    "webhook_events": "start,completed",
    "deadline_status": "aborted",
    "affinity": "0123456789abcdef",
    "metered": True,
    "data_ttl_ms": 7_200_000,
    "secret": "2 4",
    "api_token": "0123456789abcdef",
    "budgeted": True,
    "start_after": 1_700_000_000_000,
    "tokens": "250 512",
    "endpoint": "chat",
    "once_shown": True,
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "rojo=00f067aa0ba902b7",
}
WITHOUT_SECRET: Final = {**FACTS, "secret": ""}  # a request with secret values is not run again
SETTLED: Final = {"metered": False, "budgeted": False}  # its compute and tokens were settled at its end
NEWER: Final = "b2" * 32
LIFETIME_MS: Final = 600_000


@pytest.fixture
async def queue(catalog: Catalog) -> QueueName:
    return await trains(catalog, VERSION)


@pytest.fixture
async def services(redis: Any) -> AsyncIterator[Services]:
    services = Services(redis)
    yield services
    await services.gatherer.aclose()


@pytest.fixture
async def there() -> AsyncIterator[QueueDriver]:
    """Return a driver of the queue of the same name at another server."""
    with redis_server() as server:
        async with driving(server.url) as other:
            await trains(Catalog(other.redis, other.scripts, SystemClock()), VERSION)
            await Accounts(other.redis).create(ACCOUNT)
            yield QueueDriver(other.redis, other.scripts, FACTS["queue"])
            assert await leaks(other.redis) == []


async def trains(catalog: Catalog, version: str) -> QueueName:
    """Register the queue of a version's trainings."""
    return await catalog.register_kind(
        MODEL, version, "training", schema=OPEN_SCHEMA, server="echo", policy=Policy(streams=2, size=2)
    )


async def submit(driver: QueueDriver, facts: Mapping[str, Any] = FACTS) -> PredictionId:
    accepted = await driver.scripts.enqueue(
        NewPrediction(id=driver.new_id(), input=b'{"a":1}', shard="0,1", lifetime_ms=LIFETIME_MS, **facts),
        now_ms=driver.now_ms,
    )
    return accepted.id


async def die(driver: QueueDriver) -> PredictionId:
    """Make a dead letter of a request with every fact that one can have."""
    name = await submit(driver, WITHOUT_SECRET)
    while await driver.release(await driver.claim_one(), spent=True, error="It broke.", code="broken") != "dead":
        pass
    return name


async def facts_of(driver: QueueDriver, name: PredictionId) -> dict[str, Any]:
    return (await driver.record(name)).request_facts


def test_facts_name_every_field_with_a_value_that_is_no_default() -> None:
    defaults = dict(zip(RequestFacts.__struct_fields__, RequestFacts.__struct_defaults__, strict=False))
    assert list(FACTS) == list(RequestFacts.__struct_fields__)
    assert [name for name, value in FACTS.items() if value == defaults.get(name)] == []


def test_records_and_new_predictions_share_no_field_but_facts_and_the_id() -> None:
    both = set(Record.__struct_fields__) & set(NewPrediction.__struct_fields__)
    assert both == {*RequestFacts.__struct_fields__, "id"}


async def test_enqueue_stores_every_fact_and_get_and_claim_return_it(driver: QueueDriver) -> None:
    name = await submit(driver)
    stored = await driver.scripts.get(name, now_ms=driver.now_ms)
    assert stored is not None
    assert stored.record.request_facts == FACTS
    assert (await driver.claim_one()).record.request_facts == FACTS


async def test_answer_to_a_create_has_every_fact_that_was_stored(driver: QueueDriver) -> None:
    new = NewPrediction(id=driver.new_id(), input=b"{}", shard="0,1", lifetime_ms=LIFETIME_MS, **FACTS)
    accepted = await driver.scripts.enqueue(new, now_ms=driver.now_ms)
    answered = new.record(accepted.id, created=accepted.created_ms, deadline=accepted.deadline_ms)
    stored = await driver.record(accepted.id)
    assert answered.request_facts == stored.request_facts
    assert (answered.created, answered.deadline) == (stored.created, stored.deadline)


async def test_retry_of_an_operator_keeps_every_fact_but_its_own(driver: QueueDriver, services: Services) -> None:
    await Accounts(driver.redis).create(ACCOUNT)
    name = await submit(driver, WITHOUT_SECRET)
    await driver.finish(await driver.claim_one(), Status.FAILED, error="No.", code="model_failed")
    entered: list[NewPrediction] = []

    async def enter(_version: Any, new: NewPrediction, _most_data: int | None, _undo: Any) -> Any:
        entered.append(new)
        return await driver.scripts.enqueue(new, now_ms=driver.now_ms)

    answer = await services.across.retry([name], by="ops", ticket=lambda: "another", enter=enter)
    assert (answer.done, answer.refused) == (1, [])
    own = {"ticket": "another", "metered": False, "budgeted": False, "traceparent": "", "tracestate": ""}
    own |= {"start_after": None, "split": ""}
    assert await facts_of(driver, entered[0].id) == {**WITHOUT_SECRET, **own}
    assert entered[0].lifetime_ms == LIFETIME_MS


async def test_revival_keeps_every_fact_but_the_meter_and_the_plan(driver: QueueDriver) -> None:
    name = await die(driver)
    assert await driver.revive(name)
    assert await facts_of(driver, name) == {**WITHOUT_SECRET, **SETTLED, "start_after": None}


async def test_migration_keeps_every_fact_but_version_and_queue(driver: QueueDriver, catalog: Catalog) -> None:
    newer = await trains(catalog, NEWER)
    name = await submit(driver)
    assert [moved.moved async for moved in Migration(driver.scripts, driver.queue, newer).steps()][-1] == 1
    assert await facts_of(driver, name) == {**FACTS, "version": NEWER, "queue": newer}


async def test_move_to_another_server_keeps_every_fact(driver: QueueDriver, there: QueueDriver) -> None:
    name = await submit(driver)
    sites = (Site(one.redis, one.scripts, Accounts(one.redis)) for one in (driver, there))
    left = [moved async for moved in Departure(*sites, driver.queue, there.queue).steps()][-1]
    assert left.moved == 1
    assert await facts_of(there, name) == FACTS
    await there.cancel(name)
