"""Test that calls of a killed API process are canceled, and those of a process that lives are not."""

import signal
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.errors import BackendFull, BackendUnavailable
from director.core.ids import PredictionId, QueueName
from director.core.policy import Policy
from director.core.schema import Claim
from director.keeper import canceler
from director.keeper.canceler import DEAD_S, Canceler
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.held_calls import HeldCalls, read_held
from director.store.processes import TICK_S, Presence, Processes
from tests.support.api import LiveApi, PlayedDirector, live_api
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver
from tests.support.servers import RedisServer, redis_server

pytestmark = pytest.mark.faults

BODY: dict[str, Any] = {"model": MODEL, "messages": []}


@pytest.fixture
async def openai_queue(catalog: Catalog) -> QueueName:
    return await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="openai", policy=Policy())


def keeper_of(redis: Redis, scripts: Scripts, clock: FakeClock) -> Canceler:
    return Canceler(redis, scripts, Presence(redis, clock, "keeper"), clock)


async def look_for(keeper: Canceler, clock: FakeClock, seconds: float, process: "Process | None" = None) -> int:
    """Look each tick, for so long. Returns how many calls were canceled."""
    count = 0
    for _ in range(round(seconds / TICK_S)):
        if process is not None:
            await process.presence.run_once()
        count += await keeper.run_once()
        clock.pass_time(TICK_S)
    return count


async def status_of(scripts: Scripts, prediction_id: str) -> tuple[str, str]:
    stored = await scripts.get(PredictionId(prediction_id))
    assert stored is not None
    return stored.record.status.value, stored.record.cancel


class Process:
    """Does in Redis what an API process does while it holds calls."""

    def __init__(self, redis: Redis, clock: FakeClock) -> None:
        self.presence = Presence(redis, clock, "api")
        self.calls = HeldCalls(redis, self.presence.name)

    async def hold(self, *ids: PredictionId) -> None:
        for each in ids:
            self.calls.hold(each, ACCOUNT)
        await self.calls.run_once()
        await self.presence.run_once()


async def send(http: AsyncClient, live: LiveApi, name: str, sent: dict[str, Any]) -> None:
    body = {**BODY, "user": name, "stream": sent.get("stream", False)}
    with pytest.raises(httpx.TransportError):
        await http.post(f"{live.url}/openai/v1/chat/completions", json=body, headers=sent.get("headers"))


async def test_calls_of_a_killed_process_are_canceled_unless_a_repeat_finds_them(
    server: RedisServer, redis: Redis, scripts: Scripts, openai_queue: QueueName, clock: FakeClock
) -> None:
    token = await Accounts(redis).create_token(ACCOUNT)
    sent: dict[str, dict[str, Any]] = {
        "a stream": {"stream": True},
        "an answer": {},
        "with a key": {"headers": {"Idempotency-Key": "k"}},
        "a key that cancels": {"headers": {"Idempotency-Key": "c", "X-On-Disconnect": "cancel"}},
        "goes on": {"headers": {"X-On-Disconnect": "continue"}},
    }
    claims: dict[str, Claim] = {}
    async with (
        live_api(server.url, env={"DIRECTOR_OPENAI": "true"}) as live,
        AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http,
        anyio.create_task_group() as tasks,
    ):
        director = PlayedDirector(scripts, openai_queue)
        for name, how in sent.items():
            tasks.start_soon(send, http, live, name, how)
            claims[name] = await director.claim()
        await scripts.release(claims["an answer"].id, token=claims["an answer"].token, spent=False)  # it waits again
        ids = {name: claim.id for name, claim in claims.items()}
        [process] = await Processes(redis).newest_signs("api")

        async def held() -> set[str]:
            return {each for each, _ in await read_held(redis, process, most=10)}

        unkeyed = {ids["a stream"], ids["an answer"]}
        await eventually(held, "both are noted", until=unkeyed.__eq__)
        live.process.send_signal(signal.SIGKILL)
    keepers = [keeper_of(redis, scripts, clock) for _ in range(2)]
    for keeper in keepers:
        await keeper.run_once()
    for _ in range(round(DEAD_S / TICK_S) - 1):
        clock.pass_time(TICK_S)
        assert [await keeper.run_once() for keeper in keepers] == [0, 0]
    clock.pass_time(TICK_S)
    assert [await keeper.run_once() for keeper in keepers] == [2, 0]
    assert await status_of(scripts, ids["a stream"]) == ("starting", "user")
    assert (await status_of(scripts, ids["an answer"]))[0] == "canceled"
    for name in ("with a key", "a key that cancels", "goes on"):
        assert await status_of(scripts, ids[name]) == ("starting", "")
    assert await held() == set()


@pytest.mark.parametrize("streams", [True, False])
async def test_process_that_dies_once_redis_has_a_call_has_noted_it(
    server: RedisServer, redis: Redis, scripts: Scripts, openai_queue: QueueName, clock: FakeClock, streams: bool
) -> None:
    token = await Accounts(redis).create_token(ACCOUNT)
    env = {"DIRECTOR_OPENAI": "true", "DIRECTOR_CRASH_AT": "after_enqueue"}
    async with (
        live_api(server.url, env=env) as live,
        AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http,
    ):
        await send(http, live, "a call", {"stream": streams})
    claim = await PlayedDirector(scripts, openai_queue).claim()
    assert await look_for(keeper_of(redis, scripts, clock), clock, DEAD_S + TICK_S) == 1
    assert await status_of(scripts, claim.id) == ("starting", "user")


async def test_call_is_noted_as_long_as_it_is_held(
    server: RedisServer, redis: Redis, scripts: Scripts, openai_queue: QueueName
) -> None:
    token = await Accounts(redis).create_token(ACCOUNT)
    async with (
        live_api(server.url, env={"DIRECTOR_OPENAI": "true"}) as live,
        AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http,
    ):
        director = PlayedDirector(scripts, openai_queue)
        [process] = await Processes(redis).newest_signs("api")

        async def held() -> int:
            return len(await read_held(redis, process, most=10))

        async def call(*, streams: bool, ends: bool) -> None:
            async with anyio.create_task_group() as tasks:
                url = f"{live.url}/openai/v1/chat/completions"
                tasks.start_soon(lambda: http.post(url, json={**BODY, "stream": streams}))
                claim = await director.claim()
                await eventually(held, "it is noted", until=(1).__eq__)
                if ends:
                    await director.finish(claim, output=b'{"choices":[]}')
                else:
                    tasks.cancel_scope.cancel()
            await eventually(held, "it is noted no more", until=(0).__eq__)

        for streams in (True, False):
            for ends in (True, False):
                await call(streams=streams, ends=ends)
        await scripts.bound(openai_queue, mode="bounded", max_queued=0)
        for streams in (True, False):
            refused = await http.post(f"{live.url}/openai/v1/chat/completions", json={**BODY, "stream": streams})
            assert refused.status_code == 429
        await eventually(held, "none is noted", until=(0).__eq__)


async def test_silent_process_that_comes_back_in_time_keeps_its_calls(
    redis: Redis, scripts: Scripts, driver: QueueDriver, clock: FakeClock
) -> None:
    process, keeper = Process(redis, clock), keeper_of(redis, scripts, clock)
    await process.hold(prediction_id := await driver.submit())
    for _ in range(3):
        assert await look_for(keeper, clock, DEAD_S - TICK_S) == 0
        await process.presence.run_once()
    assert await look_for(keeper, clock, 2 * DEAD_S, process) == 0
    assert await look_for(keeper, clock, DEAD_S + TICK_S) == 1
    assert (await status_of(scripts, prediction_id))[0] == "canceled"


async def test_many_calls_are_canceled_and_a_damaged_one_keeps_no_other(
    redis: Redis, scripts: Scripts, driver: QueueDriver, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(canceler, "LIMIT", 2)
    process, keeper = Process(redis, clock), keeper_of(redis, scripts, clock)
    ids = [await driver.submit() for _ in range(5)]
    await process.hold(*ids, driver.new_id())
    record = keys.record(ids[2])
    await redis.rename(record, f"{record}:whole")
    await redis.set(record, "damaged")
    assert await look_for(keeper, clock, DEAD_S + TICK_S) == 4
    assert await read_held(redis, process.presence.name, most=10) == []
    await redis.rename(f"{record}:whole", record)


@pytest.fixture
def own() -> Iterator[RedisServer]:
    with redis_server(guarded=True) as started:
        yield started


async def test_silence_while_redis_is_full_cancels_nothing(own: RedisServer, clock: FakeClock) -> None:
    redis: Any = client(own.admin_url)
    gatherer = Gatherer(redis)
    scripts = Scripts(gatherer)
    process, keeper = Process(redis, clock), keeper_of(redis, scripts, clock)
    await process.hold(PredictionId("0" * 26))
    assert await look_for(keeper, clock, DEAD_S / 2) == 0
    await redis.config_set("maxmemory", 1)
    for _ in range(round(2 * DEAD_S / TICK_S)):
        with pytest.raises(BackendUnavailable):
            await process.presence.run_once()
        with pytest.raises(BackendUnavailable):
            await keeper.run_once()
        clock.pass_time(TICK_S)
    await redis.config_set("maxmemory", 0)
    assert await look_for(keeper, clock, DEAD_S) == 0
    assert await read_held(redis, process.presence.name, most=10) == [("0" * 26, ACCOUNT)]
    await gatherer.aclose()
    await redis.aclose()


async def test_calls_that_redis_lost_are_noted_again(
    redis: Redis, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.store.held_calls.AGAIN_S", 0.01)
    process = Process(redis, clock)
    await process.hold(PredictionId("0" * 26))
    await redis.flushall()
    await process.calls.run_once()
    assert await read_held(redis, process.presence.name, most=10) == [("0" * 26, ACCOUNT)]
    assert 0 < await redis.pttl(keys.calls(process.presence.name)) <= 3_600_000


async def test_calls_that_redis_lost_are_noted_again_also_where_others_come(
    redis: Redis, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.store.held_calls.AGAIN_S", 1e-9)
    process = Process(redis, clock)
    await process.hold(PredictionId("0" * 26))
    await redis.flushall()
    await process.hold(PredictionId("1" * 26))
    assert {each for each, _ in await read_held(redis, process.presence.name, most=10)} == {"0" * 26, "1" * 26}


async def test_full_redis_takes_calls_back_and_leaves_nothing_here(redis: Redis, clock: FakeClock) -> None:
    process, refused = Process(redis, clock), [PredictionId(f"{number:026}") for number in range(50)]
    await process.hold(PredictionId("a" * 26), PredictionId("b" * 26))
    await redis.config_set("maxmemory", "1")
    try:
        process.calls.drop(PredictionId("a" * 26))
        for each in refused:
            process.calls.hold(each, ACCOUNT)
            with pytest.raises(BackendFull):
                await process.calls.run_once()
            process.calls.drop(each)
        assert await read_held(redis, process.presence.name, most=10) == [("b" * 26, ACCOUNT)]
        assert await process.calls.run_once() == 0
    finally:
        await redis.config_set("maxmemory", "0")


async def test_write_that_failed_is_made_again(clock: FakeClock, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(redis, clock)
    process.calls.hold(PredictionId("0" * 26), ACCOUNT)
    process.calls.hold(PredictionId("1" * 26), ACCOUNT)

    async def fail(*_: object) -> None:
        process.calls.drop(PredictionId("1" * 26))
        raise BackendUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr("director.store.held_calls.pipelined", fail)
        with pytest.raises(BackendUnavailable):
            await process.calls.run_once()
    await process.calls.run_once()
    assert await read_held(redis, process.presence.name, most=10) == [("0" * 26, ACCOUNT)]
