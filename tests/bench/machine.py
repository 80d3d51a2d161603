"""What is said of the machine and the source beside every figure."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from tests.bench.results import Machine

__all__ = ("commit", "load", "machine", "now")

ROOT = Path(__file__).parents[2]


def machine(redis: str) -> Machine:
    """This one. `redis`: the program and release that was measured with."""
    return Machine(
        cpu=_cpu(), cores=os.cpu_count() or 1, kernel=platform.release(), python=platform.python_version(), redis=redis
    )


def commit() -> str:
    """The commit of this source, with a `+` where something is changed that is not committed."""
    try:
        head = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
        changed = subprocess.check_output(["git", "status", "--porcelain", "-uno"], cwd=ROOT, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head}+" if changed else head


def load() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
