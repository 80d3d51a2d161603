import asyncio
import logging
from pathlib import Path

import pytest
from redis.asyncio import Redis

from director.files.choose import StoreCheck
from director.files.local import LocalFiles
from director.files.store import Links
from director.runtime.metrics import Registry
from tests.support.clock import FakeClock


class ToldStore(LocalFiles):
    def __init__(self) -> None:
        self.says: str | Exception = ""
        self.asked = 0

    async def probe(self) -> str:
        self.asked += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.fixture
def store() -> ToldStore:
    return ToldStore()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def check(store: ToldStore, clock: FakeClock) -> StoreCheck:
    return StoreCheck(store, clock)


async def test_working_store_is_asked_after_a_minute(check: StoreCheck, store: ToldStore, clock: FakeClock) -> None:
    assert [await check.missing() for _ in range(3)] == ["", "", ""]
    clock.pass_time(59)
    await check.missing()
    assert store.asked == 1
    clock.pass_time(2)
    await check.missing()
    assert store.asked == 2


async def test_broken_store_is_logged_once_and_checked_again_soon(
    check: StoreCheck, store: ToldStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    store.says = "there is no such bucket"
    with caplog.at_level(logging.INFO, logger="director.files.choose"):
        for _ in range(3):
            assert await check.missing() == "there is no such bucket"
            clock.pass_time(6)
        store.says = ""
        assert await check.missing() == ""
    assert [record.message for record in caplog.records] == [
        "the file store does not work",
        "the file store works again",
    ]


async def test_gauge_shows_whether_the_store_works(store: ToldStore, clock: FakeClock) -> None:
    up = Registry("keeper").files_up
    check = StoreCheck(store, clock, up=up)
    shown = []
    for says in ("there is no such bucket", ""):
        store.says = says
        clock.pass_time(6)
        await check.missing()
        shown += [sample.value for family in up.collect() for sample in family.samples]
    assert shown == [0, 1]


async def test_whatever_it_raises_is_told_without_its_words(check: StoreCheck, store: ToldStore) -> None:
    store.says = RuntimeError("https://secret")
    assert await check.missing() == "the file store fails: RuntimeError"


async def test_hanging_store_is_reported(check: StoreCheck, store: ToldStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(store, "probe", hang)
    monkeypatch.setattr("director.files.choose.LONGEST_S", 0.01)
    assert await check.missing() == "the file store did not answer within 0.01 s"


async def test_concurrent_checks_share_one_probe(check: StoreCheck, store: ToldStore) -> None:
    store.says = "full"
    assert await asyncio.gather(*(check.missing() for _ in range(3))) == ["full"] * 3
    assert store.asked == 1


async def test_file_in_place_of_the_folder_is_reported(tmp_path: Path) -> None:
    links = Links(Redis(), FakeClock())
    (tmp_path / "file").touch()
    told = [await LocalFiles(tmp_path / each, links).probe() for each in ("new/folder", ".", "file")]
    assert told == ["", "", f"DIRECTOR_FILES_DIR: {tmp_path / 'file'} cannot be written"]
