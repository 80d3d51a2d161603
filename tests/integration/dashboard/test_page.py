"""Test the page for operators in a real browser: log in, run a model, cancel, revive, and watch the directors."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from tests.integration.dashboard.conftest import FRAIL, HELLO, Service, log_in
from tests.support.browser import Window
from tests.support.eventually import eventually
from tests.support.live_director import Gate, director_process

pytestmark = [pytest.mark.anyio, pytest.mark.cog, pytest.mark.heavy]  # the browser comes from a Debian package

VIEWS: Final = (
    *(
        "/",
        "/queues",
        "/directors",
        "/predictions",
        "/models",
        "/models/example/hello",
        "/accounts",
        "/accounts/acme",
        "/webhooks",
        "/usage",
    ),
    *("/dead", "/audit", "/system", "/nothing"),
)


@asynccontextmanager
async def hello_director(service: Service) -> AsyncGenerator[Any]:
    """Run a director until the block ends, which begins once its model is registered."""
    given = {"model": HELLO.name, "version": "", "port": 0}
    async with director_process(service.redis_url, service.hello, **given) as director:
        await director.says("model registered")
        yield director


async def run_hello(window: Window, service: Service, **fields: str) -> None:
    await window.page.goto(f"{service.url}/#/models/{HELLO.name}")
    for name, value in fields.items():
        await window.page.locator(f"#in-{name}").fill(value)
    await window.page.get_by_role("button", name="Run").click()
    await window.page.wait_for_function("() => location.hash.includes('?run=')")


async def test_wrong_token_is_reported_and_not_kept(chromium: tuple[Any, str], service: Service) -> None:
    context = await chromium[0].new_context()
    page = await context.new_page()
    await page.goto(service.url)
    await page.get_by_label("Token").fill("dr_wrong")
    await page.get_by_role("button", name="Log in").click()
    await page.get_by_text("This token is not known").wait_for()
    assert await page.evaluate("() => sessionStorage.length") == 0
    await context.close()


async def test_model_is_run_from_its_form_and_its_output_streams(window: Window, service: Service) -> None:
    async with hello_director(service):
        await run_hello(window, service, text="moin", n="4", delay="0.4")
        output = window.page.get_by_role("region", name="Output")
        await output.get_by_text("moin 1").wait_for()
        assert "moin 4" not in await output.inner_text()
        await output.get_by_text("moin 4").wait_for()
        await window.page.get_by_role("region", name="Result").get_by_text("succeeded").wait_for()
        assert (await output.inner_text()).split("\n") == ["moin 1", "moin 2", "moin 3", "moin 4"]
    assert window.faults == []


async def test_refused_input_is_reported_at_its_field(window: Window, service: Service) -> None:
    async with hello_director(service):
        await window.page.goto(f"{service.url}/#/models/{HELLO.name}")
        await window.page.get_by_label("Text").fill("moin")
        await window.page.get_by_label("N", exact=True).evaluate("field => { field.max = ''; field.value = '100001'; }")
        await window.page.get_by_role("button", name="Run").click()
        await window.page.locator("#in-n-error").get_by_text("100000").wait_for()


async def test_slow_prediction_is_canceled(window: Window, service: Service) -> None:
    async with hello_director(service):
        await run_hello(window, service, text="tick", n="1000", delay="0.5")
        await window.page.get_by_role("region", name="Output").get_by_text("tick 1").wait_for()
        await window.page.get_by_role("button", name="Cancel").click()
        await window.page.get_by_role("region", name="Result").get_by_text("canceled").wait_for()
    assert window.faults == []


async def test_output_is_never_parsed_as_html(window: Window, service: Service) -> None:
    async with hello_director(service):
        await run_hello(window, service, text="<img src=x onerror=alert(1)><b>bold</b>", n="1")
        await window.page.get_by_role("region", name="Result").get_by_text("succeeded").wait_for()
        output = window.page.get_by_role("region", name="Output")
        assert "<b>bold</b>" in await output.inner_text()
        assert await output.locator("img, b").count() == 0
    assert window.faults == []


async def test_dead_letter_is_revived_and_runs(window: Window, service: Service, gate: Gate) -> None:
    async with director_process(
        service.redis_url, service.frail, model=FRAIL, version="", port=0, backoff_s=0.1
    ) as one:
        await one.says("model registered")
        made = await window.page.evaluate(
            """async ([model, mended, token]) => (await (await fetch(`/v1/models/${model}/predictions`, {
                method: "POST", headers: {Authorization: `Bearer ${token}`, "Content-Type": "application/json"},
                body: JSON.stringify({input: {mended}})})).json()).id""",
            [FRAIL, str(gate), service.token],
        )
        await window.page.goto(f"{service.url}/#/dead")

        async def is_listed() -> bool:
            await window.page.reload()
            await window.page.get_by_role("heading", name="Dead letters").wait_for()
            await window.page.locator("tbody tr, .foot .empty").first.wait_for()
            return await window.page.get_by_role("link", name=made).count() > 0

        await eventually(is_listed, "the letter is listed", limit_s=60)
        gate.open()
        await window.page.get_by_role("button", name="Revive", exact=True).click()
        await window.page.get_by_text("It is queued again.").first.wait_for()
        await window.page.goto(f"{service.url}/#/predictions/{made}")
        await window.page.locator(".chip.succeeded").wait_for()
        await window.page.get_by_role("region", name="Output").get_by_text("alive").wait_for()


async def test_page_shows_a_director_leaving_and_returning(window: Window, service: Service) -> None:
    async with hello_director(service) as director:
        await window.page.goto(f"{service.url}/#/")
        row = window.page.get_by_role("row").filter(has=window.page.get_by_role("link", name=f"{HELLO.name}:"))
        await row.get_by_text("serving").wait_for()
        director.process.kill()
        await director.exit_code()
        await row.get_by_text("idle").or_(row.get_by_text("no director")).wait_for(timeout=60_000)
    async with hello_director(service):
        await row.get_by_text("serving").wait_for(timeout=60_000)
    assert window.faults == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_views_have_no_accessibility_violation(
    chromium: tuple[Any, str], service: Service, width: int, theme: str
) -> None:
    started, script = chromium
    context = await started.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    window = Window(await context.new_page(), script)
    async with hello_director(service):
        await window.page.goto(service.url)
        assert await window.barriers() == []
        await log_in(window, service)
        for view in VIEWS:
            await window.page.goto(f"{service.url}/#{view}")
            await window.page.wait_for_load_state("load")
            await window.page.locator("h1").wait_for()
            assert await window.barriers() == [], view
            assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    assert window.faults == []
    await context.close()
