"""Test the frame of the page in a real browser: sections, palette, keys, drawer, side panel, and filters."""

import re
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
import pytest

from director.core.clock import SystemClock
from director.core.policy import Policy
from director.store.accounts import ROLES, Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.integration.dashboard.conftest import ACCOUNT, MODEL, Place, opened
from tests.support.browser import Window
from tests.support.eventually import eventually
from tests.support.queue_driver import VERSION

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package

WIDE: Final = {"width": 1440, "height": 900}
NARROW: Final = {"width": 390, "height": 844}
OPERATE: Final = ["Home", "Queues", "Dead letters", "Webhooks", "Directors"]
MANAGE: Final = ["Accounts", "Usage", "Changes", "System"]
USE: Final = ["Models", "Deployments", "Predictions", "Batches"]
USER: Final = ("read", "run")
ROUNDS: Final = 20  # times that each of 16 views is opened
MOST_GROWTH: Final = {"Nodes": 1.2, "JSEventListeners": 1.2, "JSHeapUsedSize": 1.3, "Documents": 1.0}


@pytest.fixture
async def window(chromium: tuple[Any, str], place: Place) -> AsyncIterator[Window]:
    window, context = await opened(chromium, place.token, viewport=WIDE)
    yield window
    await context.close()


async def token_of(place: Place, account: str, scopes: tuple[str, ...]) -> str:
    return await Accounts(place.redis).create_token(account, scopes=scopes)


async def create(place: Place, **body: Any) -> str:
    async with place.caller() as caller:
        made = await caller.post(f"/v1/models/{MODEL}/predictions", json={"input": {}, **body})
    return str(made.json()["id"])


async def see(window: Window, place: Place, view: str, heading: str) -> None:
    await window.page.goto(f"{place.url}/#{view}")
    await window.page.get_by_role("heading", name=heading).first.wait_for()


async def address(window: Window) -> str:
    return str(await window.page.evaluate("() => location.hash"))


async def goes_to(window: Window, wanted: str) -> None:
    async def is_there() -> bool:
        return bool(re.fullmatch(wanted, await address(window)))

    await eventually(is_there, f"the address is {wanted}")


async def focus_is_in(window: Window, selector: str) -> bool:
    return bool(await window.page.evaluate("(within) => Boolean(document.activeElement.closest(within))", selector))


async def find(window: Window, words: str) -> None:
    """Open the palette by keys alone and type these words, until something is found."""
    await window.page.keyboard.press("Control+k")
    await window.page.locator("#palette-field").wait_for()
    await window.page.keyboard.type(words)


async def chosen(window: Window) -> str:
    """Return the name of the line that Enter would take."""
    return str(await window.page.locator("#palette-list [aria-selected=true] .name").inner_text())


@pytest.mark.parametrize(
    ("scopes", "groups", "role"),
    [
        (ROLES["admin"], {"Use": USE, "Operate": OPERATE, "Manage": MANAGE}, "admin"),
        (ROLES["viewer"], {"Use": USE, "Operate": OPERATE, "Manage": MANAGE}, "viewer"),
        (USER, {"Use": ["Home", *USE], "Manage": ["Usage"]}, "user"),
    ],
    ids=["admin", "viewer", "user"],
)
async def test_sidebar_has_the_sections_of_the_person(
    chromium: tuple[Any, str], place: Place, scopes: tuple[str, ...], groups: dict[str, list[str]], role: str
) -> None:
    window, context = await opened(chromium, await token_of(place, "tyrell", scopes), viewport=WIDE)
    await see(window, place, "/", "Home")
    found = {}
    for group in await window.page.locator("#nav [role=group]").all():
        found[str(await group.get_attribute("aria-label"))] = await group.locator("a .name").all_inner_texts()
    assert found == groups
    assert await window.page.locator("#who").inner_text() == f"tyrell {role}"
    # a service without batches answers the browser 404, which its console calls an error
    for name in [each for names in groups.values() for each in names if each not in ("Home", "Batches")]:
        link = window.page.locator("#nav").get_by_role("link", name=name)
        await link.click()
        await window.page.locator("#nav a[aria-current=page]").get_by_text(name).wait_for()
        await window.page.locator("main h1").wait_for()
    assert window.faults == []
    await context.close()


async def test_section_counts_what_needs_a_person(window: Window, place: Place) -> None:
    claim = await place.claimed(await create(place))  # type: ignore[arg-type]
    await place.scripts.release(claim.id, token=claim.token, spent=True, error="Lost.", code="server_lost")
    await see(window, place, "/queues", "Queues")
    await window.page.get_by_role("link", name=re.compile(r"Dead letters\s*\d+")).wait_for()
    row = window.page.get_by_role("row").filter(has=window.page.get_by_role("link", name=place.queue))
    await row.wait_for()
    await window.page.get_by_label("Filter by name").fill("no such queue")
    await row.wait_for(state="detached")
    await window.page.reload()
    assert await window.page.get_by_label("Filter by name").input_value() == "no such queue"
    assert window.faults == []


async def test_palette_goes_and_acts_by_keyboard_alone(window: Window, place: Place) -> None:
    await see(window, place, "/", "Home")
    await find(window, "painter")

    async def is_model() -> bool:
        return MODEL in await window.page.locator("#palette-list .name").all_inner_texts()

    await eventually(is_model, "the model is found")
    while await chosen(window) != MODEL:
        await window.page.keyboard.press("ArrowDown")
    pointed = await window.page.locator("#palette-field").get_attribute("aria-activedescendant")
    assert await window.page.locator(f"#{pointed}").get_attribute("aria-selected") == "true"
    await window.page.keyboard.press("Enter")
    await goes_to(window, f"#/[a-z]+/{MODEL}")
    for act, told in (("Pause", "Nothing of this queue is handed out"), ("Resume", "It is handed out again")):
        await find(window, f"{act.lower()} paint")
        await window.page.locator("#palette-list").get_by_text(f"{act} {place.queue}").wait_for()
        assert await chosen(window) == f"{act} {place.queue}"
        await window.page.keyboard.press("Enter")
        if act == "Pause":  # it is asked for again
            await window.page.get_by_text("Nothing of it starts until it is resumed").wait_for()
            await window.page.keyboard.press("Tab")
            await window.page.keyboard.press("Enter")
        await window.page.locator(".notice").get_by_text(told).wait_for()

        async def is_known(wanted: bool = act == "Pause") -> bool:
            seen = await window.page.evaluate(
                "async () => (await import('/dashboard/session.js')).session.live.last.queues[0].paused"
            )
            return bool(seen) is wanted

        await eventually(is_known, "the feed has it")
    assert window.faults == []


async def test_palette_finds_ids_and_closes_by_escape(window: Window, place: Place) -> None:
    made = await create(place)
    await see(window, place, "/system", "System")
    await window.page.keyboard.press("/")
    await window.page.locator("#palette-field").wait_for()
    await window.page.keyboard.press("Escape")
    await window.page.locator("#palette-field").wait_for(state="detached")
    await find(window, made)
    assert await chosen(window) == made
    await window.page.keyboard.press("Enter")
    await goes_to(window, f"#/predictions/{made}")
    await find(window, "")
    await window.page.locator("#palette-list").get_by_text("seen before").wait_for()
    await window.page.keyboard.type("zzqqxx")
    await window.page.get_by_text("Nothing is called like this").wait_for()


async def test_palette_offers_only_what_the_person_may_do(chromium: tuple[Any, str], place: Place) -> None:
    for scopes, words, is_found in (
        (USER, "pause", False),
        (USER, "token", False),
        (ROLES["viewer"], "pause", False),
        (ROLES["operator"], "pause", True),
        (ROLES["operator"], "token", False),
        (ROLES["admin"], "token", True),
    ):
        window, context = await opened(chromium, await token_of(place, "tyrell", scopes), viewport=WIDE)
        asked: list[str] = []
        window.page.on("request", lambda request, asked=asked: asked.append(request.url))
        await see(window, place, "/usage", "Usage")
        if scopes is not USER:  # the lines of queues come with the feed
            await window.page.wait_for_function(
                "async () => Boolean((await import('/dashboard/session.js')).session.live.last)"
            )
        await find(window, "")
        await window.page.locator("#palette-list .name").get_by_text(MODEL, exact=True).wait_for()
        await window.page.keyboard.type(words)  # when all names are there
        lines = await window.page.locator("#palette-list .name").all_inner_texts()
        assert any(line.lower().startswith((words, f"new {words}")) for line in lines) is is_found
        if scopes is USER:
            assert [url for url in asked if "/admin/" in url] == []
        await context.close()


async def test_dialogs_close_beside_them_and_not_within(window: Window, place: Place) -> None:
    await see(window, place, "/", "Home")
    for key, name in (("?", "Keys"), ("/", "Find")):
        await window.page.keyboard.press(key)
        opened_one = window.page.get_by_role("dialog", name=name)
        box = await opened_one.bounding_box()
        assert box is not None
        await window.page.mouse.click(box["x"] + 3, box["y"] + 3)
        await window.page.mouse.click(box["x"] + 3, box["y"] + box["height"] - 3)
        assert await opened_one.count() == 1
        await window.page.mouse.click(box["x"] - 20, box["y"] + 20)
        await opened_one.wait_for(state="detached")


async def test_keys_are_listed_and_lead_to_sections(window: Window, place: Place) -> None:
    await see(window, place, "/", "Home")
    await window.page.keyboard.press("?")
    keys = window.page.get_by_role("dialog", name="Keys")
    await keys.get_by_text("Dead letters").wait_for()
    assert await window.barriers() == []
    await window.page.keyboard.press("Escape")
    await keys.wait_for(state="detached")
    await window.page.keyboard.press("g")
    await window.page.keyboard.press("d")
    await goes_to(window, "#/dead")
    await see(window, place, "/queues", "Queues")
    await window.page.get_by_label("Filter by name").focus()
    await window.page.keyboard.type("gp?/")  # letters, while a field has the focus
    assert await window.page.get_by_label("Filter by name").input_value() == "gp?/"
    assert await window.page.get_by_role("dialog").count() == 0


async def test_drawer_keeps_the_focus_until_escape(chromium: tuple[Any, str], place: Place) -> None:
    window, context = await opened(chromium, place.token, viewport=NARROW)
    await see(window, place, "/predictions", "Predictions")
    menu = window.page.get_by_role("button", name="Menu", exact=True)
    await menu.focus()
    await window.page.keyboard.press("Enter")
    await window.page.get_by_role("dialog", name="Sections").wait_for()
    for _ in range(2 * len(USE + OPERATE + MANAGE)):
        await window.page.keyboard.press("Tab")
        assert await focus_is_in(window, "#side")
    await window.page.keyboard.press("Shift+Tab")
    assert await focus_is_in(window, "#side")
    assert await window.barriers() == []
    await window.page.keyboard.press("Escape")
    await window.page.get_by_role("dialog").wait_for(state="detached")
    assert await focus_is_in(window, "#menu")
    assert window.faults == []
    await context.close()


async def test_row_opens_beside_its_list(window: Window, place: Place) -> None:
    made = [await create(place) for _ in range(3)]
    await see(window, place, "/predictions?status=starting", "Predictions")
    await window.page.get_by_role("link", name=made[2]).focus()
    await window.page.keyboard.press("Enter")
    panel = window.page.get_by_role("complementary")
    await panel.locator(".id-of", has_text=made[2]).wait_for()
    await panel.get_by_role("heading", name="Timeline").wait_for()
    assert await window.page.locator("main").get_by_role("link", name=made[0]).is_visible()
    assert await address(window) == f"#/predictions?status=starting&show={made[2]}"
    assert await focus_is_in(window, "#panel")
    assert await window.barriers() == []
    await window.page.keyboard.press("j")  # the next row, and the panel follows
    await panel.locator(".id-of", has_text=made[1]).wait_for()
    assert await window.page.locator("tr.shown").get_by_role("link", name=made[1]).count() == 1
    await window.page.reload()
    await panel.locator(".id-of", has_text=made[1]).wait_for()
    await window.page.locator("main").get_by_role("link", name=made[1]).wait_for()
    await window.page.keyboard.press("Escape")
    await panel.wait_for(state="hidden")
    assert await address(window) == "#/predictions?status=starting"
    assert await window.page.evaluate("() => document.activeElement.textContent") == made[1]
    await window.page.get_by_role("row").filter(has_text=made[0]).get_by_text(MODEL).click()  # anywhere in the row
    await panel.get_by_role("link", name="Full view").click()
    await goes_to(window, f"#/predictions/{made[0]}")
    await panel.wait_for(state="hidden")
    assert window.faults == []


async def test_row_leads_to_the_full_view_on_a_telephone(chromium: tuple[Any, str], place: Place) -> None:
    made = await create(place)
    window, context = await opened(chromium, place.token, viewport=NARROW)
    await see(window, place, "/predictions", "Predictions")
    await window.page.get_by_role("link", name=made).click()
    await goes_to(window, f"#/predictions/{made}")
    await window.page.goto(f"{place.url}/#/predictions?show={made}")  # from a colleague with a wide window
    await goes_to(window, f"#/predictions/{made}")
    await window.page.locator("main").get_by_role("heading", name="Timeline").wait_for()
    assert window.faults == []
    await context.close()


async def test_left_view_is_replaced_and_the_list_is_not(window: Window, place: Place) -> None:
    """The list under a panel stays as it is: it is not asked for again from its begin."""
    made = await create(place)
    await see(window, place, "/predictions", "Predictions")
    await window.page.get_by_role("link", name=made).wait_for()
    await window.page.locator("main section").evaluate("(one) => { one.dataset.mine = 'yes'; }")
    await window.page.get_by_role("link", name=made).click()
    await window.page.get_by_role("complementary").locator(".id-of", has_text=made).wait_for()
    await window.page.get_by_role("button", name="Close the panel").click()
    await window.page.get_by_role("complementary").wait_for(state="hidden")
    assert await window.page.locator("main section[data-mine]").count() == 1


async def test_tab_of_a_model_is_the_view_that_the_address_says(window: Window, place: Place) -> None:
    made = await create(place)
    await see(window, place, f"/models/{MODEL}/versions", MODEL)
    tabs = window.page.get_by_role("navigation", name="Parts of this model")
    await tabs.get_by_role("link", name="Playground").click()
    await goes_to(window, f"#/models/{MODEL}")
    await window.page.locator(".model-head a.mono").click()  # its version, which leads back
    await goes_to(window, f"#/models/{MODEL}/versions")
    await tabs.locator("[aria-current=page]", has_text="Versions").wait_for()
    await tabs.get_by_role("link", name="Runs").click()
    await window.page.locator("main article").evaluate("(one) => { one.dataset.mine = 'yes'; }")
    await window.page.get_by_role("row").get_by_role("link", name=made, exact=True).click()
    await window.page.get_by_role("complementary").locator(".id-of", has_text=made).wait_for()
    assert await window.page.locator("main article[data-mine]").count() == 1, "the view beside the panel stays"
    await tabs.get_by_role("link", name="API", exact=True).click()
    await goes_to(window, re.escape(f"#/models/{MODEL}/api?show={made}"))
    await window.page.get_by_role("button", name="Close the panel").click()
    await goes_to(window, f"#/models/{MODEL}/api")
    assert await window.page.locator("main article[data-mine]").count() == 1
    assert window.faults == []


async def test_filters_have_choices_and_survive_a_reload(window: Window, place: Place) -> None:
    await see(window, place, "/predictions", "Predictions")
    await window.page.locator(f"#by-model-known option[value='{MODEL}']").wait_for(state="attached")
    await window.page.locator(f"#by-account-known option[value='{ACCOUNT}']").wait_for(state="attached")
    await window.page.get_by_label("Model").fill(MODEL)
    await window.page.get_by_label("Account").fill(ACCOUNT)
    await window.page.get_by_label("Status").select_option("failed")
    await window.page.get_by_role("button", name="Filter").click()
    asked = re.escape(f"?status=failed&model={MODEL.replace('/', '%2F')}&account={ACCOUNT}")
    await goes_to(window, f"#/predictions{asked}")
    await window.page.reload()
    await window.page.get_by_role("link", name="Clear", exact=True).wait_for()
    fields = [await window.page.get_by_label(name).input_value() for name in ("Model", "Account", "Status")]
    assert fields == [MODEL, ACCOUNT, "failed"]
    await window.page.goto(f"{place.url}/#/dead?queue={place.queue}")
    await window.page.reload()
    assert await window.page.get_by_label("Queue").input_value() == place.queue
    assert window.faults == []


async def test_prediction_has_one_word_for_its_state_in_every_view(window: Window, place: Place) -> None:
    made = await create(place)
    for view in ("/predictions", f"/queues/{place.queue}"):
        await window.page.goto(f"{place.url}/#{view}")
        row = window.page.get_by_role("row").filter(has=window.page.get_by_role("link", name=made))
        chip = row.locator(".chip")
        await row.get_by_text("starting", exact=True).wait_for()
        assert "waits for its turn" in str(await chip.get_attribute("title"))


async def test_rows_show_previews_as_text_alone(chromium: tuple[Any, str], place: Place) -> None:
    await place.submit("umbrella")
    window, context = await opened(chromium, await token_of(place, "umbrella", USER), viewport=WIDE)
    await see(window, place, "/", "Home")
    written = """async (value) => (await import('/dashboard/views/parts.js')).preview(value)"""
    for value, words in (
        ({"text": "<b>moin</b>", "n": 4}, "text: <b>moin</b> · n: 4"),
        (["mo", "in"], "moin"),
        (["https://files.example/a/cat.png?sig=1", "https://files.example/b.png"], "cat.png, b.png"),
        ({"image": "data:image/png;base64,AAAA"}, "image: image/png file"),
        ("a\n" * 500, "a " * 59 + "a…"),
        (None, ""),
    ):
        assert await window.page.evaluate(written, value) == words
    assert window.faults == []
    await context.close()


async def test_plain_user_has_a_home_without_the_operators_routes(chromium: tuple[Any, str], place: Place) -> None:
    token = await token_of(place, "umbrella", USER)
    window, context = await opened(chromium, token, viewport=WIDE)
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))
    made = await place.submit("umbrella")
    await see(window, place, "/", "Home")
    await window.page.get_by_role("region", name="Recent runs").get_by_role("link", name=made).wait_for()
    await window.page.get_by_role("link", name=MODEL).wait_for()
    await window.page.get_by_role("button", name="Show the secret").click()
    await window.page.get_by_text(re.compile("^whsec_")).wait_for()
    assert [url for url in asked if "/admin/" in url] == []
    assert await window.barriers() == []
    assert window.faults == []
    await context.close()


async def test_home_of_a_user_asks_again_after_a_failure(chromium: tuple[Any, str], place: Place) -> None:
    window, context = await opened(chromium, await token_of(place, "umbrella", USER), viewport=WIDE)
    asked: list[str] = []

    async def fail_once(route: Any) -> None:
        asked.append(route.request.url)
        await (route.continue_() if len(asked) > 1 else route.fulfill(status=503, body="{}"))

    await window.page.route("**/v1/usage?by=model", fail_once)
    await see(window, place, "/", "Home")
    await window.page.locator("main .trouble").wait_for()
    await window.page.locator("main .tiles").wait_for()
    assert await window.page.locator("main .trouble").count() == 0
    await context.close()


async def test_button_at_work_keeps_the_focus_when_its_view_is_drawn_again(window: Window, place: Place) -> None:
    await see(window, place, "/system", "System")
    drawn_twice = """
        async () => {
            const { h, refill } = await import('/dashboard/dom.js');
            const { action } = await import('/dashboard/views/parts.js');
            const box = h('div');
            document.body.append(box);
            let times = 0;
            const act = () => { times += 1; return new Promise(() => {}); };
            const draw = (name) => refill(box, action(name, act, { needs: '' }));
            draw('Go');
            const button = box.firstChild;
            button.focus();
            button.click();
            button.click();
            draw('Go');
            const isKept = document.activeElement === button;
            draw('Come');
            return [isKept, times, box.textContent];
        }
    """
    assert await window.page.evaluate(drawn_twice) == [True, 1, "Come"]


async def test_tab_follows_another_person_who_logs_in(chromium: tuple[Any, str], place: Place) -> None:
    started, script = chromium
    context = await started.new_context(viewport=WIDE)
    context.set_default_timeout(20_000)
    first, second = [Window(await context.new_page(), script) for _ in range(2)]
    await second.page.goto(place.url)
    for account, token, role in (
        ("acme", place.token, "admin"),
        ("tyrell", await token_of(place, "tyrell", USER), "user"),
    ):
        await first.page.goto(f"{place.url}/#/usage")
        await first.page.get_by_label("Token").wait_for()
        await second.page.get_by_label("Token").fill(token)
        await second.page.get_by_role("button", name="Log in").click()
        for each in (first, second):
            await each.page.locator("#who", has_text=f"{account} {role}").wait_for()
        assert (await first.page.get_by_role("link", name="Accounts").count() > 0) is (role == "admin")
        if role == "admin":
            await second.page.get_by_role("button", name="Log out").click()
    # without a log-out between them: a link takes the browser over
    async with place.caller() as caller:
        link = (await caller.post("/v1/account/login-link", json={"role": "viewer"})).json()["url"]
    await second.page.goto(link)
    await second.page.get_by_role("button", name="Log in").click()
    await first.page.locator("#who", has_text="acme viewer").wait_for()
    await first.page.get_by_role("link", name="Accounts").wait_for()
    await context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_states_of_the_frame_have_no_accessibility_violation(
    chromium: tuple[Any, str], place: Place, theme: str, size: dict[str, int]
) -> None:
    made = await create(place)
    window, context = await opened(chromium, place.token, viewport=size, color_scheme=theme)
    for view, heading in (
        ("/queues", "Queues"),
        ("/batches", "Batches"),
        ("/predictions?status=aborted", "Predictions"),
        ("/usage?month=2001-01", "Usage in"),
        ("/dead?queue=acme/none:0123456789ab", "Dead letters"),
        (f"/predictions?show={made}", MODEL if size is NARROW else "Predictions"),
    ):
        await see(window, place, view, heading)
        assert await window.barriers() == [], view
        assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    await find(window, "a")
    await window.page.locator("#palette-list [role=option]").first.wait_for()
    assert await window.barriers() == []
    await context.close()


async def test_page_that_changes_views_does_not_grow(window: Window, place: Place) -> None:
    """A page is open for a day: what a view began ends with it, and its nodes are collected."""
    made = [await create(place) for _ in range(5)]
    views = ["/", "/queues", f"/queues/{place.queue}", "/predictions", f"/predictions?show={made[0]}", "/dead"]
    views += ["/webhooks", "/directors", "/accounts", f"/accounts/{ACCOUNT}", "/usage", "/audit", "/system"]
    views += [f"/predictions/{made[1]}", "/models", f"/models/{MODEL}"]
    tool = await window.page.context.new_cdp_session(window.page)
    await tool.send("Performance.enable")
    await see(window, place, "/", "Home")

    async def measure() -> dict[str, float]:
        for _ in range(2):
            await tool.send("HeapProfiler.collectGarbage")
        found = (await tool.send("Performance.getMetrics"))["metrics"]
        return {one["name"]: one["value"] for one in found}

    async def change(rounds: int) -> None:
        for _ in range(rounds):
            for view in views:
                await window.page.evaluate("(view) => { location.hash = `#${view}`; }", view)
                await window.page.locator("main h1").first.wait_for()
            await window.page.get_by_role("button", name="Run", exact=True).click()  # and the view is left at once
        await see(window, place, "/system", "System")
        await window.page.get_by_role("rowheader", name="DIRECTOR_PORT").wait_for()

    await change(3)
    before = await measure()
    await change(ROUNDS)

    async def is_as_before() -> bool:
        """A request that is still on its way holds its view until then."""
        after = await measure()
        return all(after[name] <= most * before[name] for name, most in MOST_GROWTH.items())

    await eventually(is_as_before, "the nodes, listeners and heap are those of before", limit_s=30)
    assert window.faults == []


async def test_search_finds_models_beyond_those_that_are_shown(chromium: tuple[Any, str], place: Place) -> None:
    """A list of models has pages, and the palette knows 500 names. The service searches all of them."""
    catalog = Catalog(place.redis, place.scripts, SystemClock())
    names = [f"many/model-{number:03}" for number in range(600)]
    for name in names:
        await catalog.register(name, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy(attempts=1))
    token = await token_of(place, "tyrell", USER)
    window, context = await opened(chromium, token, viewport=WIDE)
    await see(window, place, "/models", "Models")
    await window.page.get_by_role("button", name="Show more").wait_for()
    shown = set(await window.page.locator(".model-card a").evaluate_all("(all) => all.map((one) => one.hash)"))
    far = next(name for name in names if f"#/models/{name}" not in shown)
    await window.page.get_by_label("Search models").fill(far)
    await window.page.locator(f".model-card a[href='#/models/{far}']").wait_for()
    await window.page.locator("main [role=status]").get_by_text("1 found").wait_for()
    known = await window.page.evaluate("async () => (await import('/dashboard/choices.js')).modelNames()")
    beyond = next(name for name in names if name not in known)
    await find(window, beyond.partition("/")[2])
    await window.page.locator("#palette-list").get_by_text(beyond).wait_for()
    await window.page.locator("#palette-field").fill("other/unknown")
    assert await chosen(window) == "other/unknown"
    await window.page.keyboard.press("Enter")
    await goes_to(window, "#/models/other/unknown")
    await context.close()


async def test_spread_letters_are_found_in_time_that_grows_slowly(window: Window, place: Place) -> None:
    await see(window, place, "/system", "System")
    score = "async ([text, words]) => (await import('/dashboard/palette.js')).score(text, words)"
    assert await window.page.evaluate(score, ["acme/painter", ["pnt"]]) > 0
    assert await window.page.evaluate(score, ["new token for acme", ["ntk"]]) == 0, "not over a space"
    assert await window.page.evaluate(score, ["acme/painter", ["cme"]]) > 0, "it is there as it is"
    assert await window.page.evaluate(score, ["acme/painter", ["ce"]]) == 0, "no word begins so"
    with anyio.fail_after(10):
        assert await window.page.evaluate(score, ["a" * 2_000, ["a" * 40 + "b"]]) == 0
