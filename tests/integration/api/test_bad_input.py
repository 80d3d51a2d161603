"""Test that each kind of invalid request gets one clear problem+json answer and queues nothing."""

from collections.abc import AsyncIterator

import httpx
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.core.errors import SettingsError
from director.core.ids import QueueName
from director.core.settings import ApiSettings
from director.store.accounts import Accounts
from tests.integration.api.conftest import HELLO_VERSION, Served
from tests.support.api import api_client
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer

UNKNOWN_VERSION = {
    "title": "Invalid version or not permitted",
    "detail": "The specified version does not exist (or perhaps you don't have permission to use it?)",
    "status": 422,
}
NOT_FOUND = {"detail": "The requested resource could not be found.", "status": 404}


@pytest.fixture(autouse=True)
async def nothing_is_queued(redis: Redis, queue: QueueName, hello: QueueName) -> AsyncIterator[None]:
    yield
    assert [await redis.zcard(keys.live(name)) for name in (queue, hello)] == [0, 0]
    assert await redis.zcard(keys.listing(ACCOUNT)) == 0


def problem(answer: httpx.Response) -> dict[str, object]:
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == answer.status_code
    assert isinstance(document, dict)
    return document


def body(**changes: object) -> dict[str, object]:
    return {"version": VERSION, "input": {}, **changes}


@pytest.mark.parametrize(
    "version",
    [
        "c3" * 32,
        "other/nothing",
        f"other/nothing:{VERSION}",
        f"{MODEL}:{'c3' * 32}",
        "ACME/echo",
        "",
        "../..",
        "a/b/c",
    ],
)
async def test_unknown_version_is_422(api: AsyncClient, version: str) -> None:
    assert problem(await api.post("/v1/predictions", json=body(version=version))) == UNKNOWN_VERSION


@pytest.mark.parametrize("version", ["c3" * 32, "latest", "é" * 64])
async def test_unknown_version_of_a_model_is_404(api: AsyncClient, version: str) -> None:
    assert problem(await api.get(f"/v1/models/{MODEL}/versions/{version}")) == NOT_FOUND


@pytest.mark.parametrize("model", ["other/nothing", "ACME/echo", "acme/%2e%2e"])
async def test_unknown_model_is_404(api: AsyncClient, model: str) -> None:
    assert problem(await api.post(f"/v1/models/{model}/predictions", json={"input": {}})) == NOT_FOUND
    assert problem(await api.get(f"/v1/models/{model}")) == NOT_FOUND
    assert problem(await api.get(f"/v1/models/{model}/versions")) == NOT_FOUND
    assert problem(await api.get(f"/v1/models/{model}/versions/{VERSION}")) == NOT_FOUND


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        (
            {"n": "five"},
            [("required", "input", "text is required"), ("invalid_type", "input.n", "integer, given: string")],
        ),
        ({"text": 5}, [("invalid_type", "input.text", "Expected: string, given: integer")]),
        ({"text": "hi", "n": 100_001}, [("number_lte", "input.n", "less than or equal to 100000")]),
        ({"text": "hi", "n": -1}, [("number_gte", "input.n", "greater than or equal to 0")]),
    ],
)
async def test_each_wrong_type_is_named(
    api: AsyncClient, given: dict[str, object], fields: list[tuple[str, str, str]]
) -> None:
    answer = await api.post("/v1/predictions", json={"version": HELLO_VERSION, "input": given})
    document = answer.json()
    assert (answer.status_code, document["title"]) == (422, "Input validation failed")
    assert [(field["type"], field["field"]) for field in document["invalid_fields"]] == [field[:2] for field in fields]
    for (_, field, words), line in zip(fields, document["detail"].splitlines(), strict=True):
        assert line.startswith(f"- {field}: ")
        assert words in line


@pytest.mark.parametrize(
    ("path", "given", "detail"),
    [
        ("predictions", body(inptu={}, stream=True), "- Additional property inptu is not allowed\n"),
        (f"models/{MODEL}/predictions", body(), "- Additional property version is not allowed\n"),
        ("predictions", {}, "- version is required\n- input is required\n"),
    ],
)
async def test_missing_and_additional_fields_are_named(
    api: AsyncClient, path: str, given: dict[str, object], detail: str
) -> None:
    assert problem(await api.post(f"/v1/{path}", json=given))["detail"] == detail


@pytest.mark.parametrize("given", [[], "hi", 7, None])
async def test_input_must_be_an_object(api: AsyncClient, given: object) -> None:
    document = problem(await api.post("/v1/predictions", json=body(input=given)))
    assert (document["status"], document["title"]) == (422, "Input validation failed")


TOO_LARGE = f'{{"version":"{VERSION}","input":{{"n":1e400}}}}'.encode()


@pytest.mark.parametrize(
    ("text", "status"),
    [(text, 400) for text in (b"", b"{", b"not json", b'{"input":\xff}', b"{'a':1}", b'{"input":NaN}', TOO_LARGE)]
    + [(text, 422) for text in (b"[]", b'"text"', b"7", b"null")],
)
async def test_invalid_json_is_400_and_other_json_than_an_object_is_422(
    api: AsyncClient, text: bytes, status: int
) -> None:
    document = problem(await api.post("/v1/predictions", content=text))
    assert (document["status"], document.get("code", "malformed")) == (status, "malformed")


async def test_too_large_body_is_413(server: RedisServer, token: str) -> None:
    small = ApiSettings(redis_url=server.url, max_body_bytes=1024)
    async with api_client(small, token=token) as api:
        document = problem(await api.post("/v1/predictions", json=body(input={"text": "x" * 1024})))
    assert (document["status"], document["code"], document["limit"]) == (413, "too_large", 1024)


@pytest.mark.parametrize(
    "url", ["not a url", "ftp://host/x", "http://", "http://user:pw@host/", "//host/x", "http://h:0/"]
)
async def test_invalid_webhook_url_is_422(api: AsyncClient, url: str) -> None:
    document = problem(await api.post("/v1/predictions", json=body(webhook=url)))
    assert document["status"] == 422
    assert str(document["detail"]).startswith("- webhook: ")


async def test_unknown_webhook_event_is_422(api: AsyncClient) -> None:
    given = body(webhook="https://receiver.example/", webhook_events_filter=["completed", "finished"])
    document = problem(await api.post("/v1/predictions", json=given))
    assert str(document["detail"]).startswith("- webhook_events_filter.1: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Cancel-After", "4s"),
        ("Cancel-After", "25h"),
        ("Cancel-After", "soon"),
        ("X-Priority", "urgent"),
        ("X-Start-By", "0"),
        ("X-Start-By", "86401"),
        ("X-Start-By", "1.5"),
        ("X-Start-By", "90s"),
        ("Idempotency-Key", ""),
        ("Idempotency-Key", "k" * 256),
    ],
)
async def test_invalid_header_is_422(api: AsyncClient, name: str, value: str) -> None:
    document = problem(await api.post("/v1/predictions", json=body(), headers={name: value}))
    assert (document["status"], document["code"]) == (422, "invalid_header")
    assert str(document["detail"]).startswith(f"{name} must be ")


@pytest.mark.parametrize("host", ["evil.example/path", "a b", "user@host", "", 'h"x'])
async def test_invalid_host_is_400(api: AsyncClient, host: str) -> None:
    document = problem(await api.post("/v1/predictions", json=body(), headers={"Host": host}))
    assert (document["status"], document["code"]) == (400, "invalid_header")


ALLOWED = {"allowed_hosts": ("Api.Internal", "[fd00::1]", "dotted.example."), "public_url": "https://api.example:8443"}


@pytest.mark.parametrize(
    "host",
    [
        *("api.internal:8080", "API.INTERNAL", "api.internal.:80", "dotted.example", "[fd00::1]:80"),
        *("api.example", "localhost:1", "127.0.0.1", "[::1]"),
    ],
)
async def test_allowed_host_is_served(served: Served, host: str) -> None:
    async with served(**ALLOWED) as api:
        assert (await api.get("/v1/account", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "api.internal.evil.example", "10.0.0.1", "xapi.example", "[::2]"])
async def test_host_that_is_not_allowed_is_400_but_for_health_and_metrics(served: Served, host: str) -> None:
    async with served(**ALLOWED) as api:
        for path in ("/v1/account", "/", "/v1/unknown"):
            refused = problem(await api.get(path, headers={"Host": host}))
            assert (refused["status"], refused["code"]) == (400, "invalid_header")
        for path, status in (("/livez", 200), ("/readyz", 200), ("/metrics", 403)):
            assert (await api.get(path, headers={"Host": host})).status_code == status


async def test_forwarded_host_of_a_trusted_proxy_must_be_allowed(served: Served) -> None:
    given = {"Host": "upstream", "X-Forwarded-Host": "evil.example"}
    async with served(allowed_hosts=("api.example", "upstream"), trusted_proxies=("127.0.0.1",)) as api:
        assert (await api.get("/v1/account", headers=given)).status_code == 400
        given["X-Forwarded-Host"] = "api.example"
        assert (await api.get("/v1/account", headers=given)).status_code == 200
        assert (await api.get("/v1/account", headers={"Host": "upstream"})).status_code == 200


@pytest.mark.parametrize("name", ["https://api.example", "api.example:80", "*", "a b", "fd00::1"])
async def test_setting_that_is_no_host_is_refused(served: Served, name: str) -> None:
    with pytest.raises(SettingsError, match="DIRECTOR_ALLOWED_HOSTS"):
        async with served(allowed_hosts=(name,)):
            pass


@pytest.mark.parametrize("path", ["/v1/predictions", "/v1/account", f"/v1/models/{MODEL}"])
async def test_missing_token_is_401(api: AsyncClient, path: str) -> None:
    del api.headers["Authorization"]
    answer = await api.get(path)
    assert problem(answer) == {
        "title": "Unauthenticated",
        "detail": "You did not pass an authentication token",
        "status": 401,
    }
    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer", "Bearer ", "Basic dXNlcjpwdw==", "dr_token", ""])
async def test_invalid_token_is_401(api: AsyncClient, header: str) -> None:
    document = problem(await api.post("/v1/predictions", json=body(), headers={"Authorization": header}))
    assert document["detail"] == "You did not pass a valid authentication token"
    assert document["status"] == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "Token", "TOKEN"])
async def test_both_schemes_are_accepted_in_any_case(api: AsyncClient, token: str, scheme: str) -> None:
    assert (await api.get("/v1/account", headers={"Authorization": f"{scheme} {token}"})).status_code == 200


async def test_read_only_token_may_not_run(api: AsyncClient, redis: Redis) -> None:
    reader = {"Authorization": f"Bearer {await Accounts(redis).create_token(ACCOUNT, scopes=['read'])}"}
    refused = await api.post("/v1/predictions", json=body(), headers=reader)
    assert problem(refused) == {"detail": "This token does not have the scope 'run'.", "status": 403}
    assert (await api.get("/v1/predictions", headers=reader)).status_code == 200


@pytest.mark.parametrize("name", ["x", "A" * 26, "0" * 25 + "u", "é" * 26, "..%2f..", "a" * 10_000, "0" * 26])
async def test_unknown_or_malformed_id_is_404(api: AsyncClient, name: str) -> None:
    assert problem(await api.get(f"/v1/predictions/{name}")) == NOT_FOUND
    assert problem(await api.post(f"/v1/predictions/{name}/cancel")) == NOT_FOUND


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v2/predictions", "/v1/predictions/", "/v1/v1/v1/account", "/v1/%00", "/%ff"]
)
async def test_unknown_path_is_404_and_never_a_redirect(api: AsyncClient, path: str) -> None:
    assert problem(await api.get(path)) == NOT_FOUND


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/predictions", {"GET", "HEAD", "OPTIONS", "POST"}),
        ("PUT", f"/models/{MODEL}", {"DELETE", "GET", "HEAD", "OPTIONS", "PATCH"}),
        ("TRACE", "/models", {"GET", "HEAD", "OPTIONS", "POST", "QUERY"}),
        ("POST", "/account", {"GET", "HEAD", "OPTIONS"}),
    ],
)
async def test_wrong_method_is_405_and_names_every_right_one(
    api: AsyncClient, method: str, path: str, allowed: set[str]
) -> None:
    answer = await api.request(method, f"/v1{path}")
    assert problem(answer)["status"] == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    asked = await api.options(f"/v1{path}", headers={"Authorization": ""})
    assert (asked.status_code, set(asked.headers["allow"].split(", "))) == (204, allowed)


async def test_head_is_get_without_its_body(api: AsyncClient) -> None:
    told, asked = await api.get("/v1/account"), await api.head("/v1/account")
    assert (asked.status_code, asked.headers["content-length"]) == (200, told.headers["content-length"])
    assert (await api.head("/v1/predictions/nothing")).status_code == 404


@pytest.mark.parametrize(
    "query", ["cursor=%00", "cursor=bm90LWEtY3Vyc29y", "created_after=yesterday", "created_before=2024-13-01"]
)
async def test_invalid_listing_query_is_422(api: AsyncClient, query: str) -> None:
    document = problem(await api.get(f"/v1/predictions?{query}"))
    assert (document["status"], document["title"]) == (422, "Input validation failed")


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("identity", 422)])
async def test_compressed_body_is_refused(api: httpx.AsyncClient, encoding: str, status: int) -> None:
    answer = await api.post("/v1/predictions", json={"input": 7}, headers={"Content-Encoding": encoding})
    assert answer.status_code == status
