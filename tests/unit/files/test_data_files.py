import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import Raw
from redis.asyncio import Redis

from director.core.errors import BackendUnavailable
from director.core.ids import PredictionId
from director.core.schema import Reference, reference_in
from director.files.choose import store_in
from director.files.data_files import AWAY_S, DataFiles
from director.files.store import FileName, FileStore, OpenFile
from tests.support.clock import FakeClock
from tests.unit.files.test_files import MINE, YOURS

FROM = 1024
LARGE = b'"' + b"x" * FROM + b'"'


class FaultyStore:
    """The store of a folder, which fails while `fault` is set."""

    def __init__(self, store: FileStore) -> None:
        self.fault: Exception | None = None
        self.asked = 0
        self._store = store

    async def put(self, name: FileName, data: bytes | AsyncIterator[bytes], *, content_type: str) -> None:
        self.asked += 1
        if self.fault:
            raise self.fault
        await self._store.put(name, data, content_type=content_type)

    async def open(self, name: FileName) -> OpenFile | None:
        self.asked += 1
        if self.fault:
            raise self.fault
        return await self._store.open(name)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> FaultyStore:
    found = store_in(str(tmp_path / "files"), Redis(), clock)
    assert found is not None
    return FaultyStore(found)


@pytest.fixture
def files(store: FileStore, clock: FakeClock) -> DataFiles:
    return DataFiles(clock, store, from_bytes=FROM)


async def test_large_data_is_read_again_by_its_reference(files: DataFiles) -> None:
    kept = await files.put(MINE, LARGE)
    assert reference_in(kept) == Reference(reference_in(kept).digest, len(LARGE))  # type: ignore[union-attr]
    assert bytes(await files.read(MINE, Raw(kept)) or b"") == LARGE
    assert await files.put(MINE, LARGE[: FROM - 1]) == LARGE[: FROM - 1]


async def test_a_reference_reaches_no_file_of_another_prediction(files: DataFiles) -> None:
    kept = await files.put(MINE, LARGE)
    with pytest.raises(BackendUnavailable):
        await files.read(YOURS, Raw(kept))


async def test_without_the_setting_or_a_store_data_stays(store: FileStore, clock: FakeClock) -> None:
    for files in (DataFiles(clock, store), DataFiles(clock, from_bytes=FROM)):
        assert await files.put(MINE, LARGE) is LARGE
        assert await files.read(MINE, Raw(LARGE)) == Raw(LARGE)


async def test_references_are_read_while_the_setting_is_off(
    files: DataFiles, store: FileStore, clock: FakeClock
) -> None:
    kept = await files.put(MINE, LARGE)
    assert bytes(await DataFiles(clock, store).read(MINE, Raw(kept)) or b"") == LARGE
    with pytest.raises(BackendUnavailable, match="this process knows none"):
        await DataFiles(clock).read(MINE, Raw(kept))


@pytest.mark.parametrize("fault", [OSError("away"), TimeoutError(), ValueError("anything")])
async def test_data_stays_while_the_store_is_away(
    files: DataFiles, store: FaultyStore, clock: FakeClock, fault: Exception
) -> None:
    store.fault = fault
    assert [await files.put(MINE, LARGE) for _ in range(3)] == [LARGE] * 3
    assert store.asked == 1, "no other caller waits for it"
    clock.pass_time(AWAY_S)
    assert await asyncio.gather(*(files.put(MINE, LARGE) for _ in range(3))) == [LARGE] * 3
    assert store.asked == 2, "one caller tries it"
    store.fault = None
    clock.pass_time(AWAY_S)
    assert reference_in(await files.put(MINE, LARGE)) is not None
    assert reference_in(await files.put(MINE, LARGE)) is not None


async def test_readers_wait_for_a_silent_store_one_at_a_time(
    files: DataFiles, store: FaultyStore, clock: FakeClock
) -> None:
    async def read(prediction_id: PredictionId) -> bool:
        try:
            return await files.read(prediction_id, kept) == Raw(LARGE)
        except BackendUnavailable:
            return False

    kept, store.asked = Raw(await files.put(MINE, LARGE)), 0
    assert [await read(YOURS), await read(MINE)] == [False, True], "a lost file is no silence"
    store.fault = TimeoutError()
    assert [await read(MINE) for _ in range(3)] == [False] * 3
    assert store.asked == 3
    store.fault = None
    clock.pass_time(AWAY_S)
    assert [await read(MINE), await read(MINE)] == [True, True]


@pytest.mark.parametrize("size", [0, len(LARGE) - 1, len(LARGE) + 1])
async def test_a_file_of_another_size_is_not_read(files: DataFiles, tmp_path: Path, size: int) -> None:
    kept = await files.put(MINE, LARGE)
    [path] = (tmp_path / "files").rglob("*~")
    head = path.read_bytes().split(b"\n")[0] + b"\n"
    path.write_bytes(head + b"x" * size)
    with pytest.raises(BackendUnavailable):
        await files.read(MINE, Raw(kept))
    path.unlink()
    with pytest.raises(BackendUnavailable):
        await files.read(MINE, Raw(kept))
