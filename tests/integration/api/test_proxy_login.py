"""Log in through a proxy that names the person: only a trusted one, only for the page, with the role of the groups."""

from collections.abc import AsyncIterator
from typing import Any, Final

import anyio
import httpx
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from api.app import create_app
from api.web import errors
from director.core.errors import SettingsError
from director.core.ids import QueueName
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from tests.integration.api.test_sessions import FOREIGN, OF_PAGE, bearer, log_in
from tests.support.api import api_client
from tests.support.eventually import eventually
from tests.support.servers import RedisServer

ANN: Final = {"X-Forwarded-Email": "ann@example.com"}
ROLES: Final = ("sre=operator", "platform=admin", "*=viewer")
QUEUES: Final = "/v1/admin/queues"
ACCOUNTS: Final = "/v1/admin/accounts"


@pytest.fixture
def settings(server: RedisServer) -> ApiSettings:
    return ApiSettings(
        redis_url=server.url,
        cache_s=0,
        trusted_proxies=("10.0.0.1",),
        proxy_user_header="X-Forwarded-Email",
        proxy_groups_header="X-Forwarded-Groups",
        proxy_roles=ROLES,
    )


@pytest.fixture
async def page(settings: ApiSettings, redis: Redis, queue: QueueName) -> AsyncIterator[httpx.AsyncClient]:
    await Accounts(redis).create("page")
    async with api_client(settings, peer="10.0.0.1") as client:
        yield client


async def status(page: httpx.AsyncClient, path: str, *, method: str = "GET", **headers: str) -> int:
    sent: dict[str, Any] = {"json": {"name": "new"}} if method == "POST" else {}
    return (await page.request(method, path, headers={**OF_PAGE, **ANN, **headers}, **sent)).status_code


@pytest.mark.parametrize(
    ("groups", "sees", "acts", "changes"),
    [("", 200, 403, 403), ("dev, sre", 200, 204, 403), ("sre,platform", 200, 204, 201), ("platform", 200, 204, 201)],
)
async def test_groups_decide_what_the_person_may_do(
    page: httpx.AsyncClient, queue: QueueName, groups: str, sees: int, acts: int, changes: int
) -> None:
    sent = {"X-Forwarded-Groups": groups}
    path = f"{QUEUES}/{queue.replace(':', '/')}/drain"
    assert await status(page, QUEUES, **sent) == sees
    assert (await status(page, path, method="POST", **sent) == 200) == (acts == 204)
    assert await status(page, ACCOUNTS, method="POST", **sent) == changes


async def test_role_is_gone_with_the_group(page: httpx.AsyncClient) -> None:
    assert await status(page, ACCOUNTS, method="POST", **{"X-Forwarded-Groups": "platform"}) == 201
    assert await status(page, ACCOUNTS, method="POST", **{"X-Forwarded-Groups": "dev"}) == 403


async def test_log_of_changes_names_the_person(page: httpx.AsyncClient) -> None:
    await status(page, ACCOUNTS, method="POST", **{"X-Forwarded-Groups": "platform"})
    changes = (await page.get("/v1/admin/audit", headers={**OF_PAGE, **ANN})).json()["changes"]
    assert [one["by"] for one in changes] == ["page/ann@example.com"]


async def test_headers_of_an_untrusted_address_count_for_nothing(settings: ApiSettings, redis: Redis) -> None:
    await Accounts(redis).create("page")
    async with api_client(settings, peer="10.0.0.2") as page:
        assert await status(page, QUEUES) == 401


@pytest.mark.parametrize("kind", FOREIGN)
async def test_other_sites_cannot_use_the_proxys_log_in(page: httpx.AsyncClient, kind: str) -> None:
    headers = {**FOREIGN[kind], **ANN, "X-Forwarded-Groups": "platform"}
    answer = await page.post(ACCOUNTS, content=b'{"name":"stolen"}', headers=headers)
    assert answer.status_code == 401


@pytest.mark.parametrize("name", ["", "a b", "ann\t", "x" * 200, "é@x", "a/b", "ann,eve", "o'neill@example.com"])
async def test_odd_name_is_refused_with_a_reason(page: httpx.AsyncClient, name: str) -> None:
    headers = {**OF_PAGE, "X-Forwarded-Email": name.encode()}
    answer = await page.get(QUEUES, headers=headers)  # type: ignore[arg-type]
    assert (answer.status_code, "Your name at the proxy" in answer.text) == ((403, True) if name else (401, False))


async def test_proxy_with_a_secret_names_people_only_with_it(settings: ApiSettings, redis: Redis) -> None:
    await Accounts(redis).create("page")
    secret = "a-secret-of-the-proxy"
    async with api_client(replace(settings, proxy_secret=secret), peer="10.0.0.1") as page:
        assert await status(page, QUEUES, **{"X-Director-Proxy-Secret": secret}) == 200
        for wrong in ({}, {"X-Director-Proxy-Secret": ""}, {"X-Director-Proxy-Secret": secret[:-1]}):
            assert await status(page, QUEUES, **wrong) == 401
        twice = [("X-Director-Proxy-Secret", one) for one in (secret, secret)]
        assert (await page.get(QUEUES, headers=[*OF_PAGE.items(), *ANN.items(), *twice])).status_code == 401


async def test_second_name_in_a_request_is_no_one(page: httpx.AsyncClient) -> None:
    headers = [*OF_PAGE.items(), ("X-Forwarded-Email", "eve@example.com"), *ANN.items()]
    assert (await page.get(QUEUES, headers=headers)).status_code == 401


async def test_second_header_of_groups_is_no_one(page: httpx.AsyncClient) -> None:
    groups = [("X-Forwarded-Groups", one) for one in ("platform", "dev")]
    headers = [*OF_PAGE.items(), *ANN.items(), *groups]
    assert (await page.get(QUEUES, headers=headers)).status_code == 401


async def test_proxys_word_comes_before_any_cookie(page: httpx.AsyncClient, redis: Redis) -> None:
    cookie = await log_in(page, await Accounts(redis).create_token("team"))
    for sent in (cookie, {"Cookie": f"director-session-80=team.{'0' * 40}"}):
        answer = await page.get("/session", headers={**OF_PAGE, **ANN, **sent})
        assert answer.json() == {"username": "page", "scopes": ["read", "view"]}
    assert (await page.get("/session", headers={**OF_PAGE, **cookie})).json()["username"] == "team"


async def test_live_feed_of_a_person_ends_so_that_the_page_asks_again(
    page: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.admin.overview.OF_PROXY_S", 0.0)
    with anyio.fail_after(20):
        answer = await page.get("/v1/admin/live", headers={**OF_PAGE, **ANN})
    assert (answer.status_code, answer.text.count("event: snapshot")) == (200, 1)


async def test_live_feed_ends_with_the_account_of_the_page(
    page: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise errors.forbidden("gone")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                assert (await page.get("/v1/admin/live", headers={**OF_PAGE, **ANN})).status_code == 200
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await eventually(lambda: page.get("/readyz"), "it is", until=lambda found: found.json()["load"]["streams"])
            monkeypatch.setattr("api.accounts.auth.find_person", refuse)
            await anyio.sleep_forever()


async def test_person_of_the_proxy_makes_no_batch(settings: ApiSettings, redis: Redis) -> None:
    await Accounts(redis).create("page")
    async with api_client(replace(settings, openai=True), peer="10.0.0.1") as page:
        sent = {**OF_PAGE, **ANN, "X-Forwarded-Groups": "platform"}
        answer = await page.post("/openai/v1/batches", json={}, headers=sent)
        assert (answer.status_code, "send a token" in answer.text) == (403, True)


async def test_person_without_a_role_and_without_the_account_is_refused(settings: ApiSettings, redis: Redis) -> None:
    async with api_client(settings, peer="10.0.0.1") as page:
        answer = await page.get(QUEUES, headers={**OF_PAGE, **ANN})
        assert (answer.status_code, "director account create page" in answer.text) == (403, True)
    await Accounts(redis).create("page")
    async with api_client(replace(settings, proxy_roles=("sre=operator",)), peer="10.0.0.1") as page:
        assert await status(page, QUEUES) == 403


async def test_token_comes_before_the_proxys_word(page: httpx.AsyncClient, redis: Redis) -> None:
    team = await Accounts(redis).create_token("team")
    answer = await page.get("/v1/account", headers={**OF_PAGE, **ANN, **bearer(team)})
    assert answer.json()["username"] == "team"


async def test_page_says_who_the_proxy_named(page: httpx.AsyncClient) -> None:
    answer = await page.get("/session", headers={**OF_PAGE, **ANN})
    assert answer.json() == {"username": "page", "scopes": ["read", "view"]}
    assert (await page.get("/session", headers=OF_PAGE)).status_code == 204


@pytest.mark.parametrize(
    "changed",
    [{"trusted_proxies": ()}, {"proxy_roles": ("sre",)}, {"proxy_roles": ("sre=god",)}, {"proxy_account": "No"}],
)
def test_settings_that_cannot_be_meant_are_refused_at_the_start(settings: ApiSettings, changed: Any) -> None:
    with pytest.raises(SettingsError):
        create_app(replace(settings, **changed))
