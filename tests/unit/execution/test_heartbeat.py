import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from redis import exceptions

from director.core.errors import BackendUnavailable
from director.core.ids import QueueName
from director.execution.active_claims import ActiveClaims
from director.execution.heartbeat import Heartbeat, SelfReport
from director.execution.metering import Metering
from director.servers.runners.runner import Health, HealthStatus
from director.servers.servers import Server, Servers
from director.store.directors import About, ShelfFound
from tests.support.clock import FakeClock
from tests.support.eventually import eventually, turns
from tests.support.scripted_runner import ScriptedRunner

LEASE_S = 15.0


class Beating:
    """A heartbeat whose beats go as `answers` say, one each; after them all go well. Subscriptions fail.

    `told`: (slots, state) of each beat. `held` lets beats wait until it is set.
    """

    def __init__(self, *answers: Exception) -> None:
        self.answers = list(answers)
        self.told: list[tuple[int, str]] = []
        self.abouts: list[About] = []
        self.held = asyncio.Event()
        self.held.set()
        self.servers = Servers([Server(ScriptedRunner(), 2)])
        self.clock = FakeClock()
        parts: Any = {"scripts": self, "redis": self}
        self.heartbeat = Heartbeat(
            queues=[QueueName("acme/echo:a1a1a1a1a1a1")],
            name="d1",
            claims=ActiveClaims(),
            servers=self.servers,
            clock=self.clock,
            lease_s=LEASE_S,
            metering=Metering(),
            report=SelfReport(self.servers, self.clock),
            **parts,
        )

    async def extend(self, _: object, *, slots: int, state: str, about: bytes, **__: object) -> list[object]:
        self.told.append((slots, state))
        self.abouts.append(msgspec.json.decode(about, type=About))
        await self.held.wait()
        if self.answers:
            raise self.answers.pop(0)
        return []

    @property
    def beats(self) -> int:
        return len(self.told)

    def see(self, status: HealthStatus) -> None:
        self.servers.saw(self.servers.all[0], Health(status=status))

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
async def test_failed_heartbeat_is_repeated(
    fault: Exception, shows_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    beating = Beating(fault)
    async with beating.running():
        await eventually(lambda: caplog.records, "it is logged")
        assert [record.exc_info is not None for record in caplog.records] == [shows_traceback]
        beating.clock.pass_time(LEASE_S / 15)
        await eventually(lambda: beating.beats, "it beats again", until=(2).__eq__)


class Deaf:
    """A subscription that loses the first cancellation, as redis-py does on Python 3.11 while it sends."""

    def __init__(self) -> None:
        self.listens = asyncio.Event()
        self.lost = 0

    async def __aenter__(self) -> "Deaf":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def subscribe(self, _: str) -> None: ...

    async def get_message(self, **_: object) -> None:
        self.listens.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.lost += 1
            if self.lost > 1:
                raise


async def test_it_ends_also_where_the_client_loses_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    beating, deaf = Beating(), Deaf()
    monkeypatch.setattr(beating, "pubsub", lambda: deaf)
    async with beating.running() as task:
        await asyncio.wait_for(deaf.listens.wait(), 5)
        task.cancel()
        await asyncio.wait({task}, timeout=5)
        assert task.cancelled()
    assert deaf.lost == 2


async def test_changed_standing_of_servers_is_reported_at_once() -> None:
    beating = Beating()
    async with beating.running():
        await eventually(lambda: beating.beats, "it beats", until=(1).__eq__)
        for status in ("starting", "setup_failed", "setup_failed", "ready", "busy", "unreachable"):
            beating.see(HealthStatus(status))
            await turns(10)
        await eventually(lambda: beating.told[-1], "the last is told", until=(0, "starting").__eq__)
    assert beating.told == [(0, "starting"), (0, "setup_failed"), (2, "ready"), (0, "starting")]


async def test_a_server_that_a_run_made_us_doubt_is_not_counted_on() -> None:
    beating = Beating()
    beating.see(HealthStatus.READY)
    async with beating.running():
        await eventually(lambda: beating.told, "it is told", until=[(2, "ready")].__eq__)
        beating.servers.doubt((await beating.servers.permits.wait())[0])
        await eventually(lambda: beating.told[-1], "it is told", until=(0, "starting").__eq__)


async def test_change_during_a_heartbeat_is_reported_by_the_next() -> None:
    beating = Beating()
    async with beating.running():
        await eventually(lambda: beating.beats, "it beats", until=(1).__eq__)
        beating.held.clear()
        beating.see(HealthStatus.READY)
        await eventually(lambda: beating.beats, "a beat is on its way", until=(2).__eq__)
        beating.see(HealthStatus.STARTING)
        beating.held.set()
        await eventually(lambda: beating.told, "both", until=[(0, "starting"), (2, "ready"), (0, "starting")].__eq__)


async def test_a_drain_is_told_at_once_and_from_then_on() -> None:
    beating = Beating()
    beating.see(HealthStatus.READY)
    async with beating.running():
        await eventually(lambda: beating.beats, "it beats", until=(1).__eq__)
        beating.answers = [BackendUnavailable("away")]
        draining = asyncio.create_task(beating.heartbeat.drain())
        await eventually(lambda: beating.beats, "it tries", until=(2).__eq__)
        await turns(10)
        assert not draining.done(), "no call was answered"
        beating.clock.pass_time(1)
        await asyncio.wait_for(draining, 5)
        beating.see(HealthStatus.READY)
        await turns(10)
    assert beating.told == [(2, "ready"), (0, "draining"), (0, "draining")]


async def test_memory_on_a_device_is_told_once_whatever_queues_are_read() -> None:
    beating = Beating()
    beating.heartbeat.queues = [QueueName("acme/echo:a1a1a1a1a1a1"), QueueName("acme/echo:b2b2b2b2b2b2")]
    beating.heartbeat.shelf = lambda: ShelfFound(machine="box", state="loaded", since_ms=0)
    await beating.heartbeat.run_once()
    assert [about.shelf is not None for about in beating.abouts] == [True, False]
