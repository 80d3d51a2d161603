"""Test a call from its caller to the model server and back: the API's process, a real director, a server that does what
the test says.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.core.ids import QueueName, queue_name
from director.lab.chaos.wire import BROKEN, Answer, Request, listening
from director.store.accounts import Accounts
from tests.support.api import LiveApi, live_api
from tests.support.eventually import eventually
from tests.support.live_director import keeping, live_director
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION
from tests.support.servers import RedisServer

CHAT = "/openai/v1/chat/completions"
SLOTS = 4
OWN = "server-7b"  # the server's name for its model
UNKNOWN = "".join(f' ,"field_{n}" : {{"é\\u00e9":[{n}.50, 1E{n}]}}' for n in range(40))
BODY = '{ "model" :"%s","messages":[{"role":"user","content":"H\\u0069 ü"}]%s%s}\n'
CHUNKS = [
    b'{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}',
    b'{"choices": [{"delta": {"content": "\\u00fc\xc3\xbc"}, "index": 0, "token_ids": [7]}], "id": "c"}',
    b'{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop","stop_reason":null}]}',
]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
REFUSED = b'{"error":{"message":"too warm","type":"BadRequest","param":"temperature","code":"too_warm"}, "x":1.0}'
WHOLE = b'{"id":"c", "object":"chat.completion","choices":[{"message":{"content":"hi"},"index":0}],"usage":{"n":1.0}}'


class ModelServer:
    """A server of OpenAI's API. `steps` says what it does with each piece of a stream: chunks go out as they are put
    in, `None` ends it, and `break` breaks the connection.
    """

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[bytes] = []
        self.open = 0
        self.answer: Answer | None = None
        self.steps: asyncio.Queue[bytes | str | None] = asyncio.Queue()

    async def serve(self, request: Request) -> Answer:
        if request.method == "GET":
            return Answer(body=b'{"data":[{"id":"%b"}]}' % OWN.encode())
        self.bodies.append(request.body)
        if self.answer is not None:
            return self.answer
        self.open += 1
        try:
            await self._stream(request)
        finally:
            self.open -= 1
        return BROKEN

    async def _stream(self, request: Request) -> None:
        await request.write(HEAD)
        gone = asyncio.create_task(request.gone.wait())
        while True:
            step = asyncio.create_task(self.steps.get())
            await asyncio.wait({step, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not step.done():
                step.cancel()
                return
            given = step.result()
            if given == "break":
                gone.cancel()
                return
            data = b"data: [DONE]\n\n" if given is None else b"data: %b\n\n" % given  # type: ignore[str-bytes-safe]
            await request.write(b"%x\r\n%b\r\n" % (len(data), data))
            if given is None:
                await request.write(b"0\r\n\r\n")
                gone.cancel()
                return

    def say(self, *steps: bytes | str | None) -> None:
        for step in steps:
            self.steps.put_nowait(step)


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    model = ModelServer()
    async with listening(model.serve) as port:
        model.url = f"http://127.0.0.1:{port}"
        yield model


@pytest.fixture(scope="module")
async def live(server: RedisServer) -> AsyncIterator[LiveApi]:
    env = {"DIRECTOR_CACHE_S": "0", "DIRECTOR_OPENAI": "true"}
    async with live_api(server.url, env=env) as live:
        yield live


@pytest.fixture
async def queue(server: RedisServer, redis: Redis, model: ModelServer) -> AsyncIterator[QueueName]:
    given: dict[str, Any] = {
        "runner": "openai",
        "runner_config": json.dumps({"model": OWN}),
        "concurrent_predictions": SLOTS,
    }
    async with direct(server, model, given):
        yield queue_name(MODEL, VERSION)


@asynccontextmanager
async def direct(server: RedisServer, model: ModelServer, given: dict[str, Any]) -> AsyncIterator[None]:
    async with (
        keeping(server.url, lease_s=3),
        live_director(server.url, model.url, lease_s=3, backoff_s=0.1, **given) as director,
    ):
        await eventually(lambda: all(each.can_run for each in director.servers.all), "the server is ready")
        yield


@pytest.fixture
async def http(redis: Redis, live: LiveApi) -> AsyncIterator[AsyncClient]:
    token = await Accounts(redis).create_token(ACCOUNT)
    async with AsyncClient(
        timeout=30, trust_env=False, base_url=live.url, headers={"Authorization": f"Bearer {token}"}
    ) as client:
        yield client


class Stream:
    def __init__(self, http: AsyncClient, body: bytes, **headers: str) -> None:
        self._asked = http.stream("POST", CHAT, content=body, headers=headers)
        self.status = 0
        self.raw = b""
        self.headers: Any = {}

    async def read(self) -> None:
        async with self._asked as answer:
            self.status, self.headers = answer.status_code, answer.headers
            async for piece in answer.aiter_raw():
                self.raw += piece

    @property
    def data(self) -> list[bytes]:
        blocks = [block for block in self.raw.split(b"\n\n")[:-1] if not block.startswith(b":")]
        return [block.removeprefix(b"data: ") for block in blocks]

    async def has(self, count: int) -> None:
        await eventually(lambda: self.data, f"{count} came", until=lambda data: len(data) >= count)


def body_of(more: str = ',"stream":true', unknown: str = "", model: str = MODEL) -> bytes:
    return (BODY % (model, unknown, more)).encode()


async def slots_are_free(redis: Redis, queue: QueueName) -> None:
    async def held() -> int:
        return int(await redis.zcard(keys.lease(queue)))

    await eventually(held, "no claim is left", until=(0).__eq__, limit_s=5)


async def test_bytes_are_the_same_on_both_sides(
    queue: QueueName, http: AsyncClient, model: ModelServer, redis: Redis
) -> None:
    more = ',"stream":true,"stream_options":{"include_usage":true}'
    call = Stream(http, body_of(more, UNKNOWN))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        await eventually(lambda: model.bodies, "it came")
        for number, chunk in enumerate(CHUNKS, start=1):
            model.say(chunk)
            await call.has(number)
        model.say(None)
    assert model.bodies == [body_of(more, UNKNOWN, OWN)]
    assert call.data == [*CHUNKS, b"[DONE]"]
    await slots_are_free(redis, queue)


async def test_whole_answer_is_the_same_bytes(queue: QueueName, http: AsyncClient, model: ModelServer) -> None:
    model.answer = Answer(body=WHOLE, headers={"content-type": "application/json"})
    answer = await http.post(CHAT, content=body_of("", UNKNOWN))
    assert (answer.status_code, answer.content) == (200, WHOLE)
    assert model.bodies == [body_of("", UNKNOWN, OWN)]
    shown = (await http.get(f"/v1/predictions/{answer.headers['x-request-id']}")).json()
    assert (shown["status"], shown["output"]) == ("succeeded", json.loads(WHOLE))


@pytest.mark.parametrize("more", ["", ',"stream":true'])
async def test_refusal_of_the_server_is_its_status_and_words(
    queue: QueueName, http: AsyncClient, model: ModelServer, more: str
) -> None:
    model.answer = Answer(400, REFUSED)
    answer = await http.post(CHAT, content=body_of(more))
    assert (answer.status_code, answer.content) == (400, REFUSED)
    assert answer.headers["x-should-retry"] == "false"
    assert len(model.bodies) == 1


async def test_server_lost_before_the_first_chunk_is_not_noticed(
    queue: QueueName, http: AsyncClient, model: ModelServer
) -> None:
    call = Stream(http, body_of())
    model.say("break", *CHUNKS, None)
    await call.read()
    assert (call.status, call.data, len(model.bodies)) == (200, [*CHUNKS, b"[DONE]"], 2)


async def test_server_lost_after_the_role_is_not_noticed(
    queue: QueueName, http: AsyncClient, model: ModelServer
) -> None:
    call = Stream(http, body_of())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        model.say(CHUNKS[0])
        await call.has(1)
        model.say("break", *CHUNKS, None)
    assert (call.status, call.data, len(model.bodies)) == (200, [*CHUNKS, b"[DONE]"], 2)


async def test_server_lost_after_a_chunk_is_an_error_and_no_second_text(
    queue: QueueName, http: AsyncClient, model: ModelServer, redis: Redis
) -> None:
    call = Stream(http, body_of())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        model.say(*CHUNKS[:2])
        await call.has(2)
        model.say("break")
    *came, error = call.data
    assert (came, json.loads(error)["error"]["code"]) == (CHUNKS[:2], "server_lost")
    assert len(model.bodies) == 1
    await slots_are_free(redis, queue)


async def test_hanging_up_frees_the_slot_within_a_second(
    queue: QueueName, http: AsyncClient, model: ModelServer, redis: Redis
) -> None:
    calls = [Stream(http, body_of()) for _ in range(SLOTS)]
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call.read)
        await eventually(lambda: model.open, "all run", until=SLOTS.__eq__)
        tasks.cancel_scope.cancel()
    began = anyio.current_time()
    await eventually(lambda: model.open, "no request is left", until=(0).__eq__, limit_s=3)
    assert anyio.current_time() - began < 1.0
    await slots_are_free(redis, queue)
    last = Stream(http, body_of())
    model.say(*CHUNKS, None)
    await last.read()
    assert last.data == [*CHUNKS, b"[DONE]"]


@pytest.mark.not_on("cluster", "sentinel", why="stops its only server")
@pytest.mark.parametrize("how", ["frozen", "killed"])
async def test_stream_goes_on_after_redis_was_away(
    queue: QueueName, http: AsyncClient, model: ModelServer, redis: Redis, server: RedisServer, how: str
) -> None:
    call = Stream(http, body_of())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.read)
        model.say(CHUNKS[0])
        await call.has(1)
        (server.freeze if how == "frozen" else server.kill)()
        try:
            model.say(*CHUNKS[1:])
            await anyio.sleep(1.5)  # of silence, less than a command may take
        finally:
            (server.thaw if how == "frozen" else server.start)()
        model.say(None)
    assert call.data == [*CHUNKS, b"[DONE]"]
    await slots_are_free(redis, queue)
