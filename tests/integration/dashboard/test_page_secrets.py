"""Test in a real browser that the value of a secret input appears on no view, in no answer and in no storage."""

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest

from director.broker.redis_client import client
from director.store.accounts import SCOPES, Accounts
from tests.integration.dashboard.conftest import Service, log_in
from tests.integration.dashboard.test_page import VIEWS
from tests.integration.runtime.test_secret_inputs import (
    DIGEST,
    HIDDEN,
    HUSH,
    MODEL,
    NEXT,
    SOURCE,
    VERSION,
    schema,
)
from tests.support.api import live_api
from tests.support.browser import Window
from tests.support.cog import write_model
from tests.support.live_director import Gate, director_process, keeper_process, supervised_cog
from tests.support.servers import redis_server

pytestmark = [pytest.mark.anyio, pytest.mark.cog, pytest.mark.heavy]  # the browser comes from a Debian package

# what the page was answered, streams too
LISTENING: Final = """
    const asks = window.fetch;
    window.heard = [];
    window.asking = 0;
    window.fetch = async (...given) => {
        window.asking += 1;
        const answer = await asks(...given).finally(() => { window.asking -= 1; });
        const reader = answer.clone().body?.getReader();
        const words = new TextDecoder();
        (async () => {
            for (let piece; reader && !(piece = await reader.read()).done;)
                window.heard.push(words.decode(piece.value, { stream: true }));
        })().catch(() => {});
        return answer;
    };
"""
# what stands in the page, in its fields, and in all that outlives a view
KEPT: Final = """async () => {
    const fields = [...document.querySelectorAll("input, textarea, select")];
    const databases = await indexedDB.databases();
    return JSON.stringify([
        document.title, document.documentElement.outerHTML, document.cookie, location.href, history.state, window.name,
        fields.filter((field) => field.type !== "password").map((field) => field.value),
        { ...localStorage }, { ...sessionStorage }, databases, await caches.keys(),
    ]);
}"""


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Service]:
    folder = tmp_path_factory.mktemp("service")
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        redis = client(server.url)
        stack.push_async_callback(redis.aclose)
        cog = await stack.enter_async_context(supervised_cog(write_model(folder / "model", SOURCE, schema())))
        api = await stack.enter_async_context(live_api(server.url))
        await stack.enter_async_context(keeper_process(server.url, port=0))
        given = {"model": MODEL, "version": VERSION, "attempts": 1, "port": 0}
        director = await stack.enter_async_context(director_process(server.url, cog.url, **given))
        await director.says("model registered")
        token = await Accounts(redis).create_token("acme", scopes=SCOPES)
        yield Service(url=api.url, redis_url=server.url, redis=redis, hello=cog.url, frail=cog.url, token=token)


class Reader:
    """Visits views, and keeps all that each shows and stores."""

    def __init__(self, window: Window, service: Service) -> None:
        self.page = window.page
        self.url = service.url
        self.kept: dict[str, str] = {}

    async def visit(self, path: str) -> None:
        await self.page.goto(f"{self.url}/#{path}")
        await self.page.locator("main h1").first.wait_for()
        await self.page.wait_for_function("() => window.asking === 0")
        await self.keep(path)

    async def keep(self, where: str) -> None:
        self.kept[where] = await self.page.evaluate(KEPT)

    async def run(self, status: str, *, text: str, gate: str = "") -> str:
        """Run the model from its form, look at it meanwhile, and return the id."""
        await self.page.goto(f"{self.url}/#/predictions")
        await self.page.goto(f"{self.url}/#/models/{MODEL}")
        for name, value in {"token": HUSH, "keys": json.dumps([NEXT]), "text": text, "gate": gate}.items():
            await self.page.locator(f"#in-{name}").fill(value)
        await self.page.get_by_role("button", name="Run").click()
        result = self.page.get_by_role("region", name="Result")
        await result.get_by_text("processing" if gate else status).first.wait_for()
        made = str(await result.locator("a[href*='#/predictions/']").first.inner_text())
        await self.keep(f"run {text}")
        if gate:
            await self.page.goto(f"{self.url}/#/predictions/{made}")
            await self.page.locator(".chip.processing").first.wait_for()
            await self.keep(f"while {text} runs")
            Gate(Path(gate)).open()
            await self.page.locator(f".chip.{status}").first.wait_for()
        return made

    async def opened(self, made: str) -> None:
        """Open every part of a prediction's own view."""
        await self.visit(f"/predictions/{made}")
        await self.page.get_by_text("Input", exact=True).first.wait_for()
        await self.page.evaluate("() => document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        await self.page.get_by_text('"token"').first.wait_for()
        await self.keep(f"all of {made}")


async def test_no_view_answer_or_storage_has_the_value_of_a_secret(
    chromium: tuple[Any, str], service: Service, tmp_path: Path
) -> None:
    started, script = chromium
    context = await started.new_context(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    context.on("request", lambda request: asked.append(f"{request.url} {request.headers}"))
    said: list[str] = []
    window = Window(await context.new_page(), script)
    window.page.on("console", lambda message: said.append(message.text))
    window.page.set_default_timeout(60_000)
    await window.page.add_init_script(LISTENING)
    await log_in(window, service)
    reader = Reader(window, service)
    made = [
        await reader.run("succeeded", text="plain"),
        await reader.run("succeeded", text="gated", gate=str(tmp_path / "gate")),
        await reader.run("failed", text="raise"),
        await reader.run("failed", text="exit"),
    ]
    for prediction in made:
        await reader.opened(prediction)
    assert "is not a token" in reader.kept[f"/predictions/{made[2]}"]
    await reader.visit("/dead")
    await window.page.get_by_role("button", name="Revive", exact=True).first.click()
    await window.page.get_by_text("secret").first.wait_for()
    await reader.keep("revive")
    for view in (*VIEWS, f"/models/{MODEL}", f"/queues/{MODEL}:{VERSION[:12]}", f"/tenants/{MODEL}:{VERSION[:12]}"):
        await reader.visit(view)
    heard = "".join(await window.page.evaluate("() => window.heard"))
    await context.close()
    assert DIGEST in heard
    assert HIDDEN in heard
    everything = {**reader.kept, "answers": heard, "requests": "\n".join(asked), "console": "\n".join(said)}
    assert [where for where, text in everything.items() if HUSH in text] == []
