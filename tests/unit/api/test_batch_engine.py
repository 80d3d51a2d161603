"""A look for batches starts each as it is leased: what fails later in it strands none."""

from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from api.batches import engine as module
from api.batches.engine import Engine
from director.core.errors import BackendUnavailable, SettingsError
from director.core.ids import FileId, new_file_id

IDS = [new_file_id(1_700_000_000_000 + n) for n in range(3)]


class Played:
    """An engine whose batches end once they are left. `hold`: what a lease of a batch does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[FileId] = []
        self.hold: Callable[[FileId], Awaitable[str]] = self._held
        self.waiting = [("acme", each) for each in IDS]
        self.due: list[tuple[str, FileId]] = []
        self.faults: dict[FileId, Exception] = {}  # of the read of a batch
        self.odd: dict[FileId, Exception] = {}  # of the making of its run
        self.given_back: list[FileId] = []
        monkeypatch.setattr(module, "Lease", self._lease)
        monkeypatch.setattr(module, "BatchRun", lambda batch, *_: self._run_of(batch))
        clock = SimpleNamespace(monotonic=lambda: 0.0, now_ms=lambda: 0, sleep=anyio.sleep)
        services: Any = SimpleNamespace(
            files=object(), gate=SimpleNamespace(is_open=True), clock=clock, scripts=None, redis=None
        )
        self.engine = Engine({"services": services}, SimpleNamespace())  # type: ignore[typeddict-item, arg-type]
        self.engine._batches = SimpleNamespace(waiting=self._waiting, get=self._get)  # type: ignore[assignment]

    async def _waiting(self, *_: object, **__: object) -> Any:
        return self.waiting, self.due

    async def _get(self, account: str, batch_id: FileId) -> Any:
        if batch_id in self.faults:
            raise self.faults[batch_id]
        return SimpleNamespace(id=batch_id, account=account, is_live=(account, batch_id) in self.waiting)

    async def _held(self, _: FileId) -> str:
        return "in_progress"

    def _lease(self, _: object, __: object, batch_id: FileId) -> Any:
        async def give_back() -> None:
            self.given_back.append(batch_id)

        return SimpleNamespace(hold=lambda: self.hold(batch_id), give_back=give_back)

    def _run_of(self, batch: Any) -> Any:
        batch_id = batch.id
        if batch_id in self.odd:
            raise self.odd[batch_id]

        async def run() -> float:
            self.started.append(batch_id)
            await left.wait()
            return 0.0

        left = anyio.Event()
        stop = SimpleNamespace(leave=left.set)
        return SimpleNamespace(batch=batch, run=run, stop=stop)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


async def test_outage_in_a_look_for_batches_strands_none(played: Played) -> None:
    async def hold(batch_id: FileId) -> str:
        if batch_id == IDS[1]:
            raise BackendUnavailable("away")
        return "in_progress"

    played.hold = hold
    async with anyio.create_task_group() as tasks:
        with pytest.raises(BackendUnavailable):
            await played.engine._take(tasks)
        await anyio.sleep(0.01)
        assert played.started == IDS[:1]
        played.hold = played._held
        assert await played.engine._take(tasks) == 2
        await anyio.sleep(0.01)
        assert played.started == IDS
        tasks.cancel_scope.cancel()


async def test_batch_that_cannot_be_read_holds_up_no_other(played: Played) -> None:
    played.faults[IDS[0]] = msgspec.ValidationError("a status of a newer release")
    played.odd[IDS[1]] = SettingsError("Mars/Olympus is no time zone")
    async with anyio.create_task_group() as tasks:
        assert await played.engine._take(tasks) == 1
        assert played.engine._capacity.accounts == {"acme": 1}
        assert played.given_back == IDS[:2]
        tasks.cancel_scope.cancel()


async def test_drain_waits_for_a_batch_that_is_being_leased(played: Played) -> None:
    asked, may_answer = anyio.Event(), anyio.Event()

    async def hold(_: FileId) -> str:
        asked.set()
        await may_answer.wait()
        return "in_progress"

    played.hold = hold
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(played.engine._take, tasks)
            await asked.wait()
            async with anyio.create_task_group() as draining:
                draining.start_soon(played.engine.drain)
                await anyio.lowlevel.checkpoint()
                may_answer.set()
            assert played.started == IDS[:1]
            assert not played.engine._running


async def test_one_account_leaves_slots_for_others(played: Played) -> None:
    accounts = ["acme"] * 100 + ["other"] * 100 + ["third"]
    played.waiting = [(each, new_file_id(1_700_000_000_000 + n)) for n, each in enumerate(accounts)]
    played.due = [("acme", new_file_id(1_700_000_001_000 + n)) for n in range(100)]
    async with anyio.create_task_group() as tasks:
        await played.engine._take(tasks)
        counts = Counter((run.batch.account, run.batch.is_live) for run in played.engine._running.values())
        tasks.cancel_scope.cancel()
    assert counts == {("acme", True): 16, ("other", True): 12, ("third", True): 1, ("acme", False): 16}
