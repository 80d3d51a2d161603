"""Test `director top` in a real terminal and with a real Redis."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import anyio
import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.cli.backend import connect
from director.cli.top import ENDING, Change, SnapshotsOfRedis, Top
from director.core.errors import BackendUnavailable
from director.core.policy import Policy
from director.local.launcher.processes import free_port
from director.operate.overview import Snapshot
from director.store.accounts import ROLES, Accounts
from director.store.catalog import OPEN_SCHEMA, Catalog
from tests.support.api import live_api
from tests.support.eventually import eventually
from tests.support.queue_driver import VERSION, QueueDriver
from tests.support.servers import RedisServer, redis_server
from tests.support.terminal import PlayedTerminal, played

pytestmark = pytest.mark.tools


def command(url: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "director", "top", "--redis", url, *more]


@pytest.fixture(params=["redis", "api"])
async def top(request: pytest.FixtureRequest, server: RedisServer, redis: Redis) -> AsyncIterator[list[str]]:
    """The command that looks at the server itself, and the one that knows no Redis."""
    if request.param == "redis":
        yield command(server.url)
        return
    token = await Accounts(redis).create_token("ops", scopes=ROLES["operator"])
    async with live_api(server.url) as api:
        yield [sys.executable, "-m", "director", "top", "--url", api.url, "--token", token]


async def until(terminal: PlayedTerminal, text: str) -> None:
    await eventually(lambda: terminal.screen, text, until=lambda _: terminal.shows(text), limit_s=30)


class Interrupted:
    """Answers at once, as the API's feed does with its first snapshot. The signal comes just before the answer."""

    rest_s = 60.0

    def __init__(self, ending: signal.Signals) -> None:
        self._ending = ending

    async def look(self) -> Snapshot:
        signal.raise_signal(self._ending)
        raise BackendUnavailable("nothing was looked at")

    async def make(self, change: Change) -> None:
        raise AssertionError(change)


def is_paused(screen: list[str]) -> bool:
    return any(line.startswith("›") and line.rstrip().endswith("paused") for line in screen)


def size(terminal: PlayedTerminal) -> tuple[int, int]:
    return len(terminal.screen), max(map(len, terminal.screen))


async def ended(terminal: PlayedTerminal) -> int:
    code = await to_thread.run_sync(lambda: terminal.process.wait(30))
    await eventually(lambda: terminal.is_given_back, "the terminal is as it was")
    return code


async def test_top_shows_queues_live_and_pauses_one_after_confirmation(
    top: list[str], driver: QueueDriver, catalog: Catalog
) -> None:
    await catalog.register("acme/other", VERSION, schema=OPEN_SCHEMA, server="echo", policy=Policy())
    await driver.scripts.extend(driver.queue, consumer="host-1", lease_s=60, claims=[], slots=4)
    with played(top, columns=100) as terminal:
        await until(terminal, f"› {driver.queue}")
        await until(terminal, "serving")
        await driver.submit(account="ada")
        await until(terminal, "waiting 1  running 0 of 4")
        terminal.type(b"\xff")  # a terminal that does not speak UTF-8
        terminal.type("p")
        await until(terminal, f"pause {driver.queue}? y: yes")
        terminal.type("n")
        await until(terminal, "q back or quit")
        assert not (await driver.stats()).paused
        terminal.type("py")
        await until(terminal, f"{driver.queue} is paused")
        await eventually(lambda: terminal.screen, "its row", until=is_paused)
        assert (await driver.stats()).paused
        terminal.type("py")
        await until(terminal, "is resumed")
        assert not (await driver.stats()).paused
        terminal.type("d")
        await until(terminal, "host-1")
        terminal.type("q")
        await until(terminal, "› ")
        terminal.type("q")
        assert await ended(terminal) == 0
    assert "\x1b[33m" in terminal.said


async def test_top_fits_any_size_of_the_terminal(server: RedisServer, driver: QueueDriver) -> None:
    with played(command(server.url), env={"NO_COLOR": "1"}) as terminal:
        await until(terminal, "acme/echo")
        await eventually(lambda: size(terminal), "all of the screen", until=lambda found: found == (24, 80))
        terminal.resize(44, 9)
        await eventually(lambda: size(terminal), "a smaller one", until=lambda found: found == (9, 44))
        await until(terminal, "› acme")
        terminal.type("\x03")
        assert await ended(terminal) == 130
    assert "\x1b[33m" not in terminal.said, "NO_COLOR"


async def test_quit_key_restores_the_terminal(top: list[str]) -> None:
    with played(top) as terminal:
        await until(terminal, "worst first")
        terminal.type("\x1c")
        assert await ended(terminal) == 0


@contextmanager
def terminal() -> Iterator[int]:
    """Make stdin and stdout of this process a terminal, and yield its other end, which the caller closes."""
    ours, theirs = pty.openpty()
    raw = os.fdopen(theirs, "wb", buffering=0)
    with (
        os.fdopen(theirs, closefd=False) as stdin,
        io.TextIOWrapper(raw, write_through=True) as stdout,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("sys.stdin", stdin)
        patch.setattr("sys.stdout", stdout)
        yield ours


async def test_closed_terminal_ends_top_without_an_error(server: RedisServer) -> None:
    with terminal() as ours:
        async with connect(server.url) as backend, anyio.create_task_group() as tasks:
            tasks.start_soon(Top(SnapshotsOfRedis(backend)).run)
            await anyio.wait_readable(ours)
            os.close(ours)


@pytest.mark.parametrize("ending", ENDING)
async def test_signal_before_the_first_screen_ends_top(ending: signal.Signals) -> None:
    missed: list[int] = []
    before = signal.signal(ending, lambda number, _: missed.append(number))
    try:
        with terminal() as ours, anyio.fail_after(10):
            await Top(Interrupted(ending)).run()
            os.close(ours)
    finally:
        signal.signal(ending, before)
    assert missed == []


async def test_top_reports_an_outage_of_redis_and_continues() -> None:
    with redis_server() as server, played(command(server.url)) as terminal:
        await until(terminal, "no queue yet")
        server.kill()
        await until(terminal, "Redis is away")
        server.start()
        await eventually(lambda: terminal.screen, "it is back", until=lambda _: not terminal.shows("away"), limit_s=30)
        terminal.process.terminate()
        assert await ended(terminal) == 0


async def test_top_reports_an_absent_api_and_continues(server: RedisServer, redis: Redis) -> None:
    token, port = await Accounts(redis).create_token("ops", scopes=ROLES["viewer"]), free_port()
    async with live_api(server.url, port=port) as api:
        line = [sys.executable, "-m", "director", "top", "--url", api.url, "--token", token]
        with played(line) as terminal:
            await until(terminal, "no queue yet")
            api.process.kill()
            await until(terminal, "no answer from")
            async with live_api(server.url, port=port):
                await eventually(
                    lambda: terminal.screen, "it is back", until=lambda _: not terminal.shows("no answer"), limit_s=30
                )
            terminal.type("q")
            assert await ended(terminal) == 0


async def test_top_without_a_terminal_prints_one_whole_screen(top: list[str], driver: QueueDriver) -> None:
    await driver.submit()

    def run(*more: str) -> str:
        done = subprocess.run([*top, *more], capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    for more in ((), ("--once",)):
        said = await to_thread.run_sync(run, *more)
        assert "\x1b" not in said
        assert "waiting 1  running 0 of 0" in said
        assert f"  {driver.queue} " in said
    snapshot = json.loads(await to_thread.run_sync(run, "--json"))
    [queue] = snapshot["queues"]
    assert (queue["name"], queue["waiting"]["normal"], queue["state"]) == (driver.queue, 1, "no_director")
    assert snapshot["directors"] == []


async def test_dumb_terminal_gets_one_screen(server: RedisServer, redis: Redis) -> None:
    with played(command(server.url), env={"TERM": "dumb"}) as terminal:
        assert await to_thread.run_sync(lambda: terminal.process.wait(30)) == 0
    assert "no queue yet" in terminal.said
    assert "\x1b" not in terminal.said
