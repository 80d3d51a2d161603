"""Run child processes in sessions of their own, end them with the block and measure them through /proc."""

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from director.local.launcher import child as until_we_end

ROOT: Final = Path(__file__).parents[2]
SETTINGS: Final = ("DIRECTOR_", "OTEL_")  # of a service in use
TICKS: Final = os.sysconf("SC_CLK_TCK")
LAST_LINES: Final = 2_000
STOP_S: Final = 40.0  # a director drains for 30 s


class Child:
    def __init__(self, name: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._log = log

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-LAST_LINES:]

    def cpu_s(self) -> float:
        """Return the processor time of the living processes."""
        return sum(int(stat[11]) + int(stat[12]) for stat in self._stats()) / TICKS

    def resident_bytes(self) -> int:
        pages = sum(int(stat[21]) for stat in self._stats())
        return pages * os.sysconf("SC_PAGE_SIZE")

    def descriptors(self) -> int:
        return sum(1 for _ in os.scandir(f"/proc/{self.pid}/fd"))

    def stop(self) -> None:
        """Ask it to end, as a supervisor does, and wait. Kill it if it takes too long."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _stats(self) -> Iterator[list[str]]:
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with suppress(OSError):
                    stat = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                    if int(stat[3]) == self.pid:
                        yield stat


def environment(**env: Any) -> dict[str, str]:
    """Return the environment of a child: this one without settings, and these variables."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    return outer | {"PYTHONPATH": str(ROOT)} | {name: str(value) for name, value in env.items()}


@contextmanager
def child(name: str, command: Sequence[str], *, cwd: Path = ROOT, **env: Any) -> Iterator[Child]:
    """Run a command without the settings of this process. Its output goes to a file."""
    with tempfile.NamedTemporaryFile(prefix=f"director-bench-{name}-") as log:
        process = subprocess.Popen(
            # by way of that, so that it does not outlive us, however we end
            until_we_end.bind_to_parent(*command),
            cwd=cwd,
            env=environment(**env),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started = Child(name, process, Path(log.name))
        try:
            yield started
        finally:
            started.kill()  # nothing that it holds matters any more


async def until(
    what: str,
    look: Callable[[], Awaitable[bool]],
    *,
    limit_s: float,
    every_s: float = 0.02,
    alive: Sequence[Child] = (),
) -> None:
    """Wait for the condition. Raises TimeoutError, or ChildProcessError if one of these ended."""
    give_up = time.monotonic() + limit_s
    while not await look():
        for one in alive:
            if not one.is_alive:
                raise ChildProcessError(f"{one.name} ended: {one.said()}")
        if time.monotonic() > give_up:
            said = " | ".join(one.said() for one in alive)
            raise TimeoutError(f"{what}: not in {limit_s:g} s. {said}")
        await asyncio.sleep(every_s)  # between two looks at other processes


async def per_second(look: Callable[[], Awaitable[Sequence[float]]], seconds: float) -> list[float]:
    """Return how much each figure grows in a second, of so many in which the caller does nothing."""
    before, began = await look(), time.monotonic()
    await asyncio.sleep(seconds)  # the time that is measured
    after, took_s = await look(), time.monotonic() - began
    return [(now - then) / took_s for now, then in zip(after, before, strict=True)]
