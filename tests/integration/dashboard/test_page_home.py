"""Test Home: findings that act, charts that lead to predictions, and the first run of an empty service."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
import pytest
from msgspec.structs import replace

from director.broker import keys
from director.broker.redis_client import client
from director.core.trends import STEPS, Level, Point
from director.operate.acts import acts_of
from director.operate.findings import Finding, away
from director.store.accounts import ROLES, SCOPES, Accounts
from director.store.trends import Trends
from tests.integration.dashboard.conftest import ACCOUNT, HELLO, Place, Service, opened
from tests.integration.dashboard.test_page_actions import answer, create, died, failed
from tests.integration.dashboard.test_page_alone import SNAPSHOT, play
from tests.support.api import live_api
from tests.support.browser import Window
from tests.support.cog import cog_process
from tests.support.live_director import director_process, keeper_process
from tests.support.servers import redis_server

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package

FAILED: Final = 7


@pytest.fixture
async def window(chromium: tuple[Any, str], place: Place) -> AsyncIterator[Window]:
    window, context = await opened(chromium, place.token, viewport={"width": 1280, "height": 900})
    yield window
    await context.close()


def finding(window: Window, code: str) -> Any:
    return window.page.locator(f".findings > li[data-code={code}]")


async def pause(place: Place, verb: str = "pause") -> None:
    model, _, version = place.queue.rpartition(":")
    async with place.caller() as caller:
        assert (await caller.post(f"/v1/admin/queues/{model}/{version}/{verb}")).status_code == 200


async def test_button_of_a_finding_resumes_and_the_finding_goes(window: Window, place: Place) -> None:
    await create(place)
    await pause(place)
    await window.page.goto(f"{place.url}/#/")
    paused = finding(window, "queue_paused")
    await paused.get_by_role("link", name=place.queue).wait_for()
    await paused.get_by_role("button", name=f"Resume: {place.queue}").click()
    await paused.wait_for(state="detached")
    await window.page.locator(".notice").get_by_text("Resumed. What waits is handed out again.").wait_for()
    assert not (await place.scripts.stats(place.queue)).paused
    assert window.faults == []


async def test_dead_letters_are_dropped_after_a_question(window: Window, place: Place) -> None:
    await died(place)
    await window.page.goto(f"{place.url}/#/")
    dead = finding(window, "dead_letters")
    await dead.get_by_role("button", name="Drop all").click()
    await answer(window, "Back")
    assert (await place.scripts.stats(place.queue)).dead > 0
    await dead.get_by_role("button", name="Drop all").click()
    await answer(window, "Drop all")
    await dead.wait_for(state="detached")
    assert (await place.scripts.stats(place.queue)).dead == 0


async def test_refused_act_says_why_at_its_place(window: Window, place: Place) -> None:
    claim = await failed(place)
    about = {"prediction": claim.id}
    hangs = Finding(
        code="run_hangs",
        level="warn",
        title="A run hangs",
        detail="It hangs.",
        queue=place.queue,
        ask="director doctor",
        about=about,
        acts=acts_of("run_hangs", place.queue, about),
    )
    await play(window, replace(SNAPSHOT, findings=[hangs]))
    await window.page.goto(f"{place.url}/#/")
    row = finding(window, "run_hangs")
    await row.get_by_role("button", name="Cancel the run").click()
    await answer(window, "Cancel the run")
    await row.get_by_role("status").get_by_text("Nothing was done. 1 left alone: has ended.").wait_for()


async def test_viewer_sees_findings_without_acts(chromium: tuple[Any, str], place: Place) -> None:
    await create(place)
    await pause(place)
    token = await Accounts(place.redis).create_token("watcher", scopes=ROLES["viewer"])
    window, context = await opened(chromium, token)
    await window.page.goto(f"{place.url}/#/")
    paused = finding(window, "queue_paused")
    await paused.get_by_role("button", name="Mute").wait_for()
    assert await paused.locator(".acts button").all_inner_texts() == ["Mute 1 h"]
    await paused.locator(".unfold").click()
    await paused.get_by_text(f"director queues resume {place.queue}").wait_for()
    await context.close()
    await pause(place, "resume")


async def test_muted_finding_stays_away_in_this_browser(window: Window, place: Place) -> None:
    await create(place)
    await pause(place)
    await window.page.goto(f"{place.url}/#/")
    paused = finding(window, "queue_paused")
    await paused.get_by_role("button", name="Mute").click()
    await paused.wait_for(state="detached")
    await window.page.reload()
    await window.page.get_by_text("1 muted in this browser.").wait_for()
    assert await paused.count() == 0
    await window.page.get_by_role("button", name="Show muted").click()
    await paused.wait_for()
    await pause(place, "resume")


async def test_mute_ends_after_an_hour(window: Window, place: Place) -> None:
    await create(place)
    await pause(place)
    await window.page.goto(f"{place.url}/#/")
    paused = finding(window, "queue_paused")
    await paused.get_by_role("button", name="Mute").click()
    await paused.wait_for(state="detached")
    left_s = await window.page.evaluate(
        """() => {
            const muted = Object.entries(JSON.parse(localStorage.getItem("director.muted")));
            const ended = muted.map(([key]) => [key, Date.now() - 1000]);
            localStorage.setItem("director.muted", JSON.stringify(Object.fromEntries(ended)));
            return (muted[0][1] - Date.now()) / 1000;
        }"""
    )
    assert 3_500 < left_s <= 3_601
    await window.page.reload()
    await paused.wait_for()
    await pause(place, "resume")


async def test_muted_failure_stays_muted_though_newer_runs_fail(window: Window, place: Place) -> None:
    await window.page.goto(f"{place.url}/#/")
    failing = finding(window, "model_failing")
    for newest in ("first", "second"):
        one = Finding(
            code="model_failing",
            level="bad",
            title="A model fails",
            detail=f"The newest is {newest}.",
            queue=place.queue,
            ask="director doctor",
            about={"prediction": newest},
        )
        await play(window, replace(SNAPSHOT, queues=[], findings=[one]))
        await window.page.reload()
        await window.page.get_by_role("heading", name="Needs attention").wait_for()
        if newest == "first":
            await window.page.locator("#nav .badge").get_by_text("1").wait_for()
            await failing.get_by_role("button", name="Mute").click()
        await failing.wait_for(state="detached")
    await window.page.get_by_text("1 muted in this browser.").wait_for()
    assert await window.page.locator("#nav a[data-path='/'] .badge").is_hidden(), "it counts what is not muted"


@pytest.mark.parametrize("view", ["/", "/queues", "/directors"])
async def test_view_opened_while_redis_is_away_says_so(window: Window, place: Place, view: str) -> None:
    told = {"at": SNAPSHOT.at, "reason": "no answer", "findings": [away("Redis is away")]}

    async def answer(route: Any) -> None:
        body = b"event: away\ndata: " + msgspec.json.encode(told) + b"\n\n"
        await route.fulfill(status=200, content_type="text/event-stream", body=body)

    await window.page.route("**/v1/admin/live*", answer)
    await window.page.goto(f"{place.url}/#{view}")
    await window.page.locator("main .trouble").get_by_text("Redis does not answer").wait_for()
    await window.page.unroute("**/v1/admin/live*")
    await window.page.locator("main .trouble").wait_for(state="hidden")


@pytest.mark.parametrize("view", ["/", "/queues", "/directors"])
async def test_view_whose_feed_never_came_says_so(window: Window, place: Place, view: str) -> None:
    async def refuse(route: Any) -> None:
        await route.fulfill(status=503, json={"detail": "Redis cannot answer now.", "code": "unavailable"})

    await window.page.route("**/v1/admin/live*", refuse)
    await window.page.goto(f"{place.url}/#{view}")
    await window.page.locator("main .trouble").get_by_text("No answer came").wait_for()
    await window.page.unroute("**/v1/admin/live*")
    await window.page.locator("main .trouble").wait_for(state="hidden")


async def busy_step(place: Place) -> int:
    """Record a step of ten seconds that is over, in which some failed. Return its begin."""
    seconds, _ = await place.redis.time()
    at_s = STEPS[0].start(seconds) - 2 * STEPS[0].seconds
    await place.redis.delete(keys.trend_of_all("10s"), keys.level_of_all("10s"))  # another test may have had this step
    point = Point(at_s=at_s, failed=FAILED, succeeded=1, waits={31: 8}, runs={40: 8})
    level = Level(at_s=at_s, waiting=23, busy_s=30, slots=4)
    await Trends(place.redis).add({place.queue: point}, {place.queue: level}, most=9)
    return at_s


async def to_step(window: Window, chart: str, words: str) -> Any:
    """Move to the step that has these words, by the keyboard alone."""
    slider = window.page.get_by_role("slider", name=chart, exact=True)
    await slider.focus()
    await window.page.keyboard.press("End")
    for _ in range(5):
        if words in str(await slider.get_attribute("aria-valuetext")):
            break
        await window.page.keyboard.press("ArrowLeft")
    assert words in str(await slider.get_attribute("aria-valuetext"))
    return slider


async def test_bar_leads_to_the_predictions_of_its_time(window: Window, place: Place) -> None:
    at_s = await busy_step(place)
    await window.page.goto(f"{place.url}/#/")
    await window.page.locator(".chart canvas").first.wait_for()
    slider = await to_step(window, "Ended", f"{FAILED} failed")
    await slider.locator(".tip").get_by_text(f"{FAILED} failed").wait_for()
    async with window.page.expect_request(lambda asked: "/v1/admin/predictions?" in asked.url) as listed:
        await window.page.keyboard.press("Enter")
    await window.page.get_by_role("heading", name="Predictions", exact=True).wait_for()
    asked = parse_qs((await listed.value).url.partition("?")[2])
    assert asked["status"] == ["failed"]
    since, until = (asked[name][0] for name in ("created_after", "created_before"))
    assert f"until={until[:10]}" in window.page.url, "the address can be sent to a colleague"
    assert since < until
    ends = await window.page.evaluate("([a, b]) => [Date.parse(a) / 1000, Date.parse(b) / 1000]", [since, until])
    assert ends[0] < at_s < ends[1] == at_s + 10, "it reaches back as far as most waited and ran"


async def test_click_on_a_part_of_a_bar_leads_to_that_status(window: Window, place: Place) -> None:
    await busy_step(place)
    await window.page.goto(f"{place.url}/#/")
    slider = await to_step(window, "Ended", f"{FAILED} failed")
    box = await slider.locator(".u-over").bounding_box()
    cursor = await slider.locator(".u-cursor-x").bounding_box()
    await window.page.mouse.click(cursor["x"], box["y"] + box["height"] - 2)  # the lowest part: what succeeded
    await window.page.get_by_role("heading", name="Predictions", exact=True).wait_for()
    assert "status=succeeded" in window.page.url


async def test_charts_say_what_waited_and_ran_also_as_a_table(window: Window, place: Place) -> None:
    await busy_step(place)
    await pause(place)
    await pause(place, "resume")
    await window.page.goto(f"{place.url}/#/")
    await to_step(window, "Waiting", "23 waiting at most")
    await to_step(window, "Slots in use", "3 of 4 slots in use, 75 %")
    await window.page.locator(".happened").get_by_text("queue resumed").first.wait_for()
    await window.page.get_by_text("The same as a table").click()
    row = window.page.get_by_role("region", name="History in numbers").get_by_role("row").filter(has_text="23")
    assert (await row.first.get_by_role("cell").all_inner_texts())[:6] == ["1", str(FAILED), "0", "23", "3", "4"]
    assert await window.barriers() == []
    assert window.faults == []


class Bare(Service, frozen=True, kw_only=True):
    """A service in which no model was ever registered."""


@pytest.fixture
async def bare() -> AsyncGenerator[Bare]:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        redis = client(server.url)
        stack.push_async_callback(redis.aclose)
        api = await stack.enter_async_context(live_api(server.url))
        token = await Accounts(redis).create_token(ACCOUNT, scopes=SCOPES)
        yield Bare(url=api.url, redis_url=server.url, redis=redis, hello="", frail="", token=token)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_empty_service_shows_three_ways_and_no_zeros(
    chromium: tuple[Any, str], bare: Bare, width: int, theme: str
) -> None:
    window, context = await opened(chromium, bare.token, viewport={"width": width, "height": 900}, color_scheme=theme)
    await window.page.goto(bare.url)
    await window.page.get_by_role("heading", name="Serve your first model").wait_for()
    ways = window.page.locator(".ways > li")
    assert await ways.count() == 3
    await ways.locator("code").first.get_by_text("DIRECTOR_REDIS_URL").wait_for()
    for code in await ways.locator("code").all_inner_texts():
        assert bare.redis_url in code, "the command is for this service"
        assert "director run --model acme/" in code
    assert await window.page.locator(".chart, .totals, table").count() == 0
    assert await window.barriers() == []
    assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert window.faults == []
    await context.close()


@pytest.mark.cog
async def test_tick_comes_alive_with_a_served_model_and_leads_to_its_run(chromium: tuple[Any, str], bare: Bare) -> None:
    window, context = await opened(chromium, bare.token, viewport={"width": 1280, "height": 900})
    await window.page.goto(bare.url)
    way = window.page.locator(".ways > li[data-model='acme/painter']")
    await way.get_by_text("Waiting for acme/painter").wait_for()
    async with (
        cog_process(HELLO.folder, stub=HELLO.predict) as hello,
        keeper_process(bare.redis_url, lease_s=3, port=0),
        director_process(bare.redis_url, hello.url, model="acme/painter", version="", port=0) as director,
    ):
        await director.says("model registered")
        await way.get_by_text("acme/painter is here").wait_for()
        assert await window.page.locator(".ways .tick.done").count() == 1
        await way.get_by_role("link", name="Run it").click()
        await window.page.get_by_label("Text").fill("moin")
        await window.page.get_by_role("button", name="Run").click()
        await window.page.get_by_text("succeeded").first.wait_for()
        await window.page.goto(f"{bare.url}/#/")
        await window.page.get_by_role("region", name="History").first.wait_for()
    assert window.faults == []
    await context.close()
