"""Test the page as people use it who are no engineers: links that they are sent, pictures, dates and plain words."""

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from msgspec import Raw

from director.core.clock import SystemClock
from director.core.policy import Policy
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.integration.dashboard.conftest import Place, opened
from tests.support.api import PlayedDirector, live_api
from tests.support.browser import Window
from tests.support.studio import PIXEL, SCHEMA

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package

PAINTER: Final = "umbrella/pictures"
VERSION: Final = "b4" * 32
GONE: Final = "/v1/outputs/06gzx0rcvbz008pmq2tvpfvnvc-2c26b46b68ffc68ff99b453c1d304134.png"
WIDE: Final = {"width": 1440, "height": 900}
NARROW: Final = {"width": 390, "height": 844}
PROMPT: Final = "a lighthouse at dusk"


@pytest.fixture(scope="module")
async def painter(place: Place) -> PlayedDirector:
    """A model of pictures, whose director is the test."""
    catalog = Catalog(place.redis, place.scripts, SystemClock())
    schema = Raw(json.dumps(SCHEMA).encode())
    queue = await catalog.register(PAINTER, VERSION, schema=schema, server="cog", policy=Policy(attempts=1))
    return PlayedDirector(place.scripts, queue)


@pytest.fixture
async def ann(place: Place) -> str:
    """The token of a person who sees the account umbrella alone."""
    return await Accounts(place.redis).create_token("umbrella", scopes=("read", "run"))


@pytest.fixture
async def browser(chromium: tuple[Any, str]) -> AsyncIterator[Any]:
    """A browser without a log-in."""
    context = await chromium[0].new_context(viewport=WIDE)
    context.set_default_timeout(20_000)
    yield context
    await context.close()


async def tab(browser: Any, chromium: tuple[Any, str], url: str) -> Window:
    window = Window(await browser.new_page(), chromium[1])
    await window.page.goto(url)
    return window


async def paint(place: Place, painter: PlayedDirector, token: str, output: Any, **given: Any) -> str:
    """Run the model of pictures to its end."""
    async with place.caller() as caller:
        path, sent = f"/v1/models/{PAINTER}/predictions", {"input": {"prompt": PROMPT, **given}}
        made = await caller.post(path, json=sent, headers={"Authorization": f"Bearer {token}"})
    claim = await painter.claim()
    await painter.finish(claim, output=json.dumps(output).encode(), seq=await painter.begin(claim))
    return str(made.json()["id"])


async def make_link(place: Place, token: str, **asked: Any) -> str:
    async with place.caller() as caller:
        headers = {"Authorization": f"Bearer {token}"}
        return str((await caller.post("/v1/account/login-link", json=asked, headers=headers)).json()["url"])


async def address(window: Window) -> str:
    return str(await window.page.evaluate("() => location.href"))


async def is_at(window: Window, place: Place, view: str) -> None:
    await window.page.wait_for_function("(wanted) => location.href === wanted", arg=f"{place.url}/#{view}")
    await window.page.get_by_role("button", name="Log out").wait_for()


async def test_stranger_with_a_shared_link_is_told_whom_to_ask(
    chromium: tuple[Any, str], browser: Any, place: Place
) -> None:
    window = await tab(browser, chromium, f"{place.url}/p/06gzx0rcvbz008pmq2tvpfvnvc")
    await window.page.get_by_text("Ask the person who sent you this link, or your administrator,").wait_for()
    command = window.page.get_by_text("director token create")
    assert not await command.is_visible()
    await window.page.get_by_text("For operators").click()
    await command.wait_for()
    assert await window.barriers() == []
    assert window.faults == []


@pytest.mark.parametrize("way", ["link", "token", "proxy"])
async def test_log_in_goes_on_to_the_run_that_was_asked_for(
    chromium: tuple[Any, str], browser: Any, place: Place, painter: PlayedDirector, ann: str, way: str
) -> None:
    made = await paint(place, painter, ann, [PIXEL])
    if way == "proxy":
        await Accounts(place.redis).create("page")
        await browser.set_extra_http_headers({"X-Forwarded-User": "ann"})
        server = place.redis.connection_pool.connection_kwargs
        env = {"TRUSTED_PROXIES": "127.0.0.1", "PROXY_USER_HEADER": "X-Forwarded-User", "PROXY_ROLES": "*=viewer"}
        url = f"unix://{server['path']}"
        async with live_api(url, env={f"DIRECTOR_{name}": value for name, value in env.items()}) as api:
            window = await tab(browser, chromium, f"{api.url}/p/{made}")
            await window.page.get_by_role("heading", name=PROMPT).wait_for()
        return
    first = await tab(browser, chromium, f"{place.url}/p/{made}")
    await first.page.get_by_label("Token").wait_for()
    if way == "token":
        await first.page.get_by_label("Token").fill(ann)
        await first.page.get_by_role("button", name="Log in").click()
    else:
        window = await tab(browser, chromium, await make_link(place, ann))
        await window.page.get_by_role("button", name="Log in").click()
        await is_at(window, place, f"/predictions/{made}")
        await window.page.get_by_role("heading", name=PROMPT).wait_for()
    await is_at(first, place, f"/predictions/{made}")
    await first.page.get_by_role("heading", name=PROMPT).wait_for()
    later = await tab(browser, chromium, await make_link(place, ann))  # it was gone to, this once
    await later.page.get_by_role("button", name="Log in").click()
    await is_at(later, place, "/")


async def test_link_to_a_run_logs_in_and_shows_it(
    chromium: tuple[Any, str], browser: Any, place: Place, painter: PlayedDirector, ann: str
) -> None:
    made = await paint(place, painter, ann, [PIXEL])
    for to, view in (
        (f"/p/{made}", f"/predictions/{made}"),
        (f"/{PAINTER}?run={made}", f"/models/{PAINTER}?run={made}"),
    ):
        window = await tab(browser, chromium, await make_link(place, ann, to=to))
        await window.page.get_by_role("button", name="Log in").click()
        await is_at(window, place, view)
        assert window.faults == []
        await window.page.close()


@pytest.mark.parametrize(
    "to",
    [
        *("//evil.example", "https://evil.example/", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)"),
        *("/%5cevil.example", "%2F%2Fevil.example", "/%2Fevil.example", "/\tevil", "", "/nothing/of/this"),
    ],
)
async def test_log_in_leads_to_no_other_place(
    chromium: tuple[Any, str], browser: Any, place: Place, ann: str, to: str
) -> None:
    link = await make_link(place, ann)
    window = await tab(browser, chromium, place.url)
    await window.page.get_by_label("Token").wait_for()
    await window.page.evaluate(
        "([link, to]) => { location.href = `${link}?to=${encodeURIComponent(to)}`; }", [link, to]
    )
    await window.page.get_by_text("As umbrella").wait_for()
    await window.page.get_by_role("button", name="Log in").click()
    await is_at(window, place, "/")


async def test_used_link_says_so_at_once_and_goes_on_where_a_session_lives(
    chromium: tuple[Any, str], browser: Any, place: Place, ann: str
) -> None:
    link = f"{await make_link(place, ann)}?to=/models"
    window = await tab(browser, chromium, link)
    await window.page.get_by_role("button", name="Log in").click()
    await is_at(window, place, "/models")
    again = await tab(browser, chromium, link)
    await is_at(again, place, "/models")
    await again.page.locator(".notice", has_text="You are still logged in as umbrella.").wait_for()
    assert again.faults == []
    other = await chromium[0].new_context(viewport=NARROW)
    stranger = await tab(other, chromium, link)
    await stranger.page.get_by_role("heading", name="This link no longer works").wait_for()
    await stranger.page.get_by_text("Ask the person who sent it, or your administrator, for another one.").wait_for()
    assert await stranger.page.get_by_role("button", name="Log in").count() == 0
    assert await stranger.barriers() == []
    assert stranger.faults == []
    await other.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_run_of_another_account_is_refused_in_plain_words(
    chromium: tuple[Any, str], place: Place, ann: str, theme: str
) -> None:
    made = await place.submit("other")
    window, context = await opened(chromium, ann, viewport=NARROW, color_scheme=theme)
    for view in (f"/predictions/{made}", "/models/other/has-this"):
        await window.page.goto(f"{place.url}/#{view}")
        said = window.page.get_by_text("it belongs to another account than yours, which is umbrella.")
        await said.wait_for()
        assert "ask the person who sent it for a log-in link" in await said.inner_text()
        assert await window.barriers() == []
    assert await window.page.get_by_role("button", name="Copy link").count() == 0
    await context.close()


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_run_is_called_by_model_and_prompt_with_its_link_at_hand(
    chromium: tuple[Any, str], place: Place, painter: PlayedDirector, ann: str, size: dict[str, int]
) -> None:
    made = await paint(place, painter, ann, [PIXEL], count=2)
    window, context = await opened(chromium, ann, viewport=size)
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    await window.page.goto(f"{place.url}/p/{made}")
    title = window.page.get_by_role("heading", name=f"{PAINTER}: “{PROMPT}” · count: 2")
    await title.wait_for()
    assert await window.page.title() == f"{PAINTER}: “{PROMPT}” · count: 2 · Director"
    button = window.page.get_by_role("button", name="Copy link")
    place_of = await button.bounding_box()
    assert place_of is not None
    assert place_of["y"] + place_of["height"] < size["height"] / 3
    await button.click()
    await window.page.locator(".notice", has_text="Copied.").wait_for()
    assert await window.page.evaluate("() => navigator.clipboard.readText()") == f"{place.url}/p/{made}"
    assert await window.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    assert await window.barriers() == []
    assert window.faults == []
    await context.close()


async def test_output_says_which_input_made_it_also_when_the_form_has_another(
    chromium: tuple[Any, str], place: Place, painter: PlayedDirector, ann: str
) -> None:
    await paint(place, painter, ann, [PIXEL], light="dawn", count=1)  # of which the count is the default
    window, context = await opened(chromium, ann, viewport=WIDE)
    await window.page.goto(f"{place.url}/#/models/{PAINTER}")
    made_from = window.page.get_by_role("region", name="Result").locator(".made")
    await made_from.wait_for()
    assert await made_from.inner_text() == f"Made from “{PROMPT}” · light: dawn"
    await window.page.get_by_label("Prompt").fill("another")
    assert await made_from.inner_text() == f"Made from “{PROMPT}” · light: dawn"
    assert window.faults == []
    await context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("view", ["/", "/predictions"])
async def test_lists_show_the_first_picture_in_a_box_that_keeps_its_size(
    chromium: tuple[Any, str], place: Place, painter: PlayedDirector, view: str, theme: str
) -> None:
    ann = await Accounts(place.redis).create_token(f"wayne-{theme}", scopes=("read", "run"))
    made = await paint(place, painter, ann, ["a caption", PIXEL, GONE])
    expired = await paint(place, painter, ann, [f"{place.url}{GONE}"])
    text = await paint(place, painter, ann, "only words")
    elsewhere = await paint(place, painter, ann, ["https://elsewhere.example/spy.png"])
    window, context = await opened(chromium, ann, viewport=WIDE, color_scheme=theme)
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))
    await window.page.goto(f"{place.url}/#{view}")

    def box_of(run: str) -> Any:
        return window.page.get_by_role("row").filter(has=window.page.get_by_role("link", name=run)).locator(".thumb")

    picture = box_of(made).locator("img")
    await picture.wait_for()
    assert [await picture.get_attribute(name) for name in ("src", "loading", "alt")] == [PIXEL, "lazy", ""]
    await box_of(expired).get_by_title("This picture cannot be loaded.").wait_for()
    assert [await box_of(run).count() for run in (text, elsewhere)] == [0, 0]
    sizes = [await box_of(run).bounding_box() for run in (made, expired)]
    assert [(size["width"], size["height"]) for size in sizes] == [(48, 36)] * 2
    assert [url for url in asked if "elsewhere" in url] == []
    assert sum(GONE in url for url in asked) == 1, "a list that is drawn again does not ask for it"
    assert await window.barriers() == []
    await window.page.get_by_role("link", name=made).click()
    await window.page.get_by_role("complementary").get_by_role("heading", name=PROMPT).wait_for()
    assert not await box_of(made).is_visible(), "beside the run there is no room for it"
    await context.close()


async def test_operator_sees_the_pictures_of_all_accounts(
    chromium: tuple[Any, str], place: Place, painter: PlayedDirector, ann: str
) -> None:
    made = await paint(place, painter, ann, [PIXEL, "many words " * 40])  # of which the list has the begin
    window, context = await opened(chromium, place.token, viewport=WIDE)
    await window.page.goto(f"{place.url}/#/predictions?account=umbrella")
    row = window.page.get_by_role("row").filter(has=window.page.get_by_role("link", name=made))
    await row.locator(".thumb img").wait_for()
    assert await row.locator(".thumb img").get_attribute("src") == PIXEL
    assert window.faults == []
    await context.close()


@pytest.mark.parametrize(("locale", "words"), [("en-GB", ("today", "yesterday")), ("de-DE", ("heute", "gestern"))])
async def test_dates_are_of_the_readers_place_with_the_whole_on_hover(
    chromium: tuple[Any, str], place: Place, locale: str, words: tuple[str, str]
) -> None:
    made = await place.submit()
    window, context = await opened(chromium, place.token, locale=locale, timezone_id="UTC")
    await window.page.goto(f"{place.url}/#/predictions/{made}")
    shown = window.page.locator("main time").first
    await shown.wait_for()
    at = datetime.fromisoformat(str(await shown.get_attribute("datetime")))
    assert re.fullmatch(rf"({words[0]}|{words[1]}) {at:%H:%M}", await shown.inner_text())
    assert str(at.year) in str(await shown.get_attribute("title"))
    assert await shown.get_attribute("lang") == locale
    day = """async (at) => (await import("/dashboard/format.js")).day(at)"""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    said = [
        await window.page.evaluate(day, (midnight + timedelta(minutes=minutes)).isoformat())
        for minutes in (0, -1, -24 * 60, -24 * 60 - 1)
    ]
    assert [one.split(" ")[0] for one in said[:3]] == [words[0], words[1], words[1]]
    assert (midnight - timedelta(days=1, minutes=1)).strftime("%Y") in said[3]
    await context.close()


async def test_home_of_a_person_begins_with_what_she_can_run(
    chromium: tuple[Any, str], place: Place, painter: PlayedDirector, ann: str
) -> None:
    made = await paint(place, painter, ann, [PIXEL])
    for size in (WIDE, NARROW):
        window, context = await opened(chromium, ann, viewport=size)
        await window.page.goto(f"{place.url}/#/")
        card = window.page.get_by_role("listitem").filter(has=window.page.get_by_role("link", name=PAINTER))
        await card.locator(".cover").wait_for()
        await card.locator(".chip").wait_for()
        await window.page.get_by_role("link", name=made).wait_for()
        heads = await window.page.locator("main h2").all_inner_texts()
        assert heads[:2] == ["Models", "Recent runs"]
        assert await window.barriers() == []
        assert window.faults == []
        await context.close()


async def test_counts_of_a_model_follow_its_runs(
    chromium: tuple[Any, str], place: Place, painter: PlayedDirector, ann: str
) -> None:
    await paint(place, painter, ann, [PIXEL])
    window, context = await opened(chromium, ann, viewport=WIDE)
    await window.page.goto(f"{place.url}/#/models/{PAINTER}")
    runs = window.page.locator(".model-head .facts div").filter(has_text=re.compile("^Runs")).locator("dd")
    before = int(await runs.inner_text())
    await window.page.get_by_label("Prompt").fill("one more")
    await window.page.get_by_role("button", name="Run").click()
    claim = await painter.claim()
    await painter.finish(claim, output=json.dumps([PIXEL]).encode(), seq=await painter.begin(claim))
    await window.page.get_by_role("region", name="Result").get_by_text("succeeded").wait_for()
    await window.page.wait_for_function(
        "(wanted) => [...document.querySelectorAll('.model-head dd')].some((one) => one.textContent === wanted)",
        arg=str(before + 1),
        timeout=3_000,  # less than the next look of the page
    )
    assert window.faults == []
    await context.close()


async def test_output_is_directly_beneath_the_form_on_a_telephone(
    chromium: tuple[Any, str], place: Place, painter: PlayedDirector, ann: str
) -> None:
    await paint(place, painter, ann, [PIXEL])
    window, context = await opened(chromium, ann, viewport=NARROW)
    await window.page.goto(f"{place.url}/#/models/{PAINTER}")
    result = window.page.get_by_role("region", name="Result")
    await window.page.get_by_role("region", name="Runs of your account").get_by_role("link").first.wait_for()
    parts = [
        window.page.get_by_label("Prompt"),
        window.page.get_by_role("button", name="Run"),
        result,
        window.page.get_by_role("region", name="Runs of your account"),
    ]
    boxes = [await part.bounding_box() for part in parts]
    assert [box["y"] for box in boxes] == sorted(box["y"] for box in boxes)
    form = await window.page.get_by_role("form", name="Input").bounding_box()
    assert 0 <= boxes[2]["y"] - (form["y"] + form["height"]) < 40, "nothing is between"
    await window.page.get_by_label("Prompt").fill("from the phone")
    await window.page.get_by_role("button", name="Run").click()
    claim = await painter.claim()
    await painter.finish(claim, output=json.dumps([PIXEL]).encode(), seq=await painter.begin(claim))
    await result.get_by_text("from the phone").wait_for()
    top = (await result.bounding_box())["y"]
    assert 0 <= top < NARROW["height"] / 3, "it is in view"
    assert window.faults == []
    await context.close()
