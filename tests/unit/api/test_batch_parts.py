"""Results are recorded before they are stored, and a part that is gone does not hold up the rest."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from api.batches import patience
from api.batches.lines import Outcome
from api.batches.parts import Archive, Buffer
from director.core.errors import BackendFull
from director.core.ids import FileId, new_file_id
from director.files.local import LocalFiles
from director.store.batches import Batch
from director.store.caller_files import CallerFile

ID = new_file_id(1_700_000_000_000)
BATCH = Batch(
    id=ID,
    account="acme",
    api_token="",
    endpoint="",
    input=ID,
    window="24h",
    headers=b"{}",
    base="",
    created=0,
    expires=0,
    status="in_progress",
    total=20,
)


class Played:
    """An archive with files in a folder. `records`: files that Redis knows."""

    def __init__(self, folder: Path) -> None:
        self.store: Any = LocalFiles(folder, SimpleNamespace())  # type: ignore[arg-type]
        self.records: dict[FileId, CallerFile] = {}
        self.seen: list[str] = []
        self.is_full = False
        self.now_s = 0.0
        self.writes = True
        files = SimpleNamespace(keep=self._keep, get=self._get, forget=self._forget)
        services: Any = SimpleNamespace(
            clock=SimpleNamespace(now_ms=lambda: 1_700_000_000_000, monotonic=lambda: self.now_s),
            caller_files=files,
            scripts=SimpleNamespace(stow=self._stow),
            settings=SimpleNamespace(batch_ttl_s=30 * 86400),
            redis=None,
        )
        lease: Any = SimpleNamespace(write=self._write)
        self.archive = Archive(services, self.store, lease, BATCH)
        self.archive._batches = self  # type: ignore[assignment]

    async def commit(self, numbers: Iterable[int]) -> None:
        buffer = Buffer()
        for number in numbers:
            buffer.add(ID, number, f"c{number}", Outcome(status=200, body=b"{}", is_good=True))
        await self.archive.commit(buffer, place="0 0")

    async def _keep(self, file: CallerFile, *, life_ms: int) -> None:
        self.seen.append("asked")
        if self.is_full:
            raise BackendFull("no memory")
        assert life_ms == 30 * 86_400_000
        self.records[file.id] = file

    async def _get(self, _: str, file_id: FileId) -> CallerFile | None:
        return self.records.get(file_id)

    async def _forget(self, _: str, file_id: FileId) -> None:
        self.records.pop(file_id, None)

    async def _stow(self, *_: object, **__: object) -> None: ...

    async def get(self, *_: object) -> Batch:
        return BATCH

    async def forget_lines(self, *_: object) -> None: ...

    async def _write(self, *_: object, **__: object) -> bool:
        return self.writes

    async def stored(self) -> int:
        return sum([len(names) async for names in self.store.callers(100)])


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setattr(patience, "PAUSE_S", 0.01)
    return Played(tmp_path)


async def test_part_is_recorded_before_its_bytes_are_stored(played: Played) -> None:
    played.is_full = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(played.commit, range(3))
        with anyio.fail_after(5):
            while len(played.seen) < 2:  # noqa: ASYNC110 - it looks
                await anyio.sleep(0.01)
        assert await played.stored() == 0
        played.is_full = False
    assert await played.stored() == 1
    assert len(played.records) == 1


async def test_joined_file_has_all_parts_but_the_lost(played: Played) -> None:
    for first in (0, 5, 10):
        await played.commit(range(first, first + 5))
    lost = played.archive.written.parts[1]
    await played.store.discard(lost.name_for("acme"))
    await played._forget("acme", lost.id)
    with anyio.fail_after(5):
        file = await played.archive.join("output")
    assert file is not None
    assert played.archive.lost == {lost.id}
    opened = await played.store.open(file.stored_as)
    text = b"".join([block async for block in opened.read(0, opened.size)])
    assert (text.count(b"\n"), len(text)) == (10, file.size)
    assert played.records[file.id] == file


async def test_part_whose_record_is_there_is_waited_for_an_hour(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    for first in (0, 3):
        await played.commit(range(first, first + 3))
    lost, puts = played.archive.written.parts[1], []
    await played.store.discard(lost.name_for("acme"))
    put = played.store.put

    async def seen(*args: Any, **named: Any) -> None:
        puts.append(args[0])
        await put(*args, **named)

    monkeypatch.setattr(played.store, "put", seen)
    with anyio.move_on_after(0.3):
        await played.archive.join("output")
        raise AssertionError("it was joined without its part")
    assert (played.archive.lost, puts) == (set(), []), "the part before it was copied"
    played.now_s = patience.GONE_S
    with anyio.fail_after(5):
        assert await played.archive.join("output") is not None
    assert (played.archive.lost, len(puts)) == ({lost.id}, 1)


async def test_part_that_comes_back_is_joined(played: Played) -> None:
    await played.commit(range(3))
    name = played.archive.written.parts[0].name_for("acme")
    opened = await played.store.open(name)
    data = b"".join([block async for block in opened.read(0, opened.size)])
    await played.store.discard(name)
    for _ in range(2):
        with anyio.move_on_after(0.1):
            await played.archive.join("output")
            raise AssertionError("it was joined without its part")
        played.now_s += patience.GONE_S - 1
        await played.store.put(name, data, content_type="application/jsonl")
        with anyio.fail_after(5):
            assert await played.archive.join("output") is not None
        await played.store.discard(name)
    assert not played.archive.lost


async def test_commit_that_was_refused_is_not_counted(played: Played) -> None:
    played.writes = False
    with pytest.raises(AssertionError, match="others than its keeper knows"):
        await played.commit(range(3))
