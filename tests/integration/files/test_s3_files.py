"""Test a bucket as the store, as used by the API, the director and the keeper."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx
import pytest
from msgspec import Raw
from msgspec.structs import replace
from redis.asyncio import Redis

from api.files.files import OURS
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId, new_file_id, new_prediction_id
from director.core.schema import reference_in
from director.core.settings import ApiSettings
from director.files.choose import store_in
from director.files.data_files import DataFiles
from director.files.s3 import S3Files
from director.files.store import CallerFileName, FileName, file_name
from director.keeper.tidier import Tidied, Tidier
from director.store.accounts import Accounts
from tests.support.api import api_client, live_api
from tests.support.bucket import AWS, bucket_url, moto_folder
from tests.support.clock import FakeClock
from tests.support.queue_driver import ACCOUNT
from tests.support.servers import RedisServer
from tests.support.uploads import MIB, endless_form, growth_of

pytestmark = [pytest.mark.anyio, pytest.mark.heavy]  # the S3 stand-in comes from a package registry

BOUNDARY = {"content-type": "multipart/form-data; boundary=b"}


@pytest.fixture(scope="module")
async def url(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    cache = request.config.cache
    folder = moto_folder(cache.mkdir("clients"))
    async with bucket_url(folder) as url:
        yield url


@pytest.fixture
def store(url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> S3Files:
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    return store_in("", redis, SystemClock(), url=url)


@pytest.fixture
async def api(store: S3Files, server: RedisServer, redis: Redis, url: str) -> AsyncIterator[httpx.AsyncClient]:
    token = await Accounts(redis).create_token(ACCOUNT)
    async with api_client(ApiSettings(redis_url=server.url, files_url=url), token=token) as client:
        yield client


def caller_name() -> CallerFileName:
    return CallerFileName("acme", new_file_id(SystemClock().now_ms()), "png")


async def blocks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def content(store: S3Files, name: FileName | CallerFileName) -> tuple[str, bytes] | None:
    file = await store.open(name)
    if file is None:
        return None
    data = b"".join([chunk async for chunk in file.read(0, file.size)])
    assert len(data) == file.size
    return file.content_type, data


async def callers(store: S3Files) -> list[CallerFileName]:
    return [name async for page in store.callers(2) for name in page]


async def empty(store: S3Files) -> None:
    for name in await callers(store):
        await store.discard(name)


@pytest.mark.parametrize("size", [0, 1, 300_000, 12 * MIB], ids=["empty", "one", "one part", "many parts"])
async def test_stored_file_is_read_back_and_fetched_by_its_address(store: S3Files, size: int) -> None:
    name, data = caller_name(), bytes(size)
    await store.put(
        name, blocks(*(data[at : at + 300_000] for at in range(0, size, 300_000))), content_type="image/png"
    )
    assert await content(store, name) == ("image/png", data)
    assert b"".join([piece async for piece in (await store.open(name)).read(size // 2, size)]) == data[size // 2 :]
    address = await store.fetch_url(name, shown="x", base="", expires_s=SystemClock().now_ms() // 1000 + 60)
    async with httpx.AsyncClient(trust_env=False) as anybody:
        answer = await anybody.get(address)
    assert (answer.status_code, answer.content) == (200, data)
    assert httpx.URL(address).path.endswith(f"/{name.id}.png"), "models go by the ending"
    assert 59 <= int(httpx.URL(address).params["X-Amz-Expires"]) <= 60
    for _ in range(2):
        await store.discard(name)
    assert await content(store, name) is None


async def test_interrupted_upload_keeps_nothing(store: S3Files) -> None:
    await empty(store)

    async def breaking() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield bytes(MIB // 2)
        raise ValueError("gone")

    name = caller_name()
    with pytest.raises(Exception, match="gone"):
        await store.put(name, breaking(), content_type="image/png")
    assert await content(store, name) is None
    assert await callers(store) == []


async def test_slow_upload_leaves_no_parts(api: httpx.AsyncClient, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.files.files.LONGEST_S", 1.0)

    async def silent() -> AsyncIterator[bytes]:
        yield b'--b\r\ncontent-disposition: form-data; name="content"\r\n\r\n'
        yield bytes(12 * MIB)
        await anyio.sleep_forever()

    answer = await api.post("/v1/files", content=silent(), headers={"content-type": "multipart/form-data; boundary=b"})
    assert (answer.status_code, answer.json()["code"]) == (408, "too_slow")
    async with httpx.AsyncClient(trust_env=False) as client:
        endpoint = httpx.URL(url).params["endpoint"]
        assert "<Upload>" not in (await client.get(f"{endpoint}/bucket?uploads")).text


async def test_outputs_are_stored_by_prediction(store: S3Files) -> None:
    mine, yours = (new_prediction_id(model="acme/echo", now_ms=n) for n in (1, 2))
    names = [file_name(each, data, content_type="image/png") for each in (mine, yours) for data in (b"a", b"b", b"c")]
    for name in names:
        for _ in range(2):
            await store.put(name, b"data", content_type="image/png")
    assert await content(store, names[0]) == ("image/png", b"data")
    assert sorted([each async for page in store.holders(1) for each in page]) == sorted([mine, yours])
    for _ in range(2):
        await store.remove(PredictionId(mine))
    assert [each async for page in store.holders(1) for each in page] == [yours]
    assert await content(store, names[-1]) == ("image/png", b"data")
    await store.remove(PredictionId(yours))


async def test_data_is_kept_in_the_bucket_and_goes_with_its_prediction(store: S3Files) -> None:
    mine, data = new_prediction_id(model="acme/echo", now_ms=1), b'"' + bytes([120]) * 200_000 + b'"'
    files = DataFiles(SystemClock(), store, from_bytes=1024)
    kept = Raw(await files.put(mine, data))
    assert reference_in(kept) is not None
    assert await files.read(mine, kept) == Raw(data)
    await store.remove(mine)
    with pytest.raises(BackendUnavailable):
        await files.read(mine, kept)


async def test_upload_stays_in_the_bucket_until_deleted_or_swept(
    api: httpx.AsyncClient, store: S3Files, redis: Redis, scripts: Scripts
) -> None:
    await empty(store)
    data = bytes(range(256)) * 4_000
    first, second = [
        (await api.post("/v1/files", files={"content": ("cat.png", data, "image/png")})).json() for _ in range(2)
    ]
    assert first["checksums"]["sha256"] == hashlib.sha256(data).hexdigest()
    assert sorted(name.id for name in await callers(store)) == sorted([first["id"], second["id"]])
    assert (await api.delete(f"/v1/files/{first['id']}")).status_code == 204
    assert [name.id for name in await callers(store)] == [second["id"]]
    await redis.flushall()
    clock = FakeClock(now_ms=SystemClock().now_ms() + 3_700_000)
    assert await Tidier(redis, scripts, store, clock).run_once() == Tidied(seen=1, removed=1)
    assert await callers(store) == []


@pytest.mark.parametrize(
    ("body", "status"),
    [(b'--b\r\ncontent-disposition: form-data; name="content"\r\n\r\ncut', 400), (None, 413)],
    ids=["cut", "too large"],
)
async def test_reason_for_refusing_a_form_is_reported_with_a_bucket(
    api: httpx.AsyncClient, store: S3Files, monkeypatch: pytest.MonkeyPatch, body: bytes | None, status: int
) -> None:
    monkeypatch.setattr("api.files.files.OURS", replace(OURS, max_bytes=MIB))
    given: Any = endless_form(2 * MIB) if body is None else body
    answer = await api.post("/v1/files", headers=BOUNDARY, content=given)
    assert answer.status_code == status, answer.text


async def test_upload_of_100_mb_grows_the_process_by_less_than_32(server: RedisServer, redis: Redis, url: str) -> None:
    token = await Accounts(redis).create_token(ACCOUNT)
    async with (
        live_api(server.url, env={"DIRECTOR_FILES_URL": url, **AWS}) as live,
        httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=120) as client,
    ):

        async def up(size: int) -> None:
            answer = await client.post(f"{live.url}/v1/files", headers=BOUNDARY, content=endless_form(size))
            assert answer.status_code == 201, answer.text

        await up(6 * MIB)
        _, grown = await growth_of(live.process.pid, lambda: up(100 * MIB))
    print(f"100 MiB to a bucket: peak memory +{grown / MIB:.1f} MiB")
    assert grown < 32 * MIB


async def test_fault_of_a_bucket_is_reported_without_its_own_text(
    store: S3Files, url: str, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await store.probe() == ""
    nowhere = "s3://bucket?endpoint=http://127.0.0.1:9&region=x"
    for other, reason in (
        (url.replace("s3://bucket/", "s3://unknown/"), "there is no such bucket"),
        (nowhere, "it cannot be reached"),
    ):
        wrong = store_in("", redis, SystemClock(), url=other)
        assert await wrong.probe() == f"DIRECTOR_FILES_URL: {reason}"


async def test_api_without_its_bucket_says_so_and_serves_the_rest(
    server: RedisServer, redis: Redis, store: S3Files, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ApiSettings(redis_url=server.url, files_url=url.replace("s3://bucket/", "s3://unknown/"))
    async with api_client(settings, token=await Accounts(redis).create_token(ACCOUNT)) as client:
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["files"]) == (200, "DIRECTOR_FILES_URL: there is no such bucket")
        assert (await client.get("/v1/account")).status_code == 200
    assert [record.message for record in caplog.records].count("the file store does not work") == 1
    async with api_client(replace(settings, files_url=url)) as client:
        assert "files" not in (await client.get("/readyz")).json()
