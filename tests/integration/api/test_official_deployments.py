"""Test deployments with the official Python client against the real API process."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import replicate
from anyio import to_thread
from redis.asyncio import Redis
from replicate.exceptions import ReplicateError

from director.core.ids import QueueName
from tests.support.api import PlayedDirector, live_api
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
async def url(server: RedisServer, redis: Redis, queue: QueueName) -> AsyncIterator[str]:
    async with live_api(server.url) as live:
        yield live.url


@pytest.fixture
def official(url: str, token: str) -> Iterator[replicate.Client]:
    official = replicate.Client(api_token=token, base_url=url)
    yield official
    official._client.close()  # the client has no close method


async def within(call: Callable[[], Any]) -> Any:
    return await to_thread.run_sync(call)


async def test_create_get_list_update_predict_delete(official: replicate.Client, director: PlayedDirector) -> None:
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
