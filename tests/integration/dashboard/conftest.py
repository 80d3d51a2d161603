"""Start the whole service and a real browser for its page: API and keeper as processes, and real Cog servers."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from msgspec import Struct
from redis.asyncio import Redis

from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import PredictionId, QueueName, lowest_id_at, new_prediction_id
from director.core.policy import Policy
from director.core.schema import Claim
from director.examples import EXAMPLES
from director.store.accounts import SCOPES, Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import PlayedDirector, live_api
from tests.support.browser import Window, axe_script, browser
from tests.support.cog import cog_process, write_model
from tests.support.live_director import Gate, keeper_process, supervised_cog
from tests.support.queue_driver import VERSION, enqueue
from tests.support.servers import redis_server

MODEL: Final = "acme/painter"
ACCOUNT: Final = "acme"
HELLO: Final = EXAMPLES["example/hello"]
FRAIL: Final = "acme/frail"
DYING: Final = """
    import os
    from cog import BasePredictor

    class Predictor(BasePredictor):
        def predict(self, mended: str) -> str:
            if not os.path.exists(mended):
                os._exit(1)
            return "alive"
"""
TALLEST: Final = 900


class Place(Struct, frozen=True, kw_only=True):
    url: str
    token: str
    redis: Redis
    scripts: Scripts
    queue: QueueName

    def caller(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers={"Authorization": f"Bearer {self.token}"}, trust_env=False)

    async def submit(self, account: str = ACCOUNT) -> PredictionId:
        made = new_prediction_id(model=MODEL, now_ms=SystemClock().now_ms())
        await self.scripts.enlist(made, account=account, oldest=lowest_id_at(0))
        given = {"queue": self.queue, "account": account, "model": MODEL, "version": VERSION}
        await enqueue(self.scripts, made, shard=[0, 1], **given)
        return made

    async def claimed(self, made: PredictionId) -> Claim:
        played = PlayedDirector(self.scripts, self.queue)
        while (claim := await played.claim()).id != made:
            pass
        return claim


class Service(Struct, frozen=True, kw_only=True):
    """Describes the service. `hello` and `frail` are the addresses of the model servers, which a test gives to
    directors.
    """

    url: str
    redis_url: str
    redis: Redis
    hello: str
    frail: str
    token: str


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Service]:
    folder = tmp_path_factory.mktemp("service")
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        redis = client(server.url)
        stack.push_async_callback(redis.aclose)
        hello = await stack.enter_async_context(cog_process(HELLO.folder, stub=HELLO.predict))
        frail = await stack.enter_async_context(supervised_cog(write_model(folder / "frail", DYING)))
        api = await stack.enter_async_context(live_api(server.url))
        await stack.enter_async_context(keeper_process(server.url, lease_s=3, port=0))
        token = await Accounts(redis).create_token("acme", scopes=SCOPES)
        yield Service(url=api.url, redis_url=server.url, redis=redis, hello=hello.url, frail=frail.url, token=token)


@pytest.fixture(scope="module")
async def place() -> AsyncGenerator[Place]:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        redis = client(server.url)
        stack.push_async_callback(redis.aclose)
        gatherer = Gatherer(redis)
        stack.push_async_callback(gatherer.aclose)
        scripts = Scripts(gatherer)
        catalog = Catalog(redis, scripts, SystemClock())
        queue = await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy(attempts=1))
        api = await stack.enter_async_context(live_api(server.url))
        token = await Accounts(redis).create_token(ACCOUNT, scopes=SCOPES)
        yield Place(url=api.url, token=token, redis=redis, scripts=scripts, queue=queue)


@pytest.fixture(scope="module")
async def chromium(pytestconfig: pytest.Config) -> AsyncGenerator[tuple[Any, str]]:
    """Start the browser. Return it with the script that checks accessibility."""
    assert pytestconfig.cache is not None
    cache = Path(pytestconfig.cache.mkdir("clients"))
    script = axe_script(cache)
    async with browser(cache) as started:
        yield started, script


@pytest.fixture
async def window(chromium: tuple[Any, str], service: Service) -> AsyncIterator[Window]:
    started, script = chromium
    context = await started.new_context(viewport={"width": 1280, "height": TALLEST}, bypass_csp=False)
    window = Window(await context.new_page(), script)
    window.page.set_default_timeout(30_000)
    await log_in(window, service)
    yield window
    await context.close()


async def log_in(window: Window, service: Service) -> None:
    await window.page.goto(service.url)
    await window.page.get_by_label("Token").fill(service.token)
    await window.page.get_by_role("button", name="Log in").click()
    await window.page.get_by_role("button", name="Log out").wait_for()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "mended")


async def opened(chromium: tuple[Any, str], token: str, **options: Any) -> tuple[Window, Any]:
    """Open the page in a tab that has this token."""
    started, script = chromium
    context = await started.new_context(**options)
    await context.add_init_script(f"if (origin !== 'null') sessionStorage.setItem('director.token', '{token}')")
    window = Window(await context.new_page(), script)
    window.page.set_default_timeout(20_000)
    return window, context
