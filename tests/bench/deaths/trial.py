"""Put a steady load on one queue while its faults are carried out, and keep the journal."""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from director.broker.redis_client import client
from director.lab.chaos.proxy import Link
from director.lab.chaos.servers import upstream
from director.lab.chaos.wire import listening
from tests.bench.deaths.faults import CUT_S, FREEZE_S, KINDS, WORKERS, Fault, Kind, planned
from tests.bench.deaths.judge import LOAD, Event
from tests.bench.deaths.parties import BACK_S, Journal, Model, Worker
from tests.bench.deaths.sides import Queue, Refused, Side, Told
from tests.bench.processes import until
from tests.bench.sides.servers import DURABILITY, OwnRedis
from tests.support.eventually import every
from tests.support.servers import RedisServer, redis_server

RUN_S: Final = 0.8
RATE: Final = 6.0  # a second: one worker alone could run ten
START_S: Final = 60.0
WARM_S: Final = 0.3
LOOK_S: Final = 0.5
LATE_S: Final = 5.0  # in which a worker that was frozen writes what it had finished
PROBE: Final = "probe"
PROBE_S: Final = 1.0


class Trial(Struct, frozen=True, kw_only=True):
    """`limit_s`: when a job without an answer is given up, counted from the first one."""

    seed: int = 1
    jobs: int = 480
    kinds: tuple[Kind, ...] = KINDS
    freeze_s: float = FREEZE_S
    limit_s: float = 145.0


async def tried(side: Side, trial: Trial, folder: Path, say: Callable[[str], None]) -> tuple[list[Event], str]:
    """Return the journal, and the release of Redis. Logs of caller and workers stay in the folder."""
    journal = Journal()
    model = Model(journal, RUN_S)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening(model))
        server = stack.enter_context(redis_server(loopback=True, on_disk=True, config=DURABILITY["always"]))
        redis = client(server.tcp_url, name="deaths")
        stack.push_async_callback(redis.aclose)
        own = OwnRedis(server.tcp_url, redis, "always")
        release = await own.release()
        links = [Link(f"worker-{number}", trial.seed) for number in range(WORKERS)]
        for link in links:
            await link.listen(upstream(server.tcp_url))
            stack.push_async_callback(link.stop)
        queue = await stack.enter_async_context(side.opened(own, folder))
        workers = [_worker(queue, number, link, port, journal, folder) for number, link in enumerate(links)]
        caller = Caller(queue, journal)
        stack.push_async_callback(caller.aclose)
        for work in (caller.watch(), *(worker.keep() for worker in workers)):
            await stack.enter_async_context(_running(work))
        await _warm(caller, model)
        journal.begin()
        caller.forget()
        nemesis = Nemesis(server, links, workers, journal, say)
        faults = await stack.enter_async_context(_running(nemesis.run(trial)))
        await caller.load(trial.jobs)
        await caller.until_told(faults, trial.limit_s)
    return journal.events, release


def _worker(queue: Queue, number: int, link: Link, port: int, journal: Journal, folder: Path) -> Worker:
    name = f"worker-{number}"
    command = queue.worker(f"redis://127.0.0.1:{link.port}/0", f"http://127.0.0.1:{port}/{number}", name)
    return Worker(name, command, journal, folder / f"{name}.log")


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


class Caller:
    """Files jobs, and asks for their answers until each has one."""

    def __init__(self, queue: Queue, journal: Journal) -> None:
        self._queue, self._journal = queue, journal
        self._filing = set[asyncio.Task[None]]()
        self._answers: dict[str, Told | None] = {}

    async def has_all(self) -> bool:
        return not self._filing and all(self._answers.values())

    def forget(self) -> None:
        self._answers.clear()

    def file(self, job: str) -> None:
        self._filing.add(task := asyncio.create_task(self._file(job)))
        task.add_done_callback(self._filing.discard)

    async def load(self, jobs: int) -> None:
        for number in range(jobs):
            await asyncio.sleep(number / RATE - self._journal.now)  # the rate of the load
            self.file(f"{LOAD}{number}")

    async def until_told(self, faults: "asyncio.Task[None]", limit_s: float) -> None:
        """Wait for all answers and for the last fault, and look once more at all of them.

        Jobs go on coming, one a second: some queues look for abandoned work only when new work comes.
        """
        async for _ in every(PROBE_S):
            if self._journal.now >= limit_s or (faults.done() and await self.has_all()):
                break
            self.file(f"{PROBE}-{round(self._journal.now)}")
        while self._filing:  # each gives up by itself
            await asyncio.wait(self._filing)
        await self._look(list(self._answers))
        for job in await self._queue.held([job for job, told in self._answers.items() if told is None]):
            self._journal.add("held", job=job)

    async def watch(self) -> None:
        async for _ in every(LOOK_S):
            await self._look([job for job, told in self._answers.items() if told is None])

    async def aclose(self) -> None:
        for task in list(self._filing):
            task.cancel()

    async def _file(self, job: str) -> None:
        try:
            await self._queue.file(job)
        except Refused as exc:
            self._journal.add("refused", job=job, text=f"{exc}")
        else:
            if not job.startswith(PROBE):
                self._journal.add("accepted", job=job)
                self._answers[job] = None

    async def _look(self, jobs: Sequence[str]) -> None:
        for job, told in (await self._queue.told(jobs)).items() if jobs else ():
            if told != self._answers[job]:
                self._answers[job] = told
                self._journal.add("told", job=job, run=told.run, text=told.reason)


async def _warm(caller: Caller, model: Model) -> None:
    """File jobs until each worker ran one and all were answered. Raises TimeoutError."""
    async with asyncio.timeout(START_S):
        async for number in every(WARM_S):
            if len(model.workers) == WORKERS:
                break
            caller.file(f"warm-{number}")
        await until("all are answered", caller.has_all, limit_s=START_S)


class Nemesis:
    def __init__(
        self,
        server: RedisServer,
        links: Sequence[Link],
        workers: Sequence[Worker],
        journal: Journal,
        say: Callable[[str], None],
    ) -> None:
        self._server, self._links, self._workers, self._journal, self._say = server, links, workers, journal, say

    async def run(self, trial: Trial) -> None:
        for fault in planned(trial.seed, trial.kinds):
            await asyncio.sleep(fault.at_s - self._journal.now)  # the plan says when
            text = f"{fault.kind} {'' if fault.kind == 'redis' else self._workers[fault.worker].name}".strip()
            self._journal.add("fault", text=text)
            self._say(f"    {self._journal.now:5.1f} s  {text}")
            await self._carry_out(fault, trial)
        await asyncio.sleep(LATE_S)  # what comes late is counted too

    async def _carry_out(self, fault: Fault, trial: Trial) -> None:
        worker, link = self._workers[fault.worker], self._links[fault.worker]
        match fault.kind:
            case "kill":
                await worker.signal(signal.SIGKILL)
            case "stop":
                await worker.stop()
            case "redis":
                await asyncio.to_thread(self._server.kill)
                await asyncio.sleep(BACK_S)  # the length of the fault
                await asyncio.to_thread(self._server.start)
            case "cut":
                link.cut()
                await asyncio.sleep(CUT_S)  # the length of the fault
                link.mend()
            case "freeze":
                await worker.signal(signal.SIGSTOP)
                await asyncio.sleep(trial.freeze_s)  # the length of the fault
                await worker.signal(signal.SIGCONT)
