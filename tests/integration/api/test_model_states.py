"""Test the states of models: who sees which, why nothing runs, and what of it is private."""

import httpx
import msgspec
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from api.services import paces
from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import QueueName, queue_name
from director.core.policy import Policy
from director.core.schema import setup_run
from director.core.trends import STEPS, Point
from director.core.view import iso
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.directors import Directors
from director.store.trends import Trends
from tests.integration.api.conftest import refusal
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION

NEW = f"{ACCOUNT}/fresh"
WHERE = "http://10.1.2.3:5000"


def about(state: str, detail: str, log: str) -> bytes:
    server = {"url": WHERE, "state": state, "since_ms": 1, "slots": 1, "detail": detail, "log": log}
    return msgspec.json.encode({"servers": [server]})


async def states(api: AsyncClient, *names: str, token: str = "") -> list[dict[str, object]]:
    query = f"?models={','.join(names)}" if names else ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = await api.get(f"/v1/models/states{query}", headers=headers)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, object]] = answer.json()["results"]
    return found


async def test_model_without_a_director_says_that_nothing_starts(api: AsyncClient) -> None:
    [one] = await states(api, MODEL)
    assert (one["model"], one["version"], one["state"], one["slots"]) == (MODEL, VERSION, "no_director", 0)
    assert one["detail"] == "No director serves this model now."
    assert (one["may_change"], one["has_openai"], one["log"]) == (True, False, "")


async def test_state_has_slots_and_median_times_of_the_day(
    api: AsyncClient, redis: Redis, scripts: Scripts, queue: QueueName
) -> None:
    seconds, _ = await redis.time()
    at_s = STEPS[0].start(seconds) - STEPS[0].seconds
    await Trends(redis).add({queue: Point(at_s=at_s, succeeded=3, failed=1, waits={31: 4}, runs={40: 4})}, most=9)
    await scripts.extend(queue, consumer="d1", lease_s=15, claims=[], slots=3)
    [one] = await states(api, MODEL)
    assert (one["state"], one["words"], one["shade"], one["slots"]) == ("serving", "serving", "good", 3)
    assert (one["succeeded"], one["failed"], one["run_count"]) == (3, 1, 0)
    assert 6 < float(str(one["run_p50_s"])) < 8
    assert 0.8 < float(str(one["wait_p50_s"])) < 1.1


async def test_states_of_several_models_count_runs_of_half_a_minute_ago(
    api: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for holds_s, seen in ((0, 1), (30, 2), (30, 2)):
        monkeypatch.setattr(paces, "HOLDS_S", holds_s)
        await api.post("/v1/predictions", json={"version": VERSION, "input": {"text": "a"}})
        [one] = await states(api, f"{MODEL},acme/none")
        assert one["run_count"] == seen
    [one] = await states(api, MODEL)
    assert one["run_count"] == 3, "of one model it is of now"
    assert (await api.get(f"/v1/models/{MODEL}")).json()["run_count"] == 3


async def test_newcomer_is_shown_with_its_log_to_owner_and_overseer_alone(api: AsyncClient, redis: Redis) -> None:
    said = about("setup_failed", "setup_failed: RuntimeError: no weights", "Traceback\nRuntimeError: no weights\n")
    await Directors(redis).note_newcomer(NEW, "d1", "setup_failed", said)
    accounts = Accounts(redis)
    other = await accounts.create_token("umbrella")
    viewer = await accounts.create_token("watcher", scopes=("read", "view"))
    for token in ("", viewer):
        for names in ((), (NEW,)):
            [one] = await states(api, *names, token=token)
            assert (one["model"], one["state"], one["version"]) == (NEW, "setup_failed", None)
            assert one["detail"] == "The model's servers failed to start: the operator must correct this."
            assert one["log"] == "Traceback\nRuntimeError: no weights\n"
            assert WHERE not in str(one)
    assert await states(api, token=other) == []
    assert await states(api, NEW, token=other) == []


async def test_what_a_server_says_of_itself_is_for_overseers(api: AsyncClient, redis: Redis) -> None:
    said = about("server_auth", f"server_auth: {WHERE} answered 401", "")
    await Directors(redis).note_newcomer(NEW, "d1", "server_auth", said)
    [own] = await states(api, NEW)
    assert own["detail"] == "The model's servers refuse the key of their director: the operator must correct this."
    viewer = await Accounts(redis).create_token("watcher", scopes=("read", "view"))
    [seen] = await states(api, NEW, token=viewer)
    assert WHERE in str(seen["detail"])


FAILED = "The model's servers failed to start: the operator must correct this."


async def test_failed_setup_of_a_listed_model_shows_its_log_to_owner_and_overseer(
    api: AsyncClient, redis: Redis, scripts: Scripts, queue: QueueName
) -> None:
    said = about("setup_failed", f"setup_failed: {WHERE} has no weights", "Traceback\n")
    await scripts.extend(queue, consumer="d1", lease_s=15, claims=[], slots=0, state="setup_failed", about=said)
    accounts = Accounts(redis)
    other = await accounts.create_token("umbrella")
    viewer = await accounts.create_token("watcher", scopes=("read", "view"))
    for token, log in (("", "Traceback\n"), (viewer, "Traceback\n"), (other, "")):
        [one] = await states(api, MODEL, token=token)
        assert (one["version"], one["state"], one["detail"], one["log"]) == (VERSION, "setup_failed", FAILED, log)
        assert WHERE not in str(one)


async def test_error_of_a_setup_without_a_log_is_not_shown_to_other_accounts(
    api: AsyncClient, redis: Redis, scripts: Scripts, queue: QueueName
) -> None:
    said = about("setup_failed", f"setup_failed: {WHERE} has no weights", "")
    await scripts.extend(queue, consumer="d1", lease_s=15, claims=[], slots=0, state="setup_failed", about=said)
    accounts = Accounts(redis)
    other = await accounts.create_token("umbrella")
    viewer = await accounts.create_token("watcher", scopes=("read", "view"))
    for token, is_shown in (("", True), (viewer, True), (other, False)):
        [one] = await states(api, MODEL, token=token)
        assert (one["detail"] == FAILED, WHERE in str(one)) == (not is_shown, is_shown)


async def test_log_of_the_last_failed_setup_is_shown_as_with_its_version(
    api: AsyncClient, redis: Redis, scripts: Scripts, catalog: Catalog, queue: QueueName
) -> None:
    failed = setup_run("failed", started_at=iso(1), completed_at=iso(2), logs="Traceback\n", server=WHERE)
    assert await catalog.note_setup(MODEL, VERSION, failed)
    said = about("setup_failed", "setup_failed: RuntimeError", "")
    await scripts.extend(queue, consumer="d1", lease_s=15, claims=[], slots=0, state="setup_failed", about=said)
    for token in ("", await Accounts(redis).create_token("umbrella")):
        [one] = await states(api, MODEL, token=token)
        assert (one["detail"], one["log"], WHERE in str(one)) == (FAILED, "Traceback\n", False)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        version = (await api.get(f"/v1/models/{MODEL}/versions/{VERSION}", headers=headers)).json()
        assert version["setup_run"]["logs"] == one["log"]


async def test_each_unwell_model_shows_its_own_directors(
    api: AsyncClient, scripts: Scripts, catalog: Catalog, queue: QueueName
) -> None:
    second = f"{ACCOUNT}/second"
    await catalog.register(second, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    for name in (MODEL, second):
        said = about("setup_failed", "", f"log of {name}\n")
        other = queue_name(name, VERSION)
        await scripts.extend(other, consumer="d1", lease_s=15, claims=[], slots=0, state="setup_failed", about=said)
    found = await states(api, second, MODEL)
    assert [one["log"] for one in found] == [f"log of {second}\n", f"log of {MODEL}\n"]


async def test_director_that_ended_in_one_queue_alone_shows_no_log_there(
    api: AsyncClient, redis: Redis, scripts: Scripts, catalog: Catalog, queue: QueueName
) -> None:
    second = f"{ACCOUNT}/second"
    other = await catalog.register(second, VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    said = about("setup_failed", "", "log\n")
    for each in (queue, other):
        await scripts.extend(each, consumer="d1", lease_s=15, claims=[], slots=0, state="setup_failed", about=said)
        await scripts.extend(each, consumer="d2", lease_s=15, claims=[], slots=0, state="setup_failed", about=b"{}")
    seconds, _ = await redis.time()
    await redis.zadd(keys.directors(queue), {"d1": 1000 * (seconds - 21)})
    assert [one["log"] for one in await states(api, MODEL, second)] == ["", "log\n"]


async def test_private_model_of_another_account_is_left_out(api: AsyncClient, redis: Redis) -> None:
    made = {"owner": ACCOUNT, "name": "hidden", "visibility": "private", "hardware": "cpu"}
    assert (await api.post("/v1/models", json=made)).status_code == 201
    hidden = f"{ACCOUNT}/hidden"
    [own] = await states(api, hidden)
    assert (own["state"], own["may_change"]) == ("no_director", True)
    other = await Accounts(redis).create_token("umbrella")
    [seen] = await states(api, hidden, MODEL, f"{ACCOUNT}/none", token=other)
    assert (seen["model"], seen["may_change"]) == (MODEL, False)


@pytest.mark.parametrize("names", ["x", "../a/b", "A/b", ",".join(f"a/m{n}" for n in range(101))])
async def test_wrong_names_are_refused(api: AsyncClient, names: str) -> None:
    answer: httpx.Response = await api.get("/v1/models/states", params={"models": names})
    assert refusal(answer)[0] == 422


PICTURE = "data:image/png;base64,iVBORw0KGgo="


async def test_owner_sets_and_removes_a_small_picture(api: AsyncClient, redis: Redis) -> None:
    changed = await api.patch(f"/v1/models/{MODEL}", json={"cover_image_url": PICTURE})
    assert (changed.status_code, changed.json()["cover_image_url"]) == (200, PICTURE)
    assert await redis.hget(keys.model(MODEL), "cover_image_url") == PICTURE.encode()
    removed = await api.patch(f"/v1/models/{MODEL}", json={"cover_image_url": ""})
    assert removed.json()["cover_image_url"] is None


@pytest.mark.parametrize(
    "text",
    [
        "data:image/svg+xml;base64,PHN2Zz4=",
        "data:text/html;base64,PGI+",
        "data:image/png,raw",
        "data:image/png;base64,a b",
        f"data:image/png;base64,{'A' * 12_000}",
        "javascript:alert(1)",
    ],
)
async def test_other_data_is_no_picture_of_a_model(api: AsyncClient, text: str) -> None:
    refused = await api.patch(f"/v1/models/{MODEL}", json={"cover_image_url": text})
    assert refused.status_code == 422
    assert [fault["field"] for fault in refused.json()["invalid_fields"]] == ["cover_image_url"]
