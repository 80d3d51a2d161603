"""Test the limits of an account: a rate for requests, compute for predictions, and the answers about both."""

import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.cli.main import main
from director.core.clock import SystemClock
from director.core.ids import QueueName
from director.core.settings import ApiSettings
from director.core.states import Status
from director.core.usage import Used
from director.keeper.cashier import Cashier
from director.keeper.registry import Registry
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.integration.api.conftest import HELLO_VERSION, Served, refusal
from tests.support.api import PlayedDirector
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION

Door = Callable[..., Any]
LIMIT_HEADERS = ("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset")
WITHOUT_RATE = (None, "599", "1")  # as in Replicate's first answers
GENEROUS = {"rate": "1000", "burst": "1000"}
COMPUTE = {"compute_s_total": "100", "compute_s_per_day": "100"}


@pytest.fixture
def door(redis: Redis, served: Served) -> Door:
    @asynccontextmanager
    async def enter(*, of_all: dict[str, Any] | None = None, **limits: str) -> AsyncIterator[httpx.AsyncClient]:
        await Accounts(redis).set_limits(ACCOUNT, limits)
        async with served(**(of_all or {})) as client:
            yield client

    return enter


@pytest.fixture
def cashier(redis: Redis, scripts: Scripts, catalog: Catalog) -> Cashier:
    clock = SystemClock()
    return Cashier(redis, scripts, Registry(redis, catalog, clock, keep_s=0), clock)


def create(api: httpx.AsyncClient, headers: dict[str, str] | None = None, **body: Any) -> Awaitable[httpx.Response]:
    return api.post("/v1/predictions", json={"version": VERSION, "input": {}, **body}, headers=headers)


def limit_headers(answer: httpx.Response) -> tuple[str | None, ...]:
    return tuple(answer.headers.get(name) for name in LIMIT_HEADERS)


async def test_creates_beyond_the_burst_are_refused_in_replicates_words(door: Door) -> None:
    async with door(rate="0.1", burst="2") as api:
        assert [(await create(api)).status_code for _ in range(2)] == [201, 201]
        refused = await create(api)
    assert refused.status_code == 429
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json() == {
        "detail": "Request was throttled. Your rate limit resets in ~20s.",
        "status": 429,
        "code": "rate_limited",
        "retry_after": 10,
        "limit": 2,
    }
    assert refused.headers["retry-after"] == "10"
    assert limit_headers(refused) == ("2", "0", "20")


async def test_six_retries_at_once_are_one_denied_burst_and_create_nothing(
    door: Door, redis: Redis, scripts: Scripts, queue: QueueName
) -> None:
    async with door(rate="0.01", burst="1") as api:
        made = (await create(api)).json()
        refused = [(await create(api)).status_code for _ in range(6)]
        listed = (await api.get("/v1/predictions")).json()["results"]
    assert refused == [429] * 6
    assert [prediction["id"] for prediction in listed] == [made["id"]]
    assert (await Accounts(redis).usage(ACCOUNT, day=0)).bursts == {"create": 1}
    assert (await scripts.stats(queue)).live == 1


async def test_reads_have_their_own_bucket(door: Door) -> None:
    async with door(rate="0.01", burst="1", read_rate="0.01", read_burst="2") as api:
        made = await create(api)
        assert limit_headers(made) == ("1", "0", "100")
        path = f"/v1/predictions/{made.json()['id']}"
        assert limit_headers(await api.get(path)) == ("2", "1", "100")
        assert (await api.post(f"{path}/cancel")).status_code == 200
        refused = await api.get("/v1/account")
        assert (*refusal(refused), refused.headers["retry-after"]) == (429, "rate_limited", "100")


async def test_redelivery_counts_as_a_create(door: Door) -> None:
    async with door(rate="0.01", burst="9", read_rate="0.01", read_burst="5") as api:
        made = await create(api)
        refused = await api.post(f"/v1/predictions/{made.json()['id']}/webhooks/redeliver")
    assert (refused.status_code, limit_headers(refused)[:2]) == (409, ("9", "7"))


async def test_every_answer_shows_the_limit_even_a_refusal(door: Door) -> None:
    async with door(rate="0.01", burst="9", read_rate="0.01", read_burst="9") as api:
        answers = [
            await create(api, input=5),
            await create(api, version="no such thing"),
            await api.post("/v1/predictions", content=b"{"),
            await api.get("/v1/predictions/nothing"),
            await api.get("/v1/admin/dead"),
            await api.post("/v1/files"),
        ]
    assert [answer.status_code for answer in answers] == [422, 422, 400, 404, 403, 501]
    assert [limit_headers(answer)[:2] for answer in answers] == [("9", left) for left in "876875"]


async def test_input_that_the_model_refuses_counts_as_a_request(door: Door, hello: QueueName) -> None:
    async with door(rate="0.01", burst="9") as api:
        answers = [await create(api, version=HELLO_VERSION, input={"n": "many"}) for _ in range(2)]
    assert [(answer.status_code, *limit_headers(answer)[:2]) for answer in answers] == [
        (422, "9", "8"),
        (422, "9", "7"),
    ]


async def script_calls(redis: Any) -> int:
    """Return how many scripts the server ran, by its own statistics. A create alone runs enlist and enqueue."""
    return int((await redis.info("commandstats")).get("cmdstat_evalsha", {"calls": 0})["calls"])


@pytest.mark.parametrize(("limits", "calls"), [({}, 2), (GENEROUS, 3), (COMPUTE, 3)], ids=["none", "rate", "compute"])
async def test_account_without_a_limit_costs_no_extra_call(
    door: Door, redis: Redis, director: PlayedDirector, limits: dict[str, str], calls: int
) -> None:
    async with door(**limits) as api:
        await create(api)
        before = await script_calls(redis)
        made = await create(api)
        assert await script_calls(redis) - before == calls
    if not limits:
        assert limit_headers(made) == WITHOUT_RATE
        assert not await redis.exists(keys.usage(ACCOUNT), keys.taken(ACCOUNT), keys.compute(ACCOUNT))
        assert not (await director.claim()).record.metered


async def test_default_limit_applies_without_an_individual_one(door: Door) -> None:
    of_all = {"account_rate": 0.01, "account_burst": 3}
    async with door(of_all=of_all) as api:
        assert limit_headers(await create(api))[:2] == ("3", "2")
    async with door(of_all=of_all, burst="7") as api:
        assert limit_headers(await create(api))[0] == "7"
    async with door(of_all=of_all, rate="none") as api:
        assert limit_headers(await create(api)) == WITHOUT_RATE


async def test_new_limit_applies_once_the_cache_expires(door: Door, redis: Redis) -> None:
    async with door(of_all={"cache_s": 0.0}) as api:
        assert limit_headers(await create(api)) == WITHOUT_RATE
        await Accounts(redis).set_limits(ACCOUNT, {"rate": "0.01", "burst": "1"})
        assert [(await create(api)).status_code for _ in range(2)] == [201, 429]


async def test_api_with_older_limits_does_not_restore_them(
    door: Door, settings: ApiSettings, scripts: Scripts, queue: QueueName
) -> None:
    line = ["account", "set", ACCOUNT, "--max-running", "1", "--redis", settings.redis_url]
    async with door(of_all={"cache_s": 60.0}, max_running="10") as api:
        assert (await create(api)).status_code == 201
        assert await to_thread.run_sync(main, line) == 0
        assert (await create(api)).status_code == 201
    assert len(await scripts.claim(queue, consumer="d1", nonce="n", count=9, lease_s=60)) == 1


async def test_body_of_a_rate_limited_request_is_not_read(door: Door) -> None:
    async def body() -> AsyncIterator[bytes]:
        raise AssertionError("the body was asked for")
        yield b""

    async with door(rate="0.01", burst="1") as api:
        await create(api)
        refused = await api.post("/v1/predictions", content=body())
    assert refused.status_code == 429


async def test_refusal_has_its_own_code_and_returns_the_token(door: Door, scripts: Scripts, queue: QueueName) -> None:
    await scripts.bound(queue, mode="bounded", max_queued=1)
    async with door(rate="0.001", burst="2", compute_s_per_day="2") as api:
        assert (await create(api)).status_code == 201
        for _ in range(5):
            refused = await create(api)
            assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
    body = refused.json()
    assert (body["detail"], body["limit"]) == ("Capacity temporarily exceeded", 1)
    assert int(refused.headers["retry-after"]) == body["retry_after"] >= 1


async def test_refusal_names_the_number_of_allowed_waiting_predictions(door: Door) -> None:
    async with door(max_queued="2") as api:
        assert [(await create(api)).status_code for _ in range(2)] == [201, 201]
        refused = await create(api)
        listed = (await api.get("/v1/predictions")).json()["results"]
    assert (refused.status_code, refused.json()["code"], refused.json()["limit"]) == (429, "too_many_queued", 2)
    assert len(listed) == 2


async def test_refusal_says_when_the_prediction_would_start(
    door: Door, redis: Any, scripts: Scripts, queue: QueueName
) -> None:
    await scripts.extend(queue, consumer="d1", lease_s=60, claims=[], slots=1)
    await redis.hset(keys.meta(queue), mapping={"service_ms": "60000", "service_cost": "1"})
    async with door() as api:
        for _ in range(3):
            await create(api)
        refused = await create(api, {"X-Start-By": "5"})
        assert (await create(api, {"X-Start-By": "3600"})).status_code == 201
    body = refused.json()
    assert (refused.status_code, body["code"], body["limit"]) == (429, "cannot_start_in_time", 5)
    assert body["eta_s"] > 60
    assert body["retry_after"] >= body["eta_s"] - 6


async def used(redis: Redis) -> tuple[float, float]:
    usage = await Accounts(redis).usage(ACCOUNT, day=SystemClock().now_ms() // 86_400_000)
    return usage.spent_s, usage.reserved_s


async def test_compute_is_reserved_at_the_cost_and_bounded_per_day(door: Door, redis: Redis) -> None:
    async with door(compute_s_per_day="10", rate="1", burst="100") as api:
        assert (await create(api, {"X-Cost": "7.5"})).status_code == 201
        refused = await create(api, {"X-Cost": "3"})
        assert (*refusal(refused), refused.json()["limit"]) == (429, "compute_exhausted", 10)
        assert 1 <= int(refused.headers["retry-after"]) <= 86_400
        assert limit_headers(await create(api, {"X-Cost": "2.5"}))[:2] == ("100", "98"), (
            "the refused one's token is back"
        )
    assert await used(redis) == (0, 10)


@pytest.mark.parametrize(("cost", "reserved"), [("6", 12), ("2", 4), ("0.001", 4)])
async def test_reservation_is_at_least_that_of_a_mean_run(
    door: Door, redis: Any, queue: QueueName, cost: str, reserved: float
) -> None:
    await redis.hset(keys.meta(queue), mapping={"service_ms": "4000", "service_cost": "2"})
    async with door(compute_s_per_day="20") as api:
        assert (await create(api, {"X-Cost": cost})).status_code == 201
    assert await used(redis) == (0, reserved)


async def test_refused_compute_returns_the_request_token(door: Door, redis: Any, queue: QueueName) -> None:
    async with door(compute_s_per_day="10", rate="0.001", burst="2") as api:
        await api.get(f"/v1/models/{MODEL}/versions/{VERSION}")  # cached by the API, and then lost by Redis
        await redis.delete(keys.meta(queue))
        answers = [await create(api) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [422] * 5, "as for any unregistered version"


async def test_canceled_run_keeps_its_reservation_until_it_stops(
    door: Door, redis: Redis, director: PlayedDirector, cashier: Cashier, scripts: Scripts
) -> None:
    async with door(compute_s_per_day="10") as api:
        made = (await create(api, {"X-Cost": "10"})).json()
        claim = await director.claim()
        assert claim.record.metered
        await api.post(f"/v1/predictions/{made['id']}/cancel")
        assert await cashier.run_once() == 0
        assert await used(redis) == (0, 10)
        assert await scripts.finish(
            claim.id, queue=claim.record.queue, token=claim.token, status=Status.CANCELED, ran_ms=3000
        )
        assert await cashier.run_once() == 1
    assert await used(redis) == (3, 0)


async def test_idempotent_replay_reserves_nothing(door: Door, redis: Redis) -> None:
    async with door(compute_s_per_day="10") as api:
        key = {"Idempotency-Key": "k", "X-Cost": "4"}
        assert [(await create(api, key)).status_code for _ in range(3)] == [201] * 3
    assert await used(redis) == (0, 4)


@pytest.mark.parametrize("limit", ["compute_s_per_day", "compute_s_total"])
async def test_used_up_compute_does_not_stop_accepted_predictions(door: Door, limit: str) -> None:
    key = {"Idempotency-Key": "k", "X-Cost": "10"}
    async with door(**{limit: "10"}) as api:
        first = await create(api, key)
        again = await create(api, key)
        assert (first.status_code, again.status_code) == (201, 201)
        assert (again.json()["id"], again.headers["idempotency-replayed"]) == (first.json()["id"], "true")
        assert (await create(api, key, input={"other": 1})).json()["code"] == "idempotency_mismatch"
        assert (await create(api, {**key, "Idempotency-Key": "new"})).status_code in (402, 429)
        batch = {"predictions": [{"version": VERSION, "input": {}}]}
        refused = await api.post("/v1/predictions/batch", json=batch, headers=key)
        assert refused.json()["results"][0]["status"] in (402, 429)
        listed = (await api.get("/v1/predictions")).json()["results"]
        assert [one["id"] for one in listed] == [first.json()["id"]]


async def test_used_up_credit_is_refused_as_on_replicate_without_a_token(door: Door) -> None:
    async with door(compute_s_total="10", rate="0.001", burst="3") as api:
        assert (await create(api, {"X-Cost": "8"})).status_code == 201
        refused = await create(api, {"X-Cost": "3"})
        assert limit_headers(await create(api, {"X-Cost": "2"}))[:2] == ("3", "1"), "the refused one's is back"
    body = refused.json()
    assert (refused.status_code, body["title"], body["status"]) == (402, "Insufficient credit", 402)
    assert (body["code"], body["limit"]) == ("credit_exhausted", 10)
    assert "retry-after" not in refused.headers


async def test_default_credit_applies_to_accounts_without_their_own(door: Door) -> None:
    async with door(of_all={"account_compute_s_total": 10}) as api:
        assert [(await create(api, {"X-Cost": "6"})).status_code for _ in range(2)] == [201, 402]


@pytest.mark.parametrize(
    ("headers", "stored"),
    [
        ({"X-Cost": "2.5", "X-Affinity-Key": "style-7"}, (2.5, "92a10c8979586cb8")),  # the start of its SHA-256
        ({}, (1, "")),
    ],
)
async def test_cost_and_affinity_are_stored_with_the_prediction(
    door: Door, director: PlayedDirector, headers: dict[str, str], stored: tuple[float, str]
) -> None:
    async with door() as api:
        await create(api, headers)
        record = (await director.claim()).record
    assert (record.cost, record.affinity) == stored


@pytest.mark.parametrize(
    "headers",
    [{"X-Cost": value} for value in ("0", "0.000999", "-1", "1e3", "nan", "", "1000000.000001", "0.0000000", "１")]
    + [{"X-Affinity-Key": value} for value in ("", "x" * 256)],
)
async def test_invalid_cost_or_affinity_is_refused(door: Door, headers: dict[str, str]) -> None:
    async with door() as api:
        refused = await create(api, {name: value.encode() for name, value in headers.items()})  # type: ignore[misc]
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_header")


async def test_requests_without_the_headers_keep_their_fingerprint(door: Door, redis: Any) -> None:
    """An idempotency key of the former release must hold across the deploy of this one."""
    body = json.dumps({"version": VERSION, "input": {}}).encode()
    async with door() as api:
        await api.post("/v1/predictions", content=body, headers={"Idempotency-Key": "k", "X-Priority": "low"})
    name = keys.idempotency(account=ACCOUNT, model=MODEL, digest=hashlib.sha256(b"k").hexdigest())
    _, fingerprint = (await redis.get(name)).decode().split()
    assert fingerprint == hashlib.sha256(f"{MODEL}\n\nlow\n\n".encode() + body).hexdigest()


async def test_full_storage_refuses_creates_until_files_are_deleted(door: Door, scripts: Scripts) -> None:
    async with door(max_files_bytes="10", rate="0.001", burst="3") as api:
        await scripts.stow(ACCOUNT, "f", 10, until_ms=2**42)
        refused = await create(api)
        assert (refused.status_code, refused.json()["code"], refused.json()["limit"]) == (402, "storage_full", 10)
        await scripts.stow(ACCOUNT, "f", 9, until_ms=2**42)
        accepted = await create(api)
        assert (accepted.status_code, limit_headers(accepted)[:2]) == (201, ("3", "2")), "the refused one's is back"


async def test_tokens_of_a_day_are_reserved_at_the_create_and_settled(
    door: Door, director: PlayedDirector, cashier: Cashier, scripts: Scripts
) -> None:
    async with door(tokens_per_day="1000") as api:
        assert (await create(api, input={"max_tokens": 900})).status_code == 201
        refused = await create(api, input={"max_tokens": 900})
        assert (*refusal(refused), refused.json()["limit"]) == (429, "tokens_exhausted", 1000)
        assert 1 <= int(refused.headers["retry-after"]) <= 86_400
        assert "1,000 tokens a day" in refused.json()["detail"]
        claim = await director.claim()
        assert claim.record.budgeted
        await scripts.finish(
            claim.id,
            queue=claim.record.queue,
            token=claim.token,
            status=Status.SUCCEEDED,
            used=Used(runs=1, input_tokens=40, output_tokens=10),
        )
        await cashier.run_once()
        assert (await create(api, input={"max_tokens": 900})).status_code == 201


async def test_compute_of_a_month_is_bounded(door: Door) -> None:
    async with door(compute_s_per_month="10") as api:
        assert (await create(api, {"X-Cost": "7.5"})).status_code == 201
        refused = await create(api, {"X-Cost": "3"})
        assert (*refusal(refused), refused.json()["limit"]) == (429, "compute_exhausted", 10)
        assert "a month" in refused.json()["detail"]


async def test_a_create_that_a_queue_refuses_gives_its_tokens_back(door: Door) -> None:
    async with door(tokens_per_minute="1000", max_queued="1") as api:
        answers = [await create(api, input={"max_tokens": 300}) for _ in range(6)]
    assert [answer.json().get("code", "") for answer in answers] == ["", *["too_many_queued"] * 5]
