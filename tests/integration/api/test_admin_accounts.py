"""Test that operators manage accounts and tokens over HTTP, and read the log of their changes in pages."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.account_limits import AccountLimits
from director.core.ids import PredictionId
from director.store.accounts import Accounts
from tests.support.eventually import eventually

ADMIN = "operators"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def made(admin: AsyncClient, name: str = "umbrella", **token: Any) -> str:
    await admin.post("/v1/admin/accounts", json={"name": name})
    answer = await admin.post(f"/v1/admin/accounts/{name}/tokens", json=token)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


async def test_account_is_created_once_and_shown_with_its_limits(admin: AsyncClient) -> None:
    answer = await admin.post("/v1/admin/accounts", json={"name": "umbrella", "type": "user"})
    assert answer.status_code == 201
    shown = (await admin.get("/v1/admin/accounts/umbrella")).json()
    assert shown == answer.json()
    assert (shown["name"], shown["type"]) == ("umbrella", "user")
    assert set(shown["limits"]) == set(AccountLimits.__struct_fields__)
    again = await admin.post("/v1/admin/accounts", json={"name": "umbrella", "type": "organization"})
    assert (again.status_code, again.json()["code"]) == (409, "account_exists")
    assert again.headers["x-should-retry"] == "false"
    assert (await admin.get("/v1/admin/accounts/umbrella")).json()["type"] == "user"


async def test_account_describes_itself_to_the_holder_of_its_token(admin: AsyncClient) -> None:
    token = await made(admin)
    await admin.patch("/v1/admin/accounts/umbrella", json={"type": "user"})
    answer = (await admin.get("/v1/account", headers=bearer(token))).json()
    assert (answer["type"], answer["username"], answer["name"]) == ("user", "umbrella", "umbrella")


async def test_account_reads_its_own_limits_and_tokens(admin: AsyncClient) -> None:
    token = await made(admin, label="ci")
    await made(admin, name="tyrell", label="other")
    await admin.patch("/v1/admin/accounts/umbrella", json={"limits": {"max_running": 4}})
    limits = (await admin.get("/v1/account/limits", headers=bearer(token))).json()
    assert limits == (await admin.get("/v1/admin/accounts/umbrella")).json()
    assert (limits["name"], limits["limits"]["max_running"]) == ("umbrella", 4)
    tokens = (await admin.get("/v1/account/tokens", headers=bearer(token))).json()["results"]
    assert tokens == (await admin.get("/v1/admin/accounts/umbrella/tokens")).json()["results"]
    assert [one["label"] for one in tokens] == ["ci"]
    assert all(token not in str(one) for one in tokens)


async def test_secret_of_a_token_is_shown_only_once(admin: AsyncClient, redis: Any) -> None:
    ends = datetime.now(UTC) + timedelta(days=1)
    await admin.post("/v1/admin/accounts", json={"name": "umbrella"})
    asked = {"label": "build server", "scopes": ["read"], "lanes": ["low"], "expires_at": ends.isoformat()}
    answer = await admin.post("/v1/admin/accounts/umbrella/tokens", json=asked)
    secret = answer.json()["token"]
    assert answer.headers["cache-control"] == "no-store"
    [listed] = (await admin.get("/v1/admin/accounts/umbrella/tokens")).json()["results"]
    assert {**listed, "token": secret} == answer.json()
    assert (listed["label"], listed["scopes"], listed["lanes"]) == ("build server", ["read"], ["low"])
    assert listed["last4"] == secret[-4:]
    assert listed["created_at"] < listed["expires_at"]
    for name in await redis.keys("*token*"):
        content = await redis.execute_command("DUMP", name)
        assert secret.encode() not in name + content


async def test_revoked_token_is_refused(admin: AsyncClient) -> None:
    token, other = await made(admin, label="one"), await made(admin, label="two")
    listed = (await admin.get("/v1/admin/accounts/umbrella/tokens")).json()["results"]
    [name] = [one["id"] for one in listed if one["label"] == "one"]
    assert (await admin.delete(f"/v1/admin/accounts/umbrella/tokens/{name}")).status_code == 204
    assert (await admin.get("/v1/account", headers=bearer(token))).status_code == 401
    assert (await admin.get("/v1/account", headers=bearer(other))).status_code == 200
    assert (await admin.delete(f"/v1/admin/accounts/umbrella/tokens/{name}")).status_code == 404
    left = (await admin.get("/v1/admin/accounts/umbrella/tokens")).json()["results"]
    assert [one["label"] for one in left] == ["two"]


async def test_token_gets_other_rights_without_a_new_secret(admin: AsyncClient) -> None:
    token = await made(admin, scopes=["read", "run", "admin"], label="ci")
    [listed] = (await admin.get("/v1/admin/accounts/umbrella/tokens")).json()["results"]
    path = f"/v1/admin/accounts/umbrella/tokens/{listed['id']}"
    answer = await admin.patch(path, json={"scopes": ["run", "view"]})
    assert (answer.status_code, answer.json()) == (200, {**listed, "scopes": ["run", "view"]})
    assert (await admin.get("/v1/account", headers=bearer(token))).status_code == 403
    assert (await admin.get("/v1/admin/queues", headers=bearer(token))).status_code == 200
    ends = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert (await admin.patch(path, json={"expires_at": ends, "lanes": ["low"]})).json()["expires_at"] is not None
    assert (await admin.patch(path, json={"expires_at": None})).json() == {
        **listed,
        "scopes": ["run", "view"],
        "lanes": ["low"],
    }
    past = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    for wrong in ({"scopes": []}, {"scopes": ["god"]}, {"expires_at": past}, {"label": "\n"}, {"secret": "x"}):
        assert (await admin.patch(path, json=wrong)).status_code in (400, 422), wrong
    assert (await admin.patch(path.replace("umbrella", "operators"), json={"label": "x"})).status_code == 404
    changes = (await admin.get("/v1/admin/audit")).json()["changes"]
    told = [one["detail"]["to"] for one in changes if one["kind"] == "token_changed"]
    assert (len(told), told[0]) == (3, {"scopes": ["run", "view"]})


async def test_only_the_own_account_revokes_a_token(admin: AsyncClient) -> None:
    token = await made(admin)
    await admin.post("/v1/admin/accounts", json={"name": "another"})
    [listed] = (await admin.get("/v1/admin/accounts/umbrella/tokens")).json()["results"]
    assert (await admin.delete(f"/v1/admin/accounts/another/tokens/{listed['id']}")).status_code == 404
    assert (await admin.get("/v1/account", headers=bearer(token))).status_code == 200


async def test_expired_token_is_refused_and_removed(admin: AsyncClient, redis: Any) -> None:
    ends = datetime.now(UTC) + timedelta(seconds=1)
    headers = bearer(await made(admin, expires_at=ends.isoformat()))
    account, tokens = "/v1/account", "/v1/admin/accounts/umbrella/tokens"
    await eventually(lambda: admin.get(account, headers=headers), "is refused", until=lambda found: found.is_error)
    assert (await admin.get(account, headers=headers)).status_code == 401
    await eventually(lambda: admin.get(tokens), "is not listed", until=lambda found: found.json()["results"] == [])
    assert len(await redis.keys("token:*")) == 1, "the operator's"


async def test_invalid_token_properties_are_refused(admin: AsyncClient, redis: Redis) -> None:
    await admin.post("/v1/admin/accounts", json={"name": "umbrella"})
    for wrong in (
        {"scopes": ["root"]},
        {"scopes": []},
        {"lanes": ["urgent"]},
        {"label": "a\nb"},
        {"expires_at": "tomorrow"},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"expires_at": "2999-01-01T00:00:00"},
        {"expires_at": "9999-12-31T23:59:59-12:00"},
        {"secret": "mine"},
    ):
        answer = await admin.post("/v1/admin/accounts/umbrella/tokens", json=wrong)
        assert answer.status_code in (400, 422), wrong
    assert await Accounts(redis).tokens.of("umbrella") == []


@pytest.mark.parametrize("name", ["a\n", "a b", "-a", "A", "", "a" * 65], ids=["line", "gap", "dash", "A", "no", "65"])
async def test_invalid_account_name_is_refused(admin: AsyncClient, name: str) -> None:
    assert (await admin.post("/v1/admin/accounts", json={"name": name})).status_code == 400


async def test_limits_are_set_reset_and_lifted(admin: AsyncClient, redis: Redis) -> None:
    await admin.post("/v1/admin/accounts", json={"name": "umbrella"})
    answer = await admin.patch("/v1/admin/accounts/umbrella", json={"limits": {"rate": 2.5, "burst": 5, "weight": 2}})
    assert (answer.json()["limits"]["rate"], answer.json()["limits"]["burst"]) == (2.5, 5)
    await admin.patch("/v1/admin/accounts/umbrella", json={"limits": {"rate": None, "burst": "default"}})
    assert (await Accounts(redis).read_written("umbrella")).limits == {"rate": "none", "weight": "2"}


async def test_credit_is_set_and_shown_with_its_use(admin: AsyncClient, scripts: Scripts) -> None:
    await admin.post("/v1/admin/accounts", json={"name": "umbrella"})
    await admin.patch("/v1/admin/accounts/umbrella", json={"limits": {"compute_s_total": 1_000_000_000}})
    for name, spent_s in (("p1", 12.5), ("p2", None)):
        await scripts.reserve("umbrella", None, in_all=1_000_000_000, id=name, asked_s=30)
        if spent_s is not None:
            await scripts.spend("umbrella", prediction_id=PredictionId(name), spent_s=spent_s)
    shown = (await admin.get("/v1/admin/accounts/umbrella")).json()
    assert shown["limits"]["compute_s_total"] == 1_000_000_000
    assert (shown["usage"]["total_spent_s"], shown["usage"]["total_reserved_s"]) == (12.5, 30)


async def test_invalid_limits_change_nothing(admin: AsyncClient, redis: Redis) -> None:
    await admin.post("/v1/admin/accounts", json={"name": "umbrella"})
    for wrong in ({"rate": -1}, {"burst": 1.5}, {"weight": None}, {"speed": 1}, {"rate": 3, "max_queued": 0}):
        answer = await admin.patch("/v1/admin/accounts/umbrella", json={"limits": wrong, "type": "user"})
        assert answer.status_code == 422, wrong
        assert "speed" not in answer.text
    written = await Accounts(redis).read_written("umbrella")
    assert (written.limits, written.type) == ({}, "organization")


async def test_accounts_are_listed_by_name_in_pages(admin: AsyncClient, redis: Any) -> None:
    names = sorted(f"team-{number:03}" for number in range(150))
    for name in names:
        await redis.hset(keys.account(name), "webhook_secret", "whsec_x")
    await redis.sadd(keys.accounts(), *names)
    first = (await admin.get("/v1/admin/accounts")).json()
    second = (await admin.get(first["next"])).json()
    assert second["next"] is None
    assert [one["name"] for one in first["results"] + second["results"]] == [ADMIN, *names]


@pytest.mark.not_on("cluster", why="counts the writes to one server")
async def test_page_of_accounts_equals_the_single_accounts(admin: AsyncClient, redis: Redis, scripts: Scripts) -> None:
    names = [f"a{number:02d}" for number in range(60)]
    for name in names:
        await redis.hset(keys.account(name), mapping={"webhook_secret": "whsec_x", "rate": "5"})
        await scripts.stow(name, "f", int(name[1:]) + 1, until_ms=2**42)
    await redis.zadd(keys.stored_until("a07"), {"f": 1})
    await redis.sadd(keys.accounts(), *names)
    await admin.get("/v1/account")
    before = (await redis.info("stats"))["total_reads_processed"]
    page = (await admin.get("/v1/admin/accounts")).json()["results"]
    assert (await redis.info("stats"))["total_reads_processed"] - before <= 8
    shown = {one["name"]: one for one in page}
    assert [shown[name]["usage"]["stored_bytes"] for name in names] == [
        0 if name == "a07" else int(name[1:]) + 1 for name in names
    ], "what has expired counts no more"
    assert {shown[name]["limits"]["rate"] for name in names} == {5.0}
    assert shown["a31"] == (await admin.get("/v1/admin/accounts/a31")).json()


async def test_unknown_account_is_not_found(admin: AsyncClient, redis: Redis) -> None:
    for name in ("unknown", "No%20Name", "x" * 100):
        for method, path in (
            ("GET", ""),
            ("PATCH", ""),
            ("GET", "/tokens"),
            ("POST", "/tokens"),
            ("DELETE", "/tokens/a"),
        ):
            answer = await admin.request(method, f"/v1/admin/accounts/{name}{path}", json={})
            assert answer.status_code == 404, (method, path)
    assert await Accounts(redis).names() == [ADMIN]


PATH = "/v1/admin/audit"


async def read(admin: AsyncClient, **query: Any) -> dict[str, Any]:
    answer = await admin.get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_change_is_shown_with_its_operator(admin: AsyncClient, redis: Redis) -> None:
    assert await read(admin) == {"changes": [], "next": "0-0"}
    await admin.post("/v1/admin/accounts", json={"name": "umbrella", "type": "user"})
    page = await read(admin)
    [change] = page["changes"]
    [operator] = await Accounts(redis).tokens.of("operators")
    assert (change["kind"], change["account"], change["queue"]) == ("account_created", "umbrella", None)
    assert (change["by"], change["detail"]) == (f"operators/{operator.id}", {"type": "user"})
    assert page["next"] == change["entry"]


async def test_pages_continue_and_wait_for_new_entries(admin: AsyncClient) -> None:
    for name in ("a", "b", "c"):
        await admin.post("/v1/admin/accounts", json={"name": name})
    first = await read(admin, limit=2)
    second = await read(admin, limit=2, after=first["next"])
    assert [change["account"] for page in (first, second) for change in page["changes"]] == ["a", "b", "c"]
    assert await read(admin, after=second["next"]) == {"changes": [], "next": second["next"]}
    await admin.post("/v1/admin/accounts", json={"name": "d"})
    assert [change["account"] for change in (await read(admin, after=second["next"]))["changes"]] == ["d"]


async def test_newest_entries_can_come_first(admin: AsyncClient) -> None:
    assert await read(admin, order="desc") == {"changes": [], "next": None}
    for name in ("a", "b", "c"):
        await admin.post("/v1/admin/accounts", json={"name": name})
    first = await read(admin, order="desc", limit=2)
    second = await read(admin, order="desc", limit=2, after=first["next"])
    assert [change["account"] for page in (first, second) for change in page["changes"]] == ["c", "b", "a"]
    assert second["next"] is None


@pytest.mark.parametrize(
    "query", ["after=x", "after=-1", "after=1", f"after={'9' * 30}-0", "limit=0", "limit=1001", "order=x"]
)
async def test_invalid_page_is_refused(admin: AsyncClient, query: str) -> None:
    answer = await admin.get(f"{PATH}?{query}")
    assert (answer.status_code, answer.json()["invalid_fields"][0]["field"]) == (422, query.partition("=")[0])
