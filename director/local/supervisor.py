"""Keep the parts of one `up` running: start them in stages, restart what dies, end them in reverse. When its block
ends, each part is asked to end, then killed.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import httpx
from anyio.abc import Process, TaskGroup
from msgspec import Struct

from director.core.errors import DirectorError
from director.local.home import Home
from director.local.launcher import child
from director.local.launcher.launch import cut_log, launch
from director.local.launcher.processes import Mark, how_it_ended, mark, signal_group

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CUT_LOGS_S: Final = 2.0
LONG_RUN_S: Final = 30.0  # a part that ran this long was well: its next pause is short again


class Part(Struct, frozen=True, kw_only=True):
    """One process to keep running. `shutdown_url`: how to end a process that ignores SIGTERM."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    grace_s: float = 10.0
    shutdown_url: str = ""


class Kept(Struct):
    """`is_restarting`: its process is being ended on purpose, to start it again at once. `log_start`: the bytes that
    were in its log when the process started.
    """

    part: Part
    scope: anyio.CancelScope
    gone: anyio.Event
    process: Process | None = None
    is_restarting: bool = False
    log_start: int = 0


@dataclass(slots=True)
class Supervisor:
    """`home` has the logs. `changed` is called after each start. `ends` counts how often each part died by itself."""

    tasks: TaskGroup
    home: Home
    say: Callable[[str], None]
    changed: Callable[[], None]
    first_pause_s: float = FIRST_PAUSE_S
    longest_pause_s: float = LONGEST_PAUSE_S
    marks: dict[str, Mark] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    _stages: list[list[Kept]] = field(default_factory=list)
    _is_forced: bool = False

    def start(self, parts: Sequence[Part]) -> None:
        """Start these parts as one stage: they are ended together, after all later stages."""
        stage = [Kept(part, anyio.CancelScope(shield=True), anyio.Event()) for part in parts]
        self._stages.append(stage)
        for kept in stage:
            self.tasks.start_soon(self._keep, kept)

    async def stop(self) -> None:
        while self._stages:
            stage = self._stages[-1]
            for kept in stage:
                kept.scope.cancel()
            for kept in stage:
                await kept.gone.wait()
            self._stages.pop()

    async def restart(self, part: Part) -> None:
        """End the process of the part of this name, and start it again as `part`. Runs on it get the part's grace."""
        kept = next(each for stage in self._stages for each in stage if each.part.name == part.name)
        process, kept.part = kept.process, part
        if process is None or process.returncode is not None:
            return  # it is about to start anyway
        kept.is_restarting = True
        with anyio.move_on_after(part.grace_s):
            await _ask_to_end(part, process)
            await process.wait()
        signal_group(process.pid, signal.SIGKILL)

    async def keep_logs_short(self, every_s: float = CUT_LOGS_S) -> None:
        """Cut the logs of running parts to their end, again and again: a server may log each request for weeks."""
        while True:
            await anyio.sleep(every_s)
            for kept in [each for stage in self._stages for each in stage]:
                with suppress(OSError):  # as on a full disk
                    if cut_log(self.home.log(kept.part.name)):
                        kept.log_start = 0

    def force(self) -> None:
        self._is_forced = True
        for stage in self._stages:
            for kept in stage:
                if kept.process is not None:
                    signal_group(kept.process.pid, signal.SIGKILL)

    async def _keep(self, kept: Kept) -> None:
        try:
            with kept.scope:
                await self._run(kept)
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(kept)
            kept.gone.set()

    async def _run(self, kept: Kept) -> None:
        pause_s = self.first_pause_s
        while True:
            part = kept.part
            began = time.monotonic()
            try:
                kept.process = await self._launch(kept)
            except OSError as exc:  # no memory or process id is free
                ended = f"did not start ({exc.strerror})"
            else:
                code = await kept.process.wait()
                ended = f"ended ({how_it_ended(code)}{self._last_words(kept) if code > 0 else ''})"
                signal_group(kept.process.pid, signal.SIGKILL)  # one of its workers may still run
            if kept.is_restarting:
                kept.is_restarting = False
                continue
            self.ends[part.name] += 1
            if time.monotonic() - began >= LONG_RUN_S:
                pause_s = self.first_pause_s
            self.say(f"{part.name} {ended}; starting it again in {pause_s:g} s")
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, self.longest_pause_s)

    def _last_words(self, kept: Kept) -> str:
        """Return the last line that the process wrote: a part that refuses its settings says there what is wrong."""
        lines = self.home.last_lines(kept.part.name, since=kept.log_start)
        return next((f": {line}" for line in reversed(lines) if line.strip()), "")

    async def _launch(self, kept: Kept) -> Process:
        part, log = kept.part, self.home.open_log(kept.part.name)
        kept.log_start = os.fstat(log).st_size
        try:
            process = await launch(child.bind_to_parent(*part.command), env=part.env, cwd=part.cwd, output=log)
        finally:
            os.close(log)
        found = mark(process.pid)
        if found is not None:
            self.marks[part.name] = found
            self.changed()
        return process

    async def _end(self, kept: Kept) -> None:
        process, part = kept.process, kept.part
        if process is None:
            return
        if process.returncode is None and not self._is_forced:
            with anyio.move_on_after(part.grace_s):
                await _ask_to_end(part, process)
                await process.wait()
        signal_group(process.pid, signal.SIGKILL)
        await process.wait()
        await process.aclose()
        self.marks.pop(part.name, None)


@asynccontextmanager
async def supervising(
    *,
    home: Home,
    say: Callable[[str], None],
    changed: Callable[[], None],
    first_pause_s: float = FIRST_PAUSE_S,
    longest_pause_s: float = LONGEST_PAUSE_S,
) -> AsyncGenerator[Supervisor, None]:
    async with anyio.create_task_group() as tasks:
        supervisor = Supervisor(tasks, home, say, changed, first_pause_s, longest_pause_s)
        cutting = anyio.CancelScope()
        tasks.start_soon(_within, cutting, supervisor.keep_logs_short)
        try:
            yield supervisor
        finally:
            cutting.cancel()
            with anyio.CancelScope(shield=True):
                await supervisor.stop()


async def _within(scope: anyio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
    with scope:
        await work()


async def until_signal(
    work: Callable[[Supervisor, TaskGroup], Awaitable[None]],
    *,
    home: Home,
    say: Callable[[str], None],
    changed: Callable[[], None],
) -> None:
    """Do `work`, then keep its parts running until a signal. A second signal kills them. Raises what `work` raised on
    purpose, after all parts have ended.
    """
    # raised after the block: a task group would wrap an error that passes through it
    failures: list[DirectorError] = []
    with anyio.open_signal_receiver(*SIGNALS) as signals:
        async with (
            supervising(home=home, say=say, changed=changed) as supervisor,
            anyio.create_task_group() as tasks,
        ):
            with anyio.CancelScope() as scope:
                tasks.start_soon(_end_on_signal, signals, scope, supervisor)
                try:
                    await work(supervisor, tasks)
                    await anyio.sleep_forever()
                except DirectorError as exc:
                    failures.append(exc)
            say("stopping")
            # here and not at the end of the block, so that a second Ctrl-C still works
            await supervisor.stop()
            tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]


async def _end_on_signal(
    signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope, supervisor: Supervisor
) -> None:
    async for _ in signals:
        if scope.cancel_called:
            supervisor.force()
        scope.cancel()


async def _ask_to_end(part: Part, process: Process) -> None:
    if part.shutdown_url:
        with suppress(httpx.HTTPError):
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.post(part.shutdown_url, timeout=part.grace_s)
    else:
        with suppress(ProcessLookupError):
            process.terminate()
