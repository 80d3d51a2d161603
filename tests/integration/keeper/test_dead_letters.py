"""Check dead letters from a model's third death to its repaired run, for callers, operators and admins."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import replicate
from anyio import to_thread
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import PredictionId
from director.core.policy import Policy
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from director.store.dead import Asked, DeadCursor, DeadLetters, Done, attempts_of
from tests.integration.api.conftest import admin as admin
from tests.integration.api.conftest import operator as operator
from tests.integration.api.conftest import settings as settings
from tests.support.api import live_api
from tests.support.clock import FakeClock
from tests.support.cog import write_model
from tests.support.eventually import eventually
from tests.support.live_director import Caller, Gate, keeping, live_director, supervised_cog
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, QueueDriver
from tests.support.servers import RedisServer
from tests.support.terminal import played
from tests.support.typed import Typed, typed

ALL: dict[str, Any] = {"by": "ops", "asked": Asked()}

DYING = """
    import os
    from cog import BasePredictor

    class Predictor(BasePredictor):
        def predict(self, mended: str) -> str:
            if not os.path.exists(mended):
                os._exit(1)
            return "alive"
"""


@pytest.mark.faults
@pytest.mark.cog
async def test_dead_letter_succeeds_after_repair_and_revival(
    server: RedisServer, redis: Redis, scripts: Scripts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def types(*line: str) -> Typed:
        return typed(capsys, "dead", *line, "--redis", server.url)

    token = await Accounts(redis).create_token(ACCOUNT)
    caller, mended = Caller(redis, scripts), Gate(tmp_path / "mended")
    async with (
        supervised_cog(write_model(tmp_path / "model", DYING)) as cog,
        live_director(server.url, cog.url) as director,
        keeping(server.url, lease_s=3),
        live_api(server.url) as api,
    ):
        await eventually(lambda: director.missing(), "the director is ready", until=lambda missing: not missing)
        official = replicate.Client(api_token=token, base_url=api.url)
        try:
            made = await to_thread.run_sync(
                lambda: official.predictions.create(version=VERSION, input={"mended": str(mended)})
            )
            assert (await caller.shows(made.id, status="failed"))["code"]
            listed = await to_thread.run_sync(types, "list", "--json")
            [letter] = json.loads(listed.stdout)["results"]
            assert (letter["id"], letter["account"], letter["queue"]) == (made.id, ACCOUNT, caller.queue)
            attempts = letter["attempts"]
            assert [attempt["number"] for attempt in attempts] == [1, 2, 3]
            assert {attempt["director"] for attempt in attempts} == {director.name}
            assert all(attempt["claimed_at"] < attempt["ended_at"] and attempt["code"] for attempt in attempts)

            mended.open()
            revived = await to_thread.run_sync(types, "revive", made.id)
            assert (revived.returncode, revived.stdout) == (0, "1 revived\n")
            await eventually(lambda: caller.status(made.id), "it succeeds", until=lambda status: status == "succeeded")
            await to_thread.run_sync(made.reload)
            assert (made.status, made.output, made.error) == ("succeeded", "alive", None)
            assert await caller.dead() == []
        finally:
            official._client.close()


@pytest.fixture
def dead(redis: Redis, scripts: Scripts) -> DeadLetters:
    return DeadLetters(redis, scripts, SystemClock())


async def dying(driver: QueueDriver, count: int, *, apart_s: float = 1) -> list[str]:
    """Make this many dead letters, newest first. A breaker would take them for failing servers."""
    await driver.scripts.register(driver.queue, version=VERSION, policy=Policy(breaker_after=0))
    ids = []
    for _ in range(count):
        ids.append(await driver.die())
        driver.pass_time(apart_s)
    return ids[::-1] if apart_s else sorted(ids, reverse=True)


@pytest.mark.parametrize("apart_s", [1, 0], ids=["one by one", "in one millisecond"])
async def test_pages_are_newest_first_and_complete(dead: DeadLetters, driver: QueueDriver, apart_s: float) -> None:
    ids = await dying(driver, 7, apart_s=apart_s)
    seen, before = [], None
    for _ in range(4):
        page = await dead.page([driver.queue], before=before, count=2)
        seen.append([letter.id for letter in page.results])
        before = DeadCursor.parse(page.next or "")
    assert seen == [ids[0:2], ids[2:4], ids[4:6], ids[6:]]
    assert page.next is None


async def test_page_over_all_queues_is_one_list(
    dead: DeadLetters, driver: QueueDriver, catalog: Catalog, redis: Redis, scripts: Scripts
) -> None:
    other = QueueDriver(
        redis, scripts, await catalog.register(MODEL, "b2" * 32, schema=OPEN_SCHEMA, server="", policy=Policy())
    )
    ids = []
    for _ in range(2):
        for one in (driver, other):
            other.now_ms = driver.now_ms = max(one.now_ms, driver.now_ms, other.now_ms) + 1000
            ids.append(await one.die())
    page = await dead.page([driver.queue, other.queue], count=3)
    assert [letter.id for letter in page.results] == ids[:0:-1]
    rest = await dead.page([driver.queue, other.queue], before=DeadCursor.parse(page.next or ""))
    assert [letter.id for letter in rest.results] == ids[:1]


async def test_letter_without_a_record_leaves_the_list(dead: DeadLetters, driver: QueueDriver, redis: Redis) -> None:
    older, newer = await dying(driver, 2)
    await redis.delete(keys.record(newer))
    assert [letter.id for letter in (await dead.page([driver.queue])).results] == [older]
    assert list(await driver.members(keys.dead(driver.queue))) == [older]
    assert await dead.show(newer) is None


async def test_letter_that_dies_again_is_not_revived_twice(dead: DeadLetters, driver: QueueDriver) -> None:
    ids = await dying(driver, 3)
    walked = []

    async def every() -> AsyncIterator[list[DeadCursor]]:
        async for places in dead.every([driver.queue]):
            walked.extend(place.id for place in places)
            yield places
            driver.pass_time(60)
            # One of them dies again during the walk.
            while await driver.release(await driver.claim_one(), spent=True, code="broken") != "dead":
                pass

    done = await dead.revive(every(), **ALL)
    assert (done.done, done.refused, done.next) == (3, (), None)
    assert walked == ids
    assert len(await driver.members(keys.dead(driver.queue))) == 1


class SleepingClock(FakeClock):
    """Time passes only in `sleep`, and at once."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.pass_time(seconds)


async def test_revival_keeps_its_rate_and_returns_a_cursor(redis: Redis, scripts: Scripts, driver: QueueDriver) -> None:
    clock = SleepingClock()
    dead = DeadLetters(redis, scripts, clock)
    ids = await dying(driver, 6)
    [fourth] = await dead.find([PredictionId(ids[3])])
    done = await dead.revive(dead.every([driver.queue]), **ALL, rate=2, within_s=1.5)
    assert clock.slept == pytest.approx([0.5, 0.5, 0.5])
    assert done == Done(4, (), str(fourth))
    rest = await dead.revive(dead.every([driver.queue], before=DeadCursor.parse(done.next or "")), **ALL)
    assert (rest.done, rest.next) == (2, None)


def test_history_is_read_as_written() -> None:
    assert attempts_of("") == ()
    first, second = attempts_of("1 host-1-ab 1800000000000 1800000015000 director_lost;2 host-2-cd  1800000016000 ")
    assert (first.number, first.director, first.code) == (1, "host-1-ab", "director_lost")
    assert (first.claimed_at, first.ended_at) == ("2027-01-15T08:00:00.000Z", "2027-01-15T08:00:15.000Z")
    assert (second.claimed_at, second.code) == (None, "")


@pytest.mark.parametrize("cursor", ["", "x", "1800000000000", "1800000000000" + "u" * 26, "0" * 12 + "1" * 26])
def test_invalid_cursor_is_refused(cursor: str) -> None:
    assert DeadCursor.parse(cursor) is None


async def test_command_lists_shows_revives_and_drops(
    server: RedisServer, driver: QueueDriver, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*line: str) -> Typed:
        return typed(capsys, "dead", *line, "--redis", server.url)

    assert (await to_thread.run_sync(run, "list")).stdout == "no dead letters\n"
    third, second, first = await dying(driver, 3)
    listed = await to_thread.run_sync(run, "list", "-n", "2")
    _, *rows, more = listed.stdout.splitlines()
    assert [row.split()[1] for row in rows] == [third, second]
    cursor = more.rpartition(" ")[2]
    assert first in (await to_thread.run_sync(run, "list", "--cursor", cursor)).stdout

    shown = await to_thread.run_sync(run, "show", first)
    assert "attempt 1: " in shown.stdout
    assert '{"text":"hi"}' in shown.stdout

    assert (await to_thread.run_sync(run, "drop", first)).stdout == "1 dropped\n"
    twice = await to_thread.run_sync(run, "drop", first)
    assert (twice.returncode, twice.stdout.splitlines()[0]) == (1, "0 dropped")
    queue = str(driver.queue)
    revived = await to_thread.run_sync(run, "revive", "--all", "--queue", queue, "--rate", "1000", "--json")
    assert json.loads(revived.stdout) == {"done": 2, "refused": [], "secret": []}
    assert (await driver.scripts.stats(driver.queue)).waiting == 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["revive"], "name some"),
        (["drop", "--queue", "acme/echo:a1"], "name some"),
        (["drop", "0" * 26, "--all"], "name some"),
        (["revive", "nonsense"], "is not the id"),
        (["show", "0" * 26], "is not a dead letter"),
        (["revive", "--all", "--queue", "no/such:queue"], "there is no queue"),
        (["list", "--cursor", "x"], "is not a cursor"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else "",
)
def test_incomplete_command_is_one_error_line(
    server: RedisServer, line: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = typed(capsys, "dead", *line, "--redis", server.url)
    assert ended.returncode == 1
    assert says in ended.stderr
    assert ended.stderr.count("\n") == 1


async def test_admin_scope_does_not_allow_predictions(admin: httpx.AsyncClient) -> None:
    assert (await admin.post("/v1/predictions", json={"version": VERSION, "input": {}})).status_code == 403


async def test_command_makes_a_token_with_the_scope(
    server: RedisServer, admin: httpx.AsyncClient, capsys: pytest.CaptureFixture[str]
) -> None:
    def create(scopes: str) -> Typed:
        return typed(capsys, "token", "create", "--account", "ops", "--scopes", scopes, "--redis", server.url)

    made = await to_thread.run_sync(create, "read,admin")
    headers = {"authorization": f"Bearer {made.stdout.strip()}"}
    assert (await admin.get("/v1/admin/dead", headers=headers)).status_code == 200
    assert (await admin.get("/v1/predictions", headers=headers)).status_code == 200
    assert "--scopes takes read, run, view, operate, admin" in (await to_thread.run_sync(create, "root")).stderr


async def test_list_has_pages(admin: httpx.AsyncClient, driver: QueueDriver) -> None:
    ids = await dying(driver, 103)
    first = (await admin.get("/v1/admin/dead", params={"queue": driver.queue})).json()
    second = (await admin.get(first["next"])).json()
    assert [letter["id"] for page in (first, second) for letter in page["results"]] == ids
    assert (len(first["results"]), second["next"], second["previous"]) == (100, None, None)
    assert (await admin.get("/v1/admin/dead", params={"queue": "no/such:queue"})).status_code == 422
    assert (await admin.get("/v1/admin/dead", params={"cursor": "x"})).status_code == 422


async def test_one_letter_is_shown_revived_and_dropped(admin: httpx.AsyncClient, driver: QueueDriver) -> None:
    revived, dropped = await dying(driver, 2)
    shown = (await admin.get(f"/v1/admin/dead/{revived}")).json()
    assert (shown["id"], shown["input"], shown["account"]) == (revived, {"text": "hi"}, ACCOUNT)
    assert shown["attempts"][0].keys() == {"number", "director", "claimed_at", "ended_at", "code"}
    assert (await admin.post(f"/v1/admin/dead/{revived}/revive")).json()["done"] == 1
    assert (await driver.record(revived)).status == "starting"
    assert (await admin.post(f"/v1/admin/dead/{dropped}/drop")).json()["done"] == 1
    for gone in (revived, dropped, "0" * 26, "nonsense"):
        assert (await admin.get(f"/v1/admin/dead/{gone}")).status_code == 404
        assert (await admin.post(f"/v1/admin/dead/{gone}/revive")).status_code == 404
        assert (await admin.post(f"/v1/admin/dead/{gone}/drop")).status_code == 404


async def test_many_or_all_letters_are_revived_and_dropped(admin: httpx.AsyncClient, driver: QueueDriver) -> None:
    ids = await dying(driver, 4)
    waiting = await driver.submit()
    some = (await admin.post("/v1/admin/dead/revive", json={"ids": [ids[0], waiting]})).json()
    assert some == {"done": 1, "refused": [waiting], "secret": [], "next": None}
    every = {"all": True, "queue": driver.queue, "rate": 500}
    assert (await admin.post("/v1/admin/dead/revive", json=every)).json()["done"] == 3
    await dying(driver, 2)
    assert (await admin.post("/v1/admin/dead/drop", json={"all": True})).json()["done"] == 2
    assert await driver.members(keys.dead(driver.queue)) == {}


async def test_call_that_is_out_of_time_goes_on_behind_its_cursor(
    admin: httpx.AsyncClient, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.admin.dead.LONGEST_S", 0.0)
    ids = await dying(driver, 3)
    asked, done = {"ids": ids, "rate": 500}, 0
    for _ in ids:
        answer = (await admin.post("/v1/admin/dead/revive", json=asked)).json()
        assert answer["refused"] == []
        done, asked = done + answer["done"], {**asked, "cursor": answer["next"]}
    assert (done, (await admin.post("/v1/admin/dead/revive", json=asked)).json()["next"]) == (3, None)
    strange = {"ids": ids[:1], "cursor": f"{0:013d}{ids[1]}"}
    assert (await admin.post("/v1/admin/dead/revive", json=strange)).status_code == 422


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"ids": []}, 422),
        ({"ids": ["0" * 26], "all": True}, 422),
        ({"ids": ["nonsense"]}, 422),
        ({"all": True, "queue": "no/such:queue"}, 422),
        ({"all": True, "cursor": "x"}, 422),
        ({"all": True, "rate": 0}, 400),
        ({"all": True, "speed": 1}, 400),
        ({"ids": ["0" * 26] * 1001}, 400),
        ([], 400),
    ],
    ids=str,
)
async def test_body_without_letters_changes_nothing(
    admin: httpx.AsyncClient, driver: QueueDriver, body: Any, status: int
) -> None:
    await driver.die()
    for act in ("revive", "drop"):
        assert (await admin.post(f"/v1/admin/dead/{act}", json=body)).status_code == status
    assert len(await driver.members(keys.dead(driver.queue))) == 1


async def test_terminal_shows_progress(server: RedisServer, driver: QueueDriver) -> None:
    await dying(driver, 3)
    line = [sys.executable, "-m", "director", "dead", "revive", "--all", "--rate", "50", "--redis", server.url]
    with played(line) as terminal:
        assert await to_thread.run_sync(lambda: terminal.process.wait(30)) == 0
        await eventually(lambda: terminal.said, "the end", until=lambda said: said.endswith("3 revived\r\n"))
    assert [count for count in ("0 done", "1 done", "2 done") if count not in terminal.said] == []
