"""Test the official clients against the real API process, with a simulated director."""

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
import replicate
from anyio import to_thread
from redis.asyncio import Redis
from replicate.exceptions import ReplicateError

from director.broker.scripts import Scripts
from director.core.ids import QueueName
from director.core.policy import Policy
from director.core.states import Status
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.predictions import Predictions
from tests.support.api import LiveApi, PlayedDirector, live_api
from tests.support.clients import python_2_client, run_script
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer

HELLO = "example/hello"


@pytest.fixture(scope="module")
async def live(server: RedisServer) -> AsyncIterator[LiveApi]:
    async with live_api(server.url, env={"DIRECTOR_CACHE_S": "0"}) as live:
        yield live


@pytest.fixture
def official(
    live: LiveApi, token: str, queue: QueueName, hello: QueueName, monkeypatch: pytest.MonkeyPatch
) -> Iterator[replicate.Client]:
    monkeypatch.setenv("REPLICATE_POLL_INTERVAL", "0.02")
    official = replicate.Client(api_token=token, base_url=live.url)
    yield official
    official._client.close()  # the client has no close method


@pytest.fixture
def hello_director(scripts: Scripts, hello: QueueName) -> PlayedDirector:
    return PlayedDirector(scripts, hello)


async def within(call: Callable[[], Any]) -> Any:
    return await to_thread.run_sync(call)


def pieces(events: Iterable[Any]) -> list[tuple[str, str]]:
    return [(event.event.value, event.data) for event in events]


async def test_ended_prediction_can_still_be_streamed(official: replicate.Client, director: PlayedDirector) -> None:
    made = await within(lambda: official.predictions.create(version=VERSION, input={}))
    await director.finish(await director.claim(), output=b'"all of it"', logs="printed\n")
    assert await within(lambda: pieces(made.stream())) == [
        ("logs", "printed\n"),
        ("output", "all of it"),
        ("done", "{}"),
    ]
    assert await within(lambda: "".join(map(str, official.predictions.get(made.id).stream()))) == "all of it"


async def test_stream_of_a_failure_raises_its_error(official: replicate.Client, director: PlayedDirector) -> None:
    made = await within(lambda: official.predictions.create(version=VERSION, input={}))
    await director.finish(await director.claim(), Status.FAILED, error="boom")
    with pytest.raises(RuntimeError, match="boom"):
        await within(lambda: pieces(made.stream()))


async def test_stream_of_a_prediction_canceled_without_output_ends(official: replicate.Client) -> None:
    made = await within(lambda: official.predictions.create(version=VERSION, input={}))
    await within(lambda: official.predictions.cancel(made.id))
    assert await within(lambda: pieces(made.stream())) == [("done", '{"reason":"canceled"}')]


async def test_interrupted_stream_is_not_taken_for_complete(
    server: RedisServer, token: str, queue: QueueName, hello_director: PlayedDirector
) -> None:
    async def play() -> None:
        await hello_director.begin(await hello_director.claim(), b'"half"')

    def read() -> None:
        for event in official.stream(HELLO, input={"text": "hi"}):
            said.append(event.data)
            live.process.terminate()

    said: list[str] = []
    async with live_api(server.url) as live, anyio.create_task_group() as tasks:
        official = replicate.Client(api_token=token, base_url=live.url)
        tasks.start_soon(play)
        with pytest.raises(httpx.TransportError):
            await within(read)
        official._client.close()
    assert said == ["half"]


async def test_models_are_created_listed_and_found_and_their_versions_deleted(
    official: replicate.Client, catalog: Catalog
) -> None:
    said = {"description": "It paints.", "paper_url": "https://arxiv.org/abs/1"}
    made = await within(
        lambda: official.models.create(owner=ACCOUNT, name="painter", visibility="private", hardware="gpu-t4", **said)
    )
    assert (made.owner, made.name, made.visibility, made.description) == (ACCOUNT, "painter", "private", "It paints.")
    assert (made.latest_version, made.default_example, made.run_count) == (None, None, 0)
    await catalog.register(f"{ACCOUNT}/painter", "c" * 64, schema=OPEN_SCHEMA, server="0.23.1", policy=Policy())
    page = await within(official.models.list)
    assert [model.name for model in page] == ["painter", "hello", "echo"]
    assert [model.name for model in await within(lambda: official.models.search("paints"))] == ["painter"]
    versions = await within(made.versions.list)
    assert [version.id for version in versions] == ["c" * 64]
    version = await within(lambda: made.versions.get("c" * 64))
    assert (version.cog_version, version.openapi_schema["openapi"]) == ("0.23.1", "3.0.2")
    # the client accepts only a 204 as a success, and Replicate also answers 202
    assert await within(lambda: made.versions.delete("c" * 64)) is False
    assert list(await within(made.versions.list)) == []
    with pytest.raises(ReplicateError, match="already a model"):
        await within(
            lambda: official.models.create(owner=ACCOUNT, name="painter", visibility="private", hardware="cpu")
        )


async def test_deployment_is_made_changed_run_and_deleted(official: replicate.Client, director: PlayedDirector) -> None:
    deployments = official.deployments
    configuration = {"hardware": "gpu-l40s", "min_instances": 0, "max_instances": 2}
    made = await within(lambda: deployments.create(name="chat", model=MODEL, version=VERSION, **configuration))
    assert (made.id, made.current_release.number) == (f"{ACCOUNT}/chat", 1)
    assert made.current_release.created_by.username == ACCOUNT
    assert made.current_release.configuration.dict() == configuration

    changed = await within(lambda: deployments.update(ACCOUNT, "chat", max_instances=3))
    assert (changed.current_release.number, changed.current_release.configuration.max_instances) == (2, 3)
    assert await within(lambda: deployments.get(f"{ACCOUNT}/chat")) == changed
    page = await within(deployments.list)
    assert ([one.id for one in page.results], page.next) == ([made.id], None)

    ways: tuple[Callable[[], Any], ...] = (
        lambda: deployments.predictions.create(f"{ACCOUNT}/chat", input={"text": "hi"}),
        lambda: changed.predictions.create(input={"text": "hi"}),
        lambda: official.predictions.create(deployment=changed, input={"text": "hi"}),
    )
    for way in ways:
        prediction = await within(way)
        assert (prediction.status, prediction.version) == ("starting", VERSION)
        await director.finish(await director.claim(), output=b'"hello"')
        await within(prediction.wait)
        assert (prediction.status, prediction.output) == ("succeeded", "hello")

    assert await within(lambda: deployments.delete(ACCOUNT, "chat")) is True
    with pytest.raises(ReplicateError) as gone:
        await within(lambda: deployments.get(f"{ACCOUNT}/chat"))
    assert gone.value.status == 404


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


async def bursts(redis: Redis) -> dict[str, int]:
    return (await Accounts(redis).usage(ACCOUNT, day=0)).bursts


async def accepted(redis: Redis) -> list[str]:
    return [str(name) for name in await Predictions(redis).ids(ACCOUNT, count=100)]


@pytest.fixture
def cache(pytestconfig: pytest.Config) -> Path:
    assert pytestconfig.cache is not None
    return Path(pytestconfig.cache.mkdir("clients"))


async def test_refused_reads_wait_as_advised_and_recover(official: replicate.Client, redis: Redis) -> None:
    made = await within(lambda: official.predictions.create(version=VERSION, input={}))
    await Accounts(redis).set_limits(ACCOUNT, {"read_rate": "0.5", "read_burst": "1"})
    read = await within(lambda: [official.predictions.get(made.id).id for _ in range(2)])
    assert read == [made.id] * 2
    assert (await bursts(redis))["read"] >= 1


async def test_refused_creates_surface_a_typed_429_and_create_nothing(official: replicate.Client, redis: Redis) -> None:
    await Accounts(redis).set_limits(ACCOUNT, {"rate": "0.01", "burst": "1"})
    made = await within(lambda: official.predictions.create(version=VERSION, input={}))
    with pytest.raises(ReplicateError) as refused:
        await within(lambda: official.predictions.create(version=VERSION, input={}))
    assert refused.value.status == 429
    assert refused.value.detail == "Request was throttled. Your rate limit resets in ~100s."
    assert await accepted(redis) == [made.id]
    assert await bursts(redis) == {"create": 1}


@pytest.mark.usefixtures("queue")
@pytest.mark.heavy  # the client comes from a package registry
async def test_python_2_waits_and_recovers_for_creates_too(
    live: LiveApi, token: str, redis: Redis, cache: Path
) -> None:
    env = await within(lambda: python_2_client(cache))
    await Accounts(redis).set_limits(ACCOUNT, {"rate": "0.5", "burst": "1", "read_rate": "0.5", "read_burst": "1"})
    command = [sys.executable, "-c", PYTHON_2_SCRIPT, live.url, token, VERSION]
    made = await within(lambda: run_script(command, env=env))
    assert made["read"] == made["made"]
    assert sorted(await accepted(redis)) == sorted(made["made"])
    assert await bursts(redis) == {"create": 1, "read": 1}
