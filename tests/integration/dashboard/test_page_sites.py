"""Test the page of an API with several sites: it says what is missing while one is away."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from director.core.clock import SystemClock
from director.core.usage import Used
from tests.integration.dashboard.conftest import opened
from tests.support.api import live_api
from tests.support.queue_driver import ACCOUNT
from tests.support.sites import Place, sites_file, two_places

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package

SAYS: Final = "The site us does not answer. What ran there is missing."


@pytest.fixture
async def places(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dict[str, Place]]:
    async with two_places(monkeypatch) as found:
        for each in found.values():
            each.driver.now_ms = SystemClock().now_ms()
            await each.driver.finish(await each.driver.claimed(), used=Used(runs=1, ms=1_000))
        yield found


async def test_views_say_that_runs_of_a_site_are_missing(
    chromium: tuple[Any, str], places: dict[str, Place], tmp_path: Path
) -> None:
    token = await places["eu"].accounts.create_token(ACCOUNT)
    env = {"DIRECTOR_SITES": str(sites_file(tmp_path, list(places)))}
    async with live_api(places["eu"].server.url, env=env) as api:
        window, context = await opened(chromium, token, viewport={"width": 1280, "height": 900})
        await window.page.goto(f"{api.url}/#/usage")
        runs = window.page.locator("section.usage .tiles > div").filter(has_text="Runs")
        await runs.get_by_text("2", exact=True).wait_for()
        assert await window.page.get_by_text(SAYS).count() == 0
        places["us"].server.kill()
        for view in ("usage", "predictions", "home"):
            await window.page.goto(f"{api.url}/#/{view.replace('home', '')}")
            await window.page.reload()
            await window.page.get_by_text(SAYS).first.wait_for()
        assert window.faults == []
        await context.close()
