"""Test what operators read of the past and of the service itself."""

from typing import Any

import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from api.admin.system import HIDDEN, settings_of
from director.core.ids import QueueName
from director.core.settings import ApiSettings
from director.core.trends import STEPS, Level, Point, bucket
from director.store.trends import Trends

PATH = "/v1/admin/history"


@pytest.fixture
async def at_s(redis: Redis, queue: QueueName) -> int:
    """The start of the last complete step, in which 8 predictions succeeded and 2 failed."""
    seconds, _ = await redis.time()
    at_s = STEPS[0].start(seconds) - STEPS[0].seconds
    point = Point(at_s=at_s, succeeded=8, failed=2, waits={bucket(400): 10}, runs={bucket(2_000): 9, bucket(9_000): 1})
    await Trends(redis).add({queue: point}, {queue: Level(at_s=at_s, waiting=5, busy_s=30, slots=4)}, most=10)
    return at_s


@pytest.mark.parametrize("over", ["15m", "1h", "24h", "7d"])
async def test_history_has_the_counts_and_times_of_each_step(
    admin: AsyncClient, queue: QueueName, at_s: int, over: str
) -> None:
    for named in ({}, {"queue": queue}):
        found: dict[str, Any] = (await admin.get(PATH, params={"over": over, **named})).json()
        whole = found["whole"]
        assert (whole["succeeded"], whole["failed"], whole["canceled"]) == (8, 2, 0)
        assert whole["wait_p50_s"] == pytest.approx(0.4, rel=0.13)
        assert (whole["run_p50_s"], whole["run_p95_s"]) == (pytest.approx(2, rel=0.13), pytest.approx(9, rel=0.13))
        [step] = found["points"]
        assert {name: step[name] for name in whole} == whole
        [level] = found["levels"]
        assert level == {"at": step["at"], "waiting": 5, "busy_s": 30, "slots": 4}
        assert [one["queue"] for one in found["queues"]] == ([] if named else [queue])


async def test_idle_service_has_an_empty_history(admin: AsyncClient, queue: QueueName) -> None:
    found = (await admin.get(PATH)).json()
    assert (found["over"], found["points"], found["queues"]) == ("15m", [], [])
    assert found["whole"]["wait_p50_s"] is None


@pytest.mark.parametrize("query", [{"over": "1y"}, {"queue": "acme/none:0123456789ab"}])
async def test_unknown_range_or_queue_is_refused(admin: AsyncClient, queue: QueueName, query: dict[str, str]) -> None:
    assert (await admin.get(PATH, params=query)).status_code == 422


async def test_system_names_release_redis_and_settings(admin: AsyncClient, settings: ApiSettings) -> None:
    found = (await admin.get("/v1/admin/system")).json()
    assert found["redis"]["durability"] in ("always", "everysec", "replicated", "memory")
    assert found["redis"]["memory_bytes"] > 0
    shown = {one["name"]: one for one in found["settings"]}
    assert shown["DIRECTOR_CANCEL_WAIT_S"]["is_set"]
    assert shown["DIRECTOR_OPENAI"]["default"] == "false", "as the environment has it"
    assert found["sites"] == []


def test_no_secret_is_among_the_settings() -> None:
    secret = "s3cr3t-s3cr3t-s3cr3t"
    given = {"redis_url": f"redis://api:{secret}@127.0.0.1:6379?a={secret}", "files_url": f"s3://{secret}:{secret}@b/c"}
    shown = {one.name: one for one in settings_of(ApiSettings(metrics_token=secret, **given))}
    assert shown["DIRECTOR_METRICS_TOKEN"].value == HIDDEN
    assert secret not in "".join(one.value + one.default for one in shown.values())
