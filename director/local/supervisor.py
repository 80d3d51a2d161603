"""Keep the parts of one `up` running: start them in stages, restart what dies, end them in reverse. When its block
ends, each part is asked to end, then killed.
"""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import httpx
from anyio.abc import Process, TaskGroup
from msgspec import Struct

from director.local import child
from director.local.processes import Mark, mark, signal_group

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
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
    part: Part
    scope: anyio.CancelScope
    gone: anyio.Event
    process: Process | None = None


@dataclass(slots=True)
class Supervisor:
    """`changed` is called after each start. `ends` counts how often each part died by itself."""

    tasks: TaskGroup
    open_log: Callable[[str], int]
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
        part, pause_s = kept.part, self.first_pause_s
        while True:
            began = time.monotonic()
            try:
                kept.process = await self._launch(part)
            except OSError as exc:  # no memory or process id is free
                ended = f"did not start ({exc.strerror})"
            else:
                ended = f"ended ({how_it_ended(await kept.process.wait())})"
                signal_group(kept.process.pid, signal.SIGKILL)  # one of its workers may still run
            self.ends[part.name] += 1
            if time.monotonic() - began >= LONG_RUN_S:
                pause_s = self.first_pause_s
            self.say(f"{part.name} {ended}; starting it again in {pause_s:g} s")
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, self.longest_pause_s)

    async def _launch(self, part: Part) -> Process:
        log = self.open_log(part.name)
        try:
            # in its own session: Ctrl-C in the terminal reaches only `up`, which ends the parts in order
            process = await anyio.open_process(
                child.bound(*part.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=part.cwd,
                env=part.env,
                start_new_session=True,
            )
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
    open_log: Callable[[str], int],
    say: Callable[[str], None],
    changed: Callable[[], None],
    first_pause_s: float = FIRST_PAUSE_S,
    longest_pause_s: float = LONGEST_PAUSE_S,
) -> AsyncGenerator[Supervisor, None]:
    async with anyio.create_task_group() as tasks:
        supervisor = Supervisor(tasks, open_log, say, changed, first_pause_s, longest_pause_s)
        try:
            yield supervisor
        finally:
            with anyio.CancelScope(shield=True):
                await supervisor.stop()


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


async def _ask_to_end(part: Part, process: Process) -> None:
    if part.shutdown_url:
        with suppress(httpx.HTTPError):
            async with httpx.AsyncClient(trust_env=False) as client:
                await client.post(part.shutdown_url, timeout=part.grace_s)
    else:
        with suppress(ProcessLookupError):
            process.terminate()
