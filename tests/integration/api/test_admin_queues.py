"""Test that operators see and change queues over HTTP, and configure how a model is run."""

import logging
from typing import Any

import msgspec
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.core.ids import PredictionId, QueueName
from director.core.policy import Policy
from director.store import owed
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.directors import About, ServerFound
from tests.support.keyspace import dump
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver

QUEUES = "/v1/admin/queues"
ONE = f"{QUEUES}/{MODEL}/{VERSION[:12]}"


async def read(admin: AsyncClient, path: str, **query: Any) -> Any:
    answer = await admin.get(path, params=query or None)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def pages(admin: AsyncClient, path: str, **query: Any) -> list[list[dict[str, Any]]]:
    found, page = [], await read(admin, path, **query)
    while True:
        found.append(page["results"])
        if page["next"] is None:
            return found
        page = await read(admin, page["next"].removeprefix("http://director.test"))


async def test_queue_is_shown_with_its_numbers(admin: AsyncClient, driver: QueueDriver) -> None:
    for lane, many in (("high", 2), ("normal", 3), ("low", 1)):
        for _ in range(many):
            await driver.submit(lane=lane)
    await driver.claim_one()
    [shown] = (await read(admin, QUEUES))["results"]
    assert (shown["name"], shown["model"], shown["state"]) == (driver.queue, MODEL, "no_director")
    assert shown["waiting"] == {"high": 1, "normal": 3, "low": 1}
    assert (shown["claimed"], shown["delayed"], shown["dead"], shown["live"]) == (1, 0, 0, 6)


@pytest.mark.parametrize(
    ("stands", "state"),
    [
        ({}, "no_director"),
        ({"state": "ready", "slots": 2}, "serving"),
        ({"state": "starting", "slots": 0}, "servers_starting"),
        ({"state": "setup_failed", "slots": 0}, "setup_failed"),
        ({"state": "server_auth", "slots": 0}, "server_auth"),
        ({"state": "draining", "slots": 0}, "no_director"),
    ],
    ids=["no director", "ready", "starting", "setup_failed", "server_auth", "draining"],
)
async def test_state_explains_why_nothing_starts(
    admin: AsyncClient, driver: QueueDriver, stands: dict[str, Any], state: str
) -> None:
    if stands:
        await driver.scripts.extend(driver.queue, consumer="d1", lease_s=15, claims=[], **stands)
    assert (await read(admin, ONE))["state"] == state
    await driver.pause()
    shown = await read(admin, ONE)
    assert (shown["state"], shown["paused"]) == ("paused", True)


async def test_queues_are_paged_by_name_and_can_be_searched(
    admin: AsyncClient, catalog: Catalog, queue: QueueName
) -> None:
    made = [f"acme/many-{number:03d}" for number in range(205)]
    for name in made:
        await catalog.register(name, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    found = await pages(admin, QUEUES)
    assert [len(page) for page in found] == [100, 100, 6]
    names = [one["name"] for page in found for one in page]
    assert names == sorted([queue, *(f"{name}:{VERSION[:12]}" for name in made)])
    assert [[one["model"] for one in page] for page in await pages(admin, QUEUES, q="MANY-20")] == [made[200:]]


async def test_queue_shows_positions_of_waiting_predictions_in_its_lanes(
    admin: AsyncClient, driver: QueueDriver
) -> None:
    await driver.have_slots(9)  # otherwise it would wait for its account's turn and be in no stream
    for number in (3, 3, 5):
        await driver.submit(streams=[number])
    await driver.claim_one()
    heat = (await read(admin, ONE))["heat"]
    assert {lane: len(streams) for lane, streams in heat.items()} == {"high": 16, "normal": 16, "low": 16}
    assert sum(heat["normal"]) == 2
    assert {number for number, many in enumerate(heat["normal"]) if many} in ({3}, {3, 5})


async def test_queue_shows_waiting_accounts_and_their_limits(admin: AsyncClient, driver: QueueDriver) -> None:
    await driver.submit(account="amber")
    await driver.submit(account="amber")
    await driver.submit(account="basalt")
    await driver.limit("amber", weight=2.5, most_running=7)
    await driver.pause(account="basalt")
    amber, basalt = (await read(admin, ONE))["tenants"]
    assert amber == {
        "account": "amber",
        "waiting": 2,
        "running": 0,
        "paused": False,
        "suspended": False,
        "weight": 2.5,
        "max_running": 7,
    }
    assert (basalt["account"], basalt["paused"], basalt["max_running"]) == ("basalt", True, None)


async def test_queue_shows_how_its_model_is_run(admin: AsyncClient) -> None:
    assert (await read(admin, ONE))["config"] is None
    await admin.put(f"/v1/admin/models/{MODEL}/config", json={"attempts": 5})
    assert (await read(admin, ONE))["config"]["config"] == {"attempts": 5}


async def test_queue_shows_its_last_minutes(admin: AsyncClient, driver: QueueDriver) -> None:
    for _ in range(3):
        await driver.submit()
        await driver.scripts.sample(driver.queue, period_s=10, most=360, now_ms=driver.now_ms)
        driver.pass_time(10)
    shown = await read(admin, ONE, history=2)
    assert shown["accepted"] == 3
    assert [each["waiting"]["normal"] for each in shown["history"]] == [2, 3]
    assert (await read(admin, ONE, history=0))["history"] == []
    assert (await admin.get(ONE, params={"history": 361})).status_code == 422


async def test_live_predictions_are_listed_by_state(admin: AsyncClient, driver: QueueDriver) -> None:
    ids = [await driver.submit(account=name, streams=[0]) for name in ("amber", "basalt", "cobalt")]
    running, delayed = await driver.claim(2, consumer="d7")
    await driver.begin(running)
    await driver.release(delayed, spent=True, delay_s=60, error="It broke.", code="server_lost")
    [[row]] = await pages(admin, f"{ONE}/predictions", state="running")
    assert (row["id"], row["state"], row["status"], row["director"]) == (running.id, "running", "processing", "d7")
    assert row["claimed_at"]
    assert row["started_at"]
    [[row]] = await pages(admin, f"{ONE}/predictions", state="delayed")
    assert (row["id"], row["state"], row["code"], row["director"]) == (delayed.id, "delayed", "server_lost", None)
    assert row["due_at"] > row["created_at"]
    [[row]] = await pages(admin, f"{ONE}/predictions", state="waiting")
    [waiting] = set(ids) - {running.id, delayed.id}
    assert (row["id"], row["state"], row["lane"], row["attempt"]) == (waiting, "waiting", "normal", 0)
    [rows] = await pages(admin, f"{ONE}/predictions")
    assert {each["id"] for each in rows} == set(ids)


@pytest.mark.parametrize("state", ["", "waiting", "running", "delayed"])
async def test_live_predictions_are_paged_oldest_first(admin: AsyncClient, driver: QueueDriver, state: str) -> None:
    wanted = []
    for _ in range(230):
        wanted.append(await driver.submit(streams=[0]))
        driver.pass_time(0.001)
    if state in ("running", "delayed"):
        for claim in [claim for _ in range(12) for claim in await driver.claim(20)]:
            if state == "delayed":
                await driver.release(claim, delay_s=60)
                driver.pass_time(0.001)
    found = await pages(admin, f"{ONE}/predictions", state=state)
    assert [len(page) for page in found] == [100, 100, 30]
    assert [one["id"] for page in found for one in page] == wanted


async def test_page_continues_after_a_deleted_last_entry(admin: AsyncClient, driver: QueueDriver) -> None:
    ids = []
    for _ in range(150):
        ids.append(await driver.submit())
        driver.pass_time(0.001)
    page = await read(admin, f"{ONE}/predictions")
    for gone in (ids[10], ids[99]):
        await driver.cancel(gone, account=ACCOUNT)
    rest = await read(admin, page["next"].removeprefix("http://director.test"))
    assert [one["id"] for one in rest["results"]] == ids[100:]


async def test_id_without_a_record_is_skipped(admin: AsyncClient, driver: QueueDriver) -> None:
    lost, kept = await driver.submit(), await driver.submit()
    await driver.redis.delete(keys.record(lost))
    [rows] = await pages(admin, f"{ONE}/predictions")
    assert [each["id"] for each in rows] == [kept]
    await driver.redis.flushall()  # the remains of the lost record have no lifetime, which a keeper would have set


@pytest.mark.parametrize(
    "path",
    [
        f"{QUEUES}/{MODEL}/000000000000",
        f"{QUEUES}/{MODEL}/000000000000/predictions",
        f"{QUEUES}/{MODEL}/{VERSION[:12]}~dance",
        f"{QUEUES}/{MODEL}/nothing",
        f"{QUEUES}/a b/c/{VERSION[:12]}",
    ],
)
async def test_unknown_queue_is_not_found(admin: AsyncClient, path: str) -> None:
    assert (await admin.get(path)).status_code == 404


async def test_invalid_query_is_refused(admin: AsyncClient) -> None:
    for path in (f"{ONE}/predictions?state=asleep", f"{ONE}/predictions?cursor=bmE=", f"{QUEUES}?q={'a' * 300}"):
        assert (await admin.get(path)).status_code == 422


async def test_directors_are_shown_with_slots_and_presence(
    admin: AsyncClient, driver: QueueDriver, redis: Redis
) -> None:
    await driver.scripts.extend(driver.queue, consumer="host-1-aa", lease_s=15, claims=[], slots=4, state="ready")
    await driver.scripts.extend(driver.queue, consumer="host-2-bb", lease_s=15, claims=[], slots=0, state="draining")
    await redis.zadd(keys.directors(driver.queue), {"host-0-cc": 1_000})
    for query in ({}, {"queue": driver.queue}):
        [found] = await pages(admin, "/v1/admin/directors", **query)
        assert [(one["name"], one["alive"], one["state"], one["slots"]) for one in found] == [
            ("host-0-cc", False, "silent", 0),
            ("host-1-aa", True, "ready", 4),
            ("host-2-bb", True, "draining", 0),
        ]
        assert [queue["queue"] for one in found for queue in one["queues"]] == [driver.queue] * 3
    assert (await admin.get("/v1/admin/directors?queue=nowhere")).status_code == 422


async def test_director_shows_its_release_servers_and_claims(admin: AsyncClient, driver: QueueDriver) -> None:
    server = ServerFound(url="http://127.0.0.1:5000", state="resting", since_ms=1_800_000_000_000, slots=1)
    about = About(version="1.2.3", since_ms=1_799_999_999_000, held=2, servers=(server,), more=3)
    beat: dict[str, Any] = {"consumer": "host-1-aa", "lease_s": 15, "claims": []}
    await driver.scripts.extend(driver.queue, **beat, slots=1, about=msgspec.json.encode(about))
    [[shown]] = await pages(admin, "/v1/admin/directors")
    assert (shown["version"], shown["since"], shown["held"]) == ("1.2.3", "2027-01-15T07:59:59.000Z", 2)
    [found] = shown["servers"]
    assert (found["url"], found["state"], found["since"]) == (server.url, "resting", "2027-01-15T08:00:00.000Z")
    assert shown["more_servers"] == 3
    await driver.scripts.extend(driver.queue, **beat, slots=1, about=b"of another release")
    [[shown]] = await pages(admin, "/v1/admin/directors")
    assert (shown["version"], shown["held"], shown["servers"]) == (None, None, [])


async def test_owed_webhooks_are_counted_by_host(admin: AsyncClient, driver: QueueDriver) -> None:
    assert (await read(admin, "/v1/admin/owed"))["count"] == 0
    told = {"webhook": "https://receiver.example/secret?token=1", "webhook_events": "completed"}
    for host in ("receiver.example", "receiver.example", "other.example"):
        await driver.submit(**{**told, "webhook": f"https://{host}/secret?token=1"})
        await driver.finish(await driver.claim_one(), grace_s=60)
    found = await read(admin, "/v1/admin/owed")
    assert (found["count"], found["late"], found["looked_at"]) == (3, 0, 3)
    assert [(each["host"], each["count"]) for each in found["hosts"]] == [("receiver.example", 2), ("other.example", 1)]
    assert "secret" not in str(found)
    [one] = (await read(admin, "/v1/admin/owed", host="other.example"))["results"]
    assert (one["queue"], one["account"], one["attempts"], one["outcome"]) == (driver.queue, ACCOUNT, 0, None)


async def test_webhooks_of_one_receiver_are_sent_again_at_once(
    admin: AsyncClient, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host in ("receiver.example", "receiver.example", "other.example"):
        made = await driver.submit(webhook=f"https://{host}/done", webhook_events="completed")
        await driver.finish(await driver.claim_one(), grace_s=45)
        assert await driver.deliver(made, "failed", 7200)
    asked = {"host": "receiver.example"}
    answer = await admin.post("/v1/admin/owed/redeliver", json=asked)
    assert (answer.status_code, answer.json()) == (200, {"done": 2, "left": 0, "more": False})
    found = await read(admin, "/v1/admin/owed")
    next_at = {one["host"]: one["next_at"] for one in found["results"]}
    assert next_at["receiver.example"] < next_at["other.example"]
    [noted] = (await read(admin, "/v1/admin/audit"))["changes"]
    assert (noted["kind"], noted["detail"]) == ("webhooks_redelivered", asked)
    nothing = await admin.post("/v1/admin/owed/redeliver", json={"host": "nothing.example"})
    assert nothing.json() == {"done": 0, "left": 0, "more": False}
    monkeypatch.setattr(owed, "MOST_LOOKED_AT", 1)
    assert (await admin.post("/v1/admin/owed/redeliver", json=asked)).json()["more"]


async def owe(driver: QueueDriver, many: int) -> list[PredictionId]:
    """Return predictions whose webhooks a receiver has missed once."""
    made = [await driver.submit(webhook="https://receiver.example/x", webhook_events="completed") for _ in range(many)]
    for each in made:
        await driver.finish(await driver.claim_one(), grace_s=45)
        assert await driver.deliver(each, "failed", 7200)
    return made


async def test_redelivery_with_a_lost_record_has_looked_at_all(admin: AsyncClient, driver: QueueDriver) -> None:
    _, lost = await owe(driver, 2)
    await driver.redis.delete(keys.record(lost))
    answer = await admin.post("/v1/admin/owed/redeliver", json={"host": "receiver.example"})
    assert answer.json() == {"done": 1, "left": 0, "more": False}
    await driver.redis.flushall()  # the remains of the lost record have no lifetime, which a keeper would have set


@pytest.mark.parametrize("step", ["_find", "to_host"])
async def test_webhook_that_is_delivered_meanwhile_is_not_sent_again(
    admin: AsyncClient, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Just before the webhooks are read, after their count, and just after they were read."""
    _, other = await owe(driver, 2)
    real = getattr(owed.Owed, step)

    async def beside_a_courier(self: owed.Owed, *given: Any) -> Any:
        if step == "_find":
            assert await driver.deliver(other)
            return await real(self, *given)
        found = await real(self, *given)
        assert await driver.deliver(other)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(owed.Owed, step, beside_a_courier)
        answer = await admin.post("/v1/admin/owed/redeliver", json={"host": "receiver.example"})
    assert answer.json() == {"done": 1, "left": 0, "more": False}
    assert (await read(admin, "/v1/admin/owed"))["count"] == 1


async def act(admin: AsyncClient, name: str, body: Any = None, *, status: int = 200) -> Any:
    answer = await (admin.post(f"{ONE}/{name}") if body is None else admin.post(f"{ONE}/{name}", json=body))
    assert answer.status_code == status, answer.text
    return answer.json()


async def changes(admin: AsyncClient) -> list[tuple[str, str, Any]]:
    noted = (await read(admin, "/v1/admin/audit"))["changes"]
    return [(each["kind"], each["by"].partition("/")[0], each["detail"]) for each in noted if each["queue"]]


async def test_pausing_and_resuming_a_queue_is_logged(admin: AsyncClient, driver: QueueDriver) -> None:
    await driver.submit()
    shown = await act(admin, "pause")
    assert (shown["paused"], shown["state"]) == (True, "paused")
    assert await driver.claim() == []
    assert (await act(admin, "resume", {}))["paused"] is False
    assert len(await driver.claim()) == 1
    assert [each[:2] for each in await changes(admin)] == [
        ("queue_paused", "operators"),
        ("queue_resumed", "operators"),
    ]


async def test_pausing_one_account_leaves_the_others_running(
    admin: AsyncClient, driver: QueueDriver, redis: Redis
) -> None:
    await Accounts(redis).create_token("amber")
    mine, other = await driver.submit(account="amber"), await driver.submit(account="basalt")
    assert (await act(admin, "pause", {"account": "amber"}))["paused"] is False
    assert [claim.id for claim in await driver.claim(5)] == [other]
    await act(admin, "resume", {"account": "amber"})
    assert [claim.id for claim in await driver.claim(5)] == [mine]
    await act(admin, "pause", {"account": "unknown"}, status=422)
    noted = (await read(admin, "/v1/admin/audit"))["changes"]
    assert [(each["queue"], each["account"]) for each in noted] == [(driver.queue, "amber")] * 2


async def test_drained_queue_keeps_its_waiting_predictions(admin: AsyncClient, driver: QueueDriver) -> None:
    for _ in range(2):
        await driver.submit()
    running = await driver.claim_one()
    told = await act(admin, "drain")
    assert (told["drained"], told["queue"]["paused"], told["queue"]["claimed"]) == (False, True, 1)
    assert await driver.claim() == []
    await driver.finish(running)
    told = await act(admin, "drain")
    assert (told["drained"], told["queue"]["waiting"]["normal"]) == (True, 1)
    assert [kind for kind, _, _ in await changes(admin)] == ["queue_paused"]


async def test_queue_is_resized_and_bounded(admin: AsyncClient) -> None:
    assert (await act(admin, "resize", {"streams": 4}))["streams"] == 4
    shown = await act(admin, "bound", {"mode": "bounded", "max_queued": 7})
    assert (shown["mode"], shown["max_queued"]) == ("bounded", 7)
    shown = await act(admin, "bound", {"mode": "reject"})
    assert (shown["mode"], shown["max_queued"]) == ("reject", None)
    await act(admin, "resize", {"streams": 33}, status=400)
    await act(admin, "bound", {"mode": "reject", "max_queued": 7}, status=422)
    await act(admin, "bound", {"mode": "bounded"}, status=422)
    assert [(kind, detail) for kind, _, detail in await changes(admin)] == [
        ("queue_resized", {"streams": 4}),
        ("queue_bounded", {"mode": "bounded", "max_queued": 7}),
        ("queue_bounded", {"mode": "reject", "max_queued": None}),
    ]


async def test_waiting_predictions_migrate_to_another_version(
    admin: AsyncClient, driver: QueueDriver, catalog: Catalog
) -> None:
    newer = await catalog.register(MODEL, "c3" * 32, schema=OPEN_SCHEMA, server="echo", policy=Policy(), is_latest=True)
    for _ in range(3):
        await driver.submit()
    await driver.claim_one()
    asked = await act(admin, "migrate", {"to": newer, "dry_run": True})
    assert asked == {"to": newer, "dry_run": True, "moved": 2, "claimed": 1, "held": 0, "done": True}
    assert await changes(admin) == []
    done = await act(admin, "migrate", {"to": MODEL})
    assert (done["to"], done["moved"], done["done"]) == (newer, 2, True)
    assert (await read(admin, f"{QUEUES}/{MODEL}/{'c3' * 6}"))["waiting"]["normal"] == 2
    assert await changes(admin) == [("queue_migrated", "operators", {"to": newer})]
    await act(admin, "migrate", {"to": driver.queue}, status=422)
    await act(admin, "migrate", {"to": "acme/nothing"}, status=422)


async def test_change_of_an_unknown_queue_is_not_logged(admin: AsyncClient) -> None:
    for name in ("pause", "resume", "drain", "resize", "bound", "migrate"):
        assert (await admin.post(f"{QUEUES}/{MODEL}/000000000000/{name}", json={})).status_code == 404
    assert await changes(admin) == []


PATH = f"/v1/admin/models/{MODEL}/config"
CONFIG: dict[str, Any] = {"runner": {"kind": "http", "path": "/run"}, "slots": 2, "attempts": 5, "run_limit_s": 60.0}


async def test_written_configuration_is_read_back_with_its_author(
    admin: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await admin.get(PATH)).json() == {"revision": 0, "config": {}, "changed_at": None, "changed_by": None}
    with caplog.at_level(logging.INFO):
        answer = await admin.put(PATH, json=CONFIG)
    assert (answer.status_code, answer.headers["etag"]) == (200, '"1"')
    shown = (await admin.get(PATH)).json()
    assert shown == answer.json()
    assert (shown["revision"], shown["config"]) == (1, CONFIG)
    assert shown["changed_by"].startswith("operators/")
    [line] = [each for each in caplog.records if vars(each).get("change") == "model_configured"]
    assert (vars(line)["by"], vars(line)["detail"]["fields"]) == (shown["changed_by"], sorted(CONFIG))


async def test_put_replaces_all_and_delete_resets_all(admin: AsyncClient) -> None:
    await admin.put(PATH, json=CONFIG)
    assert (await admin.put(PATH, json={"attempts": 1})).json()["config"] == {"attempts": 1}
    assert (await admin.delete(PATH)).status_code == 204
    shown = (await admin.get(PATH)).json()
    assert (shown["revision"], shown["config"]) == (3, {})


async def test_outdated_revision_changes_nothing(admin: AsyncClient) -> None:
    await admin.put(PATH, json=CONFIG)
    for method in ("PUT", "DELETE"):
        answer = await admin.request(method, PATH, json={"slots": 1}, headers={"If-Match": '"0"'})
        assert (answer.status_code, answer.json()["code"]) == (412, "config_changed")
    assert (await admin.get(PATH)).json()["config"] == CONFIG
    answer = await admin.put(PATH, json={"slots": 1}, headers={"If-Match": '"1"'})
    assert (answer.status_code, answer.headers["etag"]) == (200, '"2"')
    answer = await admin.put(PATH, json={"slots": 1}, headers={"If-Match": "two"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_header")


async def test_configuration_of_a_newer_release_is_reported_and_can_be_replaced(
    admin: AsyncClient, redis: Redis
) -> None:
    await admin.put(PATH, json=CONFIG)
    await redis.hset(keys.model(MODEL), "config", b'{"attempts":2,"of_tomorrow":1}')
    answer = await admin.get(PATH)
    assert (answer.status_code, answer.json()["code"]) == (501, "not_implemented")
    assert (await admin.put(PATH, json={"slots": 1})).status_code == 200
    assert (await admin.get(PATH)).json()["config"] == {"slots": 1}


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"attempts": 0}, 400, "attempts"),
        ({"slots": "many"}, 400, "slots"),
        ({"unheard_of": 1}, 400, "unheard_of"),
        ({"runner": {"kind": "http"}}, 422, "path"),
        ({"runner": {"kind": "cog", "fast": "yes"}}, 422, "fast"),
        ({"servers": ["nowhere"]}, 422, "servers"),
        ([], 400, "object"),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else None,
)
async def test_unusable_configuration_is_refused_with_the_field_name(
    admin: AsyncClient, redis: Redis, body: Any, status: int, said: str
) -> None:
    before = await dump(redis)
    answer = await admin.put(PATH, json=body)
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
    assert await dump(redis) == before


async def test_unknown_model_has_no_configuration(admin: AsyncClient) -> None:
    for method, path in (("GET", "acme/none"), ("PUT", "acme/none"), ("DELETE", "acme/none"), ("GET", "Acme/No")):
        answer = await admin.request(method, f"/v1/admin/models/{path}/config", json={"slots": 1})
        assert answer.status_code == 404
