"""Test the official Python client against the real API process, with a simulated director.

The client is synchronous, so it runs in a thread. These tests pin the behaviour on which it silently depends.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import anyio
import httpx
import pytest
import replicate
from anyio import to_thread
from redis.asyncio import Redis
from replicate.exceptions import ModelError, ReplicateError

from director.broker.scripts import Scripts
from director.core.ids import QueueName
from director.core.policy import Policy
from director.core.states import Status
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.models import Collection, Collections
from tests.integration.api.conftest import HELLO_VERSION
from tests.support.api import LiveApi, PlayedDirector, live_api
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer

pytestmark = pytest.mark.anyio

HELLO = "example/hello"


@pytest.fixture
async def live(server: RedisServer, redis: Redis, queue: QueueName, hello: QueueName) -> AsyncIterator[LiveApi]:
    async with live_api(server.url) as live:
        yield live


@pytest.fixture
def official(live: LiveApi, token: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[replicate.Client]:
    monkeypatch.setenv("REPLICATE_POLL_INTERVAL", "0.02")
    official = replicate.Client(api_token=token, base_url=live.url)
    yield official
    official._client.close()  # the client has no close method


@pytest.fixture
def hello_director(scripts: Scripts, hello: QueueName) -> PlayedDirector:
    return PlayedDirector(scripts, hello)


async def within(call: Callable[[], Any]) -> Any:
    return await to_thread.run_sync(call)


async def meanwhile(call: Callable[[], Any], played: Callable[[], Any]) -> Any:
    """Run the client's call while the director works. Return the result of the call."""
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


async def test_client_accepts_a_prediction_that_explains_its_wait(
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


async def test_long_list_is_paged(official: replicate.Client, redis: Redis) -> None:
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
        await anyio.sleep(1.2)  # after the wait: the client got a 202 by then, and polls
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


async def test_run_of_a_failing_model_raises_its_error(official: replicate.Client, director: PlayedDirector) -> None:
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


async def test_refusal_is_an_error_with_a_message(official: replicate.Client) -> None:
    with pytest.raises(ReplicateError) as refused:
        await within(lambda: official.predictions.create(version=HELLO_VERSION, input={"n": "five"}))
    assert refused.value.status == 422
    assert "text is required" in (refused.value.detail or "")
    with pytest.raises(ReplicateError) as unknown:
        await within(lambda: official.run("nobody/nothing", input={}))
    assert unknown.value.status == 404


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────


def pieces(events: Iterable[Any]) -> list[tuple[str, str]]:
    return [(event.event.value, event.data) for event in events]


async def test_stream_yields_each_piece_and_then_done(
    official: replicate.Client, hello_director: PlayedDirector
) -> None:
    async def play() -> None:
        claim = await hello_director.claim()
        seq = await hello_director.begin(claim, b'"hi 1\\n"', b'" two"')
        await hello_director.finish(claim, output=b'["hi 1\\n"," two"]', seq=seq)
        await anyio.sleep_forever()

    for ref in (HELLO, f"{HELLO}:{HELLO_VERSION}"):
        said = await meanwhile(lambda ref=ref: pieces(official.stream(ref, input={"text": "hi"})), play)
        assert said == [("output", "hi 1\n"), ("output", " two"), ("done", "{}")]


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
    official: replicate.Client, live: LiveApi, hello_director: PlayedDirector
) -> None:
    async def play() -> None:
        await hello_director.begin(await hello_director.claim(), b'"half"')

    def read() -> list[str]:
        for event in official.stream(HELLO, input={"text": "hi"}):
            said.append(event.data)
            live.process.terminate()
        return said

    said: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(play)
        with pytest.raises(httpx.TransportError):
            await within(read)
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


async def test_collections_and_hardware_are_read(official: replicate.Client, redis: Redis) -> None:
    await Collections(redis).put("best", Collection(name="The best", models=(HELLO,)))
    [listed] = await within(official.collections.list)
    assert (listed.slug, listed.name, listed.description) == ("best", "The best", "")
    best = await within(lambda: official.collections.get("best"))
    assert [model.name for model in best] == ["hello"]
    assert [hardware.sku for hardware in await within(official.hardware.list)] == ["cpu", "gpu"]
