"""Test how official clients react to a 429 of the real process: they wait and retry, raise, or retry in a storm.

The clients sleep as long as the answer says, so some of these tests take a second or two.
"""

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import replicate
from anyio import to_thread
from redis.asyncio import Redis
from replicate.exceptions import ReplicateError

from director.core.ids import QueueName
from director.store.accounts import Accounts
from director.store.predictions import Predictions
from tests.support.api import LiveApi, live_api
from tests.support.clients import javascript_client, python_2_client, run_script
from tests.support.queue_driver import ACCOUNT, VERSION
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio

PYTHON_2_SCRIPT = """
import json, sys
import replicate

url, token, version = sys.argv[1:]
assert replicate.__version__.startswith("2."), replicate.__version__
client = replicate.Replicate(bearer_token=token, base_url=url + "/v1")
made = [client.predictions.create(version=version, input={}).id for _ in range(2)]
read = [client.predictions.get(prediction_id=name).id for name in made]
print(json.dumps({"made": made, "read": read}))
"""

JAVASCRIPT_SCRIPT = """
const Replicate = require("replicate");
const [url, auth, version] = process.argv.slice(1);
const times = [];
const counting = (...args) => { times.push(performance.now()); return fetch(...args); };
const client = new Replicate({ auth, baseUrl: url + "/v1", fetch: counting });
(async () => {
  const made = await client.predictions.create({ version, input: {} });
  times.length = 0;
  let status = 201;
  try {
    await client.predictions.create({ version, input: {} });
  } catch (error) {
    status = error.response.status;
  }
  console.log(JSON.stringify({ made: made.id, status, requests: times.length }));
})();
"""


@pytest.fixture
async def live(server: RedisServer, redis: Redis, queue: QueueName) -> AsyncIterator[LiveApi]:
    async with live_api(server.url, env={"DIRECTOR_CACHE_S": "0"}) as live:
        yield live


@pytest.fixture
def cache(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("clients"))


async def within(call: Callable[[], Any]) -> Any:
    return await to_thread.run_sync(call)


async def bursts(redis: Redis) -> dict[str, int]:
    return (await Accounts(redis).usage(ACCOUNT, day=0)).bursts


async def accepted(redis: Redis) -> list[str]:
    return [str(name) for name in await Predictions(redis).ids(ACCOUNT, count=100)]


class TestPython1:
    @pytest.fixture
    def official(self, live: LiveApi, token: str) -> Any:
        official = replicate.Client(api_token=token, base_url=live.url)
        yield official
        official._client.close()  # the client has no close method

    async def test_reads_wait_as_advised_and_recover(self, official: replicate.Client, redis: Redis) -> None:
        made = await within(lambda: official.predictions.create(version=VERSION, input={}))
        await Accounts(redis).set_limits(ACCOUNT, {"read_rate": "0.5", "read_burst": "1"})
        read = await within(lambda: [official.predictions.get(made.id).id for _ in range(2)])
        assert read == [made.id] * 2
        assert (await bursts(redis))["read"] >= 1

    async def test_creates_surface_a_typed_429_and_create_nothing(
        self, official: replicate.Client, redis: Redis
    ) -> None:
        await Accounts(redis).set_limits(ACCOUNT, {"rate": "0.01", "burst": "1"})
        made = await within(lambda: official.predictions.create(version=VERSION, input={}))
        with pytest.raises(ReplicateError) as refused:
            await within(lambda: official.predictions.create(version=VERSION, input={}))
        assert refused.value.status == 429
        assert refused.value.detail == "Request was throttled. Your rate limit resets in ~100s."
        assert await accepted(redis) == [made.id]
        assert await bursts(redis) == {"create": 1}


@pytest.mark.heavy  # the client comes from a package registry
async def test_python_2_waits_and_recovers_for_creates_too(
    live: LiveApi, token: str, redis: Redis, cache: Path
) -> None:
    env = await within(lambda: python_2_client(cache))
    await Accounts(redis).set_limits(ACCOUNT, {"rate": "0.5", "burst": "1", "read_rate": "0.5", "read_burst": "1"})
    command = [sys.executable, "-c", PYTHON_2_SCRIPT, live.url, token, VERSION]
    told = await within(lambda: run_script(command, env=env))
    assert told["read"] == told["made"]
    assert sorted(await accepted(redis)) == sorted(told["made"])
    assert await bursts(redis) == {"create": 1, "read": 1}


@pytest.mark.heavy  # the client comes from a package registry
async def test_six_javascript_retries_are_one_denied_burst_and_create_nothing_twice(
    live: LiveApi, token: str, redis: Redis, cache: Path
) -> None:
    env = await within(lambda: javascript_client(cache))
    await Accounts(redis).set_limits(ACCOUNT, {"rate": "0.01", "burst": "1"})
    command = ["node", "-e", JAVASCRIPT_SCRIPT, live.url, token, VERSION]
    told = await within(lambda: run_script(command, env=env))
    assert (told["status"], told["requests"]) == (429, 6)
    assert await accepted(redis) == [told["made"]]
    assert await bursts(redis) == {"create": 1}
