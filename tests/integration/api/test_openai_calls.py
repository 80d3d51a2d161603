"""Test calls of OpenAI's API over a real connection, with a director that does what the test says."""

import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from httpx import AsyncClient
from msgspec.structs import replace
from redis.asyncio import Redis

from api.app import create_app
from api.openai import call_streams, chunks
from api.services import stream_readers
from director.broker import keys
from director.broker.replies import Accepted
from director.broker.scripts import Scripts
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, QueueName
from director.core.policy import Policy
from director.core.schema import Claim, NewPrediction, Record
from director.core.settings import ApiSettings
from director.core.states import Status
from director.store.accounts import Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.integration.api.conftest import listeners
from tests.support.api import LiveApi, PlayedDirector, api_client, live_api
from tests.support.eventually import eventually
from tests.support.garbage import alive, uncollected
from tests.support.queue_driver import MODEL, VERSION
from tests.support.servers import RedisServer

CHAT = "/openai/v1/chat/completions"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
CHUNKS = [b'{"id":"c","choices":[{"index":0,"delta":{"content":"%d"}}], "odd" : 1.50}' % n for n in range(4)]
ANSWER = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"tool_calls",'
    b'"message":{"role":"assistant","content":"hi","tool_calls":[{"id":"t","type":"function"}]}}],'
    b'"usage":{"total_tokens":1.0}}'
)
ENV = {"DIRECTOR_CACHE_S": "0", "DIRECTOR_OPENAI": "true", "DIRECTOR_CANCEL_WAIT_S": "0"}
DONE = b"[DONE]"
ROLES = [b'{"id":"%d","choices":[{"index":0,"delta":{"role":"assistant"}}]}' % n for n in range(4)]


@pytest.fixture
async def queue(catalog: Catalog) -> QueueName:
    return await catalog.register(MODEL, VERSION, schema=OPEN_SCHEMA, server="openai", policy=Policy())


@pytest.fixture(scope="module")
async def live(server: RedisServer) -> AsyncIterator[LiveApi]:
    async with live_api(server.url, env=ENV) as live:
        yield live


@pytest.fixture
async def http(token: str) -> AsyncIterator[AsyncClient]:
    headers = {"Authorization": f"Bearer {token}"}
    async with AsyncClient(timeout=30, trust_env=False, headers=headers) as client:
        yield client


class Call:
    """A call whose answer is read as it comes."""

    def __init__(
        self, http: AsyncClient, live: LiveApi, body: Mapping[str, Any] | bytes = BODY, path: str = CHAT, **headers: str
    ) -> None:
        self._http = http
        self._url = live.url + path
        self._body = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.status = 0
        self.headers = httpx.Headers()
        self.raw = b""
        self.is_over = False

    async def read(self) -> None:
        async with self._http.stream("POST", self._url, content=self._body, headers=self._headers) as answer:
            self.status, self.headers = answer.status_code, answer.headers
            async for piece in answer.aiter_raw():
                self.raw += piece
        self.is_over = True

    @property
    def blocks(self) -> list[bytes]:
        assert self.raw == b"" or self.raw.endswith(b"\n\n")
        return self.raw.split(b"\n\n")[:-1]

    @property
    def data(self) -> list[bytes]:
        return [block.removeprefix(b"data: ") for block in self.blocks if block.startswith(b"data: ")]

    @property
    def comments(self) -> list[str]:
        return [block.decode()[2:] for block in self.blocks if block.startswith(b": ")]

    @property
    def error(self) -> dict[str, Any]:
        last = self.raw if not self.raw.startswith((b":", b"data")) else self.data[-1]
        found: dict[str, Any] = json.loads(last)["error"]
        return found

    async def has(self, count: int) -> None:
        await eventually(lambda: self.data, f"{count} events came", until=lambda data: len(data) >= count)


class Played:
    """Plays a run: its events go on from the last one."""

    def __init__(self, director: PlayedDirector, scripts: Scripts) -> None:
        self._director = director
        self._scripts = scripts
        self.claim: Claim
        self._seq = 0

    async def begin(self) -> PredictionId:
        self.claim = await self._director.claim()
        self._seq = self.claim.record.seq
        await self.show()
        return self.claim.id

    async def show(self, *chunks: bytes) -> None:
        events = [("role" if b'"role"' in chunk else "output", chunk) for chunk in chunks]
        advanced = await self._scripts.advance(
            self.claim.id, token=self.claim.token, seq=self._seq, ran_ms=1, events=events
        )
        self._seq = advanced.seq

    async def end(self, status: Status = Status.SUCCEEDED, **given: Any) -> None:
        await self._director.finish(self.claim, status, seq=self._seq, **given)

    async def lose(self) -> None:
        await self._scripts.release(
            self.claim.id, token=self.claim.token, spent=True, began=True, error="it died", code="server_lost"
        )


@pytest.fixture
def run(director: PlayedDirector, scripts: Scripts) -> Played:
    return Played(director, scripts)


@pytest.fixture
def calls(http: AsyncClient, live: LiveApi, queue: QueueName) -> "Calls":
    return Calls(http, live)


class Calls:
    def __init__(self, http: AsyncClient, live: LiveApi) -> None:
        self.http = http
        self.live = live

    def __call__(self, body: Mapping[str, Any] | bytes = BODY, path: str = CHAT, **headers: str) -> Call:
        return Call(self.http, self.live, body, path, **headers)

    async def post(self, body: Mapping[str, Any] | bytes = BODY, path: str = CHAT, **headers: str) -> Call:
        call = self(body, path, **headers)
        await call.read()
        return call


async def record_of(scripts: Scripts, prediction_id: str) -> Record:
    stored = await scripts.get(PredictionId(prediction_id))
    assert stored is not None
    return stored.record


async def ends_as(scripts: Scripts, prediction_id: str, status: Status) -> None:
    async def look() -> Status:
        return (await record_of(scripts, prediction_id)).status

    await eventually(look, f"it is {status}", until=status.__eq__)


async def is_asked_to_stop(scripts: Scripts, prediction_id: str) -> None:
    async def look() -> str:
        return (await record_of(scripts, prediction_id)).cancel

    await eventually(look, "it is asked to stop", until="user".__eq__, limit_s=1)


async def nothing_listens(redis: Redis) -> None:
    await eventually(lambda: listeners(redis), "no reader is left", until=(0).__eq__)


async def test_chunks_arrive_unchanged_as_they_come(calls: Calls, run: Played, redis: Redis) -> None:
    call = calls()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        prediction_id = await run.begin()
        for number, chunk in enumerate(CHUNKS, start=1):
            await run.show(chunk)
            await call.has(number)
        await run.end(output=ANSWER)
    assert call.data == [*CHUNKS, DONE]
    assert (call.status, call.headers["content-type"]) == (200, "text/event-stream")
    assert (call.headers["x-request-id"], call.headers["x-accel-buffering"]) == (prediction_id, "no")
    await nothing_listens(redis)


async def test_input_is_the_body_byte_for_byte(calls: Calls, run: Played) -> None:
    body = b'{ "model":"acme/echo","n":1.0, "stream":false,"\\u0061":[1e2],  "z": {"a":  "\xc3\xa9"} }'
    call = calls(body)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        record = run.claim.record
        assert bytes(run.claim.input) == body
        assert (record.endpoint, record.once_shown) == ("chat", False)
        await run.end(output=ANSWER)
    assert (call.status, call.raw, call.headers["content-type"]) == (200, ANSWER, "application/json")
    assert call.headers["x-request-id"] == run.claim.id


@pytest.mark.parametrize(("path", "endpoint"), [("completions", "completions"), ("embeddings", "embeddings")])
async def test_each_path_has_its_endpoint(calls: Calls, run: Played, path: str, endpoint: str) -> None:
    call = calls({"model": MODEL, "input": "a"}, f"/openai/v1/{path}")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        assert run.claim.record.endpoint == endpoint
        await run.end(output=b'{"data":[]}')
    assert call.raw == b'{"data":[]}'


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": 5}, "model"),
        ({"messages": []}, "model"),
        ({"model": MODEL, "stream": "yes"}, "stream"),
        ({"model": MODEL, "service_tier": "gold"}, "service_tier"),
        ({"model": MODEL, "prompt_cache_key": []}, "prompt_cache_key"),
    ],
)
async def test_wrong_field_is_named(calls: Calls, body: dict[str, Any], param: str) -> None:
    call = await calls.post(body)
    assert (call.status, call.error["param"], call.error["type"]) == (400, param, "invalid_request_error")


@pytest.mark.parametrize("body", [b"[]", b"{", b'"a"', b"", b'{"model": "\xff"}'])
async def test_body_that_is_no_object_is_refused(calls: Calls, body: bytes) -> None:
    call = await calls.post(body)
    assert (call.status, call.error["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("tier", "lane"),
    [("priority", "high"), ("default", "normal"), ("flex", "low"), ("auto", "normal"), (None, "normal")],
)
async def test_tier_chooses_the_lane_and_cache_key_the_affinity(
    calls: Calls, run: Played, redis: Redis, tier: str | None, lane: str
) -> None:
    token = await Accounts(redis).create_token("rich", lanes=("high", "normal", "low"))
    call = calls({**BODY, "service_tier": tier, "prompt_cache_key": "k"}, authorization=f"Bearer {token}")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        record = run.claim.record
        assert (record.lane, len(record.affinity), record.once_shown) == (lane, 16, True)
        await run.end(output=ANSWER)


async def test_lane_that_the_token_lacks_is_refused(calls: Calls, redis: Redis) -> None:
    token = await Accounts(redis).create_token("poor", lanes=("low",))
    call = await calls.post({**BODY, "service_tier": "priority"}, authorization=f"Bearer {token}")
    assert (call.status, call.error["type"]) == (403, "permission_error")


async def test_early_failure_has_a_status_of_its_own(calls: Calls, run: Played) -> None:
    call = calls()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        await run.end(Status.FAILED, error="boom", code="model_failed")
    assert (call.status, call.headers["content-type"]) == (500, "application/json")
    assert call.error == {"message": "boom", "type": "server_error", "param": None, "code": "model_failed"}
    assert (call.headers["x-should-retry"], call.headers["x-request-id"]) == ("false", run.claim.id)


SAID = b'{"object":"error", "message":"too long","code":400}'


@pytest.mark.parametrize("streams", [True, False])
async def test_refusal_by_the_server_reaches_the_caller(calls: Calls, run: Played, streams: bool) -> None:
    call = calls({**BODY, "stream": streams})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        metrics = b'{"http_status":413}'
        await run.end(Status.FAILED, error="too long", code="invalid_input", output=SAID, metrics=metrics)
    assert (call.status, call.raw, call.headers["x-should-retry"]) == (413, SAID, "false")


async def test_late_head_has_the_place_in_the_queue_and_later_errors_are_events(
    calls: Calls, run: Played, scripts: Scripts
) -> None:
    call = calls()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await eventually(lambda: call.comments, "a comment came", limit_s=5)
        assert (call.status, call.headers["x-queue-ahead"]) == (200, "0")
        assert call.comments[0].startswith("0 ahead")
        await run.begin()
        metrics = b'{"http_status":400}'
        await run.end(Status.FAILED, error="too long", code="invalid_input", output=SAID, metrics=metrics)
    assert call.data == [b'{"error":%b}' % SAID]


@pytest.mark.parametrize(
    ("status", "given", "code"),
    [
        (Status.FAILED, {"error": "boom", "code": "model_failed"}, "model_failed"),
        (Status.FAILED, {"error": "large", "code": "output_too_large"}, "output_too_large"),
        (Status.CANCELED, {}, "canceled"),
        (Status.CANCELED, {"code": "deadline_exceeded"}, "deadline_exceeded"),
    ],
)
async def test_stream_that_fails_ends_with_an_error(
    calls: Calls, run: Played, status: Status, given: dict[str, Any], code: str
) -> None:
    call = calls()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        await run.show(CHUNKS[0])
        await call.has(1)
        await run.end(status, output=ANSWER, **given)
    assert (call.data[0], len(call.data), call.error["code"]) == (CHUNKS[0], 2, code)
    assert call.is_over


async def test_run_that_is_lost_unseen_is_repeated_unseen(calls: Calls, run: Played) -> None:
    call = calls()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        await run.lose()
        await run.begin()
        await run.show(*CHUNKS)
        await run.end(output=ANSWER)
    assert call.data == [*CHUNKS, DONE]


@pytest.mark.parametrize("on_lost", ["fail", "restart"])
async def test_run_lost_after_its_role_is_repeated_unseen(calls: Calls, run: Played, on_lost: str) -> None:
    call = calls(x_on_lost=on_lost)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        await run.show(ROLES[0])
        await call.has(1)
        await run.lose()
        await run.begin()
        await run.show(*ROLES[1:3], CHUNKS[0])
        await run.show(*CHUNKS[1:])
        await run.end(output=ANSWER)
    assert call.data == [ROLES[0], ROLES[2], *CHUNKS, DONE], "the second run has one more choice"
    assert call.comments == []


async def test_restart_shows_the_role_again_with_its_text(calls: Calls, run: Played) -> None:
    call = calls(x_on_lost="restart")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        await run.show(ROLES[0], CHUNKS[0])
        await call.has(2)
        await run.lose()
        await run.begin()
        await run.show(ROLES[1], CHUNKS[1])
        await run.end(output=ANSWER)
    assert call.blocks[2] == b": retried"
    assert call.data == [ROLES[0], CHUNKS[0], ROLES[1], CHUNKS[1], DONE]


async def test_stream_of_the_role_alone_is_whole(calls: Calls, run: Played) -> None:
    call = calls()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        await run.show(ROLES[0])
        await call.has(1)
        await run.end(output=ANSWER)
    assert call.data == [ROLES[0], DONE]


async def test_run_lost_after_a_chunk_ends_the_stream_with_an_error(
    calls: Calls, run: Played, scripts: Scripts
) -> None:
    call = calls()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        await run.show(CHUNKS[0])
        await call.has(1)
        await run.lose()
    assert (call.data[:-1], call.error["code"]) == ([CHUNKS[0]], "server_lost")
    assert (await record_of(scripts, run.claim.id)).status is Status.FAILED


async def test_caller_that_asks_for_a_restart_gets_it_from_the_start(calls: Calls, run: Played) -> None:
    call = calls(x_on_lost="restart")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        assert not run.claim.record.once_shown
        await run.show(CHUNKS[0])
        await call.has(1)
        await run.lose()
        await run.begin()
        await run.show(*CHUNKS)
        await run.end(output=ANSWER)
    assert call.comments == ["retried"]
    assert call.blocks.index(b": retried") == 1
    assert call.data == [CHUNKS[0], *CHUNKS, DONE]


async def test_restart_that_nothing_prevented_is_never_shown(
    calls: Calls, run: Played, redis: Redis, scripts: Scripts
) -> None:
    """A director of the last release knows nothing of `once_shown`."""
    call = calls()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        await run.show(CHUNKS[0])
        await call.has(1)
        await redis.hdel(keys.record(run.claim.id), "shown")
        await run.lose()
    assert (call.data[:-1], call.error["code"]) == ([CHUNKS[0]], "server_lost")
    await ends_as(scripts, run.claim.id, Status.CANCELED)


@pytest.mark.parametrize("streams", [True, False])
async def test_hanging_up_while_it_runs_asks_it_to_stop(
    calls: Calls, run: Played, scripts: Scripts, redis: Redis, streams: bool
) -> None:
    call = calls({**BODY, "stream": streams})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        prediction_id = await run.begin()
        if streams:
            await run.show(CHUNKS[0])
            await call.has(1)
        tasks.cancel_scope.cancel()
    await is_asked_to_stop(scripts, prediction_id)
    await nothing_listens(redis)


@pytest.mark.parametrize("streams", [True, False])
async def test_hanging_up_while_it_waits_cancels_it(
    calls: Calls, scripts: Scripts, redis: Redis, streams: bool
) -> None:
    call = calls({**BODY, "stream": streams})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        [prediction_id] = await eventually(lambda: redis.keys("*:rec:*"), "it is filed")
        tasks.cancel_scope.cancel()
    await ends_as(scripts, prediction_id.decode().rpartition(":")[2], Status.CANCELED)
    await nothing_listens(redis)


@pytest.mark.parametrize("headers", [{"x_on_disconnect": "continue"}, {"idempotency_key": "k"}])
@pytest.mark.parametrize("streams", [True, False])
async def test_call_may_run_on_after_its_caller_has_left(
    calls: Calls, run: Played, scripts: Scripts, redis: Redis, headers: dict[str, str], streams: bool
) -> None:
    call = calls({**BODY, "stream": streams}, **headers)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        prediction_id = await run.begin()
        await run.show(CHUNKS[0])
        tasks.cancel_scope.cancel()
    await nothing_listens(redis)
    assert (await record_of(scripts, prediction_id)).cancel == ""
    await run.end(output=ANSWER)
    assert (await record_of(scripts, prediction_id)).status is Status.SUCCEEDED


async def test_repeat_with_the_same_key_streams_the_same_call(calls: Calls, run: Played, redis: Redis) -> None:
    first, second = calls(idempotency_key="k"), calls(idempotency_key="k")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.read)
        await run.begin()
        await run.show(CHUNKS[0])
        await first.has(1)
        tasks.start_soon(second.read)
        await second.has(1)
        await run.show(*CHUNKS[1:])
        await run.end(output=ANSWER)
    third = await calls.post(idempotency_key="k")
    assert first.data == second.data == third.data == [*CHUNKS, DONE]
    assert first.headers["x-request-id"] == third.headers["x-request-id"]
    await redis.delete(keys.events(run.claim.id))
    fourth = await calls.post(idempotency_key="k")
    [chunk, done] = fourth.data
    shown = json.loads(chunk)
    assert (done, shown["object"]) == (DONE, "chat.completion.chunk")
    [choice] = shown["choices"]
    assert (choice["delta"]["content"], choice["delta"]["tool_calls"][0]["index"]) == ("hi", 0)
    assert "usage" not in shown


async def test_repeat_of_a_whole_answer_is_the_same_bytes(calls: Calls, run: Played) -> None:
    body = {**BODY, "stream": False}
    call = calls(body, idempotency_key="k")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        await run.end(output=ANSWER)
    again = await calls.post(body, idempotency_key="k")
    assert (again.status, again.raw, again.headers["idempotency-replayed"]) == (200, ANSWER, "true")
    other = await calls.post(body, "/openai/v1/completions", idempotency_key="k")
    assert other.status == 422


@pytest.mark.parametrize("streams", [True, False])
async def test_ending_process_gives_up_calls_unless_a_repeat_would_find_them(
    server: RedisServer, http: AsyncClient, scripts: Scripts, redis: Redis, queue: QueueName, streams: bool
) -> None:
    body = {**BODY, "stream": streams}
    async with live_api(server.url, env=ENV) as live:
        calls = [Call(http, live, body), Call(http, live, body, x_on_disconnect="continue")]
        kept = Call(http, live, body, idempotency_key="k")
        async with anyio.create_task_group() as tasks:
            for call in (*calls, kept):
                tasks.start_soon(call.read)
            await eventually(lambda: redis.keys("*:rec:*"), "all are filed", until=lambda records: len(records) == 3)
            live.process.send_signal(signal.SIGTERM)
        for call in (*calls, kept):
            assert (call.status, call.error["code"]) == (503, "unavailable")
            assert int(call.headers["retry-after"]) > 0
            assert "x-should-retry" not in call.headers
        for call in calls:
            await ends_as(scripts, call.headers["x-request-id"], Status.CANCELED)
        assert (await record_of(scripts, kept.headers["x-request-id"])).status is Status.STARTING


async def test_ending_process_ends_a_stream_with_an_error(
    server: RedisServer, http: AsyncClient, scripts: Scripts, run: Played, queue: QueueName
) -> None:
    async with live_api(server.url, env=ENV) as live:
        call = Call(http, live)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.read)
            prediction_id = await run.begin()
            await run.show(CHUNKS[0])
            await call.has(1)
            live.process.send_signal(signal.SIGTERM)
        assert (call.data[:-1], call.error["code"], call.is_over) == ([CHUNKS[0]], "unavailable", True)
        await is_asked_to_stop(scripts, prediction_id)


@pytest.mark.parametrize(("streams", "code"), [(True, "too_many_streams"), (False, "too_many_calls")])
async def test_call_without_room_files_nothing(
    server: RedisServer, http: AsyncClient, queue: QueueName, redis: Redis, streams: bool, code: str
) -> None:
    async with live_api(server.url, env={**ENV, "DIRECTOR_MAX_STREAMS": "1", "DIRECTOR_MAX_WAITS": "1"}) as live:
        body = {**BODY, "stream": streams}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Call(http, live, body).read)
            await eventually(lambda: redis.keys("*:rec:*"), "it is filed")
            refused = Call(http, live, body)
            await refused.read()
            assert (refused.status, refused.error["code"]) == (503, code)
            assert int(refused.headers["retry-after"]) > 0
            assert len(await redis.keys("*:rec:*")) == 1
            tasks.cancel_scope.cancel()


async def test_chunk_of_several_lines_is_one_event(calls: Calls, run: Played) -> None:
    call = calls()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        await run.show(b'{\n"a":\r\n1}')
        await run.end(output=ANSWER)
    assert call.blocks == [b'data: {\ndata: "a":\ndata: 1}', b"data: [DONE]"]


async def test_caller_that_takes_nothing_is_left_and_its_run_is_asked_to_stop(
    settings: ApiSettings, token: str, run: Played, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_readers, "STALL_S", 0.1)
    monkeypatch.setattr(call_streams, "LAST_ERROR_S", 0.1)
    body = [{"type": "http.request", "body": msgspec.json.encode(BODY)}]
    sent: list[Any] = []

    async def receive() -> Any:
        return body.pop() if body else await anyio.sleep_forever()

    async def send(message: Any) -> None:
        sent.append(message)
        if b"data: " in message.get("body", b""):
            await anyio.sleep_forever()

    app = create_app(replace(settings, openai=True))
    async with app.router.lifespan_context(app) as state, anyio.create_task_group() as tasks:
        hung_up = anyio.Event()
        scope = {
            **{"type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "query_string": b""},
            **{"http_version": "1.1", "client": ("127.0.0.1", 1), "server": ("x", 1), "scheme": "http"},
            "headers": [(b"host", b"x"), (b"authorization", f"Bearer {token}".encode())],
            "state": {**(state or {}), "hang_up": hung_up.set},
        }
        tasks.start_soon(app, scope, receive, send)
        await run.begin()
        await run.show(CHUNKS[0])
        await eventually(lambda: sent, "the first chunk is sent", until=lambda all_: len(all_) >= 2)
        await run.show(CHUNKS[1])
        await is_asked_to_stop(scripts, run.claim.id)
        assert hung_up.is_set()


async def test_call_whose_reply_was_lost_does_not_run(
    settings: ApiSettings, token: str, scripts: Scripts, queue: QueueName, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients call again after a 503: the first call must not run beside the second one."""
    enqueue = Scripts.enqueue

    async def lose_reply(self: Scripts, new: NewPrediction) -> Accepted:
        await enqueue(self, new)
        raise BackendUnavailable("the reply was lost")

    async with api_client(replace(settings, openai=True), token=token) as api:
        monkeypatch.setattr(Scripts, "enqueue", lose_reply)
        answer = await api.post(CHAT, json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        [record] = await redis.keys("*:rec:*")
        await ends_as(scripts, record.decode().rpartition(":")[2], Status.CANCELED)


@pytest.fixture
async def other(redis: Redis) -> dict[str, str]:
    token = await Accounts(redis).create_token("other")
    return {"authorization": f"Bearer {token}"}


KINDS = pytest.mark.parametrize(
    ("streams", "code", "setting"),
    [(True, "too_many_streams", "DIRECTOR_MAX_STREAMS"), (False, "too_many_calls", "DIRECTOR_MAX_WAITS")],
)


@KINDS
async def test_account_leaves_as_many_calls_to_others_as_it_has(
    server: RedisServer,
    http: AsyncClient,
    redis: Redis,
    run: Played,
    scripts: Scripts,
    queue: QueueName,
    other: dict[str, str],
    streams: bool,
    code: str,
    setting: str,
) -> None:
    body = {**BODY, "stream": streams}
    async with live_api(server.url, env={**ENV, setting: "3"}) as live, anyio.create_task_group() as tasks:
        held = [Call(http, live, body, **headers) for headers in ({}, {}, other)]
        for number, call in enumerate(held, start=1):
            tasks.start_soon(call.read)
            await eventually(lambda: redis.keys("*:rec:*"), "it is filed", until=lambda all_: len(all_) == number)  # noqa: B023
        prediction_id = await run.begin()
        for headers in ({}, other):
            refused = Call(http, live, body, **headers)
            await refused.read()
            assert (refused.status, refused.error["code"]) == (503, code)
            assert len(await redis.keys("*:rec:*")) == len(held)
        assert (await record_of(scripts, prediction_id)).cancel == ""
        assert [call.is_over for call in held] == [False, False, False]
        tasks.cancel_scope.cancel()


async def test_place_of_a_refused_call_is_free_again(
    server: RedisServer, http: AsyncClient, redis: Redis, run: Played, scripts: Scripts, queue: QueueName
) -> None:
    env = {**ENV, "DIRECTOR_MAX_STREAMS": "1", "DIRECTOR_MAX_WAITS": "1"}
    await scripts.bound(queue, mode="bounded", max_queued=0)
    async with live_api(server.url, env=env) as live:
        for streams in (True, False, True, False):
            call = Call(http, live, {**BODY, "stream": streams})
            await call.read()
            assert (call.status, call.error["code"]) == (429, "queue_full")


async def test_reader_leaves_for_a_call_once_that_is_accepted(
    server: RedisServer,
    http: AsyncClient,
    redis: Redis,
    run: Played,
    scripts: Scripts,
    queue: QueueName,
    other: dict[str, str],
) -> None:
    async with live_api(server.url, env={**ENV, "DIRECTOR_MAX_STREAMS": "2"}) as live:
        body = {"version": f"{MODEL}:{VERSION}", "input": {}}
        reply = await http.post(f"{live.url}/v1/predictions", json=body)
        assert reply.status_code == 201, reply.text
        address = reply.json()["urls"]["stream"]
        reads = [Reading(http, address) for _ in range(2)]
        async with anyio.create_task_group() as tasks:
            for read in reads:
                tasks.start_soon(read.read)
            await eventually(lambda: [read.status for read in reads], "both read", until=[200, 200].__eq__)
            await scripts.bound(queue, mode="bounded", max_queued=1)
            refused = Call(http, live, **other)
            await refused.read()
            assert (refused.status, [read.is_over for read in reads]) == (429, [False, False])
            await scripts.bound(queue, mode="bounded", max_queued=9)
            call = Call(http, live, **other)
            tasks.start_soon(call.read)
            await eventually(lambda: sum(read.is_over for read in reads), "one left", until=(1).__eq__)
            tasks.cancel_scope.cancel()


class Reading:
    """Reads a stream of Replicate's API until it is disconnected."""

    def __init__(self, http: AsyncClient, address: str, method: str = "GET", **sent: Any) -> None:
        self._request = partial(http.stream, method, address, **sent)
        self.status = 0
        self.is_over = False

    async def read(self) -> None:
        with suppress(httpx.RemoteProtocolError):
            async with self._request() as answer:
                self.status = answer.status_code
                async for _ in answer.aiter_raw():
                    pass
        self.is_over = True


async def test_repeat_that_hangs_up_cancels_no_call_of_another(
    calls: Calls, run: Played, scripts: Scripts, redis: Redis
) -> None:
    first, second = calls(idempotency_key="k"), calls(idempotency_key="k", x_on_disconnect="cancel")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.read)
        await run.begin()
        await run.show(CHUNKS[0])
        await first.has(1)
        async with anyio.create_task_group() as others:
            others.start_soon(second.read)
            await second.has(1)
            others.cancel_scope.cancel()
        await eventually(lambda: listeners(redis), "one reader is left", until=(1).__eq__)
        assert (await record_of(scripts, run.claim.id)).cancel == ""
        await run.end(output=ANSWER)
    assert first.data == [CHUNKS[0], DONE]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("shown", [True, False])
async def test_answer_of_an_older_director_is_an_error(calls: Calls, run: Played, streams: bool, shown: bool) -> None:
    call = calls({**BODY, "stream": streams})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        if shown:
            await run.show(b'"He"', b'"llo"')
        await run.end(output=b'["He","llo"]')
    assert (call.status, call.error["code"], call.headers["x-should-retry"]) == (500, "model_failed", "false")


async def test_text_after_a_chunk_ends_the_stream_with_an_error(calls: Calls, run: Played, scripts: Scripts) -> None:
    call = calls()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        await run.show(CHUNKS[0])
        await call.has(1)
        await run.show(b'"llo"')
    assert (call.data[:-1], call.error["code"]) == ([CHUNKS[0]], "model_failed")
    await is_asked_to_stop(scripts, run.claim.id)


@pytest.mark.parametrize("is_late", [True, False])
async def test_fault_at_the_end_of_a_stream_is_an_error_of_it(
    settings: ApiSettings, token: str, run: Played, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    def fail(*_: object, **__: object) -> list[bytes]:
        raise ValueError("a fault")

    monkeypatch.setattr(chunks, "as_chunks", fail)
    monkeypatch.setattr(chunks, "HEAD_S", 0.1)
    opened: list[None] = []
    open_head = call_streams.Head.open
    monkeypatch.setattr(call_streams.Head, "open", lambda *given: opened.append(open_head(*given)))
    async with api_client(replace(settings, openai=True), token=token) as api, anyio.create_task_group() as tasks:
        answers: list[httpx.Response] = []

        async def read() -> None:
            answers.append(await api.post(CHAT, json=BODY))

        tasks.start_soon(read)
        await run.begin()
        if is_late:
            await eventually(lambda: opened, "the head is sent")
        await run.end(output=ANSWER)
    [answer] = answers
    assert answer.status_code == (200 if is_late else 500)
    last = answer.content.rstrip().rpartition(b"data: ")[2]
    assert json.loads(last)["error"]["code"] == "internal"
    assert is_late or answer.headers["x-should-retry"] == "false"


async def test_half_of_a_surrogate_pair_reaches_the_model(calls: Calls, run: Played) -> None:
    body = b'{"model":"acme/echo","messages":[{"content":"\\ud83d"}]}'
    call = calls(body)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await run.begin()
        assert bytes(run.claim.input) == body
        await run.end(output=ANSWER)
    assert (call.status, call.raw) == (200, ANSWER)


async def test_caller_that_takes_no_head_is_left_and_its_run_is_asked_to_stop(
    settings: ApiSettings, token: str, run: Played, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_streams, "STALL_S", 0.1)
    body = [{"type": "http.request", "body": msgspec.json.encode(BODY)}]

    async def receive() -> Any:
        return body.pop() if body else await anyio.sleep_forever()

    async def send(_: object) -> None:
        await anyio.sleep_forever()

    app = create_app(replace(settings, openai=True))
    async with app.router.lifespan_context(app) as state, anyio.create_task_group() as tasks:
        hung_up = anyio.Event()
        scope = {
            **{"type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "query_string": b""},
            **{"http_version": "1.1", "client": ("127.0.0.1", 1), "server": ("x", 1), "scheme": "http"},
            "headers": [(b"host", b"x"), (b"authorization", f"Bearer {token}".encode())],
            "state": {**(state or {}), "hang_up": hung_up.set},
        }
        tasks.start_soon(app, scope, receive, send)
        await run.begin()
        await run.show(CHUNKS[0])
        await is_asked_to_stop(scripts, run.claim.id)
        assert hung_up.is_set()


async def test_create_with_a_stream_takes_one_place(
    server: RedisServer, http: AsyncClient, redis: Redis, queue: QueueName, other: dict[str, str]
) -> None:
    """Its reader can connect again, so it leaves for a call."""
    async with live_api(server.url, env={**ENV, "DIRECTOR_MAX_STREAMS": "2"}) as live:
        sent = {"json": {"version": f"{MODEL}:{VERSION}", "input": {}}, "headers": {"Accept": "text/event-stream"}}
        posts = [Reading(http, f"{live.url}/v1/predictions", "POST", **sent) for _ in range(2)]
        async with anyio.create_task_group() as tasks:
            for post in posts:
                tasks.start_soon(post.read)
            await eventually(lambda: [post.status for post in posts], "both read", until=[200, 200].__eq__)
            call = Call(http, live, **other)
            tasks.start_soon(call.read)
            await eventually(lambda: sum(post.is_over for post in posts), "one left", until=(1).__eq__)
            tasks.cancel_scope.cancel()


@pytest.mark.parametrize("streams", [True, False])
async def test_callers_that_hang_up_at_once_leave_nothing_behind(
    live: LiveApi, token: str, scripts: Scripts, queue: QueueName, redis: Redis, streams: bool
) -> None:
    body = msgspec.json.encode({**BODY, "stream": streams})
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {len(body)}\r\n\r\n"
    for number in range(30):
        async with await anyio.connect_tcp("127.0.0.1", int(live.url.rpartition(":")[2])) as caller:
            await caller.send(head.encode() + body)
            await anyio.sleep(number / 1_000)  # at another moment of the filing each time

    async def count_live() -> int:
        return (await scripts.stats(queue)).live

    await eventually(lambda: redis.keys("*:rec:*"), "some were filed")
    await eventually(count_live, "all are canceled", until=(0).__eq__)
    await nothing_listens(redis)


@pytest.mark.parametrize("how", ["done", "early", "late", "cut"])
async def test_stream_leaves_nothing_to_the_garbage_collector(
    settings: ApiSettings, token: str, run: Played, redis: Redis, how: str
) -> None:
    async with api_client(replace(settings, openai=True), token=token) as api:
        with uncollected():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(api.post, CHAT, json=BODY))
                await run.begin()
                if how != "early":
                    await run.show(CHUNKS[0])
                    await nothing_waits(api)
                if how == "cut":
                    await redis.hdel(keys.record(run.claim.id), "shown")
                    await run.lose()
                else:
                    given = {} if how == "done" else {"status": Status.FAILED, "error": "no", "code": "model_failed"}
                    await run.end(output=ANSWER, **given)
            await nothing_listens(redis)
            assert alive(call_streams.CallStream, chunks.Chunks, chunks.EndedEarly, chunks.Cut) == 0


async def nothing_waits(api: AsyncClient) -> None:
    """Let the first chunk reach its reader."""
    await api.get("/v1/account")
    await anyio.sleep(0.05)
