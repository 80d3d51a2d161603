"""Test that a list shows each prediction of its account once, newest first, in whichever direction it is paged."""

import asyncio
from contextlib import closing
from itertools import chain

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import PredictionId, QueueName, lowest_id_at, new_prediction_id
from director.core.policy import shard
from director.core.settings import ApiSettings
from director.core.states import Status
from director.lab.chaos.client import status_of
from director.lab.chaos.wire import Caller
from director.store.accounts import Accounts
from tests.support.api import PlayedDirector, api_client, live_api
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, enqueue
from tests.support.servers import RedisServer

START_MS = 1_750_000_000_000
OLDEST = lowest_id_at(0)


@pytest.fixture
async def filed(scripts: Scripts, queue: QueueName) -> list[PredictionId]:
    ids = [new_prediction_id(model=MODEL, now_ms=START_MS + 1000 * number) for number in range(250)]
    await asyncio.gather(*(file(scripts, queue, prediction_id) for prediction_id in ids))
    return ids[::-1]


async def file(scripts: Scripts, queue: QueueName, prediction_id: PredictionId, data: bytes = b"{}") -> None:
    await scripts.enlist(prediction_id, account=ACCOUNT, oldest=OLDEST)
    await enqueue(
        scripts,
        prediction_id,
        queue=queue,
        account=ACCOUNT,
        model=MODEL,
        version=VERSION,
        shard=shard(ACCOUNT, streams=16, size=2),
        input=data,
        url="http://director.test",
    )


async def walk(api: AsyncClient, url: str | None, direction: str = "next") -> list[list[str]]:
    pages = []
    while url is not None:
        answer = await api.get(url)
        assert answer.status_code == 200
        page = answer.json()
        pages.append([prediction["id"] for prediction in page["results"]])
        url = page[direction]
        assert url is None or url.startswith("http://director.test/v1/predictions?")
    return pages


async def test_next_leads_through_all_predictions_once(api: AsyncClient, filed: list[PredictionId]) -> None:
    pages = await walk(api, "/v1/predictions")
    assert [len(page) for page in pages] == [100, 100, 50]
    assert [*chain(*pages)] == filed


async def test_a_client_of_a_chaos_run_finds_what_a_later_page_has(
    server: RedisServer, token: str, filed: list[PredictionId]
) -> None:
    unknown = new_prediction_id(model=MODEL, now_ms=START_MS)
    async with live_api(server.url) as live:
        with closing(Caller(live.url)) as caller:
            assert await status_of(caller, "/v1/predictions", filed[-1], token) == "starting"
            assert await status_of(caller, "/v1/predictions", unknown, token) == ""


@pytest.mark.parametrize("start_ms", [START_MS, 2 * START_MS], ids=["behind", "ahead"])
async def test_list_descends_in_created_at_whatever_the_clock_of_the_api(
    api: AsyncClient, scripts: Scripts, queue: QueueName, start_ms: int
) -> None:
    for number in range(110, 0, -1):  # filed out of order
        await file(scripts, queue, new_prediction_id(model=MODEL, now_ms=start_ms + number))
    first = (await api.get("/v1/predictions")).json()
    created = [one["created_at"] for one in first["results"] + (await api.get(first["next"])).json()["results"]]
    assert created == sorted(created, reverse=True)
    assert len(set(created)) == 110


async def test_previous_leads_back_to_the_newest(api: AsyncClient, filed: list[PredictionId]) -> None:
    second = (await api.get((await api.get("/v1/predictions")).json()["next"])).json()
    last = (await api.get(second["next"])).json()
    pages = await walk(api, last["previous"], "previous")
    assert pages == [filed[100:200], filed[:100]]
    first = (await api.get(second["previous"])).json()
    assert first["previous"] is None
    assert (await api.get(first["next"])).json()["results"] == second["results"]


async def test_account_without_predictions_has_an_empty_page(api: AsyncClient) -> None:
    assert (await api.get("/v1/predictions")).json() == {"next": None, "previous": None, "results": []}


async def test_predictions_created_meanwhile_do_not_shift_pages(
    api: AsyncClient, filed: list[PredictionId], scripts: Scripts, queue: QueueName
) -> None:
    first = (await api.get("/v1/predictions")).json()
    await file(scripts, queue, new_prediction_id(model=MODEL, now_ms=START_MS + 10**9))
    rest = await walk(api, first["next"])
    assert [*chain(*rest)] == filed[100:]


async def test_filters_are_kept_in_every_link(api: AsyncClient, filed: list[PredictionId]) -> None:
    # from the 20th second up to, but without, the 200th
    query = "created_after=2025-06-15T15:07:00Z&created_before=2025-06-15T15:10:00%2B00:00"
    pages = await walk(api, f"/v1/predictions?{query}")
    assert [*chain(*pages)] == filed[50:230]
    assert [*chain(*await walk(api, "/v1/predictions?created_after=2025-06-15T15:10:00"))] == filed[:50], "it is UTC"


async def test_limit_bounds_each_page_or_is_refused(api: AsyncClient, filed: list[PredictionId]) -> None:
    pages = await walk(api, "/v1/predictions?limit=99")
    assert [len(page) for page in pages] == [99, 99, 52]
    assert [*chain(*pages)] == filed
    assert (await walk(api, "/v1/predictions?limit=1&status=starting"))[:2] == [[filed[0]], [filed[1]]]
    for wrong in ("-1", "0", "101", "ten", "1e1"):
        answer = await api.get(f"/v1/predictions?limit={wrong}")
        assert (answer.status_code, answer.json()["invalid_fields"][0]["field"]) == (422, "limit")


async def test_index_entry_without_a_prediction_is_skipped(
    api: AsyncClient, filed: list[PredictionId], redis: Redis
) -> None:
    refused = [new_prediction_id(model=MODEL, now_ms=START_MS + 500 + 1000 * number) for number in range(0, 250, 2)]
    await redis.zadd(keys.listing(ACCOUNT), dict.fromkeys(refused, 0))
    assert [*chain(*await walk(api, "/v1/predictions"))] == filed


async def test_page_that_reads_too_much_ends_early_with_a_next(
    api: AsyncClient, filed: list[PredictionId], redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.predictions.listing.MOST_READ", 40)
    refused = [new_prediction_id(model=MODEL, now_ms=START_MS + 10**9 + number) for number in range(100)]
    await redis.zadd(keys.listing(ACCOUNT), dict.fromkeys(refused, 0))
    pages = await walk(api, "/v1/predictions")
    assert [len(page) for page in pages[:3]] == [0, 0, 20]
    assert [*chain(*pages)] == filed


async def test_heavy_page_ends_early_with_a_next(
    api: AsyncClient, scripts: Scripts, queue: QueueName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.predictions.listing.HEAVY_BYTES", 20_000)
    ids = [new_prediction_id(model=MODEL, now_ms=START_MS + number) for number in range(60)]
    for prediction_id in ids:
        await file(scripts, queue, prediction_id, b'{"text":"%b"}' % (b"x" * 1000))
    pages = await walk(api, "/v1/predictions")
    assert [len(page) for page in pages] == [19, 19, 19, 3]
    assert [*chain(*pages)] == ids[::-1]


async def test_large_outputs_are_read_one_page_at_a_time(
    api: AsyncClient, director: PlayedDirector, scripts: Scripts, queue: QueueName, redis: Redis
) -> None:
    ids = [new_prediction_id(model=MODEL, now_ms=START_MS + number) for number in range(6)]
    large = b'"%b"' % (b"x" * (8 * 1024 * 1024 - 10))
    middle, small = (b'"%b"' % (b"x" * size) for size in (3_000_000, 1_000_000))
    outputs = dict(zip(ids, [large, b"1", large, middle, small, b"2"], strict=True))
    for prediction_id in ids:
        await file(scripts, queue, prediction_id)
        claim = await director.claim()
        await director.finish(claim, output=outputs[claim.id])
    before = int((await redis.info("stats"))["total_net_output_bytes"])
    first = await api.get("/v1/predictions")
    sent = int((await redis.info("stats"))["total_net_output_bytes"]) - before
    assert sent < len(large)
    assert len(first.json()["results"]) == 3
    assert await walk(api, "/v1/predictions") == [ids[:2:-1], [ids[2]], [ids[1]], [ids[0]]]


async def test_run_with_much_output_ends_its_page(
    api: AsyncClient, director: PlayedDirector, scripts: Scripts, queue: QueueName
) -> None:
    ids = [new_prediction_id(model=MODEL, now_ms=START_MS + number) for number in range(4)]
    for prediction_id in ids:
        await file(scripts, queue, prediction_id)
        await director.begin(await director.claim(), b'"%b"' % (b"x" * 3_000_000))
    pages = await walk(api, "/v1/predictions")
    assert pages == [[ids[3], ids[2]], [ids[1], ids[0]]]


async def test_list_is_filtered_by_status_model_or_version(
    api: AsyncClient, filed: list[PredictionId], director: PlayedDirector
) -> None:
    ended = set()
    for _ in range(3):
        claim = await director.claim()
        await director.finish(claim, Status.SUCCEEDED)
        ended.add(claim.id)
    running = await director.claim()
    await director.begin(running)
    assert set(chain(*await walk(api, "/v1/predictions?status=succeeded"))) == ended
    assert [*chain(*await walk(api, "/v1/predictions?status=processing"))] == [running.id]
    assert len([*chain(*await walk(api, "/v1/predictions?status=starting"))]) == 250 - 4
    assert [*chain(*await walk(api, f"/v1/predictions?model={MODEL}&version={VERSION}"))] == filed
    assert [*chain(*await walk(api, "/v1/predictions?model=acme/other"))] == []
    assert [*chain(*await walk(api, "/v1/predictions?source=web"))] == []
    assert [*chain(*await walk(api, "/v1/predictions?source=api"))] == filed


async def test_only_operators_list_another_account(
    api: AsyncClient, filed: list[PredictionId], settings: ApiSettings, redis: Redis
) -> None:
    operator = await Accounts(redis).create_token("ops", scopes=["read", "admin"])
    async with api_client(settings, token=operator) as ops:
        assert [*chain(*await walk(ops, "/v1/predictions"))] == []
        assert [*chain(*await walk(ops, f"/v1/predictions?account={ACCOUNT}"))] == filed
    assert [*chain(*await walk(api, f"/v1/predictions?account={ACCOUNT}"))] == filed


@pytest.mark.parametrize("name", ["created_after", "created_before", "status", "model", "version", "account", "source"])
async def test_invalid_filter_is_named(api: AsyncClient, name: str) -> None:
    answer = await api.get(f"/v1/predictions?{name}=no:such thing")
    assert answer.status_code == 422
    assert [fault["field"] for fault in answer.json()["invalid_fields"]] == [name]
