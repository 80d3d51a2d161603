"""Run a director in a test, in the same process or as one that can be killed, with callers and a supervisor."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import Process
from redis.asyncio import Redis

from director.broker import keys
from director.broker.redis_client import client
from director.broker.replies import QueueStats
from director.broker.scripts import Scripts
from director.core.clock import SystemClock
from director.core.ids import PredictionId, QueueName, new_prediction_id, queue_name
from director.core.policy import shard
from director.core.schema import Record
from director.core.settings import WEBHOOK_SCHEDULE, DirectorSettings, KeeperSettings
from director.core.view import view
from director.execution.director import Director
from director.execution.main import ALONE, open_directors
from director.keeper.courier import INTERVAL_S, Breakers
from director.keeper.keeper import Keeper
from director.local.launcher.processes import free_port
from director.runtime.tracing import OFF, Tracing
from director.store.services import Services
from director.webhooks.sender import AllowList, Sender
from tests.support.cog import CogServer, cog_process
from tests.support.eventually import eventually
from tests.support.queue_driver import ACCOUNT, MODEL, VERSION, enqueue
from tests.support.servers import as_user

TERMINAL: Final = ("succeeded", "failed", "canceled", "aborted")
URL: Final = "http://api.test"


class Gate:
    """A file that a run waits for. `str` of it is the model's input."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def open(self) -> None:
        self._path.touch()


class Tally(Gate):
    """A file in which the model leaves a dot for each run."""

    @property
    def runs(self) -> int:
        return len(self._path.read_text()) if self._path.exists() else 0


class Caller:
    def __init__(
        self, redis: Any, scripts: Scripts, *, model: str = MODEL, version: str = VERSION, account: str = ACCOUNT
    ) -> None:
        self.redis = redis  # Any: its types say str or bytes, and ours answers in bytes
        self.scripts = scripts
        self.model = model
        self.version = version
        self.account = account
        self.queue: QueueName = queue_name(model, version)

    def new_id(self) -> PredictionId:
        return new_prediction_id(model=self.model, now_ms=SystemClock().now_ms())

    async def submit(self, prediction_id: PredictionId | None = None, **asked: Any) -> PredictionId:
        """Submit one prediction. Keyword arguments that are no option of the queue are its input."""
        known = (
            "webhook",
            "webhook_events",
            "lifetime_ms",
            "deadline_status",
            "start_by_ms",
            "start_after",
            "lane",
            "cost",
            "affinity",
            "endpoint",
            "once_shown",
            "now_ms",
        )
        options = {name: asked.pop(name) for name in known if name in asked}
        accepted = await enqueue(
            self.scripts,
            prediction_id or self.new_id(),
            queue=self.queue,
            account=self.account,
            model=self.model,
            version=self.version,
            shard=shard(self.account, streams=16, size=2),
            input=msgspec.json.encode(asked),
            url=URL,
            **options,
        )
        return accepted.id

    async def running(self, **asked: Any) -> PredictionId:
        prediction_id = await self.submit(**asked)
        await self.shows(prediction_id, status="processing")
        return prediction_id

    async def cancel(self, prediction_id: PredictionId) -> str:
        return await self.scripts.cancel(prediction_id, account=self.account)

    async def get(self, prediction_id: PredictionId) -> dict[str, Any]:
        stored = await self.scripts.get(prediction_id)
        assert stored is not None
        shown: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(view(stored)))
        return shown

    async def record(self, prediction_id: PredictionId) -> Record:
        stored = await self.scripts.get(prediction_id)
        assert stored is not None
        return stored.record

    async def kinds(self, prediction_id: PredictionId) -> list[str]:
        """Return the kinds of its events in order, without webhook events: these come at any time."""
        entries = await self.redis.lrange(keys.events(prediction_id), 0, -1)
        kinds = [entry.decode().partition(" ")[0] for entry in entries]
        return [kind for kind in kinds if kind != "webhook"]

    async def ended(self, prediction_id: PredictionId) -> dict[str, Any]:
        # GET reads every event of a run, and would delay the director, which shares this loop
        await eventually(
            lambda: self.status(prediction_id), f"{prediction_id} ended", until=lambda status: status in TERMINAL
        )
        kinds = await self.kinds(prediction_id)
        assert (kinds[0], kinds[-1], kinds.count("completed")) == ("created", "completed", 1)
        return await self.get(prediction_id)

    async def status(self, prediction_id: PredictionId) -> str:
        return (await self.redis.hget(keys.record(prediction_id), "status") or b"").decode()

    async def shows(self, prediction_id: PredictionId, **fields: Any) -> dict[str, Any]:
        return await eventually(
            lambda: self.get(prediction_id),
            f"{prediction_id} shows {fields}",
            until=lambda shown: {name: shown[name] for name in fields} == fields,
        )

    async def shows_reason(self, prediction_id: PredictionId, reason: str) -> dict[str, Any]:
        shown = await eventually(
            lambda: self.get(prediction_id),
            f"{prediction_id} waits because of {reason}",
            until=lambda shown: shown.get("queue", {}).get("reason") == reason,
        )
        queue: dict[str, Any] = shown["queue"]
        return queue

    async def stats(self) -> QueueStats:
        return await self.scripts.stats(self.queue)

    async def dead(self) -> list[str]:
        return [name.decode() for name in await self.redis.zrange(keys.dead(self.queue), 0, -1)]

    async def nothing_is_left(self) -> None:
        stats = await self.scripts.stats(self.queue)
        assert (stats.waiting, stats.claimed, stats.delayed, stats.live) == (0, 0, 0, 0)


def settings_for(redis_url: str, servers: Sequence[str], **given: Any) -> DirectorSettings:
    given = {"model": MODEL, "version": VERSION, **given}
    return DirectorSettings(redis_url=as_user("run", redis_url), servers=tuple(servers), **given)


@asynccontextmanager
async def live_director(
    redis_url: str, *servers: str, tracing: Tracing | None = None, **given: Any
) -> AsyncGenerator[Director]:
    """Run a director in this process and end it without a drain."""
    async with (
        open_directors(settings_for(redis_url, servers, **given), tracing=tracing) as pool,
        anyio.create_task_group() as tasks,
    ):
        director = pool.directors[ALONE]
        tasks.start_soon(pool.direct, lambda _: None)
        await eventually(lambda: director.servers.all, "its servers are watched")
        yield director
        tasks.cancel_scope.cancel()


class DirectorProcess:
    def __init__(self, process: Process, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def said(self, message: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._log.read_text().splitlines(keepends=True) if line.endswith("}\n")]
        return [line for line in lines if line["message"] == message]

    async def says(self, message: str) -> dict[str, Any]:
        said = await eventually(lambda: self.said(message), f"the director says {message!r}")
        return said[-1]

    async def begins(self) -> None:
        await eventually(lambda: self._log.stat().st_size, "the director says something", limit_s=60)

    def send(self, signal_number: int) -> None:
        os.kill(self.process.pid, signal_number)

    async def exit_code(self) -> int:
        with anyio.fail_after(30):
            return await self.process.wait()


def director_process(redis_url: str, *servers: str, **given: Any) -> AbstractAsyncContextManager[DirectorProcess]:
    variables = {"model": MODEL, "version": VERSION, "redis_url": redis_url, "servers": ",".join(servers), **given}
    return _process("run", variables)


def pool_process(
    redis_url: str, config: Path, *, program: Sequence[str] = ("director",), **given: Any
) -> AbstractAsyncContextManager[DirectorProcess]:
    """Run the director of a pool file. `program`: a module that runs it, and what that takes before `run`."""
    return _process("run", {"redis_url": redis_url, **given}, "--config", str(config), program=program)


def keeper_process(redis_url: str, **given: Any) -> AbstractAsyncContextManager[DirectorProcess]:
    return _process("keeper", {"redis_url": redis_url, **given})


@asynccontextmanager
async def _process(
    role: str, variables: Mapping[str, Any], *options: str, program: Sequence[str] = ("director",)
) -> AsyncGenerator[DirectorProcess]:
    variables = {**variables, "redis_url": as_user(role, variables["redis_url"])}
    env = {f"DIRECTOR_{name.upper()}": str(value) for name, value in variables.items()}
    with tempfile.NamedTemporaryFile(prefix="dr-log-") as log:
        process = await anyio.open_process(
            [sys.executable, "-m", *program, role, *options],
            env=dict(os.environ) | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        try:
            yield DirectorProcess(process, Path(log.name))
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                await process.aclose()


@asynccontextmanager
async def keeping(
    url: str,
    *,
    lease_s: float = 15,
    schedule: str = WEBHOOK_SCHEDULE,
    probe_s: float = INTERVAL_S,
    tracing: Tracing = OFF,
) -> AsyncGenerator[None]:
    """Run the keeper's roles beside the test. `probe_s`: the interval at which an absent receiver is probed."""
    url = as_user("keeper", url)
    services, sender = Services(client(url)), Sender(AllowList.parse("loopback"))
    settings = KeeperSettings(redis_url=url, lease_s=lease_s, webhook_schedule=schedule)
    breakers = Breakers(SystemClock(), interval_s=probe_s)
    keeper = Keeper(settings, services, sender, breakers=breakers, tracing=tracing)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keeper.keep)
        yield
        tasks.cancel_scope.cancel()
    await services.aclose()
    await sender.aclose()


class Live:
    """Start directors and keepers on one Redis server, with the model server at `model_url` unless others are named."""

    def __init__(self, redis: Redis, url: str, model_url: str) -> None:
        self.redis = redis
        self.url = url
        self.model_url = model_url

    def director(self, *servers: str, **given: Any) -> AbstractAsyncContextManager[Director]:
        return live_director(self.url, *(servers or (self.model_url,)), **given)

    def process(self, *servers: str, **given: Any) -> AbstractAsyncContextManager[DirectorProcess]:
        return director_process(self.url, *(servers or (self.model_url,)), **given)

    def keeper(self, **given: Any) -> AbstractAsyncContextManager[None]:
        return keeping(self.url, **given)


class Supervised:
    """A Cog server that is restarted whenever it ends. `starts` counts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.starts = 0
        self.server: CogServer | None = None


@asynccontextmanager
async def supervised_cog(folder: Path, **options: Any) -> AsyncGenerator[Supervised]:
    port = free_port()
    supervised = Supervised(f"http://127.0.0.1:{port}")

    async def supervise(*, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        while True:
            async with cog_process(folder, port=port, **options) as server:
                supervised.server = server
                supervised.starts += 1
                if supervised.starts == 1:
                    task_status.started()
                await eventually(server.exited, "Cog ended", limit_s=600)

    async with anyio.create_task_group() as tasks:
        await tasks.start(supervise)
        yield supervised
        tasks.cancel_scope.cancel()
