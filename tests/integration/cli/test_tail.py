"""Test `director tail` through the API and with --redis: all steps as they happen, one prediction with its output."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import anyio
import pytest
from anyio import to_thread
from redis.asyncio import Redis

from director.cli.main import main
from director.core.clock import SystemClock
from director.local.launcher.processes import free_port
from director.store.accounts import ROLES, Accounts
from director.store.changes import Changes
from director.store.queues import QueueAdministration
from tests.support.api import live_api
from tests.support.audit import live
from tests.support.eventually import eventually
from tests.support.queue_driver import MODEL, QueueDriver, driving
from tests.support.servers import RedisServer, redis_server
from tests.support.terminal import hear_ctrl_c

pytestmark = pytest.mark.tools

NO_REDIS: Final = "redis://127.0.0.1:1"


class Tail:
    def __init__(self, *line: str) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "director", "tail", *line],
            env={**os.environ, "DIRECTOR_REDIS_URL": NO_REDIS},
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
def tail(*line: str) -> Iterator[Tail]:
    started = Tail(*line)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(params=["redis", "api"])
async def where(request: pytest.FixtureRequest, server: RedisServer, redis: Redis) -> AsyncIterator[Sequence[str]]:
    """The options that say what is followed. The API's tail knows no Redis."""
    if request.param == "redis":
        yield ["--redis", server.url]
        return
    token = await Accounts(redis).create_token("ops", scopes=ROLES["viewer"])
    async with live_api(server.url) as api:
        yield ["--url", api.url, "--token", token]


async def says(told: list[str], *parts: str) -> str:
    found = await eventually(
        lambda: [line for line in told if all(part in line for part in parts)], " … ".join(parts), limit_s=30
    )
    return found[0]


@pytest.mark.faults
async def test_tail_follows_steps_until_ctrl_c(where: Sequence[str], driver: QueueDriver) -> None:
    before = await live(driver)
    with tail(*where) as told:
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


async def test_tail_shows_only_filtered_steps(where: Sequence[str], driver: QueueDriver) -> None:
    with tail(*where, "--account", "ada", "--kind", "accepted", "--queue", MODEL, "--json") as told:
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
            with tail("--redis", own.url) as told:
                await says(told.err, "following")
                own.kill()
                await says(told.err, "Redis is away", "asking again")
                own.start()
                name = await driver.submit()
                await says(told.err, "Redis is back")
                await says(told.out, name, "accepted")


@pytest.mark.faults
async def test_tail_goes_on_where_it_was_with_another_process_of_the_api(
    server: RedisServer, redis: Redis, driver: QueueDriver
) -> None:
    token, port = await Accounts(redis).create_token("ops", scopes=ROLES["viewer"]), free_port()
    with tail("--url", f"http://127.0.0.1:{port}", "--token", token) as told:
        assert await told.ended() == 1
        assert "no answer from" in "".join(told.err)
    async with live_api(server.url, port=port) as api:
        with tail("--url", api.url, "--token", token) as told:
            await says(told.err, "following")
            api.process.kill()
            await says(told.err, "no answer from", "asking again")
            names = [await driver.submit() for _ in range(3)]
            async with live_api(server.url, port=port):
                await says(told.err, "the service is back")
                for name in names:
                    await says(told.out, name, "accepted")


async def test_tail_of_one_prediction_shows_all_its_events(where: Sequence[str], driver: QueueDriver) -> None:
    name = await driver.submit()
    claim = await driver.claim_one()
    with tail(*where, name) as told:
        await says(told.err, "created")
        last = await driver.begin(claim, ("output", b'"once "'), ("logs", b'"loading\\n"'))
        await says(told.err, "loading")
        rest = [("output", b'"upon"'), ("output", b'{"a":1}')]
        await driver.scripts.advance(name, token=claim.token, seq=last, ran_ms=None, events=rest)
        assert await driver.finish(claim, seq=last + len(rest))
        assert await told.ended() == 0
    assert "".join(told.out) == 'once upon\n{\n  "a": 1\n}\n'
    assert told.err[-1].endswith(" succeeded\n")
    with tail(*where, name, "--json") as told:
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
    where: Sequence[str], driver: QueueDriver, line: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await to_thread.run_sync(main, ["tail", *where, *line]) == 1
    assert says in (said := capsys.readouterr().err)
    assert said.count("\n") == 1


async def test_tail_and_top_need_a_scope_over_all_accounts(
    server: RedisServer, redis: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    token = await Accounts(redis).create_token("team")
    async with live_api(server.url) as api:
        for line in (["tail"], ["top", "--once"], ["status"], ["tail", "--queue", "acme/echo"]):
            assert await to_thread.run_sync(main, [*line, "--url", api.url, "--token", token]) == 1
            assert "'view'" in capsys.readouterr().err


async def test_audit_fills_a_file_through_the_api(where: Sequence[str], driver: QueueDriver, tmp_path: Path) -> None:
    """And goes on after the last entry of the file."""
    file = tmp_path / "audit.jsonl"
    line = [sys.executable, "-m", "director", "audit", *where, "--to", str(file), "--once"]
    for _ in range(2):
        name = await live(driver)
        ended = await anyio.run_process(line, env={**os.environ, "DIRECTOR_REDIS_URL": NO_REDIS}, check=False)
        assert ended.returncode == 0, ended.stderr
        entries = [json.loads(line) for line in file.read_text().splitlines()]
        assert [one["kind"] for one in entries if one["id"] == name] == ["accepted", "claimed", "ended"]
    assert len({(one["partition"], one["entry"]) for one in entries}) == len(entries)


async def test_audit_to_an_address_says_that_redis_keeps_its_cursors(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["audit", "--to", "https://audit.example", "--url", "http://127.0.0.1:1", "--token", "t"]
    assert await to_thread.run_sync(main, line) == 1
    assert "say with --redis where it is" in capsys.readouterr().err
