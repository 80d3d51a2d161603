"""Test that an entry that is made at any step of its removal stays listed: versions, models, tokens, collections."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from unittest.mock import AsyncMock

import pytest
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import QueueName
from director.core.policy import Policy
from director.store.accounts import Tokens
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.models import Collection, Collections, Models
from director.store.removal import Removal
from tests.support.eventually import eventually
from tests.support.kinds import Started
from tests.support.live_director import keeping
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver

OLD = "c" * 64
MOST_STEPS = 40


class Steps:
    """Runs `act` before the step of this number, counted over all wrapped calls."""

    def __init__(self, number: int, act: Callable[[], Awaitable[Any]]) -> None:
        self._left = number
        self._act = act

    def of(self, real: Any) -> Any:
        return _Stepped(real, self)

    @property
    def are_taken(self) -> bool:
        return self._left < 0

    async def take(self) -> None:
        self._left -= 1
        if self._left == -1:
            await self._act()


class _Stepped:
    def __init__(self, real: Any, steps: Steps) -> None:
        self._real = real
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._real, name)
        if name == "pipeline":
            return lambda **options: self._pipeline(call(**options))

        async def step(*args: Any, **options: Any) -> Any:
            await self._steps.take()
            return await call(*args, **options)

        return step

    def _pipeline(self, pipe: Any) -> Any:
        execute = pipe.execute

        async def step(**options: Any) -> Any:
            await self._steps.take()
            return await execute(**options)

        pipe.execute = step
        return pipe


NEVER = Steps(MOST_STEPS * MOST_STEPS, AsyncMock())
Interplay = tuple[Callable[[Steps], Awaitable[Any]], Callable[[Steps], Awaitable[Any]], Callable[[], Awaitable[bool]]]


async def register(catalog: Catalog, version: str = VERSION) -> QueueName:
    return await catalog.register(MODEL, version, schema=OPEN_SCHEMA, server="cog", policy=Policy())


async def look(catalog: Catalog, queue: QueueName) -> None:
    """Do the periodic check of a director."""
    if not await catalog.is_registered(MODEL, VERSION, queue):
        await register(catalog)


async def assert_known(redis: Redis, catalog: Catalog, queue: QueueName) -> None:
    assert await redis.exists(keys.meta(queue))
    assert queue in await catalog.queues()
    assert await catalog.version(MODEL, VERSION) is not None
    assert await catalog.model_of(VERSION) == MODEL
    model = await catalog.model(MODEL)
    assert model.latest in await catalog.version_ids(MODEL)


async def test_queue_registered_during_its_removal_stays_listed_and_swept(
    redis: Redis, server: Started, catalog: Catalog, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    removal = Removal(redis, driver.scripts, catalog)
    forget = removal._forget

    async def forget_late(*args: Any) -> Any:
        await register(catalog)
        return await forget(*args)

    monkeypatch.setattr(removal, "_forget", forget_late)
    await removal.remove(MODEL, VERSION)

    driver.now_ms = SystemClock().now_ms() - 60_000
    prediction_id = await driver.submit()
    await driver.claim_one()  # and the director with the claim dies: the lease is over by now
    async with keeping(server.url, lease_s=1):
        await eventually(
            lambda: redis.hget(keys.record(prediction_id), "token"),
            "it is taken back",
            until=lambda token: token == b"",
        )
    await assert_known(redis, catalog, driver.queue)


async def version_both_ways(redis: Redis, scripts: Scripts) -> Interplay:
    """Prepare the deletion of the newer version of two."""
    catalog = Catalog(redis, scripts, SystemClock())
    await register(catalog, OLD)
    queue = await register(catalog)

    async def listed() -> bool:
        await look(catalog, queue)
        await assert_known(redis, catalog, queue)
        return True

    return (
        lambda steps: register(Catalog(steps.of(redis), steps.of(scripts), SystemClock())),
        lambda steps: Removal(steps.of(redis), steps.of(scripts), catalog).remove(MODEL, VERSION),
        listed,
    )


async def model_both_ways(redis: Redis, scripts: Scripts) -> Interplay:
    models = Models(redis, scripts, SystemClock())
    await models.make(MODEL, {})

    def with_(steps: Steps) -> Models:
        return Models(steps.of(redis), steps.of(scripts), SystemClock())

    async def listed() -> bool:
        found = [[name for _, name in await models.list_all(order)] for order in ("created", "latest")]
        return await models.get(MODEL) is None or found == [[MODEL], [MODEL]]

    return lambda steps: with_(steps).make(MODEL, {}), lambda steps: with_(steps).remove(MODEL), listed


async def token_both_ways(redis: Redis, scripts: Scripts) -> Interplay:
    tokens = Tokens(redis, SystemClock())
    new = tokens.new(lanes=["normal"], scopes=["run"], label="", expires_ms=None, token="dr_chosen")
    made = await tokens.add(ACCOUNT, new)

    def with_(steps: Steps) -> Tokens:
        return Tokens(steps.of(redis), SystemClock())

    async def listed() -> bool:
        return await tokens.find(new.secret) is None or await tokens.of(ACCOUNT) == [made]

    return lambda steps: with_(steps).add(ACCOUNT, new), lambda steps: with_(steps).remove(made), listed


async def collection_both_ways(redis: Redis, scripts: Scripts) -> Interplay:
    collections = Collections(redis)
    await collections.put("best", Collection(name="Best"))

    def with_(steps: Steps) -> Collections:
        return Collections(steps.of(redis))

    async def listed() -> bool:
        return await collections.get("best") is None or await collections.slugs() == ["best"]

    return (
        lambda steps: with_(steps).put("best", Collection(name="Best")),
        lambda steps: with_(steps).remove("best"),
        listed,
    )


@pytest.mark.parametrize("begin", [version_both_ways, model_both_ways, token_both_ways, collection_both_ways])
@pytest.mark.parametrize("is_cut", ["the making", "the removal"])
async def test_existing_entry_is_listed_despite_a_concurrent_removal(
    redis: Redis, scripts: Scripts, begin: Callable[[Redis, Scripts], Awaitable[Interplay]], is_cut: str
) -> None:
    for number in range(MOST_STEPS):
        await redis.flushdb()
        make, remove, is_listed = await begin(redis, scripts)
        cut, whole = (make, remove) if is_cut == "the making" else (remove, make)
        steps = Steps(number, partial(whole, NEVER))
        await cut(steps)
        if not steps.are_taken:
            break
        assert await is_listed(), f"cut at step {number}"
    assert not steps.are_taken
    assert number > 1
