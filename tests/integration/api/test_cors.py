"""Test what scripts of other web pages may read: signed addresses always, and the rest where the operator says so."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from api.app import create_app
from director.core.errors import SettingsError
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from tests.support.api import api_client
from tests.support.queue_driver import ACCOUNT
from tests.support.servers import RedisServer

PAGE = "https://app.example"
OTHER = "https://other.example"
OPEN = ("/v1/outputs/none", "/v1/streams/" + "a" * 52, "/v1/files/" + "0" * 26 + "/download")
ALLOWED = "access-control-allow-origin"


@pytest.fixture
async def token(redis: Redis) -> str:
    return await Accounts(redis).create_token(ACCOUNT)


@pytest.fixture
async def api(server: RedisServer, tmp_path: Path) -> AsyncGenerator[AsyncClient, None]:
    settings = ApiSettings(
        redis_url=server.url, files_dir=str(tmp_path), cors_origins=(f"{PAGE}/", "HTTPS://B.example:443")
    )
    async with api_client(settings) as client:
        yield client


def asks(method: str, names: str = "", origin: str = PAGE) -> dict[str, str]:
    asked = {"Origin": origin, "Access-Control-Request-Method": method}
    return asked | ({"Access-Control-Request-Headers": names} if names else {})


async def test_no_page_may_read_the_api_unless_it_is_named(server: RedisServer, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}", "Origin": PAGE}
    async with api_client(ApiSettings(redis_url=server.url)) as api:
        for answer in (
            await api.get("/v1/predictions", headers=headers),
            await api.get("/v1/none", headers=headers),
            await api.options("/v1/predictions", headers=asks("POST")),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_named_page_may_read_answers_and_refusals(api: AsyncClient, token: str) -> None:
    good = {"Authorization": f"Bearer {token}"}
    for path, headers, status in (
        ("/v1/predictions", good, 200),
        ("/v1/predictions", {}, 401),
        ("/v1/predictions/none", good, 404),
        ("/v1/nowhere", good, 404),
    ):
        answer = await api.get(path, headers={**headers, "Origin": PAGE})
        assert (answer.status_code, answer.headers[ALLOWED]) == (status, PAGE)
        assert "access-control-allow-credentials" not in answer.headers
        assert "origin" in answer.headers["vary"].lower()
        assert "retry-after" in answer.headers["access-control-expose-headers"].lower()
    assert (await api.get("/v1/predictions", headers={**good, "Origin": "https://b.example"})).headers[ALLOWED]
    other = await api.get("/v1/predictions", headers={**good, "Origin": OTHER})
    assert ALLOWED not in other.headers
    assert "origin" in other.headers["vary"].lower(), "a cache keeps one answer for each origin"
    assert "ratelimit-remaining" in other.headers


async def test_named_page_may_send_what_its_preflight_asks_for(api: AsyncClient) -> None:
    answer = await api.options("/v1/predictions", headers=asks("POST", "authorization, x-priority"))
    assert answer.status_code == 204
    assert answer.headers[ALLOWED] == PAGE
    assert {"GET", "POST"} <= set(answer.headers["access-control-allow-methods"].split(", "))
    allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
    assert {"authorization", "x-priority", "content-type", "prefer"} <= set(allowed)
    refused = await api.options("/v1/predictions", headers=asks("POST", origin=OTHER))
    assert not [name for name in refused.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", OPEN)
@pytest.mark.parametrize("names", ["range", "if-range, range", "x-ms-version", "authorization", ""])
async def test_any_page_may_ask_a_signed_address(api: AsyncClient, path: str, names: str) -> None:
    answer = await api.options(path, headers=asks("GET", names, OTHER))
    assert (answer.status_code, answer.headers[ALLOWED]) == (204, "*")
    allowed = answer.headers["access-control-allow-headers"].lower().split(", ")
    assert {name.strip() for name in names.split(",") if name} <= set(allowed)


@pytest.mark.parametrize("path", OPEN)
async def test_any_page_may_read_the_refusal_of_a_signed_address(api: AsyncClient, path: str) -> None:
    for answer in (await api.get(path, headers={"Origin": OTHER}), await api.put(path, headers={"Origin": OTHER})):
        assert answer.is_client_error
        assert answer.headers.get_list(ALLOWED) == ["*"]


async def test_star_opens_the_api_to_every_page_without_cookies(server: RedisServer, token: str) -> None:
    async with api_client(ApiSettings(redis_url=server.url, cors_origins=("*",))) as api:
        answer = await api.get("/v1/predictions", headers={"Authorization": f"Bearer {token}", "Origin": OTHER})
    assert answer.headers[ALLOWED] == "*"
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/page", "null", "https://*.example", ""])
def test_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(SettingsError, match="DIRECTOR_CORS_ORIGINS"):
        create_app(ApiSettings(cors_origins=(origin,)))


@pytest.mark.parametrize("path", ["/v1/predictions", "/v1/predictions/none", "/v1/account", "/v1/nowhere"])
async def test_answers_that_may_change_are_kept_by_no_cache(api: AsyncClient, token: str, path: str) -> None:
    answer = await api.get(path, headers={"Authorization": f"Bearer {token}"})
    assert answer.headers.get_list("cache-control") == ["no-store"]


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff", b"\xff\xfe\x00\x00"])
async def test_byte_order_mark_is_named_in_the_refusal(api: AsyncClient, token: str, mark: bytes) -> None:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    answer = await api.post("/v1/predictions", content=mark + b'{"input": {}}', headers=headers)
    assert answer.status_code == 400
    assert "byte order mark" in answer.json()["detail"]
