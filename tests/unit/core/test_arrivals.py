import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect

from director.core.errors import SettingsError
from director.servers.runners.inbox import PIECE_BYTES, Arrivals, Spool
from director.servers.runners.runner import BLOCK_BYTES, Received, Unreceived
from tests.support.disk import fill, small_disk

PATH = "/uploads/secret/out.png"


class Run:
    def __init__(self) -> None:
        self.told: list[Received | Unreceived] = []

    async def contents(self) -> list[bytes]:
        files = [event.file for event in self.told if isinstance(event, Received)]
        return [b"".join([block async for block in file.blocks()]) for file in files]


def client_of(arrivals: Arrivals) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=Starlette(routes=list(arrivals.routes())))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", trust_env=False)


@asynccontextmanager
async def receiving(most: int) -> AsyncGenerator[tuple[httpx.AsyncClient, Run, Arrivals]]:
    """Expect files of the run "one", at most so many bytes."""
    arrivals, run = Arrivals("secret"), Run()
    async with client_of(arrivals) as client:
        with arrivals.expect("one", run.told.append, most=most):
            yield client, run, arrivals


async def put(
    client: httpx.AsyncClient, content: bytes | AsyncIterator[bytes], *, run: str = "one", kind: str = "image/png"
) -> httpx.Response:
    return await client.put(PATH, content=content, headers={"x-prediction-id": run, "content-type": kind})


async def test_files_are_reported_in_the_order_of_their_beginnings(caplog: Any) -> None:
    begun, rest = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"first, "
        begun.set()
        await rest.wait()
        yield b"slowly"

    async def quick() -> AsyncIterator[bytes]:
        yield b"second"
        rest.set()  # only now, with all of this one sent, may the other one end

    async with receiving(2 * BLOCK_BYTES) as (client, run, _):
        first = asyncio.create_task(put(client, slow()))
        await begun.wait()
        await put(client, quick())
        await first
    assert await run.contents() == [b"first, slowly", b"second"]
    assert caplog.messages == ["files of a run come at the same time: coglet may not list them in the model's order"]


async def test_concurrent_files_are_kept_apart() -> None:
    large = [bytes([i]) * (3 << 20) for i in range(3)]
    async with receiving(10 << 20) as (client, run, _):
        await asyncio.gather(*(put(client, data) for data in large))
    assert await run.contents() == large


@pytest.mark.parametrize("content", [b"", b"x"], ids=["empty", "a byte"])
async def test_small_files_count_as_whole_blocks(content: bytes) -> None:
    async with receiving(3 * BLOCK_BYTES) as (client, _, _):
        answers = [(await put(client, content)).status_code for _ in range(4)]
    assert answers == [201, 201, 201, 413]


async def test_broken_upload_frees_its_disk_space() -> None:
    spool, file = Spool(), b"x" * (PIECE_BYTES + 1)

    async def blocks(*, breaks: bool) -> AsyncIterator[bytes]:
        yield file
        if breaks:
            raise ClientDisconnect

    for _ in range(5):
        with pytest.raises(ClientDisconnect):
            await spool.take(blocks(breaks=True), content_type="image/png")
    kept = [await spool.take(blocks(breaks=False), content_type="image/png") for _ in range(2)]
    assert [b"".join([block async for block in each.blocks()]) for each in kept] == [file, file]
    assert os.fstat(spool._file.fileno()).st_size <= 4 * PIECE_BYTES


async def test_file_without_an_id_belongs_to_the_only_run() -> None:
    async with receiving(BLOCK_BYTES) as (client, run, arrivals):
        assert (await client.put(PATH, content=b"x")).status_code == 201
        with arrivals.expect("two", run.told.append, most=BLOCK_BYTES):
            assert (await client.put(PATH, content=b"x")).status_code == 404
    assert len(run.told) == 1


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("Image/PNG", "image/png"),
        ('text/plain; charset="UTF-8"', "text/plain; charset=utf-8"),
        ("image/png; charset=utf-8", "image/png"),
        ("nonsense", "application/octet-stream"),
        ("text/html\x01", "application/octet-stream"),
        ("a/" + "b" * 5000, "application/octet-stream"),
    ],
)
async def test_invalid_media_types_are_replaced(said: str, kept: str) -> None:
    async with receiving(BLOCK_BYTES) as (client, run, _):
        await put(client, b"x", kind=said)
    [received] = run.told
    assert isinstance(received, Received)
    assert received.file.content_type == kept


async def test_full_temporary_folder_refuses_files_until_it_has_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", mib=1) as disk:
        monkeypatch.setattr("tempfile.tempdir", None)
        monkeypatch.setattr("tempfile._candidate_tempdir_list", lambda: [str(disk)])  # a pod's root is read-only
        monkeypatch.setenv("TMPDIR", str(disk))
        ballast = fill(disk)
        arrivals, run = Arrivals.of("secret"), Run()
        assert arrivals is not None
        async with client_of(arrivals) as client:
            with arrivals.expect("one", run.told.append, most=BLOCK_BYTES):
                assert (await put(client, b"x")).status_code == 507
                shutil.rmtree(ballast)
                assert (await put(client, b"x")).status_code == 201
    assert [type(each) for each in run.told] == [Unreceived, Received]


def test_missing_temporary_folder_is_a_settings_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Arrivals.of("") is None
    assert Arrivals.of("secret") is not None
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(SettingsError, match="TMPDIR"):
        Arrivals.of("secret")
