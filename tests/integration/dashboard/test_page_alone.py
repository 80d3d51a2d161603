"""Test the page for operators with simulated directors: crafted addresses, silent feeds, quick changes, findings."""

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from director.core.ids import QueueName
from director.operate.findings import Finding
from director.operate.kinds import CODES
from director.operate.overview import OwedCount, Snapshot
from director.operate.views import DeviceView, DirectorView, ModelOnDevice, ServerView
from director.store.accounts import Accounts
from tests.integration.dashboard.conftest import ACCOUNT, MODEL, Place, opened
from tests.support.browser import Window
from tests.support.eventually import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package

MOST_SHOWN: Final = 200_000
# the feed sends one message and then nothing
SILENT: Final = """
    const asks = window.fetch;
    window.asked = 0;
    window.fetch = (url, given) => {
        if (!String(url).includes("/admin/live")) return asks(url, given);
        window.asked += 1;
        const said = new TextEncoder().encode(": here\\n\\n");
        return Promise.resolve(new Response(new ReadableStream({ start: (to) => to.enqueue(said) })));
    };
"""


@pytest.fixture
async def window(chromium: tuple[Any, str], place: Place) -> AsyncIterator[Window]:
    window, context = await opened(chromium, place.token)
    yield window
    await context.close()


async def looked(window: Window, path: str) -> None:
    """Wait until the page has shown one more answer to this request."""
    async with window.page.expect_response(lambda answer: answer.url.endswith(path)) as answer:
        await (await answer.value).finished()
    await window.page.evaluate("() => new Promise((done) => setTimeout(done))")


async def focused(window: Window) -> Any:
    return await window.page.evaluate("document.activeElement.textContent")


async def test_crafted_page_address_sends_no_account_request(window: Window, place: Place) -> None:
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))
    for view in (
        "queues/..%2Faccounts%2Facme%2Fresume%3F:x",
        "tenants/..%2Faccounts%2Facme%3F:x",
        "models/..%2Faccounts/x",
    ):
        await window.page.goto(f"{place.url}/#/{view}")
        await window.page.get_by_role("heading", name="Not found").wait_for()
        await window.page.goto("about:blank")
    await window.page.goto(f"{place.url}/#/%E0%A4%A")
    await window.page.get_by_role("heading", name="Queues").wait_for()
    assert [url for url in asked if "/accounts/" in url] == []
    assert window.faults == []


async def test_skip_link_stays_in_the_view(window: Window, place: Place) -> None:
    await window.page.goto(f"{place.url}/#/dead")
    await window.page.get_by_role("heading", name="Dead letters").wait_for()
    await window.page.get_by_role("link", name="Skip to content").focus()
    await window.page.keyboard.press("Enter")
    assert await window.page.evaluate("document.activeElement.id") == "main"
    await window.page.get_by_role("heading", name="Dead letters").wait_for()


async def test_focused_element_keeps_the_focus_while_the_page_updates(window: Window, place: Place) -> None:
    made = await place.submit()
    await window.page.goto(f"{place.url}/#/predictions/{made}")
    await window.page.get_by_role("button", name="Cancel").focus()
    await looked(window, f"/predictions/{made}")
    await looked(window, f"/predictions/{made}/explain")
    assert await focused(window) == "Cancel"
    await window.page.goto(f"{place.url}/#/queues/{place.queue}")
    await window.page.get_by_role("button", name=f"Pause {ACCOUNT}").focus()
    await place.submit()  # the numbers change, but the button stays
    await looked(window, "history=0")
    await looked(window, "history=0")
    assert await focused(window) == "Pause"


async def test_newest_part_of_a_very_large_output_is_shown(window: Window, place: Place) -> None:
    async with place.caller() as caller:
        made = await caller.post(f"/v1/models/{MODEL}/predictions", json={"input": {}})
    claim = await place.claimed(made.json()["id"])
    await window.page.goto(f"{place.url}/#/predictions/{claim.id}")
    output = window.page.get_by_role("region", name="Output")
    await output.wait_for(state="attached")
    seq = claim.record.seq
    for number in range(20):
        events = [("output", b'"%sword %d "' % (b"and " * 25, number))] * 250
        seq = (await place.scripts.advance(claim.id, token=claim.token, seq=seq, ran_ms=0, events=events)).seq
    await output.get_by_text("word 19").wait_for()
    shape = "one => [one.childElementCount, one.querySelector('pre').childNodes.length]"
    assert await output.evaluate(shape) == [1, 1]
    assert len(await output.inner_text()) <= 2 * MOST_SHOWN


async def test_operator_follows_a_run_of_another_account(window: Window, place: Place) -> None:
    made = await place.submit("umbrella")
    await window.page.goto(f"{place.url}/#/predictions/{made}")
    await window.page.get_by_text("by umbrella").wait_for()
    await place.claimed(made)
    await window.page.get_by_text("attempt 1 on played").wait_for()
    assert window.faults == []


async def test_prediction_on_its_last_attempt_is_not_a_dead_letter(window: Window, place: Place) -> None:
    claim = await place.claimed(await place.submit())
    await window.page.goto(f"{place.url}/#/predictions/{claim.id}")
    await window.page.get_by_text("it is a dead letter").wait_for()  # the director sends no sign of life until then
    assert await window.page.get_by_role("heading", name="A dead letter").count() == 0


async def test_page_works_below_a_path_of_a_proxy(window: Window, place: Place) -> None:
    async def ours(route: Any, request: Any) -> None:
        await route.continue_(url=request.url.replace("/ops/", "/", 1))

    async def anothers(route: Any) -> None:
        await route.fulfill(status=404)

    await window.page.route("**/*", anothers)
    await window.page.route("**/ops/**", ours)
    made = await place.submit()
    await window.page.goto(f"{place.url}/ops/")
    await window.page.get_by_role("rowheader", name=place.queue).wait_for()
    await window.page.get_by_role("link", name="Director", exact=True).click()
    await window.page.goto(f"{place.url}/ops/#/predictions/{made}")
    await window.page.get_by_role("heading", name="Timeline").wait_for()
    assert window.faults == []


async def test_newest_change_is_listed_first(window: Window, place: Place) -> None:
    async with place.caller() as caller:
        for name in ("earlier", "later"):
            await caller.post("/v1/admin/accounts", json={"name": name})
    await window.page.goto(f"{place.url}/#/audit")
    await window.page.get_by_role("row").filter(has_text="earlier").wait_for()
    assert "later" in await window.page.locator("tbody tr").first.inner_text()


async def test_silent_feed_is_requested_again(window: Window, place: Place) -> None:
    """This happens when a network forgets the connection: no data arrives, and no error either."""
    await window.page.add_init_script(SILENT)
    await window.page.clock.install()
    await window.page.goto(f"{place.url}/#/")
    await window.page.locator("#feed").get_by_text("live").wait_for()
    await window.page.clock.fast_forward("00:29")
    assert await window.page.evaluate("asked") == 1
    await window.page.clock.fast_forward("00:03")

    async def is_asked() -> bool:
        return int(await window.page.evaluate("asked")) > 1

    await eventually(is_asked, "the feed is asked for again")


async def test_unavailable_service_is_asked_again_with_the_same_token(window: Window, place: Place) -> None:
    async def away(route: Any) -> None:
        await route.fulfill(status=503, json={"detail": "Redis cannot answer now."})

    await window.page.route("**/v1/account", away)
    await window.page.goto(place.url)
    await window.page.get_by_text("Redis cannot answer now.").wait_for()
    await window.page.unroute("**/v1/account")
    await window.page.get_by_role("rowheader", name=place.queue).wait_for()


async def test_token_without_admin_scope_shows_only_its_own_account(chromium: tuple[Any, str], place: Place) -> None:
    own, others = await place.submit("umbrella"), await place.submit()
    token = await Accounts(place.redis).create_token("umbrella", scopes=("read", "run"))
    window, context = await opened(chromium, token)
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))
    for view in (
        "/",
        "/directors",
        "/queues",
        "/dead",
        "/audit",
        "/accounts",
        "/webhooks",
        "/system",
        f"/queues/{place.queue}",
    ):
        await window.page.goto(f"{place.url}/#{view}")
        await window.page.get_by_role("heading", name="Home").wait_for()
        await window.page.goto("about:blank")
    await window.page.goto(f"{place.url}/#/predictions/{own}")
    await window.page.get_by_role("heading", name="Timeline").wait_for()
    assert [url for url in asked if "/admin/" in url] == []
    assert window.faults == []
    await window.page.goto(f"{place.url}/#/predictions/{others}")
    await window.page.get_by_role("alert").get_by_text("belongs to another account").wait_for()
    await context.close()


async def test_number_beyond_the_precision_of_a_browser_is_not_altered(window: Window, place: Place) -> None:
    await window.page.goto(place.url)
    sent = """async (text) => {
        const schema = {components: {schemas: {Input: {properties: {seed: {type: "integer", title: "Seed"}}}}}};
        const form = (await import("/dashboard/schema_form.js")).schemaForm(schema);
        form.node.querySelector("input").value = text;
        return form.values().then((values) => String(values.seed), (error) => error.message);
    }"""
    assert await window.page.evaluate(sent, "9007199254740991") == "9007199254740991"
    assert "more digits" in await window.page.evaluate(sent, "12345678901234567891")


async def test_model_without_a_schema_is_run_with_json(window: Window, place: Place) -> None:
    await window.page.goto(f"{place.url}/#/models/{MODEL}")
    editor = window.page.get_by_label("Input, as JSON")
    await editor.fill('{"text": "hello", "n": 3}')
    async with window.page.expect_request(lambda asked: asked.url.endswith("/predictions")) as sent:
        await window.page.get_by_role("button", name="Run").click()
    assert (await sent.value).post_data_json == {"input": {"text": "hello", "n": 3}}
    for wrong in ("[1]", "null", "{"):
        await editor.fill(wrong)
        await window.page.get_by_role("button", name="Run").click()
        await window.page.get_by_role("alert").filter(has_text="JSON" if wrong == "{" else "an object").wait_for()


async def test_days_use_the_clock_of_the_service(window: Window, place: Place) -> None:
    made = await place.submit()
    await window.page.clock.install(time=datetime.now(UTC) + timedelta(hours=30))
    await window.page.goto(f"{place.url}/#/predictions/{made}")
    await window.page.get_by_text("made ").wait_for()
    assert re.search(r"made today \d", await window.page.locator("main").inner_text())


NEWEST = "06h0g3t0nan40c59h5v8c8v65m"
FINDINGS = [
    Finding(
        code=code,
        level="bad" if number % 2 else "warn",
        title=f"Title of {code}",
        detail=f"<b>Detail</b> of {code}: 12 waiting, the newest is {NEWEST}, `maxmemory`.",
        queue=QueueName("acme/echo:0123456789ab") if number % 3 else None,
        ask=f"director queues show {code}",
    )
    for number, code in enumerate(CODES)
]
SNAPSHOT = Snapshot(
    at="2026-01-01T00:00:00.000Z",
    queues=[],
    more_queues=0,
    directors=[],
    more_directors=0,
    owed=OwedCount(count=0, late=0),
    findings=FINDINGS,
)


DEVICE = DeviceView(
    name="gpu0",
    machine="box",
    bytes=4_000_000_000,
    taken=1_500_000_000,
    swaps=3,
    lost_s=17.0,
    models=[
        ModelOnDevice(
            queue=QueueName("acme/echo:0123456789ab"),
            state=state,
            since="2026-01-01T00:00:00.000Z",
            bytes=1_500_000_000,
            loads=3,
            lost_s=17.0,
            order="",
            failed=0,
            why="<b>It waits</b> for acme/b.",
            behind=(),
        )
        for state in ("loaded", "absent")
    ],
)


async def play(window: Window, snapshot: Snapshot) -> None:
    async def answer(route: Any) -> None:
        told = b"event: snapshot\ndata: " + msgspec.json.encode(snapshot) + b"\n\n"
        await route.fulfill(status=200, content_type="text/event-stream", body=told)

    await window.page.route("**/v1/admin/live*", answer)


@pytest.mark.parametrize("width", [1280, 390])
async def test_failed_setup_is_shown_once_with_the_log_as_it_is(
    chromium: tuple[Any, str], place: Place, width: int
) -> None:
    log = "\n".join(["Traceback (most recent call last):", *(f"  line {n}" for n in range(40)), "x" * 500])
    server = ServerView(
        url="http://a.example:5000",
        state="setup_failed",
        since="2026-01-01T00:00:00.000Z",
        slots=1,
        detail="setup_failed: RuntimeError: no weights",
        failed_starts=1,
        log=log,
    )
    director = DirectorView(
        name="box-1",
        alive=True,
        seen_at="2026-01-01T00:00:00.000Z",
        since=None,
        version=None,
        state="setup_failed",
        slots=0,
        held=0,
        queues=[],
        servers=[server],
        more_servers=0,
    )
    window, context = await opened(chromium, place.token, viewport={"width": width, "height": 900})
    await play(window, msgspec.structs.replace(SNAPSHOT, directors=[director]))
    await window.page.goto(f"{place.url}/#/directors")
    shown = window.page.locator("pre")
    await shown.wait_for()
    style = await shown.evaluate("(it) => [getComputedStyle(it).textAlign, getComputedStyle(it).overflowY]")
    assert style == ["left", "auto"]
    assert await shown.inner_text() == log
    assert "setup failed (RuntimeError: no weights)" in await window.page.locator("main").inner_text()
    assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert await window.barriers() == []
    assert window.faults == []
    await context.close()


async def test_devices_are_shown_with_their_models_and_swaps(chromium: tuple[Any, str], place: Place) -> None:
    window, context = await opened(chromium, place.token, viewport={"width": 1280, "height": 900})
    await play(window, msgspec.structs.replace(SNAPSHOT, devices=[DEVICE]))
    await window.page.goto(f"{place.url}/#/directors")
    await window.page.get_by_text("gpu0 on box").wait_for()
    words = await window.page.locator("main").inner_text()
    for part in ("1.5 GB of 4 GB", "acme/echo", "loaded", "<b>It waits</b> for acme/b."):
        assert part in words
    assert await window.barriers() == []
    assert window.faults == []
    await context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_each_finding_is_shown_with_its_text_and_command(
    chromium: tuple[Any, str], place: Place, width: int, theme: str
) -> None:
    window, context = await opened(chromium, place.token, viewport={"width": width, "height": 900}, color_scheme=theme)

    async def play(route: Any) -> None:
        told = b"event: snapshot\ndata: " + msgspec.json.encode(SNAPSHOT) + b"\n\n"
        await route.fulfill(status=200, content_type="text/event-stream", body=told)

    await window.page.route("**/v1/admin/live*", play)
    await window.page.goto(f"{place.url}/#/")
    shown = window.page.locator(".findings > li")
    await window.page.get_by_role("button", name=re.compile("^Show [0-9]+ more$")).click()
    assert await shown.count() == len(CODES)
    for unfold in await shown.locator(".unfold").all():
        await unfold.click()
    for number, finding in enumerate(FINDINGS):
        words = await shown.nth(number).inner_text()
        assert finding.title in words
        assert finding.detail.replace("`", "") in words
        assert (finding.queue or "") in words
        assert await shown.nth(number).locator("code").all_inner_texts() == ["maxmemory", finding.ask]
        newest = shown.nth(number).get_by_role("link", name=NEWEST)
        assert await newest.get_attribute("href") == f"#/predictions/{NEWEST}"
        assert finding.level in str(await shown.nth(number).get_attribute("class"))
    assert await window.barriers() == []
    assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert window.faults == []
    await context.close()
