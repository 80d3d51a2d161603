"""Test the health routes of a process on a real port, and that they show the durability of the server that answers."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from redis.asyncio import Redis

from director.broker.redis_client import server_ms
from director.core.settings import ApiSettings, KeeperSettings
from director.execution import main as directing_main
from director.execution.main import open_directors
from director.files import choose
from director.keeper import keeper
from director.local.launcher.processes import free_port
from director.runtime import process as health
from director.runtime.process import Health, serve_http
from director.store.directors import Directors
from director.store.processes import Processes
from tests.support.api import api_client
from tests.support.eventually import eventually
from tests.support.live_director import settings_for
from tests.support.servers import RedisServer, redis_server


async def nothing() -> str:
    return ""


@asynccontextmanager
async def at_port(run: Callable[[Callable[[int], None]], Awaitable[None]]) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a process that reports its port at the start."""
    ports: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run, ports.append)
        [port] = await eventually(lambda: ports, "it has begun")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            yield http
        tasks.cancel_scope.cancel()


def served(health: Health) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    return at_port(lambda started: serve_http(health.app(), host="127.0.0.1", port=0, started=started))


async def test_process_without_a_check_is_alive_and_ready() -> None:
    async with served(Health()) as http:
        assert (await http.get("/livez")).json() == {"status": "alive"}
        assert (await http.get("/readyz")).json() == {"status": "ready", "missing": {}}


async def test_readyz_names_what_is_missing_while_livez_is_fine() -> None:
    health = Health()

    async def no_server() -> str:
        return "no model server is ready"

    health.checks = {"redis": nothing, "servers": no_server}
    health.facts["durability"] = "always"
    health.figures = lambda: {"batch_fill": "0.500"}
    async with served(health) as http:
        answer = await http.get("/readyz")
        assert answer.status_code == 503
        assert answer.json() == {
            "status": "not ready",
            "durability": "always",
            "batch_fill": "0.500",
            "missing": {"servers": "no model server is ready"},
        }
        assert (await http.get("/livez")).status_code == 200
        health.checks["servers"] = nothing
        assert (await http.get("/readyz")).status_code == 200


async def test_store_of_files_that_fails_is_shown_and_no_condition() -> None:
    """Runs without files go on, so a rolling update goes on too."""

    async def no_bucket() -> str:
        return "there is no such bucket"

    async with served(Health(store_check=no_bucket)) as http:
        answer = await http.get("/readyz")
        assert answer.status_code == 200
        assert answer.json() == {"status": "ready", "files": "there is no such bucket", "missing": {}}


async def test_hanging_check_is_reported_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CHECK_S", 0.05)
    hanging = Health()

    async def hang() -> str:
        await anyio.sleep_forever()
        return ""

    hanging.checks["redis"] = hang
    assert await hanging.missing() == {"redis": "no answer within 0.05 s"}


async def test_check_added_during_a_request_counts_from_the_next() -> None:
    health = Health()

    async def learns_more() -> str:
        health.checks["servers"] = nothing
        return "redis is away"

    health.checks = {"redis": learns_more}
    assert await health.missing() == {"redis": "redis is away"}


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Start a separate server, whose durability the tests lower."""
    with redis_server() as started:
        yield started


@asynccontextmanager
async def api(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with api_client(ApiSettings(redis_url=url)) as http:
        yield http


@asynccontextmanager
async def keeping(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with at_port(lambda started: keeper.run(KeeperSettings(redis_url=url), started=started)) as http:
        yield http


@asynccontextmanager
async def directing(url: str) -> AsyncIterator[httpx.AsyncClient]:
    no_server = f"http://127.0.0.1:{free_port()}"
    async with open_directors(settings_for(url, [no_server])) as pool, at_port(pool.direct) as http:
        yield http


@pytest.mark.parametrize("process", [api, keeping, directing])
async def test_durability_level_is_shown_and_a_weakened_one_is_not_ready(
    server: RedisServer, process: Callable[[str], AbstractAsyncContextManager[httpx.AsyncClient]]
) -> None:
    async with process(server.url) as http:

        async def level() -> object:
            return (await http.get("/readyz")).json().get("durability")

        await eventually(level, "it is looked at", until=lambda shown: shown == "always")
        async with Redis(unix_socket_path=str(server.socket)) as operator:
            await operator.config_set("min-replicas-to-write", 1)
            await eventually(level, "it is looked at again", until=lambda shown: shown == "replicated")
            await operator.config_set("min-replicas-to-write", 0)
            await operator.config_set("appendfsync", "everysec")
        weak = await eventually(
            lambda: http.get("/readyz"),
            "it is refused with advice",
            until=lambda shown: "DIRECTOR_DURABILITY=everysec" in shown.text,
        )
        assert weak.status_code == 503


@pytest.mark.parametrize("process", [api, keeping, directing])
async def test_readyz_asks_redis_once_a_second_at_most(
    server: RedisServer, process: Callable[[str], AbstractAsyncContextManager[httpx.AsyncClient]]
) -> None:
    async with process(server.url) as http, Redis(unix_socket_path=str(server.socket)) as operator:

        async def level() -> object:
            return (await http.get("/readyz")).json().get("durability")

        await eventually(level, "it is looked at", until=lambda shown: shown == "always")
        started_s, before = anyio.current_time(), await operator.info("commandstats")
        for _ in range(20):
            await http.get("/readyz")
        seconds = anyio.current_time() - started_s
        after = await operator.info("commandstats")
        asked = after["cmdstat_config|get"]["calls"] - before["cmdstat_config|get"]["calls"]
        assert asked <= seconds + 2


async def test_director_is_live_but_not_ready_before_redis_answers(server: RedisServer) -> None:
    server.stop()
    port = free_port()
    settings = settings_for(server.url, [f"http://127.0.0.1:{free_port()}"], health_port=port)
    async with (
        open_directors(settings) as pool,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
        anyio.create_task_group() as tasks,
    ):

        async def missing() -> dict[str, str]:
            try:
                return dict((await http.get("/readyz")).json()["missing"])
            except httpx.TransportError:
                return {}

        tasks.start_soon(pool.direct, lambda _: None)
        await eventually(missing, "it is asked for Redis", until=lambda told: "redis" in told)
        assert (await http.get("/livez")).status_code == 200
        server.start()
        await eventually(missing, "Redis is there", until=lambda told: told.keys() == {"model"})
        tasks.cancel_scope.cancel()


async def test_keeper_without_its_store_of_files_is_ready_and_says_so(server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "no-folder").touch()
    settings = KeeperSettings(redis_url=server.url, files_dir=str(tmp_path / "no-folder"))
    async with (
        at_port(lambda started: keeper.run(settings, started=started)) as http,
        Redis(unix_socket_path=str(server.socket)) as redis,
    ):
        await eventually(lambda: http.get("/readyz"), "it is ready", until=lambda answer: answer.status_code == 200)
        assert "cannot be written" in (await http.get("/readyz")).json()["files"]
        page = await eventually(
            lambda: http.get("/metrics"), "it counts", until=lambda page: "files_up 0.0" in page.text
        )
        assert "\ndirector_files_up 0.0\n" in page.text

        async def reasons() -> list[str]:
            return [one.files for one in await Processes(redis).alive(await server_ms(redis))]

        await eventually(reasons, "its sign names the fault", until=lambda found: "cannot be written" in "".join(found))


async def test_director_without_its_store_of_files_lacks_its_model_alone(server: RedisServer) -> None:
    url, port = f"http://127.0.0.1:{free_port()}", free_port()
    settings = settings_for(server.url, [url], health_port=port, files_url=url)
    async with (
        open_directors(settings) as pool,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
        anyio.create_task_group() as tasks,
    ):

        async def shown() -> dict[str, Any]:
            try:
                return dict((await http.get("/readyz")).json())
            except httpx.TransportError:
                return {"missing": {}}

        tasks.start_soon(pool.direct, lambda _: None)
        said = await eventually(shown, "it has looked", until=lambda said: said["missing"].keys() == {"model"})
        assert said["files"] == "DIRECTOR_FILES_URL: the API cannot be reached"
        tasks.cancel_scope.cancel()


async def test_director_notices_by_itself_what_its_store_of_files_does(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside Kubernetes nothing asks /readyz."""
    monkeypatch.setattr(choose, "GOOD_S", 0)
    monkeypatch.setattr(directing_main, "BAD_S", 0.2)
    files, port = tmp_path / "files", free_port()
    url = f"http://127.0.0.1:{free_port()}"
    settings = settings_for(server.url, [url], health_port=port, files_dir=str(files))
    async with (
        open_directors(settings) as pool,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
        Redis(unix_socket_path=str(server.socket)) as redis,
        anyio.create_task_group() as tasks,
    ):

        async def reasons() -> list[str]:
            return [one.last.about.files for one in await Directors(redis).newcomers()]

        async def is_up() -> bool:
            return "\ndirector_files_up 1.0\n" in (await http.get("/metrics")).text

        tasks.start_soon(pool.direct, lambda _: None)
        await eventually(reasons, "it reports", until=lambda found: found == [""])
        assert await is_up()
        shutil.rmtree(files)
        files.touch()
        await eventually(reasons, "a report names it", until=lambda found: "cannot be written" in "".join(found))
        assert not await is_up()
        files.unlink()
        await eventually(is_up, "the store works again", limit_s=30)
        await eventually(reasons, "no report names it", until=lambda found: found == [""])
        tasks.cancel_scope.cancel()
