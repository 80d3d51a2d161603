"""Play the parties of a trial: a model server that keeps a journal, and workers under a supervisor."""

import asyncio
import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from director.lab.chaos.wire import Answer, Request
from director.local.launcher import child as until_we_end
from tests.bench.deaths.judge import Event, What

JOB: Final = re.compile(rb'"(\w+-\d+)"')
BACK_S: Final = 1.0
GRACE_S: Final = 30.0


class Journal:
    """The events of a trial, in the order in which this process saw them. Times count from `begin`."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._zero = 0.0

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time() - self._zero

    def begin(self) -> None:
        self._zero += self.now
        self.events.clear()

    def add(self, what: What, *, job: str = "", run: str = "", text: str = "") -> None:
        self.events.append(Event(at=round(self.now, 4), what=what, job=job, run=run, text=text))


class Model:
    """A model server. The first part of a path names the worker: `POST /0/run`. Each run has a name of its own."""

    def __init__(self, journal: Journal, run_s: float) -> None:
        self._journal = journal
        self._run_s = run_s
        self._runs = 0
        self.workers: set[str] = set()

    async def __call__(self, request: Request) -> Answer:
        found = JOB.search(request.body)
        if request.method != "POST" or found is None:
            return Answer(200, b"{}")
        self._runs += 1
        job, run, worker = found[1].decode(), f"run-{self._runs}", request.path.split("/")[1]
        self.workers.add(worker)
        self._journal.add("began", job=job, run=run, text=worker)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._run_s):
                await request.gone.wait()
        self._journal.add("cut off" if request.gone.is_set() else "ended", job=job, run=run, text=worker)
        return Answer(200, f'{{"output": "{run}"}}'.encode())


class Command(Struct, frozen=True, kw_only=True):
    words: Sequence[str]
    folder: Path
    env: dict[str, str]

    async def start(self, log: Path, *, talks: bool = False) -> asyncio.subprocess.Process:
        """Start it in a session of its own. `talks`: its standard input and output are pipes, else they go nowhere."""
        with log.open("ab") as file:
            return await asyncio.create_subprocess_exec(
                *until_we_end.bind_to_parent(*self.words),
                cwd=self.folder,
                env=self.env,
                stdin=asyncio.subprocess.PIPE if talks else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if talks else file,
                stderr=file,
                start_new_session=True,
            )


class Worker:
    """A process that is started again a second after it ended, however it ended."""

    def __init__(self, name: str, command: Command, journal: Journal, log: Path) -> None:
        self.name = name
        self._command = command
        self._journal = journal
        self._log = log
        self._started: asyncio.Future[asyncio.subprocess.Process] = asyncio.get_running_loop().create_future()

    async def keep(self) -> None:
        """Run it until this is canceled, then end it."""
        while True:
            process = await self._command.start(self._log)
            self._started.set_result(process)
            try:
                code = await process.wait()
            finally:
                _signal_session(process.pid, signal.SIGKILL)
            self._started = asyncio.get_running_loop().create_future()
            self._journal.add("exited", text=f"{self.name} {code}")
            await asyncio.sleep(BACK_S)  # as long as its supervisor takes

    async def signal(self, number: signal.Signals) -> None:
        """Send it to all processes of the worker, as what befalls a machine does."""
        _signal_session((await self._started).pid, number)

    async def stop(self) -> None:
        """Ask it to end, as a deploy does. It is killed if that takes too long."""
        process = await self._started
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE_S):
                await process.wait()
        except TimeoutError:
            _signal_session(process.pid, signal.SIGKILL)


def _signal_session(leader: int, number: signal.Signals) -> None:
    for pid in list(_session(leader)):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _session(leader: int) -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                stat = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                if int(stat[3]) == leader:
                    yield int(entry.name)
