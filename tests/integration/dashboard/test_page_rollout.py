"""Test the view of a deployment in a real browser: the split, both versions' figures, and the buttons."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import httpx
import pytest
from msgspec import Struct

from director.broker.gatherer import Gatherer
from director.broker.redis_client import client
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.policy import Policy
from director.keeper.comparer import Comparer
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.services import Services
from tests.integration.dashboard.conftest import opened
from tests.support.api import live_api
from tests.support.browser import Window
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver
from tests.support.servers import redis_server

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package
NEW: Final = "c3" * 32
FRONT: Final = f"{ACCOUNT}/front"


class Shop(Struct, frozen=True, kw_only=True):
    """A service with a deployment. `drivers` play the directors of both versions."""

    url: str
    token: str
    http: httpx.AsyncClient
    comparer: Comparer
    drivers: dict[str, QueueDriver]

    async def try_it(self) -> None:
        body = {"version": NEW, "share": 50, "force": True, "least": 10}
        assert (await self.http.post(f"/v1/deployments/{FRONT}/split", json=body)).status_code == 200

    async def run(self, *, failing: bool) -> None:
        """Run calls until each version has ten, and count them."""
        found = {VERSION: 0, NEW: 0}
        while min(found.values()) < 10:
            made = await self.http.post(f"/v1/deployments/{FRONT}/predictions", json={"input": {}})
            found[made.json()["version"]] += 1
        for version, driver in self.drivers.items():
            for claim in await driver.claim_all():
                fails: Any = {"status": "failed", "code": "model_failed"} if failing and version == NEW else {}
                assert await driver.finish(claim, ran_ms=900, **fails)
        await self.comparer.run_once()


@pytest.fixture
async def shop() -> AsyncGenerator[Shop]:
    async with AsyncExitStack() as up:
        server = up.enter_context(redis_server())
        redis = client(server.url)
        services = Services(redis)
        up.push_async_callback(services.aclose)
        gatherer = Gatherer(redis)
        up.push_async_callback(gatherer.aclose)
        scripts = Scripts(gatherer)
        catalog = Catalog(redis, scripts, SystemClock())
        drivers = {}
        for version in (VERSION, NEW):
            queue = await catalog.register(MODEL, version, schema=OPEN_SCHEMA, server="echo", policy=Policy())
            drivers[version] = QueueDriver(redis, scripts, queue)
            drivers[version].now_ms = SystemClock().now_ms()
        token = await Accounts(redis).create_token(ACCOUNT)
        api = await up.enter_async_context(live_api(server.url))
        headers = {"Authorization": f"Bearer {token}"}
        http = await up.enter_async_context(httpx.AsyncClient(base_url=api.url, headers=headers, trust_env=False))
        front = {
            "name": "front", "model": MODEL, "version": VERSION, "hardware": "cpu", "min_instances": 0,
            "max_instances": 1,
        }  # fmt: skip
        assert (await http.post("/v1/deployments", json=front)).status_code == 200
        comparer = Comparer(services.deployments, services.queues, SystemClock())
        yield Shop(url=api.url, token=token, http=http, comparer=comparer, drivers=drivers)


@pytest.fixture
async def window(chromium: tuple[Any, str], shop: Shop) -> AsyncIterator[Window]:
    window, context = await opened(chromium, shop.token, viewport={"width": 1440, "height": 900})
    yield window
    await context.close()


async def open_front(window: Window, shop: Shop) -> Any:
    await window.page.goto(f"{shop.url}/#/deployments")
    await window.page.get_by_role("link", name=FRONT).click()
    return window.page


async def test_version_is_promoted_and_taken_back_by_buttons(window: Window, shop: Shop) -> None:
    page = await open_front(window, shop)
    await page.get_by_text("All calls run").wait_for()
    await shop.try_it()
    await shop.run(failing=False)
    row = page.get_by_role("row").filter(has_text=NEW[:12])
    await row.get_by_text("50 %").wait_for()
    await row.get_by_text("0.0 %").wait_for()
    assert await window.barriers() == []
    await page.get_by_role("button", name=f"Promote {NEW[:12]}").click()
    await page.get_by_role("dialog").get_by_role("button", name="Promote").click()
    await page.get_by_text(f"The version before was {VERSION[:12]}").wait_for()
    await page.wait_for_function("() => document.activeElement.closest('.rollout')")  # its button has gone
    await page.get_by_role("button", name=f"Roll back {NEW[:12]}").click()
    await page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    await page.get_by_text(f"All calls run {MODEL} {VERSION[:12]}").wait_for()
    await page.locator(".notice").wait_for(state="detached")
    assert await window.barriers() == []
    assert window.faults == []


async def test_stopped_version_says_why(window: Window, shop: Shop) -> None:
    await shop.try_it()
    await shop.run(failing=True)
    page = await open_front(window, shop)
    await page.get_by_text("Stopped by keeper").wait_for()
    await page.get_by_text("runs of the new version failed (100.0 %)").wait_for()
    await page.get_by_role("row").filter(has_text=NEW[:12]).get_by_text("stopped").wait_for()
    assert await window.barriers() == []
    assert window.faults == []
