"""Test the page of an API with several sites: it says what is missing while one is away."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from api.web.http import PAGE_SIZE
from director.core.clock import SystemClock
from director.core.ids import lowest_id_at
from director.core.usage import Used
from tests.integration.dashboard.conftest import opened
from tests.support.api import live_api
from tests.support.eventually import eventually
from tests.support.queue_driver import ACCOUNT, MODEL
from tests.support.sites import Place, sites_file, two_places

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package

SAYS: Final = "No answer came from us. What ran there is missing."


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
        await window.page.goto(f"{api.url}/#/usage")
        await window.page.get_by_role("button", name="Download CSV").click()
        await window.page.locator(".notice").filter(has_text=SAYS).wait_for()
        assert window.faults == []
        await context.close()


async def test_rows_of_a_site_stay_chosen_while_it_is_away(
    chromium: tuple[Any, str], places: dict[str, Place], tmp_path: Path
) -> None:
    for each in places.values():
        await run(each)
    token = await places["eu"].accounts.create_token(ACCOUNT)
    env = {"DIRECTOR_SITES": str(sites_file(tmp_path, list(places)))}
    async with live_api(places["eu"].server.url, env=env) as api:
        window, context = await opened(chromium, token, viewport={"width": 1280, "height": 900})
        await window.page.goto(f"{api.url}/#/predictions")
        await window.page.get_by_text("2 shown").wait_for()
        await window.page.get_by_role("button", name="Choose all shown").click()
        places["us"].server.kill()
        await window.page.get_by_text(SAYS).wait_for()
        assert await window.page.get_by_text("2 shown, 2 chosen.").count() == 1
        places["us"].server.start()
        await window.page.get_by_text(SAYS).wait_for(state="detached")
        await window.page.get_by_text("2 shown, 2 chosen.").wait_for()
        assert window.faults == []
        await context.close()


async def test_list_names_the_site_that_its_first_page_lacks_to_its_end(
    chromium: tuple[Any, str], places: dict[str, Place], tmp_path: Path
) -> None:
    home = places["eu"]
    for _ in range(PAGE_SIZE + 1):
        await run(home)
    token = await home.accounts.create_token(ACCOUNT)
    env = {"DIRECTOR_SITES": str(sites_file(tmp_path, list(places)))}
    async with live_api(home.server.url, env=env) as api:
        window, context = await opened(chromium, token, viewport={"width": 1280, "height": 900})
        for view in ("predictions", f"models/{MODEL}/runs"):
            places["us"].server.kill()
            await window.page.goto(f"{api.url}/#/{view}")
            await window.page.get_by_text(SAYS).wait_for()
            more = window.page.get_by_role("button", name="Show more")
            if view == "predictions":  # its first page is asked for again and again
                await more.click()
                await more.wait_for(state="hidden")
                places["us"].server.start()
                for _ in range(2):
                    await window.page.wait_for_event("response", predicate=is_whole)
            else:
                places["us"].server.start()
                await eventually(partial(is_back, f"{api.url}/v1/predictions", token), "us answers again")
                await more.click()
                await more.wait_for(state="hidden")
            assert await window.page.get_by_text(SAYS).count() == 1
        assert window.faults == []
        await context.close()


async def run(place: Place) -> None:
    """Let a prediction run there, which the list of its account has."""
    claim = await place.driver.claimed()
    await place.driver.finish(claim)
    await place.driver.scripts.enlist(claim.id, account=ACCOUNT, oldest=lowest_id_at(0))


def is_whole(response: Any) -> bool:
    return "/v1/predictions" in response.url and "x-sites-away" not in response.headers


async def is_back(url: str, token: str) -> bool:
    async with httpx.AsyncClient(trust_env=False, headers={"Authorization": f"Bearer {token}"}) as caller:
        return "X-Sites-Away" not in (await caller.get(url)).headers
