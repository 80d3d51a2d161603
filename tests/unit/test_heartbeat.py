"""How the beat goes on: through a Redis that is away, and through what nobody foresaw."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis import exceptions

from director.core.errors import BackendUnavailable
from director.core.ids import QueueName
from director.heartbeat import Heartbeat
from director.holdings import Holdings
from tests.support.clock import FakeClock
from tests.support.eventually import eventually

pytestmark = pytest.mark.anyio

LEASE_S = 15.0


class Beating:
    """A heartbeat whose beats go as `answers` say, one each; after them all go well. Nobody can listen for kicks."""

    def __init__(self, *answers: Exception) -> None:
        self.answers = list(answers)
        self.beats = 0
        self.clock = FakeClock()
        parts: Any = {"scripts": self, "redis": self}
        self.heartbeat = Heartbeat(
            queue=QueueName("acme/echo:a1a1a1a1a1a1"),
            name="d1",
            holdings=Holdings(),
            clock=self.clock,
            lease_s=LEASE_S,
            **parts,
        )

    async def extend(self, *_: object, **__: object) -> list[object]:
        self.beats += 1
        if self.answers:
            raise self.answers.pop(0)
        return []

    def pubsub(self) -> object:
        raise exceptions.ConnectionError("away")

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[asyncio.Task[None]]:
        task = asyncio.create_task(self.heartbeat.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait({task})


@pytest.mark.parametrize(("fault", "shows_traceback"), [(BackendUnavailable("away"), False), (ValueError("odd"), True)])
async def test_a_beat_that_fails_is_logged_and_repeated_well_before_the_lease_ends(
    fault: Exception, shows_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    beating = Beating(fault)
    async with beating.running():
        await eventually(lambda: caplog.records, "it is logged")
        assert [record.exc_info is not None for record in caplog.records] == [shows_traceback]
        beating.clock.pass_time(LEASE_S / 15)
        await eventually(lambda: beating.beats, "it beats again", until=(2).__eq__)


async def test_a_heartbeat_that_is_canceled_ends() -> None:
    beating = Beating()
    async with beating.running() as task:
        await eventually(lambda: beating.beats, "it beats")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
