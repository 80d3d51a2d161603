"""Test in a real browser that ten thousand predictions are pages of a list, never ten thousand rows, and stay quick."""

from typing import Any, Final

import anyio
import pytest

from tests.integration.dashboard.conftest import Place, opened

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the browser comes from a Debian package

MANY: Final = 10_000
AT_ONCE: Final = 100
PAGE: Final = 100
MOST_ROWS: Final = 2_000
FEW: Final = 4  # pages, of which the quickest counts: a busy machine only makes them slower
MOST_TIMES_SLOWER: Final = 4.0  # than in a short list
# Presses the button and returns how long it took until the rows are laid out, in ms.
PRESSED: Final = """async (wanted) => {
    const began = performance.now();
    const buttons = [...document.querySelectorAll("button")].filter((one) => one.checkVisibility());
    buttons.find((one) => one.textContent === "Show more").click();
    while (document.querySelectorAll("tbody tr").length !== wanted) {
        if (performance.now() - began > 20_000) throw new Error(`${wanted} rows are not shown`);
        await new Promise(requestAnimationFrame);
    }
    document.body.getBoundingClientRect();
    return performance.now() - began;
}"""


async def submit_many(place: Place, count: int) -> None:
    limit = anyio.CapacityLimiter(AT_ONCE)

    async def submit() -> None:
        async with limit:
            await place.submit("crowd")

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(submit)


async def test_ten_thousand_predictions_are_shown_in_quick_pages(chromium: tuple[Any, str], place: Place) -> None:
    await submit_many(place, MANY)
    window, context = await opened(chromium, place.token, viewport={"width": 1440, "height": 900})
    await window.page.goto(f"{place.url}/#/predictions?account=crowd")
    rows = window.page.locator("tbody tr")
    await rows.first.wait_for()
    assert await rows.count() == PAGE
    more = window.page.get_by_role("button", name="Show more")
    took = [await window.page.evaluate(PRESSED, shown) for shown in range(2 * PAGE, MOST_ROWS + PAGE, PAGE)]
    assert min(took[-FEW:]) < MOST_TIMES_SLOWER * min(took[:FEW]), took
    await window.page.get_by_text("Narrow the list by filters").wait_for()
    assert not await more.is_visible()
    assert window.faults == []
    await context.close()
