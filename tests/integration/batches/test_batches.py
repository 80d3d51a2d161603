"""A batch runs each of its lines as a prediction, and writes each into one of its two files."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from api.batches import engine as engine_module
from api.batches.engine import Engine
from api.batches.work import MOST_WINDOW
from api.predictions.bodies import start_after_ms
from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import FileId, new_file_id, queue_name
from director.core.policy import Policy
from director.core.settings import ApiSettings
from director.core.states import Status
from director.store.accounts import ROLES, Accounts
from director.store.batches import Batches
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
    assert set(model.runs.values()) == {1}
    assert await engine.run_once() == 0


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
    assert not model.runs
    assert await engine.run_once() == 0


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"),
        (b"\n" * 1_000_100, "too_many_lines"),
        (b"".join(batches.line(f"l{n}", "x") + b"\n" for n in range(50_001)), "too_many_lines"),
        ((batches.line("same") + b"\n") * 50_000, "duplicate_custom_id"),
        (b'{"a":"' + b"x" * (150 << 20), "line_too_long"),
    ],
    ids=["empty", "blank", "too-many", "same-id", "one-long-line"],
)
async def test_hostile_file_is_refused_in_bounded_time(
    http: AsyncClient, model: EchoServer, engine: Engine, content: bytes, code: str
) -> None:
    made = await batches.create(http, await batches.upload(http, content))
    began = engine._services.clock.monotonic()
    await engine.run_once()
    took_s = engine._services.clock.monotonic() - began
    shown = await batches.get(http, made["id"])
    assert (shown["status"], shown["errors"]["data"][0]["code"]) == ("failed", code)
    assert len(shown["errors"]["data"]) <= 100
    print(f"{code}: {took_s:.1f} s")
    assert took_s < 30
    assert not model.runs


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


async def test_start_after_counts_from_the_create(http: AsyncClient, redis: Redis) -> None:
    made = await batches.create(
        http, await batches.upload(http, batches.line("a")), headers={"X-Start-After": "8h", "X-Cost": "2"}
    )
    stored = await redis.hget(keys.batch(FileId(made["id"].removeprefix("batch_"))), "headers")
    headers = json.loads(stored)
    created_ms = made["created_at"] * 1000
    assert 0 <= start_after_ms(headers["x-start-after"], created_ms) - created_ms - 8 * 3_600_000 < 2_000
    assert headers["x-cost"] == "2"


async def test_input_lives_longer_than_the_window_of_its_batch(http: AsyncClient, redis: Redis) -> None:
    answer = await http.post("/v1/files", files={"content": ("in.jsonl", batches.line("a"))})
    file_id = answer.json()["id"]
    key = keys.file(ACCOUNT, FileId(file_id))
    assert await redis.pttl(key) <= 86_400_000
    made = await batches.create(http, file_id)
    left_ms = await redis.pttl(key)
    assert left_ms / 1000 > made["expires_at"] - made["created_at"] + 3_500
    assert (await http.get(FILES)).json()["data"][0]["id"] == f"file-{file_id}"


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
