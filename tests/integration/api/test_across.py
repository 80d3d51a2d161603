"""Test that operators find, cancel and retry predictions of all accounts, and that others learn why they may not."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import PredictionId, QueueName
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.core.states import Status
from director.store import across
from director.store.accounts import Accounts
from director.store.catalog import Catalog
from tests.support.api import api_client
from tests.support.queue_driver import MODEL, VERSION, QueueDriver

ALL = "/v1/admin/predictions"


@pytest.fixture
async def callers(settings: ApiSettings, redis: Redis, queue: QueueName) -> AsyncIterator[dict[str, AsyncClient]]:
    """Return clients of two accounts, and of an operator."""
    scopes = {"amber": ["read", "run"], "basalt": ["read", "run"], "ops": ["read", "run", "admin"]}
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(
                api_client(settings, token=await Accounts(redis).create_token(name, scopes=of))
            )
            for name, of in scopes.items()
        }


@pytest.fixture
def ops(callers: dict[str, AsyncClient]) -> AsyncClient:
    return callers["ops"]


async def create(caller: AsyncClient, **body: Any) -> PredictionId:
    answer = await caller.post("/v1/predictions", json={"version": VERSION, "input": {"text": "a"}, **body})
    assert answer.status_code == 201, answer.text
    return PredictionId(answer.json()["id"])


async def found(ops: AsyncClient, **asked: Any) -> list[str]:
    ids, page = list[str](), (await ops.get(ALL, params=asked)).json()
    while True:
        ids += [one["id"] for one in page["results"]]
        if page["next"] is None:
            return ids
        page = (await ops.get(page["next"])).json()


async def done(ops: AsyncClient, verb: str, **asked: Any) -> dict[str, Any]:
    answer = await ops.post(f"{ALL}/{verb}", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def changes(ops: AsyncClient) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = (await ops.get("/v1/admin/audit")).json()["changes"]
    return entries


async def fail(driver: QueueDriver, code: str = "model_failed") -> PredictionId:
    claim = await driver.claim_one()
    await driver.finish(claim, Status.FAILED, error="No.", code=code)
    return claim.id


async def test_previews_show_what_is_short_and_not_secret(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver, redis: Redis
) -> None:
    done_one = await create(callers["amber"])
    await driver.finish(await driver.claim_one(), output=b'["moin", " moin"]')
    long = await create(callers["amber"], input={"text": "a" * 500})
    large = await create(callers["amber"], input={"text": "a" * across.MOST_PREVIEWED})
    secret = await create(callers["basalt"], input={"text": "hush"})
    await redis.hset(keys.record(secret), "secret", "8 14")
    shown = {one["id"]: one for one in (await ops.get(ALL, params={"previews": "true"})).json()["results"]}
    assert (shown[done_one]["input"], shown[done_one]["output"]) == ('{"text":"a"}', '["moin", " moin"]')
    assert shown[long]["input"] == f'{{"text":"{"a" * 500}"}}'[: across.LONGEST_PREVIEW]
    assert [shown[one]["input"] for one in (large, secret)] == [None, None]
    assert all("input" not in one for one in (await ops.get(ALL)).json()["results"])
    assert (await ops.get(ALL, params={"previews": "yes"})).status_code == 422


async def test_operator_reads_and_cancels_the_prediction_of_any_account(
    callers: dict[str, AsyncClient], ops: AsyncClient
) -> None:
    of_amber = await create(callers["amber"])
    path = f"/v1/predictions/{of_amber}"
    for read in (path, f"{path}/events", f"{path}/explain", f"{path}/webhooks"):
        assert (await ops.get(read)).status_code == 200
        assert (await callers["basalt"].get(read)).status_code == 404
    assert (await ops.get(path)).json()["input"] == {"text": "a"}
    assert (await callers["basalt"].post(f"{path}/cancel")).status_code == 404
    assert (await ops.post(f"{path}/cancel")).json()["status"] == "canceled"
    [change] = await changes(ops)
    assert (change["kind"], change["account"]) == ("predictions_canceled", "amber")
    assert change["by"].startswith("ops/")
    assert change["detail"] == {"count": 1, "ids": [of_amber], "filter": {}}


async def test_cancel_by_a_route_of_another_kind_is_404_and_cancels_nothing(
    callers: dict[str, AsyncClient], ops: AsyncClient
) -> None:
    for caller in (callers["amber"], ops):
        name = await create(caller)
        assert (await ops.post(f"/v1/trainings/{name}/cancel")).status_code == 404
        assert (await caller.get(f"/v1/predictions/{name}")).json()["status"] == "starting"
    assert await changes(ops) == []


async def test_only_operators_read_what_holds_a_prediction_up(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver
) -> None:
    path = f"/v1/predictions/{await create(callers['amber'])}/explain"
    await driver.scripts.pause(driver.queue, paused=True)
    assert "queue_paused" in [one["code"] for one in (await ops.get(path)).json()["causes"]]
    assert "causes" not in (await callers["amber"].get(path)).json()


async def test_own_cancel_of_an_operator_is_no_change(ops: AsyncClient) -> None:
    await ops.post(f"/v1/predictions/{await create(ops)}/cancel")
    assert await changes(ops) == []


async def test_without_the_scope_the_same_calls_say_why(callers: dict[str, AsyncClient]) -> None:
    act = "'operate' or 'admin'"
    for method, path, needs in (
        ("GET", ALL, f"'view', {act}"),
        ("POST", f"{ALL}/cancel", act),
        ("POST", f"{ALL}/retry", act),
    ):
        refused = await callers["amber"].request(method, path, json={"all": True} if method == "POST" else None)
        assert (refused.status_code, refused.json()["detail"]) == (403, f"This token does not have the scope {needs}.")


async def test_filters_find_predictions_of_all_accounts_newest_first(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver
) -> None:
    ids = [await create(callers[name]) for name in ("amber", "basalt", "amber", "ops")]
    failed = await fail(driver, "timed_out")
    newest = sorted(ids, reverse=True)
    assert await found(ops) == newest
    assert await found(ops, account="amber") == sorted([ids[0], ids[2]], reverse=True)
    assert await found(ops, status="failed") == await found(ops, code="timed_out") == [failed]
    assert await found(ops, model="acme/other") == await found(ops, kind="training") == []
    assert await found(ops, created_before="2020-01-01T00:00:00Z") == []
    assert await found(ops, created_after="2020-01-01T00:00:00Z", model=MODEL, version=VERSION) == newest
    [one] = (await ops.get(ALL, params={"code": "timed_out"})).json()["results"]
    assert (one["account"], one["queue"], one["error"]) == ("amber", driver.queue, "No.")
    assert "input" not in one
    assert (await ops.get(ALL, params={"kind": "job"})).status_code == 422


async def test_pages_go_on_where_the_last_one_ended(
    callers: dict[str, AsyncClient], ops: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await create(callers[name]) for name in ("amber", "basalt") * 6]
    monkeypatch.setattr(across, "SLICE", 2)
    monkeypatch.setattr(across, "MOST_LOOKED_AT", 4)
    assert await found(ops) == sorted(ids, reverse=True)
    assert await found(ops, account="basalt") == sorted(ids[1::2], reverse=True)


async def test_too_many_accounts_need_a_name(ops: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(across, "MOST_ACCOUNTS", 2)
    refused = await ops.get(ALL)
    assert refused.status_code == 422
    assert "name one" in refused.json()["detail"]
    assert await found(ops, account="ops") == []


async def test_many_are_canceled_by_filter_and_the_rest_is_named(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await create(callers["amber"]) for _ in range(5)]
    other = await create(callers["basalt"])
    runs = await driver.claim_one()
    monkeypatch.setattr("api.admin.predictions.MOST_IDS", 3)
    first = await done(ops, "cancel", account="amber", status="starting")
    assert (first["done"], first["refused"]) == (3, [])
    second = await done(ops, "cancel", account="amber", status="starting", cursor=first["next"])
    assert (second["done"], second["next"]) == (2, None)
    assert await found(ops, status="canceled") == [one for one in sorted(ids, reverse=True) if one != runs.id]
    assert await found(ops, account="basalt", status="starting") == [other]
    assert await driver.field(runs.id, "cancel") == "user"
    noted = await changes(ops)
    assert [one["detail"]["count"] for one in noted] == [3, 2]
    assert (await done(ops, "cancel", all=True))["refused"] == [], "what has ended is not among all"
    assert noted[0]["detail"]["filter"] == {"account": "amber", "status": "starting"}


async def test_cancel_leaves_alone_what_has_ended(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver
) -> None:
    await create(callers["amber"])
    ended = await fail(driver)
    answer = await done(ops, "cancel", ids=[ended, driver.new_id()])
    assert (answer["done"], [one["why"] for one in answer["refused"]]) == (0, ["unknown", "has_ended"])
    assert (await ops.post(f"{ALL}/{driver.new_id()}/cancel")).status_code == 404
    kinds = [one["kind"] for one in await changes(ops)]
    assert kinds == ["predictions_canceled", "void"], "an unknown id is no change"


async def test_retry_makes_the_same_request_again_once(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver, redis: Redis
) -> None:
    await create(callers["amber"], webhook="https://example.com/hook", webhook_events_filter=["completed"])
    failed = await fail(driver)
    [retry] = (await done(ops, "retry", status="failed"))["retried"]
    assert retry["id"] == failed != retry["new_id"]
    again = (await callers["amber"].get(f"/v1/predictions/{retry['new_id']}")).json()
    assert (again["input"], again["status"], again["webhook"]) == (
        {"text": "a"},
        "starting",
        "https://example.com/hook",
    )
    assert await done(ops, "retry", ids=[failed]) == {"done": 1, "refused": [], "retried": [retry], "next": None}
    await Accounts(redis).set_limits("amber", {"max_data_bytes": "1"})
    await redis.zrem(keys.listing("amber"), retry["new_id"])  # as if its API had died once the queue had it
    again = await done(ops, "retry", ids=[failed])
    assert again["retried"] == [retry], "what was retried is not refused for a limit"
    assert await found(ops, account="amber") == [retry["new_id"], failed]
    assert (await callers["amber"].get(f"/v1/predictions/{failed}")).json()["status"] == "failed"
    assert (await driver.claim_one()).id == retry["new_id"]


@pytest.mark.parametrize("asked", [{"all": True}, {"account": "amber"}])
async def test_retry_by_a_filter_without_a_status_takes_only_what_failed(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver, asked: dict[str, Any]
) -> None:
    for _ in range(2):
        await create(callers["amber"])
    failed, fine = await fail(driver), await driver.claim_one()
    await driver.finish(fine, Status.SUCCEEDED)
    assert [one["id"] for one in (await done(ops, "retry", **asked))["retried"]] == [failed]
    again = await done(ops, "retry", status="succeeded", **({} if "all" in asked else asked))
    assert [one["id"] for one in again["retried"]] == [fine.id]


async def test_retry_of_a_letter_that_is_revived_meanwhile_makes_no_second_one(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(attempts=1))
    dead = await create(callers["amber"])
    await driver.release(await driver.claim_one(), spent=True, delay_s=0, error="lost", code="server_lost")
    revive = Scripts.revive

    async def late(scripts: Scripts, *given: Any, **named: Any) -> bool:
        await revive(scripts, *given, **named)
        return await revive(scripts, *given, **named)

    monkeypatch.setattr(Scripts, "revive", late)
    assert [one["why"] for one in (await done(ops, "retry", ids=[dead]))["refused"]] == ["has_not_ended"]
    assert await found(ops) == [dead]


async def test_retry_of_a_large_prediction_has_its_whole_input(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver
) -> None:
    text = "a" * 300_000
    await create(callers["amber"], input={"text": text})
    [retry] = (await done(ops, "retry", ids=[await fail(driver)]))["retried"]
    assert (await ops.get(f"/v1/predictions/{retry['new_id']}")).json()["input"] == {"text": text}


async def test_retry_revives_a_dead_letter(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver, catalog: Catalog
) -> None:
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(attempts=1))
    dead = await create(callers["amber"])
    await driver.release(await driver.claim_one(), spent=True, delay_s=0, error="lost", code="server_lost")
    answer = (await ops.post(f"{ALL}/{dead}/retry")).json()
    assert answer["retried"] == [{"id": dead, "new_id": dead}]
    assert (await driver.claim_one()).id == dead


async def test_retry_says_what_cannot_run_again(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver, redis: Redis, scripts: Scripts
) -> None:
    for _ in range(3):
        await create(callers["amber"])
    removed, secret, waits = await fail(driver), await fail(driver), (await found(ops, status="starting"))[0]
    await redis.delete(keys.input_data(removed))
    await redis.hset(keys.record(secret), "secret", "1 2")  # type: ignore[misc]
    answer = await done(ops, "retry", ids=[removed, secret, waits])
    assert [one["why"] for one in answer["refused"]] == ["data_removed", "secrets_gone", "has_not_ended"]
    assert (answer["done"], answer["retried"]) == (0, [])


async def test_retry_keeps_to_the_limits_of_the_account(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver, redis: Redis
) -> None:
    await create(callers["amber"])
    failed = await fail(driver)
    await Accounts(redis).set_limits("amber", {"max_queued": "1"})
    waits = await create(callers["amber"])
    assert [one["why"] for one in (await done(ops, "retry", ids=[failed]))["refused"]] == ["refused"]
    assert await found(ops, account="amber") == [waits, failed], "nothing of the refused one is left"
    await Accounts(redis).set_limits("amber", {"max_queued": "default", "max_data_bytes": "1"})
    assert [one["why"] for one in (await done(ops, "retry", ids=[failed]))["refused"]] == ["data_full"]
    await Accounts(redis).set_limits("amber", {"max_data_bytes": "default", "compute_s_per_day": "1"})
    await driver.scripts.reserve("amber", 1, id="another", asked_s=1)
    assert [one["why"] for one in (await done(ops, "retry", ids=[failed]))["refused"]] == ["compute_exhausted"]


def of_retry(end: PredictionId, completed: str) -> str:
    """Return the text of which an operator's retry of this end makes its digest. Its caller knows both parts."""
    return f"retry {end} {completed}"


async def test_callers_key_does_not_stop_an_operators_retry(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver
) -> None:
    for name in ("amber", "basalt"):
        await create(callers[name])
    first, second = await fail(driver), await fail(driver)
    key = of_retry(first, await driver.field(first, "completed"))
    body = {"version": VERSION, "input": {"text": "another"}}
    own = await callers["amber"].post("/v1/predictions", json=body, headers={"Idempotency-Key": key})
    answer = await done(ops, "retry", ids=[first, second])
    assert (answer["done"], answer["refused"]) == (2, [])
    assert own.json()["id"] not in [one["new_id"] for one in answer["retried"]]
    assert await done(ops, "retry", ids=[first, second]) == answer
    assert [one["kind"] for one in await changes(ops)] == ["predictions_retried"] * 2


async def test_retry_of_either_release_is_known_to_the_other_one(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver, redis: Redis, scripts: Scripts
) -> None:
    await create(callers["amber"])
    await create(callers["amber"])
    ours, former = await fail(driver), await fail(driver)
    [retried] = (await done(ops, "retry", ids=[ours]))["retried"]
    held = {
        name: hashlib.sha256(of_retry(name, await driver.field(name, "completed")).encode()).hexdigest()
        for name in (ours, former)
    }
    of_former = {name: keys.idempotency(account="amber", model=MODEL, digest=digest) for name, digest in held.items()}
    assert await redis.get(of_former[ours]) == f"{retried['new_id']} {held[ours]}".encode()
    new_id = await create(callers["amber"])
    await redis.set(of_former[former], f"{new_id} {held[former]}", ex=60)
    assert (await done(ops, "retry", ids=[former]))["retried"] == [{"id": former, "new_id": new_id}]


async def test_retry_goes_on_where_the_former_retry_was_deleted(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver
) -> None:
    await create(callers["amber"])
    failed = await fail(driver)
    [first] = (await done(ops, "retry", ids=[failed]))["retried"]
    await fail(driver)
    assert (await callers["amber"].delete(f"/v1/predictions/{first['new_id']}")).status_code == 204
    [second] = (await done(ops, "retry", ids=[failed]))["retried"]
    assert second["new_id"] != first["new_id"]
    assert (await callers["amber"].get(f"/v1/predictions/{second['new_id']}")).json()["status"] == "starting"
    assert (await done(ops, "retry", ids=[failed]))["retried"] == [second]


async def test_account_with_an_invalid_limit_does_not_stop_the_others(
    callers: dict[str, AsyncClient], ops: AsyncClient, driver: QueueDriver, redis: Redis
) -> None:
    for name in ("amber", "basalt"):
        await create(callers[name])
    broken, fine = await fail(driver), await fail(driver)
    await redis.hset(keys.account("amber"), "max_queued", "many")  # type: ignore[misc]
    answer = await done(ops, "retry", ids=[broken, fine])
    assert answer["refused"] == [{"id": broken, "why": "refused"}]
    assert [one["id"] for one in answer["retried"]] == [fine]
    assert [one["kind"] for one in await changes(ops)] == ["predictions_retried"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, ""),
        ({"all": True, "account": "amber"}, ""),
        ({"all": True, "ids": ["x"]}, ""),
        ({"ids": ["x"]}, "ids.0"),
        ({"status": "done"}, "status"),
        ({"ids": ["x"], "account": "amber"}, ""),
        ({"all": True, "cursor": "x"}, "cursor"),
    ],
)
async def test_wrong_request_is_named(ops: AsyncClient, asked: dict[str, Any], field: str) -> None:
    answer = await ops.post(f"{ALL}/cancel", json=asked)
    assert answer.status_code == 422
    assert [one["field"] for one in answer.json()["invalid_fields"]] == [field]


async def test_empty_condition_is_refused(callers: dict[str, AsyncClient], ops: AsyncClient) -> None:
    waits = await create(callers["amber"])
    for condition in ("account", "code", "created_before"):
        answer = await ops.post(f"{ALL}/cancel", json={"status": "starting", condition: ""})
        assert answer.status_code == 400
        assert condition in answer.json()["detail"]
    assert await found(ops, status="starting") == [waits]
