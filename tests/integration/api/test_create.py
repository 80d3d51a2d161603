"""Test create, get, cancel and delete: input comes back unchanged, the shown state is true, deletion leaves nothing."""

import asyncio
import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx import AsyncClient
from msgspec.structs import replace
from redis.asyncio import Redis

from api.app import create_app
from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import SettingsError
from director.core.ids import PredictionId, QueueName
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.core.states import Status
from director.core.view import iso
from director.core.webhooks import new_secret
from director.files.choose import store_in
from director.files.store import file_name
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.integration.api.conftest import HELLO_VERSION, THUMBNAIL_VERSION, Served
from tests.support.api import PlayedDirector, api_client
from tests.support.clock import FakeClock
from tests.support.keyspace import dump
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver

HOOK = "https://receiver.example/hook?id=7"


async def create(api: AsyncClient, *, headers: dict[str, str] | None = None, **body: object) -> httpx.Response:
    given = {"version": VERSION, "input": {"text": "hi"}, **body}
    return await api.post("/v1/predictions", json=given, headers=headers)


async def test_prediction_is_accepted_as_on_replicate(api: AsyncClient) -> None:
    answer = await create(api)
    made = answer.json()
    address = f"http://director.test/v1/predictions/{made['id']}"
    assert answer.status_code == 201
    assert answer.headers["location"] == address
    assert answer.headers["content-type"] == "application/json"
    assert made == {
        "id": made["id"],
        "model": MODEL,
        "version": VERSION,
        "input": {"text": "hi"},
        "output": None,
        "logs": "",
        "error": None,
        "status": "starting",
        "created_at": made["created_at"],
        "started_at": None,
        "completed_at": None,
        "data_removed": False,
        "metrics": {},
        "source": "api",
        "urls": {
            "get": address,
            "cancel": f"{address}/cancel",
            "web": f"http://director.test/p/{made['id']}",
            "stream": made["urls"]["stream"],
        },
        "queue": {
            "position": 1,
            "ahead": 0,
            "eta_s": None,
            "reason": "no_director",
            "detail": "No director serves this model now.",
            "since": None,
        },
    }
    assert re.fullmatch(rf"http://director\.test/v1/streams/{made['id']}[a-z2-7]{{26}}", made["urls"]["stream"])


async def test_model_without_streaming_has_no_stream(api: AsyncClient, thumbnail: QueueName, hello: QueueName) -> None:
    made = await create(api, version=THUMBNAIL_VERSION, input={"image": "https://example.com/a.png"})
    shown = [made, await api.get(made.json()["urls"]["get"]), await api.post(made.json()["urls"]["cancel"])]
    assert [sorted(answer.json()["urls"]) for answer in shown] == [["cancel", "get", "web"]] * 3
    streamed = await create(api, version=HELLO_VERSION)
    assert "stream" in streamed.json()["urls"]


async def test_create_and_get_answer_the_same(api: AsyncClient) -> None:
    made = await create(api, webhook=HOOK, webhook_events_filter=["completed"], headers={"Cancel-After": "5m"})
    got = await api.get(f"/v1/predictions/{made.json()['id']}")
    assert got.status_code == 200
    assert got.content == made.content


@pytest.mark.parametrize("version", [VERSION, f"{MODEL}:{VERSION}", MODEL], ids=["bare", "pinned", "latest"])
async def test_version_has_three_forms(api: AsyncClient, version: str) -> None:
    made = (await create(api, version=version)).json()
    assert (made["model"], made["version"]) == (MODEL, VERSION)


@pytest.mark.parametrize("base", ["", "/v1", "/v1/v1"])
async def test_base_address_works_with_and_without_v1(api: AsyncClient, base: str) -> None:
    made = (await api.post(f"{base}/predictions", json={"version": VERSION, "input": {}})).json()
    assert (await api.get(f"{base}/predictions/{made['id']}")).json()["id"] == made["id"]
    assert made["urls"]["get"] == f"http://director.test/v1/predictions/{made['id']}"


@pytest.mark.parametrize(
    "given",
    [
        '{"a":[],"b":{},"c":[{}]}',
        '{"seed":12345678901234567890,"more":123456789012345678901234567890}',
        '{"spaced" :  [1.0, 1e2,\t-0.0 ]}',
        '{"text":"\\u00e9 \\ud83d\\ude00 é 😀","twice":1,"twice":2}',
    ],
)
async def test_bytes_of_an_input_are_returned_unchanged(api: AsyncClient, director: PlayedDirector, given: str) -> None:
    body = f'{{"version":"{VERSION}","input":{given}}}'.encode()
    made = await api.post("/v1/predictions", content=body)
    assert f'"input":{given},'.encode() in made.content
    claim = await director.claim()
    assert bytes(claim.input) == given.encode()
    await director.finish(claim, output=given.encode())
    got = await api.get(f"/v1/predictions/{claim.id}")
    assert f'"input":{given},"output":{given},'.encode() in got.content


async def test_filter_of_events_is_kept(api: AsyncClient, director: PlayedDirector) -> None:
    made = (await create(api, webhook=HOOK, webhook_events_filter=["completed", "start"])).json()
    assert (made["webhook"], made["webhook_events_filter"]) == (HOOK, ["completed", "start"])
    claim = await director.claim()
    assert (claim.record.webhook, claim.record.webhook_events) == (HOOK, "completed,start")
    made = (await create(api, webhook=HOOK)).json()
    assert made["webhook_events_filter"] == ["start", "output", "logs", "completed"]


async def test_headers_set_the_deadline_and_the_latest_start(
    api: AsyncClient, director: PlayedDirector, redis: Redis
) -> None:
    made = (await create(api, headers={"Cancel-After": "1m30s", "X-Start-By": "90"})).json()
    claim = await director.claim()
    assert (claim.record.deadline, claim.record.deadline_status) == (claim.record.created + 90_000, "aborted")
    assert int(await redis.hget(keys.record(claim.id), "start_by") or 0) == claim.record.created + 90_000
    assert made["deadline"] > made["created_at"]


async def test_planned_prediction_shows_when_it_may_start(api: AsyncClient, driver: QueueDriver) -> None:
    made = (await create(api, headers={"X-Start-After": "1h", "Prefer": "wait=0.2"})).json()
    record = await driver.record(PredictionId(made["id"]))
    start = iso(record.start_after or 0)
    assert datetime.fromisoformat(start) - datetime.fromisoformat(made["created_at"]) == timedelta(hours=1)
    seen = (await api.get(f"/v1/predictions/{made['id']}")).json()["queue"]
    assert (seen["reason"], seen["detail"]) == (
        "start_after",
        f"Its caller asked that it does not start before {start}.",
    )
    assert (await api.post(f"/v1/predictions/{made['id']}/cancel")).json()["status"] == "canceled"


@pytest.mark.parametrize(("header", "value"), [("X-Start-By", "3600"), ("Cancel-After", "1h")])
async def test_limit_that_passes_before_the_planned_start_is_refused(
    api: AsyncClient, queue: QueueName, header: str, value: str
) -> None:
    refused = await create(api, headers={"X-Start-After": "1h", header: value})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_header")
    assert refused.json()["detail"] == f"{header} must be later than X-Start-After, or it could never start"
    assert (await create(api, headers={"X-Start-After": "59m", header: value})).status_code == 201


async def test_another_planned_start_is_another_request(api: AsyncClient, queue: QueueName) -> None:
    key = {"Idempotency-Key": "nightly"}
    first = await create(api, headers={**key, "X-Start-After": "1h"})
    again = await create(api, headers={**key, "X-Start-After": "1h"})
    assert (again.json()["id"], again.headers["Idempotency-Replayed"]) == (first.json()["id"], "true")
    for other in ({"X-Start-After": "2h"}, {}):
        assert (await create(api, headers={**key, **other})).json()["code"] == "idempotency_mismatch"


@pytest.mark.parametrize(
    ("client", "status"),
    [
        ("replicate-javascript/1.4.0", "canceled"),
        ("replicate-python/1.0.7", "canceled"),
        ("replicate-javascript/1.5.0", "aborted"),
        ("curl/8.0", "aborted"),
    ],
)
async def test_client_that_knows_no_aborted_end_sees_a_cancel(
    api: AsyncClient, scripts: Scripts, queue: QueueName, client: str, status: str
) -> None:
    made = (await create(api, headers={"Cancel-After": "5s"})).json()
    assert await scripts.expire(queue, limit=10, now_ms=SystemClock().now_ms() + 6_000) == (1, 0)
    asked = {"User-Agent": client}
    assert (await api.get(f"/v1/predictions/{made['id']}", headers=asked)).json()["status"] == status
    [listed] = (await api.get("/v1/predictions", headers=asked)).json()["results"]
    assert listed["status"] == status


@pytest.mark.parametrize(("asked", "lane"), [("high", "high"), ("low", "low"), (None, "normal")])
async def test_priority_selects_the_lane(
    api: AsyncClient, director: PlayedDirector, asked: str | None, lane: str
) -> None:
    await create(api, headers={} if asked is None else {"X-Priority": asked})
    assert (await director.claim()).record.lane == lane


async def test_lane_without_permission_is_refused(api: AsyncClient, redis: Redis) -> None:
    low = await Accounts(redis).create_token(ACCOUNT, lanes=["low"])
    refused = await create(api, headers={"Authorization": f"Bearer {low}", "X-Priority": "high"})
    taken = await create(api, headers={"Authorization": f"Bearer {low}"})
    assert refused.status_code == 403
    assert refused.json()["detail"] == "This token may not use the lane 'high'."
    assert taken.status_code == 201


async def test_replay_shows_the_current_state(api: AsyncClient, director: PlayedDirector) -> None:
    await create(api, headers={"Idempotency-Key": "k"})
    await director.finish(await director.claim(), output=b'"done"')
    again = await create(api, headers={"Idempotency-Key": "k", "Prefer": "wait"})
    assert (again.status_code, again.json()["status"], again.json()["output"]) == (201, "succeeded", "done")


async def test_key_holds_for_every_base_address_and_across_a_deploy(
    api: AsyncClient, settings: ApiSettings, token: str, catalog: Catalog
) -> None:
    path, headers = f"/models/{MODEL}/predictions", {"Idempotency-Key": "k"}
    first = await api.post(f"/v1{path}", json={"input": {}}, headers=headers)
    await catalog.register(MODEL, "c3" * 32, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    async with api_client(settings, token=token) as another:
        again = await another.post(path, json={"input": {}}, headers=headers)
    assert (first.status_code, first.json()["version"]) == (201, VERSION), "the latest version"
    assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, {"input": {"text": "other"}}),
        ({"Cancel-After": "10s"}, {}),
        ({"X-Priority": "high"}, {}),
        ({"X-Start-By": "10"}, {}),
        ({"X-Cost": "8"}, {}),
        ({"X-Affinity-Key": "8"}, {}),
    ],
    ids=str,
)
async def test_key_with_another_request_is_refused(
    api: AsyncClient, redis: Redis, headers: dict[str, str], body: dict[str, Any]
) -> None:
    key = {"Idempotency-Key": "k"}
    plain, changed = {"headers": key}, {"headers": key | headers, **body}
    for number, (first, second) in enumerate([(plain, changed), (changed, plain)]):
        key["Idempotency-Key"] = f"k{number}"
        changed["headers"] = key | headers
        made = await create(api, **first)
        assert (await create(api, **first)).json()["id"] == made.json()["id"]
        other = await create(api, **second)
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert await redis.zcard(keys.listing(ACCOUNT)) == 2
    theirs = {"Authorization": f"Bearer {await Accounts(redis).create_token('umbrella')}"}
    assert (await create(api, headers=key | theirs)).json()["id"] != made.json()["id"]


async def test_repeat_of_a_create_that_died_half_way_puts_it_on_the_list(api: AsyncClient, redis: Redis) -> None:
    made = await create(api, headers={"Idempotency-Key": "k"})
    await redis.delete(keys.listing(ACCOUNT))  # as if its API had died once the queue had it
    again = await create(api, headers={"Idempotency-Key": "k"})
    assert (again.headers["idempotency-replayed"], again.json()["id"]) == ("true", made.json()["id"])
    assert [one["id"] for one in (await api.get("/v1/predictions")).json()["results"]] == [made.json()["id"]]


async def test_concurrent_creates_with_one_key_make_one_prediction(api: AsyncClient) -> None:
    answers = await asyncio.gather(*[create(api, headers={"Idempotency-Key": "k"}) for _ in range(20)])
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1


async def test_get_shows_the_progress_of_a_run(api: AsyncClient, director: PlayedDirector) -> None:
    made = (await create(api)).json()
    claim = await director.claim()
    await director.begin(claim, b'"a"', b'"b"')
    running = (await api.get(f"/v1/predictions/{made['id']}")).json()
    assert (running["status"], running["output"]) == ("processing", ["a", "b"])
    assert running["started_at"] is not None
    assert running["metrics"] == {}


async def test_get_shows_how_a_run_ended(api: AsyncClient, director: PlayedDirector) -> None:
    made = (await create(api)).json()
    claim = await director.claim()
    await director.begin(claim)
    await director.finish(claim, Status.FAILED, error="boom", logs="line\n", metrics=b'{"tokens":3}')
    ended = (await api.get(f"/v1/predictions/{made['id']}")).json()
    assert (ended["status"], ended["error"], ended["logs"], ended["output"]) == ("failed", "boom", "line\n", None)
    assert ended["metrics"]["tokens"] == 3
    assert ended["metrics"]["total_time"] >= ended["metrics"]["predict_time"] >= 0


async def test_running_prediction_is_asked_to_stop(api: AsyncClient, director: PlayedDirector, redis: Redis) -> None:
    made = (await create(api)).json()
    claim = await director.claim()
    await director.begin(claim)
    answer = await api.post(f"/v1/predictions/{made['id']}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "processing")
    assert await redis.hget(keys.record(PredictionId(made["id"])), "cancel") == b"user"


async def test_cancel_does_not_change_an_ended_prediction(api: AsyncClient, director: PlayedDirector) -> None:
    made = (await create(api)).json()
    await director.finish(await director.claim(), output=b"1")
    answer = await api.post(f"/v1/predictions/{made['id']}/cancel")
    assert (answer.status_code, answer.json()["status"], answer.json()["output"]) == (200, "succeeded", 1)


async def test_answers_use_the_public_url(served: Served) -> None:
    async with served(public_url="https://api.acme.example/") as api:
        made = (await create(api)).json()
    assert made["urls"]["get"] == f"https://api.acme.example/v1/predictions/{made['id']}"


@pytest.mark.parametrize(
    ("peer", "proxies", "headers", "base"),
    [
        ("127.0.0.1", ("127.0.0.0/8",), {"Host": "api.acme.example", "Proto": "https"}, "https://api.acme.example"),
        ("127.0.0.1", ("127.0.0.1",), {"Host": "evil.example, api.acme.example:8443"}, "http://api.acme.example:8443"),
        ("127.0.0.1", ("127.0.0.1",), {"Proto": "https"}, "https://director.test"),
        ("127.0.0.1", (), {"Host": "evil.example", "Proto": "https"}, "http://director.test"),
        ("127.0.0.1", ("10.0.0.0/8", "::1"), {"Host": "evil.example", "Proto": "https"}, "http://director.test"),
        ("::ffff:10.1.2.3", ("10.0.0.0/8",), {"Proto": "https"}, "https://director.test"),
        ("::ffff:11.1.2.3", ("10.0.0.0/8",), {"Proto": "https"}, "http://director.test"),
    ],
)
async def test_only_forwarded_headers_of_a_configured_proxy_are_used(
    served: Served, peer: str, proxies: tuple[str, ...], headers: dict[str, str], base: str
) -> None:
    async with served(trusted_proxies=proxies, peer=peer) as api:
        made = await create(api, headers={f"X-Forwarded-{name}": value for name, value in headers.items()})
    assert made.json()["urls"]["get"].startswith(f"{base}/v1/predictions/")


@pytest.mark.parametrize("headers", [{"Host": "a b"}, {"Host": "a/b?c"}, {"Proto": "javascript"}])
async def test_invalid_forwarded_host_is_refused_even_from_a_proxy(served: Served, headers: dict[str, str]) -> None:
    async with served(trusted_proxies=("127.0.0.1",)) as api:
        made = await create(api, headers={f"X-Forwarded-{name}": value for name, value in headers.items()})
    assert made.status_code == 400


def test_invalid_proxy_address_is_reported_at_the_start(settings: ApiSettings) -> None:
    with pytest.raises(SettingsError, match="DIRECTOR_TRUSTED_PROXIES"):
        create_app(replace(settings, trusted_proxies=("the-proxy",)))


async def test_account_and_webhook_secret(api: AsyncClient, redis: Redis, scripts: Scripts) -> None:
    account = (await api.get("/v1/account")).json()
    assert (account["username"], account["name"]) == (ACCOUNT, ACCOUNT)
    secret = (await api.get("/v1/webhooks/default/secret")).json()
    assert secret == {"key": (await Accounts(redis).webhook_secrets(ACCOUNT))[0]}
    await scripts.rotate(ACCOUNT, secret=(new := new_secret()), keep_s=60)
    assert (await api.get("/v1/webhooks/default/secret")).json() == {"key": new}


async def test_model_and_its_versions(api: AsyncClient, hello: QueueName) -> None:
    model = (await api.get("/v1/models/example/hello")).json()
    versions = (await api.get("/v1/models/example/hello/versions")).json()
    version = (await api.get(f"/v1/models/example/hello/versions/{'b2' * 32}")).json()
    assert version.pop("setup_run") is None
    assert (model["owner"], model["name"], model["run_count"]) == ("example", "hello", 0)
    assert model["latest_version"] == version
    assert versions == {"next": None, "previous": None, "results": [version]}
    assert version["openapi_schema"]["components"]["schemas"]["Output"]["x-cog-array-type"] == "iterator"
    assert json.dumps(version["cog_version"]) == '"0.23.1"'


async def test_versions_are_paged_and_only_one_page_of_schemas_is_read(
    api: AsyncClient, redis: Redis, scripts: Scripts
) -> None:
    clock = FakeClock()
    catalog, ids = Catalog(redis, scripts, clock), [f"{number:064x}"[::-1] for number in range(1, 131)]
    for name in ids:
        clock.pass_time(1)
        await catalog.register("acme/many", name, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    await redis.config_resetstat()
    first = (await api.get("/v1/models/acme/many/versions")).json()
    assert int((await redis.info("commandstats"))["cmdstat_hgetall"]["calls"]) <= 101  # one call is for the token
    second = (await api.get(first["next"])).json()
    assert [version["id"] for version in first["results"] + second["results"]] == ids[::-1]
    assert (len(first["results"]), second["next"]) == (100, None)


ASKED = {"version": VERSION, "input": {"text": "mine"}}


async def made(api: AsyncClient) -> Any:
    return (await api.post("/v1/predictions", json=ASKED)).json()


async def ended(api: AsyncClient, director: PlayedDirector) -> Any:
    prediction = await made(api)
    await director.finish(await director.claim(), output=b'"private"')
    return prediction


async def test_deletion_leaves_nothing(api: AsyncClient, director: PlayedDirector, redis: Redis) -> None:
    gone = await ended(api, director)
    assert (await api.delete(f"/v1/predictions/{gone['id']}")).status_code == 204
    for path in ("", "/explain", "/events", "/webhooks"):
        assert (await api.get(f"/v1/predictions/{gone['id']}{path}")).status_code == 404
    assert (await api.get(gone["urls"]["stream"])).status_code == 404
    assert (await api.get("/v1/predictions")).json()["results"] == []
    assert not [key for key, value in (await dump(redis)).items() if gone["id"] in str(key) or "private" in str(value)]
    assert (await api.delete(f"/v1/predictions/{gone['id']}")).status_code == 404


@pytest.mark.parametrize("runs", [False, True])
async def test_active_prediction_must_be_canceled_before_deletion(
    api: AsyncClient, director: PlayedDirector, runs: bool
) -> None:
    prediction = await made(api)
    if runs:
        await director.begin(await director.claim())
    answer = await api.delete(f"/v1/predictions/{prediction['id']}")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_terminal")
    assert answer.headers["x-should-retry"] == "false"
    assert (await api.get(f"/v1/predictions/{prediction['id']}")).status_code == 200


async def test_deletion_removes_its_files(
    served: Served, director: PlayedDirector, redis: Redis, tmp_path: Path
) -> None:
    store = store_in(str(tmp_path), redis, SystemClock())
    assert store is not None
    async with served(files_dir=str(tmp_path)) as api:
        gone = await ended(api, director)
        name = file_name(PredictionId(gone["id"]), b"picture", content_type="image/png")
        await store.put(name, b"picture", content_type="image/png")
        assert (await api.delete(f"/v1/predictions/{gone['id']}")).status_code == 204
    assert await store.open(name) is None
