"""Test the upload of files: both official form shapes, access, lifetimes and refusals."""

import asyncio
import base64
import hashlib
import hmac
import json
import os
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

import anyio
import httpx
import pytest
from httpx import AsyncClient
from msgspec import Raw
from msgspec.structs import replace
from redis.asyncio import Redis

from api.files import files as api_files
from api.files.files import BLOCK, OURS
from director.broker import keys
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.data_bytes import FILE_BYTES
from director.core.errors import BackendUnavailable
from director.core.ids import new_file_id
from director.core.settings import ApiSettings
from director.files.choose import store_in
from director.files.local import LocalFiles
from director.files.store import CallerFileName, Links
from director.keeper.tidier import Tidied, Tidier
from director.store.accounts import Accounts
from director.store.caller_files import CallerFile, CallerFiles
from tests.support.api import api_client, live_api
from tests.support.bucket import AWS
from tests.support.clock import FakeClock
from tests.support.eventually import eventually
from tests.support.queue_driver import ACCOUNT
from tests.support.servers import RedisServer
from tests.support.uploads import MIB, endless_form, growth_of

DATA = b"\x89PNG\r\n--not a boundary\r\n" * 5_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def settings(server: RedisServer, folder: Path) -> ApiSettings:
    return ApiSettings(redis_url=server.url, files_dir=str(folder), files_ttl_s=3600)


@pytest.fixture
def store(folder: Path, redis: Redis) -> LocalFiles:
    store = store_in(str(folder), redis, SystemClock())
    assert isinstance(store, LocalFiles)
    return store


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def upload(api: AsyncClient, data: bytes = DATA, name: str = "cat.png", **fields: str) -> dict[str, Any]:
    answer = await api.post("/v1/files", files={"content": (name, data, "image/png")}, data=fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def address_of(redis: Redis, file: dict[str, Any], *, owner: str = ACCOUNT, seconds: int = 60) -> str:
    expires_s = SystemClock().now_ms() // 1000 + seconds
    return await Links(redis, SystemClock()).download(
        owner, file["id"], name=file["name"], base="http://director.test", expires_s=expires_s
    )


async def test_upload_of_the_python_client_becomes_a_file(api: AsyncClient) -> None:
    file = await upload(api, metadata='{"a": [1, {}]}')
    assert file["name"] == "cat.png"
    assert file["content_type"] == "image/png"
    assert file["size"] == len(DATA)
    assert file["checksums"] == {"sha256": hashlib.sha256(DATA).hexdigest(), "md5": hashlib.md5(DATA).hexdigest()}  # noqa: S324
    assert file["etag"] == file["checksums"]["md5"]
    assert file["metadata"] == {"a": [1, {}]}
    assert file["urls"] == {"get": f"http://director.test/v1/files/{file['id']}"}
    assert (await api.get(file["urls"]["get"])).json() == file
    lifetime = datetime.fromisoformat(file["expires_at"]) - datetime.fromisoformat(file["created_at"])
    assert lifetime == timedelta(hours=1)


async def test_upload_of_the_javascript_client_becomes_a_file(api: AsyncClient) -> None:
    answer = await api.post(
        "/v1/files",
        files=[
            ("content", ("blob_1700000000000", b"data", "text/plain")),
            ("metadata", ("blob", b'{"k":"v"}', "application/json")),
        ],
    )
    assert answer.status_code == 201
    file = answer.json()
    assert (file["name"], file["content_type"]) == ("blob_1700000000000", "text/plain")
    assert file["metadata"] == {"k": "v"}
    assert answer.headers["location"] == file["urls"]["get"]


async def test_form_fields_override_the_header_of_the_file(api: AsyncClient) -> None:
    file = await upload(api, filename="katze 🐈.webp", type="image/webp")
    assert (file["name"], file["content_type"], file["metadata"]) == ("katze 🐈.webp", "image/webp", {})


@pytest.mark.parametrize(
    ("given", "kept_as"),
    [("../../etc/passwd", "passwd"), ("C:\\temp\\x.png", "x.png"), ("", "file"), ("a/", "file"), ("a\nb", "a�b")],
    ids=["slashes", "backslashes", "none", "folder", "newline"],
)
async def test_name_of_a_file_is_never_a_path(api: AsyncClient, given: str, kept_as: str) -> None:
    assert (await upload(api, filename=given, name="file"))["name"] == kept_as


async def test_empty_file_is_accepted(api: AsyncClient) -> None:
    file = await upload(api, b"")
    assert (file["size"], file["etag"]) == (0, "d41d8cd98f00b204e9800998ecf8427e")


async def test_invalid_content_type_becomes_octet_stream(api: AsyncClient) -> None:
    assert (await upload(api, type="text/html\r\nX-Evil: 1"))["content_type"] == "application/octet-stream"


async def test_deletion_removes_the_file_and_its_bytes(api: AsyncClient, folder: Path, redis: Redis) -> None:
    file = await upload(api)
    address = await address_of(redis, file)
    assert len(kept(folder)) == 1
    assert (await api.delete(f"/v1/files/{file['id']}")).status_code == 204
    assert kept(folder) == []
    assert (await api.delete(f"/v1/files/{file['id']}")).status_code == 404
    assert (await api.get(f"/v1/files/{file['id']}")).status_code == 404
    assert (await api.get(address)).status_code == 404
    assert (await api.get("/v1/files")).json()["results"] == []


@pytest.mark.parametrize("name", ["x", "..", "0" * 26, "%2e%2e%2fpasswd", "é"])
async def test_invalid_id_is_not_found(api: AsyncClient, name: str) -> None:
    for answer in (await api.get(f"/v1/files/{name}"), await api.delete(f"/v1/files/{name}")):
        assert answer.status_code == 404
    gone = await api.get(f"/v1/files/{new_file_id(0)}")
    assert (gone.status_code, gone.json()) == (404, {"detail": "File not found", "status": 404})


async def test_long_list_has_pages_in_both_directions(api: AsyncClient) -> None:
    ids = [(await upload(api, b"x"))["id"] for _ in range(103)]
    first = (await api.get("/v1/files")).json()
    second = (await api.get(first["next"])).json()
    back = (await api.get(second["previous"])).json()
    # ids of the same millisecond have no defined order
    assert sorted(file["id"] for page in (first, second) for file in page["results"]) == sorted(ids)
    assert [len(page["results"]) for page in (first, second)] == [100, 3]
    assert (first["previous"], second["next"]) == (None, None)
    assert (back["results"], back["next"] is None) == (first["results"], False)


async def test_signed_address_gives_the_bytes_and_nothing_else(api: AsyncClient, redis: Redis) -> None:
    file = await upload(api, name="a b.html", type="text/html")
    address = await address_of(redis, file)
    assert httpx.URL(address).path == f"/v1/files/{file['id']}/download/a b.html"
    answer = await api.get(address, headers={"Authorization": ""})
    assert (answer.status_code, answer.content) == (200, DATA)
    assert answer.headers["content-type"] == "text/html"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''a%20b.html"
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_range_request_gets_a_part(api: AsyncClient, redis: Redis) -> None:
    address = await address_of(redis, await upload(api))
    whole = await api.get(address)
    assert (whole.status_code, whole.headers["accept-ranges"]) == (200, "bytes")
    etag, size = whole.headers["etag"], len(DATA)
    for asked, start, stop in (("0-9", 0, 10), (f"{size - 5}-", size - 5, size), ("-7", size - 7, size)):
        part = await api.get(address, headers={"Range": f"bytes={asked}", "If-Range": etag})
        assert (part.status_code, part.content) == (206, DATA[start:stop])
        assert part.headers["content-range"] == f"bytes {start}-{stop - 1}/{size}"
        assert part.headers["content-length"] == str(stop - start)
    changed = await api.get(address, headers={"Range": "bytes=0-9", "If-Range": '"another"'})
    assert (changed.status_code, changed.content) == (200, DATA)
    beyond = await api.get(address, headers={"Range": f"bytes={size}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")


async def test_head_request_reads_no_bytes(api: AsyncClient, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    address = await address_of(redis, await upload(api))
    whole = await api.get(address)

    def opened(*_: object) -> NoReturn:
        raise AssertionError("it was opened")

    monkeypatch.setattr("director.files.local._chunks", opened)
    head = await api.head(address, headers={"Range": "bytes=0-9"})
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers == whole.headers


async def test_address_is_signed_as_replicate_documents(api: AsyncClient, redis: Redis) -> None:
    file, expiry = await upload(api), SystemClock().now_ms() // 1000 + 60
    secret = await Links(redis, SystemClock())._read_secret()
    signed = hmac.digest(secret.encode(), f"{ACCOUNT} {file['id']} {expiry}".encode(), "sha256")
    query = f"owner={ACCOUNT}&expiry={expiry}&signature={quote(base64.b64encode(signed), safe='')}"
    assert (await api.get(f"/v1/files/{file['id']}/download?{query}")).content == DATA


async def test_changed_or_expired_address_is_refused(api: AsyncClient, redis: Redis) -> None:
    file, other = await upload(api), await upload(api)
    url = httpx.URL(await address_of(redis, file))
    changed = [
        url.copy_with(query=None),
        url.copy_merge_params({"owner": "other"}),
        url.copy_merge_params({"owner": "a}:token:"}),
        url.copy_merge_params({"expiry": "99999999999"}),
        url.copy_merge_params({"signature": "é"}),
        url.copy_with(path=url.path.replace(file["id"], other["id"])),
        httpx.URL(await address_of(redis, file, seconds=-1)),
        httpx.URL(await address_of(redis, file, owner="other")),
    ]
    for each in changed:
        assert (await api.get(each)).status_code == 404
    assert (await api.get(url)).status_code == 200


async def test_no_files_without_a_store(server: RedisServer, token: str) -> None:
    async with api_client(ApiSettings(redis_url=server.url), token=token) as api:
        answer = await api.post("/v1/files", files={"content": b"x"})
        assert (answer.status_code, answer.json()["code"]) == (501, "not_implemented")
        assert (await api.get("/v1/files")).json() == {"next": None, "previous": None, "results": []}
        assert (await api.get(f"/v1/files/{new_file_id(0)}")).status_code == 404


BOUNDARY = {"content-type": "multipart/form-data; boundary=b"}


def part(name: str, data: bytes = b"x", more: bytes = b"") -> bytes:
    return b'--b\r\ncontent-disposition: form-data; name="%b"%b\r\n\r\n%b\r\n' % (name.encode(), more, data)


END = b"--b--\r\n"
DEEP = b"[" * 200 + b"]" * 200


INVALID_FORMS: dict[str, tuple[dict[str, str], bytes, int]] = {
    "json": ({"content-type": "application/json"}, b"{}", 400),
    "no boundary": ({"content-type": "multipart/form-data"}, b"", 400),
    "long boundary": ({"content-type": f"multipart/form-data; boundary={'b' * 300}"}, b"", 400),
    "long type": ({"content-type": f"multipart/form-data; boundary=b{';' * 2000}"}, part("content") + END, 400),
    "empty": (BOUNDARY, b"", 400),
    "no form": (BOUNDARY, b"no form", 400),
    "no end": (BOUNDARY, part("content"), 400),
    "no name": (BOUNDARY, b"--b\r\ncontent-disposition: form-data\r\n\r\nx\r\n" + END, 400),
    "long header": (BOUNDARY, b"--b\r\nx: " + b"y" * 20_000 + b"\r\n\r\n" + END, 400),
    "many headers": (BOUNDARY, b"--b\r\n" + b"x: y\r\n" * 100 + b"\r\nx\r\n" + END, 400),
    "many parts": (BOUNDARY, part("content") + part("other") * 20 + END, 400),
    "no parts": (BOUNDARY, END, 422),
    "no content": (BOUNDARY, part("metadata", b"{}") + END, 422),
    "two contents": (BOUNDARY, part("content") + part("content") + END, 422),
    "metadata is a list": (BOUNDARY, part("content") + part("metadata", b"[]") + END, 422),
    "metadata is cut": (BOUNDARY, part("content") + part("metadata", b"{") + END, 422),
    "metadata is deep": (
        BOUNDARY,
        part("content") + part("metadata", b'{"a":%b}' % DEEP) + END,
        422,
    ),
    "metadata is long": (BOUNDARY, part("content") + part("metadata", b'{"a":"' + b"x" * 20_000 + b'"}') + END, 422),
    "long name": (BOUNDARY, part("content") + part("filename", b"x" * 256) + END, 422),
    "long name of the part": (BOUNDARY, part("content", more=b'; filename="%b"' % (b"x" * 300)) + END, 422),
}


@pytest.mark.parametrize("name", INVALID_FORMS)
async def test_invalid_form_is_refused_and_nothing_is_kept(
    api: AsyncClient, redis: Redis, folder: Path, name: str
) -> None:
    headers, body, status = INVALID_FORMS[name]
    answer = await api.post("/v1/files", headers=headers, content=body)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    assert kept(folder) == []
    assert await redis.exists(keys.files(ACCOUNT)) == 0


async def test_unknown_form_parts_are_ignored(api: AsyncClient) -> None:
    body = part("color", b"x" * 200_000) + part("content") + part("more") + b"--b--\r\nepilogue"
    answer = await api.post("/v1/files", headers=BOUNDARY, content=body)
    assert (answer.status_code, answer.json()["size"]) == (201, 1)


async def test_form_may_arrive_in_any_pieces(api: AsyncClient) -> None:
    body = part("content", b"\r\n--a\r\n-b" * 20) + part("metadata", b'{"a":1}') + END

    async def byte_by_byte() -> AsyncIterator[bytes]:
        for byte in body:
            yield bytes([byte])

    file = (await api.post("/v1/files", headers=BOUNDARY, content=byte_by_byte())).json()
    assert (file["checksums"]["sha256"], file["metadata"]) == (
        hashlib.sha256(b"\r\n--a\r\n-b" * 20).hexdigest(),
        {"a": 1},
    )


async def test_too_large_file_is_refused_in_replicates_words(
    api: AsyncClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.files.files.OURS", replace(OURS, max_bytes=1 << 20))
    announced = await api.post("/v1/files", files={"content": b"x" * 1_500_000})

    async def unannounced() -> AsyncIterator[bytes]:
        yield part("content", b"x" * ((1 << 20) + 1)) + END

    counted = await api.post("/v1/files", headers=BOUNDARY, content=unannounced())
    for answer in (announced, counted):
        assert answer.status_code == 413
        assert answer.json()["detail"] == "Files must be less than 1MB in size"
    assert kept(folder) == []
    assert (await upload(api, b"x" * (1 << 20)))["size"] == 1 << 20


async def test_stalled_form_is_given_up(api: AsyncClient, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.files.multipart.SILENCE_S", 0.05)

    async def silent() -> AsyncIterator[bytes]:
        yield part("content", b"x" * 600_000)
        await anyio.sleep_forever()

    answer = await api.post("/v1/files", headers=BOUNDARY, content=silent())
    assert (answer.status_code, answer.json()["code"]) == (408, "too_slow")
    assert kept(folder) == []


async def test_trickling_form_is_given_up(api: AsyncClient, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.files.multipart.JUDGED_S", 0.05)

    async def trickle() -> AsyncIterator[bytes]:
        yield part("content", b"x" * 100)[:-2]
        while True:
            await anyio.sleep(0.01)  # a trickle is what is tried
            yield b"x"

    answer = await api.post("/v1/files", headers=BOUNDARY, content=trickle())
    assert (answer.status_code, answer.json()["code"]) == (408, "too_slow")
    assert "16,384 bytes a second" in answer.json()["detail"]
    assert kept(folder) == []


async def test_time_of_the_store_does_not_count_against_the_caller(
    api: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.files.multipart.JUDGED_S", 0.5)
    put = LocalFiles.put

    async def slowly(
        self: LocalFiles, name: CallerFileName, blocks: AsyncIterator[bytes], *, content_type: str
    ) -> None:
        async def dawdling() -> AsyncIterator[bytes]:
            async for block in blocks:
                await anyio.sleep(0.6)  # longer than the limit that is set above
                yield block

        await put(self, name, dawdling(), content_type=content_type)

    monkeypatch.setattr(LocalFiles, "put", slowly)
    await upload(api, b"x" * 300_000)


async def test_unwritable_store_is_a_503(api: AsyncClient, folder: Path) -> None:
    folder.touch()  # a real failure, which root gets too
    answer = await api.post("/v1/files", files={"content": b"x"})
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "unavailable", "5")


async def test_unreachable_bucket_is_a_503(server: RedisServer, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in AWS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("director.files.s3.RETRIES", {"max_retries": 0})
    url = "s3://bucket?endpoint=http://127.0.0.1:9&region=x"
    async with api_client(ApiSettings(redis_url=server.url, files_url=url), token=token) as api:
        answer = await api.post("/v1/files", files={"content": b"x"})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


async def test_sweep_removes_only_expired_and_abandoned_files(
    api: AsyncClient, folder: Path, redis: Redis, scripts: Scripts, store: LocalFiles
) -> None:
    clock = FakeClock(now_ms=SystemClock().now_ms())
    tidier = Tidier(redis, scripts, store, clock)
    expired, living = await upload(api), await upload(api)
    cut_off = new_file_id(clock.now_ms())
    half = folder / "uploads" / ACCOUNT / cut_off[-2:] / f"{cut_off}.part~"
    half.parent.mkdir(exist_ok=True)
    half.write_bytes(b"image/png\nhalf of")
    await redis.delete(keys.file(ACCOUNT, expired["id"]))  # as its lifetime would
    assert await tidier.run_once() == Tidied(seen=3)  # another upload may be about to register it
    clock.pass_time(3601)
    assert await tidier.run_once() == Tidied(seen=3, removed=2)
    assert [path.stem for path in kept(folder)] == [living["id"]]
    assert [file["id"] for file in (await api.get("/v1/files")).json()["results"]] == [living["id"]]
    assert 0 < await redis.pttl(keys.file(ACCOUNT, living["id"])) <= 3_600_000
    assert 0 < await redis.pttl(keys.files(ACCOUNT)) <= 3_600_000


async def test_files_stay_listed_after_the_lifetime_was_lowered(redis: Redis) -> None:
    now_ms = SystemClock().now_ms()
    files = CallerFiles(redis)
    older = a_file(created=now_ms - 7200_000, life_s=86400)
    gone = a_file(created=now_ms - 7100_000, life_s=3600)
    newest = a_file(created=now_ms, life_s=60)
    for each in (older, gone, newest):
        await files.add(each)
    assert await files.ids(ACCOUNT, count=9) == [newest.id, gone.id, older.id]
    await redis.delete(keys.file(ACCOUNT, gone.id))  # as its lifetime would
    await files.add(newest)
    assert await files.ids(ACCOUNT, count=9) == [newest.id, older.id]
    assert await redis.pttl(keys.files(ACCOUNT)) > 3600_000


def a_file(*, created: int, life_s: int) -> CallerFile:
    return CallerFile(
        id=new_file_id(created),
        account=ACCOUNT,
        name="a",
        ending="",
        content_type="text/plain",
        size=1,
        sha256="",
        md5="",
        metadata=Raw(b"{}"),
        created=created,
        expires=created + life_s * 1000,
    )


async def test_canceled_upload_leaves_nothing(server: RedisServer, redis: Redis, token: str, folder: Path) -> None:
    async with live_api(server.url, env={"DIRECTOR_FILES_DIR": str(folder)}) as live:
        port = httpx.URL(live.url).port
        stream = await anyio.connect_tcp("127.0.0.1", port or 0)
        head = f"POST /v1/files HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: 5000000\r\n"
        await stream.send(head.encode() + b"content-type: multipart/form-data; boundary=b\r\n\r\n")
        await stream.send(part("content", b"x" * 1_000_000)[:-2])
        await eventually(lambda: kept(folder), "it comes")
        await stream.aclose()
        await eventually(lambda: not kept(folder), "nothing is left of it")


async def test_uploads_and_downloads_are_never_held_whole(
    server: RedisServer, redis: Redis, token: str, folder: Path
) -> None:
    size = 40 * MIB
    async with (
        live_api(server.url, env={"DIRECTOR_FILES_DIR": str(folder)}) as live,
        AsyncClient(headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=60) as client,
    ):
        # the first upload also pays for imports and caches, so it does not count
        warm = await client.post(f"{live.url}/v1/files", files={"content": os.urandom(MIB)})
        assert warm.status_code == 201

        async def up() -> dict[str, Any]:
            headers = {"content-type": "multipart/form-data; boundary=b"}
            answer = await client.post(f"{live.url}/v1/files", headers=headers, content=endless_form(size))
            assert answer.status_code == 201
            file: dict[str, Any] = answer.json()
            assert file["size"] == size
            return file

        file, grew_up = await growth_of(live.process.pid, up)
        address = (await address_of(redis, file)).replace("http://director.test", live.url)

        async def down() -> str:
            digest = hashlib.sha256()
            async with client.stream("GET", address) as answer:
                async for chunk in answer.aiter_bytes():
                    digest.update(chunk)
            return digest.hexdigest()

        digest, grew_down = await growth_of(live.process.pid, down)
        assert digest == file["checksums"]["sha256"]
    assert max(grew_up, grew_down) < 16 * MIB


async def limit(redis: Redis, most: int | None) -> None:
    await Accounts(redis).set_limits(ACCOUNT, {"max_files_bytes": "none" if most is None else str(most)})


async def test_file_beyond_the_limit_is_refused_until_another_is_deleted(
    api: AsyncClient, redis: Redis, folder: Path, scripts: Scripts
) -> None:
    await limit(redis, 1_000_000)
    invalid = await api.post("/v1/files", files={"content": bytes(1000)}, data={"metadata": "no object"})
    assert (invalid.status_code, (await scripts.stow(ACCOUNT)).total) == (422, 0)
    await upload(api, bytes(600_000))
    refused = await api.post("/v1/files", files={"content": bytes(400_001)})
    problem = refused.json()
    assert (refused.status_code, problem["code"], problem["limit"]) == (413, "storage_full", 1_000_000)
    assert "delete some" in problem["detail"]
    assert len(kept(folder)) == 1
    assert (await scripts.stow(ACCOUNT)).total == 600_000
    file = await upload(api, bytes(400_000))
    assert (await scripts.stow(ACCOUNT)).total == 1_000_000
    assert (await api.delete(f"/v1/files/{file['id']}")).status_code == 204
    await upload(api, bytes(400_000))


async def test_concurrent_uploads_cannot_exceed_the_limit(api: AsyncClient, redis: Redis, scripts: Scripts) -> None:
    await limit(redis, 1_000_000)
    answers = await asyncio.gather(*(api.post("/v1/files", files={"content": bytes(300_000)}) for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [201, 201, 201, 413]
    assert (await scripts.stow(ACCOUNT)).total == 900_000


async def test_account_without_a_limit_is_counted_but_not_refused(
    api: AsyncClient, redis: Redis, scripts: Scripts, other: AsyncClient
) -> None:
    await limit(redis, None)
    await upload(api, bytes(5000))
    assert (await scripts.stow(ACCOUNT)).total == 5000
    await upload(other, bytes(7))
    assert (await scripts.stow("other")).total == BLOCK


async def data_bytes(redis: Redis) -> int:
    return (await Accounts(redis).usage(ACCOUNT, day=0)).data_bytes


async def test_record_of_a_file_counts_as_data_until_it_is_deleted(api: AsyncClient, redis: Redis) -> None:
    files = [await upload(api, b"", metadata=json.dumps({"x": "y" * size})) for size in (0, 1000)]
    stored = [await redis.strlen(keys.file(ACCOUNT, file["id"])) for file in files]
    assert abs(await data_bytes(redis) - sum(stored) - 2 * FILE_BYTES) < 10
    for file in files:
        assert (await api.delete(f"/v1/files/{file['id']}")).status_code == 204
    assert (await data_bytes(redis), await redis.exists(keys.files(ACCOUNT))) == (0, 0)


async def test_upload_beyond_the_data_of_its_account_is_refused(
    api: AsyncClient, redis: Redis, scripts: Scripts, folder: Path
) -> None:
    await Accounts(redis).set_limits(ACCOUNT, {"max_data_bytes": "3000"})
    answers = [await api.post("/v1/files", files={"content": b"x"}) for _ in range(5)]
    made = [answer for answer in answers if answer.status_code == 201]
    assert [(one.status_code, one.json().get("code")) for one in answers[len(made) :]] == [(429, "data_full")] * (
        5 - len(made)
    )
    assert 1 < len(made) < 5
    assert (len(kept(folder)), (await scripts.stow(ACCOUNT)).total) == (len(made), len(made) * BLOCK)
    assert len((await api.get("/v1/files")).json()["results"]) == len(made)


@pytest.mark.parametrize(("where", "call"), [(CallerFiles, "add"), (Scripts, "enlist")])
async def test_upload_that_is_cut_while_it_is_recorded_leaves_nothing(
    api: AsyncClient,
    redis: Redis,
    scripts: Scripts,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    call: str,
) -> None:
    await upload(api, b"x")
    counted, real, written = await data_bytes(redis), getattr(where, call), list[Any]()

    async def writes_and_hangs(own: Any, file: Any, **options: Any) -> None:
        await real(own, file, **options)
        written.append(file.id if isinstance(file, CallerFile) else file)
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(where, call, writes_and_hangs)
        patched.setattr(api_files, "STORING_S", 1 - api_files.LONGEST_S)
        refused = await api.post("/v1/files", files={"content": b"y"})
    assert (refused.status_code, len(written)) == (408, 1)
    assert len((await api.get("/v1/files")).json()["results"]) == 1
    assert (await data_bytes(redis), len(kept(folder))) == (counted, 1)
    assert not await redis.exists(keys.file(ACCOUNT, written[0]))
    assert (await scripts.stow(ACCOUNT)).total == BLOCK


async def test_file_of_the_former_release_takes_no_count_of_others_with_it(api: AsyncClient, redis: Redis) -> None:
    ours, former = await upload(api, b"x"), await upload(api, b"x")
    counted = await data_bytes(redis)
    key = keys.file(ACCOUNT, former["id"])
    stored = json.loads(await redis.get(key) or b"")
    of_former = stored.pop("counted")
    await redis.set(key, json.dumps(stored), keepttl=True)
    assert (await api.delete(f"/v1/files/{former['id']}")).status_code == 204
    assert await data_bytes(redis) == counted, "it was not counted, so nothing is taken off"
    assert (await api.delete(f"/v1/files/{ours['id']}")).status_code == 204
    assert await data_bytes(redis) == of_former


async def test_metadata_has_at_most_a_kilobyte(api: AsyncClient) -> None:
    for size, status in ((1024, 201), (1025, 422)):
        metadata = json.dumps({"x": "y" * (size - len(json.dumps({"x": ""})))})
        answer = await api.post("/v1/files", files={"content": b"x"}, data={"metadata": metadata})
        assert (len(metadata), answer.status_code) == (size, status)


@pytest.mark.not_on("cluster", why="it fills one server")
async def test_upload_that_a_full_server_refuses_takes_no_room(
    api: AsyncClient, redis: Redis, scripts: Scripts, folder: Path
) -> None:
    """Its caller tries again: each try would take as much, on the disk and of the account's quota."""
    await limit(redis, 1_000_000)
    await upload(api, bytes(7))
    await redis.config_set("maxmemory", "1")
    try:
        refused = await api.post("/v1/files", files={"content": bytes(600_000)})
    finally:
        await redis.config_set("maxmemory", "0")
    assert (refused.status_code, refused.json()["code"]) == (503, "memory_full")
    assert (len(kept(folder)), (await scripts.stow(ACCOUNT)).total) == (1, BLOCK)
    await upload(api, bytes(600_000))


async def test_sweep_uncounts_an_upload_that_was_never_recorded(
    api: AsyncClient, redis: Redis, scripts: Scripts, store: LocalFiles, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upload(api, bytes(7))

    async def full(*_: Any) -> None:
        raise BackendUnavailable("Redis is full")

    with monkeypatch.context() as patched:
        patched.setattr(CallerFiles, "add", full)
        assert (await api.post("/v1/files", files={"content": bytes(1000)})).status_code == 503
    assert (await scripts.stow(ACCOUNT)).total == 2 * BLOCK
    clock = FakeClock(now_ms=SystemClock().now_ms() + 3_601_000)
    await swept_in_spite_of_an_outage(Tidier(redis, scripts, store, clock), monkeypatch)
    assert (len(kept(folder)), (await scripts.stow(ACCOUNT)).total) == (1, BLOCK)


async def test_sweep_uncounts_a_file_whose_deletion_was_cut_short(
    api: AsyncClient, redis: Redis, scripts: Scripts, store: LocalFiles, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await upload(api, bytes(7))
    file = await upload(api, bytes(1000))
    with monkeypatch.context() as patched:
        patched.setattr(Scripts, "stow", away)
        assert (await api.delete(f"/v1/files/{file['id']}")).status_code == 503
    assert (await api.delete(f"/v1/files/{file['id']}")).status_code == 404
    clock = FakeClock(now_ms=SystemClock().now_ms() + 3_601_000)
    await swept_in_spite_of_an_outage(Tidier(redis, scripts, store, clock), monkeypatch)
    assert (len(kept(folder)), (await scripts.stow(ACCOUNT)).total) == (1, BLOCK)


async def away(*_: Any, **__: Any) -> NoReturn:
    raise BackendUnavailable("Redis is away")


async def swept_in_spite_of_an_outage(tidier: Tidier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep while nothing can be uncounted, then sweep again: the first one must leave what the second one needs."""
    with monkeypatch.context() as patched:
        patched.setattr(Scripts, "stow", away)
        with pytest.raises(BackendUnavailable):
            await tidier.run_once()
    assert await tidier.run_once() == Tidied(seen=2, removed=1)
