"""A batch runs each of its lines as a prediction, and writes each into one of its two files."""

import asyncio
import json
import operator
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from api.batches import engine as engine_module
from api.batches import work as work_module
from api.batches.engine import Engine
from api.batches.parts import Archive
from api.batches.work import MOST_WINDOW
from api.openai import files as openai_files
from api.predictions.bodies import start_after_ms
from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import FileId, new_file_id, queue_name
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.core.states import Status
from director.runtime.metrics import Registry
from director.store.accounts import ROLES, Accounts
from director.store.batches import CLOSED, Batches
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support import batches
from tests.support.api import PlayedDirector, api_client
from tests.support.batches import BATCHES, FILES, EchoServer
from tests.support.eventually import eventually
from tests.support.live_director import keeping, live_director
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer
from tests.support.sink import Answer, sink

SLOTS = 8
COG = "acme/cog"


@pytest.fixture
def settings(server: RedisServer, tmp_path: Path) -> ApiSettings:
    return ApiSettings(redis_url=server.url, files_dir=str(tmp_path), openai=True, cache_s=0)


@pytest.fixture
async def http(settings: ApiSettings, redis: Redis) -> AsyncIterator[AsyncClient]:
    async with api_client(settings, token=await Accounts(redis).create_token(ACCOUNT)) as client:
        yield client


@pytest.fixture
async def model(server: RedisServer, redis: Redis) -> AsyncIterator[EchoServer]:
    async with AsyncExitStack() as up:
        model = await up.enter_async_context(EchoServer().listening())
        await up.enter_async_context(keeping(server.url, lease_s=3))
        given: dict[str, Any] = {"runner": "openai", "concurrent_predictions": SLOTS, "lease_s": 3, "backoff_s": 0.1}
        director = await up.enter_async_context(live_director(server.url, model.url, **given))
        await eventually(lambda: all(each.can_run for each in director.servers.all), "the server is ready")
        yield model


@pytest.fixture
async def engine(settings: ApiSettings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(engine_module, "PARTS_NEEDED_MS", 0)
    async with batches.engine(settings) as engine:
        yield engine


async def test_each_line_is_in_one_of_two_files(http: AsyncClient, model: EchoServer, engine: Engine) -> None:
    names = [f"l{n}" for n in range(40)]
    content = batches.lines(names) + b"\n\r\n" + batches.line("b", "bad") + b"\r\n" + batches.line("last")
    made = await batches.create(http, await batches.upload(http, content), metadata={"why": "tests"})
    assert (made["status"], made["object"], made["metadata"]) == ("validating", "batch", {"why": "tests"})
    assert await engine.run_once() == 1
    shown = await batches.get(http, made["id"])
    assert shown["status"] == "completed"
    assert shown["request_counts"] == {"total": 42, "completed": 41, "failed": 1}
    output, errors = await batches.results(http, shown)
    assert sorted(each["custom_id"] for each in output) == sorted([*names, "last"])
    for each in output:
        response = each["response"]
        assert (each["error"], response["status_code"]) == (None, 200)
        assert response["body"]["choices"][0]["message"]["content"] == each["custom_id"]
        found = (await http.get(f"/v1/predictions/{response['request_id']}")).json()
        assert found["status"] == "succeeded"
    [error] = errors
    assert (error["custom_id"], error["response"]["status_code"]) == ("b", 400)
    assert error["response"]["body"]["error"]["code"] == "no"
    progress = shown["progress"]
    assert (progress["causes"], progress["ends_at"]) == ([{"code": "invalid_input", "lines": 1}], None)
    assert progress["lines_per_second"] > 0
    registry = Registry("keeper")
    engine.show(registry)
    page = (await registry.page(""))[0].decode()
    for step, count in (("filed", 42), ("succeeded", 41), ("failed", 1)):
        assert f'director_batch_lines_total{{step="{step}"}} {count}.0' in page
    assert "director_batch_slots_used 0.0" in page
    assert set(model.runs.values()) == {1}
    assert await engine.run_once() == 0


@pytest.mark.parametrize("door", ["openai", "replicate"])
async def test_lines_that_call_a_deployment_are_split(
    http: AsyncClient, server: RedisServer, model: EchoServer, engine: Engine, door: str
) -> None:
    newer, front = "c3" * 32, f"{ACCOUNT}/front"
    given: dict[str, Any] = {"runner": "openai", "concurrent_predictions": SLOTS, "version": newer}
    async with live_director(server.url, model.url, **given) as director:
        await eventually(lambda: all(each.can_run for each in director.servers.all), "the server is ready")
        made = {"name": "front", "model": MODEL, "version": VERSION, "hardware": "cpu"}
        made |= {"min_instances": 0, "max_instances": 1}  # type: ignore[dict-item]
        assert (await http.post("/v1/deployments", json=made)).status_code == 200
        asked = {"version": newer, "share": 50, "force": True}
        assert (await http.post(f"/v1/deployments/{front}/split", json=asked)).status_code == 200
        names = [f"l{n}" for n in range(40)]
        if door == "openai":
            content, endpoint = b"\n".join(batches.line(name, model=front) for name in names), batches.CHAT
        else:
            url, endpoint = f"/v1/deployments/{front}/predictions", "/v1/predictions"
            each = {"method": "POST", "url": url, "body": {"input": {"prompt": "hi"}}}
            content = b"\n".join(json.dumps({"custom_id": name, **each}).encode() for name in names)
        shown = await batches.create(http, await batches.upload(http, content), endpoint=endpoint)
        await engine.run_once()
        ended = [one for file in await batches.results(http, await batches.get(http, shown["id"])) for one in file]
    runs = [await http.get(f"/v1/predictions/{one['response']['request_id']}") for one in ended]
    versions = [one.json()["version"] for one in runs]
    assert (len(versions), set(versions)) == (40, {VERSION, newer})
    assert {one.json()["deployment"] for one in runs} == {front}


async def test_bad_lines_are_named_before_any_runs(http: AsyncClient, model: EchoServer, engine: Engine) -> None:
    bad: list[tuple[bytes, str]] = [
        (b"{", "invalid_json_line"),
        (b"\x00\x00", "invalid_json_line"),
        (b"[" * 100_000 + b"]" * 100_000, "invalid_json_line"),
        (b'{"custom_id":"a"}', "missing_required_parameter"),
        (batches.line("a", url="/v1/embeddings"), "invalid_url"),
        (batches.line("a").replace(b"POST", b"GET"), "invalid_method"),
        (batches.line(""), "invalid_custom_id"),
        (batches.line("one"), "duplicate_custom_id"),
        (batches.line("a", model="acme/none"), "model_not_found"),
        (batches.line("a1", "x" * (1 << 20)), "line_too_long"),
        (batches.line("a2", "x" * (3 << 20)), "line_too_long"),
        (batches.line("a3", stream=True), "invalid_request"),
        (b'{"custom_id":"a4","method":"POST","url":"/v1/chat/completions","body":7}', "invalid_request"),
    ]
    content = b"\n".join([batches.line("one"), b"", *(text for text, _ in bad), batches.line("two")])
    made = await batches.create(http, await batches.upload(http, content))
    await engine.run_once()
    shown = await batches.get(http, made["id"])
    assert (shown["status"], shown["output_file_id"], shown["error_file_id"]) == ("failed", None, None)
    found = [(each["line"], each["code"]) for each in shown["errors"]["data"]]
    assert found == [(place, code) for place, (_, code) in enumerate(bad, start=3)]
    assert [each["message"][:10] for each in shown["errors"]["data"] if each["code"] == "model_not_found"] == [
        "acme/none:"
    ]
    assert not model.runs
    assert await engine.run_once() == 0


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {  # made when they are used: some have 200 MB
    "blank": (lambda: b"\n" * 1_000_100, "too_many_lines"),
    "too many": (lambda: b"".join(batches.line(f"l{n}", "x") + b"\n" for n in range(50_001)), "too_many_lines"),
    "same id": (lambda: (batches.line("same") + b"\n") * 50_000, "duplicate_custom_id"),
    "bad lines": (lambda: b"{}\n" * 50_000, "missing_required_parameter"),
    "one long line": (lambda: b'{"a":"' + b"x" * ((200 << 20) - 100), "line_too_long"),
    "NUL": (lambda: (b"\0" * 2_000 + b"\n") * 50_000, "invalid_json_line"),
    "nested": (lambda: (b"[" * 2_000 + b"]" * 2_000 + b"\n") * 50_000, "invalid_json_line"),
    "late": (lambda: batches.lines(f"l{n}" for n in range(49_999)) + b"\0", "invalid_json_line"),
}


@pytest.mark.faults
@pytest.mark.parametrize(("content", "code"), [(bytes, "empty_file"), *HOSTILE.values()], ids=["empty", *HOSTILE])
async def test_hostile_file_is_refused_in_bounded_time(
    http: AsyncClient, model: EchoServer, engine: Engine, content: Callable[[], bytes], code: str
) -> None:
    made = await batches.create(http, await batches.upload(http, content()))
    began = engine._services.clock.monotonic()
    await engine.run_once()
    took_s = engine._services.clock.monotonic() - began
    shown = await batches.get(http, made["id"])
    assert (shown["status"], shown["errors"]["data"][0]["code"]) == ("failed", code)
    places = [each["line"] for each in shown["errors"]["data"] if each["line"] is not None]
    assert len(shown["errors"]["data"]) <= 100
    assert places == sorted(set(places))
    print(f"{code}: {took_s:.1f} s")
    assert took_s < 30
    assert not model.runs


@pytest.mark.faults
async def test_hostile_files_hold_up_no_other_account(
    http: AsyncClient, model: EchoServer, engine: Engine, settings: ApiSettings, redis: Redis
) -> None:
    names = [f"l{n}" for n in range(50)]
    files = [await batches.upload(http, content()) for content, _ in HOSTILE.values()]
    lags: list[float] = []

    async def note_lags() -> None:
        while True:
            began = anyio.current_time()
            await anyio.sleep(0.05)
            lags.append(anyio.current_time() - began - 0.05)

    token = await Accounts(redis).create_token("other")
    async with api_client(settings, token=token) as other, anyio.create_task_group() as tasks:
        file_id = await batches.upload(other, batches.lines(names))
        quiet = await batches.create(other, file_id)
        tasks.start_soon(note_lags)
        tasks.start_soon(engine.run)
        began = anyio.current_time()
        await batches.ended(other, quiet["id"], limit_s=40)
        alone_s, quiet_lag = anyio.current_time() - began, max(lags)
        lags.clear()
        began = anyio.current_time()
        hostile = [(await batches.create(http, each))["id"] for each in files]
        made = await batches.create(other, file_id)
        shown = await batches.ended(other, made["id"], limit_s=40)
        took_s = anyio.current_time() - began
        ended = [(await batches.ended(http, each))["status"] for each in hostile]
        whole_s = anyio.current_time() - began
        tasks.cancel_scope.cancel()
    assert shown["request_counts"] == {"total": 50, "completed": 50, "failed": 0}
    assert set(ended) == {"failed"}
    print(f"another account's 50 lines: {alone_s:.1f} s alone, {took_s:.1f} s beside {len(files)} hostile files")
    print(f"all: {whole_s:.1f} s; largest lag of the loop: {quiet_lag:.2f} s alone, {max(lags):.2f} s beside them")
    assert max(lags) < 2 + 3 * quiet_lag


async def count_live(redis: Redis) -> int:
    return int(await redis.zcard(keys.live(queue_name(MODEL, VERSION))))


@pytest.mark.parametrize("count", [300, MOST_WINDOW + 300])
async def test_cancel_ends_lines_and_counts_them(
    http: AsyncClient, model: EchoServer, engine: Engine, redis: Redis, count: int
) -> None:
    model.go.clear()
    made = await batches.create(http, await batches.upload(http, batches.lines(f"l{n}" for n in range(count))))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await eventually(lambda: model.runs.total(), "all slots are used", until=(SLOTS).__le__)
        filed = min(count, MOST_WINDOW)
        await eventually(partial(count_live, redis), "the window is full", until=filed.__eq__, limit_s=40)
        answer = await http.post(f"{BATCHES}/{made['id']}/cancel")
        assert answer.json()["status"] == "cancelling"
        shown = await batches.ended(http, made["id"], limit_s=20)
        tasks.cancel_scope.cancel()
    assert shown["status"] == "cancelled"
    assert shown["request_counts"] == {"total": count, "completed": 0, "failed": count}
    output, errors = await batches.results(http, shown)
    assert (len(output), {each["error"]["code"] for each in errors}) == (0, {"batch_cancelled"})
    assert len({each["custom_id"] for each in errors}) == count
    assert model.runs.total() <= 5 * SLOTS  # what was claimed while lines were still being filed
    assert (await http.post(f"{BATCHES}/{made['id']}/cancel")).json()["status"] == "cancelled"


@pytest.mark.faults
async def test_cancel_ends_a_batch_that_fills_its_window(
    http: AsyncClient, model: EchoServer, engine: Engine, redis: Redis
) -> None:
    model.go.clear()
    made = await batches.create(http, await batches.upload(http, batches.lines(f"l{n}" for n in range(3_000))))
    key = keys.batch(FileId(made["id"].removeprefix("batch_")))

    async def filed() -> int:
        return int(await redis.hget(key, "filed") or 0)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await eventually(filed, "lines are filed", until=MOST_WINDOW.__le__)
        await http.post(f"{BATCHES}/{made['id']}/cancel")
        shown = await batches.ended(http, made["id"], limit_s=30)
        tasks.cancel_scope.cancel()
    assert shown["request_counts"] == {"total": 3_000, "completed": 0, "failed": 3_000}


async def test_creates_at_once_with_one_key_make_one_batch(http: AsyncClient, redis: Redis) -> None:
    file_id = await batches.upload(http, batches.line("a"))
    body = {"input_file_id": file_id, "endpoint": batches.CHAT, "completion_window": "24h"}
    headers = {"Idempotency-Key": "twice"}
    answers = await asyncio.gather(*(http.post(BATCHES, json=body, headers=headers) for _ in range(8)))
    [made] = {answer.json()["id"] for answer in answers}
    assert [one["id"] for one in (await http.get(BATCHES)).json()["data"]] == [made]
    changed = await http.post(BATCHES, json=body | {"metadata": {"a": "b"}}, headers=headers)
    assert (changed.status_code, changed.json()["error"]["code"]) == (422, "idempotency_mismatch")
    await http.delete(f"{FILES}/{file_id}")
    assert (await http.post(BATCHES, json=body, headers=headers)).json()["id"] == made


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Cost": "abc"}, 400),
        ({"X-Priority": "hihg"}, 400),
        ({"X-Priority": "idle"}, 403),
        ({"X-Start-By": "0"}, 400),
        ({"Cancel-After": "1s"}, 400),
        ({"X-Affinity-Key": ""}, 400),
        ({"X-Start-After": "24h"}, 400),
        ({"X-Start-After": "2h", "Cancel-After": "1h"}, 400),
    ],
)
async def test_header_that_each_line_would_be_refused_for_is_refused(
    http: AsyncClient, headers: dict[str, str], status: int
) -> None:
    body = {"input_file_id": new_file_id(0), "endpoint": batches.CHAT, "completion_window": "24h"}
    answer = await http.post(BATCHES, json=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert next(iter(headers)) in answer.text or status == 403


@pytest.mark.faults
async def test_lines_start_only_in_the_hours_of_their_batch(
    http: AsyncClient, model: EchoServer, settings: ApiSettings, redis: Redis
) -> None:
    clock, left_ms = batches.ShiftedClock(), 8_000
    clock.ahead_ms = 60_000 - left_ms - clock.now_ms() % 60_000
    closes, again = (datetime.fromtimestamp((clock.now_ms() + left_ms) / 1000 + more, UTC) for more in (0, 60))
    hour = timedelta(hours=1)
    hours = f"{closes - hour:%H:%M}-{closes:%H:%M}, {again:%H:%M}-{again + hour:%H:%M} UTC"
    names = [f"l{n}" for n in range(3 * SLOTS)]
    model.go.clear()
    made = await batches.create(
        http, await batches.upload(http, batches.lines(names)), headers={"X-Open-Hours": hours, "X-Start-By": "900"}
    )
    key = keys.batch(FileId(made["id"].removeprefix("batch_")))
    async with batches.engine(settings, clock=clock) as engine, anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await eventually(partial(count_live, redis), "all are filed", until=len(names).__eq__)
        await eventually(partial(count_live, redis), "those that wait have ended", until=SLOTS.__eq__, limit_s=20)
        assert model.runs.total() == SLOTS
        model.go.set()
        await eventually(partial(redis.hget, key, "opens"), "it waits", until=lambda opens: opens not in (None, b"0"))
        assert await redis.hmget(key, "status", "completed", "failed") == [b"in_progress", str(SLOTS).encode(), b"0"]
        assert int(await redis.hget(key, "opens")) == again.timestamp() * 1000
        assert model.runs.total() == SLOTS
        clock.ahead_ms += 60_000
        shown = await batches.ended(http, made["id"])
        tasks.cancel_scope.cancel()
    assert (shown["status"], shown["progress"]["open_hours"]) == ("completed", hours)
    output, errors = await batches.results(http, shown)
    assert (sorted(each["custom_id"] for each in output), errors) == (sorted(names), [])
    assert set(model.runs.values()) == {1}


@pytest.mark.faults
async def test_line_that_started_in_none_of_the_hours_is_filed_in_the_next(
    http: AsyncClient, settings: ApiSettings, server: RedisServer, redis: Redis, catalog: Catalog, scripts: Scripts
) -> None:
    queue = await catalog.register(COG, VERSION, schema=OPEN_SCHEMA, server="cog", policy=Policy())
    names, clock, left_ms = ["a", "b"], batches.ShiftedClock(), 3_000
    clock.ahead_ms = 60_000 - left_ms - clock.now_ms() % 60_000
    closes = datetime.fromtimestamp((clock.now_ms() + left_ms) / 1000, UTC)
    begins = [closes + timedelta(minutes=minutes) for minutes in (-1, 1, 3)]
    hours = ", ".join(f"{each:%H:%M}-{each + timedelta(minutes=1):%H:%M}" for each in begins) + " UTC"
    content = b"\n".join(batches.call(name, COG) for name in names)
    made = await batches.create(
        http, await batches.upload(http, content), endpoint="/v1/predictions", headers={"X-Open-Hours": hours}
    )
    key = keys.batch(FileId(made["id"].removeprefix("batch_")))
    played = PlayedDirector(scripts, queue)
    async with (
        keeping(server.url, lease_s=3),
        batches.engine(settings, clock=clock) as engine,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(engine.run)
        for begin, next_ms in zip(begins[1:], (120_000 - left_ms, 90_000), strict=True):  # the third has longer to go
            live = partial(redis.zcard, keys.live(queue))
            await eventually(live, "the lines are filed", until=len(names).__eq__)
            await eventually(live, "none has begun", until=(0).__eq__, limit_s=20)
            opens = str(round(begin.timestamp() // 60 * 60_000)).encode()
            await eventually(
                partial(redis.hget, key, "opens"), "it waits for its hours", until=partial(operator.eq, opens)
            )
            clock.ahead_ms += next_ms
        tasks.start_soon(partial(played.run, lambda _: b"1"))
        shown = await batches.ended(http, made["id"])
        tasks.cancel_scope.cancel()
    output, errors = await batches.results(http, shown)
    assert (sorted(each["custom_id"] for each in output), errors) == (names, [])


@pytest.mark.faults
@pytest.mark.parametrize("is_canceled", [False, True])
async def test_lines_of_hours_that_a_kill_left_unnoted_are_found(
    http: AsyncClient,
    model: EchoServer,
    engine: Engine,
    settings: ApiSettings,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    is_canceled: bool,
) -> None:
    async def lose(*_: object) -> None: ...

    monkeypatch.setattr(Archive, "note_line", lose)
    names = [f"l{n}" for n in range(20)]
    model.go.clear()
    now = datetime.now(UTC)
    hours = f"{now - timedelta(hours=1):%H:%M}-{now + timedelta(hours=1):%H:%M} UTC"
    made = await batches.create(http, await batches.upload(http, batches.lines(names)), headers={"X-Open-Hours": hours})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await eventually(partial(count_live, redis), "all lines are filed", until=len(names).__eq__)
        await eventually(lambda: model.runs.total(), "all slots are used", until=(SLOTS).__eq__)
        tasks.cancel_scope.cancel()
    if is_canceled:
        await http.post(f"{BATCHES}/{made['id']}/cancel")
    else:
        model.go.set()
    clock = batches.ShiftedClock()
    clock.ahead_ms = 2_000  # so the hours close sooner than at the first try
    async with batches.engine(settings, clock=clock) as other:
        await eventually(other.run_once, "it was taken", until=(1).__eq__, limit_s=30)
    shown = await batches.get(http, made["id"])
    counts = (0, len(names)) if is_canceled else (len(names), 0)
    assert (shown["request_counts"]["completed"], shown["request_counts"]["failed"]) == counts
    assert await count_live(redis) == 0
    assert set(model.runs.values()) == {1}
    assert model.canceled == (SLOTS if is_canceled else 0)


async def test_batch_out_of_its_hours_is_canceled_in_seconds(
    http: AsyncClient, model: EchoServer, engine: Engine, redis: Redis
) -> None:
    begins = datetime.now(UTC) + timedelta(hours=2)
    hours = f"{begins:%H:%M}-{begins + timedelta(hours=1):%H:%M} UTC"
    content = batches.lines(f"l{n}" for n in range(30))
    made = await batches.create(http, await batches.upload(http, content), headers={"X-Open-Hours": hours})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)

        async def opens_at() -> int | None:
            shown = await batches.get(http, made["id"])
            return shown["progress"]["opens_at"] if shown["status"] == "in_progress" else None

        await eventually(opens_at, "it waits", until=partial(operator.eq, begins.timestamp() // 60 * 60))
        await eventually(lambda: not engine._running, "no keeper has it")
        assert (await http.post(f"{BATCHES}/{made['id']}/cancel")).json()["status"] == "cancelling"
        shown = await batches.ended(http, made["id"], limit_s=10)
        tasks.cancel_scope.cancel()
    assert shown["request_counts"] == {"total": 30, "completed": 0, "failed": 30}
    assert shown["progress"]["causes"] == [{"code": "batch_cancelled", "lines": 30}]
    assert not model.runs


async def test_batch_whose_time_has_not_come_takes_no_slot_of_a_keeper(
    http: AsyncClient, model: EchoServer, engine: Engine, redis: Redis
) -> None:
    made = await batches.create(http, await batches.upload(http, batches.line("a")), headers={"X-Start-After": "3h"})
    assert await engine.run_once() == 1
    assert await engine.run_once() == 0
    [turn] = [at for _, at in await redis.zrange(keys.batches(), 0, -1, withscores=True)]
    created_ms = made["created_at"] * 1000
    assert 0 <= turn - CLOSED - created_ms - 3 * 3_600_000 < 2_000


@pytest.mark.parametrize(
    ("hours", "more"),
    [
        ("night", {}),
        ("22:00-06:00", {}),
        ("22:00-06:00 Europe/Atlantis", {}),
        ("idle", {}),  # the token lacks the lane
        ("idle", {"X-Priority": "low"}),
        (f"{datetime.now(UTC) + timedelta(days=3):%a} 10:00-11:00 UTC", {}),
    ],
)
async def test_hours_that_cannot_be_kept_are_refused(http: AsyncClient, hours: str, more: dict[str, str]) -> None:
    body = {"input_file_id": new_file_id(0), "endpoint": batches.CHAT, "completion_window": "24h"}
    answer = await http.post(BATCHES, json=body, headers={"X-Open-Hours": hours, **more})
    assert answer.status_code in (400, 403), answer.text
    assert "Open-Hours" in answer.text or "idle" in answer.text


async def test_start_after_counts_from_the_create(http: AsyncClient, redis: Redis) -> None:
    made = await batches.create(
        http, await batches.upload(http, batches.line("a")), headers={"X-Start-After": "8h", "X-Cost": "2"}
    )
    stored = await redis.hget(keys.batch(FileId(made["id"].removeprefix("batch_"))), "headers")
    headers = json.loads(stored)
    created_ms = made["created_at"] * 1000
    assert 0 <= start_after_ms(headers["x-start-after"], created_ms) - created_ms - 8 * 3_600_000 < 2_000
    assert headers["x-cost"] == "2"


async def test_output_lives_as_long_as_its_caller_asks(
    http: AsyncClient, model: EchoServer, engine: Engine, redis: Redis
) -> None:
    for bad in ({"anchor": "created_at", "seconds": 60}, {"anchor": "x", "seconds": 3600}, {"seconds": 3600}, {"a": 1}):
        body = {"input_file_id": new_file_id(0), "endpoint": batches.CHAT, "completion_window": "24h"}
        answer = await http.post(BATCHES, json={**body, "output_expires_after": bad})
        assert (answer.status_code, "output_expires_after" in answer.text) == (400, True)
    made = await batches.create(
        http,
        await batches.upload(http, batches.lines(["a", "bad"])),
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    await engine.run_once()
    shown = await batches.get(http, made["id"])
    for file_id in (shown["output_file_id"], shown["error_file_id"]):
        file = (await http.get(f"{FILES}/{file_id}")).json()
        assert file["expires_at"] - file["created_at"] == 3600
        assert 0 < await redis.pttl(keys.file(ACCOUNT, FileId(file_id.removeprefix("file-")))) <= 3_600_000


async def test_anchor_of_an_upload_is_checked(http: AsyncClient) -> None:
    form = {"purpose": "batch", "expires_after[anchor]": "last_active_at", "expires_after[seconds]": "3600"}
    answer = await http.post(FILES, data=form, files={"file": ("in.jsonl", b"{}")})
    assert (answer.status_code, "expires_after[anchor]" in answer.text) == (400, True)
    answer = await http.post(FILES, data=form | {"expires_after[anchor]": "created_at"}, files={"file": ("x", b"{}")})
    assert answer.json()["expires_at"] - answer.json()["created_at"] == 3600


async def test_input_lives_longer_than_the_window_of_its_batch(http: AsyncClient, redis: Redis) -> None:
    answer = await http.post("/v1/files", files={"content": ("in.jsonl", batches.line("a"))})
    file_id = answer.json()["id"]
    key = keys.file(ACCOUNT, FileId(file_id))
    assert await redis.pttl(key) <= 86_400_000
    made = await batches.create(http, file_id)
    left_ms = await redis.pttl(key)
    assert left_ms / 1000 > made["expires_at"] - made["created_at"] + 3_500
    assert (await http.get(FILES)).json()["data"][0]["id"] == f"file-{file_id}"


@pytest.mark.faults
async def test_window_ends_with_what_is_done(
    http: AsyncClient, model: EchoServer, engine: Engine, redis: Redis
) -> None:
    content = b"".join(batches.line(f"l{n}", f"l{n}") + b"\n" for n in range(30))
    made = await batches.create(http, await batches.upload(http, content))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await eventually(lambda: model.runs.total(), "some ran", until=(10).__le__)
        model.go.clear()
        await redis.hset(keys.batch(FileId(made["id"].removeprefix("batch_"))), "expires", 1)
        tasks.cancel_scope.cancel()
    async with batches.engine(engine._services.settings) as other:
        await eventually(other.run_once, "it was taken", until=(1).__eq__, limit_s=30)
    shown = await batches.get(http, made["id"])
    assert shown["status"] == "expired"
    output, errors = await batches.results(http, shown)
    assert len(output) + len(errors) == 30
    assert {each["error"]["code"] for each in errors} == {"batch_expired"}
    left = await redis.hkeys(keys.batch(FileId(made["id"].removeprefix("batch_"))))
    assert not [name for name in left if name.startswith(b"part:")]
    counts = shown["request_counts"]
    assert (counts["completed"], counts["failed"]) == (len(output), len(errors))
    assert {each["custom_id"] for each in [*output, *errors]} == {f"l{n}" for n in range(30)}


async def test_lines_of_other_models_are_predictions(
    http: AsyncClient, engine: Engine, catalog: Catalog, scripts: Scripts
) -> None:
    queue = await catalog.register(COG, VERSION, schema=OPEN_SCHEMA, server="cog", policy=Policy())
    bodies = {
        "a": (f"/v1/models/{COG}/predictions", {"input": {"text": "a"}}),
        "b": ("/v1/predictions", {"version": COG, "input": {"text": "b"}}),
        "c": ("/v1/predictions", {"version": COG, "input": {"text": "c"}}),
    }
    content = b"\n".join(
        json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body}).encode()
        for name, (url, body) in bodies.items()
    )
    made = await batches.create(http, await batches.upload(http, content), endpoint="/v1/predictions")
    played = PlayedDirector(scripts, queue)

    async def play() -> None:
        for _ in bodies:
            claim = await played.claim()
            assert claim.record.lane == "low"
            await played.begin(claim)
            is_bad = b'"c"' in bytes(claim.input)
            await played.finish(claim, Status.FAILED if is_bad else Status.SUCCEEDED, output=b"1", error="x" * is_bad)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(play)
        await engine.run_once()
    output, errors = await batches.results(http, await batches.get(http, made["id"]))
    assert {each["custom_id"]: each["response"]["status_code"] for each in output} == {"a": 201, "b": 201}
    assert [each["response"]["body"]["output"] for each in output] == [1, 1]
    assert [(each["custom_id"], each["response"]["body"]["status"]) for each in errors] == [("c", "failed")]


async def test_line_waits_at_a_limit_of_its_account(
    http: AsyncClient, model: EchoServer, engine: Engine, redis: Redis
) -> None:
    await Accounts(redis).set_limits(ACCOUNT, {"max_queued": "2"})
    names = [f"l{n}" for n in range(12)]
    made = await batches.create(http, await batches.upload(http, batches.lines(names)))
    await engine.run_once()
    shown = await batches.get(http, made["id"])
    assert shown["request_counts"] == {"total": 12, "completed": 12, "failed": 0}
    assert set(model.runs.values()) == {1}


@pytest.mark.faults
async def test_lines_leave_half_of_what_their_account_may_queue_for_calls(
    http: AsyncClient, model: EchoServer, engine: Engine, redis: Redis
) -> None:
    model.go.clear()
    await Accounts(redis).set_limits(ACCOUNT, {"max_queued": "6"})
    made = await batches.create(http, await batches.upload(http, batches.lines(f"l{n}" for n in range(3 * SLOTS))))

    async def why() -> Any:
        return (await batches.get(http, made["id"]))["progress"]["waits"]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await eventually(lambda: count_live(redis), "lines run and wait", until=(SLOTS + 3).__eq__)
        await eventually(why, "it says why", until=bool, limit_s=20)
        asked = {"input": {"messages": [{"role": "user", "content": "call"}]}}
        calls = [(await http.post(f"/v1/models/{MODEL}/predictions", json=asked)).status_code for _ in range(4)]
        model.go.set()
        shown = await batches.ended(http, made["id"])
        tasks.cancel_scope.cancel()
    assert (calls, shown["request_counts"]["completed"]) == ([201, 201, 201, 429], 3 * SLOTS)


async def test_line_that_was_refused_or_left_is_not_waited_for(
    http: AsyncClient, model: EchoServer, engine: Engine, redis: Redis
) -> None:
    expected, most = engine._services.waiters._expected, 2
    await Accounts(redis).set_limits(ACCOUNT, {"max_queued": str(most)})
    model.go.clear()
    made = await batches.create(http, await batches.upload(http, batches.lines(f"l{n}" for n in range(40))))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await eventually(lambda: model.runs.total(), "all slots are used", until=(SLOTS).__eq__)
        waits = partial(redis.hget, keys.batch(FileId(made["id"].removeprefix("batch_"))), "waits")
        await eventually(waits, "lines were refused", until=bool, limit_s=20)
        filed = range(SLOTS, SLOTS + most + 1)
        await eventually(lambda: len(expected), "only filed lines are waited for", until=filed.__contains__)
        tasks.cancel_scope.cancel()
    assert not expected


async def test_batch_of_which_no_line_is_accepted_gives_its_slot_back(
    http: AsyncClient, model: EchoServer, engine: Engine, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_module, "STUCK_S", 0.5)
    made = await batches.create(http, await batches.upload(http, batches.lines(["a", "b"])))
    key = keys.batch(FileId(made["id"].removeprefix("batch_")))
    await Accounts(redis).set_limits(ACCOUNT, {"max_files_bytes": "1"})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await eventually(partial(redis.hget, key, "opens"), "it is parked", until=lambda at: at not in (None, b"0"))
        await eventually(lambda: engine._capacity.accounts.total(), "its slot is free", until=(0).__eq__)
        assert (await batches.get(http, made["id"]))["status"] == "in_progress"
        await Accounts(redis).set_limits(ACCOUNT, {"max_files_bytes": str(1 << 30)})
        await redis.zadd(keys.batches(), {f"{ACCOUNT} {made['id'].removeprefix('batch_')}": CLOSED}, xx=True)
        shown = await batches.ended(http, made["id"])
        tasks.cancel_scope.cancel()
    assert (shown["status"], shown["request_counts"]["completed"]) == ("completed", 2)


async def test_batch_says_why_its_lines_wait(
    http: AsyncClient, model: EchoServer, engine: Engine, redis: Redis
) -> None:
    made = await batches.create(http, await batches.upload(http, batches.lines(["a", "b"])))
    await Accounts(redis).set_limits(ACCOUNT, {"max_files_bytes": "1"})

    async def why() -> Any:
        waits = (await batches.get(http, made["id"]))["progress"]["waits"]
        return waits and waits["code"]

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await eventually(why, "it says why", until=partial(operator.eq, "storage_full"), limit_s=20)
        await Accounts(redis).set_limits(ACCOUNT, {"max_files_bytes": str(1 << 30)})
        shown = await batches.ended(http, made["id"], limit_s=60)
        tasks.cancel_scope.cancel()
    assert (shown["request_counts"]["completed"], shown["progress"]["waits"]) == (2, None)


async def test_batch_out_of_its_hours_names_no_other_cause_to_wait(
    http: AsyncClient, model: EchoServer, settings: ApiSettings, redis: Redis
) -> None:
    now, hour, clock = datetime.now(UTC), timedelta(hours=1), batches.ShiftedClock()
    headers = {"X-Open-Hours": f"{now - hour:%H:%M}-{now + hour:%H:%M} UTC"}
    made = await batches.create(http, await batches.upload(http, batches.lines(["a", "b"])), headers=headers)
    await Accounts(redis).set_limits(ACCOUNT, {"max_files_bytes": "1"})
    key = keys.batch(FileId(made["id"].removeprefix("batch_")))
    async with batches.engine(settings, clock=clock) as engine, anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await eventually(partial(redis.hget, key, "waits"), "it says why", until=bool, limit_s=20)
        clock.ahead_ms += 2 * 3_600_000
        await eventually(partial(redis.hget, key, "opens"), "it waits", until=lambda at: at not in (None, b"0"))
        tasks.cancel_scope.cancel()
    assert (await batches.get(http, made["id"]))["progress"]["waits"] is None


@pytest.mark.faults
async def test_lines_that_ran_are_found_without_their_token_and_key(
    http: AsyncClient, model: EchoServer, engine: Engine, settings: ApiSettings, redis: Redis
) -> None:
    names = [f"l{n}" for n in range(20)]
    model.go.clear()
    made = await batches.create(http, await batches.upload(http, batches.lines(names)))
    noted = keys.batch_lines(FileId(made["id"].removeprefix("batch_")))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        await eventually(lambda: redis.hlen(noted), "all lines are filed", until=len(names).__eq__)
        tasks.cancel_scope.cancel()
    tokens = Accounts(redis).tokens
    for token in await tokens.of(ACCOUNT):
        await tokens.remove(token)
    assert await redis.delete(*await redis.keys("*:idem:*")) == len(names)
    model.go.set()
    await eventually(partial(count_live, redis), "all have run", until=(0).__eq__)
    token = await Accounts(redis).create_token(ACCOUNT)
    async with batches.engine(settings) as other, api_client(settings, token=token) as http:
        await eventually(other.run_once, "it was taken", until=(1).__eq__, limit_s=30)
        output, errors = await batches.results(http, await batches.get(http, made["id"]))
    assert (sorted(each["custom_id"] for each in output), errors) == (sorted(names), [])
    assert set(model.runs.values()) == {1}
    assert not await redis.exists(noted)


@pytest.mark.faults
async def test_two_engines_write_each_line_once(
    http: AsyncClient, model: EchoServer, engine: Engine, settings: ApiSettings
) -> None:
    names = [f"l{n}" for n in range(200)]
    made = [await batches.create(http, await batches.upload(http, batches.lines(names))) for _ in range(3)]
    async with batches.engine(settings) as other, anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        tasks.start_soon(other.run)
        for each in made:
            output, errors = await batches.results(http, await batches.ended(http, each["id"]))
            assert (sorted(one["custom_id"] for one in output), errors) == (sorted(names), [])
        tasks.cancel_scope.cancel()
    assert set(model.runs.values()) == {3}


async def test_batches_are_their_accounts_own(http: AsyncClient, settings: ApiSettings, redis: Redis) -> None:
    file_id = await batches.upload(http, batches.line("a"))
    made = [await batches.create(http, file_id, headers={"Idempotency-Key": key}) for key in ("1", "2", "1")]
    assert made[0]["id"] == made[2]["id"]
    page = (await http.get(BATCHES, params={"limit": 1})).json()
    assert (page["data"][0]["id"], page["has_more"]) == (made[1]["id"], True)
    page = (await http.get(BATCHES, params={"after": page["last_id"]})).json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == ([made[0]["id"]], False)
    async with api_client(settings, token=await Accounts(redis).create_token("other")) as other:
        assert (await other.get(BATCHES)).json()["data"] == []
        for answer in (
            await other.get(f"{BATCHES}/{made[0]['id']}"),
            await other.post(f"{BATCHES}/{made[0]['id']}/cancel"),
            await other.get(f"{FILES}/{file_id}"),
            await other.get(f"{FILES}/{file_id}/content"),
            await other.delete(f"{FILES}/{file_id}"),
            await other.post(
                BATCHES,
                json={"input_file_id": file_id, "endpoint": batches.CHAT, "completion_window": "24h"},
            ),
        ):
            assert answer.status_code == 404
    refused = await http.post(BATCHES, json={"input_file_id": file_id, "endpoint": "/v1/x", "completion_window": "1h"})
    assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert (await http.delete(f"{FILES}/{file_id}")).json() == {"id": file_id, "object": "file", "deleted": True}
    assert (await http.get(FILES)).json()["data"] == []


async def test_operators_see_all_batches_and_cancel_any(
    http: AsyncClient, model: EchoServer, engine: Engine, settings: ApiSettings, redis: Redis
) -> None:
    content = batches.lines(["a", "bad"])
    made = [(await batches.create(http, await batches.upload(http, content)))["id"]]
    await engine.run_once()
    made += [(await batches.create(http, await batches.upload(http, content)))["id"] for _ in range(2)]
    everything = "/v1/admin/batches"
    async with api_client(settings, token=await Accounts(redis).create_token("ops", scopes=ROLES["operator"])) as ops:
        answer = (await ops.get(everything)).json()
        assert [(each["id"], each["account"]) for each in answer["results"]] == [(each, ACCOUNT) for each in made[::-1]]
        assert [
            each["id"] for each in (await ops.get(everything, params={"account": ACCOUNT})).json()["results"]
        ] == made[::-1]
        assert (await ops.get(everything, params={"account": "ops"})).json()["results"] == []
        assert (await ops.get(f"{everything}/{made[0]}")).json()["status"] == "completed"
        for kind, name in (("output", "a"), ("errors", "bad")):
            file = await ops.get(f"{everything}/{made[0]}/{kind}")
            assert (json.loads(file.text)["custom_id"], file.headers["content-disposition"][:10]) == (
                name,
                "attachment",
            )
        assert (await ops.get(f"{everything}/{made[1]}/output")).status_code == 404
        assert (await ops.post(f"{everything}/{made[1]}/cancel")).json()["status"] == "cancelling"
        assert (await ops.post(f"{everything}/{made[0]}/cancel")).json()["status"] == "completed"
        changes = (await ops.get("/v1/admin/audit")).json()["changes"]
        canceled = [each for each in changes if each["kind"] == "batch_canceled"]
        assert [each["account"] for each in canceled] in ([ACCOUNT] * 2, [ACCOUNT])
    assert (await http.get(everything)).status_code == 403
    assert await Batches(redis, None).erase(ACCOUNT) == 3  # type: ignore[arg-type]
    assert not await redis.zcard(keys.all_batches())


async def test_batch_that_is_erased_while_it_stores_a_part_leaves_nothing(
    http: AsyncClient, model: EchoServer, engine: Engine, redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    input_id = await batches.upload(http, batches.lines(["a", "b"]))
    await batches.create(http, input_id)
    store = engine._services.files
    assert store is not None
    put, stores, may_store = store.put, anyio.Event(), anyio.Event()

    async def put_late(name: Any, *args: Any, **given: Any) -> Any:
        await put(name, *args, **given)
        stores.set()
        await may_store.wait()

    monkeypatch.setattr(store, "put", put_late)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        with anyio.fail_after(30):
            await stores.wait()
        assert await Batches(redis, None).erase(ACCOUNT) == 1  # type: ignore[arg-type]
        await eventually(lambda: not engine._running, "no keeper has it", limit_s=20)
        tasks.cancel_scope.cancel()
    stored = [each.name for each in (tmp_path / "uploads").rglob("*.*") if each.is_file()]
    assert [name.partition(".")[0] for name in stored] == [input_id.removeprefix("file-")]
    recorded = [name async for name in redis.scan_iter(match=keys.file(ACCOUNT, FileId("*")))]
    assert len(recorded) == 1


async def test_files_of_a_rare_purpose_are_looked_for_within_a_bound(
    http: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_files, "AT_ONCE", 2)
    monkeypatch.setattr(openai_files, "MOST_STEPS", 2)
    oldest = await batches.upload(http, b"{}")
    for _ in range(3):
        await http.post("/v1/files", files={"content": ("in.txt", b"x")})
    found = (await http.get(FILES, params={"purpose": "batch"})).json()
    assert [each["id"] for each in found["data"]] == [oldest]
    await http.post("/v1/files", files={"content": ("in.txt", b"x")})
    answer = await http.get(FILES, params={"purpose": "batch"})
    assert (answer.status_code, "list without it" in answer.text) == (400, True)


async def test_end_is_a_signed_webhook_with_retries(http: AsyncClient, model: EchoServer, engine: Engine) -> None:
    async with sink() as hook:
        hook.answers.append(Answer(status=500))
        made = await batches.create(http, await batches.upload(http, batches.line("a")), webhook=hook.url)
        await engine.run_once()
        output = (await batches.get(http, made["id"]))["output_file_id"]
        assert (await http.delete(f"{FILES}/{output}")).status_code == 200
        await eventually(engine.run_once, "it was delivered", until=lambda _: len(hook.received) >= 2, limit_s=20)
        assert await engine.run_once() == 0
        assert (await http.get(f"{FILES}/{output}")).status_code == 404
    first, second = hook.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == f"evt_{made['id'].removeprefix('batch_')}"
    assert second.headers["webhook-signature"].startswith("v1,")
    said = json.loads(second.body)
    assert (said["type"], said["data"]) == ("batch.completed", {"id": made["id"]})
