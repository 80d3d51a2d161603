"""Test batches: one request creates many predictions; each is accepted or refused by itself, once."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.core.ids import QueueName
from director.store.accounts import Accounts
from tests.integration.api.conftest import Served
from tests.support.api import live_api
from tests.support.eventually import every, until_time
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer


def one(text: str = "hi", **members: Any) -> dict[str, Any]:
    return {"version": VERSION, "input": {"text": text}} | members


async def send(api: AsyncClient, bodies: Sequence[Any], **headers: str) -> list[dict[str, Any]]:
    answer = await api.post("/v1/predictions/batch", json={"predictions": bodies}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


async def test_predictions_are_created_in_the_order_of_the_request(api: AsyncClient) -> None:
    results = await send(api, [one(str(number)) for number in range(250)])
    assert {result["status"] for result in results} == {201}
    assert [result["prediction"]["input"]["text"] for result in results] == [str(number) for number in range(250)]
    made = {result["prediction"]["id"] for result in results}
    assert len(made) == 250
    listed, url = set(), "/v1/predictions"
    while url:
        page = (await api.get(url)).json()
        listed |= {prediction["id"] for prediction in page["results"]}
        url = page["next"]
    assert listed == made


async def test_invalid_entry_does_not_affect_the_others(api: AsyncClient) -> None:
    wrong = [one(inptu=1), {"version": "nope", "input": {}}, {"version": VERSION}, 7]
    results = await send(api, [one("a"), *wrong, one("b")])
    assert [result["status"] for result in results] == [201, 422, 422, 422, 422, 201]
    assert results[1]["error"]["invalid_fields"][0]["description"] == "Additional property inptu is not allowed"
    assert results[2]["error"]["title"] == "Invalid version or not permitted"
    assert all("prediction" not in result for result in results[1:5])


async def test_batch_of_a_hundred_is_one_write_to_redis(api: AsyncClient, redis: Redis) -> None:
    await send(api, [one()])  # the caller and the version are cached now
    before = (await redis.info("stats"))["total_reads_processed"]
    await send(api, [one() for _ in range(100)])
    after = (await redis.info("stats"))["total_reads_processed"]
    # a hundred calls with two scripts each may arrive in several pieces of 64 KB; the info itself is one
    assert after - before <= 12


async def test_repeated_batch_with_its_key_creates_nothing_twice(api: AsyncClient) -> None:
    headers = {"Idempotency-Key": "nightly"}
    first = await send(api, [one("a"), one("a"), one("b")], **headers)
    again = await send(api, [one("a"), one("a"), one("b")], **headers)
    assert [result["prediction"]["id"] for result in again] == [result["prediction"]["id"] for result in first]
    assert len({result["prediction"]["id"] for result in first}) == 3
    assert [result.get("replayed") for result in first + again] == [None] * 3 + [True] * 3
    [changed, *_] = await send(api, [one("c")], **headers)
    assert (changed["status"], changed["error"]["code"]) == (422, "idempotency_mismatch")


async def test_each_entry_takes_a_token_and_the_rest_is_refused(served: Served, redis: Redis) -> None:
    await Accounts(redis).set_limits(ACCOUNT, {"rate": "0.01", "burst": "3"})
    async with served() as api:
        results = await send(api, [one() for _ in range(5)])
        assert sorted(result["status"] for result in results) == [201, 201, 201, 429, 429]
        assert {result["error"]["code"] for result in results if result["status"] == 429} == {"rate_limited"}
        assert (await api.post("/v1/predictions/batch", json={"predictions": [one()]})).status_code == 429


async def test_headers_and_latest_version_apply_to_each_entry(api: AsyncClient) -> None:
    [made] = await send(api, [one(version=MODEL)], **{"Cancel-After": "90s", "Prefer": "wait"})
    assert made["prediction"]["version"] == VERSION
    assert made["prediction"]["status"] == "starting"
    assert made["prediction"]["deadline"] > made["prediction"]["created_at"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"predictions": []}, 422, "predictions: Array must have at least 1 items"),
        ({"predictions": {}}, 422, "predictions: Invalid type. Expected: array, given: object"),
        ({}, 422, "predictions is required"),
        ({"predictions": [{}] * 1001}, 422, "predictions: Array must have at most 1000 items"),
        ({"predictions": [{}], "more": 1}, 422, "Additional property more is not allowed"),
        ([], 422, "Expected: object, given: array"),
    ],
)
async def test_invalid_batch_is_refused_as_a_whole(api: AsyncClient, body: Any, status: int, words: str) -> None:
    answer = await api.post("/v1/predictions/batch", json=body)
    assert answer.status_code == status
    assert words in answer.json()["detail"]


async def test_batch_may_exceed_one_body_within_a_bound(served: Served) -> None:
    async with served(max_body_bytes=2048, max_batch_bytes=64 * 1024) as api:
        assert len(await send(api, [one("x" * 1000) for _ in range(20)])) == 20
        answer = await api.post("/v1/predictions/batch", json={"predictions": [one("x" * 1000)] * 100})
    assert answer.status_code == 413


async def slowest_livez(http: AsyncClient, until: "asyncio.Task[object]") -> float:
    slowest_s = 0.0
    async for _ in every(0.005):
        if until.done():
            break
        began = time.monotonic()
        assert (await http.get("/livez")).status_code == 200
        slowest_s = max(slowest_s, time.monotonic() - began)
    return slowest_s


@pytest.mark.faults
async def test_large_batch_does_not_hold_up_other_requests(server: RedisServer, token: str, queue: QueueName) -> None:
    text = b"[%b{}]" % (b"{}," * 310_000)
    item = b'{"version":"%b","input":{"text":%b}}' % (VERSION.encode(), text)
    body = b'{"predictions":[%b]}' % b",".join([item] * 15)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    async with live_api(server.url) as live, AsyncClient(base_url=live.url, trust_env=False, timeout=60) as http:
        # what is compared is how long the same request takes in three quiet seconds
        quiet_s = await slowest_livez(http, asyncio.create_task(until_time(time.monotonic() + 3)))
        sending = asyncio.create_task(http.post("/v1/predictions/batch", content=body, headers=headers))
        busy_s = await slowest_livez(http, sending)
        results = (await sending).json()["results"]
    assert [result["status"] for result in results] == [201] * 15
    # one call of the JSON decoder over the whole body takes 0.13 s, and cannot be interrupted
    assert busy_s <= max(5 * quiet_s, 0.6), f"quiet {quiet_s:.3f} s, during the batch {busy_s:.3f} s"
