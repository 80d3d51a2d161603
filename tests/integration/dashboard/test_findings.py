"""Test that the page shows each kind of finding with its text and its command, without parsing them as HTML."""

from typing import Any

import msgspec
import pytest

from director.core.ids import QueueName
from director.diagnosis.findings import CODES, Finding
from director.diagnosis.overview import OwedCount, Snapshot
from tests.integration.dashboard.conftest import Service, log_in
from tests.support.browser import Window

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package

FINDINGS = [
    Finding(
        code=code,
        level="bad" if number % 2 else "warn",
        title=f"Title of {code}",
        detail=f"<b>Detail</b> of {code}: 12 waiting.",
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


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_each_finding_is_shown_with_its_text_and_command(
    chromium: tuple[Any, str], service: Service, width: int, theme: str
) -> None:
    started, script = chromium
    context = await started.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    window = Window(await context.new_page(), script)

    async def play(route: Any) -> None:
        told = b"event: snapshot\ndata: " + msgspec.json.encode(SNAPSHOT) + b"\n\n"
        await route.fulfill(status=200, content_type="text/event-stream", body=told)

    await window.page.route("**/v1/admin/live*", play)
    await log_in(window, service)
    await window.page.goto(f"{service.url}/#/")
    shown = window.page.locator(".findings li")
    await shown.first.wait_for()
    assert await shown.count() == len(CODES)
    for number, finding in enumerate(FINDINGS):
        words = await shown.nth(number).inner_text()
        assert finding.title in words
        assert finding.detail in words
        assert (finding.queue or "") in words
        assert await shown.nth(number).locator("code").inner_text() == finding.ask
        assert finding.level in str(await shown.nth(number).get_attribute("class"))
    assert await window.barriers() == []
    assert await window.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert window.faults == []
    await context.close()
