"""Swap models while directors, guards and servers are killed, at any moment and at chosen ones.

All accepted work ends, and once. No device is ever asked for more than it has. No server outlives its director without
another one that adopts it. No model loads for ever.
"""

import os
import random
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from redis.asyncio import Redis

from director.broker.scripts import Scripts
from director.core.ids import PredictionId
from director.store.catalog import Catalog
from tests.integration.gpus.test_swaps import GIB, callers, pool_file
from tests.support.eventually import eventually, every
from tests.support.fake_device import FakeDevices, Holding, fake_devices
from tests.support.live_director import TERMINAL, Caller, DirectorProcess, keeper_process, pool_process
from tests.support.servers import RedisServer

LEASE_S: Final = 3
MOST_S: Final = 120  # for all that waits, once nothing is killed any more
Models = Mapping[str, Mapping[str, Any]]
MANY: Final[Models] = {
    "acme/plain": {"gib": 2},
    "acme/forks": {"gib": 2, "grace_s": 0.5, "habits": {"forks": True, "deaf": True}},
    "acme/sleeps": {"gib": 3, "sleep": "/sleep", "wake": "/wake"},
    "acme/slow": {"gib": 1, "habits": {"load_s": 1.0}},
    "acme/broken": {"gib": 2, "habits": {"fails": True, "forks": True}},
}


class Play:
    """A director on fake devices that is started again after each of its deaths, and callers that ask it for runs."""

    def __init__(self, url: str, pool: Path, devices: FakeDevices, seed: int) -> None:
        self.devices = devices
        self.asked: list[tuple[Caller, PredictionId]] = []
        self.chance = random.Random(seed)
        self.director: DirectorProcess | None = None
        self.logs: list[str] = []
        self._stack = AsyncExitStack()
        self._url = url
        self._pool = pool

    async def start(self) -> None:
        given = {"devices_dir": self._pool.parent / "devices", "lease_s": LEASE_S, "drain_s": 3, "health_port": 0}
        self.director = await self._stack.enter_async_context(pool_process(self._url, self._pool, **given))
        await self.director.begins()

    async def end(self, number: signal.Signals) -> None:
        director, self.director = self.director, None
        if director is None:
            return
        with suppress(ProcessLookupError):
            director.send(number)
        code = await director.exit_code()
        self.logs.append(director.log)
        await self._stack.aclose()
        # a signal before it has begun kills it
        assert code != 0 or self.devices.holdings() == [], "a director that ended in order left a server"

    async def ask(self, caller: Caller, seconds: float = 0.1) -> None:
        self.asked.append((caller, await caller.submit(seconds=seconds)))

    async def submit(self, known: Mapping[str, Caller], *, rounds: int) -> None:
        async for _ in every(0.1, rounds):
            await self.ask(self.chance.choice(list(known.values())), seconds=self.chance.choice([0, 0.1, 0.5]))

    def takes_memory(self, model: str) -> list[Holding]:
        return [one for one in self.devices.holdings() if one.model == model]

    def is_leaving(self, model: str) -> bool:
        records = (path.read_text() for path in (self._pool.parent / "devices").rglob("*.json"))
        return any(f'"model":"{model}"' in text and '"presence":"leaving"' in text for text in records)

    def kill(self, model: str, *, of_guards: bool) -> None:
        """Kill the server of a model or its guard, whatever it does at that moment."""
        for one in self.takes_memory(model):
            with suppress(ProcessLookupError):
                os.kill(os.getsid(one.pid) if of_guards else one.pid, signal.SIGKILL)

    def kill_one(self, *, of_guards: bool) -> str:
        held = self.devices.holdings()
        model = self.chance.choice(held).model if held else "nothing"
        self.kill(model, of_guards=of_guards)
        return f"{'guard of ' * of_guards}{model}"

    async def fault(self) -> str:
        kind = self.chance.choice(["director", "server", "guard", "drain", "both"])
        match kind:
            case "server" | "guard":
                return self.kill_one(of_guards=kind == "guard")
            case "drain":
                await self.end(signal.SIGTERM)
            case "both":
                self.kill_one(of_guards=True)
                await self.end(signal.SIGKILL)
            case _:
                await self.end(signal.SIGKILL)
        await self.start()
        return kind

    async def check(self) -> None:
        """Check that all that was asked ends, and once."""
        for caller, one in self.asked:
            await eventually(
                lambda caller=caller, one=one: caller.status(one),  # type: ignore[misc]
                f"{caller.model} {one} ended",
                until=lambda status: status in TERMINAL,
                limit_s=MOST_S,
            )
            ended = await caller.ended(one)
            assert ended["status"] == "succeeded", f"{caller.model} {one}: {ended['error']}"
            assert ended["output"] == caller.model


@asynccontextmanager
async def played(
    server: RedisServer,
    redis: Redis,
    scripts: Scripts,
    catalog: Catalog,
    folder: Path,
    models: Models,
    seed: int = 0,
) -> AsyncGenerator[tuple[Play, dict[str, Caller]]]:
    """Yield a director whose models are all known. At the end it is asked to stop, and leaves nothing."""
    with fake_devices(gpu0=4 * GIB) as devices:
        pool = pool_file(folder, devices, {name: {"attempts": 20, **given} for name, given in models.items()})
        healthy = [name for name, given in models.items() if not given.get("habits", {}).get("fails")]
        play = Play(server.url, pool, devices, seed)
        async with keeper_process(server.url, lease_s=LEASE_S, health_port=0):
            await play.start()
            try:
                yield play, await callers(redis, scripts, catalog, healthy)
            finally:
                with anyio.CancelScope(shield=True):
                    await play.end(signal.SIGTERM)
                print(*play.logs[-3:], sep="\n\n")
        assert devices.holdings() == [], "a server outlived its director"
        assert devices.peak["gpu0"] <= 4 * GIB


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_swaps_survive_faults_at_any_moment(
    server: RedisServer, redis: Redis, scripts: Scripts, catalog: Catalog, tmp_path: Path, seed: int
) -> None:
    async with (
        played(server, redis, scripts, catalog, tmp_path, MANY, seed) as (play, known),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(lambda: play.submit(known, rounds=300))
        faults = []
        for _ in range(12):
            await anyio.sleep(play.chance.uniform(0.2, 3.0))  # faults come at any moment
            faults.append(await play.fault())
        print(faults)
        await play.check()
    assert len(play.asked) == 300


TWO: Final[Models] = {
    "acme/a": {"gib": 3, "habits": {"load_s": 1.0, "forks": True}},
    "acme/b": {"gib": 3, "grace_s": 1.0, "habits": {"deaf": True, "forks": True}},
}


@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["director", "drained director", "server", "guard"])
@pytest.mark.parametrize("moment", ["loading", "serving", "unloading"])
async def test_swap_survives_a_death_at_each_moment(
    server: RedisServer, redis: Redis, scripts: Scripts, catalog: Catalog, tmp_path: Path, moment: str, victim: str
) -> None:
    async with played(server, redis, scripts, catalog, tmp_path, TWO) as (play, known):
        await play.ask(known["acme/b"])
        await play.check()
        if moment == "serving":
            await play.ask(known["acme/b"], seconds=2)
            await eventually(play.devices.running, "b runs")
        else:
            await play.ask(known["acme/a"])
        if moment == "loading":
            await eventually(lambda: play.takes_memory("acme/a"), "a loads")
        elif moment == "unloading":
            await eventually(lambda: play.is_leaving("acme/b"), "b is asked to end")
        if victim in ("server", "guard"):
            play.kill("acme/a" if moment == "loading" else "acme/b", of_guards=victim == "guard")
        else:
            await play.end(signal.SIGKILL if victim == "director" else signal.SIGTERM)
            await play.start()
        for caller in known.values():
            await play.ask(caller)
        await play.check()
