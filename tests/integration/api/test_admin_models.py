"""Test that operators configure how a model is run over HTTP: whole, with a revision, and only with usable values."""

import logging
from typing import Any

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from tests.support.keyspace import dump
from tests.support.queue_driver import MODEL

pytestmark = pytest.mark.anyio

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
