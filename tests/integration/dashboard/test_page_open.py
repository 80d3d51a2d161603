"""Test in a real browser that a page which is open for eight hours does not grow.

The hours are those of the browser's clock. It stands still while answers come, and then moves by one poll at a time,
so the page asks, reads its feed, redraws and ages as often as in eight real hours. Answers are those of a real service
with traffic. Only the pace of the feed is played: for every two seconds of the browser's clock the newest real
snapshot comes once more, with another number that waits, so that it is drawn.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import pytest

from director.core.states import Status
from tests.integration.dashboard.conftest import MODEL, Place, opened
from tests.support.api import PlayedDirector
from tests.support.browser import Window

pytestmark = [pytest.mark.anyio, pytest.mark.heavy, pytest.mark.long]  # the browser comes from a Debian package

HOURS: Final = 8
FEED_S: Final = 2
WARM: Final = 200  # polls before the first look
ALIVE_S: Final = 0.05  # between two predictions of the traffic
MOST_GROWTH: Final = {"Nodes": 1.1, "JSEventListeners": 1.1, "JSHeapUsedSize": 1.15, "Documents": 1.0}
COUNTS: Final = "() => [told, drawn]"
REQUESTS: Final = re.compile(r"^director_api_requests_total\{(.*)\} (\S+)$", re.MULTILINE)
# `settled` waits until every answer was read and drawn. `told` counts the snapshots that the page was given,
# `drawn` the times that its view changed.
PLAYED: Final = """
    (feed_ms) => {
        const asks = window.fetch;
        let underway = 0;
        window.told = window.drawn = 0;
        document.addEventListener("DOMContentLoaded", () => {
            const looker = new MutationObserver(() => { window.drawn += 1; });
            looker.observe(document.getElementById("main"), { childList: true, subtree: true, characterData: true });
        });
        const turn = () => new Promise((done) => {
            const { port1, port2 } = new MessageChannel();
            port1.onmessage = () => { port1.close(); done(); };
            port2.postMessage(null);
        });
        window.settled = async () => { do { for (let n = 0; n < 3; n += 1) await turn(); } while (underway); };
        window.fetch = async (url, given) => {
            const isFeed = String(url).includes("/admin/live");
            underway += 1;
            try {
                const answer = await asks(url, given);
                if (isFeed && answer.ok) return new Response(repeated(answer.body), { headers: answer.headers });
                await answer.clone().arrayBuffer();
                return answer;
            } finally { underway -= 1; }
        };
        function repeated(body) {
            const reader = body.getReader();
            const decoder = new TextDecoder();
            let rest = "", newest = null, timer;
            return new ReadableStream({
                start(to) {
                    const tell = () => {
                        for (const queue of newest.queues) queue.waiting.normal = window.told % 100;
                        window.told += 1;
                        to.enqueue(new TextEncoder().encode(`event: snapshot\\ndata: ${JSON.stringify(newest)}\\n\\n`));
                    };
                    const fail = (error) => { clearInterval(timer); to.error(error); };
                    const read = ({ value, done }) => {
                        if (done) return fail(new Error("The service ended the feed."));
                        const blocks = (rest + decoder.decode(value, { stream: true })).split("\\n\\n");
                        rest = blocks.pop();
                        const last = blocks.filter((block) => block.startsWith("event: snapshot")).at(-1);
                        const isFirst = !newest;
                        if (last) newest = JSON.parse(last.slice(last.indexOf("data: ") + 6));
                        if (isFirst && newest) { tell(); timer = setInterval(tell, feed_ms); }
                        return reader.read().then(read, fail);
                    };
                    reader.read().then(read, fail);
                },
                cancel(reason) { clearInterval(timer); return reader.cancel(reason); },
            });
        }
    }
"""


@asynccontextmanager
async def traffic(place: Place) -> AsyncGenerator[None]:
    """Predictions are made, run and ended all the time. One in five fails, and some wait."""
    played = PlayedDirector(place.scripts, place.queue)

    async def run() -> None:
        number = 0
        while True:
            number += 1
            await place.submit()
            if number % 20 < 15:  # the others wait, up to five at a time
                claim = await played.claim()
                seq = await played.begin(claim, b'"word "')
                fails = number % 5 == 0
                ended: dict[str, Any] = (
                    {"error": "No memory.", "code": "model_failed"} if fails else {"output": b'"word"'}
                )
                await played.finish(claim, Status.FAILED if fails else Status.SUCCEEDED, seq=seq, **ended)
            elif number % 20 == 19:
                for _ in range(5):
                    waiting = await played.claim()
                    await played.finish(waiting, seq=await played.begin(waiting), output=b'"late"')
            await anyio.sleep(ALIVE_S)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        yield
        tasks.cancel_scope.cancel()


@pytest.fixture
async def window(chromium: tuple[Any, str], place: Place) -> AsyncIterator[Window]:
    window, context = await opened(chromium, place.token, viewport={"width": 1440, "height": 900})
    await window.page.clock.install(time=datetime.now(UTC))
    await context.add_init_script(f"({PLAYED})({1000 * FEED_S})")
    yield window
    await context.close()


async def answered(place: Place, route: str) -> int:
    """Return how many requests of this route the API answered well."""
    async with place.caller() as caller:
        text = (await caller.get("/metrics")).text
    told = [(labels, float(value)) for labels, value in REQUESTS.findall(text)]
    return int(sum(value for labels, value in told if f'route="{route}"' in labels and 'status="200"' in labels))


def connections(url: str) -> int:
    """Return how many connections the API has open, as the kernel counts them."""
    port = urlsplit(url).port
    found = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(f":{port:04X}" == line.split()[1][-5:] and line.split()[3] == "01" for line in found)


@pytest.mark.parametrize(
    ("view", "heading", "route", "poll_s"),
    [
        ("/", "Home", "/admin/history", 10),
        (f"/models/{MODEL}", MODEL, "/models/states", 5),
        ("/queues/{queue}", MODEL, "/admin/queues/{owner}/{name}/{version}", 3),
    ],
    ids=["home", "model", "queue"],
)
async def test_page_that_is_open_for_eight_hours_does_not_grow(
    window: Window, place: Place, view: str, heading: str, route: str, poll_s: int
) -> None:
    page = window.page
    tool = await page.context.new_cdp_session(page)
    await tool.send("Performance.enable")

    async def measure() -> dict[str, float]:
        for _ in range(3):
            await tool.send("HeapProfiler.collectGarbage")
        found = (await tool.send("Performance.getMetrics"))["metrics"]
        return {one["name"]: one["value"] for one in found if one["name"] in MOST_GROWTH}

    async def now() -> float:
        return float(await page.evaluate("Date.now()"))

    async def pass_time(polls: int) -> None:
        for _ in range(polls):
            await page.clock.run_for(1000 * poll_s)
            await page.evaluate("settled()")

    async with traffic(place):
        await page.goto(f"{place.url}/#{view.format(queue=place.queue)}")
        await page.get_by_role("heading", name=heading).first.wait_for()
        await page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=1))
        await pass_time(WARM)
        before, open_before = await measure(), connections(place.url)
        counted, asked, began = await page.evaluate(COUNTS), await answered(place, route), await now()
        polls = HOURS * 3600 // poll_s
        await pass_time(polls)
        passed_s = (await now() - began) / 1000
        asked = await answered(place, route) - asked
        told, drawn = [end - begin for end, begin in zip(await page.evaluate(COUNTS), counted, strict=True)]
        after, open_after = await measure(), connections(place.url)
    grown = ", ".join(f"{name} {before[name]:,.0f} to {after[name]:,.0f}" for name in MOST_GROWTH)
    grown += f", connections {open_before} to {open_after}"
    text = f"{view}: {asked:,} polls, {told:,} snapshots, drawn {drawn:,} times; {grown}"
    print(text)
    assert passed_s >= 3600 * HOURS - 1, text
    assert asked >= 0.95 * polls, text
    assert drawn >= 0.05 * polls, text  # what stays the same is not drawn again
    assert told >= 0.95 * HOURS * 3600 / FEED_S, text
    assert all(after[name] <= most * before[name] for name, most in MOST_GROWTH.items()), text
    assert open_after <= open_before, text
    assert window.faults == []
