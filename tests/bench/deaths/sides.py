"""Run each queue with its reliable settings behind one face: file a job, ask for answers, start a worker."""

import asyncio
import itertools
import json
import re
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
from msgspec import Struct
from redis import exceptions

from tests.bench.deaths.parties import Command
from tests.bench.machine import commit
from tests.bench.processes import ROOT, environment
from tests.bench.results import OURS
from tests.bench.sides.ours import DIRECTOR, HTTP, VERSION, Ours, ours
from tests.bench.sides.peers import JOBS, PEERS, Peer, installed
from tests.bench.sides.servers import OwnRedis

SLOTS: Final = 8
FILE_S: Final = 30.0
MOST: Final = 10_000
SHORT_S: Final = 15  # as the lease of Director
LIVE: Final = ("starting", "processing")
RUN: Final = re.compile(rb"run-\d+")
JOB: Final = re.compile(rb"\bjob-\d+")


class Refused(Exception):
    """The caller was told that its job was not accepted, or was told nothing for too long."""


class Told(Struct, frozen=True):
    """An answer: the run whose output it is, or the reason of a failure."""

    run: str = ""
    reason: str = ""


class Queue(Protocol):
    async def file(self, job: str) -> None:
        """Return once the job is accepted. Raises Refused."""

    async def told(self, jobs: Sequence[str]) -> dict[str, Told]:
        """Return the answers that there are. One that could not be read now is left out."""

    async def held(self, jobs: Sequence[str]) -> set[str]:
        """Return those of the jobs that the queue has yet to run or to end."""

    def worker(self, redis_url: str, model_url: str, name: str) -> Command: ...


class Side(Struct, frozen=True, kw_only=True):
    """`settings`: what a reader needs to set the same. `pages`: where the documents of the queue say so."""

    name: str
    versions: Callable[[], str]
    settings: str
    pages: tuple[str, ...] = ()
    opened: Callable[[OwnRedis, Path], AbstractAsyncContextManager[Queue]]

    @property
    def queue(self) -> str:
        return self.name.partition(",")[0]


class OursQueue:
    def __init__(self, installation: Ours, url: str, http: httpx.AsyncClient) -> None:
        self._installation, self._url, self._http = installation, f"{url}/v1/predictions", http
        self._ids: dict[str, str] = {}

    async def file(self, job: str) -> None:
        try:
            answer = await self._http.post(self._url, json={"version": VERSION, "input": {"job": job}})
        except httpx.TransportError as exc:
            raise Refused(repr(exc)) from exc
        if answer.status_code != httpx.codes.CREATED:
            raise Refused(f"{answer.status_code} {answer.text}")
        self._ids[job] = answer.json()["id"]

    async def told(self, jobs: Sequence[str]) -> dict[str, Told]:
        answers = await asyncio.gather(*map(self._told, jobs))
        return {job: told for job, told in zip(jobs, answers, strict=True) if told}

    async def _told(self, job: str) -> Told | None:
        with suppress(httpx.TransportError):
            answer = await self._http.get(f"{self._url}/{self._ids[job]}")
            said = answer.json()
            match said.get("status"):
                case "succeeded":
                    return Told(run=said["output"])
                case "failed" | "canceled" | "aborted":
                    return Told(reason=f"{said['error']}")
        return None

    async def held(self, jobs: Sequence[str]) -> set[str]:
        answers = await asyncio.gather(*(self._http.get(f"{self._url}/{self._ids[job]}") for job in jobs))
        return {job for job, said in zip(jobs, answers, strict=True) if said.json()["status"] in LIVE}

    def worker(self, redis_url: str, model_url: str, name: str) -> Command:
        host, _, path = model_url.rpartition("/")
        runner = HTTP | {"path": f"/{path}/run"}
        settings = self._installation.settings(host, slots=SLOTS, runner=runner, REDIS_URL=redis_url)
        return Command(words=DIRECTOR, folder=ROOT, env=environment(**settings))


@asynccontextmanager
async def _ours(server: OwnRedis, _folder: Path) -> AsyncIterator[Queue]:
    limits = httpx.Limits(max_connections=32)
    async with ours(server) as installation, installation.api() as (url, _):
        with installation.keeper():
            headers = installation.headers
            async with httpx.AsyncClient(trust_env=False, timeout=FILE_S, headers=headers, limits=limits) as http:
                yield OursQueue(installation, url, http)


class PeerQueue:
    """A peer whose caller is a process of its own: it reads jobs from a pipe, and says which were accepted."""

    def __init__(self, peer: Peer, server: OwnRedis, timeout_s: int | None) -> None:
        self.peer, self._server, self._timeout_s = peer, server, timeout_s
        self._filed: dict[str, asyncio.Future[None]] = {}
        self._input: asyncio.StreamWriter | None = None

    @asynccontextmanager
    async def filing(self, folder: Path) -> AsyncIterator[None]:
        program = f"{self.peer.name}_reliable.{'cjs' if self.peer.is_node else 'py'}"
        process = await self._command([program, "file"], self._server.url, "").start(folder / "caller.log", talks=True)
        assert process.stdin is not None
        assert process.stdout is not None
        self._input = process.stdin
        listening = asyncio.create_task(self._listen(process.stdout))
        try:
            yield
            if listening.done():
                listening.result()
        finally:
            listening.cancel()
            process.kill()
            await process.wait()

    async def file(self, job: str) -> None:
        assert self._input is not None
        self._filed[job] = filed = asyncio.get_running_loop().create_future()
        self._input.write(f"{job}\n".encode())
        try:
            async with asyncio.timeout(FILE_S):
                await filed
        except TimeoutError:
            raise Refused(f"nothing in {FILE_S:g} s") from None

    async def told(self, jobs: Sequence[str]) -> dict[str, Told]:
        pipe = self._server.redis.pipeline(transaction=False)
        for job in jobs:
            READ[self.peer.name](pipe, job)
        try:
            replies = await pipe.execute()
        except exceptions.RedisError:
            return {}
        answers = {job: ANSWER[self.peer.name](reply) for job, reply in zip(jobs, replies, strict=True)}
        return {job: told for job, told in answers.items() if told}

    async def held(self, jobs: Sequence[str]) -> set[str]:
        kept = b" ".join(await HELD[self.peer.name](self._server.redis))
        return {job.decode() for job in JOB.findall(kept)}.intersection(jobs)

    def worker(self, redis_url: str, model_url: str, name: str) -> Command:
        words = [word.format(name=name, slots=SLOTS) for word in WORK[self.peer.name]]
        return self._command(words, redis_url, model_url)

    async def _listen(self, output: asyncio.StreamReader) -> None:
        """Read what the caller says of its jobs. Raises ChildProcessError when it ends, ValueError for other words."""
        while line := (await output.readline()).decode():
            verdict, job, *why = line.split(maxsplit=2)
            filed = self._filed[job]
            if filed.done():
                continue  # it was too late
            if verdict == "accepted":
                filed.set_result(None)
            else:
                filed.set_exception(Refused(*why))
        raise ChildProcessError(f"the caller of {self.peer.name} ended")

    def _command(self, words: Sequence[str], redis_url: str, model_url: str) -> Command:
        env = {"BENCH_REDIS": redis_url, "BENCH_MODEL": model_url, "BENCH_SLOTS": SLOTS, **self.peer.modules}
        if self._timeout_s is not None:
            env["BENCH_TIMEOUT_S"] = self._timeout_s
        return Command(words=[self.peer.program, *words], folder=JOBS, env=environment(**env))


WORK: Final = {
    "bullmq": ("bullmq_reliable.cjs", "work"),
    "celery": (
        *("-m", "celery", "-A", "celery_reliable", "worker", "--pool", "prefork", "--concurrency", "{slots}"),
        *("-n", "{name}@%h", "--loglevel", "INFO"),
    ),
    "taskiq": (
        *("-m", "taskiq", "worker", "taskiq_reliable:broker", "--workers", "1", "--max-async-tasks", "{slots}"),
        *("--log-level", "INFO"),
    ),
}
# how a caller of each looks for the result of a job: its own client asks for the same keys
READ: Final[dict[str, Callable[[Any, str], Any]]] = {
    "bullmq": lambda pipe, job: pipe.hmget(f"bull:deaths:{job}", "finishedOn", "returnvalue", "failedReason"),
    "celery": lambda pipe, job: pipe.get(f"celery-task-meta-{job}"),
    "taskiq": lambda pipe, job: pipe.get(job),
}


def _of_bullmq(reply: Sequence[bytes | None]) -> Told | None:
    finished, value, failed = reply
    if finished is None:
        return None
    return Told(run=json.loads(value)) if value is not None else Told(reason=(failed or b"").decode())


def _of_celery(reply: bytes | None) -> Told | None:
    said = json.loads(reply) if reply else {}
    match said.get("status"):
        case "SUCCESS":
            return Told(run=said["result"])
        case "FAILURE" | "REVOKED":
            return Told(reason=f"{said['result']}")
    return None


def _of_taskiq(reply: bytes | None) -> Told | None:
    if reply is None:
        return None
    found = RUN.search(reply)  # a pickle: it is not loaded, because its classes are not installed here
    return Told(run=found[0].decode()) if found else Told(reason="an error was saved")


ANSWER: Final[dict[str, Callable[[Any], Told | None]]] = {
    "bullmq": _of_bullmq,
    "celery": _of_celery,
    "taskiq": _of_taskiq,
}


async def _held_by_bullmq(redis: Any) -> list[bytes]:
    lists = [await redis.lrange(f"bull:deaths:{name}", 0, -1) for name in ("wait", "active", "paused")]
    return [*itertools.chain(*lists), *await redis.zrange("bull:deaths:delayed", 0, -1)]


async def _held_by_celery(redis: Any) -> list[bytes]:
    return [*await redis.lrange("celery", 0, -1), *await redis.hvals("unacked")]


async def _held_by_taskiq(redis: Any) -> list[bytes]:
    [group] = await redis.xinfo_groups("taskiq")
    pending = await redis.xpending_range("taskiq", "taskiq", "-", "+", MOST)
    delivered = [await redis.xrange("taskiq", each["message_id"], each["message_id"]) for each in pending]
    waiting = await redis.xrange("taskiq", b"(" + group["last-delivered-id"])
    return [fields[b"data"] for _, fields in itertools.chain(*delivered, waiting)]


HELD: Final[dict[str, Callable[[Any], Awaitable[list[bytes]]]]] = {
    "bullmq": _held_by_bullmq,
    "celery": _held_by_celery,
    "taskiq": _held_by_taskiq,
}


def _versions(peer: Peer, packages: Sequence[str]) -> str:
    if peer.is_node:
        program = f"{subprocess.check_output(['node', '--version'], text=True).strip()}"
        return ", ".join([*(need.replace("@", " ") for need in peer.needs), f"node {program}"])
    say = "import sys, importlib.metadata as m; print(', '.join(f'{name} {m.version(name)}' for name in sys.argv[1:]))"
    return subprocess.check_output([peer.program, "-c", say, *packages], text=True).strip()


def _peer(
    peer: Peer, *, settings: str, pages: tuple[str, ...], packages: Sequence[str] = (), timeout_s: int | None = None
) -> Side:
    @asynccontextmanager
    async def opened(server: OwnRedis, folder: Path) -> AsyncIterator[Queue]:
        queue = PeerQueue(await asyncio.to_thread(installed, peer), server, timeout_s)
        async with queue.filing(folder):
            yield queue

    return Side(
        name=peer.name if timeout_s is None else f"{peer.name}, {timeout_s} s",
        versions=partial(_versions, peer, packages),
        settings=settings,
        pages=pages,
        opened=opened,
    )


_BULLMQ, _CELERY, _TASKIQ = (
    next(peer for peer in PEERS if peer.name == name) for name in ("bullmq", "celery", "taskiq")
)
_CELERY_PAGES: Final = (
    "https://docs.celeryq.dev/en/stable/userguide/configuration.html#task-acks-late",
    "https://docs.celeryq.dev/en/stable/userguide/configuration.html#task-reject-on-worker-lost",
    "https://docs.celeryq.dev/en/stable/userguide/optimizing.html#reserve-one-task-at-a-time",
    "https://docs.celeryq.dev/en/stable/getting-started/backends-and-brokers/redis.html#visibility-timeout",
)
_TASKIQ_PAGES: Final = (
    "https://github.com/taskiq-python/taskiq-redis#stream",
    "https://taskiq-python.github.io/guide/cli.html#acknowledgements",
)
_LATE: Final = "prefork pool, `task_acks_late`, `task_reject_on_worker_lost`, `worker_prefetch_multiplier` 1, "
SIDES: Final = (
    Side(
        name=OURS,
        versions=lambda: f"commit {commit()}",
        settings="as shipped: one API process, one keeper, lease 15 s, 3 attempts, 30 s to drain",
        opened=_ours,
    ),
    _peer(
        _BULLMQ,
        settings="`lockDuration` and `stalledInterval` 30 s, `maxStalledCount` 1 (the defaults), 3 attempts with a"
        " backoff of 1 s, `close()` on SIGTERM, a producer that fails fast",
        pages=(
            "https://docs.bullmq.io/guide/going-to-production",
            "https://docs.bullmq.io/guide/workers/stalled-jobs",
            "https://docs.bullmq.io/guide/retrying-failing-jobs",
        ),
    ),
    _peer(
        _CELERY,
        packages=("celery", "kombu", "billiard", "redis"),
        settings=f"{_LATE}`result_backend_always_retry`; visibility time-out 1 h (the default)",
        pages=_CELERY_PAGES,
    ),
    _peer(
        _CELERY,
        packages=("celery", "kombu", "billiard", "redis"),
        settings=f"the same with a visibility time-out of {SHORT_S} s, `unacked_restore_interval` and"
        " `unacked_restore_throttle` 1, `unacked_mutex_expire` 5 s, and"
        " `worker_cancel_long_running_tasks_on_connection_loss`",
        pages=(
            *_CELERY_PAGES,
            "https://docs.celeryq.dev/projects/kombu/en/stable/reference/kombu.transport.redis.html",
        ),
        timeout_s=SHORT_S,
    ),
    _peer(
        _TASKIQ,
        packages=("taskiq", "taskiq-redis", "redis"),
        settings="`RedisStreamBroker` with `unacknowledged_lock_timeout` 10 s, acknowledged when the result is saved"
        " (the default); `idle_timeout` 10 min (the default)",
        pages=_TASKIQ_PAGES,
    ),
    _peer(
        _TASKIQ,
        packages=("taskiq", "taskiq-redis", "redis"),
        settings=f"the same with an `idle_timeout` of {SHORT_S} s and an `xread_count` of {SLOTS}",
        pages=_TASKIQ_PAGES,
        timeout_s=SHORT_S,
    ),
)
