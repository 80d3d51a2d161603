"""Test the event stream over a real connection: from the start or after any event, although processes die meanwhile."""

import resource
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import msgspec
import pytest
from anyio import to_thread
from httpx import AsyncClient
from redis.asyncio import Redis

from director.broker import keys
from director.broker.scripts import Scripts
from director.core.ids import QueueName
from director.core.states import Status
from director.local.launcher.processes import free_port
from director.store.accounts import Accounts
from tests.integration.api.conftest import listeners
from tests.support.api import LiveApi, PlayedDirector, live_api
from tests.support.event_stream import Comment, Told, read_events, take_apart
from tests.support.eventually import eventually
from tests.support.queue_driver import VERSION
from tests.support.servers import RedisServer

BODY = {"version": VERSION, "input": {}}
BROKEN = (httpx.RemoteProtocolError, httpx.ReadError)


@pytest.fixture(scope="module")
async def live(server: RedisServer) -> AsyncIterator[LiveApi]:
    async with live_api(server.url, env={"DIRECTOR_CACHE_S": "0"}) as live:
        yield live


@pytest.fixture
async def http() -> AsyncIterator[AsyncClient]:
    async with AsyncClient(timeout=30, trust_env=False) as client:
        yield client


class Asker:
    def __init__(self, http: AsyncClient, token: str) -> None:
        self.http = http
        self.headers = {"Authorization": f"Bearer {token}"}

    async def create(self, live: LiveApi) -> dict[str, Any]:
        answer = await self.http.post(f"{live.url}/v1/predictions", json=BODY, headers=self.headers)
        assert answer.status_code == 201
        return answer.json()


@pytest.fixture
def asker(http: AsyncClient, token: str, queue: QueueName) -> Asker:
    return Asker(http, token)


async def is_read(redis: Redis) -> None:
    await eventually(lambda: listeners(redis), "it is read", until=(1).__eq__)


async def is_silent(redis: Redis) -> None:
    await eventually(lambda: listeners(redis), "no reader is left", until=(0).__eq__)


async def all_of(http: AsyncClient, url: str, *, after: str = "") -> list[Told]:
    return [one async for one in read_events(http, url, after=after) if isinstance(one, Told)]


def spoken(events: list[Told]) -> list[tuple[str, str]]:
    return [(one.event, one.data) for one in events]


class Listener:
    def __init__(self, http: AsyncClient, url: str) -> None:
        self._http = http
        self._url = url
        self.told: list[Told | Comment] = []

    @property
    def events(self) -> list[Told]:
        return [one for one in self.told if isinstance(one, Told)]

    async def read(self) -> None:
        after = self.events[-1].id if self.events else ""
        async for one in read_events(self._http, self._url, after=after):
            self.told.append(one)

    async def read_broken(self) -> None:
        with pytest.raises(BROKEN):
            await self.read()

    async def has(self, count: int) -> None:
        await eventually(lambda: len(self.events), f"{count} events came", until=lambda many: many >= count)


async def test_stream_shows_events_live_and_then_ends(
    live: LiveApi, asker: Asker, director: PlayedDirector, scripts: Scripts, redis: Redis
) -> None:
    made = await asker.create(live)
    listener = Listener(asker.http, made["urls"]["stream"])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.read)
        await is_read(redis)
        claim = await director.claim()
        seq = await director.begin(claim, b'"one"')
        await listener.has(1)
        logs = [("logs", b'"half\\n"'), ("output", b'{"n":2}')]
        advanced = await scripts.advance(claim.id, token=claim.token, seq=seq, ran_ms=1, events=logs)
        await listener.has(3)
        await director.finish(claim, output=b'["one",{"n":2}]', logs="half\n", seq=advanced.seq)
    assert spoken(listener.events) == [("output", "one"), ("logs", "half\n"), ("output", '{"n":2}'), ("done", "{}")]
    await is_silent(redis)


async def test_every_answer_has_the_stream_address_which_needs_no_token(live: LiveApi, asker: Asker) -> None:
    made = await asker.create(live)
    got = (await asker.http.get(made["urls"]["get"], headers=asker.headers)).json()
    canceled = (await asker.http.post(made["urls"]["cancel"], headers=asker.headers)).json()
    assert made["urls"] == got["urls"] == canceled["urls"]
    assert made["urls"]["stream"].startswith(f"{live.url}/v1/streams/{made['id']}")
    for headers in ({}, {"Authorization": "Bearer unknown"}):
        answer = await asker.http.get(made["urls"]["stream"], headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.text.endswith('data: {"reason":"canceled"}\n\n')


@pytest.mark.parametrize("place", [0, 26, 51])
async def test_altered_address_is_not_found(live: LiveApi, asker: Asker, place: int) -> None:
    url = (await asker.create(live))["urls"]["stream"]
    base, address = url[:-52], url[-52:]
    other = "a" if address[place] != "a" else "b"
    for wrong in (address[:place] + other + address[place + 1 :], address[:-1], address[:26], f"{address}a", "ä" * 52):
        answer = await asker.http.get(base + wrong)
        assert answer.status_code == 404
        assert answer.headers["access-control-allow-origin"] == "*"


async def test_record_without_a_ticket_cannot_be_opened(live: LiveApi, asker: Asker, redis: Redis) -> None:
    """Such records come from an older release, or belong to a model that cannot stream."""
    made = await asker.create(live)
    await redis.hdel(keys.record(made["id"]), "ticket")
    got = (await asker.http.get(made["urls"]["get"], headers=asker.headers)).json()
    assert "stream" not in got["urls"]
    assert (await asker.http.get(made["urls"]["stream"])).status_code == 404


@pytest.mark.parametrize(
    ("status", "ended", "end"),
    [
        (Status.SUCCEEDED, {}, [("done", "{}")]),
        (Status.CANCELED, {}, [("done", '{"reason":"canceled"}')]),
        (Status.FAILED, {"error": "boom"}, [("error", '{"detail":"boom"}'), ("done", '{"reason":"error"}')]),
    ],
)
async def test_ended_prediction_is_replayed_from_the_start_or_any_event(
    live: LiveApi,
    asker: Asker,
    director: PlayedDirector,
    status: Status,
    ended: dict[str, Any],
    end: list[tuple[str, str]],
) -> None:
    url = (await asker.create(live))["urls"]["stream"]
    claim = await director.claim()
    seq = await director.begin(claim, b'"a"', b'"b\\n"')
    await director.finish(claim, status, output=b'["a","b\\n"]', seq=seq, **ended)
    told = await all_of(asker.http, url)
    assert spoken(told) == [("output", "a"), ("output", "b\n"), *end]
    for number, one in enumerate(told[:-1], start=1):
        assert await all_of(asker.http, url, after=one.id) == told[number:]
        assert await all_of(asker.http, f"{url}?last_event_id={one.id}") == told[number:]
    over = await asker.http.get(url, headers={"Last-Event-ID": told[-1].id})
    assert (over.status_code, over.headers["access-control-allow-origin"]) == (204, "*")


async def test_large_output_is_streamed_whole_and_once(live: LiveApi, asker: Asker, director: PlayedDirector) -> None:
    url = (await asker.create(live))["urls"]["stream"]
    items = [f"{number}:" + "x" * 5_000 for number in range(400)]
    claim = await director.claim()
    seq = await director.begin(claim, *(msgspec.json.encode(item) for item in items[:200]))
    await director.finish(claim, output=msgspec.json.encode(items), seq=seq)
    told = await all_of(asker.http, url)
    assert [one.data for one in told[:-1]] == items
    assert await all_of(asker.http, url, after=told[299].id) == told[300:]


async def test_reader_returning_after_a_revival_gets_only_the_new_run(
    live: LiveApi, asker: Asker, director: PlayedDirector, scripts: Scripts
) -> None:
    url = (await asker.create(live))["urls"]["stream"]
    for attempt in range(3):
        claim = await director.claim()
        await director.begin(claim, *([b'"old-1"', b'"old-2"'] if attempt == 2 else []))
        await scripts.release(claim.id, token=claim.token, spent=True, error="boom", code="server_lost")
    before = await all_of(asker.http, url)
    assert [one.event for one in before] == ["output", "output", "error", "done"]
    assert await scripts.revive(claim.id)
    claim = await director.claim()
    seq = await director.begin(claim, *(b'"new-%d"' % number for number in range(1, 9)))
    await director.finish(claim, output=b"[%s]" % b",".join(b'"new-%d"' % number for number in range(1, 9)), seq=seq)
    run = [*(("output", f"new-{number}") for number in range(1, 9)), ("done", "{}")]
    for one in before:
        told = [one async for one in read_events(asker.http, url, after=one.id)]
        assert told[0] == Comment("retried")
        assert spoken([one for one in told if isinstance(one, Told)]) == run
    now = await all_of(asker.http, url)
    assert spoken(now) == run
    assert await all_of(asker.http, url, after=now[3].id) == now[4:]
    over = await asker.http.get(url, headers={"Last-Event-ID": now[-1].id})
    assert over.status_code == 204


async def test_stream_is_gone_after_its_data_was_removed(live: LiveApi, asker: Asker, redis: Redis) -> None:
    made = await asker.create(live)
    await asker.http.post(made["urls"]["cancel"], headers=asker.headers)
    await redis.delete(keys.events(made["id"]), keys.input_data(made["id"]))
    answer = await asker.http.get(made["urls"]["stream"])
    assert (answer.status_code, answer.json()["code"]) == (410, "data_removed")
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_address_is_never_logged_whatever_happens_to_its_reader(
    server: RedisServer, asker: Asker, redis: Redis, tmp_path: Path
) -> None:
    with (tmp_path / "log").open("wb") as log:
        async with live_api(server.url, env={"DIRECTOR_LOG_LEVEL": "debug"}, log=log) as live:
            made = await asker.create(live)
            url = made["urls"]["stream"]
            hung_up = await to_thread.run_sync(connect, url)
            await is_read(redis)
            hung_up.close()
            await is_silent(redis)
            await asker.http.put(url)
            await asker.http.get(f"{url}a")
            held = await to_thread.run_sync(connect, url)
            await is_read(redis)
            await redis.set(keys.events(made["id"]), "no list")  # the current reader and the next one meet a fault
            assert (await asker.http.get(url)).status_code == 500
            await is_silent(redis)
            held.close()
    lines = (tmp_path / "log").read_text()
    assert "Exception in ASGI application" in lines
    assert url[-26:] not in lines
    await redis.flushall()


async def test_browser_may_send_the_headers_that_it_needs(live: LiveApi, asker: Asker) -> None:
    url = (await asker.create(live))["urls"]["stream"]
    asked = {"Origin": "https://example.com", "Access-Control-Request-Method": "GET"}
    asked |= {"Access-Control-Request-Headers": "last-event-id,cache-control"}
    answer = await asker.http.options(url, headers=asked)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-origin"] == "*"
    allowed = answer.headers["access-control-allow-headers"].lower()
    assert {"last-event-id", "cache-control", "authorization"} <= set(allowed.split(", "))


@pytest.mark.parametrize(
    "spelled", ["last_event_id", "lastEventId", "lastEventID", "Last-Event-ID", "evs_last_event_id"]
)
async def test_polyfill_resumes_by_a_parameter_however_it_is_spelled(
    live: LiveApi, asker: Asker, director: PlayedDirector, spelled: str
) -> None:
    made = await asker.create(live)
    claim = await director.claim()
    await director.finish(claim)
    whole = (await asker.http.get(made["urls"]["stream"])).text
    ids = [line.removeprefix("id: ") for line in whole.splitlines() if line.startswith("id: ")]
    answer = await asker.http.get(made["urls"]["stream"], params={spelled: ids[-1]})
    assert answer.status_code == 204, "it has the end"
    again = await asker.http.get(made["urls"]["stream"], params=[(spelled, "0:0:0"), (spelled, ids[-1])])
    assert again.status_code == 204, "the last one is the newest"


async def test_head_answers_without_following_the_stream(live: LiveApi, asker: Asker) -> None:
    answer = await asker.http.head((await asker.create(live))["urls"]["stream"])
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream")


async def test_disconnected_reader_is_noticed_and_cancels_nothing(
    live: LiveApi, asker: Asker, director: PlayedDirector, redis: Redis
) -> None:
    made = await asker.create(live)
    connection = await to_thread.run_sync(connect, made["urls"]["stream"])
    await is_read(redis)
    connection.close()
    await is_silent(redis)
    claim = await director.claim()
    assert claim.record.cancel == ""
    assert (await asker.http.get(f"{live.url}/readyz")).json()["load"]["streams"] == 0
    await director.finish(claim)


async def test_reader_beyond_the_limit_is_told_when_to_return(server: RedisServer, asker: Asker, redis: Redis) -> None:
    async with live_api(server.url, env={"DIRECTOR_MAX_STREAMS": "1"}) as live, anyio.create_task_group() as tasks:
        url = (await asker.create(live))["urls"]["stream"]
        tasks.start_soon(Listener(asker.http, url).read)
        await is_read(redis)
        await assert_full(asker.http, url)
        tasks.cancel_scope.cancel()
    await redis.flushall()


async def test_readers_of_one_account_keep_no_other_from_its_stream(
    server: RedisServer, asker: Asker, redis: Redis
) -> None:
    other, is_broken = Asker(asker.http, await Accounts(redis).create_token("other")), anyio.Event()

    async def read_first(url: str) -> None:
        await Listener(asker.http, url).read_broken()
        is_broken.set()

    async with live_api(server.url, env={"DIRECTOR_MAX_STREAMS": "2"}) as live, anyio.create_task_group() as tasks:
        urls = [(await each.create(live))["urls"]["stream"] for each in (asker, asker, other)]
        tasks.start_soon(read_first, urls[0])
        await is_read(redis)
        tasks.start_soon(Listener(asker.http, urls[1]).read)
        await eventually(lambda: listeners(redis), "both are read", until=(2).__eq__)
        async with other.http.stream("GET", urls[2]) as answer:
            assert answer.status_code == 200
            await is_broken.wait()
            await assert_full(asker.http, urls[0])
        tasks.cancel_scope.cancel()
    await redis.flushall()


async def test_api_short_of_descriptors_refuses_only_new_readers(
    server: RedisServer, asker: Asker, redis: Redis
) -> None:
    async with live_api(server.url) as live:
        made = await asker.create(live)
        _, hard = resource.prlimit(live.process.pid, resource.RLIMIT_NOFILE)
        is_open = (await asker.http.get(f"{live.url}/readyz")).json()["load"]["descriptors"]
        resource.prlimit(live.process.pid, resource.RLIMIT_NOFILE, (is_open + 2, hard))
        await assert_full(asker.http, made["urls"]["stream"])
        assert (await asker.http.get(made["urls"]["get"], headers=asker.headers)).status_code == 200
    await redis.flushall()


async def assert_full(http: AsyncClient, url: str) -> None:
    answer = await http.get(url)
    assert (answer.status_code, answer.json()["code"]) == (503, "too_many_streams")
    assert int(answer.headers["retry-after"]) == answer.json()["retry_after"] >= 1
    assert answer.headers["access-control-allow-origin"] == "*"


@pytest.mark.faults
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
async def test_next_api_continues_the_stream_of_an_ending_one(
    server: RedisServer, asker: Asker, director: PlayedDirector, scripts: Scripts, how: signal.Signals
) -> None:
    port = free_port()
    async with live_api(server.url, port=port) as live:
        listener = Listener(asker.http, (await asker.create(live))["urls"]["stream"])
        claim = await director.claim()
        seq = await director.begin(claim, b'"a"', b'"b"')
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.read_broken)
            await listener.has(2)
            live.process.send_signal(how)
        await live.process.wait()
    advanced = await scripts.advance(claim.id, token=claim.token, seq=seq, ran_ms=1, events=[("output", b'"c"')])
    async with live_api(server.url, port=port), anyio.create_task_group() as tasks:
        tasks.start_soon(listener.read)
        await listener.has(3)
        await director.finish(claim, output=b'["a","b","c"]', seq=advanced.seq)
    assert [one.data for one in listener.events] == ["a", "b", "c", "{}"]


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((parts.hostname, parts.port))
    connection.sendall(f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    return connection


def resident_kb(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:  # noqa: PTH123
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


@pytest.mark.faults
async def test_stalled_readers_hold_little_memory_and_slow_no_one(
    server: RedisServer, asker: Asker, director: PlayedDirector, redis: Redis
) -> None:
    slow, items = 40, [msgspec.json.encode("x" * 20_000) for _ in range(300)]
    async with live_api(server.url) as live:
        made = await asker.create(live)
        claim = await director.claim()
        seq = await director.begin(claim, *items)
        before = resident_kb(live.process.pid)
        sleepers = [await to_thread.run_sync(connect, made["urls"]["stream"]) for _ in range(slow)]
        listener = Listener(asker.http, made["urls"]["stream"])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listener.read)
            await listener.has(300)
            await director.finish(claim, output=b"[" + b",".join(items) + b"]", seq=seq)
        held = resident_kb(live.process.pid) - before
        for sleeper in sleepers:
            sleeper.close()
    assert len(listener.events) == 301
    # each reader would hold 6 MB: 240,000 KB
    assert held < slow * 1_000


class Create:
    """A create whose answer is the stream."""

    def __init__(self, http: AsyncClient, url: str, headers: dict[str, str]) -> None:
        self._asked = {"method": "POST", "url": f"{url}/v1/predictions", "json": BODY, "timeout": 30}
        self._headers = {"Accept": "text/event-stream", **headers}
        self._http = http
        self.told: list[Told | Comment] = []
        self.headers = httpx.Headers()

    async def read(self) -> None:
        async with self._http.stream(**self._asked, headers=self._headers) as answer:  # type: ignore[arg-type]
            self.headers = answer.headers
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream"), answer
            rest = b""
            async for piece in answer.aiter_raw():
                *blocks, rest = (rest + piece).split(b"\n\n")
                self.told += [take_apart(block.decode()) for block in blocks]

    async def has(self, count: int) -> None:
        await eventually(lambda: len(self.told), f"{count} events came", until=lambda many: many >= count)


async def test_create_answers_with_the_same_stream_as_its_address(
    live: LiveApi, asker: Asker, director: PlayedDirector
) -> None:
    create = Create(asker.http, live.url, asker.headers)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create.read)
        claim = await director.claim()
        seq = await director.begin(claim, b'"one"')
        await create.has(1)
        await director.finish(claim, output=b'["one","two"]', seq=seq)
    made = (await asker.http.get(create.headers["location"], headers=asker.headers)).json()
    assert (made["id"], made["status"]) == (claim.id, "succeeded")
    assert [(one.event, one.data) for one in create.told if isinstance(one, Told)] == [
        ("output", "one"),
        ("output", "two"),
        ("done", "{}"),
    ]
    assert create.told == await all_of(asker.http, made["urls"]["stream"])


async def test_repeated_create_streams_its_prediction_from_the_start(
    live: LiveApi, asker: Asker, director: PlayedDirector, redis: Redis
) -> None:
    headers = {**asker.headers, "Idempotency-Key": "once"}
    first, second = (Create(asker.http, live.url, headers) for _ in range(2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.read)
        claim = await director.claim()
        seq = await director.begin(claim, b'"one"')
        await first.has(1)
        tasks.start_soon(second.read)
        await second.has(1)
        await director.finish(claim, output=b'["one"]', seq=seq)
    assert second.told == first.told
    assert ("idempotency-replayed" in first.headers, second.headers["idempotency-replayed"]) == (False, "true")
    third = Create(asker.http, live.url, headers)
    await third.read()
    assert third.told == first.told
    await is_silent(redis)


async def test_create_without_room_for_its_stream_files_nothing(
    server: RedisServer, http: AsyncClient, asker: Asker, redis: Redis
) -> None:
    async with live_api(server.url, env={"DIRECTOR_MAX_STREAMS": "1"}) as live:
        first = Create(http, live.url, asker.headers)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.read)
            await is_read(redis)
            answer = await http.post(
                f"{live.url}/v1/predictions", json=BODY, headers={**asker.headers, "Accept": "text/event-stream"}
            )
            assert (answer.status_code, answer.json()["code"]) == (503, "too_many_streams")
            assert int(answer.headers["retry-after"]) > 0
            listed = (await http.get(f"{live.url}/v1/predictions", headers=asker.headers)).json()["results"]
            assert len(listed) == 1
            tasks.cancel_scope.cancel()
    await is_silent(redis)


async def test_refused_create_of_a_stream_leaves_no_listener(live: LiveApi, asker: Asker, redis: Redis) -> None:
    answer = await asker.http.post(
        f"{live.url}/v1/predictions",
        json={"version": VERSION, "input": 5},
        headers={**asker.headers, "Accept": "text/event-stream"},
    )
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    await is_silent(redis)
