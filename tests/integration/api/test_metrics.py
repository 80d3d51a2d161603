"""Test the API's metrics: who may read them, what they count, and that they contain nothing of a caller."""

import httpx
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from director.core.ids import QueueName
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from tests.support.api import api_client
from tests.support.queue_driver import ACCOUNT, VERSION
from tests.support.scrape import scrape
from tests.support.servers import RedisServer

SECRET = "scrape-me-and-nothing-else"
BODY = {"version": VERSION, "input": {"text": "a secret of its caller"}}


@pytest.fixture
def settings(server: RedisServer) -> ApiSettings:
    return ApiSettings(redis_url=server.url, metrics_token=SECRET)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_metrics_need_their_own_token_or_an_operators(api: httpx.AsyncClient, redis: Redis) -> None:
    operators = await Accounts(redis).create_token("root", scopes=["admin"])
    anybodys = await Accounts(redis).create_token(ACCOUNT)
    for token, status in ((SECRET, 200), (operators, 200), (anybodys, 403), (SECRET + "x", 401), ("", 401), ("é", 401)):
        answer = await api.get("/metrics", headers=[(b"Authorization", f"Bearer {token}".encode())])
        assert (token, answer.status_code) == (token, status)
    del api.headers["authorization"]
    assert (await api.get("/metrics")).status_code == 401


async def test_empty_metrics_token_admits_no_one(settings: ApiSettings, queue: QueueName) -> None:
    async with api_client(replace(settings, metrics_token="")) as http:
        for header in ("Bearer ", "Bearer", " ", "Bearer x"):
            assert (await http.get("/metrics", headers={"Authorization": header})).status_code == 401


async def test_requests_are_counted_by_route_and_refusals_by_code(api: httpx.AsyncClient) -> None:
    made = (await api.post("/v1/predictions", json=BODY, headers={"Idempotency-Key": "one"})).json()
    again = await api.post("/predictions", json=BODY, headers={"Idempotency-Key": "one", "X-Priority": "high"})
    assert again.status_code == 422
    assert (await api.post("/predictions", json=BODY, headers={"Idempotency-Key": "one"})).json() == made
    await api.post("/v1/v1/predictions", json=BODY, headers={"X-Priority": "low"})
    await api.get(f"/v1/predictions/{made['id']}")
    await api.get("/v1/predictions/unknown-prediction")
    await api.get("/no/such/path")
    await api.request("BREW", "/v1/predictions")
    await api.delete("/v1/account")
    shown = await scrape(api, token=SECRET)
    requests = "director_api_requests_total"
    assert shown.value(requests, route="/predictions", method="POST", status="201") == 3
    assert shown.value(requests, route="/predictions", method="POST", status="422") == 1
    assert shown.value(requests, route="/predictions/{id}", method="GET", status="200") == 1
    assert shown.value(requests, route="/predictions/{id}", method="GET", status="404") == 1
    assert shown.value(requests, route="none", method="GET", status="404") == 1
    assert shown.value(requests, route="/account", method="DELETE", status="405") == 1
    assert shown.value(requests, route="/predictions", method="other", status="405") == 1
    assert shown.value("director_api_request_seconds_count", route="/predictions", method="POST") == 4
    assert shown.value("director_api_refusals_total", code="idempotency_mismatch") == 1
    assert shown.value("director_api_refusals_total", code="404") == 2
    assert shown.value("director_api_refusals_total", code="method_not_allowed") == 2
    assert shown.value("director_api_accepted_total", kind="prediction", lane="normal") == 1
    assert shown.value("director_api_accepted_total", kind="prediction", lane="low") == 1
    assert shown.value("director_redis_up") == 1
    assert shown.value("director_redis_call_seconds_count", script="enqueue") == 4
    assert shown.value("director_api_held_responses") == 0
    for private in (ACCOUNT, made["id"], "a secret", "unknown-prediction", "no/such", VERSION[:12]):
        assert private not in shown.text


async def test_internal_error_is_counted(
    settings: ApiSettings, redis: Redis, queue: QueueName, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await Accounts(redis).create_token(ACCOUNT)
    async with api_client(settings, token=token) as api:
        made = (await api.post("/v1/predictions", json=BODY)).json()

        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("a fault")

        monkeypatch.setattr("director.broker.scripts.Scripts.get", broken)
        with pytest.raises(RuntimeError):
            await api.get(f"/v1/predictions/{made['id']}")
        shown = await scrape(api, token=SECRET)
    assert shown.value("director_api_requests_total", route="/predictions/{id}", method="GET", status="500") == 1
    assert shown.value("director_api_refusals_total", code="internal") == 1


async def test_metrics_report_an_outage_of_redis(mortal: RedisServer) -> None:
    async with api_client(ApiSettings(redis_url=mortal.url, metrics_token=SECRET)) as api:
        mortal.kill()
        assert (await api.get("/v1/account", headers=bearer("unknown"))).status_code == 503
        shown = await scrape(api, token=SECRET)
        assert shown.value("director_api_refusals_total", code="unavailable") == 1
        mortal.start()
