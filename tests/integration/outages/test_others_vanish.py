"""Test that a model server, a receiver and a file store that vanish without a reset hold nothing for long."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import anyio
import pytest
from httpx import TransportError
from msgspec import Raw
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from director.core import sockets
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import new_prediction_id
from director.core.schema import Reference
from director.core.settings import DirectorSettings
from director.execution import run_files
from director.execution.uploads import DataUri
from director.files import data_files
from director.files.choose import LONGEST_S, StoreCheck, output_store_in, store_in
from director.files.data_files import DataFiles
from director.lab.chaos.wire import BROKEN, Answer, Request, listening
from director.runtime import bounded_http
from director.runtime.process import Health, serve_http
from director.servers.runners import transport
from director.servers.runners.transport import OneServer
from director.webhooks import sender
from director.webhooks.sender import AllowList, Sender
from tests.support.eventually import eventually, every
from tests.support.far_host import FarHost
from tests.support.kinds import Started
from tests.support.live_director import Caller, director_process
from tests.support.queue_driver import MODEL, QueueDriver
from tests.support.scripted_cog import HEALTHY
from tests.support.timed_server import SCHEMA
from tests.support.usage import Usage

pytestmark = pytest.mark.faults

LATE_S: Final = 15.0  # on a busy machine
PROCESSOR: Final = 0.05  # of one core
GROWTH_MIB: Final = 10.0
PREDICTION: Final = new_prediction_id(model=MODEL, now_ms=1)
ALLOWED: Final = AllowList.parse("198.18.0.0/15")


@asynccontextmanager
async def silent(far: FarHost) -> AsyncGenerator[str]:
    """Yield the URL of a server there that takes every request and answers only whether it is well, as Cog does."""
    known = {"/health-check": HEALTHY, "/openapi.json": SCHEMA}

    async def answer(request: Request) -> Answer:
        if request.path in known:
            return Answer(200, json.dumps(known[request.path]).encode())
        await request.gone.wait()
        return BROKEN

    listener = far.listen()
    host, port = listener.getsockname()
    async with listening(answer, at=listener):
        yield f"http://{host}:{port}"


async def timed(call: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Return how long a call takes, and which share of a core this process takes meanwhile."""
    began, used = time.monotonic(), time.process_time()
    await call()
    took = time.monotonic() - began
    return took, (time.process_time() - used) / took


async def test_run_on_a_vanished_model_server_is_given_back_within_its_probes(
    far: FarHost, server: Started, driver: QueueDriver
) -> None:
    caller = Caller(driver.redis, driver.scripts)
    async with silent(far) as url, director_process(server.url, url) as director:
        run = await caller.submit()
        await caller.shows(run, status="processing")
        before, began = Usage.of(director.process.pid), time.monotonic()
        far.vanish()
        lost = await eventually(lambda: director.said("claim given back"), "it is lost", limit_s=60)
        took = time.monotonic() - began
        now = Usage.of(director.process.pid)
    assert (lost[0]["prediction"], took < sockets.GONE_S + LATE_S) == (run, True), took
    assert (now.processor_s - before.processor_s) / took < PROCESSOR
    assert now.memory_mib - before.memory_mib < GROWTH_MIB


async def test_request_to_a_model_server_that_vanished_just_before_it_ends(
    far: FarHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes are sent on idle connections only: what was not acknowledged has a limit of its own."""
    monkeypatch.setattr(transport, "SMALL_ARRIVES", sockets.limit_unacknowledged(1))
    async with silent(far) as url:
        client = OneServer(url)
        (await client.send("GET", "/health-check")).whole()
        far.vanish()

        async def ask() -> None:
            with pytest.raises(TransportError):
                await client.send("PUT", "/predictions/a", content=b"{}")

        took, share = await timed(ask)
        await client.aclose()
    assert took < LATE_S
    assert share < PROCESSOR


@pytest.mark.parametrize("when", ["before", "after"])
async def test_delivery_to_a_vanished_receiver_ends_with_its_timeout(
    far: FarHost, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(sender, "CONNECT_S", 1.0)
    async with silent(far) as url:
        posting = Sender(ALLOWED, timeout_s=2.0)
        if when == "before":
            far.vanish()
        else:
            asyncio.get_running_loop().call_later(0.5, far.vanish)
        sent: list[Any] = []

        async def send() -> None:
            secret = "whsec_" + "c2VjcmV0" * 4
            sent.append(await posting.send(url, message_id="m", body=b"{}", secrets=[secret], now_s=time.time()))

        took, share = await timed(send)
        await posting.aclose()
    assert (sent[0].ok, sent[0].host_answers) == (False, False)
    assert took < 2.0 + LATE_S
    assert share < PROCESSOR


@pytest.fixture(params=["bucket", "api"])
async def store(
    request: pytest.FixtureRequest, far: FarHost, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """Yield a store whose server has vanished: a bucket, or the API through which a director stores."""
    pytest.importorskip("obstore", reason="no obstore: pip install obstore")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    async with silent(far) as url:
        far.vanish()
        if request.param == "bucket":
            made: Any = store_in("", driver.redis, SystemClock(), url=f"s3://bucket?endpoint={url}&region=us-east-1")
        else:
            made = output_store_in("", driver.redis, SystemClock(), url=url)
        yield made


async def test_check_of_a_vanished_store_ends_within_its_limit(store: Any) -> None:
    found: list[str] = []

    async def check() -> None:
        found.append(await StoreCheck(store, SystemClock()).missing())

    took, share = await timed(check)
    assert found[0]
    assert took < LONGEST_S + LATE_S
    assert share < PROCESSOR


async def test_data_for_a_vanished_store_stays_in_redis(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "PUT_S", 1.0)
    files, data = DataFiles(SystemClock(), store, from_bytes=1), b'"large"'
    kept: list[bytes] = []

    async def put() -> None:
        kept.append(await files.put(PREDICTION, data))

    took, share = await timed(put)
    assert kept == [data]
    assert took < 1.0 + LATE_S
    assert share < PROCESSOR
    took, _ = await timed(put)
    assert took < 1.0, "others do not wait for it"


async def test_read_of_a_vanished_store_is_away_within_its_limit(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "READ_S", 1.0)
    files = DataFiles(SystemClock(), store, from_bytes=1)

    async def read() -> None:
        with pytest.raises(BackendUnavailable):
            await files.read(PREDICTION, Raw(bytes(Reference("a" * 32, 7))))

    took, share = await timed(read)
    assert took < 1.0 + LATE_S
    assert share < PROCESSOR


async def test_files_of_a_run_are_given_up_while_their_store_has_vanished(
    store: Any, driver: QueueDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "PUT_S", 0.5)
    monkeypatch.setattr(run_files, "PAUSES_S", (0.1,))
    await driver.submit()
    record = (await driver.claim_one()).record
    storing = run_files.Storing(store, driver.scripts, SystemClock(), DirectorSettings())
    stored: list[Any] = []

    async def put() -> None:
        stored.append(await storing.store(record, [DataUri("image/png", True, b"iVBORw==")], {}))

    took, share = await timed(put)
    assert stored == [None]
    assert took < 2 * 0.5 + LATE_S
    assert share < PROCESSOR


async def test_reader_that_vanished_is_disconnected(far: FarHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pieces for it never wait in this process, and no limit here sees them."""
    monkeypatch.setattr(bounded_http, "ARRIVES", sockets.limit_unacknowledged(1.0))
    readers: list[int] = []
    began: list[int] = []

    async def drops() -> AsyncIterator[bytes]:
        readers.append(1)
        try:
            async for _ in every(0.1):
                yield b": still here\n\n"
        finally:
            readers.clear()

    async def stream(_: StarletteRequest) -> Response:
        return StreamingResponse(drops())

    app = Health().app([Route("/stream", stream)])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(serve_http, app, host=far.near, port=0, started=began.append))
        [port] = await eventually(lambda: began, "it listens")
        with far.connect(port) as reader:
            reader.send(b"GET /stream HTTP/1.1\r\nHost: director.test\r\n\r\n")
            await eventually(lambda: readers, "it is read")
            far.vanish()
            await eventually(lambda: not readers, "it is left")
        tasks.cancel_scope.cancel()
