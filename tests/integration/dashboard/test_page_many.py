"""Test in a real browser that ten thousand predictions are pages of a list, and never ten thousand rows."""

from typing import Any, Final

import anyio
import pytest

from tests.integration.dashboard.conftest import Place, opened

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package

MANY: Final = 10_000
AT_ONCE: Final = 100
PAGE: Final = 100
MOST_ROWS: Final = 2_000


async def submit_many(place: Place, count: int) -> None:
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def submit() -> None:
        async with limit:
            await place.submit("crowd")

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(submit)


async def test_ten_thousand_predictions_are_shown_in_pages(chromium: tuple[Any, str], place: Place) -> None:
    await submit_many(place, MANY)
    window, context = await opened(chromium, place.token, viewport={"width": 1440, "height": 900})
    await window.page.goto(f"{place.url}/#/predictions?account=crowd")
    rows = window.page.locator("tbody tr")
    await rows.first.wait_for()
    assert await rows.count() == PAGE
    more = window.page.get_by_role("button", name="Show more")
    for shown in range(2 * PAGE, MOST_ROWS + PAGE, PAGE):
        await more.click()
        await window.page.wait_for_function(
            "(wanted) => document.querySelectorAll('tbody tr').length === wanted", arg=shown
        )
    await window.page.get_by_text("Narrow the list by filters").wait_for()
    assert not await more.is_visible()
    assert window.faults == []
    await context.close()
