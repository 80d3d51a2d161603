"""Test that the official JavaScript client reads streams of the real process."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.core.ids import QueueName
from director.core.states import Status
from tests.support.api import LiveApi, PlayedDirector, live_api
from tests.support.clients import javascript_client, run_script
from tests.support.queue_driver import MODEL
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the client comes from a package registry

SCRIPT = r"""
const Replicate = require("replicate");
const [url, auth, model] = process.argv.slice(1);
const client = new Replicate({ auth, baseUrl: url + "/v1" });
(async () => {
  const told = [];
  try {
    for await (const event of client.stream(model, { input: {} })) told.push([event.event, event.data]);
  } catch (error) {
    told.push(["raised", error.message]);
  }
  console.log(JSON.stringify(told).replace(/\u2028/g, "\\u2028"));
})();
"""


@pytest.fixture
async def live(server: RedisServer, redis: Redis, queue: QueueName) -> AsyncIterator[LiveApi]:
    async with live_api(server.url) as live:
        yield live


@pytest.fixture
def cache(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("clients"))


@pytest.mark.parametrize(
    ("status", "ended", "end"),
    [
        (Status.SUCCEEDED, {}, [["done", "{}"]]),
        (Status.CANCELED, {}, [["done", '{"reason":"canceled"}']]),
        (Status.FAILED, {"error": "boom"}, [["raised", '{"detail":"boom"}']]),
    ],
)
async def test_each_piece_arrives_as_it_was_made_and_then_the_end(
    live: LiveApi,
    token: str,
    cache: Path,
    director: PlayedDirector,
    status: Status,
    ended: dict[str, Any],
    end: list[list[str]],
) -> None:
    env = await to_thread.run_sync(javascript_client, cache)
    told: list[list[str]] = []

    async def read() -> None:
        command = ["node", "-e", SCRIPT, live.url, token, MODEL]
        told.extend(await to_thread.run_sync(lambda: run_script(command, env=env)))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        claim = await director.claim()
        seq = await director.begin(claim, b'"one\\n"', b'" two\\r\\n\\u2028three"')
        await director.finish(claim, status, output=b'["one\\n"," two\\r\\n\\u2028three"]', seq=seq, **ended)
    assert told == [["output", "one\n"], ["output", " two\n\u2028three"], *end]
