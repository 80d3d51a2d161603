"""Test log-in at the page in a real browser: links, tabs, roles, and pages of other sites that try to act."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

import httpx
import pytest

from director.broker import keys
from director.store.accounts import ROLES, Accounts
from tests.integration.dashboard.conftest import Place, opened
from tests.integration.dashboard.test_page_actions import died, failed
from tests.support.browser import Window

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package

ATTACK: Final = """<!doctype html><body><script>
const target = TARGET, sent = { method: "POST", mode: "no-cors", credentials: "include" };
const posts = [
  [`${target}/v1/admin/accounts`, '{"name":"stolen"}'],
  [`${target}/session`, '{"link":"LINK"}'],
];
(async () => {
  for (const [url, body] of posts) {
    await fetch(url, { ...sent, headers: { "Content-Type": "text/plain" }, body }).catch(() => {});
    const headers = { "Content-Type": "application/json", "X-Director-Page": "1" };
    await fetch(url, { ...sent, mode: "cors", headers, body }).catch(() => {});
  }
  const seen = await fetch(`${target}/v1/account`, { credentials: "include" }).then((one) => one.text()).catch(String);
  document.title = `over ${seen.includes("username")}`;
})();
</script>"""


@pytest.fixture
async def context(chromium: tuple[Any, str]) -> AsyncIterator[Any]:
    context = await chromium[0].new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    yield context
    await context.close()


async def tab(context: Any, chromium: tuple[Any, str], url: str) -> Window:
    window = Window(await context.new_page(), chromium[1])
    await window.page.goto(url)
    return window


async def make_link(place: Place, role: str | None = None) -> str:
    async with place.caller() as caller:
        answer = await caller.post("/v1/account/login-link", json={"role": role})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["url"])


async def log_in(context: Any, chromium: tuple[Any, str], place: Place, role: str | None = None) -> Window:
    window = await tab(context, chromium, await make_link(place, role))
    await window.page.get_by_role("button", name="Log in").click()
    await window.page.get_by_role("button", name="Log out").wait_for()
    return window


async def test_link_logs_in_all_tabs_and_stands_in_no_history(
    chromium: tuple[Any, str], context: Any, place: Place
) -> None:
    window = await log_in(context, chromium, place)
    await window.page.get_by_role("heading", name="Queues").wait_for()
    assert window.page.url == f"{place.url}/#/"
    assert await window.page.evaluate("() => [document.cookie, sessionStorage.length]") == ["", 0]
    assert await window.barriers() == []
    other = await tab(context, chromium, f"{place.url}/#/dead")
    await other.page.get_by_role("heading", name="Dead letters").wait_for()
    await other.page.get_by_role("button", name="Log out").click()
    for each in (other, window):
        await each.page.get_by_label("Token").wait_for()
    assert [each.faults for each in (window, other)] == [[], []]


async def test_used_link_says_that_it_no_longer_works(chromium: tuple[Any, str], context: Any, place: Place) -> None:
    link = await make_link(place)
    window = await tab(context, chromium, link)
    assert await window.barriers() == []
    await window.page.get_by_role("button", name="Log in").click()
    await window.page.get_by_role("button", name="Log out").wait_for()
    again = await tab(context, chromium, link)
    await again.page.locator(".notice", has_text="This link no longer works").wait_for()
    await again.page.get_by_role("button", name="Log out").wait_for()  # the former log-in goes on


async def test_typed_token_stays_in_its_tab_if_asked(chromium: tuple[Any, str], context: Any, place: Place) -> None:
    window = await tab(context, chromium, place.url)
    await window.page.get_by_label("Token").fill(place.token)
    await window.page.get_by_label("Stay logged in").uncheck()
    await window.page.get_by_role("button", name="Log in").click()
    await window.page.get_by_role("button", name="Log out").wait_for()
    assert await context.cookies() == []
    other = await tab(context, chromium, place.url)
    await other.page.get_by_label("Token").wait_for()


async def test_typed_token_becomes_a_session_and_is_forgotten(
    chromium: tuple[Any, str], context: Any, place: Place
) -> None:
    window = await tab(context, chromium, place.url)
    await window.page.get_by_label("Token").fill(place.token)
    await window.page.get_by_role("button", name="Log in").click()
    await window.page.get_by_role("button", name="Log out").wait_for()
    assert await window.page.evaluate("() => sessionStorage.length") == 0
    [cookie] = await context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    other = await tab(context, chromium, f"{place.url}/#/directors")
    await other.page.get_by_role("heading", name="Directors").wait_for()


async def test_end_of_the_token_logs_out_and_the_next_log_in_comes_back(
    chromium: tuple[Any, str], context: Any, place: Place
) -> None:
    accounts = Accounts(place.redis)
    token = await accounts.create_token("leaver", scopes=ROLES["admin"])
    async with httpx.AsyncClient(base_url=place.url, trust_env=False) as caller:
        headers = {"Authorization": f"Bearer {token}"}
        link = (await caller.post("/v1/account/login-link", json={}, headers=headers)).json()["url"]
    window = await tab(context, chromium, link)
    await window.page.get_by_role("button", name="Log in").click()
    await window.page.get_by_role("button", name="Log out").wait_for()
    await window.page.goto(f"{place.url}/#/dead")
    await window.page.get_by_role("heading", name="Dead letters").wait_for()
    [found] = await accounts.tokens.of("leaver")
    await accounts.tokens.remove(found)
    await window.page.get_by_label("Token").fill(place.token)
    await window.page.get_by_role("button", name="Log in").click()
    await window.page.get_by_role("heading", name="Dead letters").wait_for()


async def visible_acts(window: Window, place: Place, made: str, dead: str) -> set[str]:
    """Return the buttons that this person sees, of those that each view has for an administrator."""
    found = set[str]()
    for view, names in (
        (f"/queues/{place.queue}", ("Pause acme",)),
        (f"/predictions/{made}", ("Cancel",)),
        ("/predictions", ("Retry all that match",)),
        ("/dead", ("Revive chosen", "Drop chosen")),
        ("/accounts", ("Create",)),
        ("/accounts/acme", ("Save limits", "Suspend and cancel", "Create token")),
    ):
        await window.page.goto(f"{place.url}/#{view}")
        if row := {"/predictions": made, "/dead": dead}.get(view):  # the buttons of a list are shown with its rows
            await window.page.get_by_role("link", name=row).first.wait_for()
        for name in names:
            button = window.page.get_by_role("button", name=name, exact=True, include_hidden=True).first
            await button.wait_for(state="attached")
            found |= {name} if await button.is_visible() else set()
    return found


async def test_buttons_are_those_of_the_role(chromium: tuple[Any, str], context: Any, place: Place) -> None:
    dead = await place.submit()
    claim = await place.claimed(dead)
    await place.scripts.release(claim.id, token=claim.token, spent=True, error="Lost.", code="server_lost")
    made = await place.submit()
    found = {}
    for role in ROLES:
        window = await log_in(context, chromium, place, role)
        found[role] = await visible_acts(window, place, made, dead)
        assert window.faults == [], role
        await window.page.close()
    acts = {"Pause acme", "Cancel", "Retry all that match", "Revive chosen", "Drop chosen"}
    assert found["viewer"] == set()
    assert found["operator"] == acts
    assert found["admin"] == acts | {"Create", "Save limits", "Suspend and cancel", "Create token"}


@pytest.mark.parametrize("scopes", [("read", "run", "view"), ("read", "view")], ids=["runs and sees", "sees"])
async def test_who_sees_all_and_operates_nothing_has_no_buttons_of_operators(
    chromium: tuple[Any, str], place: Place, scopes: tuple[str, ...]
) -> None:
    claim, dying = await failed(place), await died(place)
    other = await place.submit("other")
    waiting = await place.submit("watcher")
    token = await Accounts(place.redis).create_token("watcher", scopes=scopes)
    window, context = await opened(chromium, token)
    await window.page.goto(f"{place.url}/#/predictions")
    row = window.page.get_by_role("row").filter(has=window.page.get_by_role("link", name=waiting))
    await row.wait_for()
    for name in ("Cancel all that match", "Retry all that match", "Retry chosen"):
        assert not await window.page.get_by_role("button", name=name).is_visible(), name
    ticks = window.page.get_by_role("checkbox")
    assert (await ticks.count() > 0) is ("run" in scopes)
    if "run" in scopes:  # what is the account's own can be canceled, and the others are named
        for made in (waiting, claim.id):
            await window.page.get_by_role("checkbox", name=f"Choose {made}").check()
        await window.page.get_by_role("button", name="Cancel chosen").click()
        await window.page.get_by_role("dialog").get_by_role("button", name="Cancel chosen").click()
        await window.page.locator(".notice").get_by_text("1 canceled.").wait_for()
    for made, names in ((claim.id, ("Retry",)), (dying.id, ("Retry", "Revive", "Drop")), (other, ("Cancel",))):
        await window.page.goto(f"{place.url}/#/predictions/{made}")
        await window.page.get_by_role("heading", name="Timeline").wait_for()
        for name in names:
            assert not await window.page.get_by_role("button", name=name, exact=True).is_visible(), name
    await window.page.goto(f"{place.url}/#/dead")
    await window.page.get_by_role("link", name=dying.id).wait_for()
    assert await ticks.count() == 0
    await context.close()


@contextmanager
def other_site(html: str) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])  # of the same site, so with the cookie; and of another
async def test_page_of_another_origin_changes_nothing_and_reads_nothing(
    chromium: tuple[Any, str], context: Any, place: Place, host: str
) -> None:
    window = await log_in(context, chromium, place)
    before = await context.cookies(place.url)
    planted = (await make_link(place, "viewer")).rpartition("/")[2]
    sessions = await place.redis.hkeys(keys.sessions("acme"))
    html = ATTACK.replace("TARGET", f'"{place.url}"').replace("LINK", planted)
    with other_site(html) as port:
        evil = await tab(context, chromium, f"http://{host}:{port}/")
        await evil.page.wait_for_function("() => document.title.startsWith('over')")
        assert await evil.page.title() == "over false"
    assert not await Accounts(place.redis).exists("stolen")
    assert await place.redis.hkeys(keys.sessions("acme")) == sessions
    assert await context.cookies(place.url) == before
    await window.page.reload()
    await window.page.get_by_role("button", name="Log out").wait_for()
