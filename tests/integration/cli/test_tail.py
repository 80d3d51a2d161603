"""Test `director tail`: all steps as they happen, and one prediction with its output."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import pytest
from anyio import to_thread

from director.cli.main import main
from director.core.clock import SystemClock
from director.store.changes import Changes
from director.store.queues import QueueAdministration
from tests.support.audit import live
from tests.support.eventually import eventually
from tests.support.queue_driver import QueueDriver, driving
from tests.support.servers import RedisServer, redis_server
from tests.support.terminal import hear_ctrl_c


class Tail:
    def __init__(self, url: str, *more: str) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "director", "tail", "--redis", url, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_ctrl_c,
        )
        self._readers = [
            threading.Thread(target=_keep, args=(stream, kept), daemon=True)
            for stream, kept in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    async def ended(self) -> int:
        return await to_thread.run_sync(lambda: self.process.wait(30))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()


def _keep(stream: IO[str], kept: list[str]) -> None:
    with stream:
        kept.extend(stream)


@contextmanager
def tail(url: str, *more: str) -> Iterator[Tail]:
    started = Tail(url, *more)
    try:
        yield started
    finally:
        started.close()


async def says(told: list[str], *parts: str) -> str:
    found = await eventually(
        lambda: [line for line in told if all(part in line for part in parts)], " … ".join(parts), limit_s=30
    )
    return found[0]


async def test_tail_follows_steps_until_ctrl_c(server: RedisServer, driver: QueueDriver) -> None:
    before = await live(driver)
    with tail(server.url) as told:
        await says(told.err, "following all queues")
        name = await live(driver)
        for kind in ("accepted", "claimed", "ended"):
            line = await says(told.out, name, kind)
            assert driver.queue in line
        hand = QueueAdministration(driver.scripts, Changes(driver.redis, driver.scripts, SystemClock()))
        await hand.pause(driver.queue, by="cli:ada")
        await says(told.out, "queue_paused", "by cli:ada")
        told.process.send_signal(signal.SIGINT)
        assert await told.ended() == 130
    assert not [line for line in told.out if before in line], "what was before is no news"
    assert [line for line in told.err if "Traceback" in line] == []


async def test_tail_shows_only_filtered_steps(server: RedisServer, driver: QueueDriver) -> None:
    with tail(server.url, "--account", "ada", "--kind", "accepted", "--queue", driver.queue, "--json") as told:
        await says(told.err, f"following {driver.queue}")
        await driver.submit(account="bob")
        name = await driver.submit(account="ada")
        await driver.claim_one()
        last = await driver.submit(account="ada")
        await says(told.out, last)
    entries = [json.loads(line) for line in told.out]
    assert [(entry["id"], entry["kind"], entry["account"]) for entry in entries] == [
        (name, "accepted", "ada"),
        (last, "accepted", "ada"),
    ]


async def test_tail_loses_nothing_in_an_outage_of_redis() -> None:
    with redis_server() as own:
        async with driving(own.url) as driver:
            with tail(own.url) as told:
                await says(told.err, "following")
                own.kill()
                await says(told.err, "Redis is away", "asking again")
                own.start()
                name = await driver.submit()
                await says(told.err, "Redis is back")
                await says(told.out, name, "accepted")


async def test_tail_of_one_prediction_shows_all_its_events(server: RedisServer, driver: QueueDriver) -> None:
    name = await driver.submit()
    claim = await driver.claim_one()
    with tail(server.url, name) as told:
        await says(told.err, "created")
        last = await driver.begin(claim, ("output", b'"once "'), ("logs", b'"loading\\n"'))
        await says(told.err, "loading")
        rest = [("output", b'"upon"'), ("output", b'{"a":1}')]
        await driver.scripts.advance(name, token=claim.token, seq=last, ran_ms=None, events=rest)
        assert await driver.finish(claim, seq=last + len(rest))
        assert await told.ended() == 0
    assert "".join(told.out) == 'once upon\n{\n  "a": 1\n}\n'
    assert told.err[-1].endswith(" succeeded\n")
    with tail(server.url, name, "--json") as told:
        assert await told.ended() == 0
    assert [json.loads(line)["type"] for line in told.out] == [
        *("created", "started", "output", "logs", "output", "output", "completed")
    ]
    assert told.err == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["no-id"], "is not the id of a prediction"),
        (["06gzx0rcvbz008pmq2tvpfvnvc"], "there is no prediction 06gzx0rcvbz008pmq2tvpfvnvc"),
        (["06gzx0rcvbz008pmq2tvpfvnvc", "--account", "a"], "do not go with an ID"),
        (["--queue", "acme/none"], "there is no queue acme/none"),
        (["--kind", "ended", "--kind", "endde"], "there is no kind endde: the kinds are accepted, "),
    ],
    ids=["word", "unknown", "both", "queue", "kind"],
)
async def test_refused_tail_is_reported_in_one_line(
    server: RedisServer, driver: QueueDriver, line: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await to_thread.run_sync(main, ["tail", "--redis", server.url, *line]) == 1
    assert says in (said := capsys.readouterr().err)
    assert said.count("\n") == 1
