import asyncio
from collections.abc import AsyncIterator

import anyio
import pytest

from director.core.runner_config import CogConfig
from director.servers.fleet import Driven, Fleet
from director.servers.runners.runner import Health, HealthStatus
from director.servers.servers import Server, Servers
from tests.support.eventually import eventually
from tests.support.scripted_runner import ScriptedRunner

SLOW, FAST = CogConfig(), CogConfig(fast=True)


class Watched:
    """A fleet of scripted runners, which are ready at once."""

    def __init__(self) -> None:
        self.servers = Servers([])
        self.runners: list[tuple[Driven, ScriptedRunner]] = []
        self.watched: set[str] = set()
        self.fleet = Fleet(self.servers, make=self._make, watch=self._watch)

    def _make(self, driven: Driven, slots: int) -> Server:
        runner = ScriptedRunner()
        runner.url = driven.url
        self.runners.append((driven, runner))
        return Server(runner, slots)

    async def _watch(self, server: Server) -> None:
        self.servers.saw(server, Health(status=HealthStatus.READY))
        self.watched.add(server.runner.url)
        try:
            await anyio.sleep_forever()
        finally:
            self.watched.discard(server.runner.url)

    def has(self, *urls: str) -> bool:
        return sorted(server.runner.url for server in self.servers.all) == sorted(urls) and self.watched == set(urls)


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    one = Watched()
    one.fleet.want([Driven("a", SLOW), Driven("b", SLOW)], slots=2)
    running = asyncio.create_task(one.fleet.run())
    await eventually(lambda: one.has("a", "b"), "both are there")
    yield one
    running.cancel()
    await asyncio.wait({running})


async def test_unwanted_server_is_removed_with_its_watch(watched: Watched) -> None:
    watched.fleet.want([Driven("b", SLOW), Driven("c", SLOW)], slots=2)
    await eventually(lambda: watched.has("b", "c"), "one came and one went")
    assert [driven.url for driven, _ in watched.runners] == ["a", "b", "c"], "the one that stays is not made again"


async def test_more_slots_hold_at_once_and_fewer_as_runs_end(watched: Watched) -> None:
    watched.fleet.want([Driven("a", SLOW), Driven("b", SLOW)], slots=3)
    await eventually(lambda: sum(server.slots for server in watched.servers.all) == 6, "more slots")
    permits = await watched.servers.permits.wait()
    assert len(permits) == 6
    watched.fleet.want([Driven("a", SLOW), Driven("b", SLOW)], slots=1)
    await eventually(lambda: sum(server.slots for server in watched.servers.all) == 2, "fewer slots")
    assert len(watched.runners) == 2, "no runner was made again for that"
    for permit in permits[:4]:
        watched.servers.permits.release(permit)
    assert watched.servers.permits.busy == 2
    assert all(server.free <= 1 for server in watched.servers.all)
