"""While memory is short, accounts that hold more than their share of it are refused, and no others."""

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from redis.asyncio import Redis

from api.services import memory as api_memory
from director.broker import keys
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.data_bytes import Counted
from director.core.hours import DAY_MS
from director.core.settings import ApiSettings
from director.keeper.shares import Held, Shares
from director.store.accounts import Accounts
from tests.integration.api.conftest import refusal
from tests.support.api import api_client
from tests.support.clock import FakeClock
from tests.support.eventually import eventually, every
from tests.support.queue_driver import VERSION, driving
from tests.support.servers import redis_server

MB = 1 << 20
LOOK_S = 0.05
BURST = 2
ROUNDS = 3
SHORT = (429, "memory_short")
Answers = Counter[tuple[int, str]]


class Town:
    """An API with many accounts, a keeper's look at their shares, and a Redis with little memory."""

    def __init__(self, api: httpx.AsyncClient, redis: Redis, shares: Shares, admin: Redis) -> None:
        self.redis = redis
        self.shares = shares
        self.answers: dict[str, Answers] = {}
        self.refused: dict[str, Any] = {}
        self._api = api
        self._admin = admin
        self._tokens: dict[str, str] = {}

    async def settle(self, *names: str) -> None:
        for name in names:
            self._tokens[name] = await Accounts(self.redis).create_token(name)
            self.answers[name] = Counter()

    async def create(self, name: str, size: int) -> httpx.Response:
        body = {"version": VERSION, "input": {"text": "x" * size}}
        answer = await self._api.post(
            "/v1/predictions", json=body, headers={"Authorization": f"Bearer {self._tokens[name]}"}
        )
        self.answers[name][refusal(answer)] += 1
        if answer.status_code != 201:
            self.refused = answer.json()
        return answer

    async def hoard(self, name: str, size: int, *, goes_on: anyio.Event | None = None) -> None:
        """Create until refused with the largest inputs, and then with smaller ones. With an event, until it is set."""
        while size > 100 or (goes_on is not None and not goes_on.is_set()):
            if (await self.create(name, size)).status_code != 201:
                size = max(100, size // 4)
                await anyio.sleep(0.01)  # a refused client that asks again

    async def fill(self) -> None:
        await self._admin.config_set("maxmemory", 1)

    async def fullness(self) -> float:
        memory = await self.redis.info("memory")
        return float(memory["used_memory"] / memory["maxmemory"])


@asynccontextmanager
async def town(room: int) -> AsyncGenerator[Town]:
    with redis_server() as server:
        redis = client(server.url)
        async with driving(server.url), api_client(ApiSettings(redis_url=server.url)) as api:
            used = (await redis.info("memory"))["used_memory"]
            admin = client(server.admin_url)
            await admin.config_set("maxmemory", used + room)
            shares = Shares(redis, SystemClock())
            await shares.run_once()
            async with anyio.create_task_group() as tasks:

                async def look() -> None:
                    async for _ in every(LOOK_S):
                        await shares.run_once()

                tasks.start_soon(look)
                yield Town(api, redis, shares, admin)
                tasks.cancel_scope.cancel()
        await redis.aclose()
        await admin.aclose()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_memory, "MEMORY_FRESH_S", LOOK_S)


def refusals(town: Town, names: list[str]) -> Answers:
    """Return what these accounts were answered but 201, in all."""
    found = sum((town.answers[name] for name in names), Answers())
    assert found.pop((201, ""), 0), "something was accepted"
    return found


@pytest.mark.not_on("cluster", why="it starts a server of its own")
async def test_an_account_beside_one_that_fills_memory_is_never_refused() -> None:
    async with town(8 * MB) as place:
        await place.settle("hoarder", "small")
        await place.hoard("hoarder", 256 << 10)
        for _ in range(20):
            await place.create("small", 100)
        assert refusals(place, ["small"]) == Answers()
        assert set(place.answers["hoarder"]) == {(201, ""), SHORT}
        assert 0.7 < await place.fullness() < 0.95
    assert 1 <= place.refused["retry_after"] <= 60
    assert "memory of this service is short" in place.refused["detail"]


@pytest.mark.not_on("cluster", why="it starts a server of its own")
async def test_an_account_that_goes_on_after_a_refusal_has_no_others_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with town(8 * MB) as place:
        await place.settle("hoarder", "small")
        await place.hoard("hoarder", 256 << 10)
        # no other look forgets what was refused
        monkeypatch.setattr(api_memory, "MEMORY_FRESH_S", api_memory.MEMORY_STALE_S)
        for size in 40 * [256 << 10]:
            assert refusal(await place.create("hoarder", size)) == SHORT
        assert (await place.create("small", 100)).status_code == 201


@pytest.mark.faults  # a second of load on 60 accounts
@pytest.mark.not_on("cluster", why="it starts a server of its own")
async def test_sixty_creates_beside_an_account_that_fills_memory_with_large_inputs() -> None:
    async with town(60 * MB) as place:
        await place.settle("hoarder", "small")
        stop = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(lambda: place.hoard("hoarder", 1_000_000, goes_on=stop))
            await eventually(lambda: SHORT in place.answers["hoarder"], "the hoarder is refused", limit_s=60)
            for _ in range(60):
                await place.create("small", 100)
            stop.set()
        assert place.answers["small"] == {(201, ""): 60}
        assert set(place.answers["hoarder"]) == {(201, ""), SHORT}


@pytest.mark.faults  # a second of load on 60 accounts
@pytest.mark.not_on("cluster", why="it starts a server of its own")
async def test_ten_hoarders_together_leave_fifty_others_a_service() -> None:
    hoarders, others = [f"h{number}" for number in range(10)], [f"o{number}" for number in range(50)]
    async with town(60 * MB) as place:
        await place.settle(*hoarders, *others)
        stop = anyio.Event()

        async def live(name: str) -> None:
            async for _ in every(0.2, ROUNDS):
                await place.create(name, 1_000)

        async with anyio.create_task_group() as tasks:
            for name in hoarders:
                tasks.start_soon(lambda name=name: place.hoard(name, 1_000_000, goes_on=stop))
            full = lambda: all(SHORT in place.answers[name] for name in hoarders)  # noqa: E731 - one fact
            await eventually(full, "all hoarders are refused", limit_s=60)
            for _ in range(ROUNDS):
                async with anyio.create_task_group() as living:
                    for name in others:
                        living.start_soon(live, name)
            stop.set()
        assert refusals(place, others) == Answers()
        for name in hoarders:
            assert set(place.answers[name]) == {(201, ""), SHORT}, name
        held = await place.shares.run_once()
        assert (held.accounts, held.most < 2 * held.share) == (60, True)


@pytest.mark.faults  # a second of load on 60 accounts
@pytest.mark.not_on("cluster", why="it starts a server of its own")
async def test_hoarders_that_come_one_after_the_other_leave_others_a_service() -> None:
    hoarders = [f"h{number}" for number in range(4)]
    async with town(24 * MB) as place:
        await place.settle(*hoarders, "small")
        for name in hoarders:
            await place.hoard(name, 1_000_000)
        for _ in range(20):
            await place.create("small", 1_000)
        assert refusals(place, ["small"]) == Answers()
        for name in hoarders:
            assert set(place.answers[name]) == {(201, ""), SHORT}, name


async def test_memory_that_is_not_short_refuses_none() -> None:
    async with town(64 * MB) as place:
        await place.settle("hoarder")
        await place.redis.set(keys.data_share(), 1)
        assert (await place.create("hoarder", 1_000)).status_code == 201


@pytest.mark.not_on("cluster", why="it starts a server of its own")
async def test_a_look_of_long_ago_refuses_none() -> None:
    async with town(8 * MB) as place:
        clock = FakeClock()
        looked = api_memory.Memory(place.redis, clock)
        await looked.look()
        assert looked.share(64 * MB) is not None
        clock.pass_time(api_memory.MEMORY_STALE_S + 1)
        assert looked.share(64 * MB) is None
        looked.release()


async def test_shares_sum_what_accounts_hold(redis: Redis, scripts: Scripts) -> None:
    clock, now_ms = FakeClock(), FakeClock().now_ms()
    shares = Shares(redis, clock)
    assert await shares.run_once() == Held(0, 0, 0, 0, ())
    for name, size in {"a": 30, "b": 10, "c": 20}.items():
        await Accounts(redis).create(name)
        await scripts.weigh(name, Counted(size, now_ms + 10 * size), now_ms=now_ms)
    assert await shares.run_once() == Held(3, 60, 30, 0, (("a", 30), ("c", 20), ("b", 10)))
    clock.pass_time(0.2)
    assert await shares.run_once() == Held(1, 30, 30, 0, (("a", 30),))


@pytest.mark.not_on("cluster", why="it starts a server of its own")
@pytest.mark.parametrize("is_full", ["before the list", "before the queue"])
async def test_a_create_that_a_full_server_refuses_takes_nothing_from_its_account(
    monkeypatch: pytest.MonkeyPatch, is_full: str
) -> None:
    async with town(8 * MB) as place:
        await place.settle("metered")
        accounts, enqueue = Accounts(place.redis), Scripts.enqueue
        limits = {"compute_s_per_day": "60", "max_data_bytes": str(MB), "rate": "0.001", "burst": str(BURST)}
        await accounts.set_limits("metered", limits)

        async def fill(*call: Any) -> Any:
            await place.fill()
            return await enqueue(*call)

        if is_full == "before the queue":
            monkeypatch.setattr(Scripts, "enqueue", fill)
        else:
            await place.fill()
        for _ in range(BURST + 1):  # nor from its rate
            assert refusal(await place.create("metered", 100)) == (503, "memory_full")
        usage = await accounts.usage("metered", day=SystemClock().now_ms() // DAY_MS)
    assert (usage.reserved_s, usage.data_bytes) == (0, 0)
