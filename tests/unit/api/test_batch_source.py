"""The input of a batch is read by ranges, from a store that may lose it meanwhile."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from api.batches import patience
from api.batches.source import BLOCK_BYTES, Source
from director.core.ids import new_file_id
from director.files.local import LocalFiles
from director.files.store import CallerFileName
from tests.support.batches import CHAT, line

NAME = CallerFileName("acme", new_file_id(1_700_000_000_000), "jsonl")
DATA = (line("a") + b"\n") * (3 * BLOCK_BYTES // len(line("a")))


class Played:
    """An input in a folder. `has_record`: whether Redis knows it."""

    def __init__(self, folder: Path) -> None:
        self.store: Any = LocalFiles(folder, SimpleNamespace())  # type: ignore[arg-type]
        self.has_record = True
        self.now_s = 0.0
        services: Any = SimpleNamespace(
            settings=SimpleNamespace(max_body_bytes=1 << 20),
            caller_files=SimpleNamespace(get=self._get),
            clock=SimpleNamespace(monotonic=lambda: self.now_s),
        )
        batch: Any = SimpleNamespace(account="acme", input=NAME.id, endpoint=CHAT)
        self.source = Source(services, self.store, batch)

    async def _get(self, _account: str, _id: str) -> Any:
        return SimpleNamespace(id=NAME.id, stored_as=NAME, size=len(DATA)) if self.has_record else None

    async def put(self, data: bytes = DATA) -> None:
        await self.store.put(NAME, data, content_type="text/plain")


@pytest.fixture
async def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    monkeypatch.setattr(patience, "PAUSE_S", 0.01)
    played = Played(tmp_path)
    await played.put()
    return played


async def test_input_that_is_deleted_while_it_is_read_ends(played: Played) -> None:
    blocks = 0
    with anyio.fail_after(5):
        async for lines in played.source.lines():
            blocks += bool(lines)
            played.has_record = False
            await played.store.discard(NAME)
    assert blocks == 1


async def test_store_that_is_away_for_a_moment_costs_no_line(played: Played) -> None:
    read = 0
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            async for lines in played.source.lines():
                if not read:
                    await played.store.discard(NAME)
                    tasks.start_soon(_after, 0.2, played.put)
                read += len(lines)
    assert read == DATA.count(b"\n")


@pytest.mark.parametrize("left", [None, DATA[:-1]])
async def test_input_without_its_bytes_is_gone_after_an_hour(played: Played, left: bytes | None) -> None:
    await played.store.discard(NAME)
    if left is not None:
        await played.put(left)
    with anyio.move_on_after(0.2):
        await played.source.exists()
        raise AssertionError("it was not waited for")
    played.now_s = patience.GONE_S
    with anyio.fail_after(5):
        assert not await played.source.exists()


async def _after(seconds: float, call: Any) -> None:
    await anyio.sleep(seconds)
    await call()
