"""The official Python client against the real process, with a director played beside it.

The client is synchronous, so it runs in a thread; what it silently depends on is what these tests hold.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
import replicate
from anyio import to_thread
from redis.asyncio import Redis
from replicate.exceptions import ModelError, ReplicateError

from director.core.ids import QueueName
from director.core.scripts import Scripts
from director.core.states import Status
from tests.integration.api.conftest import HELLO_VERSION
from tests.support.api import PlayedDirector, live_api
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio

HELLO = "example/hello"


@pytest.fixture
async def official(
    server: RedisServer, redis: Redis, token: str, queue: QueueName, hello: QueueName, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[replicate.Client]:
    monkeypatch.setenv("REPLICATE_POLL_INTERVAL", "0.02")
    async with live_api(server.url) as live:
        official = replicate.Client(api_token=token, base_url=live.url)
        yield official
        official._client.close()  # it has no close of its own


@pytest.fixture
def hello_director(scripts: Scripts, hello: QueueName) -> PlayedDirector:
    return PlayedDirector(scripts, hello)


async def within(call: Callable[[], Any]) -> Any:
    return await to_thread.run_sync(call)


async def meanwhile(call: Callable[[], Any], played: Callable[[], Any]) -> Any:
    """What the client's call returns, while a director does its part."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played)
        result = await within(call)
        tasks.cancel_scope.cancel()
    return result


async def test_create_get_list_cancel(official: replicate.Client, director: PlayedDirector) -> None:
    made = await within(lambda: official.predictions.create(version=VERSION, input={"text": "hi"}))
    assert (made.status, made.model, made.version, made.input) == ("starting", MODEL, VERSION, {"text": "hi"})
    await director.finish(await director.claim(), output=b'["a","b"]')
    got = await within(lambda: official.predictions.get(made.id))
    assert (got.status, got.output, got.metrics["total_time"] >= 0) == ("succeeded", ["a", "b"], True)

    waiting = await within(lambda: official.predictions.create(version=VERSION, input={}))
    canceled = await within(lambda: official.predictions.cancel(waiting.id))
    assert canceled.status == "canceled"
    await within(waiting.reload)
    assert waiting.status == "canceled"

    page = await within(official.predictions.list)
    assert [prediction.id for prediction in page] == [waiting.id, made.id]
    assert page.next is None


async def test_a_prediction_that_says_why_it_waits_is_taken_as_any_other(
    official: replicate.Client, director: PlayedDirector
) -> None:
    made = await within(lambda: official.predictions.create(version=VERSION, input={}))
    on_the_wire = await within(lambda: official._client.get(f"/v1/predictions/{made.id}"))
    assert on_the_wire.json()["queue"]["reason"] == "no_director"
    assert (await within(lambda: official.predictions.get(made.id))).status == "starting"
    await within(made.reload)
    await director.begin(await director.claim())
    await within(made.reload)
    assert made.status == "processing"


async def test_a_long_list_is_paged(official: replicate.Client, redis: Redis) -> None:
    def create_many() -> list[str]:
        return [official.predictions.create(version=VERSION, input={"n": n}).id for n in range(105)]

    ids = await within(create_many)
    pages = await within(lambda: paginate(official))
    assert [len(page) for page in pages] == [100, 5]
    assert sorted(name for page in pages for name in page) == sorted(ids)


def paginate(official: replicate.Client) -> list[list[str]]:
    pages = [official.predictions.list()]
    while pages[-1].next:
        pages.append(official.predictions.list(pages[-1].next))
    return [[prediction.id for prediction in page] for page in pages]


async def test_models_and_versions(official: replicate.Client) -> None:
    model = await within(lambda: official.models.get(HELLO))
    assert (model.owner, model.name, model.latest_version.id) == ("example", "hello", HELLO_VERSION)
    version = await within(lambda: model.versions.get(HELLO_VERSION))
    assert version.openapi_schema["components"]["schemas"]["Output"]["x-cog-array-type"] == "iterator"
    assert [found.id for found in await within(model.versions.list)] == [HELLO_VERSION]


async def test_account_and_webhook_secret(official: replicate.Client) -> None:
    account = await within(official.accounts.current)
    secret = await within(official.webhooks.default.secret)
    assert account.username == ACCOUNT
    assert secret.key.startswith("whsec_")


async def test_run_without_a_version_returns_the_output(official: replicate.Client, director: PlayedDirector) -> None:
    output = await meanwhile(
        lambda: official.run(MODEL, input={"text": "hi"}), lambda: director.run(lambda claim: bytes(claim.input))
    )
    assert output == {"text": "hi"}


async def test_run_with_a_version_of_an_iterator_yields_its_items(
    official: replicate.Client, hello_director: PlayedDirector
) -> None:
    pieces = await meanwhile(
        lambda: list(official.run(f"{HELLO}:{HELLO_VERSION}", input={"text": "hi"})),
        lambda: hello_director.run(lambda _: b'["hi 1\\n","hi 2\\n"]'),
    )
    assert pieces == ["hi 1\n", "hi 2\n"]


async def test_run_of_an_iterator_that_outlasts_the_wait_yields_every_item_once(
    official: replicate.Client, hello_director: PlayedDirector
) -> None:
    async def play() -> None:
        claim = await hello_director.claim()
        await hello_director.begin(claim, b'"a"', b'"b"')
        await anyio.sleep(1.2)  # past the wait: the client was told 202 by then, and polls
        await hello_director.finish(claim, output=b'["a","b","c"]')

    pieces = await meanwhile(lambda: list(official.run(f"{HELLO}:{HELLO_VERSION}", input={"text": "hi"}, wait=1)), play)
    assert pieces == ["a", "b", "c"]


async def test_run_that_outlasts_the_wait_returns_no_truncated_output(
    official: replicate.Client, director: PlayedDirector
) -> None:
    async def play() -> None:
        claim = await director.claim()
        await director.begin(claim, b'"a"')
        await anyio.sleep(1.2)
        await director.finish(claim, output=b'["a","b"]')

    assert await meanwhile(lambda: official.run(MODEL, input={}, wait=1), play) == ["a", "b"]


async def test_run_of_a_model_that_fails_raises_its_error(official: replicate.Client, director: PlayedDirector) -> None:
    async def play() -> None:
        await director.finish(await director.claim(), Status.FAILED, error="boom")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(play)
        with pytest.raises(ModelError, match="boom"):
            await within(lambda: official.run(MODEL, input={}))


async def test_wait_ends_with_the_prediction(official: replicate.Client, director: PlayedDirector) -> None:
    made = await within(lambda: official.predictions.create(version=VERSION, input={}))
    await meanwhile(made.wait, lambda: director.run(lambda _: b"7"))
    assert (made.status, made.output) == ("succeeded", 7)


async def test_a_refusal_is_an_error_with_words(official: replicate.Client) -> None:
    with pytest.raises(ReplicateError) as refused:
        await within(lambda: official.predictions.create(version=HELLO_VERSION, input={"n": "five"}))
    assert refused.value.status == 422
    assert "text is required" in (refused.value.detail or "")
    with pytest.raises(ReplicateError) as unknown:
        await within(lambda: official.run("nobody/nothing", input={}))
    assert unknown.value.status == 404
