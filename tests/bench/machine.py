"""Describe the machine and the source beside every figure."""

import os
import platform
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.bench import interpreter
from tests.bench.results import Load, Machine

ROOT: Final = Path(__file__).parents[2]
LOOK_S: Final = 0.5


def machine(redis: str) -> Machine:
    return Machine(
        cpu=_cpu(), cores=os.cpu_count() or 1, kernel=platform.release(), python=interpreter.about(), redis=redis
    )


def commit() -> str:
    """Return the commit, with a `+` if the source has uncommitted changes."""
    try:
        head = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
        changed = subprocess.check_output(["git", "status", "--porcelain", "-uno"], cwd=ROOT, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}+" if changed else head


def load() -> Load:
    """Return the load average and the cores that other processes keep busy now."""
    before = _cpu_ticks()
    time.sleep(LOOK_S)  # the time that is measured
    after = _cpu_ticks()
    busy, whole = (now - then for now, then in zip(after, before, strict=True))
    return Load(average=round(os.getloadavg()[0], 2), busy=round((os.cpu_count() or 1) * busy / max(1, whole), 2))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cpu_ticks() -> tuple[int, int]:
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)  # but for idle, and waiting for a disk


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
