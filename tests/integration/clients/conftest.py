"""Start the whole service for the official clients: the API's process behind TLS, directors, and real Cog servers.

The tests of a module share one service. Each test has its own account, which sees nothing of the others.
"""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import pytest
from anyio import to_thread
from msgspec import Struct
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from director.store.models import Collection, Collections
from tests.support.api import live_api
from tests.support.authority import Authority
from tests.support.clients import javascript_client, python_2_client
from tests.support.cog import cog_process
from tests.support.eventually import eventually
from tests.support.live_director import Gate, keeping, live_director
from tests.support.models import MODELS, WRITER
from tests.support.servers import redis_server
from tests.support.tls_front import tls_front


class Service(Struct, frozen=True, kw_only=True):
    """Describes the service. `url` is https without /v1; `authority` is the file with the certificate to check it
    against.
    """

    url: str
    authority: Path
    redis: Redis
    redis_url: str
    files: Mapping[str, str]


class Caller(Struct, frozen=True, kw_only=True):
    account: str
    token: str
    url: str
    authority: Path

    def as_json(self, gate: Gate) -> str:
        models = {
            model.name.partition("/")[2]: {"name": model.name, "version": model.version, "ref": model.ref}
            for model in MODELS
        }
        given = {"account": self.account, "token": self.token, "url": self.url, "gate": str(gate), "models": models}
        return json.dumps(given)

    def of_python(self, url: str) -> dict[str, str]:
        """Return the environment from which the Python clients know the service at this address."""
        return {
            "REPLICATE_BASE_URL": url,
            "REPLICATE_API_TOKEN": self.token,
            "REPLICATE_POLL_INTERVAL": "0.05",
            "SSL_CERT_FILE": str(self.authority),
        }


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Service]:
    folder = tmp_path_factory.mktemp("service")
    authority = Authority(folder)
    shown, files_dir = authority.shown_by("localhost"), str(folder / "files")
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        redis = client(server.url)
        stack.push_async_callback(redis.aclose)
        port = free_port()
        url = f"https://localhost:{await stack.enter_async_context(tls_front(shown, target_port=port))}"
        env = {"DIRECTOR_FILES_DIR": files_dir, "DIRECTOR_PUBLIC_URL": url, "DIRECTOR_CACHE_S": "0"}
        api = await stack.enter_async_context(live_api(server.url, port=port, env=env))
        given = {"files_dir": files_dir, "files_base": api.url, "webhook_allow": "loopback"}
        for model in MODELS:
            trains = model.kind == "training"
            cog = await stack.enter_async_context(
                cog_process(model.write(folder / model.name), stub=model.stub, trains=trains)
            )
            served = {"model": model.name, "version": model.version, "kind": model.kind, **given}
            await stack.enter_async_context(live_director(server.url, cog.url, **served))
        await eventually(lambda: _all_are_known(redis), "every model is known")
        await Collections(redis).put("best", Collection(name="The best", models=(WRITER.name,)))
        await stack.enter_async_context(keeping(server.url))
        yield Service(url=url, authority=folder / "ca.pem", redis=redis, redis_url=server.url, files=given)


async def _all_are_known(redis: Redis) -> bool:
    gatherer = Gatherer(redis)
    scripts = Scripts(gatherer)
    catalog = Catalog(redis, scripts, SystemClock())
    try:
        versions = [await catalog.version(model.name, model.version) for model in MODELS]
        served = [
            version and await catalog.of_kind(version, model.kind)
            for version, model in zip(versions, MODELS, strict=True)
        ]
        return all(served)
    finally:
        await gatherer.aclose()


@pytest.fixture(scope="module")
def numbers() -> "count[int]":
    return count(1)


@pytest.fixture
async def caller(service: Service, numbers: "count[int]") -> Caller:
    account = f"acme-{next(numbers)}"
    token = await Accounts(service.redis).create_token(account)
    return Caller(account=account, token=token, url=service.url, authority=service.authority)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture(scope="session")
def cache(pytestconfig: pytest.Config) -> Path:
    """The folder of the installed clients. It stays for later runs."""
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("clients"))


@pytest.fixture
def keeps(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("update_pages"))


@pytest.fixture
def env_of(cache: Path, caller: Caller, gate: Gate) -> Callable[[str], Awaitable[Mapping[str, str]]]:
    """Return a function that installs a client and returns the environment of its scripts."""

    async def install(client: str) -> Mapping[str, str]:
        given = {"GIVEN": caller.as_json(gate)}
        if client == "javascript":
            installed = await to_thread.run_sync(javascript_client, cache)
            return {**installed, **given, "NODE_EXTRA_CA_CERTS": str(caller.authority)}
        installed = await to_thread.run_sync(python_2_client, cache)
        return {**installed, **given, **caller.of_python(f"{caller.url}/v1")}

    return install
