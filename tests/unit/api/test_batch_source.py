"""The input of a batch is read by ranges, from a store that may lose it meanwhile."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio

from api.batches.source import BLOCK_BYTES, Source
from director.core.ids import new_file_id
from director.files.local import LocalFiles
from director.files.store import CallerFileName
from tests.support.batches import CHAT, line


async def test_input_that_is_deleted_while_it_is_read_ends(tmp_path: Path) -> None:
    store: Any = LocalFiles(tmp_path, SimpleNamespace())  # type: ignore[arg-type]
    name = CallerFileName("acme", new_file_id(1_700_000_000_000), "jsonl")
    await store.put(name, (line("a") + b"\n") * (3 * BLOCK_BYTES // len(line("a"))), content_type="text/plain")

    async def get(_account: str, _id: str) -> Any:
        return SimpleNamespace(stored_as=name)

    services: Any = SimpleNamespace(
        settings=SimpleNamespace(max_body_bytes=1 << 20), caller_files=SimpleNamespace(get=get)
    )
    batch: Any = SimpleNamespace(account="acme", input=name.id, endpoint=CHAT)
    blocks = 0
    with anyio.fail_after(5):
        async for lines in Source(services, store, batch).lines():
            blocks += bool(lines)
            await store.discard(name)
    assert blocks == 1
