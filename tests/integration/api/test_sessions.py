"""Log in at the page and out: links, cookies, what other sites can and cannot do, and when a session ends."""

from collections.abc import AsyncIterator, Mapping
from http.cookies import Morsel, SimpleCookie
from typing import Any, Final
from urllib.parse import unquote

import httpx
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from api.app import ROUTES
from api.services.lookups import Lookups
from director.broker import keys
from director.core.errors import BackendUnavailable
from director.core.ids import QueueName
from director.core.settings import ApiSettings
from director.store.accounts import ROLES, SCOPES, Accounts, Role, digest
from tests.support.api import BASE, api_client
from tests.support.keyspace import holders, unchanged
from tests.support.servers import RedisServer

OF_PAGE: Final = {"X-Director-Page": "1", "Sec-Fetch-Site": "same-origin", "Origin": BASE}
# what a browser sends with a request that another site made it send
FOREIGN: Final[Mapping[str, dict[str, str]]] = {
    "form": {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example", "Content-Type": "text/plain"},
    "script": {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example", "X-Director-Page": "1"},
    "sibling": {"Sec-Fetch-Site": "same-site", "Origin": "http://other.director.test", "X-Director-Page": "1"},
    "old browser": {"Origin": "https://evil.example", "X-Director-Page": "1"},
    "no origin": {"Origin": "null", "X-Director-Page": "1"},
    "navigation": {"Sec-Fetch-Site": "none"},
    "plain": {},
}


@pytest.fixture
def settings(server: RedisServer) -> ApiSettings:
    return ApiSettings(redis_url=server.url, cache_s=0, cancel_wait_s=0, openai=True)


@pytest.fixture
async def page(settings: ApiSettings, queue: QueueName) -> AsyncIterator[httpx.AsyncClient]:
    async with api_client(settings) as client:
        yield client


@pytest.fixture
async def admin_token(redis: Redis) -> str:
    return await Accounts(redis).create_token("ops", scopes=ROLES["admin"], label="ann")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def cookie_of(answer: httpx.Response) -> Morsel[str]:
    [header] = answer.headers.get_list("set-cookie")
    [morsel] = SimpleCookie(header).values()
    return morsel


async def link(page: httpx.AsyncClient, token: str, **asked: Any) -> str:
    answer = await page.post("/v1/account/login-link", json=asked, headers=bearer(token))
    assert answer.status_code == 201, answer.text
    return str(answer.json()["url"])


async def follow(page: httpx.AsyncClient, url: str, **headers: str) -> httpx.Response:
    return await page.post("/session", json={"link": url.rpartition("/")[2]}, headers={**OF_PAGE, **headers})


async def log_in(page: httpx.AsyncClient, token: str) -> dict[str, str]:
    """Return the header of a cookie. The jar of the client stays empty, as a test says itself what is sent."""
    answer = await page.post("/session", json={}, headers={**OF_PAGE, **bearer(token)})
    assert answer.status_code == 201, answer.text
    page.cookies.clear()
    morsel = cookie_of(answer)
    return {"Cookie": f"{morsel.key}={morsel.value}"}


async def status(page: httpx.AsyncClient, cookie: dict[str, str], path: str = "/v1/account") -> int:
    return (await page.get(path, headers={**OF_PAGE, **cookie})).status_code


async def test_link_logs_in_once_and_its_session_is_the_tokens(page: httpx.AsyncClient, admin_token: str) -> None:
    url = await link(page, admin_token)
    assert url.startswith(f"{BASE}/#/login/ops.")
    answer = await follow(page, url)
    assert answer.status_code == 201
    account = (await page.get("/v1/account", headers=OF_PAGE)).json()
    assert account["username"] == answer.json()["username"] == "ops"
    assert "admin" in account["scopes"]
    page.cookies.clear()
    again = await follow(page, url)
    assert (again.status_code, again.headers.get_list("set-cookie")) == (401, [])


async def test_link_goes_on_to_the_page_that_it_names(page: httpx.AsyncClient, admin_token: str) -> None:
    to = "/models/acme/painter?run=06gzx0rcvbz008pmq2tvpfvnvc&words=a b".replace(" ", "%20")
    own = await link(page, admin_token, to=to)
    asked = {"role": "viewer", "to": "/p/06gzx0rcvbz008pmq2tvpfvnvc"}
    made = await page.post("/v1/admin/accounts/ops/login-links", json=asked, headers=bearer(admin_token))
    [(secret, wanted), (_, other)] = [url.rpartition("/#/login/")[2].split("?to=") for url in (own, made.json()["url"])]
    assert (unquote(wanted), unquote(other)) == (to, asked["to"])
    assert not set(wanted) & set("?&#")
    answer = await page.post("/session", json={"link": secret}, headers=OF_PAGE)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    "to",
    [
        *("//evil.example", "https://evil.example", "javascript:alert(1)", "evil.example", "/\\evil.example"),
        *(
            "\\/evil.example",
            "\\\\evil.example",
            "/\t/evil.example",
            "/x\n",
            "\n/x",
            "/ /evil",
            "/x\x00",
            "/" + "x" * 500,
        ),
    ],
)
async def test_link_names_no_page_elsewhere(page: httpx.AsyncClient, admin_token: str, to: str) -> None:
    for path in ("/v1/account/login-link", "/v1/admin/accounts/ops/login-links"):
        answer = await page.post(path, json={"to": to}, headers=bearer(admin_token))
        assert answer.status_code == 400, to


async def test_look_at_a_link_says_whether_it_works_and_uses_nothing(
    page: httpx.AsyncClient, admin_token: str, redis: Redis
) -> None:
    async def look(secret: str, headers: Mapping[str, str] = OF_PAGE) -> Any:
        answer = await page.post("/session/link", json={"link": secret}, headers=headers)
        return answer.json()["works"] if answer.status_code == 200 else answer.status_code

    secret = (await link(page, admin_token)).rpartition("/")[2]
    async with unchanged(redis):
        assert [await look(secret), await look(secret)] == [True, True]
    assert await look(f"ops.{'0' * 40}") == await look("no link") is False
    assert {await look(secret, headers) for headers in FOREIGN.values()} == {403}
    assert (await page.post("/session", json={"link": secret}, headers=OF_PAGE)).status_code == 201
    assert await look(secret) is False


async def test_cookie_is_out_of_reach_of_scripts_and_other_sites(page: httpx.AsyncClient, admin_token: str) -> None:
    answer = await page.post("/session", json={}, headers={**OF_PAGE, **bearer(admin_token)})
    morsel = cookie_of(answer)
    assert (morsel["httponly"], morsel["samesite"].lower(), morsel["path"]) == (True, "strict", "/")
    assert (morsel["domain"], morsel["secure"], morsel.key) == ("", "", "director-session-80")
    assert 43_190 < int(morsel["max-age"]) <= 43_200
    assert admin_token not in answer.text + str(answer.headers)


async def test_cookie_behind_tls_is_secure_and_bound_to_the_host(settings: ApiSettings, admin_token: str) -> None:
    async with api_client(replace(settings, trusted_proxies=("127.0.0.1",))) as page:
        tls = {**OF_PAGE, "X-Forwarded-Proto": "https", "Origin": "https://director.test"}
        answer = await page.post("/session", json={}, headers={**tls, **bearer(admin_token)})
        morsel = cookie_of(answer)
        assert (morsel.key, morsel["secure"], morsel["path"], morsel["domain"]) == (
            "__Host-director-session",
            True,
            "/",
            "",
        )
        page.cookies.clear()
        # a plain page of the same host can set the other name only
        planted = {"Cookie": f"director-session-80={morsel.value}; director-session-443={morsel.value}"}
        assert (await page.get("/v1/account", headers={**tls, **planted})).status_code == 401
        right = {"Cookie": f"a=b; __Host-director-session={morsel.value}"}
        assert (await page.get("/v1/account", headers={**tls, **right})).status_code == 200


@pytest.mark.parametrize(
    ("host", "is_secure"), [("director.test", True), ("inner:8080", True), ("127.0.0.1:8080", False)]
)
async def test_cookie_is_secure_if_the_public_address_has_tls(
    settings: ApiSettings, admin_token: str, host: str, is_secure: bool
) -> None:
    """Also where the proxy with TLS passes neither the scheme nor the host on."""
    async with api_client(replace(settings, public_url="https://director.test")) as page:
        sent = {**OF_PAGE, "Host": host, "Sec-Fetch-Site": "same-origin", **bearer(admin_token)}
        morsel = cookie_of(await page.post("/session", json={}, headers=sent))
        page.cookies.clear()
        assert (bool(morsel["secure"]), morsel.key.startswith("__Host-")) == (is_secure, is_secure)
        mine = {**OF_PAGE, "Host": host, "Cookie": f"{morsel.key}={morsel.value}"}
        assert (await page.get("/v1/account", headers=mine)).status_code == 200


async def test_redis_has_no_secret_of_a_session_link_or_token(
    page: httpx.AsyncClient, admin_token: str, redis: Redis
) -> None:
    cookie = (await log_in(page, admin_token))["Cookie"]
    waiting = await link(page, admin_token)
    for secret in (cookie.rpartition(".")[2], waiting.rpartition(".")[2], admin_token):
        assert await holders(redis, secret.encode()) == []


@pytest.mark.parametrize("kind", FOREIGN)
async def test_other_sites_can_use_no_session(
    page: httpx.AsyncClient, admin_token: str, redis: Redis, kind: str
) -> None:
    """With the cookie, as if the browser had sent it all the same."""
    cookie = await log_in(page, admin_token)
    sent = {**FOREIGN[kind], **cookie}
    async with unchanged(redis):
        for route in [one for one in ROUTES if one.scopes]:
            path = f"{'' if route.is_openai else '/v1'}{route.path}".replace("{", "").replace("}", "")
            answer = await page.request(route.method, path, content=b"{}", headers=sent)
            assert answer.status_code == 401, (route.method, path, answer.text)


@pytest.mark.parametrize("kind", FOREIGN)
async def test_other_sites_log_no_one_in_or_out(
    page: httpx.AsyncClient, admin_token: str, redis: Redis, kind: str
) -> None:
    cookie, planted = await log_in(page, admin_token), (await link(page, admin_token)).rpartition("/")[2]
    async with unchanged(redis):
        for method, body in (("POST", {"link": planted}), ("DELETE", {})):
            answer = await page.request(method, "/session", json=body, headers={**FOREIGN[kind], **cookie})
            assert (answer.status_code, answer.headers.get_list("set-cookie")) == (403, [])
    assert await status(page, cookie) == 200


async def test_answers_let_no_other_origin_use_cookies(settings: ApiSettings, admin_token: str) -> None:
    async with api_client(replace(settings, cors_origins=("*",))) as page:
        cookie = await log_in(page, admin_token)
        answer = await page.get("/v1/account", headers={**OF_PAGE, **cookie, "Origin": "https://evil.example"})
        asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
        preflight = await page.options("/v1/account", headers=asked)
        for one in (answer, preflight):
            assert "access-control-allow-credentials" not in one.headers


async def test_log_in_changes_the_session_and_ends_the_former_one(page: httpx.AsyncClient, admin_token: str) -> None:
    """A session that an attacker planted before stays worth nothing after the log-in."""
    former = await log_in(page, admin_token)
    answer = await page.post("/session", json={}, headers={**OF_PAGE, **bearer(admin_token), **former})
    morsel = cookie_of(answer)
    page.cookies.clear()
    assert morsel.value != former["Cookie"].partition("=")[2]
    assert await status(page, former) == 401
    assert await status(page, {"Cookie": f"{morsel.key}={morsel.value}"}) == 200


@pytest.mark.parametrize("value", ["", "ops", "ops.", f"ops.{'0' * 40}", f"x.{'0' * 40}", f"{'x' * 4000}.0", "é.0"])
async def test_made_up_session_is_refused_and_never_taken_over(
    page: httpx.AsyncClient, value: str, redis: Redis
) -> None:
    await Accounts(redis).create_token("ops")
    made_up = {"Cookie": f"director-session-80={value}".encode()}
    async with unchanged(redis):
        answer = await page.get("/v1/account", headers={**OF_PAGE, **made_up})  # type: ignore[dict-item]
        assert answer.status_code == 401
        assert (await follow(page, f"/{value}")).status_code in (401, 400)


@pytest.mark.parametrize("origin", ["http://[", "//", "", "null", "http://director.test:x", "http://é"])
async def test_odd_origin_is_another_site(page: httpx.AsyncClient, admin_token: str, origin: str) -> None:
    sent: Any = {"X-Director-Page": "1", **await log_in(page, admin_token), "Origin": origin.encode()}
    for method, path, code in (("GET", "/session", 204), ("GET", "/v1/account", 401), ("DELETE", "/session", 403)):
        answer = await page.request(method, path, headers=sent)
        assert answer.status_code == code, (method, path, answer.text)


@pytest.mark.parametrize("host", ["x:abc", "x:99999", "[", "", "x:", "[::1]:80", "[::1"])
async def test_odd_host_gets_an_answer(page: httpx.AsyncClient, host: str) -> None:
    for method, path, code in (("GET", "/session", 204), ("GET", "/v1/account", 401), ("DELETE", "/session", 204)):
        answer = await page.request(method, path, headers={**OF_PAGE, "Host": host})
        assert answer.status_code == code, (method, path, answer.text)


async def test_origin_of_another_scheme_is_another_site(page: httpx.AsyncClient, admin_token: str) -> None:
    cookie = await log_in(page, admin_token)
    for origin, code in ((BASE, 200), (BASE.replace("http:", "https:"), 401)):
        sent = {"X-Director-Page": "1", "Origin": origin, **cookie}
        assert (await page.get("/v1/account", headers=sent)).status_code == code


async def test_two_cookies_of_the_session_are_no_one(page: httpx.AsyncClient, admin_token: str) -> None:
    mine, planted = [(await log_in(page, admin_token))["Cookie"] for _ in range(2)]
    assert await status(page, {"Cookie": f"{planted}; {mine}"}) == 401
    assert (await page.delete("/session", headers={**OF_PAGE, "Cookie": f"{planted}; {mine}"})).status_code == 204
    for cookie in (mine, planted):
        assert await status(page, {"Cookie": cookie}) == 401


async def test_cookie_that_is_over_is_taken_back(page: httpx.AsyncClient, admin_token: str) -> None:
    cookie = await log_in(page, admin_token)
    await page.delete("/session", headers={**OF_PAGE, **cookie})
    answer = await page.get("/session", headers={**OF_PAGE, **cookie})
    assert (answer.status_code, cookie_of(answer)["max-age"]) == (204, "0")


@pytest.mark.parametrize("role", ROLES)
async def test_log_ins_of_a_token_end_no_other_persons_session(
    page: httpx.AsyncClient, admin_token: str, redis: Redis, role: Role
) -> None:
    cookie = await log_in(page, admin_token)
    other = await Accounts(redis).create_token("ops", scopes=ROLES[role])
    for _ in range(101):
        last = await log_in(page, other)
    assert await status(page, cookie) == await status(page, last) == 200


async def test_log_ins_count_as_creates(settings: ApiSettings, admin_token: str) -> None:
    async with api_client(replace(settings, account_rate=1.0, account_burst=1)) as page:
        await log_in(page, admin_token)
        answer = await page.post("/session", json={}, headers={**OF_PAGE, **bearer(admin_token)})
        assert answer.status_code == 429


async def test_link_whose_token_is_away_is_not_used_up(
    page: httpx.AsyncClient, admin_token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = await link(page, admin_token)

    async def fail(*_: object) -> None:
        raise BackendUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(Lookups, "account_of", fail)
        assert (await follow(page, url)).status_code == 503
    assert (await follow(page, url)).status_code == 201


async def test_session_makes_no_batch(page: httpx.AsyncClient, admin_token: str) -> None:
    cookie = await log_in(page, admin_token)
    answer = await page.post("/openai/v1/batches", json={}, headers={**OF_PAGE, **cookie})
    assert (answer.status_code, "send a token" in answer.text) == (403, True)


async def test_token_of_an_invitation_ends_with_its_last_session(
    page: httpx.AsyncClient, admin_token: str, redis: Redis
) -> None:
    asked = {"role": "viewer", "label": "bob", "life_s": 600}
    await page.post("/v1/admin/accounts/ops/login-links", json=asked, headers=bearer(admin_token))
    [token] = [one for one in await Accounts(redis).tokens.of("ops") if one.label == "bob"]
    assert token.expires_ms is not None
    assert token.created_ms is not None
    assert token.expires_ms - token.created_ms == pytest.approx((600 + 43_200) * 1000, abs=5_000)


async def test_log_out_ends_the_session_and_takes_the_cookie_back(page: httpx.AsyncClient, admin_token: str) -> None:
    cookie = await log_in(page, admin_token)
    answer = await page.delete("/session", headers={**OF_PAGE, **cookie})
    assert (answer.status_code, cookie_of(answer)["max-age"]) == (204, "0")
    assert await status(page, cookie) == 401
    assert (await page.delete("/session", headers={**OF_PAGE, **cookie})).status_code == 204


async def test_session_ends_after_its_life(page: httpx.AsyncClient, admin_token: str, redis: Redis) -> None:
    cookie = await log_in(page, admin_token)
    [(entry, value)] = (await redis.hgetall(keys.sessions("ops"))).items()
    _, _, rest = value.decode().partition(" ")
    await redis.hset(keys.sessions("ops"), entry, f"1 {rest}")
    assert await status(page, cookie) == 401


async def test_session_ends_with_its_token(page: httpx.AsyncClient, admin_token: str, redis: Redis) -> None:
    cookie, waiting = await log_in(page, admin_token), await link(page, admin_token)
    tokens = Accounts(redis).tokens
    found = await tokens.find(admin_token)
    assert found is not None
    await tokens.remove(found)
    assert await status(page, cookie) == 401
    assert (await follow(page, waiting)).status_code == 401


async def test_change_of_the_tokens_scopes_changes_the_session(
    page: httpx.AsyncClient, admin_token: str, redis: Redis
) -> None:
    cookie = await log_in(page, admin_token)
    assert await status(page, cookie, "/v1/admin/queues") == 200
    await redis.hset(keys.token(digest(admin_token)), "scopes", "read")
    assert await status(page, cookie, "/v1/admin/queues") == 403
    assert await status(page, cookie) == 200


async def test_session_gets_no_scope_that_the_token_gained_later(page: httpx.AsyncClient, redis: Redis) -> None:
    token = await Accounts(redis).create_token("ops", scopes=ROLES["operator"])
    cookie = await log_in(page, token)
    await redis.hset(keys.token(digest(token)), "scopes", "read,run,admin")
    assert await status(page, cookie, "/v1/admin/queues") == 200
    answer = await page.post("/v1/admin/accounts", json={"name": "new"}, headers={**OF_PAGE, **cookie})
    assert answer.status_code == 403


async def test_suspended_accounts_session_only_reads(page: httpx.AsyncClient, admin_token: str, redis: Redis) -> None:
    team = await Accounts(redis).create_token("team")
    cookie = await log_in(page, team)
    await page.post("/v1/admin/accounts/team/suspend", json={"policy": "hold"}, headers=bearer(admin_token))
    assert await status(page, cookie) == 200
    answer = await page.post(
        "/v1/predictions", json={"version": "acme/echo", "input": {}}, headers={**OF_PAGE, **cookie}
    )
    assert (answer.status_code, answer.json()["code"]) == (403, "account_suspended")


async def test_token_is_known_whatever_cookie_comes_with_it(
    page: httpx.AsyncClient, admin_token: str, redis: Redis
) -> None:
    team = await Accounts(redis).create_token("team")
    cookie = await log_in(page, admin_token)
    answer = await page.get("/v1/account", headers={**OF_PAGE, **cookie, **bearer(team)})
    assert answer.json()["username"] == "team"
    assert (await page.get("/v1/account", headers={**OF_PAGE, **cookie, **bearer("unknown")})).status_code == 401


async def test_role_of_a_link_is_never_more_than_its_token(page: httpx.AsyncClient, redis: Redis) -> None:
    token = await Accounts(redis).create_token("ops", scopes=ROLES["operator"])
    asked = {"role": "admin"}
    made = (await page.post("/v1/account/login-link", json=asked, headers=bearer(token))).json()
    assert set(made["scopes"]) == {"read", "run", "view", "operate"}
    asked = {"role": "viewer"}
    made = (await page.post("/v1/account/login-link", json=asked, headers=bearer(token))).json()
    assert made["scopes"] == ["read", "view"]


async def test_viewer_and_session_make_no_link(page: httpx.AsyncClient, admin_token: str, redis: Redis) -> None:
    viewer = await Accounts(redis).create_token("ops", scopes=ROLES["viewer"])
    cookie = await log_in(page, admin_token)
    for headers in (bearer(viewer), cookie):
        answer = await page.post("/v1/account/login-link", json={}, headers={**OF_PAGE, **headers})
        assert answer.status_code == 403


@pytest.mark.parametrize("role", [*ROLES, None])
async def test_invited_person_has_the_role_until_the_token_goes(
    page: httpx.AsyncClient, admin_token: str, redis: Redis, role: Role | None
) -> None:
    asked = {"role": role, "label": "bob"}
    made = (await page.post("/v1/admin/accounts/ops/login-links", json=asked, headers=bearer(admin_token))).json()
    assert set(made["scopes"]) == set(ROLES[role] if role else ("read", "run"))
    answer = await follow(page, made["url"])
    page.cookies.clear()
    morsel = cookie_of(answer)
    cookie = {"Cookie": f"{morsel.key}={morsel.value}"}
    assert await status(page, cookie) == 200
    changes = (await page.get("/v1/admin/audit", headers=bearer(admin_token))).json()["changes"]
    assert [one["detail"]["label"] for one in changes if one["kind"] == "token_created"] == ["bob"]
    gone = await page.delete(f"/v1/admin/accounts/ops/tokens/{made['token_id']}", headers=bearer(admin_token))
    assert gone.status_code == 204
    assert await status(page, cookie) == 401


async def test_sessions_of_an_account_are_bounded(page: httpx.AsyncClient, admin_token: str, redis: Redis) -> None:
    for _ in range(103):
        await log_in(page, admin_token)
    assert await redis.hlen(keys.sessions("ops")) == 100


@pytest.mark.parametrize("role", ROLES)
async def test_sessions_of_each_role_may_what_its_token_may(page: httpx.AsyncClient, redis: Redis, role: Role) -> None:
    token = await Accounts(redis).create_token("ops", scopes=ROLES[role])
    cookie = await log_in(page, token)
    for route in [one for one in ROUTES if one.scopes and one.path != "/admin/live"]:
        path = f"{'' if route.is_openai else '/v1'}{route.path}".replace("{", "").replace("}", "")
        if path in ("/v1/account/login-link", "/openai/v1/batches"):  # a session makes neither
            continue
        codes = [
            (await page.request(route.method, path, content=b"-", headers=headers)).status_code
            for headers in (bearer(token), {**OF_PAGE, **cookie})
        ]
        assert codes[0] == codes[1], (route.method, path, codes)
    assert set(SCOPES) >= set(ROLES[role])
