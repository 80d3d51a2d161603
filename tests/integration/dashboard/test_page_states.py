"""Test every view while it loads, fails, is full or stale: accessible, and all of it reached by keyboard alone."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import anyio
import pytest

from director.core.states import Status
from tests.integration.dashboard.conftest import ACCOUNT, MODEL, Place, opened
from tests.integration.dashboard.test_page_many import submit_many
from tests.support.api import PlayedDirector
from tests.support.browser import Window
from tests.support.queue_driver import VERSION

pytestmark = [pytest.mark.anyio, pytest.mark.heavy, pytest.mark.long]  # the browser comes from a Debian package

WIDE: Final = {"width": 1440, "height": 900}
NARROW: Final = {"width": 390, "height": 844}
VIEWS: Final = (
    *("/", "/queues", "/queues/{queue}", "/dead", "/webhooks", "/directors", "/models", f"/models/{MODEL}"),
    *(f"/models/{MODEL}/{tab}" for tab in ("api", "examples", "versions", "runs")),
    *("/predictions", "/predictions/{made}", "/predictions/{failed}", "/deployments", f"/deployments/{ACCOUNT}/front"),
    *("/batches", "/accounts", f"/accounts/{ACCOUNT}", "/usage", "/audit", "/system"),
)
# views with figures of the feed, and what shows that they are drawn
STALE: Final = {
    "/": ".history.stale .tiles .bad",
    "/queues": "main .figures",
    "/queues/{queue}": "main .figures .chip",
    "/predictions": "#age",
}
OLD: Final = timedelta(minutes=20)
MOST_TABS: Final = 250  # a queue shows up to 100 of its predictions
ACTING: Final = "main :is(a[href], button, input, select, textarea, summary, [tabindex='0'])"
# Finds what acts and had no focus yet. The keys of a group of radio buttons are the arrows.
MISSED: Final = f"""() => [...document.querySelectorAll("{ACTING}")].filter((one) =>
    !one.matches(":disabled, [type=radio]:not(:checked)") && one.checkVisibility({{ visibilityProperty: true }})
    && !window.seen.has(one)).map((one) => one.outerHTML.slice(0, 160))"""
# Returns the element with the focus if it does not look like it.
FOCUSED: Final = """() => {
    const one = document.activeElement;
    window.seen.add(one);
    if (!one.closest("main") || one.id === "main" || one.matches("[type=file]")) return "";
    const { outlineStyle, outlineWidth } = getComputedStyle(one);
    return outlineStyle !== "none" && outlineWidth !== "0px" ? "" : one.outerHTML.slice(0, 160);
}"""
# Lets the feed give one snapshot, then breaks it.
BREAKING_FEED: Final = """
    const asks = window.fetch;
    let isGiven = false;
    window.fetch = async (url, given) => {
        if (!String(url).includes("/admin/live")) return asks(url, given);
        if (isGiven) throw new TypeError("away");
        isGiven = true;
        const reader = (await asks(url, given)).body.getReader();
        const decoder = new TextDecoder();
        return new Response(new ReadableStream({ start: async (to) => {
            for (let text = ""; !text.includes("event: snapshot") || !text.endsWith("\\n\\n");) {
                const { done, value } = await reader.read();
                if (done) break;
                text += decoder.decode(value, { stream: true });
                to.enqueue(value);
            }
            to.close();
        } }));
    };
"""
SETTLED: Final = """() => document.getAnimations().forEach((one) => {
    if (one.effect.getComputedTiming().endTime < Infinity) one.finish();
})"""
# finds what looks as if a click did something, and no key could
MOUSE_ONLY: Final = """() => [...document.querySelectorAll("main *")].filter((one) =>
    getComputedStyle(one).cursor === "pointer" && !one.querySelector("a, button, input")
    && !one.closest("a, button, label, summary, select, input, option, .picks-one, tr.opens"))
   .map((one) => one.outerHTML.slice(0, 160))"""


@asynccontextmanager
async def held(window: Window, state: str) -> AsyncGenerator[None]:
    """Answers to the views never come, or are refusals. That to the log-in comes."""
    over = anyio.Event()

    async def answer(route: Any) -> Any:
        if route.request.url.endswith("/v1/account"):
            return await route.continue_()
        if state == "failing":
            body = json.dumps({"detail": "Redis cannot answer now.", "code": "unavailable"})
            return await route.fulfill(status=503, content_type="application/json", body=body)
        await over.wait()
        return await route.abort()

    await window.page.route("**/v1/**", answer)
    yield
    over.set()
    await window.page.unroute_all(behavior="ignoreErrors")


async def old(route: Any) -> None:
    """Answer as the history of twenty minutes ago, with a failure."""
    answer = await route.fetch()
    found = await answer.json()
    until = datetime.fromisoformat(found["until"]) - OLD
    whole = {**found["whole"], "succeeded": 0, "failed": 1}
    await route.fulfill(response=answer, json={**found, "until": until.isoformat(), "whole": whole})


@pytest.fixture(scope="module")
async def names(place: Place) -> dict[str, str]:
    """The parts of addresses. The service has runs that wait, succeeded and failed, a deployment, and a dead letter."""
    played = PlayedDirector(place.scripts, place.queue)
    made = []
    async with place.caller() as caller:
        for number in range(6):
            sent = {"input": {"text": "hello"}, "webhook": "https://hooks.example.com/done"}
            made.append(str((await caller.post(f"/v1/models/{MODEL}/predictions", json=sent)).json()["id"]))
            claim = await place.claimed(made[-1])  # type: ignore[arg-type]
            if number == 0:
                await place.scripts.release(claim.id, token=claim.token, spent=True, error="Lost.", code="server_lost")
                continue
            status = Status.FAILED if number == 1 else Status.SUCCEEDED
            ended: dict[str, Any] = (
                {"error": "No memory.", "code": "model_failed"} if number == 1 else {"output": b'"word"'}
            )
            await played.finish(claim, status, seq=await played.begin(claim), logs="step 1\n", **ended)
        await caller.post(f"/v1/models/{MODEL}/predictions", json={"input": {"text": "it waits"}})
        front = {"name": "front", "model": MODEL, "version": VERSION, "hardware": "cpu", "min_instances": 0}
        answer = await caller.post("/v1/deployments", json={**front, "max_instances": 1})
        assert answer.status_code == 200, answer.text
    return {"queue": place.queue, "made": made[2], "failed": made[1]}


async def show(window: Window, place: Place, view: str) -> None:
    await window.page.goto("about:blank")
    await window.page.goto(f"{place.url}/#{view}")
    await window.page.locator("main h1").first.wait_for()


async def check(window: Window, view: str) -> None:
    await window.page.evaluate(SETTLED)  # words that appear slowly are pale until then
    assert await window.barriers() == [], view
    assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


@pytest.mark.parametrize("state", ["loading", "failing"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_view_that_waits_or_fails_has_no_accessibility_violation(
    chromium: tuple[Any, str], place: Place, names: dict[str, str], theme: str, size: dict[str, int], state: str
) -> None:
    window, context = await opened(chromium, place.token, viewport=size, color_scheme=theme)
    async with held(window, state):
        for view in VIEWS:
            await show(window, place, view.format_map(names))
            if state == "failing":
                await window.page.locator("main .trouble").first.wait_for(state="attached")
            await check(window, view)
    await context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_full_view_has_no_accessibility_violation(
    chromium: tuple[Any, str], place: Place, names: dict[str, str], theme: str, size: dict[str, int]
) -> None:
    await submit_many(place, 300)
    window, context = await opened(chromium, place.token, viewport=size, color_scheme=theme)
    for view in (*VIEWS, "/predictions?account=crowd"):
        await show(window, place, view.format_map(names))
        if "crowd" in view:
            await window.page.get_by_role("button", name="Show more").click()
        await window.page.wait_for_function("() => !document.querySelector('[aria-busy=true]')")
        await check(window, view)
    await context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_stale_view_has_no_accessibility_violation(
    chromium: tuple[Any, str], place: Place, names: dict[str, str], theme: str, size: dict[str, int]
) -> None:
    window, context = await opened(chromium, place.token, viewport=size, color_scheme=theme)
    await context.add_init_script(BREAKING_FEED)
    await window.page.route("**/v1/admin/history*", old)
    for view, shown in STALE.items():
        await show(window, place, view.format_map(names))
        await window.page.locator("html[data-stale]").wait_for(state="attached")
        await window.page.locator(shown).first.wait_for()
        await check(window, view)
    await context.close()


async def unavailable(route: Any) -> None:
    await route.fulfill(status=503, json={"code": "unavailable"})


async def too_often(route: Any) -> None:
    await route.fulfill(status=429, json={"detail": "Too many reads."})


async def unreachable(route: Any) -> None:
    await route.abort()


@pytest.mark.parametrize(
    ("view", "asked", "fail", "then"),
    [
        ("/usage", "**/v1/admin/usage*", unavailable, ":text('Nothing ran'), .usage .tiles"),
        ("/system", "**/v1/admin/system", unreachable, "main .facts"),
        ("/system", "**/v1/admin/system", too_often, "main .facts"),
        (f"/accounts/{ACCOUNT}", f"**/v1/admin/accounts/{ACCOUNT}", unavailable, "#limit-rate"),
        ("/predictions/{made}", "**/explain", unavailable, "main [aria-label=Input]"),
        (f"/models/{MODEL}/versions", "**/versions/*", unavailable, ".setup .hint"),
    ],
)
async def test_view_that_failed_at_first_asks_again(
    chromium: tuple[Any, str], place: Place, names: dict[str, str], view: str, asked: str, fail: Any, then: str
) -> None:
    window, context = await opened(chromium, place.token, viewport=WIDE)
    await window.page.route(asked, fail, times=1)
    await show(window, place, view.format_map(names))
    again = window.page.get_by_text("It is asked again every few seconds.")
    await again.wait_for()
    await window.page.locator(then).first.wait_for()
    await again.wait_for(state="detached")
    await context.close()


async def test_refused_view_is_asked_for_once(chromium: tuple[Any, str], place: Place) -> None:
    window, context = await opened(chromium, place.token, viewport=WIDE)
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))
    await window.page.clock.install()
    await show(window, place, "/accounts/stranger")
    await window.page.locator("main .empty").wait_for()
    await window.page.clock.fast_forward("01:00")
    await window.page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")
    assert len([url for url in asked if url.endswith("/accounts/stranger")]) == 1
    assert await window.page.get_by_text("It is asked again").count() == 0
    await context.close()


async def test_limits_that_are_typed_stay_while_tokens_cannot_be_read(chromium: tuple[Any, str], place: Place) -> None:
    window, context = await opened(chromium, place.token, viewport=WIDE)
    await window.page.route("**/tokens", unavailable)
    await show(window, place, f"/accounts/{ACCOUNT}")
    await window.page.locator("#limit-rate").fill("7")
    async with window.page.expect_response(lambda answer: answer.url.endswith("/tokens")):
        pass
    assert await window.page.locator("#limit-rate").input_value() == "7"
    await window.page.unroute("**/tokens")
    await window.page.get_by_role("table", name="Tokens").wait_for()
    assert await window.page.locator("#limit-rate").input_value() == "7"
    await context.close()


@pytest.mark.parametrize("view", VIEWS)
async def test_all_that_acts_is_reached_by_tab_and_shows_the_focus(
    chromium: tuple[Any, str], place: Place, names: dict[str, str], view: str
) -> None:
    window, context = await opened(chromium, place.token, viewport=WIDE)
    page = window.page
    await show(window, place, view.format_map(names))
    await page.wait_for_function("() => !document.querySelector('[aria-busy=true]')")
    await page.evaluate("() => { window.seen = new WeakSet(); }")
    assert await page.evaluate(MOUSE_ONLY) == []
    unseen = [one for _ in range(MOST_TABS) if (one := await step(page))]
    assert unseen == [], "the focus is visible"
    assert await page.evaluate(MISSED) == []
    await context.close()


async def step(page: Any) -> str:
    await page.keyboard.press("Tab")
    return str(await page.evaluate(FOCUSED))
