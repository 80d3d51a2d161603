"""Test that uploads share their places fairly, and that those that only trickle give way."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio
import pytest

from api.services import semaphores
from api.services.semaphores import TRICKLE_BYTES_S, UploadSemaphore


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semaphores, "HURRY_S", 0.05)
    monkeypatch.setattr(semaphores, "TRICKLE_S", 0.05)
    monkeypatch.setattr(semaphores, "PATIENCE_S", 2.0)


@pytest.fixture
async def tasks() -> AsyncIterator[Any]:
    async with anyio.create_task_group() as group:
        yield group
        group.cancel_scope.cancel()


class Uploads:
    """Uploads that go on for ever, and the names of those that gave way."""

    def __init__(self, tasks: Any, semaphore: UploadSemaphore) -> None:
        self.lost: list[str] = []
        self._tasks = tasks
        self._semaphore = semaphore

    async def begin(self, account: str, *, count: int = 1, received: int = 0) -> None:
        for number in range(count):
            await self._tasks.start(self._hold, account, received + number)

    async def _hold(self, account: str, received: int, *, task_status: Any) -> None:
        with suppress(TimeoutError):
            async with self._semaphore.hold(account, received=lambda: received):
                task_status.started()
                await anyio.sleep_forever()
        self.lost.append(f"{account} {received}")


async def test_slowest_upload_of_the_largest_account_gives_way(tasks: Any) -> None:
    uploads = Uploads(tasks, semaphore := UploadSemaphore(4, each=3))
    await uploads.begin("alice", count=3, received=1 << 30)
    await uploads.begin("carol", received=0)
    async with semaphore.hold("bob", received=lambda: 0):
        assert uploads.lost == [f"alice {1 << 30}"]


async def test_four_accounts_that_trickle_keep_no_fifth_from_uploading(tasks: Any) -> None:
    uploads = Uploads(tasks, semaphore := UploadSemaphore(16, each=4))
    for account in ("a", "b", "c", "d"):
        await uploads.begin(account, count=4)
    async with semaphore.hold("bob", received=lambda: 0):
        assert len(uploads.lost) == 1


async def test_only_an_upload_that_trickles_gives_way_to_an_equal_account(tasks: Any) -> None:
    uploads = Uploads(tasks, semaphore := UploadSemaphore(2, each=1))
    await uploads.begin("fast", received=1 << 40)
    await uploads.begin("slow", received=TRICKLE_BYTES_S // 100)
    async with semaphore.hold("bob", received=lambda: 0):
        assert uploads.lost == [f"slow {TRICKLE_BYTES_S // 100}"]


async def test_slow_uploads_of_equal_accounts_keep_their_places(tasks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that gave way would try again from its first byte, and make another one give way."""
    monkeypatch.setattr(semaphores, "TRICKLE_S", 60.0)
    monkeypatch.setattr(semaphores, "PATIENCE_S", 0.3)
    uploads = Uploads(tasks, semaphore := UploadSemaphore(2, each=1))
    await uploads.begin("slow")
    await uploads.begin("slower")
    with pytest.raises(TimeoutError):
        async with semaphore.hold("bob", received=lambda: 0):
            pytest.fail("there was no place")
    assert uploads.lost == []


async def test_place_that_comes_free_takes_none_for_the_next_account(
    tasks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(semaphores, "HURRY_S", 10.0)
    uploads = Uploads(tasks, semaphore := UploadSemaphore(4, each=3))
    await uploads.begin("alice", count=3)
    async with semaphore.hold("carol", received=lambda: 0):
        tasks.start_soon(uploads.begin, "bob")
        tasks.start_soon(uploads.begin, "dave")
        await anyio.wait_all_tasks_blocked()
    await anyio.wait_all_tasks_blocked()  # bob has the place of carol, and dave has not waited for long
    assert uploads.lost == []


async def test_fast_uploads_keep_their_places(tasks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semaphores, "PATIENCE_S", 0.3)
    uploads = Uploads(tasks, semaphore := UploadSemaphore(2, each=1))
    await uploads.begin("one", received=1 << 40)
    await uploads.begin("two", received=1 << 40)
    with pytest.raises(TimeoutError):
        async with semaphore.hold("bob", received=lambda: 0):
            pytest.fail("there was no place")
    assert uploads.lost == []


async def test_account_waits_for_its_own_uploads_alone(tasks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semaphores, "PATIENCE_S", 0.3)
    uploads = Uploads(tasks, semaphore := UploadSemaphore(4, each=2))
    await uploads.begin("alice", count=2)
    await uploads.begin("carol", count=2)
    with pytest.raises(TimeoutError):
        async with semaphore.hold("alice", received=lambda: 0):
            pytest.fail("it has its share")
    assert uploads.lost == []
