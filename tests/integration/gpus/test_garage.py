"""Swap models of a real director on a played device: nothing is lost, no run is cut off, no attempt is spent."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import PredictionId
from director.core.model_config import ModelConfig
from director.core.policy import Policy
from director.execution.director import Director
from director.execution.main import Pool, connections
from director.gpus.garage import Garage, make_closed_gate
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.directors import Directors, ShelfFound
from director.store.models import ModelConfigs
from tests.support.eventually import eventually, every
from tests.support.live_director import Caller, settings_for
from tests.support.played_host import DEVICE, PlayedHost, PlayedModel
from tests.support.servers import RedisServer

pytestmark = pytest.mark.faults
VERSIONS = {f"acme/{name}": str(number) * 64 for number, name in enumerate("abcdef", start=1)}


@pytest.fixture
async def callers(redis: Redis, scripts: Scripts, catalog: Catalog) -> dict[str, Caller]:
    """Callers of models whose versions are known from before, by name."""
    for name, version in VERSIONS.items():
        await catalog.register(name, version, schema=OPEN_SCHEMA, server="", policy=Policy())
    return {name: Caller(redis, scripts, model=name, version=version) for name, version in VERSIONS.items()}


@asynccontextmanager
async def sharing(
    server: RedisServer, host: PlayedHost, *, version: str | None = None, also: Sequence[str] = ()
) -> AsyncGenerator[Pool]:
    """Run a director of these models in this process, and end it without a drain."""
    directors: dict[str, Director] = {}
    settings = settings_for(server.url, ["http://127.0.0.1:1"], lease_s=6.0)
    async with connections(settings, directors=len(host.models)) as shared:
        for name, played in host.models.items():
            given = {"model": name, "version": VERSIONS[name] if version is None else version, "also": tuple(also)}
            mine = settings_for(server.url, [host.url(name)], lease_s=6.0, **given)
            directors[name] = Director(mine, shared, make_gate=make_closed_gate, keeps=("runner", "runner_config"))
            assert played.hosted.model.name == name
        models = [(played.hosted, directors[name]) for name, played in host.models.items()]
        garage = Garage(host.devices, models, host, shared.services.scripts, shared.services.clock)
        shared.metering.follow(garage)
        pool = Pool(settings, shared, directors, garage)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pool.direct, lambda _: None)
                yield pool
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                for director in directors.values():
                    await director.aclose()
                await host.aclose()


def loaded(pool: Pool) -> set[str]:
    assert pool.garage is not None
    return {name for name, bay in pool.garage.bays.items() if bay.state == "loaded"}


async def spent(caller: Caller, ids: Sequence[PredictionId]) -> list[int]:
    return [(await caller.record(one)).attempt for one in ids]


async def shelf(server: RedisServer, caller: Caller) -> ShelfFound:
    """Return what the last heartbeat said of the model."""
    redis = client(server.url)
    try:
        found = [each.about.shelf for one in await Directors(redis).of([caller.queue]) for each in one.heartbeats]
    finally:
        await redis.aclose()
    return next((one for one in found if one is not None), ShelfFound(machine="", state="", since_ms=0))


async def test_three_models_share_room_for_two(server: RedisServer, callers: dict[str, Caller]) -> None:
    host = PlayedHost(*(PlayedModel(f"acme/{name}") for name in "abc"), memory=2)
    asked: list[tuple[Caller, list[PredictionId]]] = [(callers[f"acme/{name}"], []) for name in "abc"]
    async with sharing(server, host):
        async for _ in every(0.1, 8):
            for caller, ids in asked:
                ids.append(await caller.submit())
        for caller, ids in asked:
            ended = [await caller.ended(one) for one in ids]
            assert {(one["status"], one["output"]) for one in ended} == {("succeeded", caller.model)}
            assert await spent(caller, ids) == [1] * len(ids)
            await caller.nothing_is_left()
    assert host.faults == []
    assert host.peak == 2
    assert sum(host.loads.values()) >= 3


async def test_run_in_progress_holds_up_a_swap_and_is_not_cut(server: RedisServer, callers: dict[str, Caller]) -> None:
    host = PlayedHost(*(PlayedModel(f"acme/{name}", max_wait_s=0.1, min_loaded_s=0) for name in "ab"), memory=1)
    one, other = callers["acme/a"], callers["acme/b"]
    async with sharing(server, host) as pool:
        long = await one.submit(run_s=1.5)
        await eventually(lambda: host.models["acme/a"].running, "it runs")
        second = await one.submit()
        waits = await other.submit()
        shown = await other.shows_reason(waits, "waiting_for_device")
        assert shown["eta_s"] is not None
        garage = pool.garage
        assert garage is not None
        why = lambda: garage.shelf(garage.bays["acme/b"]).why  # noqa: E731
        await eventually(why, "operators see its bound", until=lambda said: "It begins to load within" in said)
        assert (await other.ended(waits))["status"] == "succeeded"
        assert (await one.ended(long))["status"] == (await one.ended(second))["status"] == "succeeded"
        assert await spent(one, [long, second]) == [1, 1]
        assert "released" not in await one.kinds(second)
        assert loaded(pool) <= {"acme/a", "acme/b"}
    assert host.faults == []
    assert host.done[:4] == ["+acme/a", "-acme/a", "+acme/b", "-acme/b"]


async def test_load_that_fails_backs_off_and_the_others_go_on(
    server: RedisServer, callers: dict[str, Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.gpus.garage.FIRST_RETRY_S", 0.3)
    broken, well = PlayedModel("acme/a"), PlayedModel("acme/b")
    broken.fails = ["no weights"] * 3
    host = PlayedHost(broken, well, memory=1)
    async with sharing(server, host):
        waits = await callers["acme/a"].submit()
        told = lambda: shelf(server, callers["acme/a"])  # noqa: E731
        shown = await eventually(told, "it fails", until=lambda one: one.failed > 1 and one.is_stuck)
        assert shown.why == "no weights"
        assert await callers["acme/a"].shows_reason(waits, "setup_failed")
        assert (await callers["acme/b"].ended(await callers["acme/b"].submit()))["status"] == "succeeded"
        assert (await callers["acme/a"].ended(waits))["status"] == "succeeded"
        assert await spent(callers["acme/a"], [waits]) == [1]
    assert host.loads["acme/a"] >= 4
    assert host.faults == []


async def test_model_that_never_becomes_ready_does_not_load_for_ever(
    server: RedisServer, callers: dict[str, Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.gpus.garage.LEAST_LIMIT_S", 1.0)
    stuck, well = PlayedModel("acme/a"), PlayedModel("acme/b")
    stuck.stays_in_setup = True
    host = PlayedHost(stuck, well, memory=1)
    async with sharing(server, host):
        await callers["acme/a"].submit()
        await eventually(lambda: host.loads["acme/a"], "it loads")
        assert (await callers["acme/b"].ended(await callers["acme/b"].submit()))["status"] == "succeeded"
        told = await eventually(lambda: shelf(server, callers["acme/a"]), "it failed", until=lambda one: one.failed > 0)
        assert told.why.startswith("it could not run anything after")
    assert host.faults == []


async def test_model_whose_server_died_is_loaded_again(
    server: RedisServer, callers: dict[str, Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.gpus.garage.FIRST_RETRY_S", 0.1)
    host, caller = PlayedHost(PlayedModel("acme/a"), memory=1), callers["acme/a"]
    async with sharing(server, host) as pool:
        await caller.ended(await caller.submit())
        await host.die("acme/a", ended="exit status 1")
        await eventually(lambda: loaded(pool), "it is gone", until=lambda found: not found)
        assert (await caller.ended(await caller.submit()))["status"] == "succeeded"
    assert host.loads["acme/a"] == 2


async def test_runs_that_end_their_server_do_not_hold_the_model_away(
    server: RedisServer, callers: dict[str, Caller], scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account may send what ends the server each time. The others wait for one load, not for a longer pause."""
    monkeypatch.setattr("director.gpus.garage.FIRST_RETRY_S", 0.1)
    host, caller = PlayedHost(PlayedModel("acme/a"), memory=1), callers["acme/a"]
    async with sharing(server, host) as pool:
        assert pool.garage is not None
        bay = pool.garage.bays["acme/a"]
        for _ in range(3):
            await caller.ended(await caller.submit())
            await host.die("acme/a", ended="exit status 139")
            await eventually(lambda: bay.state, "it is gone", until=lambda state: state == "absent")
            assert bay.failed == 1
        for failed in (2, 3):
            await scripts.order(caller.queue, "load")
            await eventually(lambda: bay.state, "it is loaded", until=lambda state: state == "loaded")
            await host.die("acme/a", ended="exit status 1")
            await eventually(lambda: bay.failed, "it ran nothing", until=failed.__eq__)


async def test_server_that_does_not_end_is_told(
    server: RedisServer, callers: dict[str, Caller], scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.gpus.garage.END_LIMIT_S", -10.0)  # it is overdue at once
    host, caller = PlayedHost(PlayedModel("acme/a"), memory=1, rest_s=600), callers["acme/a"]
    async with sharing(server, host):
        await caller.ended(await caller.submit())
        assert (await shelf(server, caller)).overdue_s == 0
        await scripts.order(caller.queue, "rest")
        told = await eventually(lambda: shelf(server, caller), "it is told", until=lambda one: one.overdue_s > 0)
        assert told.state == "leaving"


async def test_director_takes_over_what_a_dead_one_left_loaded(server: RedisServer, callers: dict[str, Caller]) -> None:
    host = PlayedHost(*(PlayedModel(f"acme/{name}") for name in "ab"), memory=1)
    await host.load("acme/a", {DEVICE: 1})
    host.left = {"acme/a": host.find_held("acme/a")}
    async with sharing(server, host) as pool:
        await eventually(lambda: loaded(pool), "it is adopted", until={"acme/a"}.__eq__)
        assert (await callers["acme/b"].ended(await callers["acme/b"].submit()))["status"] == "succeeded"
    assert host.done[:3] == ["+acme/a", "-acme/a", "+acme/b"]
    assert host.faults == []


async def test_server_of_a_dead_director_that_does_not_end_holds_its_place(
    server: RedisServer, callers: dict[str, Caller]
) -> None:
    host = PlayedHost(*(PlayedModel(f"acme/{name}") for name in "ab"), memory=1)
    await host.load("acme/a", {DEVICE: 1})
    host.models["acme/a"].held = replace(host.find_held("acme/a"), presence="leaving")
    host.left = {"acme/a": host.find_held("acme/a")}
    async with sharing(server, host):
        assert (await callers["acme/b"].ended(await callers["acme/b"].submit()))["status"] == "succeeded"
    assert host.faults == []


async def test_model_without_a_known_version_is_loaded_once_to_learn_it(server: RedisServer, redis: Redis) -> None:
    host = PlayedHost(*(PlayedModel(f"acme/{name}", min_loaded_s=0) for name in "abc"), memory=1)
    async with sharing(server, host, version="") as pool:
        await eventually(lambda: dict(host.loads), "each is loaded", until=lambda loads: len(loads) == 3)
        await eventually(lambda: [d.queue for d in pool.directors.values()], "they are known", until=all)
    assert set(host.loads.values()) == {1}
    again = PlayedHost(*(PlayedModel(f"acme/{name}", min_loaded_s=0) for name in "abc"), memory=1)
    async with sharing(server, again, version="") as pool:
        await eventually(lambda: [d.queue for d in pool.directors.values()], "they are known", until=all)
    assert not again.loads, "their versions are known from before"


async def test_model_that_was_never_loaded_says_what_it_waits_for(
    server: RedisServer, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.execution.registration.LOOK_AGAIN_S", 0.05)
    host = PlayedHost(*(PlayedModel(f"acme/{name}", load_s=30) for name in "ab"), memory=1)
    words: dict[str, set[str]] = {"acme/a": set(), "acme/b": set()}

    async def look() -> bool:
        for name, said in words.items():
            if (awaited := await catalog.read_awaited(name)) is not None:
                said.add(awaited.why)
        return any("is being loaded" in why for said in words.values() for why in said) and any(
            "Other models have its device" in why or "shares a device" in why for said in words.values() for why in said
        )

    async with sharing(server, host, version=""):
        await eventually(look, "both say what they wait for")


async def test_queue_that_redis_lost_is_registered_by_a_load(
    server: RedisServer, callers: dict[str, Caller], redis: Redis, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.execution.director.STAY_S", 0.2)
    host = PlayedHost(PlayedModel("acme/a"), memory=1)
    async with sharing(server, host) as pool:
        await eventually(lambda: pool.directors["acme/a"].queue, "it is known")
        assert not host.loads
        await redis.flushdb()
        await eventually(catalog.queues, "it is registered again")
        await callers["acme/a"].ended(await callers["acme/a"].submit())


async def test_orders_of_an_operator(server: RedisServer, callers: dict[str, Caller], scripts: Scripts) -> None:
    host = PlayedHost(*(PlayedModel(f"acme/{name}", min_loaded_s=0, max_wait_s=0.1) for name in "ab"), memory=1)
    one, other = callers["acme/a"], callers["acme/b"]
    async with sharing(server, host) as pool:
        await eventually(lambda: one.stats(), "it is known", until=lambda stats: stats.swap == "waiting_for_device")
        await scripts.order(one.queue, "load")
        await eventually(lambda: loaded(pool), "it is loaded", until={"acme/a"}.__eq__)
        await eventually(lambda: scripts.survey(one.queue), "the order is over", until=lambda told: told.order == "")
        await scripts.order(one.queue, "load")  # although it is loaded
        await eventually(lambda: scripts.survey(one.queue), "it is over too", until=lambda told: told.order == "")
        await scripts.order(one.queue, "pin")
        await eventually(lambda: shelf(server, one), "it is pinned", until=lambda told: told.order == "pin")
        waits = await other.submit()
        told = await eventually(lambda: shelf(server, other), "it is stuck", until=lambda told: told.is_stuck)
        assert "acme/a" in told.why
        await scripts.order(one.queue, "rest")
        assert (await other.ended(waits))["status"] == "succeeded"
        kept = await one.submit()
        await anyio.sleep(0.3)  # nothing happens, and no fact says when it would have
        assert loaded(pool) == {"acme/b"}
        await scripts.order(one.queue, "load")
        assert (await one.ended(kept))["status"] == "succeeded"
    assert host.faults == []


async def test_shelf_tells_swaps_and_the_time_that_they_took(server: RedisServer, callers: dict[str, Caller]) -> None:
    host = PlayedHost(*(PlayedModel(f"acme/{name}", min_loaded_s=0) for name in "ab"), memory=1)
    async with sharing(server, host) as pool:
        for name in ("acme/a", "acme/b"):
            await callers[name].ended(await callers[name].submit())
        told = await eventually(
            lambda: shelf(server, callers["acme/b"]), "told", until=lambda one: one.state == "loaded"
        )
        [swap] = told.swaps
        assert swap.instead_of == ("acme/a",)
        assert swap.ready_ms is not None
        assert 100 <= swap.ready_ms - swap.began_ms < 2_000
        assert (told.loads, told.place, told.room) == (1, {DEVICE: 1}, {DEVICE: 1})
        assert told.lost_s >= 0.1
        assert pool.garage is not None
        assert pool.garage.memory == {DEVICE: (1, 1)}


async def test_model_is_loaded_for_what_waits_for_its_older_version(
    server: RedisServer, callers: dict[str, Caller], redis: Redis, scripts: Scripts, catalog: Catalog
) -> None:
    await catalog.register("acme/a", "e" * 64, schema=OPEN_SCHEMA, server="", policy=Policy())
    old = Caller(redis, scripts, model="acme/a", version="e" * 64)
    async with sharing(server, PlayedHost(PlayedModel("acme/a"), memory=1), also=[old.queue]):
        assert (await old.ended(await old.submit()))["status"] == "succeeded"


async def test_kept_model_is_loaded_once_its_director_has_begun(
    server: RedisServer, callers: dict[str, Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Director._begin

    async def begin_later(director: Director) -> None:
        await anyio.sleep(0.2)  # later than the garage, which would load it at once
        await begin(director)

    monkeypatch.setattr(Director, "_begin", begin_later)
    host = PlayedHost(PlayedModel("acme/a", keep=True), PlayedModel("acme/b"), memory=2)
    async with sharing(server, host) as pool:
        await eventually(lambda: loaded(pool), "it is loaded", until={"acme/a"}.__eq__)
    assert host.faults == []


async def test_model_whose_director_does_not_begin_makes_room(
    server: RedisServer, callers: dict[str, Caller], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("director.gpus.garage.UNWELL_S", 0.3)
    begin = Director._begin

    async def begin_all_but_one(director: Director) -> None:
        await (anyio.sleep_forever() if director.live.given.model == "acme/a" else begin(director))

    monkeypatch.setattr(Director, "_begin", begin_all_but_one)
    host = PlayedHost(PlayedModel("acme/a", keep=True), PlayedModel("acme/b"), memory=2)
    await host.load("acme/a", {DEVICE: 2})
    host.left = {"acme/a": host.find_held("acme/a")}
    async with sharing(server, host):
        assert (await callers["acme/b"].ended(await callers["acme/b"].submit()))["status"] == "succeeded"
    assert host.done[:3] == ["+acme/a", "-acme/a", "+acme/b"]
    assert host.faults == []


async def test_load_on_another_device_holds_up_none(server: RedisServer, callers: dict[str, Caller]) -> None:
    stuck = PlayedModel("acme/a", places=({},))
    stuck.stays_in_setup = True
    host = PlayedHost(stuck, PlayedModel("acme/b"), memory=1)
    async with sharing(server, host):
        await callers["acme/a"].submit()
        await eventually(lambda: host.loads["acme/a"], "it loads")
        assert (await callers["acme/b"].ended(await callers["acme/b"].submit()))["status"] == "succeeded"
    assert host.faults == []


async def test_stored_runner_does_not_replace_that_of_the_server(
    server: RedisServer, callers: dict[str, Caller], redis: Redis, scripts: Scripts
) -> None:
    other = ModelConfig(runner={"kind": "http", "path": "/other", "output": "/output"})
    await ModelConfigs(redis, scripts, SystemClock()).put("acme/a", other, by="ops")
    async with sharing(server, PlayedHost(PlayedModel("acme/a"), memory=1)):
        assert (await callers["acme/a"].ended(await callers["acme/a"].submit()))["status"] == "succeeded"
