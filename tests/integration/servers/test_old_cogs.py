"""Test what differs between real Cog servers of several ages, beyond the promises of every runner."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
from msgspec import Raw

from director.core.runner_config import CogConfig
from director.servers.runners import RunnerOptions
from director.servers.runners.cog import CogRunner
from director.servers.runners.inbox import Inbox
from director.servers.runners.runner import Began, HealthStatus, Outcome, Produced, RunEvent, RunRequest
from tests.support.cog import cog_process, write_model
from tests.support.eventually import eventually
from tests.support.runner_conformance import HOSTLESS, follow, opened, python_with, the_end

pytestmark = [pytest.mark.cog, pytest.mark.heavy]

ID = "a" * 26
DEAF = ("0.9", "0.11", "0.12")  # they hear nothing during a run that may make files
COGS = ("0.9", "0.10.0a27", "0.11", "0.12", "0.13", "0.14", "0.15", "0.16")
MODEL = """
    import tempfile, time
    from typing import Iterator
    from cog import BaseModel, BasePredictor, Path

    def file(text):
        path = Path(tempfile.mkdtemp()) / "a.bin"
        path.write_bytes(text)
        return path

    class Files(BasePredictor):
        def predict(self, then: str = "") -> Iterator[Path]:
            for number in range(3):
                print("file", number)
                yield file(bytes([number, 255]))
                time.sleep(0.05)  # the model's own time
            if then == "raise":
                raise ValueError("it went wrong")
            if then == "hang":
                time.sleep(3)  # the model's own time

    class Weights(BaseModel):
        weights: Path

    def train(data: str) -> Weights:
        while data == "hang":
            time.sleep(0.01)  # the server cancels between two steps of Python
        return Weights(weights=file(data.encode()))
"""


def request(**given: object) -> RunRequest:
    return RunRequest(id=ID, input=Raw(msgspec.json.encode(given)))


@asynccontextmanager
async def old_cog(
    version: str, folder: Path, inbox: Inbox, *, stub: str, trains: bool = False
) -> AsyncGenerator[CogRunner, None]:
    python = await anyio.to_thread.run_sync(python_with, version)
    write_model(folder, MODEL)
    (folder / "cog.yaml").write_text(f'{"train" if trains else "predict"}: "predict.py:{stub}"\n')
    every = {"COG_THROTTLE_RESPONSE_INTERVAL": "0"}  # otherwise it reports output at most twice a second
    async with (
        cog_process(
            folder,
            stub=f"predict.py:{stub}",
            python=python,
            env=every,
            trains=trains,
            takes_host=version not in HOSTLESS,
        ) as server,
        opened(CogRunner(CogConfig(), RunnerOptions(url=server.url, inbox=inbox, trains=trains))) as runner,
    ):
        await eventually(runner.health, "it is ready", until=lambda health: health.status is HealthStatus.READY)
        yield runner


def shown(events: list[RunEvent]) -> list[str]:
    ended = the_end(events)
    whole = [] if ended.output is None else msgspec.json.decode(ended.output)
    return [msgspec.json.decode(event.item) for event in events if isinstance(event, Produced)] + whole


@pytest.mark.parametrize("version", COGS)
async def test_files_are_never_shown_as_paths_on_the_disk_of_the_server(
    version: str, tmp_path: Path, inbox: Inbox
) -> None:
    async with old_cog(version, tmp_path, inbox, stub="Files") as runner:
        succeeded = await follow(runner, request())
        failed = await follow(runner, request(then="raise"))
        async with aclosing(runner.run(request(then="hang"))) as run:
            assert await anext(run) == Began()
            await asyncio.sleep(1)  # it is not sure to act on a cancel in the first ms
            canceling = asyncio.create_task(runner.cancel(ID))
            canceled = [event async for event in run]
            await canceling
    outcomes = [the_end(events).outcome for events in (succeeded, failed, canceled)]
    assert outcomes[:2] == [Outcome.SUCCEEDED, Outcome.FAILED]
    assert len(msgspec.json.decode(the_end(succeeded).output or b"")) == 3
    assert [file for events in (succeeded, failed, canceled) for file in shown(events) if file[:5] != "data:"] == []


@pytest.mark.parametrize("version", COGS)
async def test_training_returns_its_weights(version: str, tmp_path: Path, inbox: Inbox) -> None:
    async with old_cog(version, tmp_path, inbox, stub="train", trains=True) as runner:
        ended = the_end(await follow(runner, request(data="poems")))
    assert (ended.outcome, ended.error) == (Outcome.SUCCEEDED, None)
    assert msgspec.json.decode(ended.output or b"")["weights"].startswith("data:")


@pytest.mark.parametrize("version", [version for version in COGS if version not in DEAF])
async def test_canceled_training_ends(version: str, tmp_path: Path, inbox: Inbox) -> None:
    async with (
        old_cog(version, tmp_path, inbox, stub="train", trains=True) as runner,
        aclosing(runner.run(request(data="hang"))) as run,
    ):
        assert await anext(run) == Began()
        await asyncio.sleep(0.5)  # it is not sure to act on a cancel in the first ms
        with anyio.fail_after(20):
            assert await runner.cancel(ID)
            assert the_end([event async for event in run]).outcome is Outcome.CANCELED
