import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any

import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.broker import keys
from director.core.errors import SettingsError
from director.core.ids import PredictionId
from director.files.choose import store_in
from director.files.local import LocalFiles
from director.files.store import FileName, Links, file_name
from tests.support.clock import FakeClock
from tests.support.disk import fill, small_disk
from tests.support.eventually import turns

MINE = PredictionId("0000000006t400wpj8v495436g")  # of acme/echo
YOURS = PredictionId(MINE[:-3] + ("0" if MINE[-3] != "0" else "1") + MINE[-2:])  # in the same folder of the store


@pytest.fixture
def store(tmp_path: Path) -> LocalFiles:
    store = store_in(str(tmp_path / "files"), Redis(), FakeClock(), writes=True)
    assert store is not None
    return store


async def content(store: LocalFiles, name: FileName) -> tuple[str, bytes] | None:
    file = await store.open(name)
    if file is None:
        return None
    data = b"".join([chunk async for chunk in file.read(0, file.size)])
    assert len(data) == file.size
    return file.content_type, data


async def put(store: LocalFiles, prediction_id: PredictionId, data: bytes, kind: str = "image/png") -> FileName:
    name = file_name(prediction_id, data, content_type=kind)
    await store.put(name, data, content_type=kind)
    return name


async def holders(store: LocalFiles, most: int = 100) -> list[list[str]]:
    return [sorted(portion) async for portion in store.holders(most)]


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"line\nline\n", b"\x00" * 700_000], ids=["empty", "newline", "text", "large"]
)
async def test_what_was_put_is_had_again_with_its_type(store: LocalFiles, data: bytes) -> None:
    for _ in range(2):
        name = await put(store, MINE, data, "audio/x-wav")
        assert await content(store, name) == ("audio/x-wav", data)


async def test_full_disk_refuses_a_file_leaves_nothing_and_heals(tmp_path: Path) -> None:
    data = b"x" * 700_000

    async def blocks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 1000):
            yield data[start : start + 1000]

    with small_disk(tmp_path / "disk", mib=1) as disk:
        store = store_in(str(disk), Redis(), FakeClock(), writes=True)
        assert store is not None
        name = file_name(MINE, data, content_type="image/png")
        await store.put(name, data, content_type="image/png")
        other = file_name(YOURS, data, content_type="image/png")
        for given in (data, blocks()):
            with pytest.raises(OSError, match="No space left"):
                await store.put(other, given, content_type="image/png")
            assert sum(path.stat().st_size for path in disk.rglob("*") if path.is_file()) < 800_000
        ballast = fill(disk)
        assert store_in(str(disk), Redis(), FakeClock(), writes=True) is not None, "a process starts meanwhile"
        shutil.rmtree(ballast)
        await store.remove(MINE)
        await store.put(other, blocks(), content_type="image/png")
        assert await store.open(other) is not None


async def test_canceled_put_leaves_no_file(store: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, may_open = threading.Event(), threading.Event()
    opened: list[IO[bytes]] = []
    real = Path.open

    def slow(path: Path, *args: Any, **more: Any) -> IO[bytes]:
        opening.set()
        may_open.wait(30)
        opened.append(real(path, *args, **more))
        return opened[0]

    async def blocks() -> AsyncIterator[bytes]:
        yield b"data"

    monkeypatch.setattr(Path, "open", slow)
    name = file_name(MINE, b"data", content_type="text/plain")
    putting = asyncio.ensure_future(store.put(name, blocks(), content_type="text/plain"))
    await to_thread.run_sync(opening.wait, 30)
    putting.cancel()
    await turns()
    may_open.set()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert [file.closed for file in opened] == [True]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("image/png", "png"),
        ("image/jpeg", "jpg"),
        ("image/svg+xml", "svg"),
        ("audio/x-wav", "wav"),
        ("text/plain; charset=utf-8", "txt"),
        ("application/vnd.some-thing", "bin"),
    ],
)
def test_file_name_depends_on_prediction_bytes_and_type(kind: str, ending: str) -> None:
    name = file_name(MINE, b"data", content_type=kind)
    assert str(name).startswith(f"{MINE}-")
    assert str(name).endswith(f".{ending}")
    assert FileName.parse(str(name)) == name
    assert str(name) != str(file_name(MINE, b"other", content_type=kind))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        f"../{MINE}-{'a' * 32}.png",
        f"{MINE}-{'a' * 32}.png/..",
        f"{MINE}-{'a' * 32}./etc",
        f"{MINE}-{'a' * 32}..png",
        f"{MINE}-{'A' * 32}.png",
        f"{MINE}-{'a' * 31}.png",
        f"{MINE}-{'a' * 32}.png\n",
        f"{'.' * 26}-{'a' * 32}.png",
        f"{'u' * 26}-{'a' * 32}.png",
    ],
)
def test_what_is_no_name_never_becomes_a_path(text: str) -> None:
    assert FileName.parse(text) is None


async def test_only_the_files_of_one_prediction_are_removed(store: LocalFiles) -> None:
    mine, yours = await put(store, MINE, b"mine"), await put(store, YOURS, b"yours")
    await put(store, MINE, b"another")
    assert await holders(store) == [sorted([MINE, YOURS])]
    for _ in range(2):
        await store.remove(MINE)
        assert await holders(store) == [[YOURS]]
    assert await content(store, mine) is None
    assert await content(store, yours) == ("image/png", b"yours")


async def test_holders_come_in_portions_without_foreign_folders(store: LocalFiles, tmp_path: Path) -> None:
    for one in (MINE, YOURS):
        await put(store, one, b"data")
    (tmp_path / "files" / "README").touch()
    for name in ("lost+found", "0"):
        (tmp_path / "files" / name).symlink_to(name)  # not even root can list it
    (tmp_path / "files" / MINE[-2:] / "README").touch()
    portions = await holders(store, most=1)
    assert sorted([each for portion in portions for each in portion]) == sorted([MINE, YOURS])
    assert max(map(len, portions)) == 1


async def test_unwritable_store_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"DIRECTOR_FILES_DIR: .* cannot be written"):
        store_in(str(tmp_path / "file" / "files"), Redis(), FakeClock(), writes=True)
    assert store_in("", Redis(), FakeClock(), writes=True) is None


@pytest.mark.parametrize(
    "url",
    ["http://bucket", "s3://", "s3://key:secret@bucket", "s3://bucket?secret=x"],
    ids=["no s3", "no bucket", "a key in it", "an unknown option"],
)
def test_what_names_no_bucket_is_said_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match="DIRECTOR_FILES_URL") as refused:
        store_in("", Redis(), FakeClock(), url=url)
    assert "key:secret" not in str(refused.value)


async def test_file_appears_when_complete(store: LocalFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = file_name(MINE, b"data", content_type="image/png")
    seen: list[Any] = []
    sync = os.fsync

    def look(descriptor: int) -> None:
        seen.append((tmp_path / "files" / MINE[-2:] / MINE / f"{name.digest}.png").exists())
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    await store.put(name, b"data", content_type="image/png")
    assert seen[:2] == [False, True]


async def test_address_is_valid_for_its_file_until_it_expires(redis: Redis) -> None:
    clock = FakeClock()
    links = Links(redis, clock)
    expires_s = clock.now_ms() // 1000 + 60
    url = await links.sign("a.png", base="http://x", expires_s=expires_s)
    start, _, signature = url.partition("&signature=")
    assert start == f"http://x/v1/outputs/a.png?expires={expires_s}"

    async def good(name: str = "a.png", expires: str = str(expires_s), signature: str = signature) -> bool:
        return await Links(redis, clock).are_good(name, of=MINE, expires=expires, signature=signature)

    assert await good()
    for expires in (str(expires_s + 1), "", "9" * 400):
        assert not await good(expires=expires)
    for changed in (signature[:-1] + ("0" if signature[-1] != "0" else "1"), "é", ""):
        assert not await good(signature=changed)
    assert not await good(name="b.png")
    clock.pass_time(61)
    assert not await good()
    await redis.hset(keys.output_data(MINE), "output", "1")
    await redis.expire(keys.output_data(MINE), 60)
    assert await good(), "the data came to be kept for longer"
    assert not await good(name="b.png")


async def test_all_processes_share_a_secret_that_survives_an_emptied_server(redis: Redis) -> None:
    clock = FakeClock()
    first, second = Links(redis, clock), Links(redis, clock)
    url = await first.sign("a", base="", expires_s=10**10)
    assert await second.sign("a", base="", expires_s=10**10) == url
    await redis.flushall()
    clock.pass_time(10)
    assert await second.sign("a", base="", expires_s=10**10) == url
    assert await redis.get(keys.secret("outputs"))
    assert await Links(redis, clock).sign("a", base="", expires_s=10**10) == url
