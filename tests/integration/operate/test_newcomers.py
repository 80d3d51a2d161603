"""Check that operators see a model that has no queue yet, because no server of it was ever ready, and why."""

import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.settings import ApiSettings, KeeperSettings
from director.keeper.metrics import Observer
from director.keeper.registry import Registry
from director.keeper.shares import Shares
from director.operate.overview import Overview, Snapshot
from director.runtime.metric_table import QueueNames
from director.store.accounts import SCOPES, Accounts
from director.store.catalog import Catalog
from director.store.directors import Directors
from director.store.services import Services
from tests.integration.cli.conftest import Operator
from tests.support.api import api_client
from tests.support.cog import cog_server, write_model
from tests.support.eventually import eventually
from tests.support.live_director import live_director
from tests.support.scripted_cog import answer, scripted_cog
from tests.support.servers import RedisServer

NEW = "acme/newcomer"
WHY = "no weights at /weights"
SOURCE = f"""
    from cog import BasePredictor

    class Broken(BasePredictor):
        def setup(self):
            raise RuntimeError("{WHY}")

        def predict(self) -> str:
            return ""
"""
TRACEBACK = f"Traceback (most recent call last):\n  in setup\nRuntimeError: {WHY}\n"
WITHIN_S = 10.0


@pytest.fixture
def operator(server: RedisServer, redis: Redis, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(capsys, "--redis", server.url)


@pytest.fixture
async def broken(tmp_path: Path) -> AsyncGenerator[str, None]:
    folder = write_model(tmp_path / "broken", SOURCE)
    async with cog_server(folder, stub="predict.py:Broken", until="SETUP_FAILED") as url:
        yield url


async def looked(redis: Redis) -> Snapshot:
    return await Overview.of(Services(redis)).look()


@pytest.mark.cog
async def test_failed_first_setup_is_on_every_surface_within_ten_seconds(
    server: RedisServer, redis: Redis, scripts: Scripts, catalog: Catalog, operator: Operator, broken: str
) -> None:
    began = time.monotonic()
    async with (
        live_director(server.url, broken, model=NEW, version=""),
        api_client(ApiSettings(redis_url=server.url)) as api,
    ):
        seen = await eventually(lambda: looked(redis), "it is found", until=lambda seen: bool(seen.findings))
        [finding] = seen.findings
        assert (finding.code, finding.level, finding.queue) == ("setup_failed", "bad", NEW)
        assert WHY in finding.detail
        [queue] = seen.queues
        assert (queue.name, queue.model, queue.state, queue.words) == (NEW, NEW, "setup_failed", "setup failed")
        for line, words in {
            ("directors",): "setup_failed",
            ("queues",): "setup failed",
            ("model",): "setup failed",
            ("queues", "show", NEW): "has no queue yet",
            ("directors", "--queue", NEW): WHY,
            ("top", "--once"): "setup failed",
        }.items():
            said = await operator.types(*line)
            assert NEW in said, line
            assert words in said, line
        assert WHY in (await operator.tries("doctor")).stdout
        token = await Accounts(redis).create_token("ops", scopes=SCOPES)
        for path in ("/v1/admin/directors", "/v1/admin/queues"):
            [row] = (await api.get(path, headers={"Authorization": f"Bearer {token}"})).json()["results"]
            assert NEW in str(row), path
            assert "setup_failed" in str(row), path
        clock, overview = SystemClock(), Overview.of(Services(redis))
        registry = Registry(redis, catalog, clock, keep_s=0)
        settings, shares = KeeperSettings(redis_url=server.url), Shares(redis, clock)
        observer = Observer(redis, scripts, registry, QueueNames(9), settings, clock, shares, overview)
        state = await observer.run_once()
        assert state["director_queue_setup_failed"] == {(NEW,): 1.0}
        assert state["director_findings"] == {("setup_failed", NEW): 1.0}
    assert time.monotonic() - began < WITHIN_S + 10.0, "the commands alone take some seconds"


async def test_director_that_waits_for_its_server_has_rows_and_leaves_none(server: RedisServer, redis: Redis) -> None:
    async with scripted_cog() as cog:
        cog.on("GET", "/health-check", answer(200, {"status": "STARTING"}))
        async with live_director(server.url, cog.url, model=NEW, version=""):
            seen = await eventually(lambda: looked(redis), "it is there", until=lambda seen: bool(seen.directors))
            assert [(one.name, one.state) for one in seen.queues] == [(NEW, "servers_starting")]
            assert seen.directors[0].servers[0].url == cog.url
            cog.on("GET", "/health-check", answer(200, {"status": "READY", "setup": {"started_at": "now"}}))
            seen = await eventually(
                lambda: looked(redis), "it has a queue", until=lambda seen: [one.model for one in seen.queues] == [NEW]
                and seen.queues[0].name != NEW
            )  # fmt: skip
    assert await Directors(redis).newcomers() == []


async def test_last_lines_of_a_failed_setup_stand_beside_the_finding(server: RedisServer, redis: Redis) -> None:
    failed = {"status": "SETUP_FAILED", "setup": {"started_at": "now", "logs": TRACEBACK}}
    async with scripted_cog() as cog:
        cog.on("GET", "/health-check", answer(200, failed))
        async with live_director(server.url, cog.url, model=NEW, version=""):
            seen = await eventually(lambda: looked(redis), "it is found", until=lambda seen: bool(seen.findings))
    assert seen.findings[0].log == TRACEBACK.rstrip()
    assert seen.directors[0].servers[0].log == TRACEBACK.rstrip()


async def test_two_directors_of_a_new_model_are_one_queue_and_two_rows(redis: Redis) -> None:
    directors = Directors(redis)
    await directors.note_newcomer(NEW, "d1", "starting", b"{}")
    await directors.note_newcomer(NEW, "d2", "setup_failed", b"{}")
    assert [one.name for one in await directors.newcomers()] == ["d1", "d2"]
    [queue] = (await looked(redis)).queues
    assert (queue.directors, queue.state) == (2, "servers_starting"), "one of them may come"
    await directors.forget_newcomer(NEW, "d1")
    assert [(one.name, one.last.state) for one in await directors.newcomers()] == [("d2", "setup_failed")]
