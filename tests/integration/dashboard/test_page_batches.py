"""Test the view of batches in a real browser: a real batch, its files, its failures, and many of them."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import anyio
import httpx
import pytest
from msgspec import Struct
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import client
from director.core.ids import FileId
from director.core.settings import ApiSettings
from director.store.accounts import SCOPES, Accounts
from tests.integration.dashboard.conftest import opened
from tests.support import batches
from tests.support.api import live_api
from tests.support.batches import EchoServer
from tests.support.browser import Window
from tests.support.eventually import eventually
from tests.support.live_director import keeping, live_director
from tests.support.queue_driver import ACCOUNT
from tests.support.servers import redis_server

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package
WIDE: Final = {"width": 1440, "height": 900}
NARROW: Final = {"width": 390, "height": 844}


class Night(Struct, frozen=True, kw_only=True):
    """A service with batches. `caller` has a token of an account, and `ops` one of an operator."""

    url: str
    redis: Redis
    model: EchoServer
    settings: ApiSettings
    caller: str
    ops: str

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers={"Authorization": f"Bearer {self.caller}"}, trust_env=False)

    async def make(self, *names: str) -> str:
        async with self.http() as http:
            file_id = await batches.upload(http, batches.lines(names))
            return str((await batches.create(http, file_id, metadata={"file": "night.jsonl"}))["id"])

    async def set(self, batch_id: str, **fields: Any) -> None:
        key = keys.batch(FileId(batch_id.removeprefix("batch_")))
        await self.redis.hset(key, mapping={name.replace("__", ":"): value for name, value in fields.items()})


@pytest.fixture
async def night(tmp_path: Path) -> AsyncGenerator[Night]:
    async with AsyncExitStack() as up:
        server = up.enter_context(redis_server())
        redis = client(server.url)
        up.push_async_callback(redis.aclose)
        env = {"DIRECTOR_OPENAI": "true", "DIRECTOR_FILES_DIR": str(tmp_path)}
        api = await up.enter_async_context(live_api(server.url, env=env))
        model = await up.enter_async_context(EchoServer().listening())
        await up.enter_async_context(keeping(server.url, lease_s=3))
        given: dict[str, Any] = {"runner": "openai", "concurrent_predictions": 4, "lease_s": 3, "backoff_s": 0.1}
        director = await up.enter_async_context(live_director(server.url, model.url, **given))
        await eventually(lambda: all(each.can_run for each in director.servers.all), "the server is ready")
        accounts = Accounts(redis)
        yield Night(
            url=api.url,
            redis=redis,
            model=model,
            settings=ApiSettings(redis_url=server.url, files_dir=str(tmp_path), openai=True, cache_s=0),
            caller=await accounts.create_token(ACCOUNT),
            ops=await accounts.create_token("ops", scopes=SCOPES),
        )


@pytest.fixture
async def window(chromium: tuple[Any, str], night: Night) -> AsyncIterator[Window]:
    window, context = await opened(chromium, night.caller, viewport=WIDE, accept_downloads=True)
    yield window
    await context.close()


async def test_empty_list_says_how_to_start_a_batch(window: Window, night: Night) -> None:
    await window.page.goto(f"{night.url}/#/batches")
    await window.page.get_by_text("director batches submit requests.jsonl").wait_for()
    await window.page.get_by_text("No batches.").wait_for()
    assert await window.barriers() == []
    assert window.faults == []


async def test_batch_is_followed_to_its_end_and_downloaded(window: Window, night: Night) -> None:
    night.model.go.clear()
    batch_id = await night.make("a", "b", "bad")
    async with batches.engine(night.settings) as engine, anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await window.page.goto(f"{night.url}/#/batches")
        row = window.page.get_by_role("row").filter(has=window.page.get_by_role("link", name=batch_id))
        await row.get_by_text("in progress").wait_for()
        await row.get_by_text("0 of 3").wait_for()
        await row.get_by_role("link", name=batch_id).click()
        await window.page.get_by_text("Its lines run.").wait_for()
        night.model.go.set()
        await window.page.get_by_text("Each line was run.").wait_for(timeout=30_000)
        tasks.cancel_scope.cancel()
    causes = window.page.get_by_role("region", name="Failures by cause")
    await causes.get_by_role("row", name="invalid_input 1").wait_for()
    assert await window.barriers() == []
    for button, names in (("Download output", ["a", "b"]), ("Download errors", ["bad"])):
        async with window.page.expect_download() as started:
            await window.page.get_by_role("button", name=button).click()
        saved = Path(await (await started.value).path()).read_text()
        assert sorted(json.loads(one)["custom_id"] for one in saved.splitlines()) == names
    assert window.faults == []


async def test_batch_is_canceled_after_a_question(window: Window, night: Night) -> None:
    batch_id = await night.make("a")
    await window.page.goto(f"{night.url}/#/batches/{batch_id}")
    await window.page.get_by_role("button", name="Cancel").click()
    await window.page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    await window.page.get_by_text("Its lines are being canceled.").wait_for()
    async with night.http() as http:
        assert (await batches.get(http, batch_id))["status"] == "cancelling"


async def test_refused_file_shows_its_lines(window: Window, night: Night) -> None:
    async with night.http() as http:
        file_id = await batches.upload(http, b"{}\n<b>bold</b>\n" + batches.line("a", model="acme/none"))
        batch_id = (await batches.create(http, file_id))["id"]
    async with batches.engine(night.settings) as engine:
        await engine.run_once()
    await window.page.goto(f"{night.url}/#/batches/{batch_id}")
    errors = window.page.get_by_role("region", name="Errors")
    await errors.get_by_role("row").filter(has_text="invalid_json_line").get_by_text("2", exact=True).wait_for()
    await errors.get_by_text("model_not_found").wait_for()
    assert await errors.locator("b").count() == 0


async def test_account_sees_its_own_batches_and_operators_all(
    chromium: tuple[Any, str], window: Window, night: Night
) -> None:
    batch_id = await night.make("a")
    other = await Accounts(night.redis).create_token("other")
    for token, is_seen in ((other, False), (night.ops, True)):
        seen, context = await opened(chromium, token, viewport=WIDE)
        await seen.page.goto(f"{night.url}/#/batches")
        if is_seen:
            row = seen.page.get_by_role("row").filter(has=seen.page.get_by_role("link", name=batch_id))
            await row.get_by_role("link", name=ACCOUNT).wait_for()
        else:
            await seen.page.get_by_text("No batches.").wait_for()
            await seen.page.goto(f"{night.url}/#/batches/{batch_id}")
            await seen.page.get_by_role("alert").wait_for()
        await context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_full_list_has_no_accessibility_violation(
    chromium: tuple[Any, str], night: Night, theme: str, size: dict[str, int], tmp_path: Path
) -> None:
    statuses = ["in_progress", "completed", "failed", "expired", "cancelling", "cancelled", "finalizing", "validating"]
    made = [await night.make("a") for _ in range(2 * len(statuses))]
    async with night.http() as http:
        now_ms = (await batches.get(http, made[0]))["created_at"] * 1000
    for at, (batch_id, status) in enumerate(zip(made, statuses * 2, strict=True)):
        counts = {"total": 50_000, "completed": 1_000 * at, "failed": 21 * at}
        causes = json.dumps({"timed_out": 20 * at, "model_failed": at})
        times = {"at__in_progress": now_ms - 600_000, f"at__{status}": now_ms}
        await night.set(batch_id, status=status, counted=now_ms, causes=causes, **counts, **times)
    shots = tmp_path / "shots"
    window, context = await opened(chromium, night.ops, viewport=size, color_scheme=theme)
    await window.page.goto(f"{night.url}/#/batches")
    await window.page.get_by_text("16 shown").wait_for()
    assert await window.barriers() == []
    await window.page.screenshot(path=shots / f"list-{theme}-{size['width']}.png", full_page=True)
    assert await window.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    await window.page.goto(f"{night.url}/#/batches/{made[8]}")
    await window.page.get_by_role("region", name="Failures by cause").wait_for()
    assert await window.barriers() == []
    await window.page.screenshot(path=shots / f"one-{theme}-{size['width']}.png", full_page=True)
    assert await window.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert window.faults == []
    await context.close()
