"""Check what a run notes of the machine itself."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from director.lab.chaos import run
from director.lab.chaos.journal import Fault, Journal, read


@pytest.mark.parametrize(("took_ms", "noted"), [(run.SLOW_MS, 1), (run.SLOW_MS - 1, 0)])
async def test_a_disk_that_stands_still_is_noted_as_a_fault(
    took_ms: int, noted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = anyio.Event()

    async def one_sync(sync: Callable[[int], int], file: int) -> int:
        assert sync(file) < 60_000, "it really writes"
        return took_ms

    async def after_it(_: float) -> None:
        synced.set()
        await anyio.Event().wait()

    monkeypatch.setattr(run.to_thread, "run_sync", one_sync)
    monkeypatch.setattr(run.anyio, "sleep", after_it)
    path = tmp_path / "nemesis.jsonl"
    with closing(Journal(path)) as journal:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run.watch_disk, tmp_path, journal)
            await synced.wait()
            tasks.cancel_scope.cancel()
    faults = [line for line in read(path) if isinstance(line, Fault)]
    assert [(fault.kind, fault.target, fault.phase) for fault in faults] == [
        ("slow_disk", "redis", "begin"),
        ("slow_disk", "redis", "end"),
    ] * noted
    assert [end.at - begin.at for begin, end in zip(faults[::2], faults[1::2], strict=True)] == [took_ms] * noted
    assert (tmp_path / "disk").stat().st_size == 512
