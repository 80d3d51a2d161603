"""Test what an operator does on the page: each action reaches the service, and its result is shown."""

import ast
import json
import re
from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
import pytest

from director import __version__
from director.broker import keys
from director.core.schema import Claim
from director.core.states import Status
from director.core.trends import STEPS, Point
from director.core.usage import Price, Used
from director.store.services import Services
from director.store.trends import Trends
from tests.integration.dashboard.conftest import ACCOUNT, MODEL, Place, opened
from tests.support.api import PlayedDirector
from tests.support.browser import Window
from tests.support.eventually import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package

# what is written into the charts of what waits and runs, and how high
WRITTEN: Final = """
    window.written = [];
    const write = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function(word, x, y, ...given) {
        const chart = this.canvas.closest("[role=slider]")?.getAttribute("aria-label");
        if (["Waiting", "Slots in use"].includes(chart)) window.written.push([word, y, chart]);
        return write.call(this, word, x, y, ...given);
    };
    window.filled = {};
    const paint = CanvasRenderingContext2D.prototype.fill;
    CanvasRenderingContext2D.prototype.fill = function(...given) {
        const chart = this.canvas.closest("[role=slider]")?.getAttribute("aria-label");
        (window.filled[chart] ??= []).push(this.fillStyle);
        return paint.call(this, ...given);
    };
"""
WEBHOOK: Final = "https://hooks.example.com/done"


@pytest.fixture
async def window(chromium: tuple[Any, str], place: Place) -> AsyncIterator[Window]:
    window, context = await opened(chromium, place.token)
    await context.grant_permissions(["clipboard-read", "clipboard-write"])
    yield window
    await context.close()


async def create(place: Place, **body: Any) -> str:
    async with place.caller() as caller:
        made = await caller.post(f"/v1/models/{MODEL}/predictions", json={"input": {}, **body})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


async def failed(place: Place, **body: Any) -> Claim:
    claim = await place.claimed(await create(place, **body))  # type: ignore[arg-type]
    played = PlayedDirector(place.scripts, place.queue)
    seq = await played.begin(claim)
    await played.finish(claim, Status.FAILED, seq=seq, error="CUDA out of memory", code="model_failed", logs="step 1\n")
    return claim


async def died(place: Place) -> Claim:
    claim = await place.claimed(await create(place))  # type: ignore[arg-type]
    await place.scripts.release(claim.id, token=claim.token, spent=True, error="Lost.", code="server_lost")
    return claim


async def status_of(place: Place, name: str) -> str:
    async with place.caller() as caller:
        return str((await caller.get(f"/v1/predictions/{name}")).json()["status"])


async def answer(window: Window, name: str) -> None:
    """Confirm in the dialog."""
    await window.page.get_by_role("dialog").get_by_role("button", name=name).click()


async def test_history_is_shown_for_the_chosen_range(window: Window, place: Place) -> None:
    seconds, _ = await place.redis.time()
    trends, at_s = Trends(place.redis), STEPS[0].start(seconds) - STEPS[0].seconds
    await trends.add({place.queue: Point(at_s=at_s, failed=7, waits={31: 7}, runs={40: 7})}, most=9)
    await window.page.goto(f"{place.url}/#/")
    past = window.page.get_by_role("region", name="History")
    await past.get_by_text("7 (100 %)").wait_for()
    await past.locator("canvas").first.wait_for()
    row = window.page.get_by_role("row").filter(has=window.page.get_by_role("link", name=place.queue))
    await row.get_by_text("100 %").wait_for()
    async with window.page.expect_request(lambda asked: "over=24h" in asked.url):
        await past.get_by_role("button", name="24 h").click()
    assert await past.get_by_role("button", name="24 h").get_attribute("aria-pressed") == "true"
    async with window.page.expect_request(lambda asked: "over=24h" in asked.url):
        await window.page.reload()  # the choice is kept
    assert window.faults == []


async def test_history_that_cannot_be_read_shows_no_empty_charts(window: Window, place: Place) -> None:
    async def fail(route: Any) -> None:
        await route.fulfill(status=503, json={"code": "unavailable"})

    await window.page.route("**/v1/admin/history*", fail, times=1)
    await window.page.goto(f"{place.url}/#/queues/{place.queue}")
    past = window.page.get_by_role("region", name="History")
    await past.get_by_text("The service cannot answer now.").wait_for()
    assert await past.locator(".chart:visible").count() == 0
    await past.get_by_role("button", name="1 h").click()
    await past.locator(".chart:visible").first.wait_for()


@pytest.mark.parametrize(
    ("until", "times", "lasted"),
    [
        ("00:04:00", [60, 120, 180], [60, 60, 60]),
        ("00:03:30", [60, 120, 180], [60, 60, 30]),  # as much of the newest step as there is
        ("00:03:10", [60, 120], [60, 60]),  # too young to differ from noise
        ("00:05:05", [60, 120, 180], [60, 60, 60]),  # what follows is not recorded yet
        ("00:06:00", [60, 120, 180, 240], [60, 60, 60, 60]),  # nothing ended
    ],
)
async def test_newest_step_of_a_chart_is_no_drop_to_zero(
    window: Window, place: Place, until: str, times: list[int], lasted: list[int]
) -> None:
    await window.page.goto(place.url)
    day = "1970-01-01T"
    points = [{"at": f"{day}00:0{minute}:00Z"} for minute in (1, 2, 3)]
    found = {"points": points, "since": f"{day}00:00:00Z", "until": f"{day}{until}Z", "step_s": 60}
    drawn = await window.page.evaluate(
        "async (found) => (await import('/dashboard/views/history.js')).stepped(found)", found
    )
    assert (drawn["times"], drawn["lasted"]) == (times, lasted)


async def test_counts_stand_at_their_height_beside_a_chart(chromium: tuple[Any, str], place: Place) -> None:
    """The axes of both charts reach from 0 to 1 while nothing waits or runs, and one has a name for the half."""
    window, context = await opened(chromium, place.token)
    await context.add_init_script(WRITTEN)
    await place.redis.delete(keys.level_of_all("10s"))  # of another test
    await window.page.goto(f"{place.url}/#/")
    await window.page.wait_for_function("() => window.written.some(([word]) => word === '0.5')")
    ones = await window.page.evaluate("() => window.written.filter(([word]) => word === '1')")
    assert {chart for _, _, chart in ones} == {"Waiting", "Slots in use"}
    assert len({height for _, height, _ in ones}) == 1
    await context.close()


@pytest.mark.parametrize(("scheme", "colour"), [("light", "34, 87, 208"), ("dark", "134, 176, 255")])
async def test_area_below_a_line_has_a_pale_shade_of_its_colour(
    chromium: tuple[Any, str], place: Place, scheme: str, colour: str
) -> None:
    window, context = await opened(chromium, place.token, color_scheme=scheme)
    await context.add_init_script(WRITTEN)
    await window.page.goto(f"{place.url}/#/")
    drawn = "() => ['Waiting', 'Slots in use'].every((chart) => window.filled[chart]?.length)"
    await window.page.wait_for_function(drawn)
    filled = await window.page.evaluate("() => window.filled")
    assert all(f"rgba({colour}, 0.13)" in filled[chart] for chart in ("Waiting", "Slots in use")), filled
    await context.close()


async def test_queue_that_fails_everything_is_red(window: Window, place: Place) -> None:
    await window.page.goto(place.url)
    state = """async ([queue, pace]) => (await import('/dashboard/states.js')).stateOf(queue, pace)"""
    serving = {"state": "serving", "words": "serving", "shade": "good", "live": 1}
    assert await window.page.evaluate(state, [serving, {"succeeded": 0, "failed": 3}]) == ["all fail", "bad"]
    assert await window.page.evaluate(state, [serving, {"succeeded": 1, "failed": 3}]) == ["serving", "good"]
    assert await window.page.evaluate(state, [serving, None]) == ["serving", "good"]
    hanging = {**serving, "words": "a run hangs", "shade": "bad"}
    assert await window.page.evaluate(state, [hanging, None]) == ["a run hangs", "bad"], "as `top` says"


async def test_figures_without_a_fresh_source_are_grey_with_their_age(window: Window, place: Place) -> None:
    await window.page.goto(f"{place.url}/#/")
    await window.page.get_by_role("rowheader", name=place.queue).wait_for()
    assert await window.page.locator("html[data-stale]").count() == 0
    await window.page.context.set_offline(True)
    await window.page.evaluate("() => window.stop()")  # what is open stays open offline
    await window.page.locator("html[data-stale]").wait_for(state="attached", timeout=60_000)
    await window.page.get_by_text("The figures on this page are").wait_for()
    await window.page.context.set_offline(False)
    await window.page.locator("html:not([data-stale])").wait_for(state="attached", timeout=60_000)


async def test_queue_is_paused_and_resumed(window: Window, place: Place) -> None:
    await window.page.goto(f"{place.url}/#/queues/{place.queue}")
    await window.page.get_by_role("button", name="Pause", exact=True).click()
    await answer(window, "Pause")
    await window.page.get_by_role("button", name="Resume", exact=True).click()
    await window.page.get_by_role("button", name="Pause", exact=True).wait_for()
    assert window.faults == []


async def test_predictions_are_found_by_an_address_with_filters(window: Window, place: Place) -> None:
    claim, other = await failed(place), await create(place)
    await window.page.goto(f"{place.url}/#/predictions?status=failed&model={MODEL}&since=1h")
    await window.page.get_by_role("link", name=claim.id).wait_for()
    assert await window.page.get_by_role("link", name=other).count() == 0
    await window.page.get_by_label("Status").select_option("starting")
    await window.page.get_by_role("button", name="Filter").click()
    await window.page.get_by_role("link", name=other).wait_for()
    assert "status=starting" in window.page.url
    later = await create(place)
    await window.page.get_by_role("link", name=later).wait_for()  # the list updates itself
    async with place.caller() as caller:
        await caller.post(f"/v1/predictions/{other}/cancel")
    await window.page.get_by_role("link", name=other).wait_for(state="detached")
    assert await window.page.get_by_role("link", name=later).count() == 1
    assert window.faults == []


async def test_chosen_predictions_are_canceled_together(window: Window, place: Place) -> None:
    made = [await create(place) for _ in range(2)]
    kept = await create(place)
    await window.page.goto(f"{place.url}/#/predictions")
    for name in made:
        await window.page.get_by_label(f"Choose {name}").check()
    await window.page.get_by_role("button", name="Cancel chosen").click()
    await answer(window, "Cancel chosen")
    await window.page.get_by_text("2 canceled.").first.wait_for()
    assert [await status_of(place, name) for name in (*made, kept)] == ["canceled", "canceled", "starting"]


async def test_chosen_predictions_are_retried_together(window: Window, place: Place) -> None:
    claim = await failed(place)
    await window.page.goto(f"{place.url}/#/predictions?status=failed")
    await window.page.get_by_label(f"Choose {claim.id}").check()
    await window.page.get_by_role("button", name="Retry chosen").click()
    await window.page.get_by_text("1 queued again.").first.wait_for()
    assert window.faults == []


async def test_failed_prediction_shows_its_error_before_all_else(window: Window, place: Place) -> None:
    claim = await failed(place, input={"text": "it's"})
    await window.page.goto(f"{place.url}/#/predictions/{claim.id}")
    await window.page.get_by_role("alert").get_by_text("CUDA out of memory").wait_for()
    tops = [
        (await window.page.locator(where).first.bounding_box())["y"]  # type: ignore[index]
        for where in (".fault", "section[aria-label=Input]", ".logs", ".gantt")
    ]
    assert tops == sorted(tops)
    await window.page.get_by_text("Raw JSON").click()
    await window.page.get_by_text('"status": "failed"').wait_for()
    await window.page.get_by_role("button", name="Copy as curl").click()
    await window.page.get_by_text("Copied.").first.wait_for()
    curl = await window.page.evaluate("() => navigator.clipboard.readText()")
    assert f"{place.url}/v1/models/{MODEL}/predictions" in curl
    assert """'{"input":{"text":"it'\\''s"}}'""" in curl


async def test_copied_python_is_the_same_request(window: Window, place: Place) -> None:
    claim = await failed(place, input={"text": "true, null", "on": True, "none": None, "list": [1, {"a": False}]})
    await window.page.goto(f"{place.url}/#/predictions/{claim.id}")
    await window.page.get_by_role("button", name="Copy as Python").click()
    await window.page.get_by_text("Copied.").first.wait_for()
    script = ast.parse(await window.page.evaluate("() => navigator.clipboard.readText()"))
    calls = {
        one.func.attr: one
        for one in ast.walk(script)
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute)
    }
    assert ast.literal_eval(calls["Client"].keywords[1].value) == place.url
    assert ast.literal_eval(calls["run"].args[0]) == MODEL
    expected = {"text": "true, null", "on": True, "none": None, "list": [1, {"a": False}]}
    assert ast.literal_eval(calls["run"].keywords[0].value) == expected


async def test_prediction_is_run_again_with_edited_input(window: Window, place: Place) -> None:
    claim = await failed(place, input={"text": "before"})
    await window.page.goto(f"{place.url}/#/predictions/{claim.id}")
    await window.page.get_by_role("link", name="Run again").click()
    editor = window.page.get_by_label("Input, as JSON")
    await editor.wait_for()
    assert json.loads(await editor.input_value()) == {"text": "before"}
    await editor.fill('{"text": "after"}')
    async with window.page.expect_request(lambda asked: asked.method == "POST") as sent:
        await window.page.get_by_role("button", name="Run", exact=True).click()
    assert (await sent.value).post_data_json == {"input": {"text": "after"}}


async def test_waiting_prediction_says_why_and_where_in_words(window: Window, place: Place) -> None:
    async with place.caller() as caller:
        model, _, version = place.queue.rpartition(":")
        await caller.post(f"/v1/admin/queues/{model}/{version}/pause")
        made = await create(place)
        await window.page.goto(f"{place.url}/#/predictions/{made}")
        await window.page.get_by_text(re.compile(rf"in line\. {ACCOUNT} paused this queue .+ ago\.")).wait_for()
        await caller.post(f"/v1/admin/queues/{model}/{version}/resume")
    await window.page.get_by_role("button", name="Cancel").click()
    await window.page.locator(".chip.canceled").wait_for()


async def test_dead_letter_is_dropped_after_a_question(window: Window, place: Place) -> None:
    claim = await died(place)
    await window.page.goto(f"{place.url}/#/predictions/{claim.id}")
    await window.page.get_by_role("heading", name="A dead letter").wait_for()
    error, letter = [await window.page.locator(where).bounding_box() for where in (".fault", ".attention")]
    assert error["y"] < letter["y"]
    await window.page.goto(f"{place.url}/#/dead")
    row = window.page.get_by_role("row").filter(has=window.page.get_by_role("link", name=claim.id))
    cell = row.get_by_role("cell").last
    assert await cell.evaluate("cell => getComputedStyle(cell).display") == "table-cell"
    await row.get_by_role("button", name="Drop").click()
    await answer(window, "Back")
    assert await row.count() == 1
    await row.get_by_role("button", name="Drop").click()
    await answer(window, "Drop")
    await row.wait_for(state="detached")
    assert window.faults == []


async def test_account_is_created_limited_and_suspended(window: Window, place: Place) -> None:
    await window.page.goto(f"{place.url}/#/accounts")
    await window.page.get_by_label("New account").fill("tyrell")
    await window.page.get_by_role("button", name="Create").click()
    await window.page.get_by_role("heading", name="tyrell").wait_for()
    await window.page.get_by_label("Running in one queue").fill("4")
    await window.page.get_by_role("button", name="Save limits").click()
    await window.page.get_by_text("The limits are saved.").first.wait_for()
    await window.page.get_by_role("button", name="Suspend, keep its work").click()
    await window.page.get_by_text("suspended (hold)").wait_for()
    await window.page.get_by_role("button", name="Resume").click()
    await window.page.get_by_text("active", exact=True).wait_for()
    async with place.caller() as caller:
        seen = (await caller.get("/v1/admin/accounts/tyrell")).json()
    assert (seen["limits"]["max_running"], seen["limits"]["max_queued"], seen["suspension"]) == (4, None, None)


async def test_wrong_limit_is_refused_in_words(window: Window, place: Place) -> None:
    await window.page.goto(f"{place.url}/#/accounts/{ACCOUNT}")
    await window.page.get_by_label("Weight").fill("many")
    await window.page.get_by_role("button", name="Save limits").click()
    await window.page.get_by_role("alert").filter(has_text="Weight").wait_for()


async def test_token_is_shown_once_and_revoked(window: Window, place: Place) -> None:
    await window.page.goto(f"{place.url}/#/accounts/{ACCOUNT}")
    await window.page.get_by_label("Label of a new token").fill("ci")
    await window.page.get_by_role("button", name="Create token").click()
    told = window.page.locator(".callout code")
    await told.wait_for()
    assert (await told.inner_text()).startswith("dr_")
    await window.page.get_by_role("button", name="Revoke ci").click()
    await answer(window, "Revoke")
    await window.page.get_by_role("button", name="Revoke ci").wait_for(state="detached")
    assert window.faults == []


async def test_owed_webhook_is_sent_again(window: Window, place: Place) -> None:
    claim = await failed(place, webhook=WEBHOOK)
    await window.page.goto(f"{place.url}/#/webhooks")
    await window.page.get_by_role("link", name="hooks.example.com").first.wait_for()
    path = f"/v1/predictions/{claim.id}/webhooks/redeliver"
    async with window.page.expect_response(lambda found: found.url.endswith(path)) as found:
        await window.page.get_by_role("button", name=f"Send again {claim.id}").click()
    assert (await found.value).status < 300
    await window.page.get_by_text("1 sent again.").first.wait_for()


async def test_all_webhooks_that_are_shown_now_are_sent_again(window: Window, place: Place) -> None:
    await failed(place, webhook=WEBHOOK)
    await window.page.goto(f"{place.url}/#/webhooks")
    all_of_them = window.page.get_by_role("button", name="Send all shown again")
    await all_of_them.wait_for()
    late = await failed(place, webhook=WEBHOOK)
    await window.page.get_by_role("button", name=f"Send again {late.id}").wait_for()
    path = f"/v1/predictions/{late.id}/webhooks/redeliver"
    async with window.page.expect_response(lambda found: found.url.endswith(path)) as found:
        await all_of_them.click()
    assert (await found.value).status < 300


async def test_system_shows_settings_without_secrets(window: Window, place: Place) -> None:
    await window.page.goto(f"{place.url}/#/system")
    await window.page.get_by_role("rowheader", name="DIRECTOR_PORT").wait_for()
    processes = window.page.get_by_role("region", name="Processes")
    await processes.get_by_role("cell", name="api", exact=True).wait_for()
    await processes.get_by_role("cell", name=__version__).wait_for()
    assert window.faults == []


async def test_sections_are_in_a_menu_on_a_telephone(chromium: tuple[Any, str], place: Place) -> None:
    window, context = await opened(chromium, place.token, viewport={"width": 390, "height": 844})
    await window.page.goto(f"{place.url}/#/")
    await window.page.get_by_role("button", name="Menu").click()
    await window.page.get_by_role("link", name="Accounts", exact=True).click()
    await window.page.get_by_role("heading", name="Accounts").wait_for()
    cell = window.page.get_by_role("rowheader", name=ACCOUNT)
    assert await cell.get_attribute("data-label") == "Account"

    async def is_closed() -> bool:
        return not await window.page.get_by_role("link", name="Accounts", exact=True).is_visible()

    await eventually(is_closed, "the menu is closed")
    await context.close()


async def test_usage_of_a_month_is_a_table_with_its_cost(window: Window, place: Place) -> None:
    claim = await place.claimed(await create(place))  # type: ignore[arg-type]
    used = Used(runs=1, ms=90_000, input_tokens=1_200, output_tokens=34_000, file_bytes=5_000)
    assert await place.scripts.finish(
        claim.id, queue=place.queue, token=claim.token, status=Status.SUCCEEDED, used=used
    )
    ledger = Services(place.redis).ledger
    await ledger.set_price(MODEL, Price(output=100))
    await window.page.goto(f"{place.url}/#/usage")
    row = window.page.get_by_role("row").filter(has_text=MODEL)
    await row.wait_for()
    figures = ["1", "1.5 min", "1.2K", "34K", "5 kB", "3.40"]  # none was cached
    assert await row.get_by_role("cell").all_inner_texts() == [MODEL, "100 %", *figures]
    await window.page.get_by_role("slider", name="Cost by day").wait_for()
    async with window.page.expect_download() as download:
        await window.page.get_by_role("button", name="Download CSV").click()
    lines = (await (await download.value).path()).read_text().splitlines()
    assert lines[0].split(",")[:4] == ["account", "model", "day", "runs"]
    assert lines[1].split(",")[:2] == [ACCOUNT, MODEL]
    async with window.page.expect_request(lambda asked: "by=model&" in f"{asked.url}&"):
        await window.page.get_by_role("button", name="Model", exact=True).click()
    assert "by=model" in window.page.url, "the address shows what is shown"
    await window.page.get_by_role("columnheader", name="Account").wait_for(state="detached")
    assert await window.page.evaluate("() => document.activeElement.textContent") == "Model", "it keeps the focus"
    late = anyio.Event()

    async def hold(route: Any) -> None:
        await late.wait()
        await route.continue_()

    await window.page.route(re.compile(r"by=account%2Cmodel|by=account,model"), hold)
    await window.page.get_by_role("button", name="Account and model").click()
    async with (
        window.page.expect_event("requestfailed", lambda asked: re.search("by=account.+model", asked.url)),
        window.page.expect_response(lambda answer: "by=account&" in f"{answer.url}&"),
    ):
        await window.page.get_by_role("button", name="Account", exact=True).click()
    await window.page.get_by_role("columnheader", name="Model").wait_for(state="detached")
    late.set()
    await window.page.unroute_all(behavior="ignoreErrors")
    await window.page.get_by_role("link", name=re.compile(r"^‹ \w+ \d{4}$")).click()
    await window.page.get_by_text("Nothing ran in this month.").wait_for()
    assert window.faults == []
